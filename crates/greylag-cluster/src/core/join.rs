//! Joining: the joiner's search for a member, and the member's answers.
//!
//! Only the first seed node may form a cluster, and only when enough of the others say that they
//! know of none. A process at the address of a known member has replaced it: the old one is taken
//! out first, and the joiner asks again.
//!
//! Source: cluster M23 to M25b.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};
use rand::Rng;

use super::{ClusterCore, Effect, Life, LogLevel};
use crate::app_version::AppVersion;
use crate::error::{JoinError, JoinRejection};
use crate::gossip::Gossip;
use crate::heartbeat::HeartbeatCore;
use crate::member::{Member, MemberStatus};
use crate::message::{CheckedConfig, Message, PROTOCOL};
use crate::reachability::Status;
use crate::settings::Downing;
use crate::shutdown::ShutdownReason;

/// How long a joiner waits while its older incarnation is taken out (cluster M25).
const DEFERRED_RETRY: Duration = Duration::from_secs(1);
/// How often the first seed node asks the others (cluster M24).
const FIRST_SEED_INTERVAL: Duration = Duration::from_secs(1);

/// A join under way.
#[derive(Debug)]
pub(super) struct JoinProcess {
    seeds: Vec<NodeAddress>,
    others: Vec<NodeAddress>,
    is_first: bool,
    nacks: BTreeSet<NodeAddress>,
    /// Who was asked to let us in, since the start.
    contacts: BTreeSet<NodeAddress>,
    /// Once a cluster was heard of, this process never forms one.
    heard_of_cluster: bool,
    cluster_id: u128,
    ask_at: Instant,
    /// When `Join` goes out again, and to whom.
    join_at: Option<(Instant, NodeAddress)>,
    /// When the search starts over.
    restart_at: Option<Instant>,
    self_join_at: Instant,
    warn_at: Instant,
    give_up_at: Option<Instant>,
}

impl JoinProcess {
    pub(super) fn next_deadline(&self) -> Instant {
        let asking = self.restart_at.is_none().then_some(self.ask_at);
        let alone = (self.is_first && !self.heard_of_cluster).then_some(self.warn_at);
        let join_at = self.join_at.as_ref().map(|(at, _)| *at);
        [asking, alone, join_at, self.restart_at, self.give_up_at].into_iter().flatten().min().unwrap_or(self.ask_at)
    }

    /// The seeds that know of no cluster, with this one, are a majority of the list; the rest said
    /// so too, or had their time.
    fn may_form(&self, now: Instant, alone: bool) -> bool {
        if !self.is_first || self.heard_of_cluster {
            return false;
        }
        let patience_over = now >= self.self_join_at;
        let all = self.nacks.len() == self.others.len();
        let majority = 2 * (self.nacks.len() + 1) > self.seeds.len();
        (majority && (all || patience_over)) || (alone && patience_over)
    }
}

impl ClusterCore {
    pub(super) fn on_join_seeds(&mut self, now: Instant, seeds: Vec<NodeAddress>, out: &mut Vec<Effect>) {
        if matches!(self.life, Life::Member) {
            return out.push(Effect::JoinFailed(JoinError::AlreadyMember));
        }
        if seeds.is_empty() {
            return out.push(Effect::JoinFailed(JoinError::NoSeeds));
        }
        let own = self.node.address();
        let others: Vec<NodeAddress> = seeds.iter().filter(|seed| *seed != own).cloned().collect();
        if others.is_empty() {
            return self.form_cluster(now, out);
        }
        let heard_of_cluster = matches!(&self.life, Life::Joining(before) if before.heard_of_cluster);
        let patience = self.settings.seed_node_timeout;
        self.life = Life::Joining(Box::new(JoinProcess {
            is_first: seeds.first() == Some(own),
            seeds,
            others,
            nacks: BTreeSet::new(),
            contacts: BTreeSet::new(),
            heard_of_cluster,
            cluster_id: 0,
            ask_at: now,
            join_at: None,
            restart_at: None,
            self_join_at: now + patience,
            warn_at: now + patience,
            give_up_at: self.settings.shutdown_after_unsuccessful_join_seed_nodes.map(|after| now + after),
        }));
        self.on_join_tick(now, out);
    }

    pub(super) fn on_join_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let config = self.checked_config();
        let alone = self.settings.self_join_alone;
        let patience = self.settings.seed_node_timeout;
        let Life::Joining(join) = &mut self.life else { return };
        if join.give_up_at.is_some_and(|at| at <= now) {
            let error = JoinError::Unsuccessful(join.seeds.clone());
            return self.fail_join(error, ShutdownReason::JoinFailed, out);
        }
        if join.may_form(now, alone) {
            return self.form_cluster(now, out);
        }
        if join.restart_at.is_some_and(|at| at <= now) {
            join.restart_at = None;
            join.join_at = None;
            join.ask_at = now;
        }
        if join.restart_at.is_none() && join.ask_at <= now {
            join.ask_at = now + if join.is_first { FIRST_SEED_INTERVAL.min(patience) } else { patience };
            for to in join.others.clone() {
                let message = Message::InitJoin { to: to.clone(), protocol: PROTOCOL, config: config.clone() };
                out.push(Effect::Send { to: to.into(), message });
            }
        }
        if join.is_first && !join.heard_of_cluster && join.warn_at <= now {
            join.warn_at = now + patience;
            let text = format!(
                "{} of {} other seed nodes know of no cluster; with fewer than half of the list this node forms none \
                 (see self_join_alone)",
                join.nacks.len(),
                join.others.len()
            );
            out.push(Effect::Log(LogLevel::Warn, text));
        }
        if let Some((at, to)) = join.join_at.clone()
            && at <= now
        {
            join.join_at = None;
            self.send_join(&to, out);
        }
    }

    fn send_join(&mut self, to: &NodeAddress, out: &mut Vec<Effect>) {
        let cluster_id = match &mut self.life {
            Life::Joining(join) => {
                join.contacts.insert(to.clone());
                join.cluster_id
            }
            _ => self.gossip.cluster_id,
        };
        let message = Message::Join {
            roles: self.settings.roles.iter().cloned().collect(),
            app_version: self.settings.app_version.clone(),
            protocol: PROTOCOL,
            cluster_id,
        };
        out.push(Effect::Send { to: to.clone().into(), message });
    }

    /// The first member. It is Up before anybody else can be.
    fn form_cluster(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let cluster_id = (u128::from(self.rng.next_u64()) << 64) | u128::from(self.rng.next_u64());
        let mut gossip = Gossip { cluster_id, ..Gossip::default() };
        gossip.members.insert(
            self.node.clone(),
            self.joining(self.node.clone(), self.own_roles(), self.settings.app_version.clone()),
        );
        gossip.touch(&self.node, true);
        self.become_member(now, gossip, out);
        self.leader_actions(now, out);
    }

    fn own_roles(&self) -> Vec<String> {
        self.settings.roles.iter().cloned().collect()
    }

    fn joining(&self, address: UniqueAddress, roles: Vec<String>, app_version: AppVersion) -> Member {
        let mut roles: BTreeSet<String> = roles.into_iter().collect();
        roles.insert("dc-default".to_owned());
        Member::joining(address, Arc::new(roles), app_version)
    }

    fn become_member(&mut self, now: Instant, gossip: Gossip, out: &mut Vec<Effect>) {
        self.life = Life::Member;
        let delay = self.settings.periodic_tasks_initial_delay;
        let offset = self.phase_offset(self.settings.gossip_interval);
        self.rounds.gossip_at = now + delay + offset;
        self.rounds.leader_at = now + delay + offset;
        self.rounds.reaper_at = now + delay + offset;
        self.heartbeat = HeartbeatCore::new(self.node.clone(), self.settings.failure_detector.clone(), now);
        self.trust.start(now);
        out.push(Effect::ClusterId(gossip.cluster_id));
        self.become_state(now, gossip, out);
        out.push(Effect::Joined);
    }

    fn fail_join(&mut self, error: JoinError, reason: ShutdownReason, out: &mut Vec<Effect>) {
        out.push(Effect::JoinFailed(error));
        self.end(reason, out);
    }

    // --- answers to the joiner ------------------------------------------------------------------

    pub(super) fn on_init_join_nack(&mut self, now: Instant, from: &UniqueAddress, out: &mut Vec<Effect>) {
        if let Life::Joining(join) = &mut self.life
            && join.others.contains(from.address())
        {
            join.nacks.insert(from.address().clone());
            if join.may_form(now, self.settings.self_join_alone) {
                self.form_cluster(now, out);
            }
        }
    }

    pub(super) fn on_init_join_ack(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        cluster_id: u128,
        config: &CheckedConfig,
        out: &mut Vec<Effect>,
    ) {
        let keys = self.differing_keys(config);
        let retry = self.settings.retry_unsuccessful_join_after;
        let Life::Joining(join) = &mut self.life else { return };
        join.heard_of_cluster = true;
        // The first acceptable Ack wins; later ones are ignored until the search starts over.
        if join.restart_at.is_some() || !join.seeds.contains(from.address()) {
            return;
        }
        if !keys.is_empty() {
            if self.settings.enforce_config_on_join {
                let error = JoinError::IncompatibleConfig { by: from.address().clone(), keys };
                return self.fail_join(error, ShutdownReason::IncompatibleConfig, out);
            }
            out.push(Effect::Log(LogLevel::Warn, format!("settings differ from {from}: {}", keys.join(", "))));
        }
        join.cluster_id = cluster_id;
        join.restart_at = Some(now + retry);
        self.send_join(from.address(), out);
    }

    pub(super) fn on_join_deferred(&mut self, now: Instant, from: &UniqueAddress, retry_after: Duration) {
        let retry = self.settings.retry_unsuccessful_join_after;
        if let Life::Joining(join) = &mut self.life
            && join.contacts.contains(from.address())
        {
            let at = now + retry_after.min(retry);
            join.join_at = Some((at, from.address().clone()));
            join.restart_at = Some(at + retry);
        }
    }

    pub(super) fn on_join_rejected(&mut self, from: UniqueAddress, reason: JoinRejection, out: &mut Vec<Effect>) {
        match &self.life {
            // The shutdown may be called off or end; the search starts over by itself.
            Life::Joining(_) if reason == JoinRejection::PreparingForShutdown => {}
            Life::Joining(join) if join.contacts.contains(from.address()) => {
                let shutdown = match reason {
                    JoinRejection::Removed => ShutdownReason::Removed,
                    _ => ShutdownReason::JoinFailed,
                };
                self.fail_join(JoinError::Rejected { by: from, reason }, shutdown, out);
            }
            Life::Member if self.rejoin_at.is_some() && reason == JoinRejection::Removed => {
                self.end(ShutdownReason::Removed, out);
            }
            _ => {}
        }
    }

    pub(super) fn on_welcome(
        &mut self,
        now: Instant,
        from: UniqueAddress,
        to: &UniqueAddress,
        gossip: Arc<Gossip>,
        received_at: Instant,
        out: &mut Vec<Effect>,
    ) {
        if *to != self.node || !gossip.members.contains_key(to) {
            return;
        }
        match &self.life {
            Life::Joining(join) if join.contacts.contains(from.address()) => {
                let mut gossip = Arc::unwrap_or_clone(gossip);
                if gossip.repair() == Some(true) {
                    gossip.touch(&self.node, false);
                }
                if !gossip.members.contains_key(to) {
                    return;
                }
                gossip.seen.insert(self.node.clone());
                self.become_member(now, gossip, out);
                self.send_gossip(&from, out);
            }
            // The answer to a repeated Join is gossip like any other.
            Life::Member if self.rejoin_at.is_some() => {
                self.on_gossip(now, &from, to, gossip, false, received_at, out);
            }
            _ => {}
        }
    }

    /// Let in, but nobody gossips with us: who let us in may have died before it told others.
    pub(super) fn join_again(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.rejoin_at = Some(now + self.settings.retry_unsuccessful_join_after);
        let gossip = self.gossip.clone();
        let settled = |peer: &&UniqueAddress| gossip.members[*peer].status.is_settled();
        let target = gossip.valid_targets(&self.node).find(settled).or_else(|| gossip.valid_targets(&self.node).next());
        if let Some(target) = target.cloned() {
            self.send_join(target.address(), out);
        }
    }

    pub(super) fn note_gossip_heard(&mut self, now: Instant) {
        if self.rejoin_at.is_some() {
            self.rejoin_at = Some(now + self.settings.retry_unsuccessful_join_after);
        }
    }

    // --- the member's side ----------------------------------------------------------------------

    fn welcomes(&self) -> bool {
        matches!(self.life, Life::Member) && !self.is_leaving_for_good()
    }

    pub(super) fn on_init_join(
        &mut self,
        from: &UniqueAddress,
        protocol: u32,
        config: &CheckedConfig,
        out: &mut Vec<Effect>,
    ) {
        self.ask_who_if_restarted(from, out);
        match &self.life {
            Life::Idle | Life::Joining(_) => self.send(from.clone(), Message::InitJoinNack, out),
            Life::Member if self.welcomes() && protocol == PROTOCOL => {
                let keys = self.differing_keys(config);
                if !keys.is_empty() {
                    let text = format!("{from} wants to join, but its settings differ: {}", keys.join(", "));
                    out.push(Effect::Log(LogLevel::Warn, text));
                }
                let ack = Message::InitJoinAck { cluster_id: self.gossip.cluster_id, config: self.checked_config() };
                self.send(from.clone(), ack, out);
            }
            Life::Member if self.welcomes() => {
                let reason = JoinRejection::IncompatibleProtocol { ours: PROTOCOL, theirs: protocol };
                self.send(from.clone(), Message::JoinRejected { reason }, out);
            }
            // Silence, not a Nack: a node that leaves must not help to found another cluster.
            Life::Member | Life::Ended => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn on_join(
        &mut self,
        now: Instant,
        from: UniqueAddress,
        roles: Vec<String>,
        app_version: AppVersion,
        protocol: u32,
        cluster_id: u128,
        out: &mut Vec<Effect>,
    ) {
        if !self.welcomes() {
            return;
        }
        if let Some(reason) = self.reason_to_reject(&from, protocol, cluster_id) {
            return self.send(from, Message::JoinRejected { reason }, out);
        }
        if !self.gossip.members.contains_key(&from) {
            if self.gossip.members.keys().any(|member| member.address() == from.address()) {
                self.ask_who_if_restarted(&from, out);
                self.replace_incarnations(now, &from, out);
                return self.send(from, Message::JoinDeferred { retry_after: self.deferred_retry() }, out);
            }
            let mut gossip = Gossip::clone(&self.gossip);
            gossip.members.insert(from.clone(), self.joining(from.clone(), roles, app_version));
            self.change(now, gossip, out);
        }
        let welcome = Message::Welcome { to: from.clone(), gossip: self.gossip.clone() };
        self.send(from, welcome, out);
    }

    fn deferred_retry(&self) -> Duration {
        DEFERRED_RETRY.min(self.settings.gossip_interval)
    }

    fn reason_to_reject(&self, from: &UniqueAddress, protocol: u32, cluster_id: u128) -> Option<JoinRejection> {
        let prepares = |member: &Member| {
            matches!(member.status, MemberStatus::PreparingForShutdown | MemberStatus::ReadyForShutdown)
        };
        if protocol != PROTOCOL {
            Some(JoinRejection::IncompatibleProtocol { ours: PROTOCOL, theirs: protocol })
        } else if cluster_id != 0 && cluster_id != self.gossip.cluster_id {
            Some(JoinRejection::WrongCluster)
        } else if self.gossip.tombstones.contains_key(from) {
            Some(JoinRejection::Removed)
        } else if self.gossip.members.values().any(prepares) {
            Some(JoinRejection::PreparingForShutdown)
        } else {
            None
        }
    }

    /// Another process has taken the address: whoever was there is gone. Source: cluster M25.
    fn replace_incarnations(&mut self, now: Instant, joiner: &UniqueAddress, out: &mut Vec<Effect>) {
        let mut gossip = Gossip::clone(&self.gossip);
        let mut news = false;
        for member in gossip.members.values_mut().filter(|member| member.address.address() == joiner.address()) {
            news |= gossip.reachability.set(&self.node, &member.address, Status::Terminated);
            if member.status != MemberStatus::Down {
                member.status = MemberStatus::Down;
                news = true;
            }
        }
        if news {
            self.change(now, gossip, out);
            self.gossip_to_many(out);
        }
    }

    // --- settings that must fit -----------------------------------------------------------------

    /// Source: cluster M25a.
    fn checked_config(&self) -> CheckedConfig {
        let downing = match &self.settings.downing {
            Downing::None => "none".to_owned(),
            Downing::SplitBrainResolver(sbr) => sbr.strategy.to_string(),
        };
        let mut config: BTreeMap<String, String> = self.settings.checked_config.clone();
        config.insert("cluster.downing".to_owned(), downing);
        config
    }

    fn differing_keys(&self, theirs: &CheckedConfig) -> Vec<String> {
        let mut keys = Vec::new();
        for (key, ours) in self.checked_config() {
            match theirs.get(&key) {
                Some(value) if *value == ours => {}
                Some(value) => keys.push(format!("{key} (ours {ours}, theirs {value})")),
                // Keys of other layers are compared where both know them, to permit rolling updates.
                None if key.starts_with("cluster.") => keys.push(format!("{key} (ours {ours}, theirs missing)")),
                None => {}
            }
        }
        keys
    }
}
