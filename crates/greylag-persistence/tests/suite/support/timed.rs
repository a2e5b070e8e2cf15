//! A store that orders by time, like a database: a row gets its time when it is written, and becomes visible
//! when it is committed, possibly after rows that were written later. All events stay;
//! a state is replaced once its next revision is committed.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use greylag_persistence::{
    Cursor, EventPage, EventQueries, FoundEvent, OffsetKind, Page, PageQuery, PersistenceId, Position, QueryCaps,
    QueryError, ReadError, ReadRange, Scope, SeqNr, Shows, StoredEvent, Timestamp, Visible,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

use super::record::record;

/// Age from which rows are settled.
const BEHIND: Duration = Duration::from_millis(100);

/// Timestamp of the first instant, large enough for backtracking to begin before it.
const EPOCH: u64 = 1_000_000_000;

#[derive(Clone)]
pub(crate) struct Timed {
    start: Instant,
    shows: Shows,
    latest: Duration,
    rows: Arc<Mutex<Rows>>,
    asked: Arc<AtomicUsize>,
}

type Place = (Timestamp, PersistenceId, SeqNr);

struct Rows {
    rng: ChaCha8Rng,
    /// Rows by position, with the time at which they become visible.
    by_place: BTreeMap<Place, Timestamp>,
    /// For each id the last number, and the time at which it becomes visible: until then the id is locked.
    heads: BTreeMap<PersistenceId, (u64, Timestamp)>,
}

impl Timed {
    pub(crate) fn new(latest: Duration) -> Self {
        Self::seeded(latest, 0)
    }

    /// A store of events; some commits are delayed by up to `latest`.
    pub(crate) fn seeded(latest: Duration, seed: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let rows = Rows { rng, by_place: BTreeMap::new(), heads: BTreeMap::new() };
        Self {
            start: Instant::now(),
            shows: Shows::Every,
            latest,
            rows: Arc::new(Mutex::new(rows)),
            asked: Arc::default(),
        }
    }

    /// As [`Timed::seeded`], for states.
    pub(crate) fn states(latest: Duration, seed: u64) -> Self {
        Self { shows: Shows::Newest, ..Self::seeded(latest, seed) }
    }

    fn now(&self) -> Timestamp {
        let since = u64::try_from(self.start.elapsed().as_micros()).unwrap();
        Timestamp::from_micros(EPOCH + since)
    }

    /// Writes the next event of the cart; returns the number of events written: 0 while the previous one is
    /// uncommitted.
    pub(crate) fn write(&self, name: &str) -> usize {
        let now = self.now();
        let mut rows = self.rows.lock().unwrap();
        let id = PersistenceId::of("Cart", name).unwrap();
        let (last, shows_at) = rows.heads.get(&id).copied().unwrap_or_default();
        if shows_at > now {
            return 0;
        }
        let latest = u64::try_from(self.latest.as_micros()).unwrap();
        let takes = if latest > 0 && rows.rng.random_bool(0.2) { rows.rng.random_range(0..latest) } else { 1 };
        // Times rise per id, also for writes at the same instant.
        let at = Timestamp::from_micros(now.as_micros().max(shows_at.as_micros() + 1));
        let shows_at = Timestamp::from_micros(at.as_micros() + takes);
        rows.by_place.insert((at, id.clone(), SeqNr::saturating(last + 1)), shows_at);
        rows.heads.insert(id, (last + 1, shows_at));
        1
    }

    /// Draws up to `most` numbers.
    pub(crate) fn draw(&self, most: usize) -> Vec<u32> {
        let rng = &mut self.rows.lock().unwrap().rng;
        (0..rng.random_range(0..=most)).map(|_| rng.random()).collect()
    }

    /// Number of pages asked for.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// The last number of each id in these slices.
    pub(crate) fn newest(&self, slices: &RangeInclusive<u16>) -> BTreeMap<PersistenceId, u64> {
        let rows = self.rows.lock().unwrap();
        let meant = rows.heads.iter().filter(|(id, _)| slices.contains(&id.slice()));
        meant.map(|(id, (last, _))| (id.clone(), *last)).collect()
    }

    /// Number of events in these slices.
    pub(crate) fn count(&self, slices: &RangeInclusive<u16>) -> usize {
        let rows = self.rows.lock().unwrap();
        rows.by_place.keys().filter(|(_, id, _)| slices.contains(&id.slice())).count()
    }
}

impl Rows {
    /// Whether this row is committed, and not replaced.
    fn is_there(&self, shows: Shows, (_, id, seq_nr): &Place, shows_at: Timestamp, now: Timestamp) -> bool {
        let is_replaced = |(last, last_shows_at): &(u64, Timestamp)| {
            // All rows of an id but the last are committed; if the last is not, the newest is the one before.
            let there = if *last_shows_at <= now { *last } else { *last - 1 };
            shows == Shows::Newest && seq_nr.as_u64() < there
        };
        shows_at <= now && !self.heads.get(id).is_some_and(is_replaced)
    }
}

#[async_trait]
impl EventQueries for Timed {
    fn caps(&self) -> QueryCaps {
        QueryCaps { scope: Scope::Shared, kind: OffsetKind::Timestamp, shows: self.shows }
    }

    async fn persistence_ids(
        &self,
        _: Option<&str>,
        _: Option<&PersistenceId>,
        _: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        Ok(self.rows.lock().unwrap().heads.keys().cloned().collect())
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        Ok(Some(Position::Timestamp(self.now())))
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let now = self.now();
        let behind = match query.visible {
            Visible::All => Duration::ZERO,
            Visible::Settled => BEHIND,
            Visible::Older(age) => age.max(BEHIND),
        };
        let until = match query.until {
            Some(Position::Timestamp(until)) => until,
            _ => Timestamp::from_micros(u64::MAX),
        };
        let settled = Timestamp::from_micros(now.as_micros() - u64::try_from(behind.as_micros()).unwrap());
        let is_after = |(at, id, seq_nr): &Place| match &query.after {
            Cursor::Row { timestamp, id: after, seq_nr: number } => {
                (*at, Some(id), *seq_nr) > (*timestamp, after.as_ref(), *number)
            }
            _ => true,
        };
        let mut page = EventPage { events: Vec::new(), next: query.after.clone(), more: false };
        {
            let rows = self.rows.lock().unwrap();
            let meant = rows.by_place.iter().filter(|(place, shows_at)| {
                rows.is_there(self.shows, place, **shows_at, now)
                    && place.0 < settled
                    && place.0 <= until
                    && is_after(place)
                    && query.of.may_match(&place.1)
            });
            for ((at, id, seq_nr), _) in meant.take(query.limit) {
                page.next = Cursor::Row { timestamp: *at, id: Some(id.clone()), seq_nr: *seq_nr };
                let event = query.load.then(|| record(id.clone(), *seq_nr, *at));
                page.events.push(FoundEvent {
                    id: id.clone(),
                    seq_nr: *seq_nr,
                    position: Position::Timestamp(*at),
                    event,
                });
            }
        }
        page.more = page.events.len() == query.limit;
        // Delay the answer, so that other tasks write and read meanwhile.
        let takes = self.rows.lock().unwrap().rng.random_range(1..30);
        tokio::time::sleep(Duration::from_millis(takes)).await;
        Ok(page)
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let now = self.now();
        let rows = self.rows.lock().unwrap();
        let meant = rows.by_place.iter().filter(|(place, shows_at)| {
            place.1 == *id
                && (range.from..=range.to).contains(&place.2)
                && rows.is_there(self.shows, place, **shows_at, now)
        });
        let records: Vec<StoredEvent> =
            meant.map(|((at, id, seq_nr), _)| record(id.clone(), *seq_nr, *at)).take(range.max_events).collect();
        let next = records.last().filter(|last| last.seq_nr < range.to && records.len() == range.max_events);
        let next = next.and_then(|last| last.seq_nr.next());
        Ok(Page { records, next })
    }
}
