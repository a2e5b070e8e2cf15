//! Joins: this node's own, and those that it answers as a member; and what it does about other clusters.
//!
//! Source: cluster M23 to M25b.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};
use greylag_transport::{DialFailure, RejectCode};
use rand::Rng;

use super::ClusterCore;
use crate::core::joining::address_claims;
use crate::core::joining::foreign_clusters::Question;
use crate::core::joining::join::{JoinProcess, Next};
use crate::core::{Effect, LogLevel};
use crate::error::seed_report::SeedAnswer;
use crate::error::{JoinError, JoinRejection};
use crate::gossip::state::Gossip;
use crate::gossip::stats::IgnoredGossip;
use crate::membership::member::Member;
use crate::membership::message::{CheckedConfig, Island, Message, PROTOCOL};
use crate::membership::shutdown::ShutdownReason;
use crate::settings::OnForeignCluster;
use crate::testing::omissions::Clause;

/// How long a joiner waits while its older incarnation is taken out (cluster M25).
const DEFERRED_RETRY: Duration = Duration::from_secs(1);

impl ClusterCore {
    pub(super) fn on_join_seeds(&mut self, now: Instant, mut seeds: Vec<NodeAddress>, out: &mut Vec<Effect>) {
        if self.life.is_member() {
            return out.push(Effect::JoinFailed(JoinError::AlreadyMember));
        }
        if seeds.is_empty() {
            return out.push(Effect::JoinFailed(JoinError::NoSeeds));
        }
        // Count a seed node that is named twice once: the majority is one of seed nodes.
        let mut named = BTreeSet::new();
        seeds.retain(|seed| named.insert(seed.clone()));
        self.foreign_clusters.add_seeds(&seeds);
        self.life.begin_join(JoinProcess::new(now, self.state.node().address(), seeds, &self.settings));
        self.on_join_tick(now, out);
    }

    pub(super) fn on_join_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let heard = self.foreign_clusters.heard_of_cluster();
        let Some(join) = self.life.join_mut() else { return };
        match join.on_tick(now, heard, &self.identity, &self.settings, out) {
            Next::Search => {}
            Next::Form => self.form_cluster(now, out),
            Next::GiveUp(error) => self.fail_join(error, ShutdownReason::JoinUnsuccessful, out),
        }
    }

    /// Founds a cluster with this node as the first member, which is Up before any other.
    fn form_cluster(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let cluster_id = (u128::from(self.rng.next_u64()) << 64) | u128::from(self.rng.next_u64());
        let mut gossip = Gossip { cluster_id, ..Gossip::default() };
        gossip.members.insert(self.identity.founder(self.state.node().clone(), &self.settings));
        gossip.touch(self.state.node(), true);
        self.become_member(now, gossip, out);
        self.leader_actions(now, out);
    }

    fn become_member(&mut self, now: Instant, gossip: Gossip, out: &mut Vec<Effect>) {
        self.life.become_member();
        let first_at =
            now + self.settings.periodic_tasks_initial_delay + self.phase_offset(self.settings.gossip_interval);
        self.exchange.start(first_at);
        self.leader.start(first_at);
        self.detection.start(self.state.node().clone(), &self.settings.failure_detector, now, first_at);
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
        if let Some(join) = self.life.join_mut() {
            join.on_answer(now, seed, answer);
        }
    }

    pub(super) fn on_unreached(&mut self, now: Instant, address: NodeAddress, failure: DialFailure) {
        self.note_seed(now, address, SeedAnswer::Unreached(failure));
    }

    // --- answers to the joiner ------------------------------------------------------------------

    pub(super) fn on_init_join_nack(&mut self, now: Instant, from: &UniqueAddress, out: &mut Vec<Effect>) {
        let (heard, alone) = (self.foreign_clusters.heard_of_cluster(), self.settings.self_join_alone);
        let Some(join) = self.life.join_mut() else { return };
        if join.on_nack(now, from.address(), heard, alone) && !self.identity.awaits_app_version() {
            self.form_cluster(now, out);
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
        if self.life.is_member() && cluster_id != self.state.gossip().cluster_id {
            return self.meet_foreign(now, cluster_id, None, out);
        }
        self.note_seed(now, from.address().clone(), SeedAnswer::Asked);
        let Some(join) = self.life.join_mut() else { return };
        // Ignore an Ack of a node that is no seed: only seed nodes were asked, and it must not keep this one from
        // forming a cluster.
        if !join.is_seed(from.address()) {
            return;
        }
        self.foreign_clusters.on_heard_of_cluster();
        if !join.takes_acks() {
            return;
        }
        let keys = self.identity.differing_keys(&self.settings, config);
        for key in &keys {
            out.push(Effect::Log(LogLevel::Warn, format!("a setting differs from that of {from}: {key}")));
        }
        if !keys.is_empty() && self.settings.enforce_config_on_join {
            let error = JoinError::IncompatibleConfig { by: from.address().clone(), keys };
            return self.fail_join(error, ShutdownReason::IncompatibleConfig, out);
        }
        join.on_ack(now, from.address(), cluster_id, &self.identity, &self.settings, out);
    }

    pub(super) fn on_join_deferred(&mut self, now: Instant, from: &UniqueAddress, retry_after: Duration) {
        if let Some(join) = self.life.join_mut() {
            join.on_deferred(now, from.address(), retry_after, self.settings.retry_unsuccessful_join_after);
        }
    }

    pub(super) fn on_join_rejected(&mut self, from: UniqueAddress, reason: JoinRejection, out: &mut Vec<Effect>) {
        if let Some(join) = self.life.join() {
            // Keep joining while a cluster prepares its shutdown: that may be called off or end, and the search starts
            // over by itself.
            if reason == JoinRejection::PreparingForShutdown || !join.has_asked(&from) {
                return;
            }
            match reason {
                // Fail: nothing has changed here, and nothing will until another version of the program runs.
                JoinRejection::IncompatibleProtocol { .. } => {
                    self.life.give_up_join();
                    out.push(Effect::JoinFailed(JoinError::IncompatibleProtocol(reason.to_string())));
                }
                JoinRejection::Removed => {
                    self.fail_join(JoinError::Rejected { by: from, reason }, ShutdownReason::Removed, out);
                }
                _ => self.fail_join(JoinError::Rejected { by: from, reason }, ShutdownReason::JoinFailed, out),
            }
        } else if self.life.is_member()
            && self.life.may_rejoin()
            && reason == JoinRejection::Removed
            && self.state.is_member(&from)
        {
            // End, but only by a member's rejection: this node is a member, too, and asked a member.
            self.end(ShutdownReason::Removed, out);
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
        let Some(join) = self.life.join_mut() else { return };
        if let Some(error) = join.on_refused(address, code, detail) {
            self.life.give_up_join();
            out.push(Effect::JoinFailed(error));
        }
    }

    /// Notes that a member holds the address of this process: a cluster exists, and this process waits for the removal
    /// of that member. Source: cluster M24.
    fn on_own_address_held(
        &mut self,
        now: Instant,
        by: &NodeAddress,
        holder: UniqueAddress,
        detail: &str,
        out: &mut Vec<Effect>,
    ) {
        if holder.address() == self.state.node().address() && self.life.is_before_membership() {
            self.foreign_clusters.on_heard_of_cluster();
            self.address_claims.on_own_held(now, by, holder, self.state.node(), detail, out);
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
        if to != self.state.node() || !gossip.members.contains_key(to) {
            return self.exchange.on_ignored(IgnoredGossip::UnaskedWelcome);
        }
        if let Some(join) = self.life.join() {
            if !self.clock.counter_bounds(now).covers(&gossip) {
                return self.ignore(&from, IgnoredGossip::BeyondReach, out);
            }
            if !join.has_contacted(from.address()) {
                return self.exchange.on_ignored(IgnoredGossip::UnaskedWelcome);
            }
            let mut gossip = Arc::unwrap_or_clone(gossip);
            if gossip.repair() == Some(true) {
                gossip.touch(self.state.node(), false);
            }
            if !gossip.members.contains_key(to) {
                return;
            }
            gossip.seen.insert(self.state.node().clone());
            self.become_member(now, gossip, out);
            self.send_gossip(&from, out);
        } else if self.life.is_member() && self.life.may_rejoin() {
            // Treat the answer to a repeated Join as gossip.
            self.on_gossip(now, &from, to, gossip, false, received_at, out);
        } else {
            self.exchange.on_ignored(IgnoredGossip::UnaskedWelcome);
        }
    }

    /// Sends the Join again: this node was let in, but no member gossips with it. The member that let it in may have
    /// died before it told others.
    pub(super) fn join_again(&mut self, out: &mut Vec<Effect>) {
        let (gossip, node) = (self.state.gossip(), self.state.node());
        let settled = |peer: &&UniqueAddress| gossip.members.get(peer).is_some_and(|member| member.status.is_settled());
        let target = gossip.valid_targets(node).find(settled).or_else(|| gossip.valid_targets(node).next());
        if let Some(target) = target {
            let message = self.identity.join_message(&self.settings, gossip.cluster_id);
            out.push(Effect::Send { to: target.address().clone().into(), message });
        }
    }

    // --- the member's side ----------------------------------------------------------------------

    fn accepts_joins(&self) -> bool {
        self.life.is_member() && !self.state.is_leaving_for_good()
    }

    pub(super) fn on_init_join(
        &mut self,
        from: &UniqueAddress,
        protocol: u32,
        config: &CheckedConfig,
        out: &mut Vec<Effect>,
    ) {
        if self.life.is_before_membership() {
            // Do not answer: a node that waits for its version may yet form a cluster; the joiner asks again (cluster
            // M31).
            if !self.identity.awaits_app_version() {
                out.push(Effect::send(from.clone(), Message::InitJoinNack));
            }
            return;
        }
        // Do not answer, not even by a Nack: a node that leaves must not help to found another cluster.
        if !self.accepts_joins() {
            return;
        }
        if protocol != PROTOCOL {
            let reason = JoinRejection::IncompatibleProtocol { ours: PROTOCOL, theirs: protocol };
            return out.push(Effect::send(from.clone(), Message::JoinRejected { reason }));
        }
        let keys = self.identity.differing_keys(&self.settings, config);
        if !keys.is_empty() {
            let text = format!("{from} wants to join, but its settings differ: {}", keys.join(", "));
            out.push(Effect::Log(LogLevel::Warn, text));
        }
        let own = self.identity.config_for(&self.settings, config);
        let ack = Message::InitJoinAck { cluster_id: self.state.gossip().cluster_id, config: own };
        out.push(Effect::send(from.clone(), ack));
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
            return out.push(Effect::send(from, Message::JoinRejected { reason }));
        }
        if !self.state.is_member(&from) {
            if self.state.members_at(from.address()).next().is_some() {
                return self.on_join_at_held_address(now, &joiner, out);
            }
            let mut gossip = Gossip::clone(self.state.gossip());
            gossip.members.insert(joiner);
            self.change(now, gossip, out);
        }
        let welcome = Message::Welcome { to: from.clone(), gossip: self.state.gossip().clone() };
        out.push(Effect::send(from, welcome));
    }

    fn reason_to_reject(&self, from: &UniqueAddress, protocol: u32, cluster_id: u128) -> Option<JoinRejection> {
        if protocol != PROTOCOL {
            Some(JoinRejection::IncompatibleProtocol { ours: PROTOCOL, theirs: protocol })
        } else if cluster_id != 0 && cluster_id != self.state.gossip().cluster_id {
            Some(JoinRejection::WrongCluster)
        } else if self.state.gossip().tombstones.contains_key(from) {
            Some(JoinRejection::Removed)
        } else if self.state.prepares_shutdown() && !self.state.is_member(from) {
            Some(JoinRejection::PreparingForShutdown)
        } else {
            None
        }
    }

    /// Handles a Join from the address of a member, which changes nothing. If the joiner can have replaced the member,
    /// this node dials the address to learn which process runs there; if not, it does not dial. Source: cluster M25.
    fn on_join_at_held_address(&mut self, now: Instant, joiner: &Member, out: &mut Vec<Effect>) {
        let from = &joiner.address;
        let retry_after = DEFERRED_RETRY.min(self.settings.gossip_interval);
        let deferred = Effect::send(from.clone(), Message::JoinDeferred { retry_after });
        match self.state.holder_against(from, joiner.host_id.as_deref(), self.settings.proof_of_death) {
            None => {
                out.push(Effect::AskWho(from.address().clone()));
                out.push(deferred);
            }
            Some(_) if self.omits(Clause::MovedName) => {
                if let Some(gossip) = address_claims::downed_for(&self.state, from) {
                    self.change(now, gossip, out);
                    self.gossip_to_many(out);
                }
                out.push(deferred);
            }
            Some(holder) => self.address_claims.on_held(now, holder, from.clone(), &self.state, out),
        }
    }

    // --- other clusters ---------------------------------------------------------------------------

    pub(super) fn on_peer_handshake(
        &mut self,
        now: Instant,
        peer: &UniqueAddress,
        cluster_id: Option<u128>,
        out: &mut Vec<Effect>,
    ) {
        self.foreign_clusters.on_hello(peer, cluster_id, !self.life.is_before_membership());
        if let Some(theirs) = self.foreign_cluster_of(peer) {
            self.meet_foreign(now, theirs, None, out);
        }
    }

    /// The other cluster that this process belongs to, if this node is a member of one.
    fn foreign_cluster_of(&self, peer: &UniqueAddress) -> Option<u128> {
        let theirs = self.foreign_clusters.other_cluster_of(peer, self.state.gossip().cluster_id);
        theirs.filter(|_| self.life.is_member())
    }

    /// Whether to refuse this message because its sender belongs to another cluster. Messages that two clusters must
    /// exchange pass.
    pub(super) fn refuses(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        message: &Message,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(theirs) = self.foreign_cluster_of(from) else { return false };
        let size = match message {
            Message::IslandProbe { .. } | Message::IslandProbeAnswer { .. } => return false,
            Message::GossipEnvelope { gossip, .. } => u32::try_from(gossip.members.len()).ok(),
            _ => None,
        };
        self.meet_foreign(now, theirs, size, out);
        true
    }

    pub(super) fn meet_foreign(&mut self, now: Instant, theirs: u128, size: Option<u32>, out: &mut Vec<Effect>) {
        self.foreign_clusters.on_met(now, theirs, size, self.state.gossip(), out);
    }

    pub(super) fn tick_foreign_clusters(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let young_for = self.settings.island_probe_duration;
        for seed in self.foreign_clusters.on_tick(now, young_for, self.state.node().address()) {
            self.probe_island(now, seed, None, out);
        }
    }

    fn probe_island(
        &mut self,
        now: Instant,
        to: NodeAddress,
        verifies: Option<(Island, Island)>,
        out: &mut Vec<Effect>,
    ) {
        let question = Question { own: self.state.island(), nonce: self.rng.next_u64(), verifies };
        self.foreign_clusters.ask(now, to, question, out);
    }

    /// Answers the question of another cluster, and asks the same in turn.
    pub(super) fn on_island_probe(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        asked: Island,
        nonce: u64,
        out: &mut Vec<Effect>,
    ) {
        if !self.life.is_member() || self.state.is_leaving_for_good() {
            return;
        }
        let own = self.state.island();
        out.push(Effect::send(from.clone(), Message::IslandProbeAnswer { asked, own, nonce }));
        if self.foreign_clusters.asks_in_turn(now, from, own, asked) {
            self.probe_island(now, from.address().clone(), Some((own, asked)), out);
        }
    }

    pub(super) fn on_island_probe_answer(
        &mut self,
        now: Instant,
        from: &UniqueAddress,
        asked: Island,
        own: Island,
        nonce: u64,
        out: &mut Vec<Effect>,
    ) {
        if !self.life.is_member() {
            return;
        }
        let ours = self.state.gossip().cluster_id;
        if let Some((ours, theirs)) = self.foreign_clusters.on_answer(from, ours, asked, own, nonce) {
            self.decide_by_size(now, ours, theirs, out);
        }
    }

    /// Decides by the numbers of one exchange alone, since the other side decides by the same numbers.
    fn decide_by_size(&mut self, now: Instant, ours: Island, theirs: Island, out: &mut Vec<Effect>) {
        self.meet_foreign(now, theirs.cluster_id, Some(theirs.size), out);
        let ends = self.settings.on_foreign_cluster == OnForeignCluster::LeaveIfSmaller
            && ours.yields_to(theirs)
            && !self.life.is_downed()
            && !self.trust.holds(now);
        if ends {
            out.push(Effect::Log(
                LogLevel::Error,
                "this cluster is smaller than the foreign one; all its members are downed".to_owned(),
            ));
            self.become_downed(ShutdownReason::SmallerCluster, out);
            // Down self last: this node tells the others before it ends.
            let mut all: Vec<UniqueAddress> = self.state.gossip().members.keys().cloned().collect();
            all.sort_by_key(|member| member == self.state.node());
            self.down(now, &all, out);
        }
    }
}
