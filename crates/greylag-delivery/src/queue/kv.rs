//! The rules of a queue in a store of rows: the change that each call makes, and the state after it is stored.
//!
//! ```text
//! load ──▶ [head] ──▶ claim: epoch + 1, if the epoch is as it was read ──▶ [rows] ──▶ loaded
//! store, confirm ──▶ judged by D4, D5 ──▶ change, if the head has the epoch of the load ──▶ written
//! ```
//!
//! The claim precedes the reading of the rows: afterwards nothing of an older epoch is written, so that the rows read
//! are the queue's state. A controller whose start is known to be stored does not claim a queue that another controller
//! has started since; a controller whose claims were never answered does, because the newest start may be that of a
//! dead predecessor.
//!
//! Source: delivery §4.1, §4.4, D4, D5.

use std::collections::BTreeSet;
use std::time::Duration;

use greylag_core::Encoded;

use super::rows::{QueueChange, QueueClaim, QueueHead, QueueRows};
use super::stored::{Started, StoredQueue};
use super::{Confirmation, MessageSent, Qualifier, QueueError, QueueState, TimestampMillis};
use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};

/// Maximum number of qualifiers forgotten by one change; the rest follows with later ones.
const FORGOTTEN_AT_ONCE: usize = 1000;

/// One incarnation of the queue in one process.
#[derive(Debug)]
pub(crate) struct KvQueue {
    cleanup_unused_after: Duration,
    writer: Option<Writer>,
    /// Numbers and qualifiers of the stored messages, while the queue is loaded.
    rows: Option<StoredQueue<()>>,
    cleaned_up_ms: TimestampMillis,
}

/// The controller that loads the queue.
#[derive(Debug)]
struct Writer {
    controller: ControllerRef,
    /// The last number that it assigned, or found at its first load.
    known: Option<SeqNr>,
    /// Whether a start of it is known to be stored: acknowledged by the store, or read.
    has_started: bool,
}

impl KvQueue {
    pub(crate) fn new(cleanup_unused_after: Duration) -> Self {
        Self { cleanup_unused_after, writer: None, rows: None, cleaned_up_ms: 0 }
    }

    /// Ends the load: calls are refused until the next one.
    pub(crate) fn unload(&mut self) {
        self.rows = None;
    }

    // ---- loading ----------------------------------------------------------------------------------

    /// The claim that makes `controller` the writer of the queue with the head row `head`.
    pub(crate) fn claim(
        &mut self,
        head: Option<&QueueHead>,
        controller: &ControllerRef,
        fresh_stream: StreamId,
    ) -> Result<QueueClaim, QueueError> {
        self.unload();
        let writer = self.writer.take().filter(|writer| writer.controller == *controller);
        let fresh = || Writer { controller: controller.clone(), known: None, has_started: false };
        let writer = self.writer.insert(writer.unwrap_or_else(fresh));
        if head.is_some_and(|head| head.controller == *controller) {
            writer.has_started = true;
        } else if writer.has_started {
            return Err(fenced(head));
        }
        let expected = head.map(|head| head.epoch);
        let Some(epoch) = expected.map_or(Some(Epoch::FIRST), |epoch| epoch.0.checked_add(1).map(Epoch)) else {
            return Err(QueueError::Rejected("the epochs of this queue are used up".into()));
        };
        let stream_id = head.map_or(fresh_stream, |head| head.stream_id);
        Ok(QueueClaim { expected, epoch, controller: controller.clone(), stream_id })
    }

    /// Notes that the claim is stored.
    pub(crate) fn claimed(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.has_started = true;
        }
    }

    /// Takes the rows read after the claim of `epoch`; returns the state with which the controller starts.
    pub(crate) fn loaded(&mut self, rows: QueueRows, epoch: Epoch) -> Result<QueueState<Encoded>, QueueError> {
        let QueueRows { head, confirmed, messages } = rows;
        let (Some(writer), true) = (&mut self.writer, head.epoch == epoch) else {
            return Err(fenced(Some(&head)));
        };
        writer.known.get_or_insert(SeqNr(head.current.get().saturating_sub(1)));
        let QueueHead { stream_id, epoch, controller, current, highest_confirmed } = head;
        let confirmed = confirmed.into_iter().map(|(qualifier, seq_nr, at)| (qualifier, (seq_nr, at))).collect();
        let started = Some(Started { stream_id, epoch, controller });
        let numbers = messages.iter().map(number_of);
        let rows = StoredQueue::restored(started, current, highest_confirmed, confirmed, numbers);
        let confirmed_seq_nr = rows.confirmed().clone();
        self.rows = Some(rows);
        self.cleaned_up_ms = 0;
        Ok(QueueState {
            stream_id,
            epoch,
            current_seq_nr: current,
            highest_confirmed_seq_nr: highest_confirmed,
            confirmed_seq_nr,
            unconfirmed: messages,
        })
    }

    // ---- changing -----------------------------------------------------------------------------------

    /// The change for a batch; `None` if all of it is stored. Source: delivery D4.
    pub(crate) fn store(
        &mut self,
        batch: Vec<MessageSent<Encoded>>,
        now_ms: TimestampMillis,
    ) -> Result<Option<QueueChange>, QueueError> {
        let (rows, writer) = self.loaded_rows()?;
        let known = writer.known.unwrap_or_default();
        let missing = rows.judge_batch(batch, known)?;
        let Some(last) = missing.last().map(|last| last.seq_nr) else { return Ok(None) };
        let mut change = unchanged(rows)?;
        change.current = SeqNr(last.get().saturating_add(1));
        change.messages = missing;
        // The numbers count as assigned even if the write fails.
        if let Some(writer) = &mut self.writer {
            writer.known = Some(known.max(last));
        }
        self.forget_unused(&mut change, now_ms);
        Ok(Some(change))
    }

    /// The change for confirmations; `None` if all are known. Source: delivery D5.
    pub(crate) fn confirm(
        &mut self,
        confirmations: Vec<Confirmation>,
        now_ms: TimestampMillis,
    ) -> Result<Option<QueueChange>, QueueError> {
        let (rows, _) = self.loaded_rows()?;
        let news = rows.judge_confirmations(confirmations)?;
        if news.is_empty() {
            return Ok(None);
        }
        let mut change = unchanged(rows)?;
        let mut highest = rows.highest_confirmed();
        for confirmation in &news {
            change.removed.extend(rows.confirmed_by(confirmation));
            match confirmation {
                Confirmation::UpTo { qualifier, seq_nr, timestamp_ms } => {
                    highest = highest.max(*seq_nr);
                    change.confirmed.push((qualifier.clone(), *seq_nr, *timestamp_ms));
                }
                Confirmation::Exact { seq_nrs, .. } => {
                    highest = seq_nrs.iter().fold(highest, |highest, seq_nr| highest.max(*seq_nr));
                }
            }
        }
        change.removed.sort_unstable();
        change.removed.dedup();
        change.highest_confirmed = highest;
        self.forget_unused(&mut change, now_ms);
        Ok(Some(change))
    }

    /// The change that forgets unused qualifiers, if there are any. Source: delivery §4.2 (cleanup).
    pub(crate) fn clean_up(&mut self, now_ms: TimestampMillis) -> Result<Option<QueueChange>, QueueError> {
        let (rows, _) = self.loaded_rows()?;
        let mut change = unchanged(rows)?;
        self.forget_unused(&mut change, now_ms);
        Ok((!change.forgotten.is_empty()).then_some(change))
    }

    /// Notes that messages of an outbox were numbered, and are stored under these numbers. Source: delivery §4.4.
    pub(crate) fn numbered(&mut self, messages: &[MessageSent<Encoded>]) -> Result<(), QueueError> {
        let rows = self.rows.as_mut().ok_or(QueueError::NotLoaded)?;
        let mut expected = rows.current();
        for message in messages {
            if message.seq_nr < expected || message.seq_nr.get() == u64::MAX {
                return Err(QueueError::OutOfOrder { expected });
            }
            expected = SeqNr(message.seq_nr.get() + 1);
        }
        messages.iter().for_each(|message| rows.add(number_of(message)));
        Ok(())
    }

    /// Notes that a change of this load is stored.
    pub(crate) fn written(&mut self, change: &QueueChange) {
        let Some(rows) = &mut self.rows else { return };
        for message in &change.messages {
            rows.add(number_of(message));
        }
        for (qualifier, seq_nr, timestamp_ms) in &change.confirmed {
            let (qualifier, seq_nr, timestamp_ms) = (qualifier.clone(), *seq_nr, *timestamp_ms);
            rows.confirm(&Confirmation::UpTo { qualifier, seq_nr, timestamp_ms });
        }
        let seq_nrs = change.removed.clone();
        rows.confirm(&Confirmation::Exact { seq_nrs, timestamp_ms: 0 });
        rows.forget(&change.forgotten);
    }

    /// The highest number up to which every message is stored.
    pub(crate) fn stored_up_to(&self) -> Result<SeqNr, QueueError> {
        self.loaded_rows().map(|(rows, _)| SeqNr(rows.current().get().saturating_sub(1)))
    }

    /// The epoch of the load.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.rows.as_ref().and_then(StoredQueue::started).map(|started| started.epoch)
    }

    fn loaded_rows(&self) -> Result<(&StoredQueue<()>, &Writer), QueueError> {
        self.rows.as_ref().zip(self.writer.as_ref()).ok_or(QueueError::NotLoaded)
    }

    /// Adds unused qualifiers to a change, at a load and then twice per retention time. Qualifiers that the change uses
    /// are kept.
    fn forget_unused(&mut self, change: &mut QueueChange, now_ms: TimestampMillis) {
        let every = u64::try_from(self.cleanup_unused_after.as_millis() / 2).unwrap_or(u64::MAX);
        let Some(rows) = &self.rows else { return };
        if now_ms.saturating_sub(self.cleaned_up_ms) < every {
            return;
        }
        let confirmed = change.confirmed.iter().map(|(qualifier, ..)| qualifier);
        let used: BTreeSet<&Qualifier> = change.messages.iter().map(|sent| &sent.qualifier).chain(confirmed).collect();
        let mut unused = rows.unused_qualifiers(now_ms, self.cleanup_unused_after);
        unused.retain(|qualifier| !used.contains(qualifier));
        if unused.len() > FORGOTTEN_AT_ONCE {
            unused.truncate(FORGOTTEN_AT_ONCE);
        } else {
            self.cleaned_up_ms = now_ms;
        }
        change.forgotten = unused;
    }
}

/// The error for a controller whose queue has the head row `head` of another one.
pub(crate) fn fenced(head: Option<&QueueHead>) -> QueueError {
    QueueError::Fenced { by: head.map(|head| head.controller.clone()) }
}

/// A change without effect, under the epoch of the load of `rows`.
fn unchanged(rows: &StoredQueue<()>) -> Result<QueueChange, QueueError> {
    let epoch = rows.started().ok_or(QueueError::NotLoaded)?.epoch;
    let (current, highest_confirmed) = (rows.current(), rows.highest_confirmed());
    let (messages, removed, confirmed, forgotten) = Default::default();
    Ok(QueueChange { epoch, current, highest_confirmed, messages, removed, confirmed, forgotten })
}

fn number_of(message: &MessageSent<Encoded>) -> MessageSent<()> {
    MessageSent {
        seq_nr: message.seq_nr,
        message: (),
        ack: message.ack,
        qualifier: message.qualifier.clone(),
        timestamp_ms: message.timestamp_ms,
    }
}

#[cfg(test)]
mod tests;
