//! The membership machine of one node.
//!
//! It joins, gossips, watches its peers, acts when it leads, leaves, and knows when it was declared
//! dead. Heartbeats, proofs of death and the resolver are machines of their own, nested here as
//! plain fields. Every change goes through one function, which publishes the difference and tells
//! the nested machines.
//!
//! **Deaths are spread at once.** A node that proves a death gossips it right away, whoever changes
//! its state while a proven death awaits removal gossips to the leader at once, and a leader that
//! finds the state converged removes the dead member without waiting for its next tick. This is
//! safe because ticks only pace: what a gossip may change and what a leader may do depends on the
//! state alone (M14, M17, M20), never on when it is looked at; a network that is quick by chance
//! shows the same runs.
//!
//! Source: cluster §2, §3, §4 (S20).

mod exchange;
mod join;
mod leader;
mod leaving;
mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, UniqueAddress};
use greylag_transport::{Destination, QuarantineReason};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::JoinError;
use crate::event::{ClusterEvent, Proof, diff};
use crate::gossip::{ConfirmedExits, Gossip};
use crate::heartbeat::{HeartbeatCore, HeartbeatEffect, HeartbeatInput};
use crate::member::MemberStatus;
use crate::message::Message;
use crate::proof::{ProofEffect, ProofInput, Proofs};
use crate::reachability::{Reachability, Status};
use crate::sabotage::Sabotage;
use crate::sbr::Sbr;
use crate::settings::{ClusterSettings, Downing, ProofOfDeath};
use crate::shutdown::ShutdownReason;
use crate::view::MembershipView;

use join::JoinProcess;
use trust::Trust;

/// What a user, or the driver's shutdown, asks of the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Join the cluster of one of these; the first may form one.
    JoinSeeds(Vec<NodeAddress>),
    /// Ask this member to leave.
    Leave(UniqueAddress),
    /// Declare this member dead.
    Down(UniqueAddress),
    /// Everything that this node had to hand over was; `clean` if nothing of it can still run.
    ExitingTasksDone {
        /// Source: cluster M26.
        clean: bool,
    },
    /// End now, without leaving.
    Stop(ShutdownReason),
}

/// What the machine is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A deadline may have come.
    Tick,
    /// A message from a process that is known to be its origin.
    Message {
        /// The process.
        from: UniqueAddress,
        /// What it says.
        message: Message,
        /// When it reached this process; old gossip is dropped (cluster M14).
        received_at: Instant,
    },
    /// This process runs at its address.
    PeerHandshake(UniqueAddress),
    /// The control stream to this process broke.
    LinkLost(UniqueAddress),
    /// A dial that counts was refused.
    DialRefused(UniqueAddress),
    /// A dial was accepted.
    DialAnswered(UniqueAddress),
    /// A dial ended in any other way, or would not have counted.
    DialFailed(UniqueAddress),
    /// A witness says that this process is gone.
    DeathWitnessed(UniqueAddress),
    /// Somebody has quarantined this node.
    ThisNodeQuarantined {
        /// Who.
        by: UniqueAddress,
        /// Why.
        reason: QuarantineReason,
    },
    /// A command of a user.
    Command(Command),
    /// The wall clock, in ms since 1970; only for the age of tombstones.
    WallClock(u64),
}

/// How much a log line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Part of normal life.
    Info,
    /// Somebody should look.
    Warn,
}

/// What the driver is asked to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send a message.
    Send {
        /// To this process, or to whoever runs at the address.
        to: Destination,
        /// What to say.
        message: Message,
    },
    /// Replace the view that this node shows; the events that led to it follow.
    View(Arc<MembershipView>),
    /// Tell subscribers.
    Publish(ClusterEvent),
    /// Name this cluster in Hellos from now on.
    ClusterId(u128),
    /// Never talk to this process again.
    Quarantine {
        /// The process.
        peer: UniqueAddress,
        /// It left in order and need not be told.
        harmless: bool,
    },
    /// Try one connection to this process, and say how it ended.
    Dial(UniqueAddress),
    /// This node is a member now.
    Joined,
    /// This node could not join.
    JoinFailed(JoinError),
    /// This node is Exiting: hand over, then say `ExitingTasksDone`.
    StartExitingTasks,
    /// This node has ended. Nothing follows.
    Shutdown(ShutdownReason),
    /// Write to the log.
    Log(LogLevel, String),
}

/// Where this node is in its life.
#[derive(Debug)]
enum Life {
    Idle,
    Joining(Box<JoinProcess>),
    Member,
    Ended,
}

/// How far this node's own exit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exiting {
    NotYet,
    /// The tasks run; nothing is marked seen meanwhile, so the others wait.
    Running,
    Done,
}

/// When periodic work is due next.
#[derive(Debug, Clone, Copy)]
struct Rounds {
    gossip_at: Instant,
    /// A third and two thirds after a gossip, while there is something urgent (cluster M12).
    speedups: [Option<Instant>; 2],
    leader_at: Instant,
    reaper_at: Instant,
}

/// The membership machine of one node. Not a member until told to join.
#[derive(Debug)]
pub struct ClusterCore {
    node: UniqueAddress,
    settings: Arc<ClusterSettings>,
    rng: ChaCha8Rng,
    life: Life,
    gossip: Arc<Gossip>,
    view: Arc<MembershipView>,
    /// The table that subscribers were last told of.
    shown_reachability: Reachability,
    exits: ConfirmedExits,
    /// Confirmations about members that are not Exiting yet in this node's view (cluster M26).
    early_exits: ConfirmedExits,
    exiting: Exiting,
    rounds: Rounds,
    heartbeat: HeartbeatCore,
    proofs: Proofs,
    sbr: Option<Sbr>,
    trust: Trust,
    /// Leader ticks without convergence in a row.
    blocked_ticks: u32,
    /// Why this node ends, and for how many leader ticks it still gossips, once it is Down.
    downed: Option<(ShutdownReason, u32)>,
    /// When members that left in order are quarantined.
    quarantine_at: BTreeMap<UniqueAddress, Instant>,
    /// Addresses asked who runs there: the nonce of the question.
    asked_who: BTreeMap<NodeAddress, u64>,
    /// When a node that was let in but hears nobody asks again.
    rejoin_at: Option<Instant>,
    /// The wall clock at some instant.
    wall: (Instant, u64),
}

impl ClusterCore {
    /// A node that has not joined.
    pub fn new(node: UniqueAddress, settings: ClusterSettings, seed: u64, now: Instant) -> Self {
        let sbr = match &settings.downing {
            Downing::None => None,
            Downing::SplitBrainResolver(sbr) => {
                Some(Sbr::new(node.clone(), sbr.clone(), now).sabotaged(settings.sabotage))
            }
        };
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            life: Life::Idle,
            gossip: Arc::default(),
            view: Arc::new(MembershipView::empty(node.clone())),
            shown_reachability: Reachability::default(),
            exits: ConfirmedExits::new(),
            early_exits: ConfirmedExits::new(),
            exiting: Exiting::NotYet,
            rounds: Rounds { gossip_at: now, speedups: [None; 2], leader_at: now, reaper_at: now },
            heartbeat: HeartbeatCore::new(node.clone(), settings.failure_detector.clone(), now),
            proofs: Proofs::new(settings.proof_dials, settings.proof_interval),
            sbr,
            trust: Trust::new(now),
            blocked_ticks: 0,
            downed: None,
            quarantine_at: BTreeMap::new(),
            asked_who: BTreeMap::new(),
            rejoin_at: None,
            wall: (now, 0),
            node,
            settings: Arc::new(settings),
        }
    }

    /// This process.
    pub fn node(&self) -> &UniqueAddress {
        &self.node
    }

    /// What this node shows.
    pub fn view(&self) -> &Arc<MembershipView> {
        &self.view
    }

    /// What it gossips.
    pub fn gossip(&self) -> &Arc<Gossip> {
        &self.gossip
    }

    /// Takes one input. What makes no sense here is dropped.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        if let Input::WallClock(ms) = input {
            self.wall = (now, ms);
        }
        if matches!(self.life, Life::Ended) {
            return;
        }
        self.notice_pause(now, out);
        match input {
            Input::WallClock(_) => {}
            Input::Tick => self.on_tick(now, out),
            Input::Message { from, message, received_at } => self.on_message(now, from, message, received_at, out),
            Input::PeerHandshake(peer) => self.ask_who_if_restarted(&peer, out),
            Input::LinkLost(peer) => self.on_link_lost(now, peer, out),
            Input::DialRefused(peer) => self.on_proof(now, ProofInput::Refused(peer), out),
            Input::DialAnswered(peer) => self.on_proof(now, ProofInput::Answered(peer), out),
            Input::DialFailed(peer) if self.omits(Sabotage::TimeoutIsRefusal) => {
                self.on_proof(now, ProofInput::Refused(peer), out);
            }
            Input::DialFailed(peer) => self.on_proof(now, ProofInput::Failed(peer), out),
            Input::DeathWitnessed(peer) => self.prove_dead(now, &[peer], Proof::Witnessed, out),
            Input::ThisNodeQuarantined { by, reason } => self.on_this_node_quarantined(now, by, reason, out),
            Input::Command(command) => self.on_command(now, command, out),
        }
        debug_assert!(self.gossip.is_sound(), "{:?}", self.gossip);
    }

    /// Whether a simulation has switched this clause off.
    fn omits(&self, clause: Sabotage) -> bool {
        self.settings.sabotage == Some(clause)
    }

    fn on_command(&mut self, now: Instant, command: Command, out: &mut Vec<Effect>) {
        match command {
            Command::JoinSeeds(seeds) => self.on_join_seeds(now, seeds, out),
            Command::Leave(target) => self.on_leave(now, &target, out),
            Command::Down(target) => self.down(now, &[target], out),
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
        match message {
            Message::InitJoin { protocol, config, .. } => self.on_init_join(&from, protocol, &config, out),
            Message::InitJoinAck { cluster_id, config } => self.on_init_join_ack(now, &from, cluster_id, &config, out),
            Message::InitJoinNack => self.on_init_join_nack(now, &from, out),
            Message::Join { roles, app_version, protocol, cluster_id } => {
                self.on_join(now, from, roles, app_version, protocol, cluster_id, out);
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
            Message::WhoIs { nonce } => self.send(from, Message::Iam { nonce }, out),
            Message::Iam { nonce } => self.on_i_am(now, &from, nonce, out),
            Message::Heartbeat { to, seq } => {
                if to == self.node && matches!(self.life, Life::Member) {
                    self.send(from.clone(), Message::HeartbeatRsp { to: from, seq }, out);
                }
            }
            Message::HeartbeatRsp { to, .. } => {
                if to == self.node {
                    self.heartbeat.handle(now, HeartbeatInput::Response(from), &mut Vec::new());
                }
            }
        }
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.life {
            Life::Idle | Life::Ended => None,
            Life::Joining(process) => Some(process.next_deadline()),
            Life::Member => {
                let rounds = &self.rounds;
                let fixed = [Some(rounds.gossip_at), Some(rounds.leader_at), Some(rounds.reaper_at)];
                let nested = [
                    self.heartbeat.next_deadline(),
                    self.proofs.next_deadline(),
                    self.sbr.as_ref().and_then(Sbr::next_deadline),
                    self.quarantine_at.values().min().copied(),
                    self.rejoin_at,
                ];
                fixed.into_iter().chain(rounds.speedups).chain(nested).flatten().min()
            }
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        match &self.life {
            Life::Idle | Life::Ended => {}
            Life::Joining(_) => self.on_join_tick(now, out),
            Life::Member => self.on_member_tick(now, out),
        }
    }

    fn on_member_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.tick_heartbeat(now, out);
        self.on_proof(now, ProofInput::Tick, out);
        if self.rounds.reaper_at <= now {
            self.rounds.reaper_at = now + self.settings.unreachable_nodes_reaper_interval;
            self.reap(now, out);
        }
        self.check_trust(now, out);
        self.tick_sbr(now, out);
        if self.rounds.leader_at <= now {
            self.rounds.leader_at = now + self.settings.leader_actions_interval;
            self.on_leader_tick(now, out);
        }
        self.tick_gossip(now, out);
        self.tick_quarantine(now, out);
        if self.rejoin_at.is_some_and(|at| at <= now) {
            self.join_again(now, out);
        }
    }

    fn tick_heartbeat(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let mut effects = Vec::new();
        self.heartbeat.handle(now, HeartbeatInput::Tick, &mut effects);
        for HeartbeatEffect::Send { to, seq } in effects {
            self.send(to.clone(), Message::Heartbeat { to, seq }, out);
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

    /// Looks at the detectors and changes the own row. Source: cluster F8, F10.
    fn reap(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let members = self.gossip.members.keys().filter(|peer| **peer != self.node);
        let mut silent = Vec::new();
        let mut back = Vec::new();
        for peer in members {
            match (self.heartbeat.is_available(now, peer), self.gossip.reachability.status(&self.node, peer)) {
                (false, Status::Reachable) => silent.push(peer.clone()),
                (true, Status::Unreachable) if self.heartbeat.monitors(peer) => back.push(peer.clone()),
                _ => {}
            }
        }
        let receivers = self.heartbeat.monitored().count();
        if self.is_leaving_for_good() || self.trust.defers_marking(now, silent.len(), receivers, &self.settings) {
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

    // --- proof of death -------------------------------------------------------------------------

    fn on_link_lost(&mut self, now: Instant, peer: UniqueAddress, out: &mut Vec<Effect>) {
        if self.heartbeat.monitors(&peer) && self.may_be_dialled(&peer) {
            self.on_proof(now, ProofInput::LinkLost(peer), out);
        }
    }

    fn may_be_dialled(&self, peer: &UniqueAddress) -> bool {
        let alive = self.gossip.members.get(peer).is_some_and(|member| !member.dead);
        let confirmed = self.exits.contains_key(peer) || self.early_exits.contains_key(peer);
        alive && !confirmed && !self.is_leaving_for_good() && self.settings.proof_of_death != ProofOfDeath::Off
    }

    fn on_proof(&mut self, now: Instant, input: ProofInput, out: &mut Vec<Effect>) {
        let mut effects = Vec::new();
        self.proofs.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                ProofEffect::Dial(peer) => out.push(Effect::Dial(peer)),
                ProofEffect::Proven(peer) => self.prove_dead(now, &[peer], Proof::Refused, out),
            }
        }
    }

    /// Records deaths as facts and spreads them at once. Source: cluster S20.
    fn prove_dead(&mut self, now: Instant, peers: &[UniqueAddress], how: Proof, out: &mut Vec<Effect>) {
        let may_prove = matches!(self.life, Life::Member) && !self.is_leaving_for_good();
        let fresh = |peer: &&UniqueAddress| self.gossip.members.get(*peer).is_some_and(|member| !member.dead);
        let fresh: Vec<UniqueAddress> =
            peers.iter().filter(|peer| **peer != self.node).filter(fresh).cloned().collect();
        if !may_prove || fresh.is_empty() {
            return;
        }
        let mut gossip = Gossip::clone(&self.gossip);
        for peer in &fresh {
            let member = gossip.members.get_mut(peer).expect("filtered by membership above");
            member.dead = true;
            if member.status != MemberStatus::Exiting {
                member.status = MemberStatus::Down;
            }
            gossip.reachability.set(&self.node, peer, Status::Terminated);
            out.push(Effect::Log(LogLevel::Warn, format!("{peer} is dead: {how:?}")));
            out.push(Effect::Publish(ClusterEvent::ProvenDead { member: peer.clone(), how }));
        }
        self.change(now, gossip, out);
        self.gossip_to_many(out);
        self.act_if_urgent(now, out);
    }

    /// Asks who runs at an address where a process was heard that is not the member known there:
    /// an answer proves the death of the member (cluster S20 case a).
    fn ask_who_if_restarted(&mut self, peer: &UniqueAddress, out: &mut Vec<Effect>) {
        let other = |member: &&UniqueAddress| member.address() == peer.address() && *member != peer;
        let replaced = self.gossip.members.keys().filter(other).any(|member| !self.gossip.members[member].dead);
        if replaced && self.settings.proof_of_death != ProofOfDeath::Off {
            let nonce = self.rng.random();
            self.asked_who.insert(peer.address().clone(), nonce);
            out.push(Effect::Send { to: peer.address().clone().into(), message: Message::WhoIs { nonce } });
        }
    }

    fn on_i_am(&mut self, now: Instant, from: &UniqueAddress, nonce: u64, out: &mut Vec<Effect>) {
        if self.asked_who.get(from.address()) != Some(&nonce) {
            return;
        }
        self.asked_who.remove(from.address());
        let members = self.gossip.members.keys();
        let older: Vec<UniqueAddress> =
            members.filter(|member| member.address() == from.address() && *member != from).cloned().collect();
        self.prove_dead(now, &older, Proof::Restarted, out);
    }

    // --- the resolver ---------------------------------------------------------------------------

    fn tick_sbr(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let held = self.trust.holds(now);
        let Some(sbr) = &mut self.sbr else { return };
        let Some(decision) = sbr.decide(now, held) else { return };
        out.push(Effect::Log(LogLevel::Warn, decision.to_string()));
        let downed = decision.downed.clone();
        out.push(Effect::Publish(ClusterEvent::DowningDecision(Box::new(decision))));
        self.down(now, &downed, out);
    }

    // --- every change ---------------------------------------------------------------------------

    /// A change that this node makes.
    fn change(&mut self, now: Instant, mut gossip: Gossip, out: &mut Vec<Effect>) {
        let mark_seen = self.marks_seen(&gossip);
        gossip.touch(&self.node, mark_seen);
        self.become_state(now, gossip, out);
    }

    /// While the tasks of its own exit run, this node marks nothing seen: the others must not
    /// remove it yet. Source: cluster M26.
    fn marks_seen(&self, gossip: &Gossip) -> bool {
        let exits = gossip.members.get(&self.node).is_some_and(|member| member.status == MemberStatus::Exiting);
        !exits || self.exiting == Exiting::Done
    }

    /// Every change of state ends here.
    fn become_state(&mut self, now: Instant, gossip: Gossip, out: &mut Vec<Effect>) {
        self.gossip = Arc::new(gossip);
        self.refresh(now, out);
    }

    /// Publishes what follows from the state, and tells the nested machines.
    fn refresh(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.settle_exits();
        let view = self.gossip.view(&self.node, &self.exits, self.trust.is_suspect());
        let reachability_changed = self.shown_reachability != self.gossip.reachability;
        if view == *self.view && !reachability_changed {
            return;
        }
        let old = std::mem::replace(&mut self.view, Arc::new(view));
        let events = diff(&old, &self.view);
        out.push(Effect::View(self.view.clone()));
        out.extend(events.into_iter().map(Effect::Publish));
        if reachability_changed {
            self.shown_reachability = self.gossip.reachability.clone();
            out.push(Effect::Publish(ClusterEvent::ReachabilityChanged));
        }
        self.quarantine_removed(now, &old, out);
        self.tell_heartbeat(now);
        if let Some(sbr) = &mut self.sbr {
            sbr.on_state(now, &self.gossip, &self.exits);
        }
        self.tell_proofs(now, out);
        self.notice_own_status(now, out);
    }

    /// A confirmed exit counts once its member is Exiting, and is forgotten when it is removed.
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
        for (peer, tombstone) in &self.view.tombstones {
            if old.tombstones.contains_key(peer) || *peer == self.node {
                continue;
            }
            // Tombstones that came with the first gossip are about processes this node never met.
            if old.member(peer).is_some() {
                if tombstone.clean && !tombstone.dead {
                    self.quarantine_at.insert(peer.clone(), now + self.settings.quarantine_removed_node_after);
                } else {
                    out.push(Effect::Quarantine { peer: peer.clone(), harmless: false });
                }
            }
        }
        // A new process at the address ends the patience with the old one.
        let members = &self.view.members;
        let replaced = |peer: &&UniqueAddress| members.iter().any(|member| member.address.address() == peer.address());
        let replaced: Vec<UniqueAddress> = self.quarantine_at.keys().filter(replaced).cloned().collect();
        for peer in replaced {
            self.quarantine_at.remove(&peer);
            out.push(Effect::Quarantine { peer, harmless: true });
        }
    }

    fn tell_heartbeat(&mut self, now: Instant) {
        let peers: BTreeSet<UniqueAddress> =
            self.gossip.members.keys().filter(|peer| **peer != self.node).cloned().collect();
        let marked = peers
            .iter()
            .filter(|peer| self.gossip.reachability.status(&self.node, peer) != Status::Reachable)
            .cloned()
            .collect();
        let input = HeartbeatInput::Members { peers, unreachable: self.view.unreachable.clone(), marked };
        self.heartbeat.handle(now, input, &mut Vec::new());
    }

    fn tell_proofs(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let known: Vec<UniqueAddress> = self.proofs.peers().cloned().collect();
        for peer in known {
            let gone_back =
                self.proofs.is_marked(&peer) && self.gossip.reachability.status(&self.node, &peer) == Status::Reachable;
            if gone_back || !self.may_be_dialled(&peer) {
                self.on_proof(now, ProofInput::Settled(peer), out);
            }
        }
        let accused: Vec<UniqueAddress> = self.view.unreachable.iter().cloned().collect();
        for peer in accused {
            let marks = self.gossip.reachability.status(&self.node, &peer) != Status::Reachable;
            if marks && self.may_be_dialled(&peer) {
                self.on_proof(now, ProofInput::Marked(peer), out);
            }
        }
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

    /// This node has ended: everybody is gone, for the layers above. Source: cluster M33.
    fn end(&mut self, reason: ShutdownReason, out: &mut Vec<Effect>) {
        self.life = Life::Ended;
        out.push(Effect::Publish(ClusterEvent::ClusterShuttingDown));
        let empty = MembershipView { cluster_id: self.view.cluster_id, ..MembershipView::empty(self.node.clone()) };
        let old = std::mem::replace(&mut self.view, Arc::new(empty));
        let events = diff(&old, &self.view);
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

    /// Spreads periodic work of nodes that started together (cluster C4).
    fn phase_offset(&mut self, interval: Duration) -> Duration {
        interval.mul_f64(self.rng.random_range(0.0..0.25))
    }
}
