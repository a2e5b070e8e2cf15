//! The kinds of entity types, and how a shard hosts entities of each.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;

use greylag_core::Codec;
use greylag_persistence::{
    DurableState, EventCodecs, EventSourced, IntoStored, PersistenceId, StateCodec, StoredCodec,
};

use super::{BoxedEntity, EntityType, Factory, Persisted};
use crate::entity::{EntityInit, Failure};
use crate::host::{DurableStateEntity, EventSourcedEntity, HostedEntity};
use crate::key::EntityKey;

/// How a node makes the entities of a type that it hosts, and how their data is stored.
pub struct Hosted<M> {
    pub(crate) factory: Factory<M>,
    pub(crate) persisted: Persisted,
}

impl<M> fmt::Debug for Hosted<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted").field("persisted", &self.persisted).finish_non_exhaustive()
    }
}

mod sealed {
    pub trait Sealed {}
    impl<M> Sealed for super::Plain<M> {}
    impl<B: super::EventSourced> Sealed for super::ByEvents<B> {}
    impl<B: super::DurableState> Sealed for super::ByState<B> {}
    impl Sealed for super::Proxy {}

    /// A kind whose entities are stored under a persistence id.
    pub trait Stored: Sealed {
        fn name(&mut self) -> &mut super::Name;
    }
    impl<B: super::EventSourced> Stored for super::ByEvents<B> {
        fn name(&mut self) -> &mut super::Name {
            &mut self.name
        }
    }
    impl<B: super::DurableState> Stored for super::ByState<B> {
        fn name(&mut self) -> &mut super::Name {
            &mut self.name
        }
    }
}

/// Why a description is incomplete for hosting entities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incomplete {
    /// There is no codec for these data.
    NoCodec(&'static str),
    /// This method about messages was called before a layer wrapped them.
    OfWrappedMessages(&'static str),
}

/// A kind of entity type: [`Plain`], [`ByEvents`], [`ByState`] or [`Proxy`].
pub trait Kind<M>: sealed::Sealed + Sized {
    /// How the node makes entities of the type; `None` if the node only sends to them.
    ///
    /// # Errors
    /// [`Incomplete`].
    fn hosted(self) -> Result<Option<Hosted<M>>, Incomplete>;
}

/// The kind of an [`EntityType`] whose entities persist nothing.
pub struct Plain<M> {
    factory: Factory<M>,
    pub(super) persisted: Persisted,
    /// Why the type cannot be hosted, if so.
    incomplete: Option<Incomplete>,
}

impl<M> Plain<M> {
    pub(super) fn new(
        factory: impl Fn(&EntityInit) -> Result<BoxedEntity<M>, Failure> + Send + Sync + 'static,
    ) -> Self {
        Self { factory: Arc::new(factory), persisted: Persisted::Nothing, incomplete: None }
    }
}

impl<M> Kind<M> for Plain<M> {
    fn hosted(self) -> Result<Option<Hosted<M>>, Incomplete> {
        self.incomplete.map_or(Ok(()), Err)?;
        Ok(Some(Hosted { factory: self.factory, persisted: self.persisted }))
    }
}

/// The kind of an [`EntityType`] without hosted entities.
#[derive(Debug, Clone, Copy)]
pub struct Proxy;

impl<M> Kind<M> for Proxy {
    fn hosted(self) -> Result<Option<Hosted<M>>, Incomplete> {
        Ok(None)
    }
}

/// Makes the behaviour of one entity.
type Make<B> = Arc<dyn Fn(&EntityInit) -> Result<B, Failure> + Send + Sync>;

/// The persistence id of the history or the state of one entity.
type Name = Arc<dyn Fn(&EntityInit) -> Result<PersistenceId, Failure> + Send + Sync>;

fn by_type_and_id() -> Name {
    Arc::new(|init| Ok(init.persistence_id()?))
}

/// For the kinds whose entities are stored: [`ByEvents`] and [`ByState`].
impl<M: Send + 'static, K: sealed::Stored> EntityType<M, K> {
    /// Sets the codec of commands between nodes.
    pub fn commands(self, codec: impl Codec<M>) -> Self {
        self.with_codec(codec)
    }

    /// Sets the persistence id of the history or the state of an entity. Default: its type and its id.
    pub fn persistence_id(
        mut self,
        name: impl Fn(&EntityInit) -> Result<PersistenceId, Failure> + Send + Sync + 'static,
    ) -> Self {
        *self.kind.name() = Arc::new(name);
        self
    }
}

/// The kind of an [`EntityType`] whose entities are event-sourced.
pub struct ByEvents<B: EventSourced> {
    make: Make<B>,
    name: Name,
    events: Option<StoredCodec<B::Event>>,
    snapshots: Option<StoredCodec<B::State>>,
}

impl<B: EventSourced> ByEvents<B> {
    pub(super) fn new(make: impl Fn(&EntityInit) -> Result<B, Failure> + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), name: by_type_and_id(), events: None, snapshots: None }
    }
}

impl<M: Send + 'static, B: EventSourced> EntityType<M, ByEvents<B>> {
    /// Sets how events are stored: a codec, or a [`StoredCodec`] that can also read events of earlier releases.
    pub fn events<By, C: IntoStored<B::Event, By> + 'static>(mut self, codec: C) -> Self {
        self.common.given.stored.0 = Some(TypeId::of::<C>());
        self.kind.events = Some(codec.into_stored());
        self
    }

    /// Sets how snapshots are stored; without this, none is saved or read.
    pub fn snapshots<By, C: IntoStored<B::State, By> + 'static>(mut self, codec: C) -> Self {
        self.common.given.stored.1 = Some(TypeId::of::<C>());
        self.kind.snapshots = Some(codec.into_stored());
        self
    }
}

impl<B: EventSourced> ByEvents<B> {
    /// The parts of the description that are about entities.
    fn into_parts(self) -> Result<EventSourcedParts<B>, Incomplete> {
        let Self { make, name, events, snapshots } = self;
        let mut codecs = EventCodecs::new(events.ok_or(Incomplete::NoCodec("events"))?);
        if let Some(snapshots) = snapshots {
            codecs = codecs.snapshots(snapshots);
        }
        Ok(EventSourcedParts { make, name, codecs })
    }
}

impl<B: EventSourced> Kind<B::Command> for ByEvents<B> {
    fn hosted(self) -> Result<Option<Hosted<B::Command>>, Incomplete> {
        let parts = self.into_parts()?;
        let factory: Factory<B::Command> = Arc::new(move |init| {
            let made = parts.codecs.of(parts.persistence_id(init)?, parts.behavior(init)?);
            Ok(Box::new(EventSourcedEntity::new(made, init)))
        });
        Ok(Some(Hosted { factory, persisted: Persisted::Events }))
    }
}

/// The parts of an event-sourced type's description that are about entities: for layers that add a protocol of their
/// own, by [`EntityType::hosted_by`].
pub struct EventSourcedParts<B: EventSourced> {
    make: Make<B>,
    name: Name,
    codecs: EventCodecs<B>,
}

impl<B: EventSourced> EventSourcedParts<B> {
    /// Makes the behaviour of an entity.
    ///
    /// # Errors
    /// [`Failure`]: the behaviour cannot be made.
    pub fn behavior(&self, init: &EntityInit) -> Result<B, Failure> {
        (self.make)(init)
    }

    /// The persistence id of the entity's history.
    ///
    /// # Errors
    /// [`Failure`]: its id cannot be part of a persistence id.
    pub fn persistence_id(&self, init: &EntityInit) -> Result<PersistenceId, Failure> {
        (self.name)(init)
    }

    /// The codecs of its events and snapshots.
    pub fn codecs(&self) -> &EventCodecs<B> {
        &self.codecs
    }
}

impl<B: EventSourced> fmt::Debug for EventSourcedParts<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventSourcedParts")
    }
}

impl<M: Send + 'static, B: EventSourced> EntityType<M, ByEvents<B>> {
    /// The same type behind a layer, whose messages are of type `N`: `codec` makes the layer's codec from the type's
    /// codec, `entity` makes one entity from the parts of the description. Functions of messages (a stop message, which
    /// messages count as activity, which entity they are for) must be set afterwards, for `N`; a type on which they
    /// were set before is refused.
    pub fn hosted_by<N, E>(
        self,
        codec: impl FnOnce(Arc<dyn Codec<M>>) -> Arc<dyn Codec<N>>,
        entity: impl Fn(&EventSourcedParts<B>, &EntityInit) -> Result<E, Failure> + Send + Sync + 'static,
    ) -> EntityType<N, Plain<N>>
    where
        N: Send + 'static,
        E: HostedEntity<Message = N>,
    {
        let key = EntityKey::named(self.key.name());
        let too_early = self.common.message_setting().map(Incomplete::OfWrappedMessages);
        let (parts, incomplete) = match self.kind.into_parts() {
            Ok(parts) => (Some(parts), too_early),
            Err(incomplete) => (None, Some(incomplete)),
        };
        let mut kind = Plain::new(move |init| {
            let parts = parts.as_ref().ok_or_else(|| Failure::new("the events of its type have no codec"))?;
            Ok(Box::new(entity(parts, init)?) as BoxedEntity<N>)
        });
        (kind.persisted, kind.incomplete) = (Persisted::Events, incomplete);
        EntityType { key, kind, common: self.common.of_other_messages(codec) }
    }
}

/// The kind of an [`EntityType`] whose entities keep their newest state.
pub struct ByState<B: DurableState> {
    make: Make<B>,
    name: Name,
    states: Option<StoredCodec<B::State>>,
}

impl<B: DurableState> ByState<B> {
    pub(super) fn new(make: impl Fn(&EntityInit) -> Result<B, Failure> + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), name: by_type_and_id(), states: None }
    }
}

impl<B: DurableState> EntityType<B::Command, ByState<B>> {
    /// Sets how states are stored: a codec, or a [`StoredCodec`] that can also read states of earlier releases.
    pub fn states<By, C: IntoStored<B::State, By> + 'static>(mut self, codec: C) -> Self {
        self.common.given.stored.0 = Some(TypeId::of::<C>());
        self.kind.states = Some(codec.into_stored());
        self
    }
}

impl<B: DurableState> Kind<B::Command> for ByState<B> {
    fn hosted(self) -> Result<Option<Hosted<B::Command>>, Incomplete> {
        let Self { make, name, states } = self;
        let codec = StateCodec::new(states.ok_or(Incomplete::NoCodec("states"))?);
        let factory: Factory<B::Command> =
            Arc::new(move |init| Ok(Box::new(DurableStateEntity::new(codec.of(name(init)?, make(init)?), init))));
        Ok(Some(Hosted { factory, persisted: Persisted::State }))
    }
}

impl<M: Send + 'static> EntityType<M, Proxy> {
    /// The same type behind a layer, whose messages are of type `N`: see [`EntityType::hosted_by`].
    pub fn carried_as<N: Send + 'static>(
        self,
        codec: impl FnOnce(Arc<dyn Codec<M>>) -> Arc<dyn Codec<N>>,
    ) -> EntityType<N, Proxy> {
        let key = EntityKey::named(self.key.name());
        EntityType { key, kind: Proxy, common: self.common.of_other_messages(codec) }
    }
}
