//! Storing in a queue: one call at a time, repeated until it is answered; the queue is loaded again if repeats fail.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::confirmations::PendingConfirmations;
use super::polling::Polling;
use super::{Answer, Call, Effect, End, Found, StoringSettings, StoringState, Unstored};
use crate::ids::SeqNr;
use crate::machine::tracking::deadlines::after;
use crate::queue::{Confirmation, MessageSent, QueueError, QueueState};

/// How often a load's timeout doubles at most.
const LOAD_DOUBLINGS: u32 = 4;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Durable<M> {
    settings: StoringSettings,
    phase: QueuePhase,
    /// The call under way.
    outstanding: Option<Outstanding>,
    calls: u64,
    /// Failures in a row, of any kind of call.
    failures: u32,
    /// Pauses since the queue last stored anything.
    pauses: u32,
    /// Loads in a row that timed out. Loads that failed with an error do not count, since they do not show how long a
    /// load takes.
    slow_loads: u32,
    queued: VecDeque<Unstored<M>>,
    batch: Option<Batch<M>>,
    pending: PendingConfirmations,
    /// Confirmations in a call, or to be repeated.
    confirming: Option<PendingConfirmations>,
    /// A batch was just stored, so pending confirmations are stored next.
    flushes: bool,
    is_closing: bool,
    /// Set for an outbox.
    polling: Option<Polling<M>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueuePhase {
    /// Not started.
    New,
    /// The queue is being loaded.
    Opening,
    /// The queue is loaded again at this time.
    Pausing(Instant),
    Open,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outstanding {
    id: u64,
    kind: Kind,
    until: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Load,
    Store,
    Confirm,
    Poll,
}

/// One append, repeated unchanged until the queue has reported its outcome.
#[derive(Debug, Clone)]
struct Batch<M> {
    messages: Vec<MessageSent<M>>,
    /// Ticket and size of each message.
    senders: Vec<(u64, usize)>,
    /// A call with these messages ended without a clear answer, so they may be stored.
    may_be_stored: bool,
}

impl<M: Clone> Durable<M> {
    pub(super) fn new(settings: StoringSettings) -> Self {
        Self {
            settings,
            phase: QueuePhase::New,
            outstanding: None,
            calls: 0,
            failures: 0,
            pauses: 0,
            slow_loads: 0,
            queued: VecDeque::new(),
            batch: None,
            pending: PendingConfirmations::default(),
            confirming: None,
            flushes: false,
            is_closing: false,
            polling: None,
        }
    }

    pub(super) fn poll_every(&mut self, interval: Duration) {
        self.polling = Some(Polling::new(interval));
    }

    pub(super) fn take_found(&mut self) -> Vec<Found<M>> {
        self.polling.as_mut().map_or_else(Vec::new, Polling::take_found)
    }

    pub(super) fn has_room_for(&mut self, messages: usize) {
        if let Some(polling) = &mut self.polling {
            polling.set_room(messages);
        }
    }

    pub(super) fn state(&self) -> StoringState {
        match self.phase {
            QueuePhase::New => StoringState::Loading,
            QueuePhase::Opening | QueuePhase::Pausing(_) if self.failures == 0 && self.pauses == 0 => {
                StoringState::Loading
            }
            QueuePhase::Opening | QueuePhase::Pausing(_) => StoringState::Degraded,
            QueuePhase::Open => StoringState::Open,
            QueuePhase::Over => StoringState::Ended,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase == QueuePhase::Over
    }

    pub(super) fn queued(&self) -> usize {
        self.queued.len()
    }

    pub(super) fn pending(&self) -> usize {
        self.queued.len() + self.batch.as_ref().map_or(0, |batch| batch.messages.len())
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match (self.phase, &self.outstanding) {
            (QueuePhase::Pausing(until), _) => Some(until),
            (_, Some(outstanding)) => Some(outstanding.until),
            (QueuePhase::Open, None) => [self.flush_at(), self.poll_at()].into_iter().flatten().min(),
            (QueuePhase::New | QueuePhase::Opening | QueuePhase::Over, None) => None,
        }
    }

    fn flush_at(&self) -> Option<Instant> {
        self.pending.due(self.settings.confirm_flush_count, self.settings.confirm_flush_interval)
    }

    fn poll_at(&self) -> Option<Instant> {
        self.polling.as_ref().and_then(Polling::due_at)
    }

    /// `next`: the number of the next message. Source: delivery D1, D5, D7.
    pub(super) fn check_invariants(&self, next: u64) {
        if !cfg!(debug_assertions) {
            return;
        }
        let kind = self.outstanding.map(|outstanding| outstanding.kind);
        assert_eq!(self.phase == QueuePhase::Opening, kind == Some(Kind::Load), "a queue that opens is loaded");
        assert!(
            kind.is_none() || matches!(self.phase, QueuePhase::Opening | QueuePhase::Open),
            "a queue makes no call while it is {:?}",
            self.phase
        );
        assert!(kind != Some(Kind::Store) || self.batch.is_some(), "a call stores the batch in hand");
        assert!(kind != Some(Kind::Confirm) || self.confirming.is_some(), "a call stores the confirmations in hand");
        let is_empty = self.batch.is_none() && self.queued.is_empty();
        let rests = self.phase == QueuePhase::Open && kind.is_none();
        let is_done = is_empty && self.confirming.is_none() && !self.is_closing;
        assert!(!rests || is_done, "a queue that is open is called while something waits");
        assert!(self.phase != QueuePhase::Over || is_empty, "no message is left behind");
        if let Some(batch) = &self.batch {
            assert_eq!(batch.messages.len(), batch.senders.len(), "each message has a sender");
            let numbers = (first_of(batch).get()..).zip(&batch.messages);
            assert!(numbers.clone().all(|(number, sent)| sent.seq_nr.get() == number), "a batch has no gap");
            assert!(last_of(batch).get() < next, "later messages get later numbers");
        }
    }

    // ---- inputs of the controller -------------------------------------------------------------------

    pub(super) fn start(&mut self, now: Instant, out: &mut Vec<Effect<M>>) {
        if self.phase == QueuePhase::New {
            self.load(now, out);
        }
    }

    pub(super) fn accept(&mut self, message: Unstored<M>) {
        self.queued.push_back(message);
    }

    pub(super) fn confirm(&mut self, now: Instant, confirmation: Confirmation, messages: usize) {
        self.pending.add(now, confirmation, messages);
    }

    /// Gives queued messages back, and stores the confirmations if the queue is open.
    pub(super) fn close(&mut self, out: &mut Vec<Effect<M>>) {
        self.is_closing = true;
        self.give_back_queued(out);
        if self.phase != QueuePhase::Open {
            self.give_up_batch(out);
            self.over(Effect::Closed, out);
        }
    }

    pub(super) fn fence(&mut self, out: &mut Vec<Effect<M>>) {
        self.give_up_batch(out);
        self.give_back_queued(out);
        self.phase = QueuePhase::Over;
        self.outstanding = None;
    }

    // ---- answers of the queue -----------------------------------------------------------------------

    pub(super) fn answered(
        &mut self,
        now: Instant,
        call: u64,
        answer: Answer<M>,
        next: &mut u64,
        out: &mut Vec<Effect<M>>,
    ) {
        let Some(outstanding) = self.outstanding.take_if(|outstanding| outstanding.id == call) else {
            return; // the answer to a call that was replaced
        };
        match (outstanding.kind, answer) {
            (Kind::Load, Answer::Loaded(Ok(state))) => self.opened(now, state, next, out),
            (Kind::Store, Answer::Stored(Ok(up_to))) => self.stored(now, up_to, out),
            (Kind::Confirm, Answer::Confirmed(Ok(()))) => {
                self.confirming = None;
                self.succeeded();
            }
            (Kind::Poll, Answer::Polled(Ok(messages))) => {
                self.succeeded();
                if let Some(polling) = &mut self.polling {
                    polling.answered(now, messages, next);
                }
            }
            (kind @ Kind::Poll, Answer::Polled(Err(error)))
            | (kind @ Kind::Load, Answer::Loaded(Err(error)))
            | (kind @ Kind::Store, Answer::Stored(Err(error)))
            | (kind @ Kind::Confirm, Answer::Confirmed(Err(error))) => self.refused(now, kind, error, out),
            // An answer of another kind counts as no answer.
            _ => self.failed(now, out),
        }
    }

    fn opened(&mut self, now: Instant, mut state: QueueState<M>, next: &mut u64, out: &mut Vec<Effect<M>>) {
        self.phase = QueuePhase::Open;
        self.slow_loads = 0;
        if let Some(polling) = &mut self.polling {
            polling.opened(now);
        }
        let batch = self.batch.as_ref().map(|batch| (first_of(batch), last_of(batch)));
        *next = batch.map_or(state.current_seq_nr.get(), |(_, last)| last.get().saturating_add(1));
        state.unconfirmed.retain(|message| {
            // Messages of the batch are released when the queue acknowledges it.
            batch.is_none_or(|(first, _)| message.seq_nr < first)
                && !self.pending.cover(message)
                && self.confirming.as_ref().is_none_or(|confirming| !confirming.cover(message))
        });
        out.push(Effect::Opened(state));
    }

    fn stored(&mut self, now: Instant, up_to: SeqNr, out: &mut Vec<Effect<M>>) {
        let Some(batch) = self.batch.take_if(|batch| last_of(batch) <= up_to) else {
            // The queue acknowledged less than the batch, so the batch is not stored.
            return self.reload(now, out);
        };
        let released = batch.senders.into_iter().zip(batch.messages);
        out.extend(released.map(|((ticket, _), sent)| Effect::Released { ticket, sent }));
        self.flushes = true;
        self.succeeded();
    }

    fn succeeded(&mut self) {
        self.failures = 0;
        self.pauses = 0;
    }

    /// Handles an error of the queue.
    fn refused(&mut self, now: Instant, kind: Kind, error: QueueError, out: &mut Vec<Effect<M>>) {
        match error {
            QueueError::Fenced { by } => {
                self.over(Effect::Ended(End::Fenced { by }), out);
                self.give_up_batch(out);
                self.give_back_queued(out);
            }
            QueueError::OutOfOrder { expected } => {
                self.over(Effect::Ended(End::Lost { expected }), out);
                self.give_up_batch(out);
                self.give_back_queued(out);
            }
            QueueError::Rejected(_) | QueueError::Unencodable { .. } if kind == Kind::Store => {
                self.give_up_batch(out);
                self.give_back_queued(out);
                self.pause(now, out);
            }
            QueueError::OutcomeUnknown => {
                if let Some(batch) = &mut self.batch {
                    batch.may_be_stored = true;
                }
                self.reload(now, out);
            }
            _ => self.reload(now, out),
        }
    }

    // ---- time -----------------------------------------------------------------------------------

    pub(super) fn tick(&mut self, now: Instant, out: &mut Vec<Effect<M>>) {
        match self.phase {
            QueuePhase::Pausing(until) if until <= now => self.load(now, out),
            _ => {
                if self.outstanding.take_if(|outstanding| outstanding.until <= now).is_some() {
                    self.failed(now, out);
                }
            }
        }
    }

    /// A call timed out: repeats it unchanged (D7) while attempts are left.
    fn failed(&mut self, now: Instant, out: &mut Vec<Effect<M>>) {
        if let Some(batch) = &mut self.batch {
            batch.may_be_stored = true;
        }
        let is_load = self.phase == QueuePhase::Opening;
        self.slow_loads = self.slow_loads.saturating_add(u32::from(is_load));
        if is_load || self.is_closing {
            return self.reload(now, out);
        }
        self.failures += 1;
        if self.failures >= self.settings.retry_attempts {
            self.degrade(now, out);
        }
    }

    /// Schedules a load, which must precede any repeat.
    fn reload(&mut self, now: Instant, out: &mut Vec<Effect<M>>) {
        if self.is_closing {
            self.give_up_batch(out);
            return self.over(Effect::Closed, out);
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.settings.retry_attempts {
            self.degrade(now, out);
        } else {
            self.pause(now, out);
        }
    }

    fn degrade(&mut self, now: Instant, out: &mut Vec<Effect<M>>) {
        self.failures = 0; // the count restarts for the next operation
        self.give_up_batch(out);
        self.give_back_queued(out);
        self.pause(now, out);
    }

    fn pause(&mut self, now: Instant, out: &mut Vec<Effect<M>>) {
        if self.is_closing {
            return self.over(Effect::Closed, out);
        }
        let StoringSettings { restart_min_backoff, restart_max_backoff, .. } = self.settings;
        let pause = restart_min_backoff.saturating_mul(1 << self.pauses.min(16)).min(restart_max_backoff);
        self.pauses = self.pauses.saturating_add(1);
        self.outstanding = None;
        self.phase = QueuePhase::Pausing(after(now, pause));
    }

    // ---- calls ----------------------------------------------------------------------------------

    /// Makes the next call if the queue is open and no call is under way.
    pub(super) fn go_on(&mut self, now: Instant, next: &mut u64, out: &mut Vec<Effect<M>>) {
        if self.phase != QueuePhase::Open || self.outstanding.is_some() {
            return;
        }
        if let Some(batch) = &self.batch {
            let store = Call::Store(batch.messages.clone());
            return self.call(now, Kind::Store, store, out);
        }
        let is_due = self.flush_at().is_some_and(|at| at <= now);
        if self.confirming.is_none() && (self.flushes || self.is_closing || is_due) && !self.pending.is_empty() {
            self.confirming = Some(std::mem::take(&mut self.pending));
        }
        self.flushes = false;
        if let Some(confirming) = &self.confirming {
            let confirm = Call::Confirm(confirming.as_write());
            return self.call(now, Kind::Confirm, confirm, out);
        }
        if self.is_closing {
            self.over(Effect::Closed, out);
        } else if !self.queued.is_empty() {
            self.store_queued(now, next, out);
        } else if let Some(max) = self.polling.as_mut().and_then(|polling| polling.ask(now, self.settings.max_batch)) {
            self.call(now, Kind::Poll, Call::Poll(max), out);
        }
    }

    /// Numbers queued messages, as many as one append takes, and stores them.
    fn store_queued(&mut self, now: Instant, next: &mut u64, out: &mut Vec<Effect<M>>) {
        let StoringSettings { max_batch, max_batch_bytes, .. } = self.settings;
        let mut batch = Batch { messages: Vec::new(), senders: Vec::new(), may_be_stored: false };
        let mut size = 0_usize;
        while batch.messages.len() < max_batch.max(1) && *next < u64::MAX {
            let fits = |message: &mut Unstored<M>| size == 0 || size.saturating_add(message.bytes) <= max_batch_bytes;
            let Some(message) = self.queued.pop_front_if(fits) else { break };
            size = size.saturating_add(message.bytes.max(1));
            batch.senders.push((message.ticket, message.bytes));
            batch.messages.push(message.numbered(SeqNr(*next)));
            *next += 1;
        }
        if batch.messages.is_empty() {
            self.over(Effect::Ended(End::Exhausted), out);
            return self.give_back_queued(out);
        }
        let store = Call::Store(batch.messages.clone());
        self.batch = Some(batch);
        self.call(now, Kind::Store, store, out);
    }

    fn load(&mut self, now: Instant, out: &mut Vec<Effect<M>>) {
        self.phase = QueuePhase::Opening;
        self.call(now, Kind::Load, Call::Load, out);
    }

    fn call(&mut self, now: Instant, kind: Kind, call: Call<M>, out: &mut Vec<Effect<M>>) {
        let patience = match kind {
            // A load gets more time after each one that timed out, since it reads every unconfirmed message, and starts
            // over when repeated.
            Kind::Load => {
                let growth = 1 << self.slow_loads.min(LOAD_DOUBLINGS);
                self.settings.request_timeout.saturating_mul(self.settings.retry_attempts.max(1).saturating_mul(growth))
            }
            Kind::Store | Kind::Confirm | Kind::Poll => self.settings.request_timeout,
        };
        self.calls += 1;
        self.outstanding = Some(Outstanding { id: self.calls, kind, until: after(now, patience) });
        out.push(Effect::Call { id: self.calls, call });
    }

    // ---- ends -----------------------------------------------------------------------------------

    fn give_back_queued(&mut self, out: &mut Vec<Effect<M>>) {
        out.extend(self.queued.drain(..).map(Effect::GivenBack));
    }

    /// Gives the batch up: messages certainly not stored go back to their senders, others are reported as unknown.
    fn give_up_batch(&mut self, out: &mut Vec<Effect<M>>) {
        let in_hand = self.outstanding.is_some_and(|outstanding| outstanding.kind == Kind::Store);
        let Some(batch) = self.batch.take() else { return };
        for ((ticket, bytes), sent) in batch.senders.into_iter().zip(batch.messages) {
            out.push(if batch.may_be_stored || in_hand {
                Effect::Unknown { ticket, qualifier: sent.qualifier, seq_nr: sent.seq_nr }
            } else {
                let MessageSent { message, ack, qualifier, timestamp_ms, .. } = sent;
                Effect::GivenBack(Unstored { ticket, qualifier, message, bytes, ack, timestamp_ms })
            });
        }
    }

    fn over(&mut self, last: Effect<M>, out: &mut Vec<Effect<M>>) {
        self.phase = QueuePhase::Over;
        self.outstanding = None;
        out.push(last);
    }
}

fn first_of<M>(batch: &Batch<M>) -> SeqNr {
    batch.messages.first().map_or(SeqNr::NONE, |message| message.seq_nr)
}

fn last_of<M>(batch: &Batch<M>) -> SeqNr {
    batch.messages.last().map_or(SeqNr::NONE, |message| message.seq_nr)
}
