//! The store of a producer's queue, kept apart from the producers that write it, as the record of what happened.
//!
//! Calls are carried out one by one, in the order in which they were made. A call may be carried out without its answer
//! arriving, may fail, or may get no answer at all. Source: delivery §4.1, D4 to D7.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_producer::RoutedMessage;
use greylag_delivery::machine::storing::{Answer, Call};
use greylag_delivery::queue::{MessageSent, Qualifier, QueueError, QueueState, Started, StoredQueue};
use greylag_delivery::{ControllerRef, Epoch, SeqNr, StreamId};

use super::content::{TestPayload, content_of};

/// The outcome of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallOutcome {
    is_done: bool,
    reply: Reply,
}

#[derive(Debug, Clone, Copy)]
enum Reply {
    /// The answer arrives.
    Answer,
    /// An error arrives: "not stored" if that is true, "unknown" otherwise.
    Failure,
    /// Nothing arrives.
    Nothing,
}

impl CallOutcome {
    pub(crate) const GOOD: Self = Self { is_done: true, reply: Reply::Answer };

    /// A random outcome; one call in six fails in some way.
    pub(crate) fn drawn(pick: usize) -> Self {
        let (is_done, reply) = match pick % 24 {
            0 => (false, Reply::Failure),
            1 => (true, Reply::Failure),
            2 => (false, Reply::Nothing),
            3 => (true, Reply::Nothing),
            _ => return Self::GOOD,
        };
        Self { is_done, reply }
    }
}

/// A message in the form in which a producer gives it to its queue.
pub(crate) trait QueuedMessage: Clone {
    /// The content, which identifies the message.
    fn content(&self) -> u64;
}

impl QueuedMessage for Frames<u64> {
    fn content(&self) -> u64 {
        content_of(self)
    }
}

impl QueuedMessage for RoutedMessage<TestPayload> {
    fn content(&self) -> u64 {
        TestPayload::content(&self.frames)
    }
}

/// The state of one writer of the store.
#[derive(Debug)]
pub(crate) struct Writer {
    controller: ControllerRef,
    epoch: Option<Epoch>,
    /// The last number that it assigned, or found.
    known: SeqNr,
    /// Whether a load of this writer was acknowledged.
    has_loaded: bool,
}

impl Writer {
    pub(crate) fn new(controller: ControllerRef) -> Self {
        Self { controller, epoch: None, known: SeqNr::NONE, has_loaded: false }
    }
}

pub(crate) struct Store<M> {
    stream: StreamId,
    rows: StoredQueue<M>,
    /// Qualifier and content of every message ever stored, by total.
    ever: BTreeMap<u64, (Qualifier, u64)>,
    busy_until: Option<Instant>,
    /// Whether writes of controllers that have lost the queue are accepted.
    unchecked: bool,
}

impl<M: QueuedMessage> Store<M> {
    pub(crate) fn new(stream: StreamId, unchecked: bool) -> Self {
        Self { stream, rows: StoredQueue::default(), ever: BTreeMap::new(), busy_until: None, unchecked }
    }

    /// The end of a call that is made now and takes this long; calls run one after the other.
    pub(crate) fn done_at(&mut self, now: Instant, takes: Duration) -> Instant {
        let at = self.busy_until.map_or(now, |busy| busy.max(now)) + takes;
        self.busy_until = Some(at);
        at
    }

    pub(crate) fn ever(&self) -> &BTreeMap<u64, (Qualifier, u64)> {
        &self.ever
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.rows.unconfirmed().next().is_none()
    }

    /// Carries a call out, or not; returns the answer that the producer gets.
    pub(crate) fn call(&mut self, writer: &mut Writer, call: Call<M>, outcome: CallOutcome) -> Option<Answer<M>> {
        let refused = self.refuses(writer, &call);
        let refused_load = self.lost_to(writer);
        let failure =
            if outcome.is_done { QueueError::OutcomeUnknown } else { QueueError::NotStored("drawn".to_owned()) };
        let error = refused.or(matches!(outcome.reply, Reply::Failure).then_some(failure));
        let is_lost = matches!(outcome.reply, Reply::Nothing);
        if matches!(outcome.reply, Reply::Failure) {
            writer.epoch = None;
        }
        let answer = match call {
            Call::Load if refused_load.is_some() => Answer::Loaded(Err(refused_load?)),
            Call::Load => {
                let done = if outcome.is_done { Some(self.load(writer)) } else { None };
                if error.is_some() {
                    writer.epoch = None;
                }
                Answer::Loaded(match (error, done) {
                    (Some(error), _) => Err(error),
                    (None, Some(state)) => {
                        writer.has_loaded |= !is_lost;
                        Ok(state)
                    }
                    (None, None) => Err(QueueError::OutcomeUnknown),
                })
            }
            Call::Store(batch) => {
                let last = batch.last().map_or(SeqNr::NONE, |sent| sent.seq_nr);
                let stored =
                    if outcome.is_done && !matches!(error, Some(QueueError::Fenced { .. } | QueueError::NotLoaded)) {
                        self.store(writer, batch)
                    } else {
                        Ok(())
                    };
                Answer::Stored(error.map_or(stored.map(|()| last), Err))
            }
            Call::Confirm(confirmations) => {
                if outcome.is_done && error.is_none() {
                    let news = self.rows.judge_confirmations(confirmations);
                    news.iter().flatten().for_each(|confirmation| self.rows.confirm(confirmation));
                    Answer::Confirmed(news.map(drop))
                } else {
                    Answer::Confirmed(error.map_or(Ok(()), Err))
                }
            }
            Call::Poll(_) => unreachable!("this queue finds no messages by itself"),
        };
        (!is_lost).then_some(answer)
    }

    /// The error of a write that is refused in any state of the store.
    fn refuses(&self, writer: &Writer, call: &Call<M>) -> Option<QueueError> {
        if matches!(call, Call::Load) {
            return None;
        }
        let Some(epoch) = writer.epoch else { return Some(QueueError::NotLoaded) };
        let by = self.rows.started().filter(|started| started.epoch != epoch && !self.unchecked)?;
        Some(QueueError::Fenced { by: Some(by.controller.clone()) })
    }

    /// The error of a load by a controller whose queue another controller has taken over; the queue is not claimed.
    fn lost_to(&self, writer: &Writer) -> Option<QueueError> {
        let newest = self.rows.started().filter(|started| started.controller != writer.controller)?;
        let is_lost = writer.has_loaded && !self.unchecked;
        is_lost.then(|| QueueError::Fenced { by: Some(newest.controller.clone()) })
    }

    fn load(&mut self, writer: &mut Writer) -> QueueState<M> {
        let epoch = Epoch(self.rows.started().map_or(0, |started| started.epoch.0) + 1);
        self.rows.start(Started { stream_id: self.stream, epoch, controller: writer.controller.clone() });
        writer.epoch = Some(epoch);
        writer.known = SeqNr(self.rows.current().get() - 1).max(writer.known);
        let copy = |message: &M| Ok::<_, std::convert::Infallible>(message.clone());
        self.rows.loaded(copy).ok().flatten().expect("it was started")
    }

    fn store(&mut self, writer: &mut Writer, batch: Vec<MessageSent<M>>) -> Result<(), QueueError> {
        let last = batch.last().map_or(SeqNr::NONE, |sent| sent.seq_nr);
        writer.known = writer.known.max(last);
        for sent in self.rows.judge_batch(batch, writer.known)? {
            self.ever.insert(sent.seq_nr.get(), (sent.qualifier.clone(), sent.message.content()));
            self.rows.add(sent);
        }
        Ok(())
    }
}
