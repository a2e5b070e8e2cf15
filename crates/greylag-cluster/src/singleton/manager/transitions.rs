//! Transitions by the state as a whole: by the oldest member, the settled nodes, the lease, and deadlines.
//!
//! Source: the table of cluster P4; P5.

use std::time::Instant;

use greylag_core::UniqueAddress;

use super::{ManagerEffect, ManagerState, SingletonManager};
use crate::member::{Member, MemberStatus};
use crate::singleton::Kind;
use crate::singleton::lease::SingletonLease;

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

    pub(super) fn step_start(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        let is_up = self.list.contains_key(&self.node);
        if !is_up || self.self_status().is_none_or(|status| status >= MemberStatus::Leaving) {
            return;
        }
        if self.is_oldest() {
            self.begin_clearance(now, out);
        } else {
            self.become_younger();
        }
    }

    pub(super) fn become_younger(&mut self) {
        self.state = ManagerState::Younger;
        self.retry_at = None;
        let oldest = self.oldest().filter(|oldest| **oldest != self.node).cloned();
        if let Some(latest) = &mut self.latest_only {
            latest.clone_from(&oldest);
        }
        self.noted.extend(oldest);
    }

    pub(super) fn step_younger(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.is_oldest() && !self.exiting_phase {
            self.begin_clearance(now, out);
        } else {
            self.become_younger();
        }
    }

    pub(super) fn begin_clearance(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        let unsettled = self.unsettled();
        self.state = ManagerState::BecomingOldest;
        self.asked.clear();
        self.cleared.clear();
        self.in_progress.clear();
        self.retries = 0;
        self.retry_at = Some(now + self.retry_interval);
        for peer in &unsettled {
            self.ask(peer, out);
        }
        self.noted.extend(unsettled);
        self.start_if_cleared(out);
    }

    pub(super) fn start_if_cleared(&mut self, out: &mut Vec<ManagerEffect>) {
        if !self.is_oldest() || !self.may_start() || !self.unsettled().is_empty() {
            return;
        }
        self.retry_at = None;
        match &mut self.lease {
            Some(lease) => {
                self.state = ManagerState::AcquiringLease;
                lease.want(out);
            }
            None => self.start_instance(out),
        }
    }

    fn start_instance(&mut self, out: &mut Vec<ManagerEffect>) {
        let up_number = self.list.get(&self.node).map_or(Member::NOT_UP, |own| own.up_number);
        self.state = ManagerState::Oldest;
        self.retry_at = None;
        self.noted.clear();
        self.running = true;
        self.lease_lost = false;
        self.ended_by_itself = false;
        out.push(ManagerEffect::StartInstance { up_number });
    }

    /// Handles the state in which all nodes are settled and only the lease is missing. Source: cluster P4.
    fn step_acquiring_lease(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.self_exits() {
            self.give_lease_back(out);
            self.state = ManagerState::End;
        } else if !self.is_oldest() {
            self.give_lease_back(out);
            self.step_oldest(now, out);
        } else if !self.unsettled().is_empty() {
            // A predecessor appeared while this node waited for the lease.
            self.give_lease_back(out);
            self.begin_clearance(now, out);
        } else if self.may_start() && self.holds_lease() {
            self.start_instance(out);
        }
    }

    pub(super) fn give_lease_back(&mut self, out: &mut Vec<ManagerEffect>) {
        if let Some(lease) = &mut self.lease {
            lease.give_back(out);
        }
    }

    fn holds_lease(&self) -> bool {
        self.lease.as_ref().is_none_or(SingletonLease::is_held)
    }

    /// Hands over once the instance has ended and its lease is released: a claimant that was told before would be
    /// denied the lease, and try again only much later.
    fn step_ending(&mut self, out: &mut Vec<ManagerEffect>) {
        if self.running {
            return;
        }
        self.give_lease_back(out);
        if self.lease.as_ref().is_none_or(SingletonLease::is_free) {
            self.finish_hand_over(out);
        }
    }

    pub(super) fn step_becoming_oldest(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.downed || self.self_exits() {
            self.state = ManagerState::End;
            self.retry_at = None;
            return;
        }
        if !self.is_oldest() {
            let unsettled = self.unsettled();
            self.noted.extend(unsettled);
            return self.become_younger();
        }
        self.start_if_cleared(out);
        if self.state != ManagerState::BecomingOldest {
            return;
        }
        let unsettled = self.unsettled();
        let due = self.retry_at.is_some_and(|at| at <= now);
        let all_busy = unsettled.iter().all(|peer| self.in_progress.contains(peer));
        if due {
            self.retry_at = Some(now + self.retry_interval);
            self.retries += u32::from(!all_busy);
        }
        if self.retries > self.hand_over_retries {
            out.push(ManagerEffect::Stuck);
            self.noted.extend(unsettled);
            self.rebuild_list();
            return if self.is_oldest() { self.begin_clearance(now, out) } else { self.become_younger() };
        }
        for peer in unsettled {
            if due || !self.asked.contains_key(&peer) {
                self.ask(&peer, out);
            }
        }
    }

    pub(super) fn step_oldest(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.is_oldest() || (self.prepares_shutdown() && !self.exiting_phase) {
            return;
        }
        if self.prepares_shutdown() {
            // No node starts an instance any more, so there is no node to hand over to (cluster M30).
            return self.become_stopping(out);
        }
        if self.oldest().is_some_and(|oldest| self.margins.contains_key(oldest)) {
            // Hand over at once: the oldest was removed already and will never ask; the next oldest will.
            self.state = ManagerState::HandingOver;
            return self.stop_instance(out);
        }
        self.state = ManagerState::WasOldest;
        self.retries = 0;
        self.offered = None;
        self.step_was_oldest(now, out);
    }

    /// The next oldest that still serves: the node to ask to take over.
    pub(super) fn successor(&self) -> Option<UniqueAddress> {
        let view = self.view.as_ref()?;
        let serves = |member: &&Member| view.member(&member.address).is_some_and(|m| m.status.is_settled());
        let others = self.list.values().filter(|member| member.address != self.node).filter(serves);
        others.min_by(|a, b| a.age_order(b)).map(|member| member.address.clone())
    }

    pub(super) fn step_was_oldest(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.is_oldest() {
            self.retry_at = None;
            self.state = ManagerState::Oldest;
            if !self.running && !self.ended_by_itself {
                self.reacquire(out);
            }
            return;
        }
        let Some(oldest) = self.successor() else {
            // Wait: the next change of the membership brings a successor, or makes this node the oldest again.
            self.retry_at = None;
            if self.self_exits() {
                self.become_stopping(out);
            }
            return;
        };
        let fresh = self.offered.as_ref() != Some(&oldest);
        if fresh {
            self.retries = 0;
        }
        if !fresh && self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.offered = Some(oldest.clone());
        self.retry_at = Some(now + self.retry_interval);
        self.retries += 1;
        if self.retries > self.take_over_retries {
            if self.self_exits() {
                return self.become_stopping(out);
            }
            self.retries = 0;
            out.push(ManagerEffect::Stuck);
        }
        self.send(Kind::TakeOverFromMe, oldest, 0, out);
    }

    pub(super) fn become_stopping(&mut self, out: &mut Vec<ManagerEffect>) {
        self.retry_at = None;
        self.state = ManagerState::Stopping;
        self.stop_instance(out);
    }

    pub(super) fn stop_instance(&mut self, out: &mut Vec<ManagerEffect>) {
        if self.running && !self.stopping {
            self.stopping = true;
            out.push(ManagerEffect::StopInstance);
        }
    }

    pub(super) fn begin_hand_over(&mut self, claimant: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        self.state = ManagerState::HandingOver;
        self.retry_at = None;
        self.claimants.clear();
        self.claim_while_ending(claimant, attempt, out);
        self.stop_instance(out);
    }

    pub(super) fn claim_while_ending(&mut self, claimant: UniqueAddress, attempt: u64, out: &mut Vec<ManagerEffect>) {
        self.claimants.insert(claimant.clone(), attempt);
        self.send(Kind::HandOverInProgress, claimant, attempt, out);
    }

    pub(super) fn finish_hand_over(&mut self, out: &mut Vec<ManagerEffect>) {
        for (claimant, attempt) in std::mem::take(&mut self.claimants) {
            self.answer_cleared(claimant, attempt, out);
        }
        let leaves = self.exiting_phase || self.self_status().is_none_or(|status| status >= MemberStatus::Leaving);
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
        if let Some(lease) = &mut self.lease {
            lease.renew(out);
        }
    }
}
