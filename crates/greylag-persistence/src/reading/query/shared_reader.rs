//! Reads the events of one entity type once, for all projections of a node.
//!
//! ```text
//! Join ─▶ Joined ─▶ Demand ─▶ Give ─▶ Demand ─▶ Give …        Leave, or Dismiss: too slow, or damage
//! ```
//! One [`Feed`] over all slices fills a buffer; each consumer takes the events of its slices from it, in
//! the order of the feed. Events that all consumers have taken are removed. So the fastest is at most the
//! buffer ahead of the slowest; and a consumer that keeps the others waiting is dismissed: it reads by
//! itself, behind them, and joins again when it has caught up. A consumer gets the events of queries sent
//! after it joined; earlier events it has read by itself.
//!
//! Source: persistence §5 (one reader), scenario 59.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Instant;

use super::envelope::{Envelope, EventSource};
use super::feed::{Feed, FeedEffect, FeedInput, before};
use super::settings::QuerySettings;
use crate::contract::error::{QueryError, ReadError};
use crate::contract::offset::{Offset, OffsetKind, Position};
use crate::contract::query::{EventPage, EventsOf, PageQuery};
use crate::contract::records::persistence_id::SLICES;

/// Id of a consumer of a shared reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u64);

/// An input to a [`SharedReader`]: its consumers' demands, answers of the journal, and the passing of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedReaderInput {
    /// The answer to [`SharedReaderEffect::AskNewest`].
    Newest(Result<Option<Position>, ReadError>),
    /// A consumer of these slices joins.
    Join(ConsumerId, RangeInclusive<u16>),
    /// A consumer wants more.
    Demand(ConsumerId),
    /// A consumer leaves.
    Leave(ConsumerId),
    /// The answer to the query under way.
    Page(Result<EventPage, QueryError>),
    /// An entity of this node has written an event; query at once.
    Hint,
    /// The time is [`SharedReader::next_deadline`].
    Tick,
}

/// A message to a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedAnswer {
    /// The consumer gets the events of all queries sent from now on.
    Joined,
    /// Events for the consumer's demand.
    Events {
        /// The envelopes, at least one.
        envelopes: Vec<Envelope>,
        /// Offset to resume from after all events read so far, other slices included.
        reached: Offset,
    },
    /// The consumer gets no more events, and reads on by itself after this offset, if one is given.
    Dismissed(Option<Offset>),
}

/// An action that a shared reader asks of its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedReaderEffect {
    /// Ask the store for its newest position.
    AskNewest,
    /// Query a page of the store.
    Query(PageQuery),
    /// Send an answer to the consumer.
    Tell(ConsumerId, SharedAnswer),
    /// Log for the operator that the store does not answer, and is asked again.
    Trouble(String),
    /// There was no consumer for a while: end, unless one is about to join.
    Idle,
    /// An event is damaged, which concerns only consumers of its slice: end; consumers of that slice will meet the
    /// damage when they read by themselves.
    Broken(QueryError),
}

/// An envelope, and the time at which the fastest consumer went past it.
#[derive(Debug)]
struct Slot {
    envelope: Envelope,
    passed_at: Option<Instant>,
}

#[derive(Debug)]
struct Consumer {
    slices: RangeInclusive<u16>,
    /// The number of the slot to take next.
    next: u64,
    wants: bool,
    told: bool,
    reached: Option<Offset>,
    /// Start of the time for which it holds more than half of the buffer.
    holding_since: Option<Instant>,
}

/// The reader of one entity type.
#[derive(Debug)]
pub struct SharedReader {
    of: EventsOf,
    kind: OffsetKind,
    settings: QuerySettings,
    /// `None` until the newest position is known.
    feed: Option<Feed>,
    /// When to ask for the newest position again.
    newest_at: Option<Instant>,
    asked: bool,
    /// Envelopes of the last page that the buffer has no room for.
    staged: VecDeque<Envelope>,
    slots: VecDeque<Slot>,
    /// The number of the first slot.
    first: u64,
    consumers: BTreeMap<ConsumerId, Consumer>,
    /// Start of the time without consumers.
    idle_since: Option<Instant>,
}

impl SharedReader {
    /// Starts a reader, which asks for the newest position first: each consumer reads earlier events by itself.
    pub fn start(
        entity_type: &str,
        kind: OffsetKind,
        settings: QuerySettings,
        now: Instant,
        out: &mut Vec<SharedReaderEffect>,
    ) -> Self {
        out.push(SharedReaderEffect::AskNewest);
        Self {
            of: EventsOf::Slices { entity_type: entity_type.to_owned(), slices: 0..=SLICES - 1 },
            kind,
            settings,
            feed: None,
            newest_at: None,
            asked: false,
            staged: VecDeque::new(),
            slots: VecDeque::new(),
            first: 0,
            consumers: BTreeMap::new(),
            idle_since: Some(now),
        }
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: SharedReaderInput, out: &mut Vec<SharedReaderEffect>) {
        match input {
            SharedReaderInput::Newest(newest) => self.on_newest(now, newest, out),
            SharedReaderInput::Join(id, slices) => self.on_join(now, id, slices),
            SharedReaderInput::Demand(id) => {
                if let Some(consumer) = self.consumers.get_mut(&id) {
                    consumer.wants = true;
                }
            }
            SharedReaderInput::Leave(id) => drop(self.consumers.remove(&id)),
            SharedReaderInput::Page(Err(QueryError::Read(error))) if self.feed.is_none() => {
                self.on_newest(now, Err(error), out);
            }
            SharedReaderInput::Page(page) => self.feed(now, FeedInput::Page(page), out),
            SharedReaderInput::Hint => self.feed(now, FeedInput::Hint, out),
            SharedReaderInput::Tick => self.feed(now, FeedInput::Tick, out),
        }
        self.advance(now, out);
        self.check_invariants();
    }

    /// Source: persistence §5 (one reader).
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert!(self.slots.len() <= self.capacity(), "the buffer is bounded");
        assert!(
            self.staged.is_empty() || self.slots.len() == self.capacity(),
            "what was read fills the room that there is"
        );
        let nexts = || self.consumers.values().map(|consumer| consumer.next);
        assert!(nexts().all(|next| (self.first..=self.end()).contains(&next)), "a consumer stands in the buffer");
        assert_eq!(nexts().min().unwrap_or(self.end()), self.first, "events that all have taken are removed");
        assert_eq!(self.consumers.is_empty(), self.idle_since.is_some(), "a reader idles without consumers");
        let is_told = self.consumers.values().any(|consumer| consumer.told);
        assert!(!is_told || self.feed.is_some(), "a consumer joins a reader that reads");
    }

    /// When a [`SharedReaderInput::Tick`] next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let feed_at = self.feed.as_ref().and_then(Feed::next_deadline);
        let idle_at = self.idle_since.map(|since| since + self.settings.sharing.linger);
        let dismiss_at = self.consumers.values().filter_map(|consumer| self.dismiss_at(consumer)).min();
        [feed_at, idle_at, dismiss_at, self.newest_at].into_iter().flatten().min()
    }

    fn on_newest(
        &mut self,
        now: Instant,
        newest: Result<Option<Position>, ReadError>,
        out: &mut Vec<SharedReaderEffect>,
    ) {
        let offset = match newest {
            Ok(None) => Offset::None,
            Ok(Some(Position::Ordinal(ordinal))) => Offset::Ordinal(ordinal),
            // The newest event may not be settled yet, so begin `behind` earlier; joining consumers know older events.
            Ok(Some(Position::Timestamp(at))) => {
                Offset::Timestamp { timestamp: before(at, self.settings.backtracking.behind), seen: Vec::new() }
            }
            Err(error) => {
                self.newest_at = Some(now + self.settings.refresh_interval);
                out.push(SharedReaderEffect::Trouble(error.to_string()));
                return;
            }
        };
        let feed = Feed::live(self.of.clone(), &offset, self.kind, self.settings.clone(), now);
        match feed {
            Ok(feed) => self.feed = Some(feed),
            Err(error) => self.on_broken(error, out),
        }
    }

    fn on_join(&mut self, now: Instant, id: ConsumerId, slices: RangeInclusive<u16>) {
        // The new consumer starts behind the last slot, so it counts as past all slots: slower consumers keep it
        // waiting, and are dismissed in time.
        for slot in &mut self.slots {
            slot.passed_at.get_or_insert(now);
        }
        let consumer =
            Consumer { slices, next: self.end(), wants: false, told: false, reached: None, holding_since: None };
        self.consumers.insert(id, consumer);
        self.idle_since = None;
    }

    fn feed(&mut self, now: Instant, input: FeedInput, out: &mut Vec<SharedReaderEffect>) {
        let Some(feed) = &mut self.feed else { return };
        let mut effects = Vec::new();
        feed.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                FeedEffect::Query(query) => out.push(SharedReaderEffect::Query(query)),
                FeedEffect::Deliver(envelopes) => {
                    self.asked = false;
                    self.staged.extend(envelopes);
                }
                FeedEffect::Failed(QueryError::Read(ReadError::Unavailable(cause))) => {
                    self.asked = false;
                    out.push(SharedReaderEffect::Trouble(cause.to_string()));
                }
                FeedEffect::Failed(error) => self.on_broken(error, out),
                FeedEffect::Ended => {}
            }
        }
    }

    fn on_broken(&mut self, error: QueryError, out: &mut Vec<SharedReaderEffect>) {
        for id in self.consumers.keys().copied().collect::<Vec<_>>() {
            self.dismiss(id, out);
        }
        self.feed = None;
        out.push(SharedReaderEffect::Broken(error));
    }

    fn dismiss(&mut self, id: ConsumerId, out: &mut Vec<SharedReaderEffect>) {
        let Some(consumer) = self.consumers.remove(&id) else { return };
        out.push(SharedReaderEffect::Tell(id, SharedAnswer::Dismissed(consumer.reached)));
    }

    /// Does all work that is due.
    fn advance(&mut self, now: Instant, out: &mut Vec<SharedReaderEffect>) {
        if self.newest_at.is_some_and(|at| at <= now) {
            self.newest_at = None;
            out.push(SharedReaderEffect::AskNewest);
        }
        if self.feed.is_some() {
            for (id, consumer) in self.consumers.iter_mut().filter(|(_, consumer)| !consumer.told) {
                consumer.told = true;
                out.push(SharedReaderEffect::Tell(*id, SharedAnswer::Joined));
            }
        }
        self.fill();
        loop {
            self.hand_out(now, out);
            self.trim();
            // Refill after trimming; the new events may serve a waiting consumer.
            if !self.fill() {
                break;
            }
        }
        self.dismiss_slow_consumers(now, out);
        if self.consumers.is_empty() {
            self.linger(now, out);
        }
        if !self.asked && self.staged.is_empty() && self.slots.len() < self.capacity() {
            self.asked = self.feed.is_some();
            self.feed(now, FeedInput::Demand, out);
        }
    }

    fn capacity(&self) -> usize {
        self.settings.sharing.fanout_buffer.get()
    }

    fn end(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Moves staged envelopes into the buffer; returns whether any were moved.
    fn fill(&mut self) -> bool {
        let room = self.capacity().saturating_sub(self.slots.len()).min(self.staged.len());
        self.slots.extend(self.staged.drain(..room).map(|envelope| Slot { envelope, passed_at: None }));
        room > 0
    }

    /// Gives buffered events to consumers with a demand.
    fn hand_out(&mut self, now: Instant, out: &mut Vec<SharedReaderEffect>) {
        let end = self.end();
        for (id, consumer) in &mut self.consumers {
            let mut envelopes = Vec::new();
            while consumer.next < end {
                let slot = &mut self.slots[usize::try_from(consumer.next - self.first).expect("it is in memory")];
                let is_meant = consumer.slices.contains(&slot.envelope.id.slice());
                if is_meant && !consumer.wants {
                    break;
                }
                slot.passed_at.get_or_insert(now);
                if slot.envelope.source == EventSource::Live {
                    consumer.reached = Some(slot.envelope.offset());
                }
                if is_meant {
                    envelopes.push(slot.envelope.clone());
                }
                consumer.next += 1;
            }
            if !envelopes.is_empty() {
                consumer.wants = false;
                let reached = consumer.reached.clone().unwrap_or_default();
                out.push(SharedReaderEffect::Tell(*id, SharedAnswer::Events { envelopes, reached }));
            }
        }
    }

    /// Removes slots that all consumers have taken.
    fn trim(&mut self) {
        let needed = self.consumers.values().map(|consumer| consumer.next).min().unwrap_or_else(|| self.end());
        let gone = usize::try_from(needed - self.first).expect("it is in memory");
        self.slots.drain(..gone);
        self.first = needed;
    }

    /// When to dismiss this consumer, if nothing changes.
    fn dismiss_at(&self, consumer: &Consumer) -> Option<Instant> {
        let sharing = &self.settings.sharing;
        let at = usize::try_from(consumer.next - self.first).ok()?;
        let passed_at = self.slots.get(at)?.passed_at?;
        Some((consumer.holding_since? + sharing.abort_after).max(passed_at + sharing.slow_consumer_lag))
    }

    fn dismiss_slow_consumers(&mut self, now: Instant, out: &mut Vec<SharedReaderEffect>) {
        let (end, capacity) = (self.end(), self.capacity() as u64);
        for consumer in self.consumers.values_mut() {
            let holds_much = (end - consumer.next) * 2 > capacity;
            consumer.holding_since = if holds_much { consumer.holding_since.or(Some(now)) } else { None };
        }
        let is_due = |consumer: &Consumer| self.dismiss_at(consumer).is_some_and(|at| at <= now);
        let slow: Vec<ConsumerId> =
            self.consumers.iter().filter(|(_, consumer)| is_due(consumer)).map(|(id, _)| *id).collect();
        if slow.is_empty() {
            return;
        }
        for id in slow {
            self.dismiss(id, out);
        }
        // Let the other consumers go on at once.
        self.trim();
        self.advance(now, out);
    }

    /// Reads on for a while without consumers, so that a returning consumer finds the reader up to date; drops the
    /// events read.
    fn linger(&mut self, now: Instant, out: &mut Vec<SharedReaderEffect>) {
        self.staged.clear();
        let since = *self.idle_since.get_or_insert(now);
        if since + self.settings.sharing.linger <= now {
            self.idle_since = Some(now);
            out.push(SharedReaderEffect::Idle);
        }
    }
}
