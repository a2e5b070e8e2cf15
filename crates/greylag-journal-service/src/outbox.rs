//! The unanswered calls of a client: which to send, which to send again, and the meaning of a late or missing answer.
//!
//! ```text
//! submit ─▶ unsent ─▶ sent ─▶ answered
//!              ▲        │ connection lost, or the server does not know itself: send again
//!              └────────┘
//! ```
//! A call that was never sent is certainly not stored. A call that was sent and lost its answer may be stored; it is
//! sent again, in the old order, until its deadline (J10). Pure: the driver owns the connection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::generated::{Answer, answer, failure};

/// A call to be sent.
#[derive(Debug)]
pub(crate) struct Submitted<R> {
    pub(crate) request_id: u64,
    /// The encoded `Call`.
    pub(crate) encoded: Bytes,
    pub(crate) deadline: Instant,
    /// Handle of the caller that waits for the outcome.
    pub(crate) reply: R,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Answered {
        answer: answer::Answer,
        /// Whether an earlier try was sent and went unanswered, so that the call may have been done twice.
        tried_before: bool,
    },
    /// The call was never sent, and never will be.
    NeverSent { cause: String },
    /// The call was sent, and no answer told its outcome.
    Unanswered { cause: String },
}

/// A call that has ended: the handle of its caller, and the outcome that the driver sends there.
pub(crate) type Done<R> = (R, Outcome);

/// All unanswered calls of a client. `R` is the handle of a caller.
#[derive(Debug)]
pub(crate) struct Outbox<R> {
    calls: BTreeMap<u64, Pending<R>>,
    /// Ids of the calls to send. The order of ids is the order of the calls.
    unsent: BTreeSet<u64>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// When to send calls again whose outcome the server did not know.
    retries: BTreeSet<(Instant, u64)>,
    retry_after: Duration,
    /// Since when there is no connection, and why.
    disconnected_since: Option<(Instant, String)>,
    unavailable_after: Duration,
}

#[derive(Debug)]
struct Pending<R> {
    encoded: Bytes,
    deadline: Instant,
    reply: R,
    state: State,
    /// Whether an earlier try went unanswered.
    tried: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unsent,
    Sent,
    Retrying(Instant),
}

impl<R> Outbox<R> {
    pub(crate) fn new(retry_after: Duration, unavailable_after: Duration) -> Self {
        Self {
            calls: BTreeMap::new(),
            unsent: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            retries: BTreeSet::new(),
            retry_after,
            disconnected_since: None,
            unavailable_after,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Adds a call; it is sent as soon as there is a connection.
    pub(crate) fn submit(&mut self, call: Submitted<R>) {
        let Submitted { request_id, encoded, deadline, reply } = call;
        self.unsent.insert(request_id);
        self.deadlines.insert((deadline, request_id));
        self.calls.insert(request_id, Pending { encoded, deadline, reply, state: State::Unsent, tried: false });
        self.check_invariants();
    }

    /// Checks that the indexes are those of the calls: of each call in turn, if they are few.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert_eq!(self.deadlines.len(), self.calls.len(), "each call has one deadline");
        assert!(self.unsent.len() + self.retries.len() <= self.calls.len(), "a call is sent, waits, or is to be sent");
        if self.calls.len() > 32 {
            return;
        }
        for (id, call) in &self.calls {
            assert!(self.deadlines.contains(&(call.deadline, *id)), "call {id} ends in time");
            assert_eq!(self.unsent.contains(id), call.state == State::Unsent, "call {id} is sent next, if it is not");
            if let State::Retrying(at) = call.state {
                assert!(self.retries.contains(&(at, *id)), "call {id} is tried again");
            }
        }
        let retrying = self.calls.values().filter(|call| matches!(call.state, State::Retrying(_))).count();
        assert_eq!(self.retries.len(), retrying, "only calls that wait are tried again");
    }

    /// Takes the next calls to send, oldest first, about `max_bytes` of them; they count as sent.
    pub(crate) fn next_frame(&mut self, max_bytes: usize) -> Vec<Bytes> {
        let mut frame = Vec::new();
        let mut bytes = 0;
        while let Some(id) = self.unsent.first().copied() {
            let Some(call) = self.calls.get_mut(&id) else { break };
            bytes += call.encoded.len();
            if bytes > max_bytes && !frame.is_empty() {
                break;
            }
            self.unsent.pop_first();
            call.state = State::Sent;
            frame.push(call.encoded.clone());
        }
        self.check_invariants();
        frame
    }

    /// Notes that a connection was made.
    pub(crate) fn connected(&mut self) {
        self.disconnected_since = None;
    }

    /// Notes that the connection is lost, or could not be made: all sent calls are queued again.
    pub(crate) fn disconnected(&mut self, now: Instant, cause: &str) {
        let since = self.disconnected_since.as_ref().map_or(now, |(since, _)| *since);
        self.disconnected_since = Some((since, cause.to_owned()));
        for (id, call) in &mut self.calls {
            if call.state == State::Sent {
                call.tried = true;
                call.state = State::Unsent;
                self.unsent.insert(*id);
            }
        }
        self.check_invariants();
    }

    /// Handles an answer of the server.
    pub(crate) fn answered(&mut self, now: Instant, answer: Answer, done: &mut Vec<Done<R>>) {
        let id = answer.request_id;
        // Ignored: a second answer to a call that is done, or an answer of a later version.
        let (Some(call), Some(answer)) = (self.calls.get_mut(&id), answer.answer) else { return };
        let retry_at = now + self.retry_after;
        if is_uncertain(&answer, call.tried) && retry_at < call.deadline {
            self.retries.insert((retry_at, id));
            call.tried = true;
            call.state = State::Retrying(retry_at);
            return self.check_invariants();
        }
        let tried_before = call.tried;
        self.finish(id, Outcome::Answered { answer, tried_before }, done);
        self.check_invariants();
    }

    /// Expires calls whose time is over, and queues those whose wait is over.
    pub(crate) fn tick(&mut self, now: Instant, done: &mut Vec<Done<R>>) {
        while let Some((at, id)) = self.retries.first().copied() {
            if at > now {
                break;
            }
            self.retries.pop_first();
            if let Some(call) = self.calls.get_mut(&id) {
                call.state = State::Unsent;
                self.unsent.insert(id);
            }
        }
        while let Some((at, id)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.give_up(id, "no answer before the deadline", done);
        }
        self.give_up_unsent(now, done);
        self.check_invariants();
    }

    /// When [`Outbox::tick`] next has work to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        // A call that was tried waits for its own deadline, so an unreachable server needs a tick only for calls
        // that were never sent.
        let refuse_at = self.refuse_at().filter(|_| self.never_sent_calls().next().is_some());
        let first = |set: &BTreeSet<(Instant, u64)>| set.first().map(|(at, _)| *at);
        [first(&self.deadlines), first(&self.retries), refuse_at].into_iter().flatten().min()
    }

    fn refuse_at(&self) -> Option<Instant> {
        self.disconnected_since.as_ref().map(|(since, _)| *since + self.unavailable_after)
    }

    /// Gives up calls that were never sent once the server has been unreachable for `unavailable_after`: waiting longer
    /// does not help them.
    fn give_up_unsent(&mut self, now: Instant, done: &mut Vec<Done<R>>) {
        if self.refuse_at().is_none_or(|at| at > now) {
            return;
        }
        for id in self.never_sent_calls().collect::<Vec<_>>() {
            self.give_up(id, "the server cannot be reached", done);
        }
    }

    /// Calls to send that were never sent before.
    fn never_sent_calls(&self) -> impl Iterator<Item = u64> {
        let was_never_sent = |id: &u64| self.calls.get(id).is_some_and(|call| !call.tried);
        self.unsent.iter().copied().filter(was_never_sent)
    }

    fn give_up(&mut self, id: u64, why: &str, done: &mut Vec<Done<R>>) {
        let Some(call) = self.calls.get(&id) else { return };
        let cause = match &self.disconnected_since {
            Some((_, cause)) => format!("{why}: {cause}"),
            None => why.to_owned(),
        };
        let never_sent = call.state == State::Unsent && !call.tried;
        let outcome = if never_sent { Outcome::NeverSent { cause } } else { Outcome::Unanswered { cause } };
        self.finish(id, outcome, done);
    }

    fn finish(&mut self, id: u64, outcome: Outcome, done: &mut Vec<Done<R>>) {
        let Some(call) = self.calls.remove(&id) else { return };
        self.unsent.remove(&id);
        self.deadlines.remove(&(call.deadline, id));
        if let State::Retrying(at) = call.state {
            self.retries.remove(&(at, id));
        }
        done.push((call.reply, outcome));
    }
}

/// Whether the answer leaves open if the append is stored: the server does not know, or knows only that *this* try did
/// not store it, while an earlier try went unanswered.
fn is_uncertain(answer: &answer::Answer, tried: bool) -> bool {
    let answer::Answer::Failure(failure) = answer else { return false };
    match failure.failure {
        Some(failure::Failure::Unknown(_)) => true,
        Some(failure::Failure::NotStored(_)) => tried,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
