//! Decides when this node may run the instance of a singleton, and when it must.
//!
//! Being the oldest is not enough to start: every node that may have run the instance before must be *settled* first. A
//! node is settled when it has answered this attempt that no instance runs there, when it was removed and provably
//! cannot run any, when the margin after its removal is over, or when it is an older process at this very address. The
//! answer "no instance runs here" binds the answering node: the claimant must clear it before it may start itself, and
//! answers of the claimant that crossed with it are void (each request has a number). Asking only the latest
//! predecessor is unsafe when several leave together.
//!
//! The membership comes as whole views, so that a new oldest is never judged by half of a change.
//!
//! Source: cluster P1 to P7, P3a.

mod roster;
mod transitions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::lease::{LeaseOutcome, SingletonLease};
use super::{Kind, SingletonMessage};
use crate::member::{Member, MemberStatus};
use crate::sabotage::Sabotage;
use crate::settings::{ClusterSettings, ProofOfDeath, SingletonSettings};
use crate::view::MembershipView;

/// An input to the [`SingletonManager`] of one node: the membership, messages of other managers, and events of the
/// instance and of the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerInput {
    /// The membership, whenever it changed. The first view is the present state.
    View(Arc<MembershipView>),
    /// A manager of the same singleton sent a message.
    Message(SingletonMessage),
    /// The instance has ended, asked or not.
    InstanceEnded,
    /// This node's shutdown has reached the phase in which singletons are handed over.
    ExitingPhase,
    /// This node was declared dead, or ends.
    SelfDowned,
    /// This process stood still; the manager starts no instance for a while (cluster F9).
    LocalPause,
    /// The outcome of `AcquireLease`. Each is answered once.
    LeaseResult(LeaseOutcome),
    /// `ReleaseLease` has ended, well or not. Each is answered once.
    LeaseReleased,
    /// The lease was held, and is lost.
    LeaseLost,
    /// Time has passed: handle the deadlines that are due.
    Tick,
}

/// An effect that the driver carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerEffect {
    /// Send to the process that runs at the address of `message.to`, whichever incarnation it is.
    Send(SingletonMessage),
    /// Start the instance.
    StartInstance {
        /// The age of this node, for fencing.
        up_number: u32,
    },
    /// Tell the instance to end; answer by `InstanceEnded` when it has.
    StopInstance,
    /// Hand no message to the instance any more, not even waiting ones: another node may start its own before this one
    /// has ended.
    CloseMailbox,
    /// Acquire the lease; answer by `LeaseResult`.
    AcquireLease,
    /// Release the lease, whether it is held or not; answer by `LeaseReleased`.
    ReleaseLease,
    /// Report that this singleton no longer keeps the node from exiting.
    ExitingDone,
    /// Report that a hand-over makes no progress.
    Stuck,
}

/// The state of the manager. Source: the table of cluster §5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagerState {
    /// This node is not Up yet.
    Start,
    /// Another node is the oldest.
    Younger,
    /// This node is the oldest, and waits until all predecessors are settled.
    BecomingOldest,
    /// All predecessors are settled; the lease is missing.
    AcquiringLease,
    /// This node runs the instance, or the instance ended by itself here.
    Oldest,
    /// Another node is the oldest now; the instance still runs here.
    WasOldest,
    /// The instance ends, so that a claimant can start its own.
    HandingOver,
    /// The instance ends without hand-over.
    Stopping,
    /// No instance starts here any more.
    End,
}

/// Manages one singleton on one node.
#[derive(Debug)]
pub struct SingletonManager {
    node: UniqueAddress,
    role: Option<String>,
    retry_interval: Duration,
    hand_over_retries: u32,
    take_over_retries: u32,
    margin: Duration,
    hold_after_pause: Duration,
    state: ManagerState,
    running: bool,
    stopping: bool,
    silenced: bool,
    /// `None` if no lease is used.
    lease: Option<SingletonLease>,
    /// Whether the instance ends, or has ended, only because the lease was lost.
    lease_lost: bool,
    /// Whether the present instance has ended without being told to: then it is not started anew here.
    ended_by_itself: bool,
    view: Option<Arc<MembershipView>>,
    /// Members that are, or may still act as, candidates for the oldest; removed members stay until their margin is
    /// over. Source: cluster P2.
    list: BTreeMap<UniqueAddress, Member>,
    /// Earlier oldest members, and nodes that claimed or offered the instance.
    noted: BTreeSet<UniqueAddress>,
    /// Members removed without proof that no instance runs there, with the end of their margin.
    margins: BTreeMap<UniqueAddress, Instant>,
    /// Members removed and settled, with the time to forget them.
    gone: BTreeMap<UniqueAddress, Instant>,
    /// The number of the newest request to each node.
    asked: BTreeMap<UniqueAddress, u64>,
    /// Nodes that answered this node's newest request with "no instance runs here".
    cleared: BTreeSet<UniqueAddress>,
    /// Nodes that answered that their instance is ending.
    in_progress: BTreeSet<UniqueAddress>,
    /// Nodes that wait for our instance to end, with the request to answer.
    claimants: BTreeMap<UniqueAddress, u64>,
    /// The node that this node's instance was last offered to.
    offered: Option<UniqueAddress>,
    attempt: u64,
    retries: u32,
    retry_at: Option<Instant>,
    hold_until: Option<Instant>,
    exiting_phase: bool,
    exiting_told: bool,
    downed: bool,
    /// The latest predecessor, if sabotage restricts the requests to it (see [`Sabotage::Clearance`]).
    latest_only: Option<Option<UniqueAddress>>,
    /// Decides which processes at one address can have replaced which.
    proof_of_death: ProofOfDeath,
}

impl SingletonManager {
    /// A manager that has seen nothing of the cluster.
    pub fn new(node: UniqueAddress, settings: &SingletonSettings, cluster: &ClusterSettings) -> Self {
        let mut margin = settings.removal_margin.unwrap_or_else(|| cluster.removal_margin());
        if cluster.sabotage == Some(Sabotage::Margin) {
            margin = Duration::ZERO;
        }
        let interval = settings.hand_over_retry_interval.max(Duration::from_millis(1));
        let in_margin = u32::try_from(margin.as_millis() / interval.as_millis()).unwrap_or(u32::MAX - 3);
        let hand_over_retries = settings.min_number_of_hand_over_retries.max(in_margin + 3);
        Self {
            node,
            role: settings.role.clone(),
            retry_interval: interval,
            hand_over_retries,
            take_over_retries: hand_over_retries.saturating_sub(3).max(1),
            margin,
            hold_after_pause: 3 * cluster.failure_detector.heartbeat_interval,
            state: ManagerState::Start,
            running: false,
            stopping: false,
            silenced: false,
            lease: settings.use_lease.then(|| SingletonLease::new(settings.lease_retry_interval)),
            lease_lost: false,
            ended_by_itself: false,
            view: None,
            list: BTreeMap::new(),
            noted: BTreeSet::new(),
            margins: BTreeMap::new(),
            gone: BTreeMap::new(),
            asked: BTreeMap::new(),
            cleared: BTreeSet::new(),
            in_progress: BTreeSet::new(),
            claimants: BTreeMap::new(),
            offered: None,
            attempt: 0,
            retries: 0,
            retry_at: None,
            hold_until: None,
            exiting_phase: false,
            exiting_told: false,
            downed: false,
            latest_only: (cluster.sabotage == Some(Sabotage::Clearance)).then_some(None),
            proof_of_death: cluster.proof_of_death,
        }
    }

    /// The state of the manager.
    pub fn state(&self) -> ManagerState {
        self.state
    }

    /// Whether an instance handles messages here under a held lease, as far as this machine knows.
    pub(crate) fn rests_on_lease(&self) -> bool {
        self.running && !self.silenced && self.lease.as_ref().is_some_and(SingletonLease::is_held)
    }

    /// Whether the instance exists on this node.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Handles one input. An input that makes no sense in the present state is ignored.
    pub fn handle(&mut self, now: Instant, input: ManagerInput, out: &mut Vec<ManagerEffect>) {
        self.hold_until = self.hold_until.filter(|until| now < *until);
        match input {
            ManagerInput::View(view) => self.on_view(now, view),
            ManagerInput::Message(message) => self.on_message(now, message, out),
            ManagerInput::InstanceEnded => self.on_instance_ended(out),
            ManagerInput::ExitingPhase => self.on_exiting_phase(),
            ManagerInput::SelfDowned => self.on_self_downed(out),
            ManagerInput::LocalPause => self.hold_until = Some(now + self.hold_after_pause),
            ManagerInput::LeaseResult(outcome) => self.with_lease(|lease| lease.on_outcome(now, outcome, out)),
            ManagerInput::LeaseReleased => self.with_lease(|lease| lease.on_released(out)),
            ManagerInput::LeaseLost => self.on_lease_lost(out),
            ManagerInput::Tick => {}
        }
        self.with_lease(|lease| lease.on_tick(now, out));
        self.end_margins(now);
        self.judge(now, out);
        self.tell_exiting_done(out);
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let waits = matches!(self.state, ManagerState::BecomingOldest | ManagerState::AcquiringLease);
        let hold = self.hold_until.filter(|_| waits);
        let lease = self.lease.as_ref().and_then(SingletonLease::next_deadline);
        [self.retry_at, self.margins.values().min().copied(), hold, lease].into_iter().flatten().min()
    }

    fn with_lease(&mut self, f: impl FnOnce(&mut SingletonLease)) {
        if let Some(lease) = &mut self.lease {
            f(lease);
        }
    }

    // --- inputs ---------------------------------------------------------------------------------

    fn on_instance_ended(&mut self, out: &mut Vec<ManagerEffect>) {
        self.running = false;
        self.silenced = false;
        self.ended_by_itself = !std::mem::take(&mut self.stopping);
        match self.state {
            ManagerState::Oldest if self.lease_lost => self.reacquire(out),
            // Release the lease: it is of no use until this node is the oldest again.
            ManagerState::WasOldest if self.lease_lost => self.give_lease_back(out),
            _ => {}
        }
    }

    /// Silences and stops the instance that relies on the lease. The lease is released only after the instance has
    /// ended.
    fn on_lease_lost(&mut self, out: &mut Vec<ManagerEffect>) {
        self.close_mailbox(out);
        self.with_lease(SingletonLease::on_lost);
        match self.state {
            ManagerState::Oldest | ManagerState::WasOldest if self.running => {
                self.lease_lost = true;
                self.stop_instance(out);
            }
            ManagerState::AcquiringLease => self.with_lease(|lease| {
                if lease.is_held() {
                    lease.renew(out);
                }
            }),
            ManagerState::Oldest | ManagerState::WasOldest => self.give_lease_back(out),
            // Nothing to do: the instance is ending already, or none runs.
            _ => {}
        }
    }

    fn on_exiting_phase(&mut self) {
        self.exiting_phase = true;
        self.list.remove(&self.node);
    }

    fn on_self_downed(&mut self, out: &mut Vec<ManagerEffect>) {
        self.downed = true;
        self.close_mailbox(out);
        match self.state {
            ManagerState::Oldest | ManagerState::WasOldest => self.become_stopping(out),
            ManagerState::HandingOver | ManagerState::Stopping => {}
            _ => {
                self.give_lease_back(out);
                self.retry_at = None;
                self.state = ManagerState::End;
            }
        }
    }

    fn close_mailbox(&mut self, out: &mut Vec<ManagerEffect>) {
        if self.running && !self.silenced {
            self.silenced = true;
            out.push(ManagerEffect::CloseMailbox);
        }
    }

    fn on_message(&mut self, _now: Instant, message: SingletonMessage, out: &mut Vec<ManagerEffect>) {
        if message.to != self.node {
            let view = self.view.as_deref();
            let answer = view.and_then(|view| Self::answer_for_predecessor(self.proof_of_death, view, &message));
            return out.extend(answer.map(ManagerEffect::Send));
        }
        let SingletonMessage { kind, from, attempt, .. } = message;
        match kind {
            Kind::HandOverToMe if self.may_claim(&from) => self.on_hand_over_to_me(from, attempt, out),
            Kind::HandOverToMe => {}
            Kind::TakeOverFromMe => self.on_take_over_from_me(from, out),
            Kind::HandOverInProgress => {
                if self.asked.get(&from) == Some(&attempt) {
                    self.in_progress.insert(from);
                }
            }
            Kind::HandOverDone => {
                if self.state == ManagerState::BecomingOldest && self.asked.get(&from) == Some(&attempt) {
                    self.in_progress.remove(&from);
                    self.cleared.insert(from);
                }
            }
        }
    }

    /// The answer to a claim on an older process at this node's address that cannot run an instance any more. A node
    /// without a manager of this singleton gives the same answer. Source: cluster P3.
    pub fn answer_for_predecessor(
        proof_of_death: ProofOfDeath,
        view: &MembershipView,
        message: &SingletonMessage,
    ) -> Option<SingletonMessage> {
        let SingletonMessage { kind, from, to, attempt } = message;
        let is_claim = *kind == Kind::HandOverToMe && *to != view.self_address && replaced(proof_of_death, view, to);
        let done =
            || SingletonMessage { kind: Kind::HandOverDone, from: to.clone(), to: from.clone(), attempt: *attempt };
        is_claim.then(done)
    }

    /// Whether to answer a claim: not that of a process that could not start anyway, by this node's view, which catches
    /// up.
    fn may_claim(&self, claimant: &UniqueAddress) -> bool {
        let member = self.view.as_ref().and_then(|view| view.member(claimant));
        member.is_some_and(|member| member.status < MemberStatus::Exiting)
    }

    fn on_hand_over_to_me(&mut self, from: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        match self.state {
            ManagerState::Start | ManagerState::Younger | ManagerState::BecomingOldest | ManagerState::End => {
                self.answer_cleared(from, attempt, out);
            }
            // Hand nothing over while the whole cluster shuts down (cluster M30).
            ManagerState::AcquiringLease | ManagerState::Oldest | ManagerState::WasOldest
                if self.prepares_shutdown() => {}
            ManagerState::AcquiringLease | ManagerState::Oldest | ManagerState::WasOldest => {
                self.begin_hand_over(from, attempt, out);
            }
            ManagerState::HandingOver | ManagerState::Stopping => self.claim_while_ending(from, attempt, out),
        }
    }

    fn on_take_over_from_me(&mut self, from: UniqueAddress, out: &mut Vec<ManagerEffect>) {
        if self.gone.contains_key(&from) {
            return;
        }
        match self.state {
            ManagerState::Start | ManagerState::Younger | ManagerState::BecomingOldest => {
                self.cleared.remove(&from);
                self.asked.remove(&from);
                self.noted.insert(from);
            }
            ManagerState::AcquiringLease => {
                // Ask the offering node again: it may still run the instance, and none starts here before it has
                // answered.
                self.cleared.remove(&from);
                self.asked.remove(&from);
                self.noted.insert(from);
            }
            ManagerState::Oldest => {
                self.asked.remove(&from);
                self.ask(&from, out);
            }
            ManagerState::WasOldest | ManagerState::HandingOver | ManagerState::Stopping | ManagerState::End => {}
        }
    }

    fn tell_exiting_done(&mut self, out: &mut Vec<ManagerEffect>) {
        let ended = || !self.running && self.lease.as_ref().is_none_or(SingletonLease::is_free);
        let idle = match self.state {
            ManagerState::Start | ManagerState::Younger | ManagerState::BecomingOldest | ManagerState::End => true,
            _ => ended() || self.prepares_shutdown(),
        };
        if self.exiting_phase && idle && !self.exiting_told {
            self.exiting_told = true;
            out.push(ManagerEffect::ExitingDone);
        }
    }
}

/// Whether `older` ran at the address of this node, and is gone: its death was proven, or this node runs on its host. A
/// name that came here from another host proves nothing about the process that had it. Source: cluster P3, P3a.
fn replaced(proof_of_death: ProofOfDeath, view: &MembershipView, older: &UniqueAddress) -> bool {
    if older.address() != view.self_address.address() {
        return false;
    }
    let own = view.self_member().and_then(|own| own.host_id.as_deref());
    let by_host = |host: Option<&Arc<str>>| proof_of_death.replacers(host).include(own);
    match (view.tombstones.get(older), view.member(older)) {
        (Some(tombstone), _) => tombstone.dead || by_host(tombstone.host_id.as_ref()),
        (None, Some(member)) => member.dead || by_host(member.host_id.as_ref()),
        (None, None) => by_host(None),
    }
}

#[cfg(test)]
mod tests;
