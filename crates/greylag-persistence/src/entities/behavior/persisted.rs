//! A behaviour with its id in the stores, and the codecs of its type.
//!
//! Codecs are named once, where an entity type is defined; the id comes with the single entity.

use std::fmt;

use super::durable_state::DurableState;
use super::event_sourced::EventSourced;
use crate::contract::records::codec::{IntoStored, StoredCodec};
use crate::contract::records::persistence_id::PersistenceId;

/// A behaviour, its id in the stores, and the codecs of its type; the start of an entity machine.
pub struct Persisted<B, C> {
    /// The behaviour.
    pub behavior: B,
    /// The id of its history or state.
    pub id: PersistenceId,
    /// The codecs of its type.
    pub codecs: C,
}

impl<B, C> fmt::Debug for Persisted<B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Persisted({})", self.id)
    }
}

/// The codecs of one type of event-sourced entities. Cheap to clone.
///
/// ```
/// use greylag_codec::json;
/// # use greylag_persistence::{Ctx, Effect, EventSourced};
/// use greylag_persistence::{EventCodecs, PersistenceId};
/// # struct Tally;
/// # impl EventSourced for Tally {
/// #     type Command = u64;
/// #     type Event = u64;
/// #     type State = u64;
/// #     fn on_command(&mut self, _: &mut Ctx<'_, u64>, _: &u64, add: u64) -> Effect<Self> { Effect::persist(add) }
/// #     fn apply(sum: &mut u64, add: &u64) { *sum += add }
/// # }
///
/// let codecs = EventCodecs::new(json("tally.added")).snapshots(json("tally"));
/// let tally = codecs.of(PersistenceId::of("Tally", "geese")?, Tally);
/// # Ok::<(), greylag_persistence::InvalidPersistenceId>(())
/// ```
pub struct EventCodecs<B: EventSourced> {
    pub(crate) events: StoredCodec<B::Event>,
    pub(crate) snapshots: Option<StoredCodec<B::State>>,
}

impl<B: EventSourced> EventCodecs<B> {
    /// Encodes events by `events`, and stores no snapshots.
    pub fn new<By>(events: impl IntoStored<B::Event, By>) -> Self {
        Self { events: events.into_stored(), snapshots: None }
    }

    /// Encodes states by `snapshots`, which makes snapshots possible.
    #[must_use]
    pub fn snapshots<By>(self, snapshots: impl IntoStored<B::State, By>) -> Self {
        Self { snapshots: Some(snapshots.into_stored()), ..self }
    }

    /// One entity of the type.
    pub fn of(&self, id: PersistenceId, behavior: B) -> Persisted<B, Self> {
        Persisted { behavior, id, codecs: self.clone() }
    }

    /// The same codecs for a behaviour that wraps one of these.
    pub fn of_wrapper<W: EventSourced<Event = B::Event, State = B::State>>(&self) -> EventCodecs<W> {
        EventCodecs { events: self.events.clone(), snapshots: self.snapshots.clone() }
    }
}

impl<B: EventSourced> Clone for EventCodecs<B> {
    fn clone(&self) -> Self {
        Self { events: self.events.clone(), snapshots: self.snapshots.clone() }
    }
}

impl<B: EventSourced> fmt::Debug for EventCodecs<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventCodecs").field("events", &self.events).field("snapshots", &self.snapshots).finish()
    }
}

/// The codec of one type of entities with a durable state. Cheap to clone.
pub struct StateCodec<B: DurableState>(pub(crate) StoredCodec<B::State>);

impl<B: DurableState> StateCodec<B> {
    /// Encodes states by `states`.
    pub fn new<By>(states: impl IntoStored<B::State, By>) -> Self {
        Self(states.into_stored())
    }

    /// One entity of the type.
    pub fn of(&self, id: PersistenceId, behavior: B) -> Persisted<B, Self> {
        Persisted { behavior, id, codecs: self.clone() }
    }
}

impl<B: DurableState> Clone for StateCodec<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: DurableState> fmt::Debug for StateCodec<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StateCodec").field(&self.0).finish()
    }
}
