//! The lease of a singleton: requests, keeps and releases it.
//!
//! The manager tells whether it wants the lease. Requests are made one at a time, and a lease that is not wanted any
//! more, or whose outcome is not known, is released. The manager must not release a lease that an instance still relies
//! on. Source: cluster P4 (AcquiringLease), P5.

use std::time::{Duration, Instant};

use super::lease_outcome::LeaseOutcome;
use super::manager::signals::ManagerEffect;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// The last request failed: the lease may be ours.
    Unsure,
    Asking,
    Held,
    Releasing,
}

/// The lease of one singleton on one node.
#[derive(Debug)]
pub(crate) struct SingletonLease {
    retry_interval: Duration,
    state: State,
    wanted: bool,
    /// Whether the lease was lost before this node was told that it was granted.
    lost: bool,
    retry_at: Option<Instant>,
}

impl SingletonLease {
    pub(crate) fn new(retry_interval: Duration) -> Self {
        let retry_interval = retry_interval.max(Duration::from_millis(1));
        Self { retry_interval, state: State::Free, wanted: false, lost: false, retry_at: None }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state == State::Held
    }

    /// Whether the lease is held, and not lost as far as this node was told.
    pub(crate) fn is_safely_held(&self) -> bool {
        self.is_held() && !self.lost
    }

    /// Whether the lease is not held, and no request is under way.
    pub(crate) fn is_free(&self) -> bool {
        self.state == State::Free
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Requests the lease until it is granted.
    pub(crate) fn want(&mut self, out: &mut Vec<ManagerEffect>) {
        self.wanted = true;
        if matches!(self.state, State::Free | State::Unsure) && self.retry_at.is_none() {
            self.ask(out);
        }
    }

    /// Releases the lease, at once or as soon as the request under way has ended.
    pub(crate) fn give_back(&mut self, out: &mut Vec<ManagerEffect>) {
        self.wanted = false;
        self.retry_at = None;
        if matches!(self.state, State::Held | State::Unsure) {
            self.release(out);
        }
    }

    /// Releases a lost lease, so that no trace of it is left, and requests it anew. The instance that it protected has
    /// ended.
    pub(crate) fn renew(&mut self, out: &mut Vec<ManagerEffect>) {
        self.give_back(out);
        self.want(out);
    }

    pub(crate) fn on_outcome(&mut self, now: Instant, outcome: LeaseOutcome, out: &mut Vec<ManagerEffect>) {
        if self.state != State::Asking {
            return;
        }
        self.state = match outcome {
            LeaseOutcome::Granted if !self.lost => State::Held,
            LeaseOutcome::Denied => State::Free,
            LeaseOutcome::Granted | LeaseOutcome::Failed => State::Unsure,
        };
        if !self.wanted {
            self.give_back(out);
        } else if self.state != State::Held {
            self.retry_at = Some(now + self.retry_interval);
        }
    }

    pub(crate) fn on_lost(&mut self) {
        self.lost = true;
    }

    pub(crate) fn on_released(&mut self, out: &mut Vec<ManagerEffect>) {
        if self.state == State::Releasing {
            self.state = State::Free;
            if self.wanted {
                self.want(out);
            }
        }
    }

    pub(crate) fn on_tick(&mut self, now: Instant, out: &mut Vec<ManagerEffect>) {
        if self.retry_at.take_if(|at| *at <= now).is_some() && self.wanted {
            self.ask(out);
        }
    }

    /// Source: cluster P4.
    pub(crate) fn check_invariants(&self) {
        let is_idle = matches!(self.state, State::Free | State::Unsure);
        debug_assert_eq!(self.retry_at.is_some(), self.wanted && is_idle, "a lease that is wanted is asked for again");
        let is_ours = matches!(self.state, State::Unsure | State::Held);
        debug_assert!(self.wanted || !is_ours, "a lease that is not wanted is given back");
    }

    fn ask(&mut self, out: &mut Vec<ManagerEffect>) {
        self.state = State::Asking;
        self.lost = false;
        out.push(ManagerEffect::AcquireLease);
    }

    fn release(&mut self, out: &mut Vec<ManagerEffect>) {
        self.state = State::Releasing;
        out.push(ManagerEffect::ReleaseLease);
    }
}
