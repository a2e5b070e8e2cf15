//! Pages of events in the order of commits: walks the commit records above an ordinal, or the rows of a tag, up to
//! the newest durable event.
//!
//! Ordinals count events without a gap, and no reader is shown an event before it is durable, so a reader that
//! continues where it stopped misses nothing. Slices are picked by the ids that commit records name, before any
//! event is read. Source: persistence §4.3 (ordinals).

use std::collections::HashMap;

use greylag_persistence::{
    CorruptKind, Cursor, EventPage, EventsOf, FoundEvent, PageQuery, PersistenceId, Position, QueryError, ReadError,
    SeqNr,
};
use greylag_store_sled::StoreError;

use super::reads::Reads;
use crate::lookup::{self, LookupError};
use crate::rows::commit_record::CommitRecord;
use crate::rows::keys::{self, PidNo, Space, TagNo};
use crate::rows::records::StoredHead;

/// A page ends after passing over this many events, so that no page takes long.
const MAX_PASSED: u64 = 100_000;

/// A page being read.
struct Scan<'a> {
    query: &'a PageQuery,
    /// First and last ordinal to read.
    from: u64,
    to: u64,
    page: EventPage,
    passed: u64,
    ids: HashMap<PidNo, Known>,
}

/// Facts about an id that a page has read already.
#[derive(Clone)]
struct Known {
    id: PersistenceId,
    is_meant: bool,
    deleted_to: SeqNr,
}

impl Reads<'_> {
    /// The ordinal of the last event that is durable.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.undurable.next_ordinal().checked_sub(1)
    }

    pub(crate) fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        let from = query.after_ordinal()?.map_or(0, |after| after.saturating_add(1));
        let until = query.until_ordinal()?;
        let page = EventPage { events: Vec::new(), next: query.after.clone(), more: false };
        let Some(newest) = self.newest() else { return Ok(page) };
        let mut scan = Scan { query, from, to: newest.min(until), page, passed: 0, ids: HashMap::new() };
        if scan.from > scan.to {
            return Ok(scan.page);
        }
        let scanned = match &query.of {
            EventsOf::Tag(tag) => self.scan_tag(tag, &mut scan),
            EventsOf::Slices { .. } => self.scan_commits(&mut scan),
        };
        match scanned {
            Ok(()) => Ok(scan.page),
            // A page ends before damage; the next page begins with the damage and answers the error.
            Err(LookupError::Corrupt(_)) if !scan.page.events.is_empty() => Ok(EventPage { more: true, ..scan.page }),
            Err(error) => Err(QueryError::Read(self.read_error(error))),
        }
    }

    /// Ids that ever had a durable event, after `after`.
    pub(crate) fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        let mut ids = Vec::new();
        let (from, to) = keys::heads(entity_type, after);
        for record in self.reader.range(&from, &to) {
            if ids.len() >= limit {
                break;
            }
            let key = lookup::key_of(record).map_err(|error| self.read_error(LookupError::Store(error)))?;
            let id = std::str::from_utf8(&key[1..]).ok().and_then(|id| PersistenceId::unique(id).ok());
            let Some(id) = id else {
                let unreadable = StoreError::corrupt("a head stands under a key that is no id");
                return Err(self.read_error(LookupError::Store(unreadable)));
            };
            if entity_type.is_some_and(|meant| id.entity_type() != meant) {
                continue;
            }
            let head = self.durable_head(&id).map_err(|error| self.read_error(error))?;
            if head.is_some_and(|stored| !stored.head.highest.is_zero()) {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    fn scan_commits(&self, scan: &mut Scan<'_>) -> Result<(), LookupError> {
        let unreadable = || LookupError::Store(StoreError::corrupt("unreadable commit record"));
        let first = self.commit_of(scan.from)?;
        let (_, end) = keys::space(Space::Commits);
        for record in self.reader.range(&keys::commit(first), &end) {
            let (_, value) = record.map_err(LookupError::Store)?;
            let commit = CommitRecord::decode(value).ok_or_else(unreadable)?;
            let mut next = commit.first_ordinal;
            for append in &commit.appends {
                let first_ordinal = next;
                next += append.count;
                if next <= scan.from {
                    continue;
                }
                if first_ordinal > scan.to {
                    return Ok(());
                }
                let known = self.known(append.pid, scan)?;
                let last_ordinal = (next - 1).min(scan.to);
                if !known.is_meant {
                    if scan.pass(last_ordinal) {
                        return Ok(());
                    }
                    continue;
                }
                for ordinal in first_ordinal.max(scan.from)..=last_ordinal {
                    let seq_nr = SeqNr::saturating(append.first.as_u64() + (ordinal - first_ordinal));
                    if scan.is_full() {
                        return Ok(());
                    }
                    self.take(append.pid, &known, seq_nr, ordinal, scan)?;
                }
            }
            // Changes of states and deleted events have ordinals, too; a page that ends among them has passed them all.
            let others = commit.changes.saturating_add(commit.gone);
            if others > 0 && next <= scan.to {
                let last = next.saturating_add(others - 1).min(scan.to);
                if last >= scan.from && scan.pass(last) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn scan_tag(&self, tag: &str, scan: &mut Scan<'_>) -> Result<(), LookupError> {
        let unreadable = || LookupError::Store(StoreError::corrupt("unreadable tag record"));
        let Some(number) = self.reader.get(&keys::tag(tag)).map_err(LookupError::Store)? else { return Ok(()) };
        let number = TagNo(u64::from_be_bytes(number[..].try_into().map_err(|_| unreadable())?));
        let (first, end) = (keys::tag_row(number, scan.from), keys::tag_row(number, scan.to.saturating_add(1)));
        for record in self.reader.range(&first, &end) {
            let (key, value) = record.map_err(LookupError::Store)?;
            let ordinal = keys::number(&key, 1).ok_or_else(unreadable)?;
            let (pid, seq_nr) = value.split_at_checked(8).ok_or_else(unreadable)?;
            let pid = PidNo(u64::from_be_bytes(pid.try_into().map_err(|_| unreadable())?));
            let seq_nr = SeqNr::new(u64::from_be_bytes(seq_nr.try_into().map_err(|_| unreadable())?));
            let known = self.known(pid, scan)?;
            if scan.is_full() {
                return Ok(());
            }
            self.take(pid, &known, seq_nr.ok_or_else(unreadable)?, ordinal, scan)?;
        }
        Ok(())
    }

    /// Adds one event to the page, unless the event is deleted.
    fn take(
        &self,
        pid: PidNo,
        known: &Known,
        seq_nr: SeqNr,
        ordinal: u64,
        scan: &mut Scan<'_>,
    ) -> Result<(), LookupError> {
        let id = &known.id;
        let found = if seq_nr > known.deleted_to { self.live_event(id, pid, seq_nr)? } else { None };
        if let Some(event) = found {
            let (id, position) = (id.clone(), Position::Ordinal(ordinal));
            scan.page.events.push(FoundEvent { id, seq_nr, position, event: Some(event) });
        }
        scan.page.next = Cursor::Ordinal(ordinal);
        Ok(())
    }

    /// The event; `None` if it was deleted since the page began.
    fn live_event(
        &self,
        id: &PersistenceId,
        pid: PidNo,
        seq_nr: SeqNr,
    ) -> Result<Option<greylag_persistence::StoredEvent>, LookupError> {
        let found = match lookup::event(&self.reader, id, pid, seq_nr) {
            Ok(found) => found.map(|row| row.event),
            // The sweeper may have removed a chunk during the read, just as a row.
            Err(LookupError::Corrupt(corrupt)) if corrupt.kind == CorruptKind::Missing => None,
            Err(error) => return Err(error),
        };
        if found.is_none() {
            let deleted_to = self.durable_head(id)?.map(|stored| stored.head.deleted_to).unwrap_or_default();
            if seq_nr > deleted_to {
                return Err(LookupError::corrupt(id, seq_nr, CorruptKind::Missing));
            }
        }
        Ok(found)
    }

    fn known(&self, pid: PidNo, scan: &mut Scan<'_>) -> Result<Known, LookupError> {
        if let Some(known) = scan.ids.get(&pid) {
            return Ok(known.clone());
        }
        let unknown = || LookupError::Store(StoreError::corrupt(format!("id number {} is not known", pid.0)));
        let id = self.reader.get(&keys::id(pid)).map_err(LookupError::Store)?.ok_or_else(unknown)?;
        let id = std::str::from_utf8(&id).ok().and_then(|id| PersistenceId::unique(id).ok()).ok_or_else(unknown)?;
        let is_meant = scan.query.of.may_match(&id);
        let deleted_to = match is_meant {
            true => self.durable_head(&id)?.map(|StoredHead { head, .. }| head.deleted_to).unwrap_or_default(),
            false => SeqNr::ZERO,
        };
        let known = Known { id, is_meant, deleted_to };
        scan.ids.insert(pid, known.clone());
        Ok(known)
    }

    /// The number of the commit record that holds this ordinal: the last that begins at or before it. A binary search
    /// over commit numbers; a merged record is found under each number that it stands for.
    fn commit_of(&self, ordinal: u64) -> Result<u64, LookupError> {
        let lost = || LookupError::Store(StoreError::corrupt("unreadable commit record"));
        let (from, to) = keys::space(Space::Commits);
        let last = self.reader.range(&from, &to).next_back().transpose().map_err(LookupError::Store)?;
        let last = last.and_then(|(key, _)| keys::number(&key, 0)).unwrap_or(1);
        let (mut low, mut high) = (1, last);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let found = self.reader.range(&from, &keys::commit(middle.saturating_add(1))).next_back();
            let Some((key, value)) = found.transpose().map_err(LookupError::Store)? else { break };
            let number = keys::number(&key, 0).ok_or_else(lost)?;
            let commit = CommitRecord::decode(value).ok_or_else(lost)?;
            if commit.first_ordinal <= ordinal { low = middle } else { high = number.saturating_sub(1) }
        }
        // The record found for `low` may have a smaller number.
        let found = self.reader.range(&from, &keys::commit(low.saturating_add(1))).next_back();
        let found = found.transpose().map_err(LookupError::Store)?;
        Ok(found.and_then(|(key, _)| keys::number(&key, 0)).unwrap_or(low))
    }
}

impl Scan<'_> {
    /// Whether the page ends here, with more to come.
    fn is_full(&mut self) -> bool {
        self.page.more = self.page.events.len() >= self.query.limit;
        self.page.more
    }

    /// Passes over events that the query does not want, up to this ordinal; answers whether the page ends here.
    fn pass(&mut self, to: u64) -> bool {
        let from = match self.page.next {
            Cursor::Ordinal(ordinal) => ordinal,
            _ => 0,
        };
        self.passed += to.saturating_sub(from);
        self.page.next = Cursor::Ordinal(to);
        self.page.more = self.passed >= MAX_PASSED && to < self.to;
        self.page.more
    }
}
