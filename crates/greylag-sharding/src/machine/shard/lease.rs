//! The lease of one shard: requested before the shard starts, held while it serves, released once it has ended.
//!
//! Requests are made one at a time, and repeated until one is granted. A lease whose outcome is unknown counts as
//! granted when the shard ends, so that it is released, and as refused otherwise. A lost lease is not released: another
//! owner may hold it.
//!
//! ```text
//! Begin --> Acquire -- granted --> Serve ... Lost --> Kill ... Ended --> Finished
//!               ^      refused, unknown --> Refused, Tick after lease_retry_interval --+
//!               +----------------------------------------------------------------------+
//! Ended, while it may be held --> Release -- Released --> Finished
//! ```
//! Left to others: renewing the lease (its provider), the shard's entities, and waiting messages (the region).
//!
//! Source: sharding §4.12; cluster S16.

use std::time::{Duration, Instant};

use greylag_cluster::LeaseOutcome;

/// An input to the lease's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseInput {
    /// The shard is to start.
    Begin,
    /// A request has ended.
    Answered(LeaseOutcome),
    /// The lease was held, and is lost.
    Lost,
    /// No entity of the shard lives any more, or none will start.
    Ended,
    /// The release has ended, successfully or not.
    Released,
    /// A deadline has come.
    Tick,
}

/// An order to the driver; effects are executed in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEffect {
    /// Request the lease; answered by [`LeaseInput::Answered`].
    Acquire,
    /// Tell subscribers that the lease was not granted. The request is repeated.
    Refused(LeaseOutcome),
    /// The lease is held: the shard may start.
    Serve,
    /// The lease is lost: end all entities at once; answered by [`LeaseInput::Ended`].
    Kill,
    /// Release the lease; answered by [`LeaseInput::Released`].
    Release,
    /// Nothing is left to do: the driver may report the end of the shard.
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not requested yet, or held by another owner.
    Free,
    /// The last request failed: this shard may hold the lease.
    Unsure,
    Asking,
    Held,
    Lost,
    Releasing,
    Finished,
}

/// See the module's description.
#[derive(Debug)]
pub struct ShardLease {
    retry_interval: Duration,
    state: State,
    retry_at: Option<Instant>,
    /// The lease was lost before the answer to its request came.
    is_lost: bool,
    /// The shard has ended while a request was under way.
    has_ended: bool,
}

impl ShardLease {
    /// A lease that is not requested yet. `retry_interval` is the time between two requests.
    pub fn new(retry_interval: Duration) -> Self {
        let retry_interval = retry_interval.max(Duration::from_millis(1));
        Self { retry_interval, state: State::Free, retry_at: None, is_lost: false, has_ended: false }
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: LeaseInput, out: &mut Vec<LeaseEffect>) {
        match input {
            LeaseInput::Begin if self.state == State::Free => self.ask(out),
            LeaseInput::Answered(outcome) if self.state == State::Asking => self.on_answer(now, outcome, out),
            LeaseInput::Lost => self.on_lost(out),
            LeaseInput::Ended => self.on_ended(out),
            LeaseInput::Released if self.state == State::Releasing => self.finish(out),
            LeaseInput::Tick if self.retry_at.is_some_and(|at| at <= now) => self.ask(out),
            // Ignore a second start, an unexpected answer, an early tick.
            LeaseInput::Begin | LeaseInput::Answered(_) | LeaseInput::Released | LeaseInput::Tick => {}
        }
        self.check_invariants();
    }

    fn check_invariants(&self) {
        let state = self.state;
        let waits = matches!(state, State::Free | State::Unsure);
        debug_assert!(self.retry_at.is_none() || waits, "{state:?}: one request at a time");
        debug_assert!(self.retry_at.is_some() || state != State::Unsure, "a lease that may be held is asked for again");
        debug_assert!(!self.is_lost || state != State::Held, "a lease that was lost meanwhile is not held");
        let ends = matches!(state, State::Asking | State::Releasing | State::Finished);
        debug_assert!(!self.has_ended || ends, "{state:?}: the shard has ended");
    }

    /// When a [`LeaseInput::Tick`] next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether the shard may serve.
    pub fn is_held(&self) -> bool {
        self.state == State::Held
    }

    fn ask(&mut self, out: &mut Vec<LeaseEffect>) {
        (self.state, self.retry_at, self.is_lost) = (State::Asking, None, false);
        out.push(LeaseEffect::Acquire);
    }

    fn on_answer(&mut self, now: Instant, outcome: LeaseOutcome, out: &mut Vec<LeaseEffect>) {
        self.state = match outcome {
            LeaseOutcome::Granted if self.is_lost => State::Free,
            LeaseOutcome::Granted => State::Held,
            LeaseOutcome::Denied => State::Free,
            LeaseOutcome::Failed => State::Unsure,
        };
        if self.has_ended {
            return self.on_ended(out);
        }
        if self.state == State::Held {
            return out.push(LeaseEffect::Serve);
        }
        let refused = if outcome == LeaseOutcome::Granted { LeaseOutcome::Failed } else { outcome };
        out.push(LeaseEffect::Refused(refused));
        self.retry_at = Some(now.checked_add(self.retry_interval).unwrap_or(now));
    }

    fn on_lost(&mut self, out: &mut Vec<LeaseEffect>) {
        match self.state {
            State::Asking => self.is_lost = true,
            State::Held => {
                self.state = State::Lost;
                out.push(LeaseEffect::Kill);
            }
            State::Free | State::Unsure | State::Lost | State::Releasing | State::Finished => {}
        }
    }

    fn on_ended(&mut self, out: &mut Vec<LeaseEffect>) {
        self.retry_at = None;
        match self.state {
            State::Asking => self.has_ended = true,
            State::Held | State::Unsure => {
                self.state = State::Releasing;
                out.push(LeaseEffect::Release);
            }
            State::Free | State::Lost => self.finish(out),
            State::Releasing | State::Finished => {}
        }
    }

    fn finish(&mut self, out: &mut Vec<LeaseEffect>) {
        self.state = State::Finished;
        out.push(LeaseEffect::Finished);
    }
}

#[cfg(test)]
mod tests {
    use super::LeaseEffect::{Acquire, Finished, Kill, Refused, Release, Serve};
    use super::LeaseInput::{Answered, Begin, Ended, Lost, Released, Tick};
    use super::LeaseOutcome::{Denied, Failed, Granted};
    use super::*;

    const RETRY: Duration = Duration::from_secs(5);

    struct Play(ShardLease, Instant);

    impl Play {
        fn new() -> Self {
            Self(ShardLease::new(RETRY), Instant::now())
        }

        #[track_caller]
        fn gives(&mut self, input: LeaseInput, effects: &[LeaseEffect]) {
            let mut out = Vec::new();
            self.0.handle(self.1, input, &mut out);
            assert_eq!(out, effects, "{input:?}");
        }

        /// Lets the time of the next deadline come.
        #[track_caller]
        fn wait(&mut self) {
            self.1 = self.0.next_deadline().expect("a deadline");
            self.gives(Tick, &[Acquire]);
            assert_eq!(self.0.next_deadline(), None);
        }
    }

    /// sharding 77: a refused or failed request is repeated, and the shard starts once the lease is granted.
    #[test]
    fn scenario_77_a_lease_is_asked_for_until_it_is_granted() {
        let mut play = Play::new();
        play.gives(Begin, &[Acquire]);
        play.gives(Begin, &[]);
        for outcome in [Denied, Failed] {
            play.gives(Answered(outcome), &[Refused(outcome)]);
            play.gives(Tick, &[]);
            play.wait();
        }
        play.gives(Answered(Granted), &[Serve]);
        assert!(play.0.is_held());
        play.gives(Ended, &[Release]);
        play.gives(Released, &[Finished]);
    }

    #[test]
    fn a_lost_lease_ends_the_shard_and_is_not_given_back() {
        let mut play = Play::new();
        play.gives(Begin, &[Acquire]);
        play.gives(Answered(Granted), &[Serve]);
        play.gives(Lost, &[Kill]);
        play.gives(Lost, &[]);
        assert!(!play.0.is_held());
        play.gives(Ended, &[Finished]);
    }

    #[test]
    fn a_lease_lost_before_its_grant_is_processed_does_not_start_the_shard() {
        let mut play = Play::new();
        play.gives(Begin, &[Acquire]);
        play.gives(Lost, &[]);
        play.gives(Answered(Granted), &[Refused(Failed)]);
        play.wait();
        play.gives(Answered(Granted), &[Serve]);
    }

    #[test]
    fn a_shard_that_ends_before_it_starts_leaves_no_lease_behind() {
        for (outcome, effects) in [(Granted, &[Release][..]), (Failed, &[Release]), (Denied, &[Finished])] {
            let mut play = Play::new();
            play.gives(Begin, &[Acquire]);
            play.gives(Ended, &[]);
            play.gives(Answered(outcome), effects);
            assert_eq!(play.0.next_deadline(), None);
        }
        for (outcome, effects) in [(Failed, &[Release][..]), (Denied, &[Finished])] {
            let mut play = Play::new();
            play.gives(Begin, &[Acquire]);
            play.gives(Answered(outcome), &[Refused(outcome)]);
            play.gives(Ended, effects);
            assert_eq!(play.0.next_deadline(), None, "it is not asked for again");
        }
        Play::new().gives(Ended, &[Finished]);
    }
}
