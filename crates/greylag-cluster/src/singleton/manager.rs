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

mod clearance;
mod instance;
mod retries;
mod roster;
pub(crate) mod signals;
mod transitions;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::{Kind, SingletonMessage};
use crate::membership::member::MemberStatus;
use crate::membership::view::MembershipView;
use crate::settings::{ClusterSettings, ProofOfDeath, SingletonSettings};
use crate::testing::omissions::Clause;

use clearance::Clearance;
use instance::Instance;
use retries::Retries;
use roster::{Roster, replaced};
use signals::{ManagerEffect, ManagerInput, ManagerState};

/// Manages one singleton on one node.
#[derive(Debug)]
pub struct SingletonManager {
    node: UniqueAddress,
    state: ManagerState,
    roster: Roster,
    clearance: Clearance,
    instance: Instance,
    retries: Retries,
    /// Nodes that wait for our instance to end, with the request to answer.
    claimants: BTreeMap<UniqueAddress, u64>,
    /// The node that this node's instance was last offered to.
    offered: Option<UniqueAddress>,
    hold_after_pause: Duration,
    hold_until: Option<Instant>,
    exiting_phase: bool,
    exiting_told: bool,
    downed: bool,
}

impl SingletonManager {
    /// A manager that has seen nothing of the cluster.
    pub fn new(node: UniqueAddress, settings: &SingletonSettings, cluster: &ClusterSettings) -> Self {
        let mut margin = settings.removal_margin.unwrap_or_else(|| cluster.removal_margin());
        if cluster.omissions.has(Clause::Margin) {
            margin = Duration::ZERO;
        }
        let least_retries = settings.min_number_of_hand_over_retries;
        Self {
            state: ManagerState::Start,
            roster: Roster::new(node.clone(), settings.role.clone(), margin, cluster.proof_of_death),
            clearance: Clearance::new(cluster.omissions),
            instance: Instance::new(settings.use_lease.then_some(settings.lease_retry_interval)),
            retries: Retries::new(settings.hand_over_retry_interval, least_retries, margin),
            claimants: BTreeMap::new(),
            offered: None,
            hold_after_pause: 3 * cluster.failure_detector.heartbeat_interval,
            hold_until: None,
            exiting_phase: false,
            exiting_told: false,
            downed: false,
            node,
        }
    }

    /// The state of the manager.
    pub fn state(&self) -> ManagerState {
        self.state
    }

    /// Whether an instance handles messages here under a held lease, as far as this machine knows.
    pub(crate) fn rests_on_lease(&self) -> bool {
        self.instance.rests_on_lease()
    }

    /// Whether the instance exists on this node.
    pub fn is_running(&self) -> bool {
        self.instance.is_running()
    }

    /// Handles one input. An input that makes no sense in the present state is ignored.
    pub fn handle(&mut self, now: Instant, input: ManagerInput, out: &mut Vec<ManagerEffect>) {
        self.hold_until = self.hold_until.filter(|until| now < *until);
        match input {
            ManagerInput::View(view) => {
                let settled = self.roster.on_view(now, view, self.exiting_phase);
                self.clearance.on_removed(&settled);
            }
            ManagerInput::Message(message) => self.on_message(message, out),
            ManagerInput::InstanceEnded => self.on_instance_ended(out),
            ManagerInput::ExitingPhase => {
                self.exiting_phase = true;
                self.roster.on_exiting_phase();
            }
            ManagerInput::SelfDowned => self.on_self_downed(out),
            ManagerInput::LocalPause => self.hold_until = Some(now + self.hold_after_pause),
            ManagerInput::LeaseResult(outcome) => self.instance.on_lease_outcome(now, outcome, out),
            ManagerInput::LeaseReleased => self.instance.on_lease_released(out),
            ManagerInput::LeaseLost => self.on_lease_lost(out),
            ManagerInput::Tick => {}
        }
        self.instance.on_tick(now, out);
        let settled = self.roster.end_margins(now);
        self.clearance.on_removed(&settled);
        self.judge(now, out);
        self.tell_exiting_done(out);
        self.check_invariants();
    }

    /// Source: cluster P3 to P6.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let (state, instance) = (self.state, &self.instance);
        let is_ending = matches!(state, ManagerState::HandingOver | ManagerState::Stopping);
        let may_run = is_ending || matches!(state, ManagerState::Oldest | ManagerState::WasOldest);
        assert!(may_run || !instance.is_running(), "an instance runs in {state:?}");
        assert!(self.claimants.is_empty() || is_ending, "a claimant waits in {state:?}");
        assert!(
            !is_ending || !instance.is_over(),
            "{state:?} is over once the instance has ended and the lease is free"
        );
        assert!(
            !is_ending || !instance.is_running() || instance.is_stopping(),
            "{state:?}: the instance was told to end"
        );
        let is_idle = state == ManagerState::Oldest && !instance.is_running();
        assert!(!is_idle || instance.has_ended_by_itself(), "the oldest runs the instance, or it has ended by itself");
        let has_successor = state == ManagerState::WasOldest && self.roster.successor().is_some();
        let waits = state == ManagerState::BecomingOldest || has_successor;
        assert!(!waits || self.retries.next_deadline().is_some(), "{state:?}: requests are repeated");
        assert!(!self.exiting_told || self.exiting_phase, "the end of the exit is told once it has begun");
        assert!(!self.downed || !may_run || is_ending, "a Down node ends its instance");
        instance.check_invariants();
        self.clearance.check_invariants();
        self.roster.check_invariants();
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let waits = matches!(self.state, ManagerState::BecomingOldest | ManagerState::AcquiringLease);
        let hold = self.hold_until.filter(|_| waits);
        let (retry, margin, lease) =
            (self.retries.next_deadline(), self.roster.next_deadline(), self.instance.next_deadline());
        [retry, margin, hold, lease].into_iter().flatten().min()
    }

    // --- inputs ---------------------------------------------------------------------------------

    fn on_instance_ended(&mut self, out: &mut Vec<ManagerEffect>) {
        self.instance.on_ended();
        match self.state {
            ManagerState::Oldest if self.instance.lost_lease() => self.reacquire(out),
            // Release the lease: it is of no use until this node is the oldest again.
            ManagerState::WasOldest if self.instance.lost_lease() => self.instance.give_lease_back(out),
            _ => {}
        }
    }

    /// Silences and stops the instance that relies on the lease. The lease is released only after the instance has
    /// ended.
    fn on_lease_lost(&mut self, out: &mut Vec<ManagerEffect>) {
        self.instance.on_lease_lost(out);
        match self.state {
            ManagerState::Oldest | ManagerState::WasOldest if self.instance.is_running() => {
                self.instance.stop_without_lease(out);
            }
            ManagerState::AcquiringLease if self.instance.holds_lease() => self.instance.renew_lease(out),
            ManagerState::Oldest | ManagerState::WasOldest => self.instance.give_lease_back(out),
            // Nothing to do: the instance is ending already, or none runs.
            _ => {}
        }
    }

    fn on_self_downed(&mut self, out: &mut Vec<ManagerEffect>) {
        self.downed = true;
        self.instance.close_mailbox(out);
        match self.state {
            ManagerState::Oldest | ManagerState::WasOldest => self.become_stopping(out),
            ManagerState::HandingOver | ManagerState::Stopping => {}
            _ => {
                self.instance.give_lease_back(out);
                self.retries.stop();
                self.state = ManagerState::End;
            }
        }
    }

    fn on_message(&mut self, message: SingletonMessage, out: &mut Vec<ManagerEffect>) {
        if message.to != self.node {
            let policy = self.roster.proof_of_death();
            let answer = self.roster.view().and_then(|view| Self::answer_for_predecessor(policy, view, &message));
            return out.extend(answer.map(ManagerEffect::Send));
        }
        let SingletonMessage { kind, from, attempt, .. } = message;
        match kind {
            Kind::HandOverToMe if self.roster.may_claim(&from) => self.on_hand_over_to_me(from, attempt, out),
            Kind::HandOverToMe => {}
            Kind::TakeOverFromMe => self.on_take_over_from_me(from, out),
            Kind::HandOverInProgress => self.clearance.on_in_progress(from, attempt),
            Kind::HandOverDone if self.state == ManagerState::BecomingOldest => self.clearance.on_done(from, attempt),
            Kind::HandOverDone => {}
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

    fn on_hand_over_to_me(&mut self, from: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        match self.state {
            ManagerState::Start | ManagerState::Younger | ManagerState::BecomingOldest | ManagerState::End => {
                self.answer_cleared(from, attempt, out);
            }
            // Hand nothing over while the whole cluster shuts down (cluster M30).
            ManagerState::AcquiringLease | ManagerState::Oldest | ManagerState::WasOldest
                if self.roster.prepares_shutdown() => {}
            ManagerState::AcquiringLease | ManagerState::Oldest | ManagerState::WasOldest => {
                self.begin_hand_over(from, attempt, out);
            }
            ManagerState::HandingOver | ManagerState::Stopping => self.claim_while_ending(from, attempt, out),
        }
    }

    fn on_take_over_from_me(&mut self, from: UniqueAddress, out: &mut Vec<ManagerEffect>) {
        if self.roster.is_gone(&from) {
            return;
        }
        match self.state {
            // While this node acquires the lease, too, it asks the offering node again: that node may still run the
            // instance, and none starts here before it has answered.
            ManagerState::Start
            | ManagerState::Younger
            | ManagerState::BecomingOldest
            | ManagerState::AcquiringLease => self.clearance.on_may_start(from),
            ManagerState::Oldest => {
                let attempt = self.clearance.ask_anew(&from);
                self.send(Kind::HandOverToMe, from, attempt, out);
            }
            ManagerState::WasOldest | ManagerState::HandingOver | ManagerState::Stopping | ManagerState::End => {}
        }
    }

    fn tell_exiting_done(&mut self, out: &mut Vec<ManagerEffect>) {
        let idle = match self.state {
            ManagerState::Start | ManagerState::Younger | ManagerState::BecomingOldest | ManagerState::End => true,
            _ => self.instance.is_over() || self.roster.prepares_shutdown(),
        };
        if self.exiting_phase && idle && !self.exiting_told {
            self.exiting_told = true;
            out.push(ManagerEffect::ExitingDone);
        }
    }

    /// Whether this node is seen Exiting or further, or hands over already.
    fn self_exits(&self) -> bool {
        self.exiting_phase || self.roster.self_is_at_least(MemberStatus::Exiting)
    }

    /// Whether an instance may start here. A node that leaves starts none either: of the last members that leave
    /// together during the preparation of a full shutdown, no status tells of the preparation any more. Source: cluster
    /// P4, P5, F9, M30.
    fn may_start(&self) -> bool {
        let held = self.roster.is_suspect() || self.hold_until.is_some();
        let leaves = self.roster.self_is_at_least(MemberStatus::Leaving);
        !held && !leaves && !self.roster.prepares_shutdown() && !self.downed && !self.self_exits()
    }

    /// All nodes that may have run the instance and are not settled.
    fn unsettled(&self) -> BTreeSet<UniqueAddress> {
        self.clearance.unsettled(&self.roster, self.state == ManagerState::Start)
    }

    fn ask(&mut self, peer: &UniqueAddress, out: &mut Vec<ManagerEffect>) {
        let attempt = self.clearance.ask(peer);
        self.send(Kind::HandOverToMe, peer.clone(), attempt, out);
    }

    /// Answers that no instance runs here. From now on the claimant must clear this node, and its earlier answers, and
    /// requests to it under way, are void.
    fn answer_cleared(&mut self, claimant: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        self.send(Kind::HandOverDone, claimant.clone(), attempt, out);
        self.clearance.on_may_start(claimant);
    }

    fn send(&self, kind: Kind, to: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        out.push(ManagerEffect::Send(SingletonMessage { kind, from: self.node.clone(), to, attempt }));
    }
}

#[cfg(test)]
mod tests;
