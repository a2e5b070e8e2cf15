//! The kinds of entity types, and how a shard hosts entities of each.

use std::fmt;
use std::sync::Arc;

use greylag_persistence::{DurableState, EventCodecs, EventSourced, PersistenceId, StateCodec, StoredCodec};

use super::described::{BoxedEntity, Factory, Hosted, Incomplete, Persisted};
use crate::driver::{DurableStateEntity, EventSourcedEntity};
use crate::entity::{EntityInit, Failure};

pub(super) mod sealed {
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

/// A kind of entity type: [`Plain`], [`ByEvents`], [`ByState`] or [`Proxy`].
pub trait Kind<M>: sealed::Sealed + Sized {
    /// How the node makes entities of the type; `None` if the node only sends to them.
    ///
    /// # Errors
    /// [`Incomplete`].
    fn hosted(self) -> Result<Option<Hosted<M>>, Incomplete>;
}

/// The kind of an [`EntityType`](super::EntityType) whose entities persist nothing.
pub struct Plain<M> {
    factory: Factory<M>,
    pub(super) persisted: Persisted,
    /// Why the type cannot be hosted, if so.
    pub(super) incomplete: Option<Incomplete>,
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

/// The kind of an [`EntityType`](super::EntityType) without hosted entities.
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

/// The kind of an [`EntityType`](super::EntityType) whose entities are event-sourced.
pub struct ByEvents<B: EventSourced> {
    make: Make<B>,
    name: Name,
    pub(super) events: Option<StoredCodec<B::Event>>,
    pub(super) snapshots: Option<StoredCodec<B::State>>,
}

impl<B: EventSourced> ByEvents<B> {
    pub(super) fn new(make: impl Fn(&EntityInit) -> Result<B, Failure> + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), name: by_type_and_id(), events: None, snapshots: None }
    }
}

impl<B: EventSourced> ByEvents<B> {
    /// The parts of the description that are about entities.
    pub(super) fn into_parts(self) -> Result<EventSourcedParts<B>, Incomplete> {
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
/// own, by [`EntityType::hosted_by`](super::EntityType::hosted_by).
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

/// The kind of an [`EntityType`](super::EntityType) whose entities keep their newest state.
pub struct ByState<B: DurableState> {
    make: Make<B>,
    name: Name,
    pub(super) states: Option<StoredCodec<B::State>>,
}

impl<B: DurableState> ByState<B> {
    pub(super) fn new(make: impl Fn(&EntityInit) -> Result<B, Failure> + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), name: by_type_and_id(), states: None }
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
