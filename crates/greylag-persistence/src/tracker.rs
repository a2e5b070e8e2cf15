//! At-least-once delivery out of an event-sourced entity: what it has to send until it is confirmed.
//!
//! A [`DeliveryTracker`] is a part of the entity's state. `apply` records a delivery, and later its
//! confirmation, so replay gives every delivery its id again. The machine of the entity drives the
//! tracker that [`EventSourced::tracker`](crate::EventSourced::tracker) lends it: nothing is sent
//! before its event is stored, and everything is sent again until it is confirmed. New code should
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
//! Source: persistence §6. Differs: if more is due than a tick may send, what waits longest goes
//! first; by ids alone, a destination that never answers would keep all later ones from ever being
//! served.

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

/// The number of one delivery of one entity: 1, 2, 3, … over all its destinations and all its lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct DeliveryId(u64);

impl DeliveryId {
    /// From its number.
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

/// An input to a [`DeliveryTracker`]: how far its entity has recovered and stored, and that time passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrackerInput {
    /// The state is complete: everything in it is stored, and nothing of it was sent in this life.
    Recovered(DeliveryTrackerSettings),
    /// Everything recorded until now is stored.
    Stored,
    /// [`DeliveryTracker::next_deadline`] has come. Early and repeated ticks are harmless.
    Tick,
}

/// What a tracker asks for, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrackerEffect {
    /// Send this delivery, of which [`DeliveryTracker::get`] has the content.
    Send {
        /// Which one.
        id: DeliveryId,
        /// How often it was sent in this life of the entity, this time included.
        attempt: u32,
    },
    /// Tell the behaviour.
    Warn(UnconfirmedWarning),
}

/// Deliveries that were sent [`DeliveryTrackerSettings::warn_after_attempts`] times and are not
/// confirmed. They are sent on; each is told of once in a life of the entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnconfirmedWarning {
    /// Which ones, ascending. [`DeliveryTracker::get`] has the content.
    pub ids: Vec<DeliveryId>,
}

/// The deliveries of one entity that are not confirmed. See the module's description.
///
/// `D` names a destination, `M` is a message; both are stored with the entity's snapshots. Receivers
/// must know a message that they got before: by its id, or by what it says.
///
/// An event that records a delivery must be applied at every replay: one that becomes filtered
/// later gives its id to the delivery after it.
#[derive(Clone)]
pub struct DeliveryTracker<D, M> {
    settings: DeliveryTrackerSettings,
    /// The last id given.
    current_id: DeliveryId,
    unconfirmed: BTreeMap<DeliveryId, Unconfirmed<D, M>>,
    /// The deliveries up to here are stored.
    stored_to: DeliveryId,
    /// The deliveries up to here were there when recovery ended.
    recovered_to: DeliveryId,
    /// The deliveries up to here were sent in this life, those after not.
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
    /// Records a delivery and gives it the next id; it leaves when its event is stored. Call it from
    /// `apply` only, so that replay gives the same ids. It never refuses.
    pub fn deliver(&mut self, dest: D, message: impl FnOnce(DeliveryId) -> M) -> DeliveryId {
        let id = self.current_id.0.checked_add(1).map(DeliveryId).expect("no entity delivers 2^64 times");
        let message = message(id);
        self.unconfirmed.insert(id, Unconfirmed { dest, message, attempts: 0, sent_at: None });
        self.current_id = id;
        id
    }

    /// Ends a delivery, because it was confirmed or is given up; `true` the first time only. Call it
    /// from `apply` only.
    pub fn confirm(&mut self, id: DeliveryId) -> bool {
        self.unconfirmed.remove(&id).is_some()
    }

    /// Whether `count` more deliveries stay within [`DeliveryTrackerSettings::max_unconfirmed`]. For
    /// command handlers: [`DeliveryTracker::deliver`] itself never refuses, or else what replay gives
    /// would depend on a setting.
    pub fn has_room(&self, count: usize) -> bool {
        self.unconfirmed.len().saturating_add(count) <= self.settings.max_unconfirmed.get()
    }

    /// The last id that was given; 0 before the first.
    pub fn current_id(&self) -> DeliveryId {
        self.current_id
    }

    /// A delivery that is not confirmed: its destination and its message.
    pub fn get(&self, id: DeliveryId) -> Option<(&D, &M)> {
        self.unconfirmed.get(&id).map(|delivery| (&delivery.dest, &delivery.message))
    }

    /// All deliveries that are not confirmed, ascending.
    pub fn unconfirmed(&self) -> impl Iterator<Item = (DeliveryId, &D, &M)> {
        self.unconfirmed.iter().map(|(id, delivery)| (*id, &delivery.dest, &delivery.message))
    }

    /// How many deliveries are not confirmed.
    pub fn unconfirmed_count(&self) -> usize {
        self.unconfirmed.len()
    }

    /// Takes one input. The machine of the entity does this, through [`Tracked`].
    pub fn handle(&mut self, now: Instant, input: TrackerInput, out: &mut Vec<TrackerEffect>) {
        match input {
            TrackerInput::Recovered(settings) => self.on_recovered(now, settings, out),
            TrackerInput::Stored => self.on_stored(now, out),
            TrackerInput::Tick => self.on_tick(now, out),
        }
        self.check_invariants();
    }

    /// When a [`TrackerInput::Tick`] next has work to do; none while everything is confirmed.
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
        // The tick may have come while the append was under way.
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

    /// Sends what was never sent and is stored; but what recovery brought goes first, and that may
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
        // A range must not end before it begins.
        let range = (Bound::Excluded(self.sent_to), Bound::Included(to.max(self.sent_to)));
        self.unconfirmed.range(range).map(|(id, _)| *id)
    }

    /// A tick: sends what is due, as much as one tick may.
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

    /// Answers which attempt it is.
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

impl<D, M> Default for DeliveryTracker<D, M> {
    fn default() -> Self {
        Self::restore(TrackerSnapshot { current_id: DeliveryId(0), unconfirmed: Vec::new() })
    }
}

/// Compares what is persisted; the times at which deliveries were sent do not count.
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
