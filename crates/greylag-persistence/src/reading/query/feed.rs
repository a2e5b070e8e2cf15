//! Makes a stream of pages: reads on, rests, and backtracks over events that it has read.
//!
//! ```text
//! Demand ─▶ Query ─▶ Page ─▶ Deliver (the whole page) ─▶ … ─▶ Demand
//!              ▲       │ nothing new: rest, then ask again        Ended: a current stream has it all
//!              └───────┘
//! ```
//! Pull-based: at most one query is under way, and none without a demand, so a consumer that does not
//! ask costs one page. A live feed of a store that orders by time makes a *backtracking* pass now and
//! then, without payloads, from the end of the last pass up to where all events are settled. So an
//! event that was committed late is found, at the price of showing most events twice.
//!
//! Source: persistence §5 (offsets, PostgreSQL a to c).

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::envelope::{Envelope, EventSource, SeenAt};
use super::settings::QuerySettings;
use crate::contract::error::QueryError;
use crate::contract::offset::{Offset, OffsetKind, Position};
use crate::contract::query::{Cursor, EventPage, EventsOf, FoundEvent, PageQuery, Visible};
use crate::contract::records::event::Timestamp;
use crate::contract::records::persistence_id::PersistenceId;

/// Number of empty live pages in a row before a backtracking pass.
const IDLE_POLLS: u32 = 5;
/// Number of events read on before a backtracking pass, in full pages.
const PAGES: usize = 3;

/// An input to a [`Feed`]: its consumer's demand, answers of the journal, and the passing of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedInput {
    /// The consumer wants more.
    Demand,
    /// The answer to the query under way.
    Page(Result<EventPage, QueryError>),
    /// An entity of this node has written an event; query at once.
    Hint,
    /// The time is [`Feed::next_deadline`].
    Tick,
}

/// An action that a feed asks of its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedEffect {
    /// Query the store; the answer comes back as [`FeedInput::Page`].
    Query(PageQuery),
    /// Give these envelopes, at least one, to the consumer. Ends its demand.
    Deliver(Vec<Envelope>),
    /// Give this error to the consumer. Ends its demand; the next demand queries the store again.
    Failed(QueryError),
    /// All events present at the start were delivered.
    Ended,
}

/// The kind of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Live,
    Backtracking,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FeedPhase {
    /// The next query may be sent at `until`, if the consumer has a demand.
    Resting {
        until: Instant,
        pass: Pass,
    },
    Asked(Pass),
    Ended,
}

/// The cursor of one kind of query, with the events delivered at the cursor's time.
#[derive(Debug, Clone, Default)]
struct Track {
    cursor: Cursor,
    seen: Vec<(PersistenceId, u64)>,
    seen_at: Option<Timestamp>,
}

/// One stream of events.
#[derive(Debug)]
pub struct Feed {
    of: EventsOf,
    settings: QuerySettings,
    /// The end of a current stream (inner `None`: an empty store); `None` for a live stream.
    until: Option<Option<Position>>,
    live: Track,
    /// The backtracking track; only for live streams of stores that order by time.
    back: Option<Track>,
    /// Events delivered before the stream was resumed, at exactly the time of its offset.
    resumed: Option<(Timestamp, Vec<(PersistenceId, u64)>)>,
    phase: FeedPhase,
    demand: bool,
    idle_polls: u32,
    rows: usize,
    /// When the next live page is due; kept during a backtracking pass.
    live_at: Instant,
    /// Until then, the distance between live and back cursor starts no pass.
    back_again_at: Instant,
    /// Whether a backtracking pass follows the next live page in any case.
    go_back: bool,
    /// Whether a hint came after the query under way was sent.
    hinted: bool,
}

impl Feed {
    /// A live stream, which never ends.
    ///
    /// # Errors
    /// [`QueryError::ForeignOffset`] for an offset of another kind of store.
    pub fn live(
        of: EventsOf,
        offset: &Offset,
        kind: OffsetKind,
        settings: QuerySettings,
        now: Instant,
    ) -> Result<Self, QueryError> {
        Self::new(of, offset, kind, None, settings, now)
    }

    /// A current stream, which ends at `until`, the newest position of the store at the start;
    /// `None` if the store is empty.
    ///
    /// # Errors
    /// As [`Feed::live`].
    pub fn current(
        of: EventsOf,
        offset: &Offset,
        kind: OffsetKind,
        until: Option<Position>,
        settings: QuerySettings,
        now: Instant,
    ) -> Result<Self, QueryError> {
        Self::new(of, offset, kind, Some(until), settings, now)
    }

    fn new(
        of: EventsOf,
        offset: &Offset,
        kind: OffsetKind,
        until: Option<Option<Position>>,
        settings: QuerySettings,
        now: Instant,
    ) -> Result<Self, QueryError> {
        if let Some(found) = offset.kind().filter(|found| *found != kind) {
            return Err(QueryError::ForeignOffset { expected: kind, found });
        }
        let (live, resumed, first_back) = match offset {
            Offset::None => (Track::default(), None, Cursor::Start),
            Offset::Ordinal(ordinal) => {
                (Track { cursor: Cursor::Ordinal(*ordinal), ..Track::default() }, None, Cursor::Start)
            }
            Offset::Timestamp { timestamp, seen } => {
                let live = Track { cursor: Cursor::at(*timestamp), seen: seen.clone(), seen_at: Some(*timestamp) };
                let first_back = before(*timestamp, settings.backtracking.reach());
                (live, Some((*timestamp, seen.clone())), Cursor::at(first_back))
            }
        };
        let goes_back = kind == OffsetKind::Timestamp && until.is_none();
        let phase = match until {
            Some(None) => FeedPhase::Ended,
            _ => FeedPhase::Resting { until: now, pass: Pass::Live },
        };
        Ok(Self {
            of,
            settings,
            until,
            live,
            back: goes_back.then(|| Track { cursor: first_back, ..Track::default() }),
            resumed,
            phase,
            demand: false,
            idle_polls: 0,
            rows: 0,
            live_at: now,
            back_again_at: now,
            go_back: false,
            hinted: false,
        })
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: FeedInput, out: &mut Vec<FeedEffect>) {
        match input {
            FeedInput::Demand => self.demand = true,
            FeedInput::Hint => self.on_hint(now),
            FeedInput::Tick => {}
            FeedInput::Page(page) => self.on_page(now, page, out),
        }
        self.ask(now, out);
        self.check_invariants();
    }

    /// Source: persistence §5.
    fn check_invariants(&self) {
        debug_assert!(self.phase != FeedPhase::Ended || self.until.is_some(), "a live stream does not end");
        let goes_back = matches!(self.phase, FeedPhase::Asked(Pass::Backtracking))
            || matches!(self.phase, FeedPhase::Resting { pass: Pass::Backtracking, .. });
        debug_assert!(!goes_back || self.back.is_some(), "only a stream with two tracks goes back");
        debug_assert!(
            !goes_back || self.live.cursor.timestamp().is_some(),
            "it goes back over events that it has read"
        );
    }

    /// When a [`FeedInput::Tick`] next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            FeedPhase::Resting { until, .. } if self.demand => Some(until),
            _ => None,
        }
    }

    /// The live cursor: how far the stream has read.
    pub fn cursor(&self) -> &Cursor {
        &self.live.cursor
    }

    /// The offset from which another stream can replace this one.
    pub fn offset(&self) -> Offset {
        match &self.live.cursor {
            Cursor::Start => Offset::None,
            Cursor::Ordinal(ordinal) => Offset::Ordinal(*ordinal),
            Cursor::Row { timestamp, .. } => {
                let seen = if self.live.seen_at == Some(*timestamp) { self.live.seen.clone() } else { Vec::new() };
                Offset::Timestamp { timestamp: *timestamp, seen }
            }
        }
    }

    /// How far backtracking has come; `None` if there is no backtracking, or before the first pass of a stream that
    /// began at the start.
    pub(crate) fn reread_to(&self) -> Option<Timestamp> {
        self.back.as_ref().and_then(|back| back.cursor.timestamp())
    }

    /// Starts a backtracking pass after the next page, if this stream backtracks.
    pub(crate) fn go_back_soon(&mut self) {
        self.go_back = self.back.is_some();
    }

    fn on_hint(&mut self, now: Instant) {
        match &mut self.phase {
            FeedPhase::Resting { until, pass: Pass::Live } => *until = now.min(*until),
            // The query under way may miss the announced event, so query again after it.
            FeedPhase::Resting { .. } | FeedPhase::Asked(_) => self.hinted = true,
            FeedPhase::Ended => {}
        }
    }

    fn ask(&mut self, now: Instant, out: &mut Vec<FeedEffect>) {
        match self.phase {
            FeedPhase::Ended if self.demand => {
                self.demand = false;
                out.push(FeedEffect::Ended);
            }
            FeedPhase::Resting { until, pass } if self.demand && until <= now => {
                self.phase = FeedPhase::Asked(pass);
                self.hinted &= pass == Pass::Backtracking;
                out.push(FeedEffect::Query(self.query(pass)));
            }
            _ => {}
        }
    }

    fn query(&self, pass: Pass) -> PageQuery {
        let (track, visible, until) = match (pass, &self.back) {
            (Pass::Backtracking, Some(back)) => {
                // Go back only over events that the live track has read.
                let read_to = self.live.cursor.timestamp().map(Position::Timestamp);
                (back, Visible::Older(self.settings.backtracking.behind), read_to)
            }
            _ => {
                let visible = if self.until.is_some() { Visible::All } else { Visible::Settled };
                (&self.live, visible, self.until.flatten())
            }
        };
        let (of, after, limit) = (self.of.clone(), track.cursor.clone(), self.settings.page.get());
        PageQuery { of, after, until, visible, limit, load: pass == Pass::Live }
    }

    fn on_page(&mut self, now: Instant, page: Result<EventPage, QueryError>, out: &mut Vec<FeedEffect>) {
        let FeedPhase::Asked(pass) = self.phase else { return };
        let page = match page {
            Ok(page) => page,
            Err(error) => {
                self.phase = FeedPhase::Resting { until: now + self.settings.refresh_interval, pass };
                self.demand = false;
                out.push(FeedEffect::Failed(error));
                return;
            }
        };
        let (found, more) = (page.events.len(), page.more);
        let envelopes = self.take(pass, page);
        self.phase = match pass {
            Pass::Live => self.after_live(now, found, more),
            Pass::Backtracking if more => FeedPhase::Resting { until: now, pass },
            Pass::Backtracking => {
                self.back_again_at = now + self.settings.backtracking.behind;
                FeedPhase::Resting { until: self.live_at, pass: Pass::Live }
            }
        };
        if self.hinted {
            self.on_hint(now);
        }
        if !envelopes.is_empty() {
            self.demand = false;
            out.push(FeedEffect::Deliver(envelopes));
        }
    }

    /// The phase after a live page: the next live page, a backtracking pass, or the end.
    fn after_live(&mut self, now: Instant, found: usize, more: bool) -> FeedPhase {
        if self.until.is_some() {
            return if more { FeedPhase::Resting { until: now, pass: Pass::Live } } else { FeedPhase::Ended };
        }
        let (page, interval) = (self.settings.page.get(), self.settings.refresh_interval);
        let rest = match found {
            _ if more || found * 10 >= page * 9 => Duration::ZERO,
            found if found * 10 > page => interval / 2,
            _ => interval,
        };
        self.live_at = now + rest;
        self.rows += found;
        self.idle_polls = if found == 0 { self.idle_polls + 1 } else { 0 };
        if self.should_go_back(now) {
            (self.idle_polls, self.rows, self.go_back) = (0, 0, false);
            return FeedPhase::Resting { until: now, pass: Pass::Backtracking };
        }
        FeedPhase::Resting { until: self.live_at, pass: Pass::Live }
    }

    fn should_go_back(&self, now: Instant) -> bool {
        let Some(back) = &self.back else { return false };
        // Nothing to go back over until an event was read.
        let Some(read_to) = self.live.cursor.timestamp() else { return false };
        let reread_to = back.cursor.timestamp().unwrap_or_default();
        let ahead = Duration::from_micros(read_to.as_micros().saturating_sub(reread_to.as_micros()));
        self.go_back
            || self.idle_polls >= IDLE_POLLS
            || self.rows >= PAGES * self.settings.page.get()
            || (ahead > self.settings.backtracking.window / 2 && now >= self.back_again_at)
    }

    /// The page as envelopes, without events delivered before the stream was resumed.
    fn take(&mut self, pass: Pass, page: EventPage) -> Vec<Envelope> {
        let source = match pass {
            Pass::Live => EventSource::Live,
            Pass::Backtracking => EventSource::Backtracking,
        };
        let resumed = self.resumed.take_if(|_| pass == Pass::Live);
        let known = |found: &FoundEvent| {
            let place = Position::Timestamp(resumed.as_ref().map(|(at, _)| *at).unwrap_or_default());
            let seen = resumed.as_ref().filter(|_| place == found.position);
            seen.is_some_and(|(_, seen)| seen.contains(&(found.id.clone(), found.seq_nr.as_u64())))
        };
        let last = page.events.last().map(|found| found.position);
        let events: Vec<FoundEvent> = page.events.into_iter().filter(|found| !known(found)).collect();
        let track = match (pass, &mut self.back) {
            (Pass::Backtracking, Some(back)) => back,
            _ => &mut self.live,
        };
        track.cursor = page.next;
        let envelopes = track.envelopes(events, source);
        // Keep the filter while further events may have the time of the offset.
        if let Some((at, _)) = &resumed
            && last.is_none_or(|last| last == Position::Timestamp(*at))
        {
            self.resumed = resumed;
        }
        envelopes
    }
}

impl Track {
    fn envelopes(&mut self, events: Vec<FoundEvent>, source: EventSource) -> Vec<Envelope> {
        let mut envelopes = Vec::with_capacity(events.len());
        let mut events = events.into_iter().peekable();
        while let Some(first) = events.next() {
            let position = first.position;
            let mut group = vec![first];
            if let Position::Timestamp(at) = position {
                group.extend(std::iter::from_fn(|| events.next_if(|next| next.position == position)));
                if self.seen_at != Some(at) {
                    (self.seen_at, self.seen) = (Some(at), Vec::new());
                }
            }
            let before = self.seen.len();
            if self.seen_at.is_some() {
                self.seen.extend(group.iter().map(|found| (found.id.clone(), found.seq_nr.as_u64())));
            }
            let all = self.seen_at.map(|_| Arc::new(self.seen.clone()));
            for (nth, FoundEvent { id, seq_nr, position, event }) in (1..).zip(group) {
                let seen = all.clone().map(|all| SeenAt { all, count: before + nth });
                envelopes.push(Envelope { id, seq_nr, position, source, record: event, seen });
            }
        }
        envelopes
    }
}

/// The time that is `by` after `timestamp`.
pub(crate) fn after(timestamp: Timestamp, by: Duration) -> Timestamp {
    let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(timestamp.as_micros().saturating_add(by))
}

/// The time that is `by` before `timestamp`.
pub(crate) fn before(timestamp: Timestamp, by: Duration) -> Timestamp {
    let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(timestamp.as_micros().saturating_sub(by))
}
