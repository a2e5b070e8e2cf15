//! The membership machine of one node.
//!
//! The machine joins, gossips, watches its peers, acts when it leads, leaves, and notices when it was declared dead.
//! What each of these needs to remember and decide is a machine of its own, nested here as a plain field. Every change
//! of the state goes through one function, which publishes the difference and informs the nested machines.
//!
//! **Deaths are spread at once.** A node that proves a death gossips it right away, a node that changes its state while
//! a proven death awaits removal gossips to the leader at once, and a leader that finds the state converged removes the
//! dead member without waiting for its next tick. This is safe because ticks only pace: a gossip's permitted changes
//! and a leader's permitted actions depend on the state alone (M14, M17, M20), never on time; a network that is fast by
//! chance shows the same runs.
//!
//! Source: cluster §2, §3, §4 (S20).

mod admission;
mod membership;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, UniqueAddress};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::exchange::Exchange;
use super::failure::deaths::Deaths;
use super::failure::detection::Detection;
use super::failure::downing::{self, DowningRule};
use super::failure::quarantines::Quarantines;
use super::failure::trust::SelfTrust;
use super::joining::address_claims::{self, AddressClaims};
use super::joining::foreign_clusters::ForeignClusters;
use super::joining::identity::{Identity, joining};
use super::leader::Leader;
use super::life::Life;
use super::state::{Change, State};
use super::wall_clock::WallClock;
use super::{Command, Effect, Input, LogLevel};
use crate::detector::proof::ProofInput;
use crate::gossip::state::Gossip;
use crate::gossip::stats::GossipStats;
use crate::membership::app_version::AppVersion;
use crate::membership::event::ClusterEvent;
use crate::membership::health::Health;
use crate::membership::member::MemberStatus;
use crate::membership::message::Message;
use crate::membership::shutdown::ShutdownReason;
use crate::membership::view::MembershipView;
use crate::settings::ClusterSettings;
use crate::testing::omissions::Clause;

/// The membership machine of one node. Becomes a member only when told to join.
#[derive(Debug)]
pub struct ClusterCore {
    settings: Arc<ClusterSettings>,
    rng: ChaCha8Rng,
    clock: WallClock,
    life: Life,
    identity: Identity,
    state: State,
    exchange: Exchange,
    detection: Detection,
    trust: SelfTrust,
    deaths: Deaths,
    downing: DowningRule,
    leader: Leader,
    quarantines: Quarantines,
    /// Members whose addresses other processes claim, and the member that holds this node's own address.
    address_claims: AddressClaims,
    foreign_clusters: ForeignClusters,
}

impl ClusterCore {
    /// A node that has not joined.
    pub fn new(node: UniqueAddress, settings: ClusterSettings, seed: u64, now: Instant) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            clock: WallClock::new(now),
            life: Life::new(),
            identity: Identity::new(&settings),
            exchange: Exchange::new(now),
            detection: Detection::new(node.clone(), &settings.failure_detector, now),
            trust: SelfTrust::new(now),
            deaths: Deaths::new(&settings),
            downing: DowningRule::new(&settings, &node, now),
            leader: Leader::new(now),
            quarantines: Quarantines::default(),
            address_claims: AddressClaims::default(),
            foreign_clusters: ForeignClusters::new(&settings.seed_nodes),
            state: State::new(node),
            settings: Arc::new(settings),
        }
    }

    /// Sets the host of this process: kernel boot id and network namespace (cluster T12).
    #[must_use]
    pub fn on_host(mut self, host_id: Option<&str>) -> Self {
        self.identity.set_host(host_id);
        self
    }

    /// The address of this process.
    pub fn node(&self) -> &UniqueAddress {
        self.state.node()
    }

    /// The view that this node publishes.
    pub fn view(&self) -> &Arc<MembershipView> {
        self.state.view()
    }

    /// The state that this node gossips.
    pub fn gossip(&self) -> &Arc<Gossip> {
        self.state.gossip()
    }

    /// This node's health. The driver adds the transport's part (dead letters, certificates). Source: cluster M36.
    pub fn health(&self, now: Instant) -> Health {
        let mut unreachable: BTreeMap<UniqueAddress, BTreeSet<UniqueAddress>> = BTreeMap::new();
        for (observer, subject, _) in self.state.gossip().reachability.accusations() {
            unreachable.entry(subject.clone()).or_default().insert(observer.clone());
        }
        let initialized = self.life.is_member();
        let blockers = self.state.blockers().filter(|_| initialized);
        let view = self.state.view();
        Health {
            initialized,
            status: view.self_status(),
            leader: view.leader.clone(),
            converged: view.converged,
            blockers: blockers.unwrap_or_default(),
            blocked_ticks: self.leader.blocked_ticks(),
            unreachable,
            suspect: self.trust.is_suspect(),
            foreign_cluster: self.foreign_clusters.met(now),
            held_addresses: self.address_claims.shown(now, self.state.node()),
            certificate_days_left: None,
            dead_letters: BTreeMap::new(),
        }
    }

    /// Counts of the gossip that reached this node, by outcome.
    pub fn gossip_stats(&self) -> &GossipStats {
        self.exchange.stats()
    }

    /// Handles one input. An input that makes no sense in the present state is ignored.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        if let Input::WallClock(ms) = input {
            self.clock.on_told(now, ms);
        }
        if self.life.has_ended() {
            return;
        }
        let begin = out.len();
        let ticked = matches!(input, Input::Tick);
        self.notice_pause(now, out);
        match input {
            Input::WallClock(_) => {}
            Input::Tick => self.on_tick(now, out),
            Input::Message { from, message, received_at } => self.on_message(now, from, message, received_at, out),
            Input::PeerHandshake { peer, cluster_id } => self.on_peer_handshake(now, &peer, cluster_id, out),
            Input::Unreached { address, failure } => self.on_unreached(now, address, failure),
            Input::HelloRefused { address, code, holder, detail } => {
                self.on_hello_refused(now, &address, code, holder, &detail, out);
            }
            Input::DialOther { peer, host_id } => self.on_dial_other(now, &peer, host_id.as_deref(), out),
            Input::AddressHeld { holder, claimant } => {
                self.address_claims.on_held(now, holder, claimant, &self.state, out);
            }
            Input::PeerQuarantined { peer, harmless, .. } => self.on_peer_quarantined(now, &peer, harmless, out),
            Input::LinkLost(peer) => self.on_link_lost(now, peer, out),
            Input::DialRefused(peer) => self.on_proof(now, ProofInput::Refused(peer), out),
            Input::DialAnswered(peer) => self.on_proof(now, ProofInput::Answered(peer), out),
            Input::DialFailed(peer) if self.omits(Clause::TimeoutIsRefusal) => {
                self.on_proof(now, ProofInput::Refused(peer), out);
            }
            Input::DialFailed(peer) => self.on_proof(now, ProofInput::Failed(peer), out),
            Input::LeaseResult(outcome) => self.on_lease(now, Some(outcome), out),
            Input::LeaseLost => self.on_lease(now, None, out),
            Input::DeathWitnessed(peer) => self.deaths.on_witnessed(peer, &self.state),
            Input::ThisNodeQuarantined { by, reason } => self.on_this_node_quarantined(now, by, reason, out),
            Input::Command(command) => self.on_command(now, command, out),
        }
        self.prove_witnessed(now, out);
        self.tell_provider(now, begin, out);
        self.publish_standing(now, ticked, begin, out);
        self.check_invariants();
    }

    /// Checks what holds between two inputs. Source: cluster M4, M33.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.life.check_invariants();
        self.exchange.check_invariants();
        self.trust.check_invariants();
        let members = &self.state.view().members;
        if self.life.has_ended() {
            return assert!(members.is_empty(), "a node that has ended shows no member");
        }
        let is_shown = self.state.is_member(self.state.node());
        assert_eq!(self.life.is_member(), is_shown, "a member is in the state that it gossips");
        assert!(is_shown || members.is_empty(), "a node that has not joined knows no member");
        self.state.check_invariants(self.trust.is_suspect());
        self.detection.check_invariants(&self.state);
        self.deaths.check_invariants(&self.state);
        self.downing.check_invariants();
        self.quarantines.check_invariants(self.state.view());
        self.address_claims.check_invariants(members);
        self.foreign_clusters.check_invariants(self.state.leads());
    }

    fn omits(&self, clause: Clause) -> bool {
        self.settings.omissions.has(clause)
    }

    fn on_command(&mut self, now: Instant, command: Command, out: &mut Vec<Effect>) {
        match command {
            Command::JoinSeeds(seeds) => self.on_join_seeds(now, seeds, out),
            Command::Leave(target) => self.on_leave(now, &target, out),
            Command::Down(target) => self.down(now, &[target], out),
            Command::PrepareForFullShutdown => self.prepare_for_full_shutdown(now, out),
            Command::AwaitAppVersion => self.identity.await_app_version(),
            Command::SetAppVersion(version) => self.on_app_version(now, version, out),
            Command::RegisterJoinKey { key, value } => self.identity.register_join_key(key, value),
            Command::AbandonJoin => self.life.give_up_join(),
            Command::LeavePhasePassed => self.life.on_leave_phase_passed(),
            Command::ExitingTasksDone { clean } => self.on_exiting_tasks_done(now, clean, out),
            Command::Stop(reason) => self.end(reason, out),
        }
    }

    fn on_message(
        &mut self,
        now: Instant,
        from: UniqueAddress,
        message: Message,
        received_at: Instant,
        out: &mut Vec<Effect>,
    ) {
        if self.refuses(now, &from, &message, out)
            || address_claims::is_claim_of_more_than_a_join(&self.state, &from, &message)
        {
            return;
        }
        let is_gossip = matches!(message, Message::GossipEnvelope { .. } | Message::GossipStatus { .. });
        let is_member = self.state.is_member(&from);
        // Gossip of strangers passes here: the code that reads it reports gossip of another cluster.
        if !message.is_for_strangers() && !is_gossip && !is_member && self.life.is_member() {
            out.push(Effect::Dropped { from, reason: DeadLetterReason::NotAMember });
            return;
        }
        match message {
            Message::InitJoin { protocol, config, .. } => self.on_init_join(&from, protocol, &config, out),
            Message::InitJoinAck { cluster_id, config } => self.on_init_join_ack(now, &from, cluster_id, &config, out),
            Message::InitJoinNack => self.on_init_join_nack(now, &from, out),
            Message::Join { roles, app_version, protocol, cluster_id, data_center, host_id } => {
                let joiner = joining(from, roles, &data_center, app_version).on_host(host_id);
                self.on_join(now, joiner, protocol, cluster_id, out);
            }
            Message::JoinDeferred { retry_after } => self.on_join_deferred(now, &from, retry_after),
            Message::JoinRejected { reason } => self.on_join_rejected(from, reason, out),
            Message::Welcome { to, gossip } => self.on_welcome(now, from, &to, gossip, received_at, out),
            Message::GossipEnvelope { to, gossip, suspect } => {
                self.on_gossip(now, &from, &to, gossip, suspect, received_at, out);
            }
            Message::GossipStatus { to, version, seen_digest, suspect } => {
                self.on_gossip_status(now, &from, &to, &version, seen_digest, suspect, out);
            }
            Message::ExitingConfirmed { clean } => self.on_exiting_confirmed(now, from, clean, out),
            Message::IslandProbe { asked, nonce } => self.on_island_probe(now, &from, asked, nonce, out),
            Message::IslandProbeAnswer { asked, own, nonce } => {
                self.on_island_probe_answer(now, &from, asked, own, nonce, out);
            }
            Message::Heartbeat { to, seq } => {
                if to == *self.state.node() && self.life.is_member() {
                    out.push(Effect::send(from.clone(), Message::HeartbeatRsp { to: from, seq }));
                }
            }
            Message::HeartbeatRsp { to, .. } => {
                if to == *self.state.node() {
                    self.detection.on_response(now, from, out);
                }
            }
        }
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        if let Some(join) = self.life.join() {
            return if self.identity.awaits_app_version() { join.gives_up_at() } else { Some(join.next_deadline()) };
        }
        if !self.life.is_member() {
            return None;
        }
        let nested = [
            Some(self.leader.next_deadline()),
            self.exchange.next_deadline(),
            self.detection.next_deadline(),
            self.deaths.next_deadline(),
            self.downing.next_deadline(),
            self.quarantines.next_deadline(),
            self.life.rejoin_at(),
            self.foreign_clusters.next_deadline(),
        ];
        nested.into_iter().flatten().min()
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.on_join_tick(now, out);
        // Run the member's tick now: the process may just have become a member by forming a cluster.
        if self.life.is_member() {
            self.on_member_tick(now, out);
        }
    }

    fn on_member_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.detection.on_tick(now, out);
        self.on_proof(now, ProofInput::Tick, out);
        if self.detection.reaps(now, self.settings.unreachable_nodes_reaper_interval) {
            self.reap(now, out);
        }
        self.check_trust(now, out);
        self.tick_sbr(now, out);
        self.tick_provider(now, out);
        if self.leader.is_due(now, self.settings.leader_actions_interval) {
            self.on_leader_tick(now, out);
        }
        for _ in 0..self.exchange.on_tick(now, self.settings.gossip_interval, &self.state) {
            self.gossip_to_one(out);
        }
        self.quarantines.on_tick(now, out);
        if self.life.rejoins(now, self.settings.retry_unsuccessful_join_after) {
            self.join_again(out);
        }
        self.tick_foreign_clusters(now, out);
        self.exchange.tick_stats(now, self.settings.publish_stats_interval, out);
        if self.life.is_member() {
            // Tick again: the first heartbeat to a peer that this tick put on the ring is due at once.
            self.detection.on_tick(now, out);
        }
    }

    // --- every change ---------------------------------------------------------------------------

    /// Applies a change that this node makes.
    pub(in crate::core) fn change(&mut self, now: Instant, mut gossip: Gossip, out: &mut Vec<Effect>) {
        self.state.undo_illegal_steps(&mut gossip, out);
        let mark_seen = self.marks_seen(&gossip);
        gossip.touch(self.state.node(), mark_seen);
        self.become_state(now, gossip, out);
    }

    /// Whether this node marks a state as seen. Source: cluster M26.
    fn marks_seen(&self, gossip: &Gossip) -> bool {
        let own = gossip.members.get(self.state.node());
        self.life.marks_seen(own.is_some_and(|member| member.status == MemberStatus::Exiting))
    }

    /// Replaces the state; every change goes through here.
    fn become_state(&mut self, now: Instant, gossip: Gossip, out: &mut Vec<Effect>) {
        self.state.replace(gossip);
        self.refresh(now, out);
    }

    /// Publishes the consequences of a new state, and informs the nested machines.
    fn refresh(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let Some(change) = self.state.refresh(self.trust.is_suspect()) else { return };
        let Change { old, events, only_seen, reachability_changed } = change;
        if !only_seen {
            // Inform the transport before publishing the view: no effect may come between a view and its events.
            self.tell_holders(&old, out);
        }
        let view = self.state.view();
        out.push(Effect::View(view.clone()));
        downing::warn_of_size(&self.settings, view, &events, out);
        out.extend(events.into_iter().map(Effect::Publish));
        if reachability_changed {
            out.push(Effect::Publish(ClusterEvent::ReachabilityChanged));
        }
        if !only_seen {
            self.quarantines.on_view(now, &old, view, self.settings.quarantine_removed_node_after, out);
            self.foreign_clusters.note_leader(now, self.state.leads());
            self.detection.on_state(now, &self.state, out);
        }
        self.downing.on_state(now, &self.state);
        if !only_seen {
            self.deaths.on_state(now, &self.state, out);
            self.notice_own_status(now, out);
        }
    }

    /// Tells the transport which members hold which addresses, and forgets claims that no longer matter.
    fn tell_holders(&mut self, old: &MembershipView, out: &mut Vec<Effect>) {
        let members = &self.state.view().members;
        if old.members == *members {
            return;
        }
        self.address_claims.on_members(members);
        if !self.omits(Clause::MovedName) {
            out.push(Effect::Holders(members.clone()));
        }
    }

    fn notice_own_status(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let status = self.state.view().self_status();
        match status {
            Some(MemberStatus::Down) => self.become_downed(ShutdownReason::Downed, out),
            Some(MemberStatus::Exiting) if self.life.begin_exit() => out.push(Effect::StartExitingTasks),
            _ => {}
        }
        let is_let_in = matches!(status, Some(MemberStatus::Joining | MemberStatus::WeaklyUp));
        let waits = is_let_in && self.state.view().members.len() > 1;
        self.life.on_waits(now, waits, self.settings.retry_unsuccessful_join_after);
    }

    /// Ends this node: the layers above see all members go. Source: cluster M33.
    fn end(&mut self, reason: ShutdownReason, out: &mut Vec<Effect>) {
        self.life.end();
        out.push(Effect::Publish(ClusterEvent::ClusterShuttingDown));
        let Change { old, events, .. } = self.state.show_empty();
        self.tell_holders(&old, out);
        out.push(Effect::View(self.state.view().clone()));
        out.extend(events.into_iter().map(Effect::Publish));
        out.push(Effect::Shutdown(reason));
    }

    /// Sets the application's version, and continues joins that waited for it. Source: cluster M31.
    fn on_app_version(&mut self, now: Instant, version: AppVersion, out: &mut Vec<Effect>) {
        if self.life.is_member() {
            let text = "the application's version cannot change once this node has joined".to_owned();
            return out.push(Effect::Log(LogLevel::Warn, text));
        }
        self.identity.set_app_version(version);
        self.on_tick(now, out);
    }

    /// A random part of an interval, which desynchronizes nodes that started together (cluster C4).
    fn phase_offset(&mut self, interval: Duration) -> Duration {
        interval.mul_f64(self.rng.random_range(0.0..0.25))
    }

    // --- trust in this node -----------------------------------------------------------------------

    /// Detects that this process stood still, by a heartbeat round that is far too late.
    fn notice_pause(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !self.life.is_member() {
            return;
        }
        let lag = self.detection.lag(now);
        if !self.trust.on_lag(now, lag, &self.settings.failure_detector) {
            return;
        }
        self.detection.on_paused(now, self.settings.unreachable_nodes_reaper_interval, out);
        out.push(Effect::Log(LogLevel::Warn, format!("process paused for {lag:?}")));
        out.push(Effect::Publish(ClusterEvent::LocalPause(lag)));
        if self.state.is_alone() {
            return;
        }
        if self.trust.on_pause(now, lag, self.settings.stable_after()) {
            out.push(Effect::Publish(ClusterEvent::SelfSuspect));
        }
        // Change the version without a change of content: gossip that shows it proves that its sender has heard this
        // process since it woke.
        self.change(now, Gossip::clone(self.state.gossip()), out);
        self.trust.on_spoken(self.state.gossip().version.count(self.state.node()));
    }

    /// Publishes the node's standing before the step's other effects: at each tick, whenever it changes, and when the
    /// node becomes a member, since singletons and shards may start in that same step.
    fn publish_standing(&mut self, now: Instant, ticked: bool, begin: usize, out: &mut Vec<Effect>) {
        let Some(standing) = self.life.standing(self.trust.is_suspect()) else { return };
        if self.trust.publishes(standing, ticked) {
            out.insert(begin, Effect::Ticked { at: now, standing });
        }
    }

    fn become_trusted(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.trust.on_confirmed();
        self.refresh(now, out);
        if !self.life.is_downed() {
            out.push(Effect::Publish(ClusterEvent::SelfTrusted));
        }
    }

    fn check_trust(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let Some(suspect_for) = self.trust.suspect_for(now) else { return };
        if self.state.is_alone() {
            self.become_trusted(now, out);
        } else if suspect_for >= self.settings.stable_after() && !self.life.is_downed() {
            let text = "no other member confirms this node after its pause; it ends".to_owned();
            out.push(Effect::Log(LogLevel::Warn, text));
            let node = self.state.node().clone();
            self.down(now, &[node], out);
        }
    }
}
