//! The view of readers: durable heads, and the events within their bounds.

use greylag_persistence::{
    Corrupt, CorruptKind, Head, Page, PersistenceId, ReadError, ReadRange, SeqNr, Snapshot, SnapshotCriteria,
    SnapshotError, StoreFailure,
};
use greylag_store_sled::{Reader, StoreError};

use crate::heads::Undurable;
use crate::lookup::{self, LookupError};
use crate::rows::keys::{self, PidNo};
use crate::rows::records::{self, Row, StoredHead, snapshot_timestamp};

/// How often a read starts anew because a deletion overtook it. Each time something was deleted, so this limit is
/// never reached unless records are missing.
pub(super) const MAX_OVERTAKEN: usize = 100;

/// Reads of one journal, on any thread.
pub(crate) struct Reads<'a> {
    pub(super) name: &'a str,
    pub(super) reader: Reader,
    pub(super) undurable: &'a Undurable,
}

impl<'a> Reads<'a> {
    /// Reads of the journal that errors call `name`.
    pub(crate) fn new(name: &'a str, reader: Reader, undurable: &'a Undurable) -> Self {
        Self { name, reader, undurable }
    }

    pub(crate) fn name(&self) -> &str {
        self.name
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    pub(crate) fn undurable(&self) -> &Undurable {
        self.undurable
    }

    pub(crate) fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        let stored = self.durable_head(id).map_err(|error| self.read_error(error))?;
        Ok(stored.map(|stored| stored.head).unwrap_or_default())
    }

    /// J8: one page of events that are durable and not deleted.
    pub(crate) fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let mut missing = SeqNr::ZERO;
        for _ in 0..MAX_OVERTAKEN {
            let stored = self.durable_head(id).map_err(|error| self.read_error(error))?;
            let Some(StoredHead { pid, head, .. }) = stored else { return Ok(Page::default()) };
            if !missing.is_zero() && missing > head.deleted_to {
                break;
            }
            let to = range.to.min(head.highest);
            if to <= head.deleted_to {
                return Ok(Page::default());
            }
            let from = range.from.max(SeqNr::saturating(head.deleted_to.as_u64() + 1));
            match self.page(id, pid, ReadRange { from, to, ..range }).map_err(|error| self.read_error(error))? {
                Ok(page) => return Ok(page),
                // The event was removed since the head was read, or is lost; the head, read again, tells which.
                Err(hole) => missing = hole,
            }
        }
        Err(ReadError::Corrupt(Corrupt { id: id.clone(), seq_nr: missing, kind: CorruptKind::Missing }))
    }

    /// The records of a range, or the number of the first record that is not there.
    fn page(&self, id: &PersistenceId, pid: PidNo, range: ReadRange) -> Result<Result<Page, SeqNr>, LookupError> {
        let mut page = Page::default();
        if range.max_events == 0 || range.from > range.to {
            return Ok(Ok(page));
        }
        let mut expected = range.from;
        let mut bytes = 0;
        let end = [&keys::event(pid, range.to)[..], &[0]].concat();
        for record in self.reader.range(&keys::event(pid, range.from), &end) {
            let (key, value) = record.map_err(|error| LookupError::of(id, damaged_at(&error, expected), error))?;
            if keys::number(&key, 1) != Some(expected.as_u64()) {
                return Ok(Err(expected));
            }
            let event = match lookup::event_from_row(&self.reader, id, pid, expected, value) {
                // The sweeper may have removed a chunk during the read, just as a row.
                Err(LookupError::Corrupt(Corrupt { kind: CorruptKind::Missing, .. })) => return Ok(Err(expected)),
                found => found?.event,
            };
            bytes += event.size_bytes();
            let full = page.records.len() >= range.max_events || bytes > range.max_bytes;
            if full && !page.records.is_empty() {
                page.next = Some(expected);
                return Ok(Ok(page));
            }
            page.records.push(event);
            if expected == range.to {
                return Ok(Ok(page));
            }
            expected = SeqNr::saturating(expected.as_u64() + 1);
        }
        Ok(Err(expected))
    }

    /// The newest snapshot that matches.
    pub(crate) fn load(
        &self,
        id: &PersistenceId,
        criteria: SnapshotCriteria,
    ) -> Result<Option<Snapshot>, SnapshotError> {
        let found = lookup::head(&self.reader, id).map_err(|error| self.snapshot_error(error))?;
        let Some(StoredHead { pid, .. }) = found else { return Ok(None) };
        let first = keys::snapshot(pid, criteria.min_seq_nr);
        let last = keys::snapshot(pid, SeqNr::saturating(criteria.max_seq_nr.as_u64()));
        let last = [&last[..], &[0]].concat(); // the bound is exclusive, that of the criteria is not
        for record in self.reader.range(&first, &last).rev() {
            let key = match &record {
                Ok((key, _)) => key.to_vec(),
                Err(StoreError::Checksum { key }) => key.clone(),
                // A damaged page hides which snapshots there are, so the read fails rather than answer an older one.
                Err(error) => return Err(self.snapshot_error(LookupError::of(id, SeqNr::ZERO, error.clone()))),
            };
            let seq_nr = keys::number(&key, 1).map_or(SeqNr::ZERO, SeqNr::saturating);
            for attempt in 0..2 {
                match self.snapshot(id, pid, seq_nr, criteria) {
                    Ok(Some(snapshot)) => return Ok(Some(snapshot)),
                    Ok(None) => break,
                    // The snapshot was replaced during the read: its chunks are gone, and the new row names others. Try
                    // once more.
                    Err(LookupError::Corrupt(_)) if attempt == 0 => {}
                    Err(error) => return Err(self.snapshot_error(error)),
                }
            }
        }
        Ok(None)
    }

    /// The snapshot of this number, unless it is gone or does not match.
    pub(crate) fn snapshot(
        &self,
        id: &PersistenceId,
        pid: PidNo,
        seq_nr: SeqNr,
        criteria: SnapshotCriteria,
    ) -> Result<Option<Snapshot>, LookupError> {
        let broken = |kind| LookupError::corrupt(id, seq_nr, kind);
        let of = |error| LookupError::of(id, seq_nr, error);
        let Some(value) = self.reader.get(&keys::snapshot(pid, seq_nr)).map_err(of)? else { return Ok(None) };
        let row = Row::decode(value).ok_or_else(|| broken(CorruptKind::Unreadable))?;
        let timestamp = snapshot_timestamp(&row).ok_or_else(|| broken(CorruptKind::Unreadable))?;
        if !criteria.matches(seq_nr, timestamp) {
            return Ok(None);
        }
        let save = row.save;
        let chunk = |at| self.reader.get(&keys::snapshot_chunk(pid, seq_nr, save, at)).map_err(of);
        let body = row.join(chunk)?.ok_or_else(|| broken(CorruptKind::Missing))?;
        let snapshot = records::decode_snapshot(id, seq_nr, body).ok_or_else(|| broken(CorruptKind::Unreadable))?;
        if snapshot.is_intact() { Ok(Some(snapshot)) } else { Err(broken(CorruptKind::Checksum)) }
    }

    /// The durable head. The store is read first, then the undurable rows; [`Undurable::durable_head`] says why.
    pub(crate) fn durable_head(&self, id: &PersistenceId) -> Result<Option<StoredHead>, LookupError> {
        let stored = lookup::head(&self.reader, id)?;
        Ok(stored.and_then(|read| self.undurable.durable_head(read)))
    }

    pub(crate) fn read_error(&self, error: LookupError) -> ReadError {
        match error {
            LookupError::Corrupt(corrupt) => ReadError::Corrupt(corrupt),
            LookupError::Store(error) => ReadError::Unavailable(StoreFailure::new(self.name, error)),
        }
    }

    fn snapshot_error(&self, error: LookupError) -> SnapshotError {
        match error {
            LookupError::Corrupt(corrupt) => SnapshotError::Corrupt(corrupt),
            LookupError::Store(error) => SnapshotError::Unavailable(StoreFailure::new(self.name, error)),
        }
    }
}

/// The event that a checksum error is about; `otherwise` if the error does not tell.
fn damaged_at(error: &StoreError, otherwise: SeqNr) -> SeqNr {
    match error {
        StoreError::Checksum { key } => keys::number(key, 1).map_or(otherwise, SeqNr::saturating),
        _ => otherwise,
    }
}
