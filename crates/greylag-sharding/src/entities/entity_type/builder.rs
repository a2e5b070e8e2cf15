//! How a program describes an entity type.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::{Codec, CodecId};
use greylag_persistence::{DurableState, EventSourced, IntoStored, PersistenceId};

use super::described::{BoxedEntity, Common, Described, GivenTypes, Incomplete, Persisted, Remember};
use super::kinds::{ByEvents, ByState, EventSourcedParts, Kind, Plain, Proxy, sealed};
use crate::driver::{AllocationStrategy, Region, Sharding};
use crate::entity::{Entity, EntityInit, Failure, PlainEntity, Supervision};
use crate::extractor::Extractor;
use crate::host::HostedEntity;
use crate::key::EntityKey;
use crate::passivation::Passivation;
use crate::remember::RememberStore;
use crate::settings::ShardingSettings;

/// Runs once the type is set up.
type OnSetUp<M> = Arc<dyn Fn(&Sharding, &Region<M>) + Send + Sync>;
/// Runs before the type is set up, and may refuse it.
type BeforeSetUp = Arc<dyn Fn(&Sharding) -> Result<(), Failure> + Send + Sync>;

/// The callbacks of an entity type that run before and after the type is set up on a node.
pub(crate) struct SetUpHooks<M> {
    pub(crate) before: Vec<BeforeSetUp>,
    pub(crate) after: Vec<OnSetUp<M>>,
}

impl<M> SetUpHooks<M> {
    /// The hooks of the same type with other messages, without those that take the type's region.
    fn of_other_messages<N>(self) -> SetUpHooks<N> {
        SetUpHooks { before: self.before, after: Vec::new() }
    }
}

impl<M> Default for SetUpHooks<M> {
    fn default() -> Self {
        Self { before: Vec::new(), after: Vec::new() }
    }
}

/// An entity type: a key, a way to make its entities, and how the entities are placed and stored.
///
/// `K` is the kind of its entities, chosen by the constructor: [`EntityType::new`] for plain ones,
/// [`EntityType::event_sourced`], [`EntityType::durable_state`], or [`EntityKey::proxy`] for a node that hosts none.
#[must_use = "a type is set up by Sharding::init or NodeBuilder::entity"]
pub struct EntityType<M, K = Plain<M>> {
    pub(crate) key: EntityKey<M>,
    pub(crate) kind: K,
    pub(crate) common: Common<M>,
    hooks: SetUpHooks<M>,
}

impl<M: Send + 'static> EntityType<M, Plain<M>> {
    /// A type whose entities `factory` makes. The factory runs on the shard's task and must not block.
    pub fn new<E: Entity<Message = M>>(
        key: EntityKey<M>,
        factory: impl Fn(&EntityInit) -> Result<E, Failure> + Send + Sync + 'static,
    ) -> Self {
        let given = factory.type_id();
        Self::of_kind(key, Plain::new(move |init| Ok(Box::new(PlainEntity(factory(init)?)))), Some(given))
    }

    /// A type of entities of the layer below: see [`crate::host`].
    pub fn hosting<E: HostedEntity<Message = M>>(
        key: EntityKey<M>,
        factory: impl Fn(&EntityInit) -> Result<E, Failure> + Send + Sync + 'static,
    ) -> Self {
        let given = factory.type_id();
        Self::of_kind(key, Plain::new(move |init| Ok(Box::new(factory(init)?))), Some(given))
    }

    /// Declares that the entities keep their state in the journal, which must therefore be shared by all nodes: for
    /// entities of the layer below.
    pub fn persistent(mut self) -> Self {
        self.kind.persisted = Persisted::Events;
        self
    }

    /// Sets the codec of messages between nodes.
    pub fn codec(self, codec: impl Codec<M>) -> Self {
        self.with_codec(codec)
    }
}

impl<M: Send + 'static, B: EventSourced> EntityType<M, ByEvents<B>> {
    /// A type whose entities are event-sourced: `behavior` makes the behaviour of an entity, or fails if there can be
    /// none. Its state is in the journal, which must therefore be shared by all nodes.
    ///
    /// The key names the behaviour's commands, or the messages of a layer that makes commands of them and must be
    /// added: delivery is one, added by `with_delivery`.
    ///
    /// The type needs a codec for its events, set by [`EntityType::events`], and in a cluster one for its commands, set
    /// by [`EntityType::commands`]. An entity is stored under its type and id, unless [`EntityType::persistence_id`] is
    /// called.
    pub fn event_sourced(
        key: EntityKey<M>,
        behavior: impl Fn(&EntityInit) -> Result<B, Failure> + Send + Sync + 'static,
    ) -> Self {
        let given = behavior.type_id();
        Self::of_kind(key, ByEvents::new(behavior), Some(given))
    }
}

impl<B: DurableState> EntityType<B::Command, ByState<B>> {
    /// A type whose entities keep their newest state: `behavior` makes the behaviour of an entity, or fails if there
    /// can be none. Its state is in the state store, which must therefore be shared by all nodes.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use greylag_codec::json;
    /// use greylag_core::{Registry, ReplyTo};
    /// use greylag_persistence::{Ctx, DurableState, StateEffect, Stores};
    /// use greylag_sharding::{EntityKey, EntityType, Sharding, ShardingSettings};
    /// use greylag_transport::memory::MemoryNetwork;
    ///
    /// const THERMOSTAT: EntityKey<Command> = EntityKey::new("Thermostat");
    ///
    /// enum Command { Set(u32), Get(ReplyTo<u32>), Passivate }
    ///
    /// struct Thermostat;
    ///
    /// impl DurableState for Thermostat {
    ///     type Command = Command;
    ///     type State = u32;
    ///
    ///     fn on_command(&mut self, _: &mut Ctx<'_, Command>, degrees: &u32, command: Command) -> StateEffect<Self> {
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
    /// sharding.init(EntityType::durable_state(THERMOSTAT, |_| Ok(Thermostat)).states(json("thermostat")))?;
    /// let kitchen = sharding.entity_ref(THERMOSTAT, "kitchen");
    /// kitchen.tell(Command::Set(21))?;
    /// kitchen.tell(Command::Passivate)?; // the next message wakes it, and it reads its state
    /// assert_eq!(kitchen.ask(Command::Get).await?, 21);
    /// # Ok(())
    /// # }
    /// ```
    pub fn durable_state(
        key: EntityKey<B::Command>,
        behavior: impl Fn(&EntityInit) -> Result<B, Failure> + Send + Sync + 'static,
    ) -> Self {
        let given = behavior.type_id();
        Self::of_kind(key, ByState::new(behavior), Some(given))
    }
}

impl<M: Send + 'static> EntityType<M, Proxy> {
    /// A type that this node only sends to.
    pub(crate) fn proxy(key: EntityKey<M>) -> Self {
        Self::of_kind(key, Proxy, None)
    }

    /// Sets the codec of messages between nodes.
    pub fn codec(self, codec: impl Codec<M>) -> Self {
        self.with_codec(codec)
    }

    /// As [`EntityType::codec`], for entities whose messages are commands.
    pub fn commands(self, codec: impl Codec<M>) -> Self {
        self.with_codec(codec)
    }
}

impl<M: Send + 'static, K> EntityType<M, K> {
    fn of_kind(key: EntityKey<M>, kind: K, factory: Option<TypeId>) -> Self {
        let given = GivenTypes { factory, ..GivenTypes::default() };
        Self { key, kind, common: Common { given, ..Common::default() }, hooks: SetUpHooks::default() }
    }

    fn with_codec<C: Codec<M>>(mut self, codec: C) -> Self {
        self.common.given.codec = Some(TypeId::of::<C>());
        self.common.codec = Some(Arc::new(codec));
        self
    }

    /// Declares that the entities are reached from this node alone, and need no codec: a message to another node is a
    /// dead letter `SerializeFailed`.
    pub fn local_only(mut self) -> Self {
        self.common.local_only = true;
        self
    }

    /// Sets how ids map to shards. Default: [`crate::HashV1`] over the setting `number_of_shards`.
    pub fn extractor(mut self, extractor: impl Extractor) -> Self {
        self.common.extractor = Some(Arc::new(extractor));
        self
    }

    /// Sets the role of the nodes that host. Default: the setting `role`, which is all nodes.
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.common.role = Some(role.into());
        self
    }

    /// Sets the message that asks an entity to stop. Without one the entity is stopped after its queued messages.
    pub fn stop_message<F: Fn() -> M + Send + Sync + 'static>(mut self, message: F) -> Self {
        self.common.given.stop_message = Some(TypeId::of::<F>());
        self.common.stop_message = Some(Arc::new(message));
        self
    }

    /// Sets how homes of the type's shards are chosen: [`LeastShard`](crate::allocation::LeastShard) by default. All
    /// nodes that may run the type's coordinator must set the same strategy.
    ///
    /// ```
    /// use greylag_sharding::allocation::ConsistentHashing;
    /// # use greylag_sharding::{Ctx, Entity, EntityKey, EntityType, Failure};
    /// # struct Cart;
    /// # impl Entity for Cart {
    /// #     type Message = ();
    /// #     fn receive(&mut self, (): (), _: &mut Ctx<'_, ()>) -> Result<(), Failure> { Ok(()) }
    /// # }
    /// # const CART: EntityKey<()> = EntityKey::new("Cart");
    /// // The same shard of two types lives on the same node.
    /// let carts = EntityType::new(CART, |_| Ok(Cart)).allocation(ConsistentHashing::default());
    /// ```
    pub fn allocation(mut self, strategy: impl AllocationStrategy) -> Self {
        self.common.allocation = Some(Arc::new(strategy));
        self
    }

    /// Sets which messages count as activity for automatic passivation. Default: all of them.
    pub fn is_activity<F: Fn(&M) -> bool + Send + Sync + 'static>(mut self, is_activity: F) -> Self {
        self.common.given.is_activity = Some(TypeId::of::<F>());
        self.common.is_activity = Some(Arc::new(is_activity));
        self
    }

    /// Sets which entity a message is for, if messages name it themselves: such messages are sent by
    /// [`Region::send`](crate::Region::send). `None`: for no entity; the message is the dead letter
    /// `ExtractorRejected`.
    ///
    /// ```
    /// # use greylag_sharding::{EntityKey, EntityType, Proxy};
    /// struct Pay { account: String, cents: u64 }
    ///
    /// const ACCOUNT: EntityKey<Pay> = EntityKey::new("Account");
    /// let accounts: EntityType<Pay, Proxy> = ACCOUNT.proxy().addressed_by(|pay| Some(pay.account.as_str().into()));
    /// ```
    ///
    /// Source: sharding §1.3.
    pub fn addressed_by<F: Fn(&M) -> Option<Arc<str>> + Send + Sync + 'static>(mut self, addressed_by: F) -> Self {
        self.common.given.addressed_by = Some(TypeId::of::<F>());
        self.common.addressed_by = Some(Arc::new(addressed_by));
        self
    }

    /// Sets how failures of entities are handled.
    pub fn supervision(mut self, supervision: Supervision) -> Self {
        self.common.supervision = supervision;
        self
    }

    /// Sets when shards end entities by themselves. Default: the setting.
    pub fn passivation(mut self, passivation: Passivation) -> Self {
        self.common.passivation = Some(passivation);
        self
    }

    /// Makes entities start again with their shard, without a message, until they passivate: after a failure, the loss
    /// of their node, a rebalance, and, if the store is durable, a stop of all nodes. No entity is passivated
    /// automatically. Default: the settings `remember_entities` and `remember_entities_store`.
    ///
    /// ```
    /// use greylag_sharding::{Ctx, Entity, EntityKey, EntityType, Failure, RememberStore};
    ///
    /// const JOB: EntityKey<()> = EntityKey::new("Job");
    ///
    /// struct Job;
    ///
    /// impl Entity for Job {
    ///     type Message = ();
    ///
    ///     fn receive(&mut self, _: (), cx: &mut Ctx<'_, ()>) -> Result<(), Failure> {
    ///         cx.passivate(); // done: it does not start again by itself
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let jobs = EntityType::new(JOB, |_| Ok(Job)).remember_entities(RememberStore::EventSourced);
    /// ```
    /// Source: sharding §4.8.
    pub fn remember_entities(mut self, store: RememberStore) -> Self {
        self.common.remember = Remember::In(store);
        self
    }

    /// Makes entities start only with a message or a request, whatever the settings are.
    pub fn forget_entities(mut self) -> Self {
        self.common.remember = Remember::Never;
        self
    }

    /// Sets the timeout of asks without their own. Default: the setting `ask_timeout`.
    pub fn ask_timeout(mut self, timeout: Duration) -> Self {
        self.common.ask_timeout = Some(timeout);
        self
    }

    /// Changes settings for this type: `change` gets those of the node. Other methods of this type override the result.
    ///
    /// ```
    /// use greylag_sharding::settings::Dispatcher;
    /// # use greylag_sharding::{Ctx, Entity, EntityKey, EntityType, Failure};
    /// # struct Report;
    /// # impl Entity for Report {
    /// #     type Message = ();
    /// #     fn receive(&mut self, (): (), _: &mut Ctx<'_, ()>) -> Result<(), Failure> { Ok(()) }
    /// # }
    /// # const REPORT: EntityKey<()> = EntityKey::new("Report");
    /// // Its handlers compute for long, and have four threads for that.
    /// let four: Dispatcher = "dedicated:4".parse()?;
    /// let reports = EntityType::new(REPORT, |_| Ok(Report))
    ///     .settings(move |settings| settings.runtime.entity_dispatcher = four.clone());
    /// # Ok::<(), greylag_sharding::settings::InvalidDispatcher>(())
    /// ```
    pub fn settings<F: Fn(&mut ShardingSettings) + Send + Sync + 'static>(mut self, change: F) -> Self {
        self.common.given.settings = Some(TypeId::of::<F>());
        self.common.settings = Some(Arc::new(change));
        self
    }

    /// Makes each shard of the type run only while its node holds the lease `<cluster>-shard-<type>/<shard>`, in the
    /// cluster's store of leases, which `store` names. Default: the setting `use_lease`. Source: sharding §4.12.
    pub fn lease(mut self, store: impl Into<String>) -> Self {
        self.common.lease = Some(store.into());
        self
    }

    /// Calls `run` on each node before the type is set up there, and before it has entities: for layers that prepare
    /// something for the entities. If `run` fails the type is not set up
    /// ([`InitError::Refused`](crate::InitError::Refused)).
    pub fn before_set_up(mut self, run: impl Fn(&Sharding) -> Result<(), Failure> + Send + Sync + 'static) -> Self {
        self.hooks.before.push(Arc::new(run));
        self
    }

    /// Calls `run` on each node with the type's region, once the type is set up there: for layers that keep a list of
    /// types that are set up, or [another view](Sharding::add_view) of the type.
    pub fn on_set_up(mut self, run: impl Fn(&Sharding, &Region<M>) + Send + Sync + 'static) -> Self {
        self.hooks.after.push(Arc::new(run));
        self
    }

    /// The name of the type.
    pub fn name(&self) -> &str {
        self.key.name()
    }
}

impl<M: Send + 'static, K: Kind<M>> EntityType<M, K> {
    /// Erases the kind.
    pub(crate) fn describe(self) -> Result<(Described<M>, SetUpHooks<M>), Incomplete> {
        let hosted = self.kind.hosted()?;
        let codec = self.common.codec.as_deref();
        let codec_id = codec.map_or(CodecId::INTERNAL, Codec::id);
        let manifests = codec.map(Codec::manifests).unwrap_or_default();
        let mut codec_names: Vec<_> = manifests.iter().map(|manifest| format!("{codec_id}:{manifest}")).collect();
        codec_names.sort();
        let described =
            Described { name: self.key.name().to_owned(), common: self.common, codec_id, codec_names, hosted };
        Ok((described, self.hooks))
    }
}

impl<M, K> fmt::Debug for EntityType<M, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntityType").field("key", &self.key).field("role", &self.common.role).finish_non_exhaustive()
    }
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

impl<M: Send + 'static, B: EventSourced> EntityType<M, ByEvents<B>> {
    /// Sets how events are stored: a codec, or a [`StoredCodec`](greylag_persistence::StoredCodec) that can also read
    /// events of earlier releases.
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
        let hooks = self.hooks.of_other_messages();
        EntityType { key, kind, common: self.common.of_other_messages(codec), hooks }
    }
}

impl<B: DurableState> EntityType<B::Command, ByState<B>> {
    /// Sets how states are stored: a codec, or a [`StoredCodec`](greylag_persistence::StoredCodec) that can also read
    /// states of earlier releases.
    pub fn states<By, C: IntoStored<B::State, By> + 'static>(mut self, codec: C) -> Self {
        self.common.given.stored.0 = Some(TypeId::of::<C>());
        self.kind.states = Some(codec.into_stored());
        self
    }
}

impl<M: Send + 'static> EntityType<M, Proxy> {
    /// The same type behind a layer, whose messages are of type `N`: see [`EntityType::hosted_by`].
    pub fn carried_as<N: Send + 'static>(
        self,
        codec: impl FnOnce(Arc<dyn Codec<M>>) -> Arc<dyn Codec<N>>,
    ) -> EntityType<N, Proxy> {
        let key = EntityKey::named(self.key.name());
        let hooks = self.hooks.of_other_messages();
        EntityType { key, kind: Proxy, common: self.common.of_other_messages(codec), hooks }
    }
}

impl<M: Send + 'static> EntityKey<M> {
    /// The description for a node that only sends to the type's entities and hosts none.
    pub fn proxy(self) -> EntityType<M, Proxy> {
        EntityType::proxy(self)
    }
}
