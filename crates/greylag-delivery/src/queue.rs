//! The messages that a durable producer keeps until they are confirmed, and the rules by which that state changes.
//!
//! A producer that must survive its own death stores every message before it sends it. Its state is
//! a [`QueueState`]: the messages that no consumer confirmed yet, the number of the next one,
//! and the numbers confirmed under each [`Qualifier`]. [`StoredQueue`] holds the rules, D1 to D5, as a
//! value without any store; the trait that a producer sees is
//! [`DurableProducerQueue`](crate::DurableProducerQueue). A store that can change some rows together needs to
//! implement no more than [`QueueStore`](crate::QueueStore), which takes a [`QueueChange`] at a time.
//!
//! ```text
//!             D4: written, known already, or out of order          D5: written, or known already
//! batch ──▶ StoredQueue::judge_batch ──▶ [store] ──▶ add     confirmations ──▶ judge ──▶ [store] ──▶ confirm
//! ```
//!
//! Nothing here changes before the store said yes: a judged batch is written first and applied
//! then, so that a state never holds a message that a crash could take back.
//!
//! Source: delivery §4.1, §4.2.

#[cfg(feature = "persistence")]
pub(crate) mod behavior;
#[cfg(feature = "persistence")]
pub(crate) mod kept;
pub(crate) mod kv;
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

/// Names the messages whose confirmations are cumulative together: the entity's id under sharding, `""` otherwise.
pub type Qualifier = Arc<str>;

/// Milliseconds since the Unix epoch, by the clock of the producer.
pub type TimestampMillis = u64;

/// A message as it is stored: once and whole, whatever it is cut into on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageSent<T> {
    /// Its number in the stream; contiguous from message to message.
    pub seq_nr: SeqNr,
    /// The message.
    pub message: T,
    /// Whether its sender waits for its confirmation.
    pub ack: bool,
    /// The entity that it goes to, under sharding.
    pub qualifier: Qualifier,
    /// When it was accepted.
    pub timestamp_ms: TimestampMillis,
}

impl<T> MessageSent<T> {
    /// The same message in another form.
    pub fn map<U>(self, message: impl FnOnce(T) -> U) -> MessageSent<U> {
        let Self { seq_nr, ack, qualifier, timestamp_ms, .. } = self;
        MessageSent { seq_nr, message: message(self.message), ack, qualifier, timestamp_ms }
    }

    /// The same message in another form, if there is one.
    ///
    /// # Errors
    /// That of `message`.
    pub fn try_map<U, E>(self, message: impl FnOnce(SeqNr, T) -> Result<U, E>) -> Result<MessageSent<U>, E> {
        let Self { seq_nr, ack, qualifier, timestamp_ms, .. } = self;
        Ok(MessageSent { seq_nr, message: message(seq_nr, self.message)?, ack, qualifier, timestamp_ms })
    }
}

/// Messages that were confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmation {
    /// All messages of one qualifier up to a number: those of point to point and of sharding, where
    /// a qualifier's messages are confirmed in their order.
    UpTo {
        /// The qualifier of the messages.
        qualifier: Qualifier,
        /// The last one confirmed.
        seq_nr: SeqNr,
        /// When they were confirmed.
        timestamp_ms: TimestampMillis,
    },
    /// Exactly these: of work pulling, where messages are confirmed in any order.
    Exact {
        /// Their numbers.
        seq_nrs: Vec<SeqNr>,
        /// When they were confirmed.
        timestamp_ms: TimestampMillis,
    },
}

/// What a producer begins with: everything that is stored and not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueState<T> {
    /// The numbering space of the queue: given once, and never changed.
    pub stream_id: StreamId,
    /// The incarnation that this load began. Every frame is sent, and every write made, under it.
    pub epoch: Epoch,
    /// The number of the next message.
    pub current_seq_nr: SeqNr,
    /// The highest number ever confirmed, of any qualifier; lower ones may be unconfirmed.
    pub highest_confirmed_seq_nr: SeqNr,
    /// For each qualifier in use the highest number confirmed, and when.
    pub confirmed_seq_nr: BTreeMap<Qualifier, (SeqNr, TimestampMillis)>,
    /// What is not confirmed, by rising numbers.
    pub unconfirmed: Vec<MessageSent<T>>,
}

impl<T> QueueState<T> {
    /// The same state with its messages in another form.
    pub fn map<U>(self, mut message: impl FnMut(MessageSent<T>) -> MessageSent<U>) -> QueueState<U> {
        let Ok(state) = self.try_map(|sent| Ok::<_, Infallible>(message(sent)));
        state
    }

    /// The same state with its messages in another form, if each of them has one.
    ///
    /// # Errors
    /// The first one of `message`.
    pub fn try_map<U, E>(
        self,
        message: impl FnMut(MessageSent<T>) -> Result<MessageSent<U>, E>,
    ) -> Result<QueueState<U>, E> {
        let Self { stream_id, epoch, current_seq_nr, highest_confirmed_seq_nr, confirmed_seq_nr, .. } = self;
        let unconfirmed = self.unconfirmed.into_iter().map(message).collect::<Result<_, _>>()?;
        Ok(QueueState { stream_id, epoch, current_seq_nr, highest_confirmed_seq_nr, confirmed_seq_nr, unconfirmed })
    }
}

/// Why a queue did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Another controller writes this queue, or the numbers are not this controller's. Nothing of
    /// the call is stored, and nothing ever will be: the controller ends here. Source: delivery P14.
    #[error("fenced: the queue belongs to {}", by.as_ref().map_or("another controller".to_owned(), ToString::to_string))]
    Fenced {
        /// The controller that started the queue last, as far as this controller could see.
        by: Option<ControllerRef>,
    },
    /// A batch that does not begin where the queue ends, or has a gap; or a confirmation of a number
    /// that was never stored. Nothing of the call is stored: go on with `expected`.
    #[error("the next number of the queue is {expected}")]
    OutOfOrder {
        /// The first number that is missing.
        expected: SeqNr,
    },
    /// The store refuses this batch as such. Nothing of it is stored; load again, and give the
    /// messages back to their senders.
    #[error("the queue's store refuses this: {0}")]
    Rejected(String),
    /// The store could not be reached, and certainly holds nothing of the call: load again, then
    /// repeat it.
    #[error("nothing was stored: {0}")]
    NotStored(String),
    /// It cannot be known whether the call was stored: load again, then repeat the same call, which writes what
    /// is missing.
    #[error("it is unknown whether the queue stored this")]
    OutcomeUnknown,
    /// The queue was not loaded, or began anew since. Nothing of the call is stored: load, then
    /// repeat it.
    #[error("the queue must be loaded before it is written")]
    NotLoaded,
    /// A stored message cannot be read by the codec of the queue. Nothing is lost: open the queue
    /// with a codec that knows it.
    #[error("message {seq_nr} of the queue cannot be read: {cause}")]
    Unreadable {
        /// Which message.
        seq_nr: SeqNr,
        /// What the codec says.
        #[source]
        cause: greylag_core::DecodeError,
    },
    /// The codec of the queue refuses a message. Nothing of the batch is stored.
    #[error("message {seq_nr} cannot be encoded: {cause}")]
    Unencodable {
        /// Which message.
        seq_nr: SeqNr,
        /// What the codec says.
        #[source]
        cause: greylag_core::EncodeError,
    },
    /// The queue has ended and will not answer any more; its stored state is kept. Open it anew.
    #[error("the queue has ended: {0}")]
    Closed(String),
}

impl Confirmation {
    /// The same confirmations in the fewest words: of each qualifier the highest number only, and
    /// all exact numbers as one. For programs that collect confirmations before writing them.
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
