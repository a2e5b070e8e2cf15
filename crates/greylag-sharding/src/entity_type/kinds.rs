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
use crate::host::{DurableStateEntity, EventSourcedEntity};

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

    /// A kind whose entities are stored under a name of their own.
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

/// A kind of entity type: [`Plain`], [`ByEvents`], [`ByState`] or [`Proxy`].
pub trait Kind<M>: sealed::Sealed + Sized {
    /// How the node makes entities of the type; `None` if the node only sends to them.
    ///
    /// # Errors
    /// Which codec is missing.
    fn hosted(self) -> Result<Option<Hosted<M>>, &'static str>;
}

/// The kind of an [`EntityType`] whose entities keep nothing.
pub struct Plain<M> {
    factory: Factory<M>,
    pub(super) persisted: Persisted,
}

impl<M> Plain<M> {
    pub(super) fn new(
        factory: impl Fn(&EntityInit) -> Result<BoxedEntity<M>, Failure> + Send + Sync + 'static,
    ) -> Self {
        Self { factory: Arc::new(factory), persisted: Persisted::Nothing }
    }
}

impl<M> Kind<M> for Plain<M> {
    fn hosted(self) -> Result<Option<Hosted<M>>, &'static str> {
        Ok(Some(Hosted { factory: self.factory, persisted: self.persisted }))
    }
}

/// The kind of an [`EntityType`] that a node hosts no entities of.
#[derive(Debug, Clone, Copy)]
pub struct Proxy;

impl<M> Kind<M> for Proxy {
    fn hosted(self) -> Result<Option<Hosted<M>>, &'static str> {
        Ok(None)
    }
}

/// Makes the behaviour of one entity.
type Make<B> = Arc<dyn Fn(&EntityInit) -> Result<B, Failure> + Send + Sync>;

/// Names the history or the state of one entity.
type Name = Arc<dyn Fn(&EntityInit) -> Result<PersistenceId, Failure> + Send + Sync>;

fn by_type_and_id() -> Name {
    Arc::new(|init| Ok(init.persistence_id()?))
}

/// For the kinds whose entities are stored: [`ByEvents`] and [`ByState`].
impl<M: Send + 'static, K: Kind<M> + sealed::Stored> EntityType<M, K> {
    /// How commands travel between nodes.
    pub fn commands(self, codec: impl Codec<M>) -> Self {
        self.with_codec(codec)
    }

    /// Under which name the history or the state of an entity is stored. Default: its type and its id.
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

impl<B: EventSourced> EntityType<B::Command, ByEvents<B>> {
    /// How events are stored: a codec, or a [`StoredCodec`] with what it takes to read those of earlier releases.
    pub fn events<By, C: IntoStored<B::Event, By> + 'static>(mut self, codec: C) -> Self {
        self.common.given.stored.0 = Some(TypeId::of::<C>());
        self.kind.events = Some(codec.into_stored());
        self
    }

    /// How snapshots are stored; without this, none is saved or read.
    pub fn snapshots<By, C: IntoStored<B::State, By> + 'static>(mut self, codec: C) -> Self {
        self.common.given.stored.1 = Some(TypeId::of::<C>());
        self.kind.snapshots = Some(codec.into_stored());
        self
    }
}

impl<B: EventSourced> Kind<B::Command> for ByEvents<B> {
    fn hosted(self) -> Result<Option<Hosted<B::Command>>, &'static str> {
        let Self { make, name, events, snapshots } = self;
        let mut codecs = EventCodecs::new(events.ok_or("events")?);
        if let Some(snapshots) = snapshots {
            codecs = codecs.snapshots(snapshots);
        }
        let factory: Factory<B::Command> =
            Arc::new(move |init| Ok(Box::new(EventSourcedEntity::new(codecs.of(name(init)?, make(init)?), init))));
        Ok(Some(Hosted { factory, persisted: Persisted::Events }))
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
    /// How states are stored: a codec, or a [`StoredCodec`] with what it takes to read those of earlier releases.
    pub fn states<By, C: IntoStored<B::State, By> + 'static>(mut self, codec: C) -> Self {
        self.common.given.stored.0 = Some(TypeId::of::<C>());
        self.kind.states = Some(codec.into_stored());
        self
    }
}

impl<B: DurableState> Kind<B::Command> for ByState<B> {
    fn hosted(self) -> Result<Option<Hosted<B::Command>>, &'static str> {
        let Self { make, name, states } = self;
        let codec = StateCodec::new(states.ok_or("states")?);
        let factory: Factory<B::Command> =
            Arc::new(move |init| Ok(Box::new(DurableStateEntity::new(codec.of(name(init)?, make(init)?), init))));
        Ok(Some(Hosted { factory, persisted: Persisted::State }))
    }
}
