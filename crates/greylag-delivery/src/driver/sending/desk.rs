//! Who waits for what: senders by their tickets, drains for every message that was on its way before them.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;

use super::Grant;
use crate::error::{ProducerError, SendError, SentError};
use crate::ids::SeqNr;
use crate::machine::controller::{Failure, Refusal};
use crate::machine::producer_link::Frames;
use crate::payload::Payload;

/// Where a message's answers go.
pub(crate) struct Replies<T> {
    pub(crate) accepted: Answer<T>,
    pub(crate) confirmed: oneshot::Sender<SeqNr>,
}

/// The answer to the acceptance of a message.
pub(crate) enum Answer<T> {
    /// To a sender that gets its message back.
    WithMessage(oneshot::Sender<Result<SeqNr, SendError<T>>>),
    /// To one that does not.
    Alone(oneshot::Sender<Result<SeqNr, SentError>>),
}

struct Waiter<T> {
    accepted: Option<Answer<T>>,
    confirmed: oneshot::Sender<SeqNr>,
}

/// One that waits until everything that asked for room before is confirmed, or refused.
struct Drain {
    /// The last ticket that counts.
    ticket: u64,
    /// The highest number among its messages, as far as they have one.
    total: SeqNr,
    done: oneshot::Sender<()>,
}

/// See the module's documentation.
pub(super) struct Desk<T> {
    waiters: BTreeMap<u64, Waiter<T>>,
    permits: BTreeMap<u64, oneshot::Sender<Result<Grant, ProducerError>>>,
    /// Messages that are neither accepted nor refused.
    undecided: BTreeSet<u64>,
    last_ticket: u64,
    last_accepted: SeqNr,
    drains: Vec<Drain>,
    failure: Option<Failure>,
}

impl<T> Desk<T> {
    pub(super) fn new() -> Self {
        Self {
            waiters: BTreeMap::new(),
            permits: BTreeMap::new(),
            undecided: BTreeSet::new(),
            last_ticket: 0,
            last_accepted: SeqNr::NONE,
            drains: Vec::new(),
            failure: None,
        }
    }

    pub(super) fn open(&mut self, ticket: u64, replies: Replies<T>) {
        let Replies { accepted, confirmed } = replies;
        self.undecided.insert(ticket);
        self.last_ticket = self.last_ticket.max(ticket);
        self.waiters.insert(ticket, Waiter { accepted: Some(accepted), confirmed });
    }

    pub(super) fn open_permit(&mut self, ticket: u64, granted: oneshot::Sender<Result<Grant, ProducerError>>) {
        self.permits.insert(ticket, granted);
    }

    /// The queue had messages up to this one.
    pub(super) fn recovered(&mut self, total: SeqNr) {
        self.last_accepted = self.last_accepted.max(total);
    }

    /// Returns whether the sender still wants the permit.
    pub(super) fn permitted(&mut self, ticket: u64, grant: Grant) -> bool {
        self.permits.remove(&ticket).is_some_and(|granted| granted.send(Ok(grant)).is_ok())
    }

    pub(super) fn accepted(&mut self, ticket: u64, total: SeqNr) {
        self.undecided.remove(&ticket);
        self.last_accepted = self.last_accepted.max(total);
        for drain in self.drains.iter_mut().filter(|drain| ticket <= drain.ticket) {
            drain.total = drain.total.max(total);
        }
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
        match waiter.accepted.take() {
            Some(Answer::WithMessage(answer)) => drop(answer.send(Ok(total))),
            Some(Answer::Alone(answer)) => drop(answer.send(Ok(total))),
            None => {}
        }
        if waiter.confirmed.is_closed() {
            self.waiters.remove(&ticket);
        }
    }

    pub(super) fn confirmed(&mut self, ticket: u64, total: SeqNr) {
        if let Some(waiter) = self.waiters.remove(&ticket) {
            waiter.confirmed.send(total).ok();
        }
    }

    pub(super) fn refused(&mut self, ticket: u64, frames: Option<Frames<Payload<T>>>, why: Refusal)
    where
        T: 'static,
    {
        self.undecided.remove(&ticket);
        if let Some(granted) = self.permits.remove(&ticket) {
            granted.send(Err(self.producer_error(why))).ok();
        }
        let answer = self.waiters.remove(&ticket).and_then(|waiter| waiter.accepted);
        match answer {
            Some(Answer::WithMessage(answer)) => {
                let message = frames.and_then(Frames::into_value);
                let error = match why {
                    Refusal::Superseded => SendError::Superseded(message),
                    Refusal::Unavailable => SendError::Unavailable(message),
                    Refusal::Closed | Refusal::Full => ended(self.failure.as_ref(), message),
                };
                answer.send(Err(error)).ok();
            }
            Some(Answer::Alone(answer)) => {
                let error = match (why, &self.failure) {
                    (Refusal::Superseded, _) => SentError::Superseded,
                    (Refusal::Unavailable, _) => SentError::Unavailable,
                    (_, Some(Failure::Fenced { newer, .. })) => SentError::Fenced { newer: *newer },
                    _ => SentError::Closed,
                };
                answer.send(Err(error)).ok();
            }
            None => {}
        }
    }

    pub(super) fn unknown(&mut self, ticket: u64, seq_nr: SeqNr) {
        self.undecided.remove(&ticket);
        match self.waiters.remove(&ticket).and_then(|waiter| waiter.accepted) {
            Some(Answer::WithMessage(answer)) => drop(answer.send(Err(SendError::StoreUnknown { seq_nr }))),
            Some(Answer::Alone(answer)) => drop(answer.send(Err(SentError::StoreUnknown { seq_nr }))),
            None => {}
        }
    }

    /// Forgets a sender.
    pub(super) fn forget(&mut self, ticket: u64) {
        self.undecided.remove(&ticket);
        self.waiters.remove(&ticket);
        self.permits.remove(&ticket);
    }

    pub(super) fn failed(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    /// `done` once everything that asked for room until now is confirmed or refused.
    pub(super) fn drain(&mut self, done: oneshot::Sender<()>) {
        self.drains.push(Drain { ticket: self.last_ticket, total: self.last_accepted, done });
    }

    pub(super) fn settle_drains(&mut self, confirmed: SeqNr) {
        let undecided = self.undecided.first().copied().unwrap_or(u64::MAX);
        let is_done = |drain: &mut Drain| drain.ticket < undecided && drain.total <= confirmed;
        for drain in self.drains.extract_if(.., is_done) {
            drain.done.send(()).ok();
        }
    }

    fn producer_error(&self, why: Refusal) -> ProducerError {
        match (why, &self.failure) {
            (Refusal::Superseded, _) => ProducerError::Superseded,
            (_, Some(failure)) => ProducerError::from(failure.clone()),
            (_, None) => ProducerError::Closed,
        }
    }
}

/// Why a message is refused by a producer that has ended.
pub(super) fn ended<T>(failure: Option<&Failure>, message: Option<T>) -> SendError<T> {
    match failure {
        Some(Failure::Fenced { newer, .. }) => SendError::Fenced { newer: *newer, message },
        _ => SendError::Closed(message),
    }
}
