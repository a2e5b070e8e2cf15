//! The storing of a producer's messages: each is stored before it may be sent, and its confirmation is stored behind it.
//!
//! Every producer controller owns one [`Storing`]. A message that the controller accepts goes in, and comes out as
//! [`Effect::Released`] with its number: at once where the producer keeps messages in memory only, and after the queue
//! has acknowledged it where the producer is durable. While one append is on its way, accepted messages gather into the
//! next one, so a slow store costs latency and not throughput.
//!
//! ```text
//! Accept ─▶ [queued] ─▶ [batch] ─ Store ─▶ queue ─ Stored ─▶ Released        one call of the queue at a time
//! Confirm ─▶ [pending] ───────── Confirm ─▶ queue                             coalesced, behind the deliveries
//! ```
//!
//! A queue that does not answer is asked again with the identical batch (D7); one that says that it must be loaded anew
//! is loaded, under a raised epoch, and gets the identical batch then. Past the last attempt the machine *degrades*:
//! what is in the queue's hands may be stored or not ([`Effect::Unknown`]), what is not goes back to its sender
//! ([`Effect::GivenBack`]), and the queue is opened again, with pauses, for as long as that takes.
//!
//! A queue whose messages others write, an outbox, is *polled* instead: while nothing else is to be done it is asked for
//! what is new, as much as the controller has room for.
//!
//! `M` is the message as the controller keeps it; a copy of it must be cheap. Source: delivery §4.1, D4 to D9, P14.

mod confirmations;
mod durable;
mod polling;

use std::time::{Duration, Instant};

use crate::ids::{ControllerRef, SeqNr};
use crate::queue::{Confirmation, MessageSent, Qualifier, QueueError, QueueState, TimestampMillis};
use durable::Durable;

/// How a durable producer uses its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoringSettings {
    /// An append or a confirmation without an answer for so long is repeated as it was.
    pub request_timeout: Duration,
    /// Attempts before the messages are given up and the queue is opened anew; at least 1.
    pub retry_attempts: u32,
    /// Messages of one append; at least 1.
    pub max_batch: usize,
    /// Bytes of one append; a larger message is stored alone.
    pub max_batch_bytes: usize,
    /// Confirmed messages after which their confirmations are written.
    pub confirm_flush_count: usize,
    /// Time after which confirmations are written, however few.
    pub confirm_flush_interval: Duration,
    /// First pause before the queue is opened again.
    pub restart_min_backoff: Duration,
    /// Longest pause; pauses double up to it.
    pub restart_max_backoff: Duration,
}

/// A message that was accepted and is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unstored<M> {
    /// Names the message towards the controller.
    pub ticket: u64,
    /// Names the messages that are confirmed together: the entity's id, or `""`.
    pub qualifier: Qualifier,
    /// The message.
    pub message: M,
    /// Its size in bytes.
    pub bytes: usize,
    /// Whether its sender waits for its confirmation.
    pub ack: bool,
    /// When it was accepted.
    pub timestamp_ms: TimestampMillis,
}

/// What the machine asks of the queue. A later call takes the place of an earlier one that has no answer yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call<M> {
    /// Load the queue, which raises its epoch.
    Load,
    /// Store these messages, all or none.
    Store(Vec<MessageSent<M>>),
    /// Store these confirmations.
    Confirm(Vec<Confirmation>),
    /// Hand out messages that others wrote into the queue's store, at most so many.
    Poll(usize),
}

impl<M> Call<M> {
    /// The same call with its messages in another form.
    pub(crate) fn map<N>(self, mut message: impl FnMut(M) -> N) -> Call<N> {
        match self {
            Self::Load => Call::Load,
            Self::Store(batch) => Call::Store(batch.into_iter().map(|sent| sent.map(&mut message)).collect()),
            Self::Confirm(confirmations) => Call::Confirm(confirmations),
            Self::Poll(max_messages) => Call::Poll(max_messages),
        }
    }
}

/// What the queue said to a [`Call`] of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<M> {
    /// To [`Call::Load`].
    Loaded(Result<QueueState<M>, QueueError>),
    /// To [`Call::Store`]: up to which number the queue has the messages.
    Stored(Result<SeqNr, QueueError>),
    /// To [`Call::Confirm`].
    Confirmed(Result<(), QueueError>),
    /// To [`Call::Poll`]: messages that are stored, by rising numbers.
    Polled(Result<Vec<MessageSent<M>>, QueueError>),
}

impl<M> Answer<M> {
    /// The same answer with its messages in another form; where a message has none, the error is the answer.
    pub(crate) fn try_map<N>(
        self,
        message: impl FnMut(MessageSent<M>) -> Result<MessageSent<N>, QueueError>,
    ) -> Answer<N> {
        match self {
            Self::Loaded(loaded) => Answer::Loaded(loaded.and_then(|state| state.try_map(message))),
            Self::Stored(stored) => Answer::Stored(stored),
            Self::Confirmed(stored) => Answer::Confirmed(stored),
            Self::Polled(polled) => {
                Answer::Polled(polled.and_then(|messages| messages.into_iter().map(message).collect()))
            }
        }
    }
}

/// A message that others wrote into the queue's store. It is stored, so it may be sent at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<M> {
    /// The number of the message before it; numbers in between were never given.
    pub after: SeqNr,
    /// The message.
    pub sent: MessageSent<M>,
}

/// An input: of the controller, of its queue, or that time passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<M> {
    /// The controller is made: a durable one loads its queue.
    Start,
    /// The controller accepted a message.
    Accept {
        /// The message.
        message: Unstored<M>,
        /// A number of [`Storing::reserve`]; a durable producer's messages are numbered when they are stored.
        reserved: Option<SeqNr>,
    },
    /// Messages were confirmed by their consumer.
    Confirm {
        /// Which.
        confirmation: Confirmation,
        /// How many messages that confirms.
        messages: usize,
    },
    /// The queue answered.
    Answered {
        /// The call.
        call: u64,
        /// The answer.
        answer: Answer<M>,
    },
    /// The controller closes: confirmations are written, messages that are not in the queue's hands go back.
    Close,
    /// A newer incarnation of the stream is known to be active: nothing is stored any more (P14).
    Fence,
    /// A deadline may have passed.
    Tick,
}

/// What the machine asks for, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<M> {
    /// Call the queue.
    Call {
        /// Names the call in its answer.
        id: u64,
        /// What to do.
        call: Call<M>,
    },
    /// The queue is loaded: at the start, and again whenever it had to be opened anew. From here on everything is sent
    /// under the epoch of this state. Its unconfirmed messages are those that are to be sent; what was confirmed
    /// meanwhile, and what is going to be released, is not among them.
    Opened(QueueState<M>),
    /// A message may be sent: it is stored, or nothing is stored at all. In the order of numbers.
    Released {
        /// The message's ticket.
        ticket: u64,
        /// The message with its number.
        sent: MessageSent<M>,
    },
    /// It cannot be known whether this message is stored. If it is, a later [`Effect::Opened`] has it.
    Unknown {
        /// The message's ticket.
        ticket: u64,
        /// Its qualifier.
        qualifier: Qualifier,
        /// The number that it has if it is stored.
        seq_nr: SeqNr,
    },
    /// A message was not stored, and will not be.
    GivenBack(Unstored<M>),
    /// Storing has come to an end; nothing is released any more. What is given back because of it comes after this.
    Ended(End),
    /// All that could be written is written; the answer to [`Input::Close`].
    Closed,
}

/// Why nothing can be stored any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Another controller writes the queue.
    Fenced {
        /// That controller, if the queue knows.
        by: Option<ControllerRef>,
    },
    /// The queue is behind what it acknowledged, so it has lost messages.
    Lost {
        /// The number that the queue would take next.
        expected: SeqNr,
    },
    /// The numbers of the stream are used up.
    Exhausted,
}

/// How the storing of a producer fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoringState {
    /// Nothing is stored; messages are kept in memory.
    InMemory,
    /// The queue is being loaded for the first time.
    Loading,
    /// The queue takes messages.
    Open,
    /// The queue failed and is being opened again; messages wait.
    Degraded,
    /// The end: closed, fenced, or of numbers.
    Ended,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct Storing<M> {
    /// The number that the next message gets.
    next: u64,
    /// `None` where nothing is stored.
    durable: Option<Box<Durable<M>>>,
    ended: bool,
}

impl<M: Clone> Storing<M> {
    /// Messages are kept in memory alone: each is released at once, and confirmations are not written.
    pub fn in_memory() -> Self {
        Self { next: 1, durable: None, ended: false }
    }

    /// Messages are stored in a queue before they are released.
    pub fn durable(settings: StoringSettings) -> Self {
        Self { next: 1, durable: Some(Box::new(Durable::new(settings))), ended: false }
    }

    /// The same, and its queue is asked for messages that others wrote, so often while there are none. What is
    /// found is to be taken by [`take_found`](Self::take_found) after each input.
    pub fn polling(mut self, interval: Duration) -> Self {
        if let Some(durable) = &mut self.durable {
            durable.poll_every(interval);
        }
        self
    }

    /// Messages that others wrote and that no call has taken yet, by rising numbers.
    pub fn take_found(&mut self) -> Vec<Found<M>> {
        self.durable.as_mut().map_or_else(Vec::new, |durable| durable.take_found())
    }

    /// For how many messages that others wrote the controller has room.
    pub fn has_room_for(&mut self, messages: usize) {
        if let Some(durable) = &mut self.durable {
            durable.has_room_for(messages);
        }
    }

    /// Whether messages are stored.
    pub fn is_durable(&self) -> bool {
        self.durable.is_some()
    }

    /// How storing fares.
    pub fn state(&self) -> StoringState {
        match &self.durable {
            _ if self.ended => StoringState::Ended,
            None => StoringState::InMemory,
            Some(durable) => durable.state(),
        }
    }

    /// The number that the next accepted message gets. A durable producer knows it when its queue is loaded.
    pub fn current_seq_nr(&self) -> SeqNr {
        let queued = self.durable.as_ref().map_or(0, |durable| durable.queued());
        SeqNr(self.next.saturating_add(queued as u64))
    }

    /// Messages that were accepted and neither released nor given up.
    pub fn pending(&self) -> usize {
        self.durable.as_ref().map_or(0, |durable| durable.pending())
    }

    /// A number for a message that is not accepted yet, so that waiting for room changes no numbers; only where nothing
    /// is stored, since a queue has no gaps. `None` where messages are stored, or when the numbers are used up.
    pub fn reserve(&mut self) -> Option<SeqNr> {
        if self.durable.is_some() || self.next == u64::MAX {
            return None;
        }
        self.next += 1;
        Some(SeqNr(self.next - 1))
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<M>, out: &mut Vec<Effect<M>>) {
        if self.ended {
            if let Input::Accept { message, .. } = input {
                out.push(Effect::GivenBack(message));
            }
            return;
        }
        let Some(durable) = &mut self.durable else { return self.in_memory_input(input, out) };
        match input {
            Input::Start => durable.start(now, out),
            Input::Accept { message, .. } => durable.accept(message),
            Input::Confirm { confirmation, messages } => durable.confirm(now, confirmation, messages),
            Input::Answered { call, answer } => durable.answered(now, call, answer, &mut self.next, out),
            Input::Close => durable.close(out),
            Input::Fence => durable.fence(out),
            Input::Tick => durable.tick(now, out),
        }
        durable.go_on(now, &mut self.next, out);
        self.ended = durable.is_over();
    }

    fn in_memory_input(&mut self, input: Input<M>, out: &mut Vec<Effect<M>>) {
        match input {
            Input::Accept { message, reserved } => match reserved.or_else(|| self.reserve()) {
                Some(seq_nr) => {
                    let ticket = message.ticket;
                    out.push(Effect::Released { ticket, sent: message.numbered(seq_nr) });
                }
                None => {
                    self.ended = true;
                    out.push(Effect::Ended(End::Exhausted));
                    out.push(Effect::GivenBack(message));
                }
            },
            Input::Close => {
                self.ended = true;
                out.push(Effect::Closed);
            }
            Input::Fence => self.ended = true,
            Input::Start | Input::Confirm { .. } | Input::Answered { .. } | Input::Tick => {}
        }
    }

    /// When a tick next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.ended { None } else { self.durable.as_ref()?.next_deadline() }
    }
}

impl<M> Unstored<M> {
    /// The message under its number.
    fn numbered(self, seq_nr: SeqNr) -> MessageSent<M> {
        let Self { qualifier, message, ack, timestamp_ms, .. } = self;
        MessageSent { seq_nr, message, ack, qualifier, timestamp_ms }
    }
}
