//! The stream of one projection: the projection reads by itself until it has caught up, then takes events of the shared
//! reader.
//!
//! ```text
//! Alone ─▶ Joining ─▶ Overlapping ─▶ Shared
//!   ▲ caught up   both feed it        │ only the shared reader does
//!   ╰────────── dismissed ◀───────────╯
//! ```
//! No event is lost in the switch. A follower that joins gets the events of queries sent from then on; events
//! that were settled before are read by one more page of its own. Events that were committed late and lie
//! before the shared reader's backtracking cursor are read by one more backtracking pass of its own. Only after
//! both, and `catchup_overlap`, the follower stops reading by itself.
//!
//! Reading on delivers no event twice, or out of the order of its id: on stores of ordinals the follower drops events
//! that are not beyond the last one delivered; on others it drops, by id and number, events delivered during the
//! overlap, and live events of the shared reader up to the follower's own cursor, as it was at both ends of the
//! overlap. An event that such a cut drops without having been delivered was committed late; backtracking delivers it,
//! as always.
//!
//! Source: persistence §5 (one reader), scenario 59.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::envelope::{Envelope, EventSource};
use super::feed::{Feed, FeedEffect, FeedInput};
use super::settings::QuerySettings;
use super::shared_reader::SharedAnswer;
use crate::contract::error::QueryError;
use crate::contract::offset::{Offset, OffsetKind, Position};
use crate::contract::query::{Cursor, EventPage, EventsOf, PageQuery, Visible};
use crate::contract::records::event::{SeqNr, Timestamp};
use crate::contract::records::persistence_id::PersistenceId;

/// Most ids whose numbers are kept during the overlap; events of further ids may come twice.
const REMEMBERED: usize = 10_000;

/// An input to a [`Follower`]: its consumer's demand, pages of the journal and the shared reader, and the passing of
/// time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowerInput {
    /// The consumer wants more.
    Demand,
    /// The answer to the query under way.
    Page(Result<EventPage, QueryError>),
    /// An answer of the shared reader.
    Shared(SharedAnswer),
    /// An entity of this node has written an event; query at once.
    Hint,
    /// The time is [`Follower::next_deadline`].
    Tick,
}

/// An action that a follower asks of its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowerEffect {
    /// Query the store; the answer comes back as [`FollowerInput::Page`].
    Query(PageQuery),
    /// Join the shared reader.
    Join,
    /// Ask the shared reader for more.
    Pull,
    /// Give these envelopes, at least one, to the consumer. Ends its demand.
    Deliver(Vec<Envelope>),
    /// Give this error to the consumer. Ends its demand; the next demand queries the store again.
    Failed(QueryError),
}

/// The source of the follower's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Alone,
    Joining,
    Overlapping { since: Instant, coverage: OverlapCoverage },
    Shared,
}

/// The passes of its own that the follower has completed since it joined, to cover events that the shared reader read
/// before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct OverlapCoverage {
    by_reading_on: bool,
    by_going_back: bool,
}

/// The query under way.
#[derive(Debug, Clone, Copy)]
struct QueryInFlight {
    goes_back: bool,
    since_joined: bool,
}

/// A live stream that leaves reading to the shared reader when it can.
#[derive(Debug)]
pub struct Follower {
    of: EventsOf,
    kind: OffsetKind,
    settings: QuerySettings,
    shares: bool,
    mode: Mode,
    /// The follower's own feed; `None` while only the shared reader feeds.
    own: Option<Feed>,
    in_flight: Option<QueryInFlight>,
    own_wants: bool,
    pulled: bool,
    demand: bool,
    ready: VecDeque<Envelope>,
    delivered: DeliveredFilter,
    /// The offset at which the follower's own feed begins after a dismissal.
    reached: Offset,
    /// Events before this are not shown again, as of the last delivery.
    reread_to: Option<Timestamp>,
    join_at: Instant,
}

impl Follower {
    /// A live stream after `offset`, which joins the shared reader if it `shares`.
    ///
    /// # Errors
    /// [`QueryError::ForeignOffset`] for an offset of another kind of store.
    pub fn new(
        of: EventsOf,
        offset: &Offset,
        kind: OffsetKind,
        settings: QuerySettings,
        shares: bool,
        now: Instant,
    ) -> Result<Self, QueryError> {
        let own = Feed::live(of.clone(), offset, kind, settings.clone(), now)?;
        Ok(Self {
            of,
            kind,
            settings,
            shares,
            mode: Mode::Alone,
            reread_to: own.reread_to(),
            own: Some(own),
            in_flight: None,
            own_wants: false,
            pulled: false,
            demand: false,
            ready: VecDeque::new(),
            delivered: DeliveredFilter::default(),
            reached: offset.clone(),
            join_at: now,
        })
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: FollowerInput, out: &mut Vec<FollowerEffect>) {
        match input {
            FollowerInput::Demand => self.demand = true,
            FollowerInput::Page(page) => self.on_page(now, page, out),
            FollowerInput::Shared(answer) => self.on_shared(now, answer, out),
            FollowerInput::Hint => self.own(now, FeedInput::Hint, out),
            FollowerInput::Tick => self.own(now, FeedInput::Tick, out),
        }
        self.stop_reading_alone(now);
        self.advance(now, out);
        self.check_invariants();
    }

    /// Source: persistence §5 (one reader).
    fn check_invariants(&self) {
        let is_shared = self.mode == Mode::Shared;
        debug_assert_eq!(self.own.is_none(), is_shared, "a follower reads by itself until the shared reader feeds it");
        let is_own = self.own_wants || self.in_flight.is_some();
        debug_assert!(!is_own || self.own.is_some(), "only its own feed reads");
        let is_fed = is_shared || matches!(self.mode, Mode::Overlapping { .. });
        debug_assert!(!self.pulled || is_fed, "only a consumer of the shared reader asks it for more");
        debug_assert!(!self.demand || self.ready.is_empty(), "an event that is there meets the demand");
        debug_assert!(self.delivered.numbers.len() <= REMEMBERED, "the numbers kept are bounded");
    }

    /// When a [`FollowerInput::Tick`] next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let own_at = self.own.as_ref().and_then(Feed::next_deadline);
        let overlap_at = match self.mode {
            // Without a demand the overlap need not end in time.
            Mode::Overlapping { since, coverage }
                if self.demand && self.is_covered(coverage) && self.in_flight.is_none() =>
            {
                Some(since + self.settings.sharing.catchup_overlap)
            }
            _ => None,
        };
        [own_at, overlap_at].into_iter().flatten().min()
    }

    /// Time before which backtracking finds no more events, once all delivered events are judged; `None`
    /// if any event may still be found.
    pub(crate) fn reread_to(&self) -> Option<Timestamp> {
        self.reread_to
    }

    /// Whether the follower has joined the shared reader, or is about to.
    pub fn has_joined(&self) -> bool {
        self.mode != Mode::Alone
    }

    fn own(&mut self, now: Instant, input: FeedInput, out: &mut Vec<FollowerEffect>) {
        let Some(own) = &mut self.own else { return };
        let mut effects = Vec::new();
        own.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                FeedEffect::Query(query) => {
                    let goes_back = matches!(query.visible, Visible::Older(_));
                    let since_joined = matches!(self.mode, Mode::Overlapping { .. });
                    self.in_flight = Some(QueryInFlight { goes_back, since_joined });
                    out.push(FollowerEffect::Query(query));
                }
                FeedEffect::Deliver(envelopes) => {
                    self.own_wants = false;
                    let delivered = &mut self.delivered;
                    self.ready.extend(envelopes.into_iter().filter(|envelope| delivered.is_new(envelope, false)));
                }
                FeedEffect::Failed(error) => {
                    self.own_wants = false;
                    self.demand = false;
                    out.push(FollowerEffect::Failed(error));
                }
                FeedEffect::Ended => {}
            }
        }
    }

    fn on_page(&mut self, now: Instant, page: Result<EventPage, QueryError>, out: &mut Vec<FollowerEffect>) {
        let Some(QueryInFlight { goes_back, since_joined }) = self.in_flight.take() else { return };
        let is_last = page.as_ref().is_ok_and(|page| !page.more);
        self.own(now, FeedInput::Page(page), out);
        if !is_last {
            return;
        }
        match &mut self.mode {
            Mode::Alone if self.shares && !goes_back && self.join_at <= now => {
                self.mode = Mode::Joining;
                out.push(FollowerEffect::Join);
            }
            Mode::Overlapping { coverage, .. } if since_joined && goes_back => coverage.by_going_back = true,
            Mode::Overlapping { coverage, .. } if since_joined && !coverage.by_reading_on => {
                coverage.by_reading_on = true;
                self.cut();
            }
            _ => {}
        }
    }

    fn on_shared(&mut self, now: Instant, answer: SharedAnswer, out: &mut Vec<FollowerEffect>) {
        match answer {
            SharedAnswer::Joined if self.mode == Mode::Joining => {
                self.mode = Mode::Overlapping { since: now, coverage: OverlapCoverage::default() };
                if let Some(own) = &mut self.own {
                    own.go_back_soon();
                }
                // Read at once: the other consumers wait until this one has caught up with the shared reader.
                self.own(now, FeedInput::Hint, out);
            }
            SharedAnswer::Events { envelopes, reached } => {
                self.pulled = false;
                self.reached = later(std::mem::take(&mut self.reached), reached);
                let delivered = &mut self.delivered;
                self.ready.extend(envelopes.into_iter().filter(|envelope| delivered.is_new(envelope, true)));
            }
            SharedAnswer::Dismissed(reached) => self.become_alone(now, reached),
            SharedAnswer::Joined => {}
        }
    }

    fn become_alone(&mut self, now: Instant, reached: Option<Offset>) {
        self.pulled = false;
        self.mode = Mode::Alone;
        // Wait before joining again: the overload or damage may persist.
        self.join_at = now + self.settings.sharing.catchup_overlap;
        self.reached = later(std::mem::take(&mut self.reached), reached.unwrap_or_default());
        if self.own.is_none() {
            let (of, settings) = (self.of.clone(), self.settings.clone());
            self.own_wants = false;
            self.delivered.forget();
            self.own = Feed::live(of, &self.reached, self.kind, settings, now).ok();
        }
    }

    /// Whether the follower's own passes have covered the events that the shared reader read before the join.
    fn is_covered(&self, coverage: OverlapCoverage) -> bool {
        // Nothing to go back over until an event was read.
        let goes_back = self.kind == OffsetKind::Timestamp
            && self.own.as_ref().is_some_and(|own| own.cursor().timestamp().is_some());
        coverage.by_reading_on && (coverage.by_going_back || !goes_back)
    }

    fn stop_reading_alone(&mut self, now: Instant) {
        let Mode::Overlapping { since, coverage } = self.mode else { return };
        let is_over = since + self.settings.sharing.catchup_overlap <= now;
        if !is_over || self.in_flight.is_some() || !self.is_covered(coverage) {
            return;
        }
        self.cut();
        if let Some(own) = self.own.take() {
            self.reached = later(std::mem::take(&mut self.reached), own.offset());
        }
        self.own_wants = false;
        self.delivered.forget();
        self.mode = Mode::Shared;
    }

    /// Records how far the follower has read by itself: it drops live events of the shared reader up to there.
    fn cut(&mut self) {
        if let Some(own) = &self.own {
            self.delivered.cut = own.cursor().clone();
        }
        self.delivered.remembers = true;
    }

    /// Updates `reread_to`. While the follower reads by itself its own passes count; the shared reader's may be far
    /// ahead.
    fn note_reread(&mut self, delivered: &[Envelope]) {
        let shown_again = |envelope: &&Envelope| envelope.source == EventSource::Backtracking;
        self.reread_to = match &self.own {
            Some(own) => own.reread_to(),
            None => delivered.iter().filter(shown_again).filter_map(Envelope::timestamp).max().max(self.reread_to),
        };
    }

    fn advance(&mut self, now: Instant, out: &mut Vec<FollowerEffect>) {
        if self.demand && !self.ready.is_empty() {
            self.demand = false;
            let envelopes: Vec<Envelope> = self.ready.drain(..).collect();
            self.note_reread(&envelopes);
            out.push(FollowerEffect::Deliver(envelopes));
        }
        let (hurries, is_fed) = match self.mode {
            Mode::Overlapping { coverage, .. } => {
                (!coverage.by_reading_on && self.ready.is_empty(), coverage.by_reading_on)
            }
            Mode::Shared => (false, true),
            Mode::Alone | Mode::Joining => (false, false),
        };
        if (self.demand || hurries) && !self.own_wants && self.own.is_some() {
            self.own_wants = true;
            self.own(now, FeedInput::Demand, out);
        }
        if self.demand && is_fed && !self.pulled {
            self.pulled = true;
            out.push(FollowerEffect::Pull);
        }
    }
}

/// The events delivered to the consumer so far.
#[derive(Debug, Default)]
struct DeliveredFilter {
    /// The last ordinal delivered, on stores of ordinals.
    ordinal: Option<u64>,
    /// The follower has read by itself up to here, so it drops earlier live events of the shared reader.
    cut: Cursor,
    /// Whether both feeds run, so that numbers are to be kept.
    remembers: bool,
    /// The highest number of each id that was read on while both feeds run.
    numbers: BTreeMap<PersistenceId, SeqNr>,
}

impl DeliveredFilter {
    /// Whether the consumer gets this envelope; if so, it counts as delivered.
    fn is_new(&mut self, envelope: &Envelope, is_shared: bool) -> bool {
        if let Position::Ordinal(ordinal) = envelope.position {
            let is_new = self.ordinal.is_none_or(|delivered| delivered < ordinal);
            self.ordinal = self.ordinal.max(Some(ordinal));
            return is_new;
        }
        // Backtracking shows events again on purpose; the consumer filters them.
        if envelope.source == EventSource::Backtracking {
            return true;
        }
        if is_shared && !self.is_beyond_cut(envelope) {
            return false;
        }
        if !self.remembers {
            return true;
        }
        if self.numbers.get(&envelope.id).is_some_and(|delivered| *delivered >= envelope.seq_nr) {
            return false;
        }
        if self.numbers.len() < REMEMBERED || self.numbers.contains_key(&envelope.id) {
            self.numbers.insert(envelope.id.clone(), envelope.seq_nr);
        }
        true
    }

    fn is_beyond_cut(&self, envelope: &Envelope) -> bool {
        match (&self.cut, envelope.position) {
            (Cursor::Row { timestamp, id, seq_nr }, Position::Timestamp(at)) => {
                (at, Some(&envelope.id), envelope.seq_nr) > (*timestamp, id.as_ref(), *seq_nr)
            }
            _ => true,
        }
    }

    fn forget(&mut self) {
        self.remembers = false;
        self.numbers.clear();
    }
}

/// The later of two offsets of one kind.
fn later(one: Offset, other: Offset) -> Offset {
    let place = |offset: &Offset| match offset {
        Offset::None => 0,
        Offset::Ordinal(ordinal) => ordinal.saturating_add(1),
        Offset::Timestamp { timestamp, .. } => timestamp.as_micros().saturating_add(1),
    };
    if place(&other) > place(&one) { other } else { one }
}
