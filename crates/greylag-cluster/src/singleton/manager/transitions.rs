//! Transitions by the state as a whole: by the oldest member, the settled nodes, the lease, and deadlines.
//!
//! Source: the table of cluster P4; P5.

use std::time::Instant;

use greylag_core::UniqueAddress;

use super::SingletonManager;
use super::signals::{ManagerEffect, ManagerState};
use crate::membership::member::MemberStatus;
use crate::singleton::Kind;

impl SingletonManager {
    /// Applies, after every input, the transitions that follow from the state as a whole: the oldest member, the
    /// settled nodes, and deadlines.
    pub(super) fn judge(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        loop {
            let before = self.state;
            match self.state {
                ManagerState::Start => self.step_start(now, out),
                ManagerState::Younger => self.step_younger(now, out),
                ManagerState::BecomingOldest => self.step_becoming_oldest(now, out),
                ManagerState::AcquiringLease => self.step_acquiring_lease(now, out),
                ManagerState::Oldest => self.step_oldest(now, out),
                ManagerState::WasOldest => self.step_was_oldest(now, out),
                ManagerState::HandingOver | ManagerState::Stopping => self.step_ending(out),
                ManagerState::End => {}
            }
            if self.state == before {
                return;
            }
        }
    }

    fn step_start(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        let is_up = self.roster.own().is_some();
        if !is_up || self.roster.self_is_at_least(MemberStatus::Leaving) {
            return;
        }
        if self.roster.is_oldest() {
            self.begin_clearance(now, out);
        } else {
            self.become_younger();
        }
    }

    fn become_younger(&mut self) {
        self.state = ManagerState::Younger;
        self.instance.end_tenure();
        self.retries.stop();
        self.clearance.on_oldest(self.roster.other_oldest());
    }

    fn step_younger(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.roster.is_oldest() && !self.exiting_phase {
            self.begin_clearance(now, out);
        } else {
            self.become_younger();
        }
    }

    fn begin_clearance(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        let unsettled = self.unsettled();
        self.state = ManagerState::BecomingOldest;
        self.clearance.begin();
        self.retries.begin(now);
        for peer in &unsettled {
            self.ask(peer, out);
        }
        self.clearance.note(unsettled);
        self.start_if_cleared(out);
    }

    fn start_if_cleared(&mut self, out: &mut Vec<ManagerEffect>) {
        if !self.roster.is_oldest() || !self.may_start() || !self.unsettled().is_empty() {
            return;
        }
        self.retries.stop();
        if self.instance.uses_lease() {
            self.state = ManagerState::AcquiringLease;
            self.instance.want_lease(out);
        } else {
            self.start_instance(out);
        }
    }

    fn start_instance(&mut self, out: &mut Vec<ManagerEffect>) {
        self.state = ManagerState::Oldest;
        self.retries.stop();
        self.clearance.on_started();
        self.instance.start(self.roster.own(), out);
    }

    /// Handles the state in which all nodes are settled and only the lease is missing. Source: cluster P4.
    fn step_acquiring_lease(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.self_exits() {
            self.instance.give_lease_back(out);
            self.state = ManagerState::End;
        } else if !self.roster.is_oldest() {
            self.instance.give_lease_back(out);
            self.step_oldest(now, out);
        } else if !self.unsettled().is_empty() {
            // A predecessor appeared while this node waited for the lease.
            self.instance.give_lease_back(out);
            self.begin_clearance(now, out);
        } else if self.may_start() && self.instance.holds_lease() {
            self.start_instance(out);
        }
    }

    /// Hands over once the instance has ended and its lease is released: a claimant that was told before would be
    /// denied the lease, and try again only much later.
    fn step_ending(&mut self, out: &mut Vec<ManagerEffect>) {
        if self.instance.is_running() {
            return;
        }
        self.instance.give_lease_back(out);
        if self.instance.is_over() {
            self.finish_hand_over(out);
        }
    }

    fn step_becoming_oldest(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.downed || self.self_exits() {
            self.state = ManagerState::End;
            self.retries.stop();
            return;
        }
        if !self.roster.is_oldest() {
            let unsettled = self.unsettled();
            self.clearance.note(unsettled);
            return self.become_younger();
        }
        self.start_if_cleared(out);
        if self.state != ManagerState::BecomingOldest {
            return;
        }
        let unsettled = self.unsettled();
        let due = self.retries.is_due(now);
        if due {
            self.retries.on_repeated(now, self.clearance.all_in_progress(&unsettled));
        }
        if self.retries.is_claim_stuck() {
            out.push(ManagerEffect::Stuck);
            self.clearance.note(unsettled);
            self.roster.rebuild();
            return if self.roster.is_oldest() { self.begin_clearance(now, out) } else { self.become_younger() };
        }
        for peer in unsettled {
            if due || !self.clearance.has_asked(&peer) {
                self.ask(&peer, out);
            }
        }
    }

    fn step_oldest(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.roster.is_oldest() || (self.roster.prepares_shutdown() && !self.exiting_phase) {
            return;
        }
        if self.roster.prepares_shutdown() {
            // No node starts an instance any more, so there is no node to hand over to (cluster M30).
            return self.become_stopping(out);
        }
        if self.roster.is_oldest_removed() {
            // Hand over at once: the oldest was removed already and will never ask; the next oldest will.
            self.state = ManagerState::HandingOver;
            return self.instance.stop(out);
        }
        self.state = ManagerState::WasOldest;
        self.retries.reset();
        self.offered = None;
        self.step_was_oldest(now, out);
    }

    fn step_was_oldest(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.roster.is_oldest() {
            self.retries.stop();
            self.state = ManagerState::Oldest;
            if !self.instance.is_running() && !self.instance.has_ended_by_itself() {
                self.reacquire(out);
            }
            return;
        }
        let Some(oldest) = self.roster.successor() else {
            // Wait: the next change of the membership brings a successor, or makes this node the oldest again.
            self.retries.stop();
            if self.self_exits() {
                self.become_stopping(out);
            }
            return;
        };
        let fresh = self.offered.as_ref() != Some(&oldest);
        if fresh {
            self.retries.reset();
        } else if self.retries.waits(now) {
            return;
        }
        self.offered = Some(oldest.clone());
        if self.retries.on_offered(now) {
            if self.self_exits() {
                return self.become_stopping(out);
            }
            self.retries.reset();
            out.push(ManagerEffect::Stuck);
        }
        self.send(Kind::TakeOverFromMe, oldest, 0, out);
    }

    pub(super) fn become_stopping(&mut self, out: &mut Vec<ManagerEffect>) {
        self.retries.stop();
        self.state = ManagerState::Stopping;
        self.instance.stop(out);
    }

    pub(super) fn begin_hand_over(&mut self, claimant: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        self.state = ManagerState::HandingOver;
        self.retries.stop();
        self.claimants.clear();
        self.claim_while_ending(claimant, attempt, out);
        self.instance.stop(out);
    }

    pub(super) fn claim_while_ending(&mut self, claimant: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        self.claimants.insert(claimant.clone(), attempt);
        self.send(Kind::HandOverInProgress, claimant, attempt, out);
    }

    fn finish_hand_over(&mut self, out: &mut Vec<ManagerEffect>) {
        for (claimant, attempt) in std::mem::take(&mut self.claimants) {
            self.answer_cleared(claimant, attempt, out);
        }
        let leaves = self.exiting_phase || self.roster.self_is_at_least(MemberStatus::Leaving);
        if leaves || self.downed || self.state == ManagerState::Stopping {
            self.state = ManagerState::End;
        } else {
            self.become_younger();
        }
    }

    /// Requests the lease anew if no instance runs only because the lease was lost or never granted: an instance starts
    /// when the lease is held.
    pub(super) fn reacquire(&mut self, out: &mut Vec<ManagerEffect>) {
        self.state = ManagerState::AcquiringLease;
        self.instance.renew_lease(out);
    }
}
