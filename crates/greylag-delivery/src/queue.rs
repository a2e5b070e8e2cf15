//! The messages that a durable producer keeps until they are confirmed, and the rules for changes of that state.
//!
//! A producer that must survive its own death stores every message before it sends it. Its state is a [`QueueState`]:
//! the unconfirmed messages, the number of the next one, and the numbers confirmed under each [`Qualifier`].
//! [`StoredQueue`] has the rules, D1 to D5, as a value without any store; producers use the trait
//! [`DurableProducerQueue`](crate::DurableProducerQueue). A store that can change some rows atomically only needs to
//! implement [`QueueStore`](crate::QueueStore), which makes one [`QueueChange`] at a time.
//!
//! ```text
//!             D4: written, known already, or out of order          D5: written, or known already
//! batch ──▶ StoredQueue::judge_batch ──▶ [store] ──▶ add     confirmations ──▶ judge ──▶ [store] ──▶ confirm
//! ```
//!
//! The state changes only after the store has acknowledged the change: a judged batch is written first and then
//! applied, so that a state never has a message that a crash could take back.
//!
//! Source: delivery §4.1, §4.2.

#[cfg(feature = "persistence")]
pub(crate) mod behavior;
pub(crate) mod kv;
#[cfg(feature = "persistence")]
pub(crate) mod outbox;
#[cfg(feature = "persistence")]
pub(crate) mod persistent;
mod records;
mod rows;
mod settings;
mod stored;
#[cfg(feature = "persistence")]
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};

pub use records::{confirmed_from_bytes, confirmed_to_bytes};
pub use rows::{QueueChange, QueueClaim, QueueHead, QueueRows, QueueStoreError};
pub use settings::{EventSourcedQueueSettings, KvQueueSettings, OutboxSettings};
pub use stored::{Started, StoredQueue};

/// Identifies the messages whose confirmations are cumulative together: the entity's id under sharding, `""` otherwise.
pub type Qualifier = Arc<str>;

/// Milliseconds since the Unix epoch, by the clock of the producer.
pub type TimestampMillis = u64;

/// A stored message: stored once and whole, even if it is sent in chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageSent<T> {
    /// The number of the message in the stream; contiguous from message to message.
    pub seq_nr: SeqNr,
    /// The message.
    pub message: T,
    /// Whether the sender waits for the confirmation.
    pub ack: bool,
    /// The receiving entity, under sharding.
    pub qualifier: Qualifier,
    /// When the message was accepted.
    pub timestamp_ms: TimestampMillis,
}

impl<T> MessageSent<T> {
    /// Converts the message.
    pub fn map<U>(self, message: impl FnOnce(T) -> U) -> MessageSent<U> {
        let Self { seq_nr, ack, qualifier, timestamp_ms, .. } = self;
        MessageSent { seq_nr, message: message(self.message), ack, qualifier, timestamp_ms }
    }

    /// Converts the message, if the conversion succeeds.
    ///
    /// # Errors
    /// The error of the conversion `message`.
    pub fn try_map<U, E>(self, message: impl FnOnce(SeqNr, T) -> Result<U, E>) -> Result<MessageSent<U>, E> {
        let Self { seq_nr, ack, qualifier, timestamp_ms, .. } = self;
        Ok(MessageSent { seq_nr, message: message(seq_nr, self.message)?, ack, qualifier, timestamp_ms })
    }
}

/// Messages that were confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmation {
    /// All messages of one qualifier up to a number: for point to point and sharding, where a qualifier's messages are
    /// confirmed in order.
    UpTo {
        /// The qualifier of the messages.
        qualifier: Qualifier,
        /// The last one confirmed.
        seq_nr: SeqNr,
        /// When they were confirmed.
        timestamp_ms: TimestampMillis,
    },
    /// Exactly these messages: for work pulling, where messages are confirmed in any order.
    Exact {
        /// Their numbers.
        seq_nrs: Vec<SeqNr>,
        /// When they were confirmed.
        timestamp_ms: TimestampMillis,
    },
}

/// The state with which a producer starts: every message that is stored and unconfirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueState<T> {
    /// The stream (numbering space) of the queue; never changes.
    pub stream_id: StreamId,
    /// The epoch of this load, for every frame that is sent and every write that is made.
    pub epoch: Epoch,
    /// The number of the next message.
    pub current_seq_nr: SeqNr,
    /// The highest confirmed number of any qualifier; lower ones may be unconfirmed.
    pub highest_confirmed_seq_nr: SeqNr,
    /// For each qualifier in use the highest confirmed number, and when it was confirmed.
    pub confirmed_seq_nr: BTreeMap<Qualifier, (SeqNr, TimestampMillis)>,
    /// The unconfirmed messages, by rising numbers.
    pub unconfirmed: Vec<MessageSent<T>>,
}

impl<T> QueueState<T> {
    /// Converts the messages.
    pub fn map<U>(self, mut message: impl FnMut(MessageSent<T>) -> MessageSent<U>) -> QueueState<U> {
        let Ok(state) = self.try_map(|sent| Ok::<_, Infallible>(message(sent)));
        state
    }

    /// Converts the messages, if every conversion succeeds.
    ///
    /// # Errors
    /// The first error of the conversion `message`.
    pub fn try_map<U, E>(
        self,
        message: impl FnMut(MessageSent<T>) -> Result<MessageSent<U>, E>,
    ) -> Result<QueueState<U>, E> {
        let Self { stream_id, epoch, current_seq_nr, highest_confirmed_seq_nr, confirmed_seq_nr, .. } = self;
        let unconfirmed = self.unconfirmed.into_iter().map(message).collect::<Result<_, _>>()?;
        Ok(QueueState { stream_id, epoch, current_seq_nr, highest_confirmed_seq_nr, confirmed_seq_nr, unconfirmed })
    }
}

/// Why a call of a queue failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Another controller writes this queue, or the numbers are not this controller's. Nothing of the call is stored,
    /// nor will be: the controller must end. Source: delivery P14.
    #[error("fenced: the queue belongs to {}", by.as_ref().map_or("another controller".to_owned(), ToString::to_string))]
    Fenced {
        /// The controller that started the queue last, as far as this controller could see.
        by: Option<ControllerRef>,
    },
    /// The batch does not begin where the queue ends, or has a gap; or a confirmed number was never stored. Nothing of
    /// the call is stored: continue with `expected`.
    #[error("out of order: the queue expects message {expected}")]
    OutOfOrder {
        /// The first missing number.
        expected: SeqNr,
    },
    /// The store refuses this batch for its content. Nothing of it is stored; load again, and give the messages back to
    /// their senders.
    #[error("the queue's store refuses the batch: {0}")]
    Rejected(String),
    /// The store could not be reached, and certainly has nothing of the call: load again, then repeat the call.
    #[error("nothing was stored: {0}")]
    NotStored(String),
    /// It is unknown whether the call was stored: load again, then repeat the same call, which stores the missing part.
    #[error("it is unknown whether the queue stored this")]
    OutcomeUnknown,
    /// The queue was not loaded, or has restarted since. Nothing of the call is stored: load, then repeat the call.
    #[error("the queue must be loaded before it is written")]
    NotLoaded,
    /// A stored message cannot be decoded by the codec of the queue. No message is lost: open the queue with a codec
    /// that can decode it.
    #[error("message {seq_nr} of the queue cannot be read: {cause}")]
    Unreadable {
        /// The number of the message.
        seq_nr: SeqNr,
        /// The error of the codec.
        #[source]
        cause: greylag_core::DecodeError,
    },
    /// The codec of the queue refuses a message. Nothing of the batch is stored.
    #[error("message {seq_nr} cannot be encoded: {cause}")]
    Unencodable {
        /// The number of the message.
        seq_nr: SeqNr,
        /// The error of the codec.
        #[source]
        cause: greylag_core::EncodeError,
    },
    /// The queue has ended and will not answer any more; its stored state is kept. Open the queue again.
    #[error("the queue has ended: {0}")]
    Closed(String),
}

impl Confirmation {
    /// Merges confirmations: of each qualifier only the highest number, and all exact numbers in one. For programs that
    /// collect confirmations before storing them.
    ///
    /// ```
    /// use greylag_delivery::{SeqNr, queue::Confirmation};
    ///
    /// let exact = |seq_nr| Confirmation::Exact { seq_nrs: vec![SeqNr(seq_nr)], timestamp_ms: 7 };
    /// let both = Confirmation::Exact { seq_nrs: vec![SeqNr(1), SeqNr(3)], timestamp_ms: 7 };
    /// assert_eq!(Confirmation::coalesced([exact(3), exact(1), exact(3)]), [both]);
    /// ```
    ///
    /// Source: delivery D5.
    pub fn coalesced(confirmations: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut highest: BTreeMap<Qualifier, (SeqNr, TimestampMillis)> = BTreeMap::new();
        let mut exact = std::collections::BTreeSet::new();
        let mut exact_at = 0;
        for confirmation in confirmations {
            match confirmation {
                Self::UpTo { qualifier, seq_nr, timestamp_ms } => {
                    let entry = highest.entry(qualifier).or_insert((seq_nr, timestamp_ms));
                    *entry = (entry.0.max(seq_nr), entry.1.max(timestamp_ms));
                }
                Self::Exact { seq_nrs, timestamp_ms } => {
                    exact_at = timestamp_ms.max(exact_at);
                    exact.extend(seq_nrs);
                }
            }
        }
        let up_to = |(qualifier, (seq_nr, timestamp_ms))| Self::UpTo { qualifier, seq_nr, timestamp_ms };
        let mut coalesced: Vec<_> = highest.into_iter().map(up_to).collect();
        if !exact.is_empty() {
            coalesced.push(Self::Exact { seq_nrs: exact.into_iter().collect(), timestamp_ms: exact_at });
        }
        coalesced
    }
}
