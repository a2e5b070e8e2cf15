//! The description of an entity type: all that a node must know to host or to reach its entities.
//!
//! The same value is given to `Sharding::init` on every node. Codec, extractor and role must agree
//! between the nodes of a cluster; the factory stays on its node.
//!
//! Source: sharding §1.1, §1.2.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::Codec;
use greylag_persistence::{DurableState, EventSourced};

use crate::driver::{DurableStateEntity, EventSourcedEntity};
use crate::entity::{Entity, EntityInit, Failure, Supervision};
use crate::extractor::Extractor;

/// An entity whose own type is forgotten: shards hold these.
pub(crate) type BoxedEntity<M> = Box<dyn Entity<Msg = M>>;

/// Makes entities.
pub(crate) type Factory<M> = Arc<dyn Fn(&EntityInit) -> Result<BoxedEntity<M>, Failure> + Send + Sync>;

/// Makes stop messages.
type StopMessage<M> = Arc<dyn Fn() -> M + Send + Sync>;

/// Tells messages that count as activity from those that do not.
type IsActivity<M> = Arc<dyn Fn(&M) -> bool + Send + Sync>;

/// The types of what a caller gave, which tell closures of one place in the program from those of another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct GivenTypes {
    factory: Option<TypeId>,
    codec: Option<TypeId>,
    stop_message: Option<TypeId>,
    is_activity: Option<TypeId>,
}

/// What entities of a type keep in this node's stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Persisted {
    Nothing,
    Events,
    State,
}

/// An entity type: a name, a way to make its entities, and how they are placed and kept.
pub struct EntityType<M> {
    pub(crate) name: String,
    pub(crate) factory: Option<Factory<M>>,
    pub(crate) codec: Option<Arc<dyn Codec<M>>>,
    pub(crate) extractor: Option<Arc<dyn Extractor>>,
    pub(crate) role: Option<String>,
    pub(crate) stop_message: Option<StopMessage<M>>,
    pub(crate) is_activity: Option<IsActivity<M>>,
    pub(crate) supervision: Supervision,
    pub(crate) persisted: Persisted,
    /// Outer: whether the type says anything.
    pub(crate) passivate_idle_after: Option<Option<Duration>>,
    given: GivenTypes,
}

impl<M: Send + 'static> EntityType<M> {
    /// A type whose entities `factory` makes. It runs on the shard's task: do not block in it.
    pub fn new<E: Entity<Msg = M>>(
        name: impl Into<String>,
        factory: impl Fn(&EntityInit) -> Result<E, Failure> + Send + Sync + 'static,
    ) -> Self {
        let given = GivenTypes { factory: Some(factory.type_id()), ..GivenTypes::default() };
        let factory: Factory<M> = Arc::new(move |init| Ok(Box::new(factory(init)?)));
        Self { factory: Some(factory), given, ..Self::proxy(name) }
    }

    /// A type whose entities are event-sourced: `behavior` makes the behaviour of one, or says why
    /// there can be none. Its state is in the journal, which must therefore be shared by all nodes.
    pub fn event_sourced<B: EventSourced<Command = M>>(
        name: impl Into<String>,
        behavior: impl Fn(&EntityInit) -> Result<B, Failure> + Send + Sync + 'static,
    ) -> Self {
        let factory = Some(behavior.type_id());
        let of_events = Self::new(name, move |init| Ok(EventSourcedEntity::new(behavior(init)?, init)));
        Self { given: GivenTypes { factory, ..of_events.given }, ..of_events }.persistent()
    }

    /// A type whose entities keep their newest state: `behavior` makes the behaviour of one, or says
    /// why there can be none. It is in the state store, which must therefore be shared by all nodes.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    ///
    /// use greylag_codec::json;
    /// use greylag_core::{Registry, ReplyTo};
    /// use greylag_persistence::{DurableState, PersistenceId, StateContext, StateEffect, StoredCodec, Stores};
    /// use greylag_sharding::{EntityType, Sharding, ShardingSettings};
    /// use greylag_transport::memory::MemoryNetwork;
    ///
    /// enum Command { Set(u32), Get(ReplyTo<u32>), Passivate }
    ///
    /// struct Thermostat(PersistenceId);
    ///
    /// impl DurableState for Thermostat {
    ///     type Command = Command;
    ///     type State = u32;
    ///
    ///     fn persistence_id(&self) -> PersistenceId {
    ///         self.0.clone()
    ///     }
    ///
    ///     fn state_codec(&self) -> StoredCodec<u32> {
    ///         StoredCodec::new(json("thermostat"))
    ///     }
    ///
    ///     fn on_command(&mut self, _: &mut StateContext<'_, Self::Command>, degrees: &u32, command: Command) -> StateEffect<Self> {
    ///         match command {
    ///             Command::Set(degrees) => StateEffect::persist(degrees),
    ///             Command::Get(reply_to) => StateEffect::reply(reply_to, *degrees),
    ///             Command::Passivate => StateEffect::passivate(),
    ///         }
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let remoting = MemoryNetwork::new().node("localhost:17355#1".parse()?, Arc::new(Registry::new()));
    /// let sharding = Sharding::alone(remoting, Some(Stores::in_memory()), ShardingSettings::default()).await?;
    /// let thermostats = EntityType::durable_state("Thermostat", |init| Ok(Thermostat(init.persistence_id()?)));
    /// let kitchen = sharding.init(thermostats)?.entity_ref("kitchen");
    /// kitchen.tell(Command::Set(21))?;
    /// kitchen.tell(Command::Passivate)?; // the next message wakes it, and it reads its state
    /// assert_eq!(kitchen.ask(Command::Get, Duration::from_secs(30)).await?, 21);
    /// # Ok(())
    /// # }
    /// ```
    pub fn durable_state<B: DurableState<Command = M>>(
        name: impl Into<String>,
        behavior: impl Fn(&EntityInit) -> Result<B, Failure> + Send + Sync + 'static,
    ) -> Self {
        let factory = Some(behavior.type_id());
        let of_state = Self::new(name, move |init| Ok(DurableStateEntity::new(behavior(init)?, init)));
        let given = GivenTypes { factory, ..of_state.given };
        Self { persisted: Persisted::State, given, ..of_state }
    }

    /// A type that this node only sends to; for `Sharding::init_proxy`.
    pub fn proxy(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            factory: None,
            codec: None,
            extractor: None,
            role: None,
            stop_message: None,
            is_activity: None,
            supervision: Supervision::default(),
            persisted: Persisted::Nothing,
            passivate_idle_after: None,
            given: GivenTypes::default(),
        }
    }

    /// How messages travel between nodes. Without one they reach entities of this node only, and
    /// a message to another node is a dead letter `SerializeFailed`.
    #[must_use]
    pub fn codec(mut self, codec: impl Codec<M>) -> Self {
        self.given.codec = Some(codec.type_id());
        self.codec = Some(Arc::new(codec));
        self
    }

    /// How ids map to shards. Default: [`crate::HashV1`] over the setting `number_of_shards`.
    #[must_use]
    pub fn extractor(mut self, extractor: impl Extractor) -> Self {
        self.extractor = Some(Arc::new(extractor));
        self
    }

    /// Only nodes with this role host. Default: the setting `role`, which is all nodes.
    #[must_use]
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.role = Some(role.into());
        self
    }

    /// What an entity is asked to stop with. Without one it is stopped after its queued messages.
    #[must_use]
    pub fn stop_message(mut self, message: impl Fn() -> M + Send + Sync + 'static) -> Self {
        self.given.stop_message = Some(message.type_id());
        self.stop_message = Some(Arc::new(message));
        self
    }

    /// Which messages count as activity for automatic passivation. Default: all of them.
    #[must_use]
    pub fn is_activity(mut self, is_activity: impl Fn(&M) -> bool + Send + Sync + 'static) -> Self {
        self.given.is_activity = Some(is_activity.type_id());
        self.is_activity = Some(Arc::new(is_activity));
        self
    }

    /// What happens to entities that fail.
    #[must_use]
    pub fn supervision(mut self, supervision: Supervision) -> Self {
        self.supervision = supervision;
        self
    }

    /// Idle time after which an entity is passivated; `None`: never. Default: the setting.
    #[must_use]
    pub fn passivate_idle_after(mut self, idle: Option<Duration>) -> Self {
        self.passivate_idle_after = Some(idle);
        self
    }

    /// The entities keep their state in the journal, which must therefore be shared by all nodes.
    #[must_use]
    pub fn persistent(mut self) -> Self {
        self.persisted = Persisted::Events;
        self
    }

    /// The name as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the codec reads, as the fingerprint has it.
    pub(crate) fn codec_names(&self) -> Vec<String> {
        let Some(codec) = &self.codec else { return Vec::new() };
        let mut names: Vec<String> =
            codec.manifests().iter().map(|manifest| format!("{}:{manifest}", codec.id())).collect();
        names.sort();
        names
    }

    /// The first thing in which `other` is another type than this one. A proxy says nothing of what only hosts need, and
    /// may say nothing of codec, extractor and role. Two factories are the same if they are written at the same place in
    /// the program: values that they capture cannot be compared.
    pub(crate) fn differs_from(&self, other: &Self, is_proxy: bool) -> Option<&'static str> {
        let codec = |of: &Self| (of.given.codec, of.codec_names());
        let extractor = |of: &Self| {
            of.extractor.as_ref().map(|extractor| {
                (extractor.identity().0.to_owned(), extractor.identity().1, extractor.number_of_shards())
            })
        };
        let unsaid = |says: bool| is_proxy && !says;
        let limits = |of: &Self| (of.supervision.max_restarts, of.supervision.restart_window);
        let routing = [
            ("codec", unsaid(other.codec.is_some()) || codec(self) == codec(other)),
            ("extractor", unsaid(other.extractor.is_some()) || extractor(self) == extractor(other)),
            ("role", unsaid(other.role.is_some()) || self.role == other.role),
        ];
        let hosting = [
            ("factory", self.given.factory == other.given.factory),
            ("persistence", self.persisted == other.persisted),
            ("stop_message", self.given.stop_message == other.given.stop_message),
            ("is_activity", self.given.is_activity == other.given.is_activity),
            ("supervision", limits(self) == limits(other)),
            ("passivate_idle_after", self.passivate_idle_after == other.passivate_idle_after),
        ];
        let hosting = hosting.into_iter().filter(|_| !is_proxy);
        routing.into_iter().chain(hosting).find(|(_, is_same)| !is_same).map(|(field, _)| field)
    }
}

impl<M> fmt::Debug for EntityType<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntityType")
            .field("name", &self.name)
            .field("hosts", &self.factory.is_some())
            .field("role", &self.role)
            .field("persisted", &self.persisted)
            .finish_non_exhaustive()
    }
}
