//! Joining: the joiner's search for a member, and the member's answers.
//!
//! Only the first seed node may form a cluster, and only when enough of the others answer that they know of none. A
//! process at the address of a member waits until that member is removed; see `address_claims.rs`.
//!
//! Source: cluster M23 to M25b.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};
use greylag_transport::{DialFailure, RejectCode};
use rand::Rng;

use super::seeds::{Input as SeedInput, Seeds};
use super::{ClusterCore, Effect, Life, LogLevel};
use crate::app_version::AppVersion;
use crate::error::{JoinError, JoinRejection};
use crate::gossip::Gossip;
use crate::heartbeat::HeartbeatCore;
use crate::member::Member;
use crate::message::{CheckedConfig, Message, PROTOCOL};
use crate::seed_report::SeedAnswer;
use crate::settings::Downing;
use crate::shutdown::ShutdownReason;
use crate::stats::IgnoredGossip;

/// How long a joiner waits while its older incarnation is taken out (cluster M25).
const DEFERRED_RETRY: Duration = Duration::from_secs(1);
/// How often the first seed node asks the others (cluster M24).
const FIRST_SEED_INTERVAL: Duration = Duration::from_secs(1);

/// The join key that names the downing rule: the mechanism that may declare members dead, and its strategy.
const DOWNING_KEY: &str = "cluster.downing";
/// The major version of the protocol.
const PROTOCOL_KEY: &str = "cluster.protocol";

/// A join under way.
#[derive(Debug)]
pub(super) struct JoinProcess {
    seeds: Vec<NodeAddress>,
    others: Vec<NodeAddress>,
    is_first: bool,
    nacks: BTreeSet<NodeAddress>,
    /// Seeds that refused this node for good, with their answers.
    refusals: BTreeMap<NodeAddress, (RejectCode, String)>,
    /// Nodes that were asked to let this node in, since the start.
    contacts: BTreeSet<NodeAddress>,
    cluster_id: u128,
    ask_at: Instant,
    /// When `Join` is sent again, and its target.
    join_at: Option<(Instant, NodeAddress)>,
    /// When the search starts over.
    restart_at: Option<Instant>,
    self_join_at: Instant,
    warn_at: Instant,
    give_up_at: Option<Instant>,
    /// Decides when the log names the seed nodes that do not let this node in, and their answers.
    found: Seeds,
}

impl JoinProcess {
    pub(super) fn gives_up_at(&self) -> Option<Instant> {
        self.give_up_at
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let asking = self.restart_at.is_none().then_some(self.ask_at);
        let alone = (self.is_first && self.restart_at.is_none()).then_some(self.warn_at);
        let join_at = self.join_at.as_ref().map(|(at, _)| *at);
        let line_at = self.found.next_deadline();
        [asking, alone, join_at, line_at, self.restart_at, self.give_up_at]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.ask_at)
    }

    /// Whether this first seed may form a cluster: the seeds that know of none, with this one, are a majority of the
    /// list, and the rest answered the same or had their time. With `alone` (`self_join_alone`) no majority is needed
    /// once the time is over. Source: cluster M24.
    fn may_form(&self, now: Instant, heard_of_cluster: bool, alone: bool) -> bool {
        if self.others.is_empty() {
            return true;
        }
        if !self.is_first || heard_of_cluster {
            return false;
        }
        let patience_over = now >= self.self_join_at;
        let all = self.nacks.len() == self.others.len();
        let majority = 2 * (self.nacks.len() + 1) > self.seeds.len();
        (majority && (all || patience_over)) || (alone && patience_over)
    }
}

impl ClusterCore {
    pub(super) fn on_join_seeds(&mut self, now: Instant, mut seeds: Vec<NodeAddress>, out: &mut Vec<Effect>) {
        if matches!(self.life, Life::Member) {
            return out.push(Effect::JoinFailed(JoinError::AlreadyMember));
        }
        if seeds.is_empty() {
            return out.push(Effect::JoinFailed(JoinError::NoSeeds));
        }
        // Count a seed node that is named twice once: the majority is one of seed nodes.
        let mut named = BTreeSet::new();
        seeds.retain(|seed| named.insert(seed.clone()));
        self.foreign_clusters.add_seeds(&seeds);
        let own = self.node.address();
        let others: BTreeSet<&NodeAddress> = seeds.iter().filter(|seed| *seed != own).collect();
        let others: Vec<NodeAddress> = others.into_iter().cloned().collect();
        let patience = self.settings.seed_node_timeout;
        self.life = Life::Joining(Box::new(JoinProcess {
            is_first: seeds.first() == Some(own),
            found: Seeds::new(now, &others),
            seeds,
            others,
            nacks: BTreeSet::new(),
            refusals: BTreeMap::new(),
            contacts: BTreeSet::new(),
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
        let (alone, heard) = (self.settings.self_join_alone, self.foreign_clusters.heard_of_cluster);
        let patience = self.settings.seed_node_timeout;
        let waits = self.awaits_app_version;
        let Life::Joining(join) = &mut self.life else { return };
        if join.give_up_at.is_some_and(|at| at <= now) {
            let error = JoinError::Unsuccessful(join.found.reports());
            return self.fail_join(error, ShutdownReason::JoinUnsuccessful, out);
        }
        if waits {
            return;
        }
        if join.may_form(now, heard, alone) {
            return self.form_cluster(now, out);
        }
        if join.restart_at.is_some_and(|at| at <= now) {
            join.restart_at = None;
            join.join_at = None;
            join.ask_at = now;
        }
        if join.restart_at.is_none() && join.ask_at <= now {
            join.ask_at = now + if join.is_first { FIRST_SEED_INTERVAL.min(patience) } else { patience };
            let others = join.others.clone();
            self.ask_seeds(others, out);
        }
        self.warn_of_waiting(now, out);
        let Life::Joining(join) = &mut self.life else { return };
        let mut lines = Vec::new();
        join.found.handle(now, SeedInput::Tick, &mut lines);
        out.extend(lines.into_iter().map(|line| Effect::Log(LogLevel::Warn, line)));
        if let Some((at, to)) = join.join_at.clone()
            && at <= now
        {
            join.join_at = None;
            self.send_join(&to, out);
        }
    }

    fn ask_seeds(&mut self, seeds: Vec<NodeAddress>, out: &mut Vec<Effect>) {
        let config = self.checked_config();
        for to in seeds {
            let message = Message::InitJoin { to: to.clone(), protocol: PROTOCOL, config: config.clone() };
            out.push(Effect::Send { to: to.into(), message });
        }
    }

    /// Warns that this first seed node waits for others, and for how many. Source: cluster M24.
    fn warn_of_waiting(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let heard = self.foreign_clusters.heard_of_cluster;
        let Life::Joining(join) = &mut self.life else { return };
        if !join.is_first || join.restart_at.is_some() || join.warn_at > now {
            return;
        }
        join.warn_at = now + self.settings.seed_node_timeout;
        let why = if heard {
            "this process once heard of a cluster, so it never forms one, whatever self_join_alone says; restart it if \
             that cluster is gone"
        } else {
            "with fewer than half of the list, itself counted, it forms no cluster (see self_join_alone)"
        };
        let text = format!(
            "{} of {} other seed nodes answered that they know of no cluster: {why}",
            join.nacks.len(),
            join.others.len()
        );
        out.push(Effect::Log(LogLevel::Warn, text));
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
            app_version: self.app_version.clone(),
            protocol: PROTOCOL,
            cluster_id,
            data_center: self.settings.data_center.as_str().into(),
            host_id: self.host_id.clone(),
        };
        out.push(Effect::Send { to: to.clone().into(), message });
    }

    /// Founds a cluster with this node as the first member, which is Up before any other.
    fn form_cluster(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let cluster_id = (u128::from(self.rng.next_u64()) << 64) | u128::from(self.rng.next_u64());
        let mut gossip = Gossip { cluster_id, ..Gossip::default() };
        let roles = self.settings.roles.iter().cloned().collect();
        let own = joining(self.node.clone(), roles, &self.settings.data_center, self.app_version.clone());
        gossip.members.insert(own.on_host(self.host_id.clone()));
        gossip.touch(&self.node, true);
        self.become_member(now, gossip, out);
        self.leader_actions(now, out);
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

    /// Notes the outcome of asking a seed node, for the log and the error of the join.
    fn note_seed(&mut self, now: Instant, seed: NodeAddress, answer: SeedAnswer) {
        if let Life::Joining(join) = &mut self.life {
            join.found.handle(now, SeedInput::Answered(seed, answer), &mut Vec::new());
        }
    }

    pub(super) fn on_unreached(&mut self, now: Instant, address: NodeAddress, failure: DialFailure) {
        self.note_seed(now, address, SeedAnswer::Unreached(failure));
    }

    // --- answers to the joiner ------------------------------------------------------------------

    pub(super) fn on_init_join_nack(&mut self, now: Instant, from: &UniqueAddress, out: &mut Vec<Effect>) {
        self.note_seed(now, from.address().clone(), SeedAnswer::NoMember);
        if let Life::Joining(join) = &mut self.life
            && join.others.contains(from.address())
        {
            join.nacks.insert(from.address().clone());
            let (heard, alone) = (self.foreign_clusters.heard_of_cluster, self.settings.self_join_alone);
            if !self.awaits_app_version && join.may_form(now, heard, alone) {
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
        if matches!(self.life, Life::Member) && cluster_id != self.gossip.cluster_id {
            return self.meet_foreign(now, cluster_id, None, out);
        }
        self.note_seed(now, from.address().clone(), SeedAnswer::Asked);
        let keys = self.differing_keys(config);
        let retry = self.settings.retry_unsuccessful_join_after;
        let Life::Joining(join) = &mut self.life else { return };
        // Ignore an Ack of a node that is no seed: only seed nodes were asked, and it must not keep this one from
        // forming a cluster.
        if !join.seeds.contains(from.address()) {
            return;
        }
        self.foreign_clusters.heard_of_cluster = true;
        // Take the first acceptable Ack; later ones are ignored until the search starts over.
        if join.restart_at.is_some() {
            return;
        }
        for key in &keys {
            out.push(Effect::Log(LogLevel::Warn, format!("a setting differs from that of {from}: {key}")));
        }
        if !keys.is_empty() && self.settings.enforce_config_on_join {
            let error = JoinError::IncompatibleConfig { by: from.address().clone(), keys };
            return self.fail_join(error, ShutdownReason::IncompatibleConfig, out);
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
            // Keep joining: the shutdown may be called off or end, and the search starts over by itself.
            Life::Joining(_) if reason == JoinRejection::PreparingForShutdown => {}
            // Seed nodes refuse an InitJoin with the same message as a Join.
            Life::Joining(join) if join.seeds.contains(from.address()) || join.contacts.contains(from.address()) => {
                match reason {
                    // Fail: nothing has changed here, and nothing will until another version of the program runs.
                    JoinRejection::IncompatibleProtocol { .. } => {
                        self.life = Life::Idle;
                        out.push(Effect::JoinFailed(JoinError::IncompatibleProtocol(reason.to_string())));
                    }
                    JoinRejection::Removed => {
                        self.fail_join(JoinError::Rejected { by: from, reason }, ShutdownReason::Removed, out);
                    }
                    _ => self.fail_join(JoinError::Rejected { by: from, reason }, ShutdownReason::JoinFailed, out),
                }
            }
            // End, but only by a member's rejection: this node is a member, too, and asked a member.
            Life::Member
                if self.rejoin_at.is_some()
                    && reason == JoinRejection::Removed
                    && self.gossip.members.contains_key(&from) =>
            {
                self.end(ShutdownReason::Removed, out);
            }
            _ => {}
        }
    }

    /// Notes that a member holds this node's address, or that a seed node refuses this node for good. Once all seed
    /// nodes have refused for good, the join has failed, and nothing has changed. Source: cluster M24, §7.
    pub(super) fn on_hello_refused(
        &mut self,
        now: Instant,
        address: &NodeAddress,
        code: RejectCode,
        holder: Option<UniqueAddress>,
        detail: &str,
        out: &mut Vec<Effect>,
    ) {
        self.note_seed(now, address.clone(), SeedAnswer::Refused(detail.to_owned()));
        if let Some(holder) = holder.filter(|_| code == RejectCode::NotReady) {
            return self.on_own_address_held(now, address, holder, detail, out);
        }
        let Life::Joining(join) = &mut self.life else { return };
        let for_good = matches!(code, RejectCode::WrongCluster | RejectCode::VersionUnsupported);
        if !for_good || !join.others.contains(address) {
            return;
        }
        join.refusals.insert(address.clone(), (code, detail.to_owned()));
        if join.refusals.len() < join.others.len() {
            return;
        }
        let error = match code {
            RejectCode::WrongCluster => {
                let (ours, theirs) = cluster_names(detail);
                JoinError::WrongCluster { ours, theirs }
            }
            _ => JoinError::IncompatibleProtocol(detail.to_owned()),
        };
        self.life = Life::Idle;
        out.push(Effect::JoinFailed(error));
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
            return self.stats.ignore(IgnoredGossip::UnaskedWelcome);
        }
        match &self.life {
            Life::Joining(_) if !self.counter_bounds(now).covers(&gossip) => {
                self.ignore(&from, IgnoredGossip::BeyondReach, out);
            }
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
            // Treat the answer to a repeated Join as gossip.
            Life::Member if self.rejoin_at.is_some() => {
                self.on_gossip(now, &from, to, gossip, false, received_at, out);
            }
            _ => self.stats.ignore(IgnoredGossip::UnaskedWelcome),
        }
    }

    /// Sends the Join again: this node was let in, but no member gossips with it. The member that let it in may have
    /// died before it told others.
    pub(super) fn join_again(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.rejoin_at = Some(now + self.settings.retry_unsuccessful_join_after);
        let gossip = self.gossip.clone();
        let settled = |peer: &&UniqueAddress| gossip.members.get(peer).is_some_and(|member| member.status.is_settled());
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

    fn accepts_joins(&self) -> bool {
        matches!(self.life, Life::Member) && !self.is_leaving_for_good()
    }

    pub(super) fn on_init_join(
        &mut self,
        from: &UniqueAddress,
        protocol: u32,
        config: &CheckedConfig,
        out: &mut Vec<Effect>,
    ) {
        match &self.life {
            // Do not answer: a node that waits for its version may yet form a cluster; the joiner asks again (cluster
            // M31).
            Life::Idle | Life::Joining(_) if self.awaits_app_version => {}
            Life::Idle | Life::Joining(_) => self.send(from.clone(), Message::InitJoinNack, out),
            Life::Member if self.accepts_joins() && protocol == PROTOCOL => {
                let keys = self.differing_keys(config);
                if !keys.is_empty() {
                    let text = format!("{from} wants to join, but its settings differ: {}", keys.join(", "));
                    out.push(Effect::Log(LogLevel::Warn, text));
                }
                let mut own = self.checked_config();
                own.retain(|key, _| config.contains_key(key) || is_required(key));
                let ack = Message::InitJoinAck { cluster_id: self.gossip.cluster_id, config: own };
                self.send(from.clone(), ack, out);
            }
            Life::Member if self.accepts_joins() => {
                let reason = JoinRejection::IncompatibleProtocol { ours: PROTOCOL, theirs: protocol };
                self.send(from.clone(), Message::JoinRejected { reason }, out);
            }
            // Do not answer, not even by a Nack: a node that leaves must not help to found another cluster.
            Life::Member | Life::Ended => {}
        }
    }

    pub(super) fn on_join(
        &mut self,
        now: Instant,
        joiner: Member,
        protocol: u32,
        cluster_id: u128,
        out: &mut Vec<Effect>,
    ) {
        let from = joiner.address.clone();
        if !self.accepts_joins() {
            return;
        }
        if let Some(reason) = self.reason_to_reject(&from, protocol, cluster_id) {
            if reason == JoinRejection::WrongCluster {
                self.meet_foreign(now, cluster_id, None, out);
            }
            return self.send(from, Message::JoinRejected { reason }, out);
        }
        if !self.gossip.members.contains_key(&from) {
            if self.gossip.members.keys().any(|member| member.address() == from.address()) {
                return self.on_join_at_held_address(now, &joiner, out);
            }
            let mut gossip = Gossip::clone(&self.gossip);
            gossip.members.insert(joiner);
            self.change(now, gossip, out);
        }
        let welcome = Message::Welcome { to: from.clone(), gossip: self.gossip.clone() };
        self.send(from, welcome, out);
    }

    pub(super) fn deferred_retry(&self) -> Duration {
        DEFERRED_RETRY.min(self.settings.gossip_interval)
    }

    fn reason_to_reject(&self, from: &UniqueAddress, protocol: u32, cluster_id: u128) -> Option<JoinRejection> {
        if protocol != PROTOCOL {
            Some(JoinRejection::IncompatibleProtocol { ours: PROTOCOL, theirs: protocol })
        } else if cluster_id != 0 && cluster_id != self.gossip.cluster_id {
            Some(JoinRejection::WrongCluster)
        } else if self.gossip.tombstones.contains_key(from) {
            Some(JoinRejection::Removed)
        } else if self.prepares_shutdown() && !self.gossip.members.contains_key(from) {
            Some(JoinRejection::PreparingForShutdown)
        } else {
            None
        }
    }

    // --- settings that must be equal --------------------------------------------------------------

    /// Source: cluster M25a.
    fn checked_config(&self) -> CheckedConfig {
        let downing = match &self.settings.downing {
            Downing::None => "none".to_owned(),
            Downing::SplitBrainResolver(sbr) => sbr.strategy.to_string(),
            Downing::Custom(custom) => format!("custom({})", custom.name()),
        };
        let mut config = self.join_keys.clone();
        config.insert(DOWNING_KEY.to_owned(), downing);
        config.insert(PROTOCOL_KEY.to_owned(), PROTOCOL.to_string());
        // Remove key material, which never goes on the wire, whichever layer registered it.
        let sensitive = &self.settings.sensitive_config_prefixes;
        config.retain(|key, _| !sensitive.iter().any(|prefix| key.starts_with(prefix)));
        config
    }

    /// Every key with differing values, with both values.
    fn differing_keys(&self, theirs: &CheckedConfig) -> Vec<String> {
        let ours = self.checked_config();
        let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        let differs = |key: &&String| match (ours.get(*key), theirs.get(*key)) {
            (Some(ours), Some(theirs)) => ours != theirs,
            // Compare keys of other layers only if both sides know them, to permit rolling updates.
            _ => is_required(key),
        };
        let shown = |value: Option<&String>| value.cloned().unwrap_or_else(|| "missing".to_owned());
        let named = |key: &String| format!("{key} (ours {}, theirs {})", shown(ours.get(key)), shown(theirs.get(key)));
        keys.into_iter().filter(differs).map(named).collect()
    }
}

/// Makes the member of a node that joins now.
pub(super) fn joining(
    address: UniqueAddress,
    roles: Vec<String>,
    data_center: &str,
    app_version: AppVersion,
) -> Member {
    // Derive the role of the data centre; ignore one that the joiner names.
    let mut roles: BTreeSet<String> = roles.into_iter().filter(|role| !role.starts_with("dc-")).collect();
    roles.insert(format!("dc-{data_center}"));
    Member::joining(address, Arc::new(roles), app_version)
}

/// Reads both cluster names from the text of a refusal: the caller's comes first, then the refuser's.
fn cluster_names(detail: &str) -> (String, String) {
    let mut quoted = detail.split('"').skip(1).step_by(2).map(str::to_owned);
    (quoted.next().unwrap_or_default(), quoted.next().unwrap_or_else(|| detail.to_owned()))
}

/// Keys that both sides must send.
fn is_required(key: &str) -> bool {
    key == DOWNING_KEY || key == PROTOCOL_KEY
}
