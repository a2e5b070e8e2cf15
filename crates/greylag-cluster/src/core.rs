//! The membership machine of one node.
//!
//! The machine joins, gossips, watches its peers, acts when it leads, leaves, and notices when it was declared dead.
//! Heartbeats, proofs of death and the resolver are machines of their own, nested here as plain fields. Every change
//! goes through one function, which publishes the difference and informs the nested machines.
//!
//! **Deaths are spread at once.** A node that proves a death gossips it right away, a node that changes its state while
//! a proven death awaits removal gossips to the leader at once, and a leader that finds the state converged removes the
//! dead member without waiting for its next tick. This is safe because ticks only pace: a gossip's permitted changes
//! and a leader's permitted actions depend on the state alone (M14, M17, M20), never on time; a network that is fast by
//! chance shows the same runs.
//!
//! Source: cluster §2, §3, §4 (S20).

mod address_claims;
mod deaths;
mod downing;
mod exchange;
mod foreign_clusters;
mod health;
mod input;
mod join;
mod leader;
mod leaving;
mod seeds;
mod trust;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, UniqueAddress};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::app_version::AppVersion;
use crate::event::{ClusterEvent, diff};
use crate::gossip::{ConfirmedExits, Gossip};
use crate::heartbeat::{HeartbeatCore, HeartbeatEffect, HeartbeatInput};
use crate::member::{Member, MemberStatus};
use crate::message::Message;
use crate::proof::{ProofInput, Proofs};
use crate::reachability::{Reachability, Status};
use crate::sabotage::Sabotage;
use crate::sbr::{LeaseRequest, Sbr};
use crate::settings::{ClusterSettings, Downing};
use crate::shared::Shared;
use crate::shutdown::ShutdownReason;
use crate::singleton::lease::LeaseOutcome;
use crate::stats::GossipStats;
use crate::view::MembershipView;

use address_claims::AddressClaims;
use downing::Provider;
use foreign_clusters::ForeignClusters;
pub use input::{Command, Effect, Input, LogLevel, Standing};
use join::{JoinProcess, joining};
use trust::SelfTrust;

/// The stage of this node's life.
#[derive(Debug)]
enum Life {
    Idle,
    Joining(Box<JoinProcess>),
    Member,
    Ended,
}

/// The stage of this node's own exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exiting {
    NotYet,
    /// The exit tasks run; this node marks nothing seen meanwhile, so the others wait.
    Running,
    Done,
}

/// The next due times of periodic work.
#[derive(Debug, Clone, Copy)]
struct Rounds {
    gossip_at: Instant,
    /// Extra gossips, at a third and two thirds of the interval, while a change is urgent (cluster M12).
    speedups: [Option<Instant>; 2],
    leader_at: Instant,
    reaper_at: Instant,
}

/// The membership machine of one node. Becomes a member only when told to join.
#[derive(Debug)]
pub struct ClusterCore {
    node: UniqueAddress,
    settings: Arc<ClusterSettings>,
    rng: ChaCha8Rng,
    life: Life,
    gossip: Arc<Gossip>,
    view: Arc<MembershipView>,
    /// The table that was last published to subscribers.
    shown_reachability: Shared<Reachability>,
    /// The confirmed exits when the view was made.
    shown_exits: ConfirmedExits,
    exits: ConfirmedExits,
    /// Confirmed exits of members that are not Exiting yet in this node's view (cluster M26).
    early_exits: ConfirmedExits,
    exiting: Exiting,
    rounds: Rounds,
    heartbeat: HeartbeatCore,
    proofs: Proofs,
    sbr: Option<Sbr>,
    /// The user's downing provider, which replaces the resolver.
    provider: Option<Provider>,
    trust: SelfTrust,
    /// Consecutive leader ticks without convergence.
    blocked_ticks: u32,
    /// Once this node is Down: why it ends, and the number of leader ticks that it has gossiped since.
    downed: Option<(ShutdownReason, u32)>,
    /// When each member that left in order is to be quarantined.
    quarantine_at: BTreeMap<UniqueAddress, Instant>,
    /// The host of this process, where the system tells it.
    host_id: Option<Arc<str>>,
    /// Members whose addresses other processes claim, and the member that holds this node's own address.
    address_claims: AddressClaims,
    /// Processes whose death was witnessed before this node knew them as members.
    witnessed: VecDeque<UniqueAddress>,
    foreign_clusters: ForeignClusters,
    /// The application's version, and whether joins wait until it is set (cluster M31).
    app_version: AppVersion,
    awaits_app_version: bool,
    /// Settings of other layers that must be equal on all nodes (cluster M25a).
    join_keys: BTreeMap<String, String>,
    /// Whether the orderly shutdown is past the phase in which this node leaves (cluster F10).
    makes_no_accusations: bool,
    stats: GossipStats,
    stats_at: Option<Instant>,
    /// When this node, which was let in but hears no member, sends its Join again.
    rejoin_at: Option<Instant>,
    /// The wall clock, in ms since 1970, at some instant.
    wall: (Instant, u64),
}

impl ClusterCore {
    /// A node that has not joined.
    pub fn new(node: UniqueAddress, settings: ClusterSettings, seed: u64, now: Instant) -> Self {
        let sbr = match &settings.downing {
            Downing::None | Downing::Custom(_) => None,
            Downing::SplitBrainResolver(sbr) => {
                Some(Sbr::new(node.clone(), sbr.clone(), now).sabotaged(settings.sabotage))
            }
        };
        let provider = match &settings.downing {
            Downing::Custom(custom) => Some(Provider::new(custom, &node, now)),
            Downing::None | Downing::SplitBrainResolver(_) => None,
        };
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            life: Life::Idle,
            gossip: Arc::default(),
            view: Arc::new(MembershipView::empty(node.clone())),
            shown_reachability: Shared::default(),
            shown_exits: ConfirmedExits::new(),
            exits: ConfirmedExits::new(),
            early_exits: ConfirmedExits::new(),
            exiting: Exiting::NotYet,
            rounds: Rounds { gossip_at: now, speedups: [None; 2], leader_at: now, reaper_at: now },
            heartbeat: HeartbeatCore::new(node.clone(), settings.failure_detector.clone(), now),
            proofs: Proofs::new(settings.proof_dials, settings.proof_interval),
            sbr,
            provider,
            trust: SelfTrust::new(now),
            blocked_ticks: 0,
            downed: None,
            quarantine_at: BTreeMap::new(),
            host_id: None,
            address_claims: AddressClaims::default(),
            witnessed: VecDeque::new(),
            foreign_clusters: ForeignClusters::new(&settings.seed_nodes),
            app_version: settings.app_version.clone(),
            awaits_app_version: false,
            join_keys: settings.checked_config.clone(),
            makes_no_accusations: false,
            stats: GossipStats::default(),
            stats_at: None,
            rejoin_at: None,
            wall: (now, 0),
            node,
            settings: Arc::new(settings),
        }
    }

    /// Sets the host of this process: kernel boot id and network namespace (cluster T12).
    #[must_use]
    pub fn on_host(self, host_id: Option<&str>) -> Self {
        Self { host_id: host_id.map(Into::into), ..self }
    }

    /// The address of this process.
    pub fn node(&self) -> &UniqueAddress {
        &self.node
    }

    /// The view that this node publishes.
    pub fn view(&self) -> &Arc<MembershipView> {
        &self.view
    }

    /// The state that this node gossips.
    pub fn gossip(&self) -> &Arc<Gossip> {
        &self.gossip
    }

    /// Handles one input. An input that makes no sense in the present state is ignored.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        if let Input::WallClock(ms) = input {
            self.wall = (now, ms);
        }
        if matches!(self.life, Life::Ended) {
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
            Input::AddressHeld { holder, claimant } => self.on_address_held(now, holder, claimant, out),
            Input::PeerQuarantined { peer, harmless, .. } => self.on_peer_quarantined(now, &peer, harmless, out),
            Input::LinkLost(peer) => self.on_link_lost(now, peer, out),
            Input::DialRefused(peer) => self.on_proof(now, ProofInput::Refused(peer), out),
            Input::DialAnswered(peer) => self.on_proof(now, ProofInput::Answered(peer), out),
            Input::DialFailed(peer) if self.omits(Sabotage::TimeoutIsRefusal) => {
                self.on_proof(now, ProofInput::Refused(peer), out);
            }
            Input::DialFailed(peer) => self.on_proof(now, ProofInput::Failed(peer), out),
            Input::LeaseResult(outcome) => self.on_lease(now, Some(outcome), out),
            Input::LeaseLost => self.on_lease(now, None, out),
            Input::DeathWitnessed(peer) => self.on_death_witnessed(now, peer, out),
            Input::ThisNodeQuarantined { by, reason } => self.on_this_node_quarantined(now, by, reason, out),
            Input::Command(command) => self.on_command(now, command, out),
        }
        self.prove_witnessed(now, out);
        self.tell_provider(now, begin, out);
        self.publish_standing(now, ticked, begin, out);
        debug_assert!(self.gossip.is_sound(), "{:?}", self.gossip);
    }

    /// Whether a simulation has disabled this clause.
    fn omits(&self, clause: Sabotage) -> bool {
        self.settings.sabotage == Some(clause)
    }

    fn on_command(&mut self, now: Instant, command: Command, out: &mut Vec<Effect>) {
        match command {
            Command::JoinSeeds(seeds) => self.on_join_seeds(now, seeds, out),
            Command::Leave(target) => self.on_leave(now, &target, out),
            Command::Down(target) => self.down(now, &[target], out),
            Command::PrepareForFullShutdown => self.prepare_for_full_shutdown(now, out),
            Command::AwaitAppVersion => self.awaits_app_version = true,
            Command::SetAppVersion(version) => self.on_app_version(now, version, out),
            Command::RegisterJoinKey { key, value } => {
                self.join_keys.insert(key, value);
            }
            Command::AbandonJoin => self.on_abandon_join(),
            Command::LeavePhasePassed => self.makes_no_accusations = true,
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
        if self.refuses(now, &from, &message, out) || self.is_claim_of_more_than_a_join(&from, &message) {
            return;
        }
        let is_gossip = matches!(message, Message::GossipEnvelope { .. } | Message::GossipStatus { .. });
        let is_member = self.gossip.members.contains_key(&from);
        // Gossip of strangers passes here: the code that reads it reports gossip of another cluster.
        if !message.is_for_strangers() && !is_gossip && !is_member && matches!(self.life, Life::Member) {
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
                if to == self.node && matches!(self.life, Life::Member) {
                    self.send(from.clone(), Message::HeartbeatRsp { to: from, seq }, out);
                }
            }
            Message::HeartbeatRsp { to, .. } => {
                if to == self.node {
                    self.tell_heartbeat(now, HeartbeatInput::Response(from), out);
                }
            }
        }
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.life {
            Life::Idle | Life::Ended => None,
            Life::Joining(process) if self.awaits_app_version => process.gives_up_at(),
            Life::Joining(process) => Some(process.next_deadline()),
            Life::Member => {
                let rounds = &self.rounds;
                let fixed = [Some(rounds.gossip_at), Some(rounds.leader_at), Some(rounds.reaper_at)];
                let nested = [
                    self.heartbeat.next_deadline(),
                    self.proofs.next_deadline(),
                    self.sbr.as_ref().and_then(Sbr::next_deadline),
                    self.provider.as_ref().and_then(Provider::next_deadline),
                    self.quarantine_at.values().min().copied(),
                    self.rejoin_at,
                    self.foreign_clusters.next_deadline(),
                    self.stats_at,
                ];
                fixed.into_iter().chain(rounds.speedups).chain(nested).flatten().min()
            }
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        match &self.life {
            Life::Idle | Life::Ended => {}
            Life::Joining(_) => self.on_join_tick(now, out),
            Life::Member => {}
        }
        // Run the member's tick now: the process may just have become a member by forming a cluster.
        if let Life::Member = self.life {
            self.on_member_tick(now, out);
        }
    }

    fn on_member_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.tell_heartbeat(now, HeartbeatInput::Tick, out);
        self.on_proof(now, ProofInput::Tick, out);
        if self.rounds.reaper_at <= now {
            self.rounds.reaper_at = now + self.settings.unreachable_nodes_reaper_interval;
            self.reap(now, out);
        }
        self.check_trust(now, out);
        self.tick_sbr(now, out);
        self.tick_provider(now, out);
        if self.rounds.leader_at <= now {
            self.rounds.leader_at = now + self.settings.leader_actions_interval;
            self.on_leader_tick(now, out);
        }
        self.tick_gossip(now, out);
        self.tick_quarantine(now, out);
        if self.rejoin_at.is_some_and(|at| at <= now) {
            self.join_again(now, out);
        }
        self.tick_foreign_clusters(now, out);
        self.tick_stats(now, out);
        if let Life::Member = self.life {
            // Tick again: the first heartbeat to a peer that this tick put on the ring is due at once.
            self.tell_heartbeat(now, HeartbeatInput::Tick, out);
        }
    }

    fn tell_heartbeat(&mut self, now: Instant, input: HeartbeatInput, out: &mut Vec<Effect>) {
        let mut effects = Vec::new();
        self.heartbeat.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                HeartbeatEffect::Send { to, seq } => self.send(to.clone(), Message::Heartbeat { to, seq }, out),
                HeartbeatEffect::Growing { peer, interval } => {
                    let text = format!("heartbeat interval growing: {interval:?} between two responses of {peer}");
                    out.push(Effect::Log(LogLevel::Warn, text));
                }
            }
        }
    }

    fn tick_quarantine(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let due = |(peer, at): (&UniqueAddress, &Instant)| (*at <= now).then(|| peer.clone());
        let peers: Vec<UniqueAddress> = self.quarantine_at.iter().filter_map(due).collect();
        for peer in peers {
            self.quarantine_at.remove(&peer);
            out.push(Effect::Quarantine { peer, harmless: true });
        }
    }

    /// Updates the own row of the reachability table from the detectors. Source: cluster F8, F10.
    fn reap(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let status = |peer: &UniqueAddress| self.gossip.reachability.status(&self.node, peer);
        let is_available = |peer: &UniqueAddress| self.heartbeat.is_available(now, peer);
        let watched = self.heartbeat.monitored().filter(|peer| self.gossip.members.contains_key(peer));
        let silent = watched.filter(|peer| status(peer) == Status::Reachable && !is_available(peer));
        let mut silent: Vec<UniqueAddress> = silent.cloned().collect();
        // Include accused peers that this node does not watch any more: it keeps their detectors until they answer
        // (cluster F3).
        let accused = self.gossip.reachability.accused_by(&self.node);
        let back = accused.filter(|peer| status(peer) == Status::Unreachable && is_available(peer));
        let back: Vec<UniqueAddress> = back.cloned().collect();
        let receivers = self.heartbeat.monitored().count();
        if self.makes_no_accusations() || self.trust.defers_marking(now, silent.len(), receivers, &self.settings) {
            silent.clear();
        }
        if silent.is_empty() && back.is_empty() {
            return;
        }
        let mut gossip = Gossip::clone(&self.gossip);
        for peer in &silent {
            out.push(Effect::Log(LogLevel::Warn, format!("{peer} does not answer; marked unreachable")));
            gossip.reachability.set(&self.node, peer, Status::Unreachable);
        }
        for peer in &back {
            out.push(Effect::Log(LogLevel::Info, format!("{peer} answers again")));
            gossip.reachability.set(&self.node, peer, Status::Reachable);
        }
        self.change(now, gossip, out);
    }

    fn is_leaving_for_good(&self) -> bool {
        self.view.self_status().is_none_or(|status| status >= MemberStatus::Exiting)
    }

    /// Whether this node ends, and so accuses no peer for being silent. Source: cluster F10.
    fn makes_no_accusations(&self) -> bool {
        self.makes_no_accusations || self.is_leaving_for_good()
    }

    /// Marks a quarantined peer Terminated: the transport will never again carry anything from or to it.
    /// Source: cluster F11.
    fn on_peer_quarantined(&mut self, now: Instant, peer: &UniqueAddress, harmless: bool, out: &mut Vec<Effect>) {
        if *peer == self.node || !self.gossip.members.contains_key(peer) || self.makes_no_accusations() {
            return;
        }
        let mut gossip = Gossip::clone(&self.gossip);
        if gossip.reachability.set(&self.node, peer, Status::Terminated) {
            // Log an announced end at info level: it belongs to a normal stop, even if the removal comes later.
            let (level, why) =
                if harmless { (LogLevel::Info, "has ended") } else { (LogLevel::Warn, "is quarantined") };
            out.push(Effect::Log(level, format!("{peer} {why}; it stays unreachable")));
            self.change(now, gossip, out);
        }
    }

    // --- the resolver ---------------------------------------------------------------------------

    fn tick_sbr(&mut self, now: Instant, out: &mut Vec<Effect>) {
        // Hold the decision while marks are deferred: a verdict on some of them would differ from that on all.
        let held = self.trust.pauses(now) || self.trust.defers(now);
        let suspect = self.trust.is_suspect();
        let Some(sbr) = &mut self.sbr else { return };
        let decision = if suspect && !held { sbr.decide_against_self(now) } else { sbr.decide(now, held) };
        out.extend(sbr.lease_request(now).map(|request| match request {
            LeaseRequest::Acquire => Effect::AcquireLease,
            LeaseRequest::Release => Effect::ReleaseLease,
        }));
        let Some(decision) = decision else { return };
        out.push(Effect::Log(LogLevel::Warn, decision.to_string()));
        let downed = decision.downed.clone();
        out.push(Effect::Publish(ClusterEvent::DowningDecision(Box::new(decision))));
        self.down(now, &downed, out);
        if !downed.is_empty() {
            // Spread the decision at once: a node that has not heard of one 3 s after an instability has lasted too
            // long downs itself (cluster S13).
            self.gossip_to_many(out);
        }
    }

    fn on_lease(&mut self, now: Instant, outcome: Option<LeaseOutcome>, out: &mut Vec<Effect>) {
        let Some(sbr) = &mut self.sbr else { return };
        match outcome {
            Some(outcome) => sbr.on_lease_outcome(outcome),
            None => sbr.on_lease_lost(),
        }
        if matches!(self.life, Life::Member) {
            self.tick_sbr(now, out);
        }
    }

    // --- every change ---------------------------------------------------------------------------

    /// Applies a change that this node makes.
    fn change(&mut self, now: Instant, mut gossip: Gossip, out: &mut Vec<Effect>) {
        self.undo_illegal_steps(&mut gossip, out);
        let mark_seen = self.marks_seen(&gossip);
        gossip.touch(&self.node, mark_seen);
        self.become_state(now, gossip, out);
    }

    /// Undoes status steps that cluster M2 does not allow: each is a bug of this node.
    fn undo_illegal_steps(&self, gossip: &mut Gossip, out: &mut Vec<Effect>) {
        let illegal = |pair| match pair {
            (Some(before), Some(after)) => {
                let (before, after): (&Member, &Member) = (before, after);
                let wrong = before.status != after.status && !before.status.may_become(after.status);
                wrong.then(|| (before.clone(), after.status))
            }
            _ => None,
        };
        let illegal: Vec<(Member, MemberStatus)> =
            self.gossip.members.differences(&gossip.members).filter_map(illegal).collect();
        for (before, after) in illegal {
            debug_assert!(false, "{} from {} to {after}", before.address, before.status);
            let text = format!("{} does not go from {} to {after}: a bug", before.address, before.status);
            out.push(Effect::Log(LogLevel::Error, text));
            gossip.members.insert(before);
        }
    }

    /// Whether this node marks a state as seen: not while the tasks of its own exit run, so that the others do not
    /// remove it yet. Source: cluster M26.
    fn marks_seen(&self, gossip: &Gossip) -> bool {
        let exits = gossip.members.get(&self.node).is_some_and(|member| member.status == MemberStatus::Exiting);
        !exits || self.exiting == Exiting::Done
    }

    /// Replaces the state; every change goes through here.
    fn become_state(&mut self, now: Instant, mut gossip: Gossip, out: &mut Vec<Effect>) {
        if !gossip.seen.uses_places(gossip.members.places()) {
            gossip.seen.move_to(gossip.members.places().clone());
        }
        self.gossip = Arc::new(gossip);
        self.refresh(now, out);
    }

    /// Publishes the consequences of a new state, and informs the nested machines.
    fn refresh(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.settle_exits();
        let reachability_changed = self.shown_reachability != self.gossip.reachability;
        // Keep this path cheap: most changes only concern which members have seen the state (cluster C5).
        let only_seen = !reachability_changed
            && self.shown_exits == self.exits
            && self.view.members == self.gossip.members
            && self.view.tombstones == self.gossip.tombstones
            && self.view.cluster_id == self.gossip.cluster_id;
        let suspect = self.trust.is_suspect();
        let view = if only_seen {
            self.gossip.view_after(&self.view, &self.node, &self.exits, suspect)
        } else {
            self.gossip.view(&self.node, &self.exits, suspect)
        };
        if view == *self.view && !reachability_changed {
            return;
        }
        self.shown_exits.clone_from(&self.exits);
        let old = std::mem::replace(&mut self.view, Arc::new(view));
        let events = diff(&old, &self.view);
        if !only_seen {
            // Inform the transport before publishing the view: no effect may come between a view and its events.
            self.tell_holders(&old, out);
        }
        out.push(Effect::View(self.view.clone()));
        self.warn_of_size(&events, out);
        out.extend(events.into_iter().map(Effect::Publish));
        if reachability_changed {
            self.shown_reachability = self.gossip.reachability.clone();
            out.push(Effect::Publish(ClusterEvent::ReachabilityChanged));
        }
        if !only_seen {
            self.quarantine_removed(now, &old, out);
            self.foreign_clusters.note_leader(now, self.view.leader.as_ref() == Some(&self.node));
            self.tell_heartbeat_members(now, out);
        }
        if let Some(sbr) = &mut self.sbr {
            sbr.on_state(now, &self.gossip, &self.exits);
        }
        if !only_seen {
            self.tell_proofs(now, out);
            self.notice_own_status(now, out);
        }
    }

    /// Lets confirmed exits count once their members are Exiting, and forgets those of removed members.
    fn settle_exits(&mut self) {
        let status = |address: &UniqueAddress| self.gossip.members.get(address).map(|member| member.status);
        self.exits.retain(|address, _| status(address).is_some());
        self.early_exits.retain(|address, _| status(address).is_some());
        let exiting = |(address, clean): (&UniqueAddress, &bool)| {
            (status(address)? >= MemberStatus::Exiting).then(|| (address.clone(), *clean))
        };
        let settled: Vec<(UniqueAddress, bool)> = self.early_exits.iter().filter_map(exiting).collect();
        for (address, clean) in settled {
            self.early_exits.remove(&address);
            self.exits.insert(address, clean);
        }
    }

    /// Source: cluster T19.
    fn quarantine_removed(&mut self, now: Instant, old: &MembershipView, out: &mut Vec<Effect>) {
        // Walk the tombstones only if they changed: the list is long and mostly does not.
        let fresh = if Shared::is(&self.view.tombstones, &old.tombstones) { None } else { Some(&self.view.tombstones) };
        for (peer, tombstone) in fresh.into_iter().flat_map(|tombstones| tombstones.iter()) {
            if old.tombstones.contains_key(peer) || *peer == self.node {
                continue;
            }
            // Skip tombstones that came with the first gossip: this node never met those processes.
            if old.member(peer).is_some() {
                if tombstone.clean && !tombstone.dead {
                    self.quarantine_at.insert(peer.clone(), now + self.settings.quarantine_removed_node_after);
                } else {
                    out.push(Effect::Quarantine { peer: peer.clone(), harmless: false });
                }
            }
        }
        // Quarantine at once every process whose address a new member has taken.
        let members = &self.view.members;
        let replaced = |peer: &&UniqueAddress| members.iter().any(|member| member.address.address() == peer.address());
        let replaced: Vec<UniqueAddress> = self.quarantine_at.keys().filter(replaced).cloned().collect();
        for peer in replaced {
            self.quarantine_at.remove(&peer);
            out.push(Effect::Quarantine { peer, harmless: true });
        }
    }

    fn tell_heartbeat_members(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let ring = self.gossip.members.ring();
        let marked = self.gossip.reachability.accused_by(&self.node).cloned().collect();
        let input = HeartbeatInput::Members { ring, unreachable: self.view.unreachable.clone(), marked };
        self.tell_heartbeat(now, input, out);
    }

    fn notice_own_status(&mut self, now: Instant, out: &mut Vec<Effect>) {
        match self.view.self_status() {
            Some(MemberStatus::Down) => self.become_downed(ShutdownReason::Downed, out),
            Some(MemberStatus::Exiting) if self.exiting == Exiting::NotYet => {
                self.exiting = Exiting::Running;
                out.push(Effect::StartExitingTasks);
            }
            _ => {}
        }
        let waits = matches!(self.view.self_status(), Some(MemberStatus::Joining | MemberStatus::WeaklyUp));
        match (waits && self.view.members.len() > 1, self.rejoin_at) {
            (true, None) => self.rejoin_at = Some(now + self.settings.retry_unsuccessful_join_after),
            (false, Some(_)) => self.rejoin_at = None,
            _ => {}
        }
    }

    /// Ends this node: the layers above see all members go. Source: cluster M33.
    fn end(&mut self, reason: ShutdownReason, out: &mut Vec<Effect>) {
        self.life = Life::Ended;
        out.push(Effect::Publish(ClusterEvent::ClusterShuttingDown));
        let empty = MembershipView { cluster_id: self.view.cluster_id, ..MembershipView::empty(self.node.clone()) };
        let old = std::mem::replace(&mut self.view, Arc::new(empty));
        let events = diff(&old, &self.view);
        self.tell_holders(&old, out);
        out.push(Effect::View(self.view.clone()));
        out.extend(events.into_iter().map(Effect::Publish));
        out.push(Effect::Shutdown(reason));
    }

    fn send(&self, to: UniqueAddress, message: Message, out: &mut Vec<Effect>) {
        out.push(Effect::Send { to: to.into(), message });
    }

    fn wall_ms(&self, now: Instant) -> u64 {
        self.wall.1 + u64::try_from(now.saturating_duration_since(self.wall.0).as_millis()).unwrap_or(u64::MAX / 2)
    }

    /// Sets the application's version, and continues joins that waited for it. Source: cluster M31.
    fn on_app_version(&mut self, now: Instant, version: AppVersion, out: &mut Vec<Effect>) {
        if matches!(self.life, Life::Member) {
            let text = "the application's version cannot change once this node has joined".to_owned();
            return out.push(Effect::Log(LogLevel::Warn, text));
        }
        self.app_version = version;
        self.awaits_app_version = false;
        self.on_tick(now, out);
    }

    /// A random part of an interval, which desynchronizes nodes that started together (cluster C4).
    fn phase_offset(&mut self, interval: Duration) -> Duration {
        interval.mul_f64(self.rng.random_range(0.0..0.25))
    }
}
