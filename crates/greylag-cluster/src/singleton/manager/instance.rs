//! The instance on this node, and the lease that it relies on.
//!
//! Source: cluster P4, P5.

use std::time::{Duration, Instant};

use super::signals::ManagerEffect;
use crate::membership::member::Member;
use crate::singleton::lease::SingletonLease;
use crate::singleton::lease_outcome::LeaseOutcome;

/// The instance, running or not.
#[derive(Debug)]
pub(super) struct Instance {
    running: bool,
    stopping: bool,
    silenced: bool,
    /// Whether the present instance has ended without being told to: then it is not started anew here.
    ended_by_itself: bool,
    /// `None` if no lease is used.
    lease: Option<SingletonLease>,
    /// Whether the instance ends, or has ended, only because the lease was lost.
    lease_lost: bool,
}

impl Instance {
    /// No instance yet. `lease_retry`: the time between two requests for the lease, if one is used.
    pub(super) fn new(lease_retry: Option<Duration>) -> Self {
        Self {
            running: false,
            stopping: false,
            silenced: false,
            ended_by_itself: false,
            lease: lease_retry.map(SingletonLease::new),
            lease_lost: false,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running
    }

    /// Whether an instance handles messages here under a held lease.
    pub(super) fn rests_on_lease(&self) -> bool {
        self.running && !self.silenced && self.lease.as_ref().is_some_and(SingletonLease::is_held)
    }

    /// Whether no instance runs, and the lease is free.
    pub(super) fn is_over(&self) -> bool {
        !self.running && self.lease.as_ref().is_none_or(SingletonLease::is_free)
    }

    /// Whether the present instance has ended without being told to.
    pub(super) fn has_ended_by_itself(&self) -> bool {
        self.ended_by_itself
    }

    /// Whether the instance ends, or has ended, only because the lease was lost.
    pub(super) fn lost_lease(&self) -> bool {
        self.lease_lost
    }

    /// When the lease is next requested.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.lease.as_ref().and_then(SingletonLease::next_deadline)
    }

    /// Starts the instance; its age is that of this node's member, if it is one.
    pub(super) fn start(&mut self, own: Option<&Member>, out: &mut Vec<ManagerEffect>) {
        self.running = true;
        self.lease_lost = false;
        self.ended_by_itself = false;
        out.push(ManagerEffect::StartInstance { up_number: own.map_or(Member::NOT_UP, |own| own.up_number) });
    }

    /// Tells a running instance to end, once.
    pub(super) fn stop(&mut self, out: &mut Vec<ManagerEffect>) {
        if self.running && !self.stopping {
            self.stopping = true;
            out.push(ManagerEffect::StopInstance);
        }
    }

    /// Hands no message to a running instance any more.
    pub(super) fn close_mailbox(&mut self, out: &mut Vec<ManagerEffect>) {
        if self.running && !self.silenced {
            self.silenced = true;
            out.push(ManagerEffect::CloseMailbox);
        }
    }

    /// Notes that the instance has ended, asked or not.
    pub(super) fn on_ended(&mut self) {
        self.running = false;
        self.silenced = false;
        self.ended_by_itself = !std::mem::take(&mut self.stopping);
    }

    /// Forgets how the last instance ended: this node is not the oldest any more, and starts an instance when it is the
    /// oldest anew.
    pub(super) fn end_tenure(&mut self) {
        self.ended_by_itself = false;
    }

    // --- the lease ------------------------------------------------------------------------------

    pub(super) fn uses_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Whether the lease is held; true also if none is used, since then no lease keeps the instance from starting.
    pub(super) fn holds_lease(&self) -> bool {
        self.lease.as_ref().is_none_or(SingletonLease::is_held)
    }

    /// Requests the lease until it is granted.
    pub(super) fn want_lease(&mut self, out: &mut Vec<ManagerEffect>) {
        self.with_lease(|lease| lease.want(out));
    }

    /// Releases a lost lease and requests it anew.
    pub(super) fn renew_lease(&mut self, out: &mut Vec<ManagerEffect>) {
        self.with_lease(|lease| lease.renew(out));
    }

    /// Releases the lease, at once or as soon as the request under way has ended.
    pub(super) fn give_lease_back(&mut self, out: &mut Vec<ManagerEffect>) {
        self.with_lease(|lease| lease.give_back(out));
    }

    pub(super) fn on_lease_outcome(&mut self, now: Instant, outcome: LeaseOutcome, out: &mut Vec<ManagerEffect>) {
        self.with_lease(|lease| lease.on_outcome(now, outcome, out));
    }

    pub(super) fn on_lease_released(&mut self, out: &mut Vec<ManagerEffect>) {
        self.with_lease(|lease| lease.on_released(out));
    }

    /// Silences the instance that relies on the lease, which is lost.
    pub(super) fn on_lease_lost(&mut self, out: &mut Vec<ManagerEffect>) {
        self.close_mailbox(out);
        self.with_lease(SingletonLease::on_lost);
    }

    /// Tells the instance to end because the lease was lost.
    pub(super) fn stop_without_lease(&mut self, out: &mut Vec<ManagerEffect>) {
        self.lease_lost = true;
        self.stop(out);
    }

    /// Requests the lease, if that is due.
    pub(super) fn on_tick(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        self.with_lease(|lease| lease.on_tick(now, out));
    }

    /// Source: cluster P4, P5.
    pub(super) fn check_invariants(&self) {
        debug_assert!(self.running || (!self.stopping && !self.silenced), "only an instance is told to end");
        debug_assert!(!(self.running && self.lease_lost) || self.stopping, "an instance without its lease ends");
        if let Some(lease) = &self.lease {
            lease.check_invariants();
            let hears = self.running && !self.silenced;
            debug_assert!(!hears || lease.is_safely_held(), "an instance without its lease handles no message");
        }
    }

    /// Whether the instance was told to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn with_lease(&mut self, f: impl FnOnce(&mut SingletonLease)) {
        if let Some(lease) = &mut self.lease {
            f(lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_was_told_to_end_has_not_ended_by_itself() {
        let (mut instance, mut out) = (Instance::new(None), Vec::new());
        instance.stop(&mut out);
        instance.close_mailbox(&mut out);
        assert!(out.is_empty(), "none runs");
        for told in [true, false] {
            out.clear();
            instance.start(None, &mut out);
            if told {
                instance.stop(&mut out);
                instance.stop(&mut out);
            }
            assert_eq!(out.len(), 1 + usize::from(told));
            assert!(!instance.is_over());
            instance.on_ended();
            assert!(instance.is_over() && instance.has_ended_by_itself() != told);
        }
    }
}
