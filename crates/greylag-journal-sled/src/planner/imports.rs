//! Histories that are imported from another store, with their numbers, times and writers.
//!
//! Imported events get ordinals of this store, in the order of commits like everything else.

use greylag_persistence::{ImportError, SeqNr, Timestamp};
use greylag_store_sled::{Batch, Reader, StoreError};

use super::journal_planner::JournalPlanner;
use crate::lookup::local;
use crate::request::EncodedPart;
use crate::rows::commit_record::CommittedAppend;
use crate::rows::keys::PidNo;
use crate::rows::records::{EncodedEvent, StoredHead};

/// The most events that one entry of a commit record covers, so that their tags fit into it.
const EVENTS_PER_ENTRY: usize = 256;

impl JournalPlanner {
    /// Stores a part that was checked against the stored head, if that head is still the stored one.
    pub(super) fn import_events(
        &mut self,
        part: EncodedPart,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<Result<(), ImportError>, StoreError> {
        let stored = match local(self.heads.find(&part.id, reader))? {
            Ok(stored) => stored,
            Err(corrupt) => return Ok(Err(ImportError::Corrupt(corrupt))),
        };
        let current = stored.map(|stored| stored.head).unwrap_or_default();
        if current != part.stored {
            return Ok(Err(ImportError::NotAContinuation { stored: current }));
        }
        if let Some(why) = self.storage.is_low() {
            return Ok(Err(ImportError::Refused(format!("storage is low: {why}"))));
        }
        let EncodedPart { id, head, last_append, first, events, .. } = part;
        let before = stored.unwrap_or_else(|| self.commits.new_id(&id, batch));
        let deleted_to = head.deleted_to.min(current.highest);
        if deleted_to > current.deleted_to {
            self.sweeper.add(before.pid, current.deleted_to, deleted_to, batch);
        }
        let (mut first, mut events) = (first, events.into_iter().peekable());
        while events.peek().is_some() {
            let entry: Vec<_> = events.by_ref().take(EVENTS_PER_ENTRY).collect();
            let count = entry.len() as u64;
            self.import_entry(before.pid, first, entry, batch);
            first = first.plus(count).unwrap_or(SeqNr::MAX);
        }
        self.heads.set(id, stored, StoredHead { head, timestamp: last_append, ..before }, &mut self.commits);
        Ok(Ok(()))
    }

    fn import_entry(&mut self, pid: PidNo, first: SeqNr, events: Vec<(Timestamp, EncodedEvent)>, batch: &mut Batch) {
        let tags = events.iter().flat_map(|(_, event)| &event.tags).collect::<Vec<_>>();
        let tags = self.commits.tag_numbers(&tags, batch);
        self.commits.note_events(CommittedAppend { pid, first, count: events.len() as u64, tags }, batch);
        for (number, (timestamp, event)) in (first.as_u64()..).zip(events) {
            self.store_event(pid, SeqNr::saturating(number), event, timestamp, batch);
        }
    }
}
