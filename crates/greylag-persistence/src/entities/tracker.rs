//! At-least-once delivery from an event-sourced entity: messages that it sends until they are confirmed.
//!
//! A [`DeliveryTracker`] is a part of the entity's state. `apply` records a delivery, and later its
//! confirmation, so replay gives every delivery its id again. The machine of the entity drives the
//! tracker that [`EventSourced::tracker`](crate::EventSourced::tracker) lends to it: a delivery is sent only
//! after its event is stored, and again until it is confirmed. New code should
//! prefer `greylag-delivery`, which also keeps the order and the pace.
//!
//! ```text
//! apply: deliver(dest, msg)   append Ok --Stored--> Send   Tick: Send again ...   apply: confirm(id)
//! recovery: Recovered --> Send everything that is not confirmed, in the order of the ids
//! ```
//!
//! ```
//! use std::collections::BTreeSet;
//! use std::sync::mpsc::{Sender, channel};
//! use std::time::{Duration, Instant};
//!
//! use greylag_codec::json;
//! use greylag_persistence::{
//!     Ctx, DeliveryId, DeliveryTracker, Effect, EntityTestKit, EventCodecs, EventSourced, PersistenceId, Tracked,
//! };
//! use serde::{Deserialize, Serialize};
//!
//! enum Command { Order { item: String }, Shipped { delivery: DeliveryId } }
//!
//! #[derive(Serialize, Deserialize)]
//! enum Event { Ordered { item: String }, Shipped { delivery: u64 } }
//!
//! /// What is for the warehouse: a real one would hold its `EntityRef`, and answer with the delivery.
//! type Warehouse = Sender<(DeliveryId, String)>;
//!
//! struct Shop { warehouse: Warehouse }
//!
//! impl EventSourced for Shop {
//!     type Command = Command;
//!     type Event = Event;
//!     type State = DeliveryTracker<&'static str, String>;
//!
//!     fn on_command(&mut self, _: &mut Ctx<'_, Command>, state: &Self::State, command: Command) -> Effect<Self> {
//!         match command {
//!             Command::Order { item } if state.has_room(1) => Effect::persist(Event::Ordered { item }),
//!             Command::Order { .. } => Effect::unhandled(),
//!             // The second confirmation of a message that was sent twice says nothing new.
//!             Command::Shipped { delivery } if state.get(delivery).is_none() => Effect::none(),
//!             Command::Shipped { delivery } => Effect::persist(Event::Shipped { delivery: delivery.as_u64() }),
//!         }
//!     }
//!
//!     fn apply(state: &mut Self::State, event: &Event) {
//!         match event {
//!             Event::Ordered { item } => { state.deliver("warehouse", |_| item.clone()); }
//!             Event::Shipped { delivery } => { state.confirm(DeliveryId::new(*delivery)); }
//!         }
//!     }
//!
//!     fn tracker<'a>(&'a mut self, state: &'a mut Self::State) -> Option<Tracked<'a>> {
//!         Some(state.send_by(|attempt| { let _ = self.warehouse.send((attempt.id, attempt.message.clone())); }))
//!     }
//! }
//!
//! let (warehouse, received) = channel();
//! let id = PersistenceId::of("Shop", "7")?;
//! let codecs = EventCodecs::new(json("shop.event"));
//! let shop = move || codecs.of(id.clone(), Shop { warehouse: warehouse.clone() });
//! let mut shop = EntityTestKit::new(Instant::now(), shop);
//! shop.run(Command::Order { item: "book".into() });
//! assert_eq!(received.try_recv()?, (DeliveryId::new(1), "book".into()));
//! shop.advance(Duration::from_secs(10)); // no answer came, so it goes out again
//! assert_eq!(received.try_iter().collect::<BTreeSet<_>>(), [(DeliveryId::new(1), "book".into())].into());
//! shop.restart(); // and again: what is not confirmed survives
//! assert_eq!(received.try_recv()?, (DeliveryId::new(1), "book".into()));
//! shop.run(Command::Shipped { delivery: DeliveryId::new(1) });
//! shop.advance(Duration::from_secs(60));
//! assert!(received.try_recv().is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source: persistence §6. Differs: if more is due than a tick may send, the longest-waiting deliveries go
//! first; by ids alone, a destination that never answers would keep all later deliveries from ever being
//! sent.

mod settings;
mod snapshot;
mod tracked;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::time::Instant;

pub use settings::DeliveryTrackerSettings;
pub use snapshot::TrackerSnapshot;
pub use tracked::{DeliveryAttempt, Tracked};

/// The number of one delivery of one entity: 1, 2, 3, … over all its destinations and incarnations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct DeliveryId(u64);

impl DeliveryId {
    /// An id from its number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The id as a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An input to a [`DeliveryTracker`]: the entity's recovery, its stored events, and the passing of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrackerInput {
    /// Recovery is complete: all recorded deliveries are stored, and none was sent in this incarnation.
    Recovered(DeliveryTrackerSettings),
    /// All deliveries recorded until now are stored.
    Stored,
    /// [`DeliveryTracker::next_deadline`] has come. Early and repeated ticks are harmless.
    Tick,
}

/// An action that a tracker asks for, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrackerEffect {
    /// Send this delivery, of which [`DeliveryTracker::get`] has the content.
    Send {
        /// Id of the delivery.
        id: DeliveryId,
        /// Number of the attempt in this incarnation, from 1.
        attempt: u32,
    },
    /// Signal the warning to the behaviour.
    Warn(UnconfirmedWarning),
}

/// Deliveries that were sent [`DeliveryTrackerSettings::warn_after_attempts`] times and are not
/// confirmed. They are sent on; each is reported once in an incarnation of the entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnconfirmedWarning {
    /// Ids of the deliveries, ascending. [`DeliveryTracker::get`] has the content.
    pub ids: Vec<DeliveryId>,
}

/// The unconfirmed deliveries of one entity. See the module's description.
///
/// `D` names a destination, `M` is a message; both are stored with the entity's snapshots. Receivers
/// must recognize a repeated message: by its id, or by its content.
///
/// An event that records a delivery must be applied at every replay: if it becomes filtered
/// later, the next delivery gets its id.
#[derive(Clone)]
pub struct DeliveryTracker<D, M> {
    settings: DeliveryTrackerSettings,
    /// The last id given.
    current_id: DeliveryId,
    unconfirmed: BTreeMap<DeliveryId, Unconfirmed<D, M>>,
    /// Deliveries up to this id are stored.
    stored_to: DeliveryId,
    /// Deliveries up to this id were recorded when recovery ended.
    recovered_to: DeliveryId,
    /// Deliveries up to this id were sent in this incarnation, later ones not.
    sent_to: DeliveryId,
    tick_at: Option<Instant>,
}

#[derive(Debug, Clone)]
struct Unconfirmed<D, M> {
    dest: D,
    message: M,
    attempts: u32,
    sent_at: Option<Instant>,
}

impl<D, M> DeliveryTracker<D, M> {
    /// Records a delivery and gives it the next id; it is sent when its event is stored. Call this method from
    /// `apply` only, so that replay gives the same ids. It never refuses.
    pub fn deliver(&mut self, dest: D, message: impl FnOnce(DeliveryId) -> M) -> DeliveryId {
        let id = self.current_id.0.checked_add(1).map(DeliveryId).expect("no entity delivers 2^64 times");
        let message = message(id);
        self.unconfirmed.insert(id, Unconfirmed { dest, message, attempts: 0, sent_at: None });
        self.current_id = id;
        id
    }

    /// Ends a delivery, because it was confirmed or is given up; returns `true` the first time only. Call this method
    /// from `apply` only.
    pub fn confirm(&mut self, id: DeliveryId) -> bool {
        self.unconfirmed.remove(&id).is_some()
    }

    /// Whether `count` more deliveries stay within [`DeliveryTrackerSettings::max_unconfirmed`]. For
    /// command handlers: [`DeliveryTracker::deliver`] itself never refuses, or else the result of a replay
    /// would depend on a setting.
    pub fn has_room(&self, count: usize) -> bool {
        self.unconfirmed.len().saturating_add(count) <= self.settings.max_unconfirmed.get()
    }

    /// The last id given; 0 before the first.
    pub fn current_id(&self) -> DeliveryId {
        self.current_id
    }

    /// An unconfirmed delivery: its destination and its message.
    pub fn get(&self, id: DeliveryId) -> Option<(&D, &M)> {
        self.unconfirmed.get(&id).map(|delivery| (&delivery.dest, &delivery.message))
    }

    /// All unconfirmed deliveries, ascending.
    pub fn unconfirmed(&self) -> impl Iterator<Item = (DeliveryId, &D, &M)> {
        self.unconfirmed.iter().map(|(id, delivery)| (*id, &delivery.dest, &delivery.message))
    }

    /// Number of unconfirmed deliveries.
    pub fn unconfirmed_count(&self) -> usize {
        self.unconfirmed.len()
    }

    /// Takes one input. The machine of the entity calls this method, through [`Tracked`].
    pub fn handle(&mut self, now: Instant, input: TrackerInput, out: &mut Vec<TrackerEffect>) {
        match input {
            TrackerInput::Recovered(settings) => self.on_recovered(now, settings, out),
            TrackerInput::Stored => self.on_stored(now, out),
            TrackerInput::Tick => self.on_tick(now, out),
        }
        self.check_invariants();
    }

    /// When a [`TrackerInput::Tick`] next has work to do; `None` while all deliveries are confirmed.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.tick_at.filter(|_| !self.unconfirmed.is_empty())
    }

    fn on_recovered(&mut self, now: Instant, settings: DeliveryTrackerSettings, out: &mut Vec<TrackerEffect>) {
        self.settings = settings;
        for delivery in self.unconfirmed.values_mut() {
            (delivery.attempts, delivery.sent_at) = (0, None);
        }
        (self.stored_to, self.recovered_to, self.sent_to) = (self.current_id, self.current_id, DeliveryId(0));
        self.send_due(now, out);
    }

    fn on_stored(&mut self, now: Instant, out: &mut Vec<TrackerEffect>) {
        self.stored_to = self.current_id;
        self.send_fresh(now, out);
        // Tick now, in case a tick came while the append was under way.
        self.on_tick(now, out);
        if self.tick_at.is_none() && !self.unconfirmed.is_empty() {
            self.tick_at = Some(now + self.settings.tick_interval());
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<TrackerEffect>) {
        if self.tick_at.is_some_and(|at| at <= now) {
            self.send_due(now, out);
        }
    }

    /// Sends stored deliveries that were never sent; but only after all those that recovery found, which may
    /// take several ticks.
    fn send_fresh(&mut self, now: Instant, out: &mut Vec<TrackerEffect>) {
        if self.unsent_to(self.recovered_to).next().is_some() {
            return;
        }
        for id in self.unsent_to(self.stored_to).collect::<Vec<_>>() {
            self.send(now, id, out);
        }
    }

    fn unsent_to(&self, to: DeliveryId) -> impl Iterator<Item = DeliveryId> {
        // `max`, since `range` panics if its end is before its start.
        let range = (Bound::Excluded(self.sent_to), Bound::Included(to.max(self.sent_to)));
        self.unconfirmed.range(range).map(|(id, _)| *id)
    }

    /// Sends the due deliveries, up to the limit of one tick.
    fn send_due(&mut self, now: Instant, out: &mut Vec<TrackerEffect>) {
        let (interval, limit) = (self.settings.redeliver_interval, self.settings.redelivery_burst_limit.get());
        let is_due = |at: Instant| now.saturating_duration_since(at) >= interval;
        let stored = self.unconfirmed.range(..=self.stored_to);
        let due = stored.filter(|(_, delivery)| delivery.sent_at.is_none_or(is_due));
        let mut due: Vec<_> = due.map(|(id, delivery)| (delivery.sent_at, *id)).collect();
        if due.len() > limit {
            // Deliveries that were never sent go first, then those that wait longest: see the module's `Differs`.
            due.select_nth_unstable(limit);
            due.truncate(limit);
        }
        due.sort_unstable_by_key(|(_, id)| *id);
        let mut warning = UnconfirmedWarning { ids: Vec::new() };
        for (_, id) in due {
            if self.send(now, id, out) == self.settings.warn_after_attempts.get().saturating_add(1) {
                warning.ids.push(id);
            }
        }
        self.send_fresh(now, out);
        if !warning.ids.is_empty() {
            out.push(TrackerEffect::Warn(warning));
        }
        self.tick_at = (!self.unconfirmed.is_empty()).then(|| now + self.settings.tick_interval());
    }

    /// Sends a delivery; returns the number of the attempt.
    fn send(&mut self, now: Instant, id: DeliveryId, out: &mut Vec<TrackerEffect>) -> u32 {
        let Some(delivery) = self.unconfirmed.get_mut(&id) else { return 0 };
        delivery.attempts = delivery.attempts.saturating_add(1);
        delivery.sent_at = Some(now);
        self.sent_to = self.sent_to.max(id);
        out.push(TrackerEffect::Send { id, attempt: delivery.attempts });
        delivery.attempts
    }

    fn check_invariants(&self) {
        debug_assert!(self.sent_to <= self.stored_to, "nothing is sent before it is stored");
        debug_assert!(self.stored_to <= self.current_id && self.recovered_to <= self.stored_to);
        debug_assert!(
            self.unconfirmed.iter().all(|(id, delivery)| delivery.sent_at.is_some() == (*id <= self.sent_to)),
            "first attempts go in the order of the ids"
        );
    }
}

/// Compares the persisted part; the times of attempts do not count.
impl<D: PartialEq, M: PartialEq> PartialEq for DeliveryTracker<D, M> {
    fn eq(&self, other: &Self) -> bool {
        self.current_id == other.current_id && self.unconfirmed().eq(other.unconfirmed())
    }
}

impl<D: Eq, M: Eq> Eq for DeliveryTracker<D, M> {}

impl<D: fmt::Debug, M: fmt::Debug> fmt::Debug for DeliveryTracker<D, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryTracker")
            .field("current_id", &self.current_id)
            .field("unconfirmed", &self.unconfirmed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
