//! The simulated store: it orders by number, or by time like a database, where a row gets its time when
//! it is written and becomes visible when it is committed, possibly after later rows.
//!
//! All events stay; a state is replaced once its next revision is committed.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use greylag_persistence::{
    Cursor, EventPage, FoundEvent, OffsetKind, Page, PageQuery, PersistenceId, Position, ReadRange, SeqNr, Shows,
    StoredEvent, Timestamp, Visible,
};

use crate::record::record;

/// Age from which rows are settled.
const BEHIND: Duration = Duration::from_millis(100);
/// Most records of a page of a history: few, so that filling a gap takes several pages.
const HISTORY_PAGE: usize = 3;

pub(crate) struct Store {
    pub(crate) kind: OffsetKind,
    pub(crate) shows: Shows,
    /// Rows in the order of the store.
    rows: Vec<Row>,
    /// For each id the last number.
    heads: BTreeMap<PersistenceId, Head>,
}

struct Row {
    position: Position,
    id: PersistenceId,
    seq_nr: SeqNr,
    timestamp: Timestamp,
    shows_at: Timestamp,
}

#[derive(Clone, Copy)]
struct Head {
    seq_nr: SeqNr,
    timestamp: Timestamp,
    shows_at: Timestamp,
}

impl Store {
    pub(crate) fn new(kind: OffsetKind, shows: Shows) -> Self {
        Self { kind, shows, rows: Vec::new(), heads: BTreeMap::new() }
    }

    /// Writes the next number of the id, committed after `commit`; none while the previous one is uncommitted.
    pub(crate) fn write(&mut self, id: PersistenceId, now: Timestamp, commit: Duration) {
        let head = self.heads.get(&id).copied();
        if head.is_some_and(|head| head.shows_at > now) {
            return;
        }
        // Times rise per id, also for writes at the same instant.
        let timestamp = head.map_or(now, |head| now.max(later(head.timestamp, Duration::from_micros(1))));
        let shows_at = later(now, commit);
        let seq_nr = head.map_or(SeqNr::FIRST, |head| head.seq_nr.next().expect("a run is short"));
        let position = match self.kind {
            OffsetKind::Ordinal => Position::Ordinal(self.rows.len() as u64 + 1),
            OffsetKind::Timestamp => Position::Timestamp(timestamp),
        };
        self.heads.insert(id.clone(), Head { seq_nr, timestamp, shows_at });
        let at = self.rows.partition_point(|row| (row.position, &row.id) < (position, &id));
        self.rows.insert(at, Row { position, id, seq_nr, timestamp, shows_at });
    }

    /// The newest position; `None` while no row is committed.
    pub(crate) fn newest(&self, now: Timestamp) -> Option<Position> {
        let last = self.rows.iter().rev().find(|row| row.shows_at <= now)?;
        Some(match self.kind {
            OffsetKind::Ordinal => last.position,
            OffsetKind::Timestamp => Position::Timestamp(now),
        })
    }

    pub(crate) fn page(&self, query: &PageQuery, now: Timestamp) -> EventPage {
        let first = self.rows.partition_point(|row| !row.is_after(&query.after));
        let meant = self.rows[first..].iter().filter(|row| {
            self.is_there(row, now)
                && row.is_settled(query.visible, now)
                && query.until.is_none_or(|until| row.position <= until)
                && query.of.may_match(&row.id)
        });
        let mut page = EventPage { events: Vec::new(), next: query.after.clone(), more: false };
        for row in meant.take(query.limit) {
            page.next = row.cursor();
            page.events.push(row.found(query.load));
        }
        page.more = page.events.len() == query.limit;
        page
    }

    /// The history of one id.
    pub(crate) fn read(&self, id: &PersistenceId, range: ReadRange, now: Timestamp) -> Page {
        let is_meant = |row: &&Row| row.id == *id && (range.from..=range.to).contains(&row.seq_nr);
        let mut rows = self.rows.iter().filter(is_meant).filter(|row| self.is_there(row, now));
        let most = range.max_events.min(HISTORY_PAGE);
        let records = rows.by_ref().take(most).map(Row::record).collect();
        Page { records, next: rows.next().map(|row| row.seq_nr) }
    }

    /// The last number of each id in these slices.
    pub(crate) fn heads(&self, slices: &RangeInclusive<u16>) -> BTreeMap<PersistenceId, SeqNr> {
        let meant = self.heads.iter().filter(|(id, _)| slices.contains(&id.slice()));
        meant.map(|(id, head)| (id.clone(), head.seq_nr)).collect()
    }

    /// Whether the row is committed, and not replaced.
    fn is_there(&self, row: &Row, now: Timestamp) -> bool {
        let head = self.heads[&row.id];
        // All rows of an id but the last are committed; if the last is not, the newest is the one before.
        let newest = if head.shows_at <= now { head.seq_nr } else { head.seq_nr.previous() };
        row.shows_at <= now && (self.shows == Shows::Every || row.seq_nr == newest)
    }
}

impl Row {
    fn is_after(&self, cursor: &Cursor) -> bool {
        match cursor {
            Cursor::Start => true,
            Cursor::Ordinal(ordinal) => self.position > Position::Ordinal(*ordinal),
            Cursor::Row { timestamp, id, seq_nr } => {
                (self.position, Some(&self.id), self.seq_nr) > (Position::Timestamp(*timestamp), id.as_ref(), *seq_nr)
            }
        }
    }

    fn is_settled(&self, visible: Visible, now: Timestamp) -> bool {
        let behind = match visible {
            Visible::Settled => BEHIND,
            Visible::Older(age) => age.max(BEHIND),
            Visible::All => Duration::ZERO,
        };
        matches!(self.position, Position::Ordinal(_)) || later(self.timestamp, behind) <= now
    }

    fn cursor(&self) -> Cursor {
        match self.position {
            Position::Ordinal(ordinal) => Cursor::Ordinal(ordinal),
            Position::Timestamp(timestamp) => Cursor::Row { timestamp, id: Some(self.id.clone()), seq_nr: self.seq_nr },
        }
    }

    fn found(&self, load: bool) -> FoundEvent {
        let event = load.then(|| self.record());
        FoundEvent { id: self.id.clone(), seq_nr: self.seq_nr, position: self.position, event }
    }

    fn record(&self) -> StoredEvent {
        record(self.id.clone(), self.seq_nr, self.timestamp)
    }
}

/// The time `by` after `timestamp`.
fn later(timestamp: Timestamp, by: Duration) -> Timestamp {
    Timestamp::from_micros(timestamp.as_micros() + u64::try_from(by.as_micros()).expect("a run is short"))
}
