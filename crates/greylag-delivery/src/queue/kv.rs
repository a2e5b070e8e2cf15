//! The rules of a queue in a store of rows: which change each call makes, and what a change that was stored means.
//!
//! ```text
//! load ──▶ [head] ──▶ claim: epoch + 1, if the epoch is as it was read ──▶ [rows] ──▶ loaded
//! store, confirm ──▶ judged by D4, D5 ──▶ change, if the head has the epoch of the load ──▶ written
//! ```
//!
//! The claim comes before the rows are read: nothing of an older epoch is written any more then, so
//! that what is read is what the queue begins with. A controller whose start is known to be stored does not claim a
//! queue that another controller started since; one whose claims were never answered does, because the newest start
//! may be that of a dead predecessor.
//!
//! Source: delivery §4.1, §4.4, D4, D5.

use std::collections::BTreeSet;
use std::time::Duration;

use greylag_core::Encoded;

use super::rows::{QueueChange, QueueClaim, QueueHead, QueueRows};
use super::stored::{Started, StoredQueue};
use super::{Confirmation, MessageSent, Qualifier, QueueError, QueueState, TimestampMillis};
use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};

/// Qualifiers that one change forgets; the rest is forgotten with later ones.
const FORGOTTEN_AT_ONCE: usize = 1000;

/// One incarnation of the queue in one process.
#[derive(Debug)]
pub(crate) struct KvQueue {
    cleanup_unused_after: Duration,
    writer: Option<Writer>,
    /// Numbers and qualifiers of what is stored, while the queue is loaded.
    rows: Option<StoredQueue<()>>,
    cleaned_up_ms: TimestampMillis,
}

/// The controller that loads the queue.
#[derive(Debug)]
struct Writer {
    controller: ControllerRef,
    /// The last number that it gave, or found when it was first loaded.
    known: Option<SeqNr>,
    /// Whether a start of it is known to be stored: the store said so, or it was read.
    has_started: bool,
}

impl KvQueue {
    pub(crate) fn new(cleanup_unused_after: Duration) -> Self {
        Self { cleanup_unused_after, writer: None, rows: None, cleaned_up_ms: 0 }
    }

    /// Ends the load before, whatever comes now: calls are refused until the next one.
    pub(crate) fn unload(&mut self) {
        self.rows = None;
    }

    // ---- loading ----------------------------------------------------------------------------------

    /// The claim by which `controller` becomes the writer of the queue whose head row is `head`.
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

    /// The claim is stored.
    pub(crate) fn claimed(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.has_started = true;
        }
    }

    /// The rows as they are after the claim of `epoch`: what the controller begins with.
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

    /// What a batch changes: nothing if all of it is stored. Source: delivery D4.
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
        // The numbers are given now, whatever becomes of the write.
        if let Some(writer) = &mut self.writer {
            writer.known = Some(known.max(last));
        }
        self.forget_unused(&mut change, now_ms);
        Ok(Some(change))
    }

    /// What confirmations change: nothing if all are known. Source: delivery D5.
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

    /// What forgets the qualifiers that are of no use any more, if there are any. Source: delivery §4.2 (cleanup).
    pub(crate) fn clean_up(&mut self, now_ms: TimestampMillis) -> Result<Option<QueueChange>, QueueError> {
        let (rows, _) = self.loaded_rows()?;
        let mut change = unchanged(rows)?;
        self.forget_unused(&mut change, now_ms);
        Ok((!change.forgotten.is_empty()).then_some(change))
    }

    /// Messages of an outbox got their numbers, and are stored under them. Source: delivery §4.4.
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

    /// A change of this load is stored.
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

    /// The number up to which everything is stored.
    pub(crate) fn stored_up_to(&self) -> Result<SeqNr, QueueError> {
        self.loaded_rows().map(|(rows, _)| SeqNr(rows.current().get().saturating_sub(1)))
    }

    /// Under which epoch the queue is loaded.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.rows.as_ref().and_then(StoredQueue::started).map(|started| started.epoch)
    }

    fn loaded_rows(&self) -> Result<(&StoredQueue<()>, &Writer), QueueError> {
        self.rows.as_ref().zip(self.writer.as_ref()).ok_or(QueueError::NotLoaded)
    }

    /// Adds the qualifiers that are of no use any more to a change: they are looked for at a load, and twice in the
    /// time for which they are kept. Those that the change uses stay.
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

/// The answer to a controller whose queue has `head`.
pub(crate) fn fenced(head: Option<&QueueHead>) -> QueueError {
    QueueError::Fenced { by: head.map(|head| head.controller.clone()) }
}

/// A change that leaves everything as it is in `rows`, under the epoch of their load.
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
