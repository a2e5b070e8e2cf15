//! Sharding on one node: all its entity types.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use greylag_cluster::{AppVersion, Cluster, ClusterEvent, ClusterEvents, MemberStatus, Phase, Readiness, RunningHere};
use greylag_core::{DeadLetterReason, Generation};
use greylag_crdt::{LwwMap, LwwRegister};
use greylag_ddata::{DurableStore, Membership, Replicator, ReplicatorSettings, TypeTable};
use greylag_persistence::{RecoveryPermits, Scope, SettingsError, Stores};
use greylag_transport::{Envelope, Remoting, TransportEvent, TransportListener};
use tokio::runtime::Handle;

use super::clock;
use super::coordinator;
use super::daemon::handle::DaemonProcesses;
use super::data::data_path;
use super::desired::DesiredLocations;
use super::handle::Region;
use super::init_error::{InitError, NotStarted};
use super::inspect::Inspector;
use super::lease::NodeLeases;
use super::local_coordinator::LocalCoordinator;
use super::members::Tracker;
use super::node::Node;
use super::readiness::readiness;
use super::region::{self, AnyRegion};
use super::remember::{self, Memory, OpenDurable, StarterTask, StoreKind};
use super::store::Backend;
use super::strategy::{AllocationStrategy, StrategySetup, default_strategy};
use crate::allocation::AllocationFailed;
use crate::entity::Failure;
use crate::entity_ref::{Entities, EntityRef, View, Wrapped};
use crate::entity_type::{Common, Described, EntityType, Kind, Persisted, Remember};
use crate::error::InvalidSetting;
use crate::extensions::Extensions;
use crate::extractor::{Extractor, HashV1};
use crate::fingerprint::{Fingerprint, StateStoreMode};
use crate::frame;
use crate::healthcheck::HealthCheck;
use crate::ids::EntityTypeName;
use crate::key::EntityKey;
use crate::machine::membership::{self, MemberFacts, Members};
use crate::machine::region::{Input, RegionState};
use crate::passivation::Passivation;
use crate::remember::{InMemoryRememberStore, RememberStore};
use crate::settings::{RememberSettings, ShardingSettings};
use crate::start::START_MANIFEST;

/// The node's sharding, lent to references that are read from messages: see [`greylag_core::ReplyScope::resource`].
pub(crate) struct SharedSharding(Weak<Inner>);

impl SharedSharding {
    /// The node's sharding, while it runs.
    pub(crate) fn get(&self) -> Option<Sharding> {
        self.0.upgrade().map(Sharding)
    }
}

/// Sharding on one node. Clones are the same node.
#[derive(Clone)]
pub struct Sharding(Arc<Inner>);

struct Inner {
    /// `None` for a node without a cluster.
    cluster: Option<Cluster>,
    node: Arc<Node>,
    settings: ShardingSettings,
    /// Opens this node's place for durable replicated data, if there is one.
    durable: OnceLock<OpenDurable>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    regions: BTreeMap<EntityTypeName, Arc<dyn AnyRegion>>,
    /// Views for other types of message: an `Arc<dyn View<Q>>` for each such type.
    views: BTreeMap<(EntityTypeName, TypeId), Box<dyn Any + Send + Sync>>,
    tracker: Tracker,
    members: Arc<Members>,
    /// Whether this node cannot trust its own view (cluster F9).
    suspect: bool,
    /// The epoch of the last region of a node without a cluster.
    alone_epoch: u64,
    /// Hosts of the coordinators that may run here, by type.
    hosts: BTreeMap<EntityTypeName, Arc<coordinator::Host>>,
    /// Replicators of the coordinators' state, by the role of the nodes that keep it.
    replicators: BTreeMap<String, Replicator>,
    /// Desired locations of shards, of the types whose shards the program places.
    desired: BTreeMap<EntityTypeName, DesiredLocations>,
    /// Daemon processes by name, with the program's number of workers.
    daemons: BTreeMap<String, (u32, DaemonProcesses)>,
    /// Replicators of remembered entities and shards, by the role of the nodes that keep them.
    remembering: BTreeMap<String, Replicator>,
    /// Remembered entities of a node without a cluster, by type.
    alone_memory: BTreeMap<EntityTypeName, InMemoryRememberStore>,
}

impl Sharding {
    /// Prepares sharding on this node; entity types follow by [`Sharding::init`]. The node may join
    /// its cluster before or after. Without stores only types that keep no journal can be set up.
    ///
    /// # Errors
    /// [`InvalidSetting`].
    pub async fn start(
        cluster: Cluster,
        stores: Option<Stores>,
        settings: ShardingSettings,
    ) -> Result<Self, InvalidSetting> {
        settings.validate()?;
        if cfg!(panic = "abort") {
            tracing::warn!("this program is built with panic = \"abort\": a panic of an entity ends the process");
        }
        let node = Node::new(
            cluster.remoting().clone(),
            stores,
            Handle::current(),
            cluster.running_here(),
            Some(cluster.pulse()),
            NodeLeases::of(cluster.settings(), cluster.self_address()),
            &settings,
        );
        let mut state = State::default();
        state.members = state.tracker.members(&cluster.view(), clock::now());
        // Register settings that must be the same on all nodes that host entities (cluster M25a).
        cluster.register_join_key("sharding.number_of_shards", settings.number_of_shards);
        cluster.register_join_key("sharding.state_store_mode", format!("{:?}", settings.state_store_mode));
        // Register the coordinators' role: nodes that disagree on it would run two coordinators of one type.
        let of_coordinators = if settings.coordinator_singleton.role_override {
            "the hosting role".to_owned()
        } else {
            format!("{:?}", settings.coordinator_singleton.role)
        };
        cluster.register_join_key("sharding.coordinator_singleton.role", of_coordinators);
        // Regions and coordinators start and stop on their own, and messages that find no recipient are repeated.
        let reasons = &DeadLetterReason::OF_STARTS_AND_ENDS;
        cluster.remoting().declare_repeated("control/sharding/", None, reasons);
        // A handoff that misses one of its marks is repeated, and needs no mark of a node that has ended.
        cluster.remoting().declare_repeated("sharding/", Some(frame::MARK_MANIFEST), reasons);
        // The sender repeats a request to start an entity.
        cluster.remoting().declare_repeated("sharding/", Some(START_MANIFEST), reasons);
        greylag_ddata::expect_replicators(&**cluster.remoting());
        let events = cluster.subscribe();
        let inner = Arc::new(Inner {
            cluster: Some(cluster),
            node: Arc::new(node),
            settings,
            durable: OnceLock::new(),
            state: Mutex::new(state),
        });
        if let Some(cluster) = &inner.cluster {
            let check = Mutex::new(HealthCheck::new(inner.settings.healthcheck.clone()));
            let inner = Arc::downgrade(&inner);
            cluster.add_readiness_check(move || readiness_of(&inner, &check));
        }
        inner.node.remoting.listen(Some("sharding/"), Arc::new(Listener(Arc::downgrade(&inner))));
        tokio::spawn(watch_cluster(inner.clone(), events));
        Ok(Self::lend(inner))
    }

    /// Lends sharding to its entities, and to references that are read from messages.
    fn lend(inner: Arc<Inner>) -> Self {
        let shared = Arc::new(SharedSharding(Arc::downgrade(&inner)));
        inner.node.remoting.provide_resource(shared.clone());
        inner.node.lend(shared);
        Self(inner)
    }

    /// Sharding without a cluster: every shard lives on this node, for good. For tests of entities, and for programs of
    /// one process; entities behave as in a cluster.
    ///
    /// # Errors
    /// [`InvalidSetting`].
    pub async fn alone(
        remoting: Arc<dyn Remoting>,
        stores: Option<Stores>,
        settings: ShardingSettings,
    ) -> Result<Self, InvalidSetting> {
        settings.validate()?;
        let settings = ShardingSettings { allow_local_journal: true, ..settings };
        let up = MemberFacts {
            phase: membership::Phase::Up,
            up_number: 1,
            reachable: true,
            roles: BTreeSet::new(),
            app_version: AppVersion::default(),
        };
        let members =
            Members { members: BTreeMap::from([(remoting.self_address().clone(), up)]), removed: BTreeMap::new() };
        let state = State { members: Arc::new(members), ..State::default() };
        let runtime = Handle::current();
        let node = Node::new(remoting, stores, runtime, RunningHere::default(), None, None, &settings);
        Ok(Self::lend(Arc::new(Inner {
            cluster: None,
            node: Arc::new(node),
            settings,
            durable: OnceLock::new(),
            state: Mutex::new(state),
        })))
    }

    /// Gives this node a place for the replicated data of remembered entities, so that they outlive a stop of all
    /// nodes: `open` is called once for each of sharding's replicators, with its name, and must open the same place
    /// after each start. Must be called before the first type is set up; a second place is ignored. Without a place,
    /// entities are remembered for as long as one node runs. Source: sharding §4.8.
    #[must_use]
    pub fn durable_store(self, open: impl Fn(&str) -> Arc<dyn DurableStore> + Send + Sync + 'static) -> Self {
        self.0.durable.set(Box::new(open)).ok();
        self
    }

    /// Sets up an entity type: hosts it if this node has its role, and routes to it in any case. The same type again
    /// returns the same region, or a new one if that region has stopped.
    ///
    /// # Errors
    /// [`InitError`]; nothing was started.
    pub fn init<M: Send + 'static, K: Kind<M>>(&self, entity_type: EntityType<M, K>) -> Result<Region<M>, InitError> {
        let described = self.0.describe(entity_type)?;
        let role = described.common.role.as_deref().unwrap_or(&self.0.settings.role);
        let has_role =
            self.0.cluster.as_ref().is_none_or(|cluster| role.is_empty() || cluster.settings().has_role(role));
        let proxy = described.hosted.is_none() || !has_role;
        self.set_up(described, proxy)
    }

    /// Sets up an entity type that this node only sends to, whatever its description says about hosting.
    ///
    /// # Errors
    /// [`InitError`]; nothing was started.
    pub fn init_proxy<M: Send + 'static, K: Kind<M>>(
        &self,
        entity_type: EntityType<M, K>,
    ) -> Result<Region<M>, InitError> {
        let described = self.0.describe(entity_type)?;
        self.set_up(described, true)
    }

    fn set_up<M: Send + 'static>(&self, described: Described<M>, proxy: bool) -> Result<Region<M>, InitError> {
        let name = EntityTypeName::new(&described.name)?;
        let refused = |why: Failure| InitError::Refused { name: name.clone(), why: why.to_string() };
        described.common.before_set_up.iter().try_for_each(|run| run(self).map_err(refused))?;
        let on_set_up = described.common.on_set_up.clone();
        let region = self.0.init(described, proxy)?;
        on_set_up.iter().for_each(|run| run(self, &region));
        Ok(region)
    }

    /// Makes the entities of a type accept messages of another type `Q`: a reference whose key has message type `Q`
    /// sends the result of `wrap`. A second view of the same type for `Q` replaces the first. For layers that wrap the
    /// messages of entities; call it from [`EntityType::on_set_up`].
    pub fn add_view<M: Send + 'static, Q: Send + 'static>(
        &self,
        region: &Region<M>,
        wrap: impl Fn(Q) -> M + Send + Sync + 'static,
    ) {
        let view: Arc<dyn View<Q>> = Arc::new(Wrapped { region: region.clone(), wrap });
        let key = (region.name().clone(), TypeId::of::<Q>());
        let former = self.0.lock().views.insert(key, Box::new(view));
        // Drop without the lock: the view may hold the last handle to a stopped region.
        drop(former);
    }

    /// The region of a type that was set up before.
    ///
    /// # Errors
    /// [`NotStarted`], also if the type has another type of message.
    pub fn region<M: Send + 'static>(&self, key: EntityKey<M>) -> Result<Region<M>, NotStarted> {
        self.known_region(&key).ok_or_else(|| self.not_started(key.name()))
    }

    fn known_view<Q: Send + 'static>(&self, key: &EntityKey<Q>) -> Option<Arc<dyn View<Q>>> {
        let name = EntityTypeName::new(key.name()).ok()?;
        let state = self.0.lock();
        state.views.get(&(name, TypeId::of::<Q>()))?.downcast_ref::<Arc<dyn View<Q>>>().cloned()
    }

    fn known_region<M: Send + 'static>(&self, key: &EntityKey<M>) -> Option<Region<M>> {
        let region = self.0.lock().regions.get(key.name()).cloned()?;
        region.as_any().downcast_ref::<Region<M>>().cloned()
    }

    /// A reference to an entity. If its type is not set up on this node, sends are refused with
    /// [`SendError::NotStarted`](crate::SendError::NotStarted).
    pub fn entity_ref<M: Send + 'static>(&self, key: EntityKey<M>, id: impl Into<Arc<str>>) -> EntityRef<M> {
        match self.known_entities(&key) {
            Some(entities) => EntityRef::new(entities, id),
            None => EntityRef::unknown(key, id),
        }
    }

    /// Access to the entities of a type that is set up here with this type of message.
    pub(crate) fn known_entities<M: Send + 'static>(&self, key: &EntityKey<M>) -> Option<Entities<M>> {
        let region = self.known_region(key).map(Entities::Of);
        region.or_else(|| self.known_view(key).map(Entities::View))
    }

    /// The desired locations of a type's shards; `None` if no strategy on this node uses them.
    pub(super) fn desired_locations(&self, name: &str) -> Option<DesiredLocations> {
        self.0.lock().desired.get(name).cloned()
    }

    /// Adds a runtime of the program for entity types whose settings name it, as `entity_dispatcher` or
    /// `use_dispatcher`: for types that are set up later. Source: sharding §7.
    pub fn add_dispatcher(&self, name: impl Into<String>, runtime: Handle) {
        self.0.node.dispatchers.add(name.into(), runtime);
    }

    /// Values that layers above keep with this node's sharding.
    pub fn extensions(&self) -> &Extensions {
        &self.0.node.extensions
    }

    /// The default settings of entity types.
    pub fn settings(&self) -> &ShardingSettings {
        &self.0.settings
    }

    /// The replicator of the nodes with a role; `None` if this node lacks the role. For a node in a cluster.
    pub(super) fn replicator_of(&self, role: &str) -> Result<Option<Replicator>, InitError> {
        let Some(cluster) = self.0.cluster.as_ref().filter(|_| self.0.can_coordinate(role)) else { return Ok(None) };
        self.0.replicator(&mut self.0.lock(), cluster, role, &self.0.settings).map(Some)
    }

    /// A daemon process that was set up here.
    pub(super) fn known_daemon(&self, name: &str) -> Option<(u32, DaemonProcesses)> {
        self.0.lock().daemons.get(name).cloned()
    }

    /// Stores a daemon process that was set up here.
    pub(super) fn know_daemon(&self, name: String, known: (u32, DaemonProcesses)) {
        self.0.lock().daemons.insert(name, known);
    }

    /// Runs a task on the runtime that sharding was started on.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.node.runtime.spawn(task);
    }

    /// The types that are set up.
    pub fn shard_type_names(&self) -> Vec<EntityTypeName> {
        self.0.lock().regions.keys().cloned().collect()
    }

    /// Inspects a type by its name alone, as tools do. See [`Region::inspect`].
    ///
    /// # Errors
    /// [`NotStarted`].
    pub fn inspect(&self, entity_type: &str) -> Result<Inspector, NotStarted> {
        let region = self.0.lock().regions.get(entity_type).cloned();
        region.map(Inspector::new).ok_or_else(|| self.not_started(entity_type))
    }

    pub(crate) fn not_started(&self, name: &str) -> NotStarted {
        let known = self.shard_type_names().iter().map(ToString::to_string).collect();
        NotStarted { name: name.to_owned(), known }
    }

    /// The transport of this node.
    pub fn remoting(&self) -> &Arc<dyn Remoting> {
        &self.0.node.remoting
    }

    /// The stores of persistent entities; `None` if sharding was started without. The counters of these entities are in
    /// [`Stores::entity_stats`], the states of breakers in [`Stores::breakers`].
    pub fn stores(&self) -> Option<&Stores> {
        self.0.node.stores.as_ref()
    }

    /// The recovery permits of persistent entities: how many are in use, and how many are awaited.
    pub fn recovery_permits(&self) -> &RecoveryPermits {
        &self.0.node.recoveries
    }

    /// The cluster; `None` if this node has none.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.0.cluster.as_ref()
    }
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharding").field("types", &self.shard_type_names()).finish_non_exhaustive()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Erases the kind of a type, and checks that the type has the codecs which it needs here.
    fn describe<M: Send + 'static, K: Kind<M>>(
        &self,
        entity_type: EntityType<M, K>,
    ) -> Result<Described<M>, InitError> {
        let name = EntityTypeName::new(entity_type.name())?;
        let described = entity_type.describe().map_err(|incomplete| InitError::incomplete(&name, incomplete))?;
        let Common { codec, local_only, .. } = &described.common;
        if self.cluster.is_some() && codec.is_none() && !local_only {
            return Err(InitError::NoCodec { name, what: "messages" });
        }
        Ok(described)
    }

    /// The number of members that the cluster waits for at its start: those with the role, or all if it is empty. The
    /// first shard waits for as many regions. Source: sharding §2.16, cluster M22.
    fn least_members(&self, role: &str) -> usize {
        let Some(cluster) = &self.cluster else { return 1 };
        let settings = cluster.settings();
        if role.is_empty() {
            return settings.min_number_of_members;
        }
        settings.role_min_number_of_members.get(role).copied().unwrap_or(1)
    }

    fn init<M: Send + 'static>(&self, entity_type: Described<M>, proxy: bool) -> Result<Region<M>, InitError> {
        let name = EntityTypeName::new(&entity_type.name)?;
        if self.cluster.as_ref().is_some_and(Cluster::is_shutting_down) {
            return Err(InitError::ShuttingDown { name });
        }
        let common = &entity_type.common;
        // A node without a cluster has every role, since no other node could host.
        let role = common.role.as_ref().unwrap_or(&self.settings.role);
        let role = if self.cluster.is_some() { role.clone() } else { String::new() };
        let mut settings = self.settings.clone();
        if let Some(change) = &common.settings {
            change(&mut settings);
            self.check_roles(&settings)?;
        }
        common.passivation.as_ref().map_or(Ok(()), Passivation::validate)?;
        if let Some(timeout) = common.ask_timeout {
            settings.ask_timeout = timeout;
        }
        if let Some(lease) = &common.lease {
            settings.lease.use_lease.clone_from(lease);
        }
        settings.remember = self.remembers(common);
        settings.validate()?;
        settings.min_regions = settings.min_regions.max(self.least_members(&role));
        let number_of_shards = settings.number_of_shards.try_into().expect("checked when sharding started");
        let extractor: Arc<dyn Extractor> =
            common.extractor.clone().unwrap_or_else(|| Arc::new(HashV1(number_of_shards)));
        let number_of_shards = extractor.number_of_shards().map_or(0, NonZeroU32::get);
        let strategy = common.allocation.clone().unwrap_or_else(|| default_strategy(&settings));
        let coordinators = settings.coordinator_singleton.role_for(&role).to_owned();
        if self.can_coordinate(&coordinators) {
            let desired = || self.keep_desired_locations(&name, &coordinators, number_of_shards);
            let setup = StrategySetup { name: &name, number_of_shards, desired: &desired };
            let refused = |AllocationFailed(reason)| InitError::Strategy { name: name.clone(), reason };
            strategy.set_up(&setup).map_err(refused)?;
        }
        let mut state = self.lock();
        if let Some(known) = state.regions.get(&name) {
            let Some(known) = known.as_any().downcast_ref::<Region<M>>().cloned() else {
                return Err(InitError::AlreadyInitialized { name });
            };
            if let Some(field) = known.0.entity_type.differs_from(&entity_type) {
                return Err(InitError::Differs { name, field });
            }
            if known.state() != RegionState::Stopped {
                return Ok(known);
            }
        }
        if let Some(hosted) = entity_type.hosted.as_ref().filter(|_| !proxy) {
            self.check_stores(hosted.persisted, &name, settings.allow_local_journal)?;
            if settings.lease.is_used() && self.node.leases.is_none() {
                return Err(InitError::NoLeases { name });
            }
        }
        self.state_journal(&name, &coordinators, &settings)?;
        let fingerprint = Fingerprint {
            protocol_major: Fingerprint::PROTOCOL_MAJOR,
            type_name: name.to_string(),
            extractor: (extractor.identity().0.to_owned(), extractor.identity().1),
            number_of_shards,
            remember_entities: settings.remember.enabled,
            remember_entities_store: settings.remember.store.name().to_owned(),
            state_store_mode: settings.state_store_mode,
            role,
            codec: entity_type.codec_names.clone(),
        };
        let memory = self.memory(&mut state, &name, &fingerprint, &settings, proxy)?;
        let runtime = &settings.runtime;
        let threads = self.node.dispatchers.of("entity_dispatcher", &runtime.entity_dispatcher, &name)?;
        let own = self.node.dispatchers.of("use_dispatcher", &runtime.use_dispatcher, &name)?;
        let coordinated = (name.clone(), fingerprint.clone(), settings.clone(), strategy);
        let starter = memory.is_some().then(|| StarterTask::new(&settings));
        let region = region::open(
            self.node.clone(),
            entity_type,
            name.clone(),
            fingerprint,
            settings,
            extractor,
            proxy,
            threads,
        );
        region.0.input(Input::Membership(state.members.clone()));
        if state.suspect {
            region.0.input(Input::SelfSuspect);
        }
        let erased: Arc<dyn AnyRegion> = Arc::new(region.clone());
        if let (Some(memory), Some((starter, task))) = (memory.clone(), starter) {
            region.0.remember.set(super::shared::Remember { memory, starter }).ok();
            own.handle().spawn(task.run(Arc::downgrade(&region.0)));
        }
        self.coordinate(&mut state, coordinated, memory, &region, &erased, own.handle())?;
        own.handle().spawn(region::run(region.0.clone(), erased.clone()));
        let stopped = state.regions.insert(name, erased);
        drop(state);
        // Drop without the lock: this may be the last handle to the user's factory and codec.
        if let Some(stopped) = stopped {
            stopped.retire();
        }
        self.leave_in_order(&region);
        Ok(region)
    }

    /// Checks that a type changes none of the settings that select the nodes that host and coordinate.
    fn check_roles(&self, changed: &ShardingSettings) -> Result<(), InvalidSetting> {
        if changed.role != self.settings.role {
            let reason = "a type names its role by EntityType::role";
            return Err(InvalidSetting { key: "role", value: changed.role.clone(), reason });
        }
        let (own, changed) = (&self.settings.coordinator_singleton, &changed.coordinator_singleton);
        if (own.role_override, &own.role) != (changed.role_override, &changed.role) {
            let reason = "it is the same for all types: nodes compare it when they join";
            let value = changed.role.clone();
            return Err(InvalidSetting { key: "coordinator_singleton.role", value, reason });
        }
        Ok(())
    }

    /// Whether a type remembers its entities, and where.
    fn remembers<M>(&self, common: &Common<M>) -> RememberSettings {
        let set = self.settings.remember.clone();
        let chosen = match &common.remember {
            Remember::AsSet => set,
            Remember::Never => RememberSettings { enabled: false, ..set },
            Remember::In(store) => RememberSettings { enabled: true, store: store.clone(), ..set },
        };
        // A journal with homes already lists the shards that have had entities, so keep the entities there too.
        let is_implied =
            self.settings.state_store_mode == StateStoreMode::Persistence && chosen.store == RememberStore::Ddata;
        if is_implied { RememberSettings { store: RememberStore::EventSourced, ..chosen } } else { chosen }
    }

    /// The store of a type's remembered entities; `None` if they are not remembered, or this node has no part in it.
    fn memory(
        &self,
        state: &mut State,
        name: &EntityTypeName,
        fingerprint: &Fingerprint,
        settings: &ShardingSettings,
        proxy: bool,
    ) -> Result<Option<Arc<Memory>>, InitError> {
        let coordinator_role = settings.coordinator_singleton.role_for(&fingerprint.role);
        let coordinates = self.can_coordinate(coordinator_role);
        if !settings.remember.enabled || (proxy && !coordinates) {
            return Ok(None);
        }
        let kind = match &settings.remember.store {
            RememberStore::Custom(store) => StoreKind::Custom(store.clone()),
            RememberStore::EventSourced => {
                StoreKind::Journal(self.shared_journal(name, settings, "remembered entities")?)
            }
            RememberStore::Ddata if self.cluster.is_some() => {
                let mut replicator = |role: &str, is_needed: bool| {
                    is_needed.then(|| self.remembering(state, role, settings)).transpose()
                };
                let entities = replicator(&fingerprint.role, !proxy)?;
                StoreKind::Ddata { entities, shards: replicator(coordinator_role, coordinates)? }
            }
            RememberStore::Ddata => {
                // A node without a cluster has no replicas; memory at least outlives the shards' tasks.
                let store = state.alone_memory.entry(name.clone()).or_default().clone();
                StoreKind::Custom(Arc::new(store))
            }
        };
        Ok(Some(Arc::new(Memory::new(name, fingerprint, settings, kind))))
    }

    /// The replicator of remembered entities on nodes of one role.
    fn remembering(&self, state: &mut State, role: &str, settings: &ShardingSettings) -> Result<Replicator, InitError> {
        if let Some(known) = state.remembering.get(role) {
            return Ok(known.clone());
        }
        let _runtime = self.node.runtime.enter();
        let membership = Membership::from_cluster(self.cluster.as_ref().expect("asked only in a cluster"));
        let started = remember::start_replicator(&self.node.remoting, membership, role, settings, self.durable.get());
        let started = started.map_err(|error| InitError::NoReplicator { reason: error.to_string() })?;
        state.remembering.insert(role.to_owned(), started.clone());
        Ok(started)
    }

    /// Checks that this node has the stores that the entities of a type need, and that every other node reaches them
    /// too.
    fn check_stores(&self, persisted: Persisted, name: &EntityTypeName, local: bool) -> Result<(), InitError> {
        let (name, stores) = (name.clone(), self.node.stores.as_ref());
        match persisted {
            Persisted::Nothing => Ok(()),
            Persisted::Events => match stores {
                None => Err(InitError::NoStores { name }),
                Some(stores) if !local && !stores.is_shared() => {
                    Err(InitError::JournalNotShared { name, what: "events" })
                }
                Some(_) => Ok(()),
            },
            Persisted::State => match stores.and_then(|stores| stores.states.as_ref()) {
                None => Err(InitError::NoStateStore { name }),
                Some(states) if !local && states.caps().scope != Scope::Shared => {
                    Err(InitError::StatesNotShared { name })
                }
                Some(_) => Ok(()),
            },
        }
    }

    /// Whether this node may run coordinators that need this role.
    fn can_coordinate(&self, role: &str) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| role.is_empty() || cluster.settings().has_role(role))
    }

    /// The stores in which a coordinator on this node keeps homes, if homes are to be in a journal. Every other node
    /// must reach them too.
    fn state_journal(
        &self,
        name: &EntityTypeName,
        role: &str,
        settings: &ShardingSettings,
    ) -> Result<Option<Stores>, InitError> {
        if settings.state_store_mode != StateStoreMode::Persistence || !self.can_coordinate(role) {
            return Ok(None);
        }
        self.shared_journal(name, settings, "homes of shards").map(Some)
    }

    /// The journal for sharding's own data, which every other node must reach too.
    fn shared_journal(
        &self,
        name: &EntityTypeName,
        settings: &ShardingSettings,
        what: &'static str,
    ) -> Result<Stores, InitError> {
        let (name, journal) = (name.clone(), &settings.journal);
        let Some(stores) = &self.node.stores else { return Err(InitError::NoCoordinatorJournal { name, what }) };
        let unknown = |error| {
            let (key, value) = match error {
                SettingsError::UnknownPlugin { key, plugin, .. } => (key, plugin),
                other => (other.key(), other.to_string()),
            };
            InvalidSetting { key, value, reason: "among the node's stores there is none of that name" }
        };
        let stores = stores.select(&journal.journal_plugin_id, &journal.snapshot_plugin_id).map_err(unknown)?;
        let scopes = [(what, stores.journal.caps().scope), ("snapshots", stores.snapshots.caps().scope)];
        match scopes.into_iter().find(|(_, scope)| *scope != Scope::Shared) {
            Some((what, _)) if !settings.allow_local_journal => Err(InitError::JournalNotShared { name, what }),
            _ => Ok(stores),
        }
    }

    /// The store of a type's coordinators on this node; `None` if none may run here.
    fn backend(
        &self,
        state: &mut State,
        cluster: &Cluster,
        name: &EntityTypeName,
        role: &str,
        settings: &ShardingSettings,
    ) -> Result<Option<Backend>, InitError> {
        if let Some(stores) = self.state_journal(name, role, settings)? {
            return Ok(Some(Backend::Persistence(stores)));
        }
        if !self.can_coordinate(role) {
            return Ok(None);
        }
        Ok(Some(Backend::Ddata(self.replicator(state, cluster, role, settings)?)))
    }

    /// The replicator of the nodes that may coordinate types of this role, of which this node is one.
    fn replicator(
        &self,
        state: &mut State,
        cluster: &Cluster,
        role: &str,
        settings: &ShardingSettings,
    ) -> Result<Replicator, InitError> {
        if let Some(known) = state.replicators.get(role) {
            return Ok(known.clone());
        }
        let started = start_replicator(cluster, &self.node, role, settings)?;
        state.replicators.insert(role.to_owned(), started.clone());
        Ok(started)
    }

    /// Replicates the desired locations of a type's shards on this node, which may run its coordinator.
    fn keep_desired_locations(
        &self,
        name: &EntityTypeName,
        role: &str,
        number_of_shards: u32,
    ) -> Result<DesiredLocations, AllocationFailed> {
        let mut state = self.lock();
        if let Some(known) = state.desired.get(name) {
            return Ok(known.clone());
        }
        let cluster = self.cluster.as_ref().expect("a node that may coordinate is in a cluster");
        let replicator = self.replicator(&mut state, cluster, role, &self.settings);
        let replicator = replicator.map_err(|error| AllocationFailed(error.to_string()))?;
        let desired = DesiredLocations::new(replicator, name, &self.settings, number_of_shards);
        state.desired.insert(name.clone(), desired.clone());
        Ok(desired)
    }

    /// Connects a new region with the coordination of its type on this node.
    fn coordinate<M: Send + 'static>(
        &self,
        state: &mut State,
        coordinated: (EntityTypeName, Fingerprint, ShardingSettings, Arc<dyn AllocationStrategy>),
        memory: Option<Arc<Memory>>,
        region: &Region<M>,
        erased: &Arc<dyn AnyRegion>,
        runtime: &Handle,
    ) -> Result<(), InitError> {
        let Some(cluster) = &self.cluster else {
            let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            // Number the shards of a region that follows another one within a second behind it nevertheless.
            state.alone_epoch = since_1970.as_secs().max(state.alone_epoch + 1).min(Generation::MAX_EPOCH);
            region
                .0
                .coordination
                .set(Arc::new(LocalCoordinator::new(state.alone_epoch, erased, memory, &self.node.runtime)))
                .ok();
            return Ok(());
        };
        if let Some(host) = state.hosts.get(&coordinated.0) {
            host.take_region(erased);
            region.0.coordination.set(host.clone()).ok();
            return Ok(());
        }
        let name = coordinated.0.clone();
        let role = coordinated.2.coordinator_singleton.role_for(&coordinated.1.role).to_owned();
        let backend = self.backend(state, cluster, &name, &role, &coordinated.2)?;
        let kept = (backend, memory);
        let host = coordinator::Host::start(cluster, kept, erased, coordinated, state.members.clone(), runtime);
        if state.suspect {
            host.on_cluster(&Input::SelfSuspect);
        }
        region.0.coordination.set(host.clone()).ok();
        state.hosts.insert(name, host);
        Ok(())
    }

    /// Hands the region's shards over when the node leaves. Source: sharding §2.11.
    fn leave_in_order<M: Send + 'static>(&self, region: &Region<M>) {
        let Some(cluster) = &self.cluster else { return };
        let phase = Phase::ClusterShardingShutdownRegion;
        let timeout = region.0.settings.handoff_timeout + Duration::from_secs(5);
        cluster.raise_phase_timeout(phase, timeout);
        let name = format!("region {}", region.name());
        let region = region.clone();
        cluster.on_phase(phase, &name, move || {
            Box::pin(async move {
                let patience = timeout.saturating_sub(Duration::from_secs(1));
                let stopped = tokio::time::timeout(patience, region.graceful_shutdown()).await.is_ok();
                if !stopped {
                    let metrics = region.metrics();
                    let (shards, buffered) = (metrics.shards, metrics.messages.buffered);
                    tracing::warn!(
                        entity_type = %region.name(), ?shards, buffered, ?patience,
                        "the region did not hand over all its shards in time; their entities are killed"
                    );
                    region.0.input(Input::Stop);
                }
                stopped
            })
        });
    }

    fn on_cluster_event(&self, event: &ClusterEvent) {
        let input = match event {
            ClusterEvent::SelfSuspect => {
                self.lock().suspect = true;
                Input::SelfSuspect
            }
            ClusterEvent::SelfTrusted => {
                self.lock().suspect = false;
                Input::SelfTrusted
            }
            ClusterEvent::SelfDowned => Input::SelfDowned,
            _ => {
                let Some(cluster) = &self.cluster else { return };
                let view = cluster.view();
                let mut state = self.lock();
                let members = state.tracker.members(&view, clock::now());
                if members == state.members {
                    return;
                }
                state.members = members.clone();
                Input::Membership(members)
            }
        };
        let (regions, hosts): (Vec<_>, Vec<_>) = {
            let state = self.lock();
            (state.regions.values().cloned().collect(), state.hosts.values().cloned().collect())
        };
        for host in hosts {
            host.on_cluster(&input);
        }
        for region in regions {
            region.tell(input.clone());
        }
    }
}

/// The replicator of coordinator state among the nodes that may run coordinators of one role.
fn start_replicator(
    cluster: &Cluster,
    node: &Node,
    role: &str,
    settings: &ShardingSettings,
) -> Result<Replicator, InitError> {
    let _runtime = node.runtime.enter();
    let name = if role.is_empty() { "sharding".to_owned() } else { format!("sharding-{role}") };
    let types = TypeTable::new().with::<LwwRegister<Vec<u8>>>().with::<LwwMap<String, Vec<u8>>>();
    let replicator_settings = ReplicatorSettings {
        name,
        roles: Some(role.to_owned()).filter(|role| !role.is_empty()).into_iter().collect(),
        majority_min_cap: settings.majority_min_cap,
        max_delta_elements: 5,
        prefer_oldest: true,
        // These clocks are generations, epochs and revisions, independent of any wall clock.
        custom_clocks: vec!["coordinator/*".to_owned(), "daemon/*".to_owned()],
        ..ReplicatorSettings::default()
    };
    let membership = Membership::from_cluster(cluster);
    Replicator::start(replicator_settings, types, node.remoting.clone(), membership)
        .map_err(|error| InitError::NoReplicator { reason: error.to_string() })
}

/// The readiness of this node, as far as its entity types decide it.
fn readiness_of(inner: &Weak<Inner>, check: &Mutex<HealthCheck>) -> Readiness {
    let Some(inner) = inner.upgrade() else { return Readiness::default() };
    let regions = inner.lock().regions.clone();
    let status = inner.cluster.as_ref().and_then(|cluster| cluster.view().self_status());
    let mut check = check.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    readiness(&regions, status == Some(MemberStatus::Up), &mut check)
}

/// Keeps sharding alive for as long as the node is: dropping handles stops nothing.
async fn watch_cluster(inner: Arc<Inner>, mut events: ClusterEvents) {
    while let Some(event) = events.next().await {
        inner.on_cluster_event(&event);
    }
}

/// Passes the transport's events on.
struct Listener(Weak<Inner>);

impl TransportListener for Listener {
    fn on_event(&self, event: &mut TransportEvent) {
        let Some(inner) = self.0.upgrade() else { return };
        match event {
            TransportEvent::LinkLost { peer, lane } => {
                for region in inner.lock().regions.values() {
                    region.tell(Input::LinkLost { node: peer.clone(), lane: *lane });
                }
            }
            TransportEvent::HandedBack { peer, envelopes } => {
                for (name, region) in &inner.lock().regions {
                    let path = data_path(name);
                    // Tell the region even if no envelope comes back: it waits for that before it opens another route.
                    let own: Vec<Envelope> =
                        envelopes.extract_if(.., |envelope| *envelope.recipient.path == *path).collect();
                    region.hand_back(peer.clone(), own);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
