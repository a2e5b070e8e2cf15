//! The lease of a singleton: wanted or not, asked for, held, given back.
//!
//! Whoever owns this says what it wants; requests are made one at a time, and one whose outcome is not
//! wanted any more, or not known, is given back. It must not be told to give back what an instance
//! still rests on. Source: cluster P4 (AcquiringLease), P5.

use std::time::{Duration, Instant};

use super::manager::ManagerEffect;

/// What became of a request for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// It is held now.
    Granted,
    /// Somebody else holds it.
    Denied,
    /// Nobody knows; it may have been granted.
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// The last request failed: it may be ours.
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
    /// It was lost before we heard that it was granted.
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

    /// Nothing is held here, and nothing under way.
    pub(crate) fn is_free(&self) -> bool {
        self.state == State::Free
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Asks for it, again and again.
    pub(crate) fn want(&mut self, out: &mut Vec<ManagerEffect>) {
        self.wanted = true;
        if matches!(self.state, State::Free | State::Unsure) && self.retry_at.is_none() {
            self.ask(out);
        }
    }

    /// Gives it back, at once or as soon as what is under way has ended.
    pub(crate) fn give_back(&mut self, out: &mut Vec<ManagerEffect>) {
        self.wanted = false;
        self.retry_at = None;
        if matches!(self.state, State::Held | State::Unsure) {
            self.release(out);
        }
    }

    /// It was lost, and what it protected has ended: given back, so that nothing of it is left, and
    /// asked for anew.
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
