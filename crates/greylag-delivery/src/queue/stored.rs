//! The rules of a queue as a value: the events to write, and the state after them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Confirmation, MessageSent, Qualifier, QueueError, QueueState, TimestampMillis};
use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};

/// The stored state of one queue. `M` is the kept form of a message.
///
/// Judging changes nothing; a judged batch is applied once it is stored. The cost of a confirmation depends only on the
/// messages that it confirms, not on messages of other qualifiers. Source: delivery D1 to D5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredQueue<M> {
    started: Option<Started>,
    current: SeqNr,
    highest_confirmed: SeqNr,
    confirmed: BTreeMap<Qualifier, (SeqNr, TimestampMillis)>,
    unconfirmed: BTreeMap<SeqNr, MessageSent<M>>,
    of_qualifier: BTreeMap<Qualifier, BTreeSet<SeqNr>>,
}

/// The newest start of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The stream (numbering space), the same in every start.
    pub stream_id: StreamId,
    /// The epoch, higher in every start.
    pub epoch: Epoch,
    /// The controller that started the queue.
    pub controller: ControllerRef,
}

impl<M> Default for StoredQueue<M> {
    /// An empty queue: the first message will be 1.
    fn default() -> Self {
        Self {
            started: None,
            current: SeqNr(1),
            highest_confirmed: SeqNr::NONE,
            confirmed: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
            of_qualifier: BTreeMap::new(),
        }
    }
}

impl<M> StoredQueue<M> {
    /// A queue that continues at `current`, as read from its store; messages with lower numbers are added afterwards.
    pub fn restored(
        started: Option<Started>,
        current: SeqNr,
        highest_confirmed: SeqNr,
        confirmed: BTreeMap<Qualifier, (SeqNr, TimestampMillis)>,
        unconfirmed: impl IntoIterator<Item = MessageSent<M>>,
    ) -> Self {
        let mut queue = Self { started, highest_confirmed, confirmed, ..Self::default() };
        unconfirmed.into_iter().for_each(|message| queue.add(message));
        queue.current = current;
        queue
    }

    /// The last start of the queue; `None` before the first one.
    pub fn started(&self) -> Option<&Started> {
        self.started.as_ref()
    }

    /// The number of the next message.
    pub fn current(&self) -> SeqNr {
        self.current
    }

    /// The highest confirmed number.
    pub fn highest_confirmed(&self) -> SeqNr {
        self.highest_confirmed
    }

    /// For each qualifier the highest confirmed number, and when it was confirmed.
    pub fn confirmed(&self) -> &BTreeMap<Qualifier, (SeqNr, TimestampMillis)> {
        &self.confirmed
    }

    /// The unconfirmed messages, by rising numbers.
    pub fn unconfirmed(&self) -> impl Iterator<Item = &MessageSent<M>> {
        self.unconfirmed.values()
    }

    /// The unconfirmed messages from a number on, by rising numbers.
    #[cfg(feature = "persistence")]
    pub(crate) fn unconfirmed_from(&self, first: SeqNr) -> impl Iterator<Item = &MessageSent<M>> {
        self.unconfirmed.range(first..).map(|(_, message)| message)
    }

    /// The kept form of an unconfirmed message.
    #[cfg(feature = "persistence")]
    pub(crate) fn message_mut(&mut self, seq_nr: SeqNr) -> Option<&mut M> {
        self.unconfirmed.get_mut(&seq_nr).map(|sent| &mut sent.message)
    }

    /// The state with which a producer that loads the queue starts; `None` before the first start. `message` converts
    /// each message from its kept form.
    ///
    /// # Errors
    /// The error of `message`.
    pub fn loaded<T, E>(&self, message: impl Fn(&M) -> Result<T, E>) -> Result<Option<QueueState<T>>, E> {
        let Some(started) = &self.started else { return Ok(None) };
        let sent = |sent: &MessageSent<M>| {
            Ok(MessageSent {
                seq_nr: sent.seq_nr,
                message: message(&sent.message)?,
                ack: sent.ack,
                qualifier: sent.qualifier.clone(),
                timestamp_ms: sent.timestamp_ms,
            })
        };
        Ok(Some(QueueState {
            stream_id: started.stream_id,
            epoch: started.epoch,
            current_seq_nr: self.current,
            highest_confirmed_seq_nr: self.highest_confirmed,
            confirmed_seq_nr: self.confirmed.clone(),
            unconfirmed: self.unconfirmed.values().map(sent).collect::<Result<_, _>>()?,
        }))
    }

    // ---- judging: what must be written --------------------------------------------------------------

    /// The part of a batch that must be stored: all of it, the missing end, or nothing. `known` is the last number that
    /// this controller assigned, or found when it started. Source: delivery D4.
    ///
    /// # Errors
    /// [`QueueError::OutOfOrder`] if the batch begins above the end of the queue or has a gap; [`QueueError::Fenced`]
    /// if it repeats a number that another controller assigned.
    pub fn judge_batch<T>(
        &self,
        mut batch: Vec<MessageSent<T>>,
        known: SeqNr,
    ) -> Result<Vec<MessageSent<T>>, QueueError> {
        let Some(first) = batch.first().map(|message| message.seq_nr) else { return Ok(batch) };
        if first == SeqNr::NONE || first > self.current {
            return Err(QueueError::OutOfOrder { expected: self.current });
        }
        let numbers = (first.get()..=u64::MAX).map(SeqNr);
        if let Some((expected, _)) = numbers.zip(&batch).find(|(expected, message)| message.seq_nr != *expected) {
            return Err(QueueError::OutOfOrder { expected });
        }
        let repeated = batch.iter().map(|message| message.seq_nr).take_while(|seq_nr| *seq_nr < self.current).last();
        // This controller neither assigned nor loaded that number, so the stored message is another one.
        if repeated.is_some_and(|last| last > known) {
            return Err(self.fenced());
        }
        batch.retain(|message| message.seq_nr >= self.current);
        if batch.last().is_some_and(|last| last.seq_nr.get() == u64::MAX) {
            return Err(QueueError::Rejected("the numbers of this stream are used up".to_owned()));
        }
        Ok(batch)
    }

    /// The confirmations that are new, merged. Source: delivery D5.
    ///
    /// # Errors
    /// [`QueueError::OutOfOrder`] if a number was never stored: the confirmation would precede its message.
    pub fn judge_confirmations(&self, confirmations: Vec<Confirmation>) -> Result<Vec<Confirmation>, QueueError> {
        let mut news = Confirmation::coalesced(confirmations);
        let stored = |seq_nr: &SeqNr| *seq_nr < self.current;
        let all_stored = news.iter().all(|confirmation| match confirmation {
            Confirmation::UpTo { seq_nr, .. } => stored(seq_nr),
            Confirmation::Exact { seq_nrs, .. } => seq_nrs.iter().all(stored),
        });
        if !all_stored {
            return Err(QueueError::OutOfOrder { expected: self.current });
        }
        news.retain_mut(|confirmation| match confirmation {
            Confirmation::UpTo { qualifier, seq_nr, .. } => {
                self.confirmed.get(qualifier).is_none_or(|(confirmed, _)| *seq_nr > *confirmed)
            }
            Confirmation::Exact { seq_nrs, .. } => {
                seq_nrs.retain(|seq_nr| self.unconfirmed.contains_key(seq_nr));
                !seq_nrs.is_empty()
            }
        });
        Ok(news)
    }

    /// The unconfirmed messages that a confirmation covers, by rising numbers.
    pub fn confirmed_by(&self, confirmation: &Confirmation) -> Vec<SeqNr> {
        match confirmation {
            Confirmation::UpTo { qualifier, seq_nr, .. } => {
                let waiting = self.of_qualifier.get(qualifier).into_iter().flatten();
                waiting.copied().take_while(|waiting| waiting <= seq_nr).collect()
            }
            Confirmation::Exact { seq_nrs, .. } => {
                let waiting: BTreeSet<SeqNr> =
                    seq_nrs.iter().copied().filter(|seq_nr| self.unconfirmed.contains_key(seq_nr)).collect();
                waiting.into_iter().collect()
            }
        }
    }

    /// The qualifiers whose last confirmation is at least `unused_after` old, and which have no unconfirmed message.
    /// Source: delivery §4.2 (cleanup).
    pub fn unused_qualifiers(&self, now_ms: TimestampMillis, unused_after: Duration) -> Vec<Qualifier> {
        let unused_after = u64::try_from(unused_after.as_millis()).unwrap_or(u64::MAX);
        let is_unused = |(qualifier, (_, confirmed_at)): &(&Qualifier, &(SeqNr, TimestampMillis))| {
            now_ms.saturating_sub(*confirmed_at) >= unused_after && !self.of_qualifier.contains_key(*qualifier)
        };
        self.confirmed.iter().filter(is_unused).map(|(qualifier, _)| qualifier.clone()).collect()
    }

    /// The error for a controller that is not the writer of this queue.
    pub(crate) fn fenced(&self) -> QueueError {
        QueueError::Fenced { by: self.started.as_ref().map(|started| started.controller.clone()) }
    }

    // ---- applying: what was written -----------------------------------------------------------------

    /// Applies a start by a controller.
    pub fn start(&mut self, started: Started) {
        self.started = Some(started);
    }

    /// Applies the storing of a message. Source: delivery D1.
    pub fn add(&mut self, message: MessageSent<M>) {
        self.current = self.current.max(SeqNr(message.seq_nr.get().saturating_add(1)));
        // A damaged history may have two messages with one number.
        self.remove(message.seq_nr);
        self.of_qualifier.entry(message.qualifier.clone()).or_default().insert(message.seq_nr);
        self.unconfirmed.insert(message.seq_nr, message);
    }

    /// Applies a confirmation. Source: delivery D2.
    pub fn confirm(&mut self, confirmation: &Confirmation) {
        for seq_nr in self.confirmed_by(confirmation) {
            self.remove(seq_nr);
        }
        match confirmation {
            Confirmation::UpTo { qualifier, seq_nr, timestamp_ms } => {
                self.highest_confirmed = self.highest_confirmed.max(*seq_nr);
                self.confirmed.insert(qualifier.clone(), (*seq_nr, *timestamp_ms));
            }
            Confirmation::Exact { seq_nrs, .. } => {
                self.highest_confirmed =
                    seq_nrs.iter().fold(self.highest_confirmed, |highest, next| highest.max(*next));
            }
        }
    }

    fn remove(&mut self, seq_nr: SeqNr) {
        let Some(message) = self.unconfirmed.remove(&seq_nr) else { return };
        if let Some(others) = self.of_qualifier.get_mut(&message.qualifier) {
            others.remove(&seq_nr);
            if others.is_empty() {
                self.of_qualifier.remove(&message.qualifier);
            }
        }
    }

    /// Applies the removal of these qualifiers' confirmations. Source: delivery D3.
    pub fn forget<'a>(&mut self, qualifiers: impl IntoIterator<Item = &'a Qualifier>) {
        for qualifier in qualifiers {
            self.confirmed.remove(qualifier);
        }
    }
}

#[cfg(test)]
mod tests;
