//! The entity types of one node: setting them up, and finding their entities.
//!
//! Whatever a type needs is checked; then its region and the coordination of it start.
//!
//! Source: sharding §1.1, §1.2, §2.16, §4.8.

use std::any::TypeId;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use greylag_cluster::{Cluster, Phase};
use greylag_core::Generation;
use greylag_ddata::{Membership, Replicator};
use greylag_persistence::{Scope, SettingsError, Stores};
use tokio::runtime::Handle;

use crate::allocation::AllocationFailed;
use crate::driver::coordinator::desired::DesiredLocations;
use crate::driver::coordinator::external_shards::ExternalShards;
use crate::driver::coordinator::host;
use crate::driver::coordinator::local_coordinator::LocalCoordinator;
use crate::driver::coordinator::store::Backend;
use crate::driver::coordinator::strategy::{AllocationStrategy, StrategySetup, default_strategy};
use crate::driver::region::any_region::AnyRegion;
use crate::driver::region::handle::Region;
use crate::driver::region::run;
use crate::driver::region::type_services::Remember as Remembering;
use crate::driver::remember::{self, Memory, StarterTask, StoreKind};
use crate::driver::sharding::handle::{Inner, Sharding, State};
use crate::driver::sharding::init_error::InitError;
use crate::entity::Failure;
use crate::entity_ref::{Entities, EntityRef, View, Wrapped};
use crate::entity_type::{Common, Described, EntityType, Kind, Persisted, Remember, SetUpHooks};
use crate::error::InvalidSetting;
use crate::extractor::{Extractor, HashV1};
use crate::fingerprint::{Fingerprint, StateStoreMode};
use crate::ids::EntityTypeName;
use crate::key::EntityKey;
use crate::machine::region::{Input, RegionState};
use crate::passivation::Passivation;
use crate::remember::RememberStore;
use crate::settings::{RememberSettings, ShardingSettings};

impl Sharding {
    /// Sets up an entity type: hosts it if this node has its role, and routes to it in any case. The same type again
    /// returns the same region, or a new one if that region has stopped.
    ///
    /// # Errors
    /// [`InitError`]; nothing was started.
    pub fn init<M: Send + 'static, K: Kind<M>>(&self, entity_type: EntityType<M, K>) -> Result<Region<M>, InitError> {
        let (described, hooks) = self.0.describe(entity_type)?;
        let role = described.common.role.as_deref().unwrap_or(&self.0.settings.role);
        let has_role =
            self.0.cluster.as_ref().is_none_or(|cluster| role.is_empty() || cluster.settings().has_role(role));
        let proxy = described.hosted.is_none() || !has_role;
        self.set_up(described, &hooks, proxy)
    }

    /// Sets up an entity type that this node only sends to, whatever its description says about hosting.
    ///
    /// # Errors
    /// [`InitError`]; nothing was started.
    pub fn init_proxy<M: Send + 'static, K: Kind<M>>(
        &self,
        entity_type: EntityType<M, K>,
    ) -> Result<Region<M>, InitError> {
        let (described, hooks) = self.0.describe(entity_type)?;
        self.set_up(described, &hooks, true)
    }

    fn set_up<M: Send + 'static>(
        &self,
        described: Described<M>,
        hooks: &SetUpHooks<M>,
        proxy: bool,
    ) -> Result<Region<M>, InitError> {
        let name = EntityTypeName::new(&described.name)?;
        let refused = |why: Failure| InitError::Refused { name: name.clone(), why: why.to_string() };
        hooks.before.iter().try_for_each(|run| run(self).map_err(refused))?;
        let region = self.0.init(described, proxy)?;
        hooks.after.iter().for_each(|run| run(self, &region));
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
        let former = self.keep_view(key, Box::new(view));
        // Drop without the lock: the view may hold the last handle to a stopped region.
        drop(former);
    }

    fn known_view<Q: Send + 'static>(&self, key: &EntityKey<Q>) -> Option<Arc<dyn View<Q>>> {
        let name = EntityTypeName::new(key.name()).ok()?;
        self.with_view(&(name, TypeId::of::<Q>()), |view| view.downcast_ref::<Arc<dyn View<Q>>>().cloned())
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

    /// The client of a type whose shards the program places: see [`ExternalAllocation`](crate::ExternalAllocation). The
    /// client may be made before the type is set up.
    pub fn external_shards<M: Send + 'static>(&self, key: &EntityKey<M>) -> ExternalShards {
        ExternalShards::new(self.clone(), key.name())
    }
}

impl Inner {
    /// Erases the kind of a type, and checks that the type has the codecs which it needs here.
    fn describe<M: Send + 'static, K: Kind<M>>(
        &self,
        entity_type: EntityType<M, K>,
    ) -> Result<(Described<M>, SetUpHooks<M>), InitError> {
        let name = EntityTypeName::new(entity_type.name())?;
        let (described, hooks) =
            entity_type.describe().map_err(|incomplete| InitError::incomplete(&name, incomplete))?;
        let Common { codec, local_only, .. } = &described.common;
        if self.cluster.is_some() && codec.is_none() && !local_only {
            return Err(InitError::NoCodec { name, what: "messages" });
        }
        Ok((described, hooks))
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
        let region =
            run::open(self.node.clone(), entity_type, name.clone(), fingerprint, settings, extractor, proxy, threads);
        region.0.input(Input::Membership(state.members.clone()));
        if state.suspect {
            region.0.input(Input::SelfSuspect);
        }
        let erased: Arc<dyn AnyRegion> = Arc::new(region.clone());
        if let (Some(memory), Some((starter, task))) = (memory.clone(), starter) {
            region.0.services.remember(Remembering { memory, starter });
            own.handle().spawn(task.run(Arc::downgrade(&region.0)));
        }
        self.coordinate(&mut state, coordinated, memory, &region, &erased, own.handle())?;
        own.handle().spawn(run::run(region.0.clone(), erased.clone()));
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
        let started = started.map_err(|reason| InitError::NoReplicator { reason })?;
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
            region.0.services.coordinate(Arc::new(LocalCoordinator::new(
                state.alone_epoch,
                erased,
                memory,
                &self.node.runtime,
            )));
            return Ok(());
        };
        if let Some(host) = state.hosts.get(&coordinated.0) {
            host.take_region(erased);
            region.0.services.coordinate(host.clone());
            return Ok(());
        }
        let name = coordinated.0.clone();
        let role = coordinated.2.coordinator_singleton.role_for(&coordinated.1.role).to_owned();
        let backend = self.backend(state, cluster, &name, &role, &coordinated.2)?;
        let kept = (backend, memory);
        let host = host::Host::start(cluster, kept, erased, coordinated, state.members.clone(), runtime);
        if state.suspect {
            host.on_cluster(&Input::SelfSuspect);
        }
        region.0.services.coordinate(host.clone());
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
}
