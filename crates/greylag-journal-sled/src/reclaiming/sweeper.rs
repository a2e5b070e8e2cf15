//! Removes deleted events from the disk, a few with every group commit.
//!
//! A deletion moves `deleted_to` at once and leaves a row that says what is to be removed, so the
//! sweep goes on after a crash. Only ranges of earlier groups are swept: their bound is durable and
//! known to readers, who skip what lies below it.

use std::collections::{BTreeMap, HashMap};

use greylag_persistence::{PersistenceId, SeqNr};
use greylag_store_sled::{Batch, Reader, StoreError};

use crate::lookup::{self, LookupError};
use crate::rows::bytes_format::{FieldReader, FieldWriter};
use crate::rows::keys::{self, PidNo, Space, TagNo};

/// Removes deleted events group by group; the queue has the ranges that are left, by id.
#[derive(Debug)]
pub(crate) struct Sweeper {
    queue: BTreeMap<PidNo, Range>,
    keys_per_group: usize,
}

/// Events after `done_to`, up to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    pid: PidNo,
    done_to: SeqNr,
    to: SeqNr,
}

impl Sweeper {
    pub(crate) fn new(keys_per_group: usize) -> Self {
        Self { queue: BTreeMap::new(), keys_per_group }
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Reads what an earlier process left to do.
    pub(crate) fn recover(&mut self, reader: &Reader) -> Result<(), StoreError> {
        self.queue.clear();
        let (from, to) = keys::space(Space::Sweeps);
        for record in reader.range(&from, &to) {
            let (key, value) = record?;
            let mut fields = FieldReader(value);
            let range = keys::number(&key, 0).zip(fields.u64().zip(fields.u64()));
            let Some((pid, (done_to, to))) = range else {
                return Err(StoreError::corrupt("unreadable sweep record"));
            };
            let (done_to, to) = (SeqNr::saturating(done_to), SeqNr::saturating(to));
            self.queue.insert(PidNo(pid), Range { pid: PidNo(pid), done_to, to });
        }
        Ok(())
    }

    /// Events of `pid` after `from`, up to `to`, are deleted from now on.
    pub(crate) fn add(&mut self, pid: PidNo, from: SeqNr, to: SeqNr, batch: &mut Batch) {
        let range = self.queue.entry(pid).or_insert(Range { pid, done_to: from, to });
        range.to = to;
        range.write(batch);
    }

    /// Removes the next few keys; answers of how many events.
    pub(crate) fn sweep(
        &mut self,
        tags: &HashMap<String, TagNo>,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<u64, StoreError> {
        let limit = batch.len() + self.keys_per_group;
        let mut events = 0;
        while batch.len() < limit {
            let Some(mut entry) = self.queue.first_entry() else { break };
            let before = entry.get().done_to.as_u64();
            let id = match id_of(*entry.key(), reader) {
                Ok(id) => id,
                // Keep the events while their id cannot be read.
                Err(error) if error.is_corruption() => {
                    tracing::warn!(pid = entry.key().0, %error, "deleted events stay on the disk: whose they are is damaged");
                    entry.remove();
                    continue;
                }
                Err(error) => return Err(error),
            };
            let is_done = entry.get_mut().remove_some(&id, limit, tags, reader, batch)?;
            events += entry.get().done_to.as_u64() - before;
            if is_done {
                // If it stays, the next opening goes over it again, and finds nothing.
                lookup::remove_unneeded(&keys::sweep(*entry.key()), reader, batch)?;
                entry.remove();
            } else {
                entry.get().write(batch);
            }
        }
        Ok(events)
    }
}

fn id_of(pid: PidNo, reader: &Reader) -> Result<PersistenceId, StoreError> {
    let id = reader.get(&keys::id(pid))?;
    let id = id.and_then(|id| PersistenceId::unique(std::str::from_utf8(&id).ok()?).ok());
    id.ok_or_else(|| StoreError::corrupt("a deleted event's id is not known"))
}

impl Range {
    fn write(self, batch: &mut Batch) {
        let mut out = FieldWriter::default();
        out.u64(self.done_to.as_u64());
        out.u64(self.to.as_u64());
        batch.put(&keys::sweep(self.pid), &out.0);
    }

    /// Whether nothing is left.
    fn remove_some(
        &mut self,
        id: &PersistenceId,
        limit: usize,
        tags: &HashMap<String, TagNo>,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<bool, StoreError> {
        let mut last_goes = false;
        while self.done_to < self.to && batch.len() < limit {
            let seq_nr = SeqNr::saturating(self.done_to.as_u64() + 1);
            match lookup::event(reader, id, self.pid, seq_nr) {
                Ok(Some(row)) => {
                    for number in row.event.tags.iter().filter_map(|tag| tags.get(tag)) {
                        lookup::remove_unneeded(&keys::tag_row(*number, row.ordinal), reader, batch)?;
                    }
                }
                // There is no event to read the tags from. Damaged or not, the event's row goes; a tag row that
                // stays behind points to a deleted event, which queries skip.
                Ok(None) | Err(LookupError::Corrupt(_)) => {}
                Err(LookupError::Store(error)) => return Err(error),
            }
            let (first, last) = (keys::event_chunk(self.pid, seq_nr, 0), keys::event_chunk(self.pid, seq_nr, u16::MAX));
            lookup::remove_all_unneeded(&first, &last, reader, batch)?;
            last_goes = lookup::remove_next_unneeded(last_goes, &keys::event(self.pid, seq_nr), reader, batch)?;
            self.done_to = seq_nr;
        }
        Ok(self.done_to >= self.to)
    }
}
