//! Sharding on one node: all its entity types.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use greylag_cluster::{AppVersion, Cluster, ClusterEvent, ClusterEvents, MemberStatus, Readiness, RunningHere};
use greylag_core::DeadLetterReason;
use greylag_crdt::{LwwMap, LwwRegister};
use greylag_ddata::{DurableStore, Membership, Replicator, ReplicatorSettings, TypeTable};
use greylag_persistence::{RecoveryPermits, Stores};
use greylag_transport::{Envelope, Remoting, TransportEvent, TransportListener};
use tokio::runtime::Handle;

use crate::driver::coordinator::desired::DesiredLocations;
use crate::driver::coordinator::host;
use crate::driver::daemon::handle::DaemonProcesses;
use crate::driver::lanes::data::data_path;
use crate::driver::node::clock;
use crate::driver::node::services::Node;
use crate::driver::questions::inspect::Inspector;
use crate::driver::region::any_region::AnyRegion;
use crate::driver::region::handle::Region;
use crate::driver::remember::OpenDurable;
use crate::driver::shard::lease::NodeLeases;
use crate::driver::sharding::init_error::{InitError, NotStarted};
use crate::driver::sharding::members::Tracker;
use crate::driver::sharding::readiness::readiness;
use crate::entity::EntityInit;
use crate::error::InvalidSetting;
use crate::extensions::Extensions;
use crate::frame;
use crate::healthcheck::HealthCheck;
use crate::ids::EntityTypeName;
use crate::key::EntityKey;
use crate::machine::membership::{self, MemberFacts, Members};
use crate::machine::region::Input;
use crate::remember::InMemoryRememberStore;
use crate::settings::ShardingSettings;
use crate::start::START_MANIFEST;

/// The node's sharding, lent to references that are read from messages: see [`greylag_core::ReplyScope::resource`].
pub(crate) struct SharedSharding(Weak<Inner>);

impl SharedSharding {
    /// The node's sharding, while it runs.
    pub(crate) fn get(&self) -> Option<Sharding> {
        self.0.upgrade().map(Sharding)
    }
}

impl Node {
    /// The access to the node's entities, while sharding runs.
    pub(crate) fn sharding(&self) -> Option<Sharding> {
        self.lent()?.downcast_ref::<SharedSharding>()?.get()
    }
}

impl EntityInit {
    /// The sharding of the entity's node, by which a factory finds other entities; handlers have
    /// [`EntityCtx`](crate::EntityCtx). `None` once the node has ended.
    pub fn sharding(&self) -> Option<Sharding> {
        self.node.sharding()
    }
}

/// Sharding on one node. Clones are the same node.
#[derive(Clone)]
pub struct Sharding(pub(in crate::driver) Arc<Inner>);

pub(in crate::driver) struct Inner {
    /// `None` for a node without a cluster.
    pub(in crate::driver) cluster: Option<Cluster>,
    pub(in crate::driver) node: Arc<Node>,
    pub(in crate::driver) settings: ShardingSettings,
    /// Opens this node's place for durable replicated data, if there is one.
    pub(in crate::driver) durable: OnceLock<OpenDurable>,
    pub(in crate::driver) state: Mutex<State>,
}

/// A type, and the type of the messages of a view of it.
type ViewKey = (EntityTypeName, TypeId);
/// A view, with the type of its messages erased.
type AnyView = Box<dyn Any + Send + Sync>;

#[derive(Default)]
pub(in crate::driver) struct State {
    pub(in crate::driver) regions: BTreeMap<EntityTypeName, Arc<dyn AnyRegion>>,
    /// Views for other types of message: an `Arc<dyn View<Q>>` for each such type.
    pub(in crate::driver) views: BTreeMap<ViewKey, AnyView>,
    pub(in crate::driver) tracker: Tracker,
    pub(in crate::driver) members: Arc<Members>,
    /// Whether this node cannot trust its own view (cluster F9).
    pub(in crate::driver) suspect: bool,
    /// The epoch of the last region of a node without a cluster.
    pub(in crate::driver) alone_epoch: u64,
    /// Hosts of the coordinators that may run here, by type.
    pub(in crate::driver) hosts: BTreeMap<EntityTypeName, Arc<host::Host>>,
    /// Replicators of the coordinators' state, by the role of the nodes that keep it.
    pub(in crate::driver) replicators: BTreeMap<String, Replicator>,
    /// Desired locations of shards, of the types whose shards the program places.
    pub(in crate::driver) desired: BTreeMap<EntityTypeName, DesiredLocations>,
    /// Daemon processes by name, with the program's number of workers.
    pub(in crate::driver) daemons: BTreeMap<String, (u32, DaemonProcesses)>,
    /// Replicators of remembered entities and shards, by the role of the nodes that keep them.
    pub(in crate::driver) remembering: BTreeMap<String, Replicator>,
    /// Remembered entities of a node without a cluster, by type.
    pub(in crate::driver) alone_memory: BTreeMap<EntityTypeName, InMemoryRememberStore>,
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
            phase: membership::MemberPhase::Up,
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

    /// The region of a type that was set up before.
    ///
    /// # Errors
    /// [`NotStarted`], also if the type has another type of message.
    pub fn region<M: Send + 'static>(&self, key: EntityKey<M>) -> Result<Region<M>, NotStarted> {
        self.known_region(&key).ok_or_else(|| self.not_started(key.name()))
    }

    /// The region of a type, if it is set up here with this type of message.
    pub(crate) fn known_region<M: Send + 'static>(&self, key: &EntityKey<M>) -> Option<Region<M>> {
        let region = self.0.lock().regions.get(key.name()).cloned()?;
        region.as_any().downcast_ref::<Region<M>>().cloned()
    }

    /// Keeps the view of a type for another type of message; returns the former one, which the caller drops.
    pub(crate) fn keep_view(&self, key: ViewKey, view: AnyView) -> Option<AnyView> {
        self.0.lock().views.insert(key, view)
    }

    /// Reads the view of a type, if there is one.
    pub(crate) fn with_view<R>(&self, key: &ViewKey, read: impl FnOnce(&AnyView) -> Option<R>) -> Option<R> {
        self.0.lock().views.get(key).and_then(read)
    }

    /// The desired locations of a type's shards; `None` if no strategy on this node uses them.
    pub(in crate::driver) fn desired_locations(&self, name: &str) -> Option<DesiredLocations> {
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
    pub(in crate::driver) fn replicator_of(&self, role: &str) -> Result<Option<Replicator>, InitError> {
        let Some(cluster) = self.0.cluster.as_ref().filter(|_| self.0.can_coordinate(role)) else { return Ok(None) };
        self.0.replicator(&mut self.0.lock(), cluster, role, &self.0.settings).map(Some)
    }

    /// A daemon process that was set up here.
    pub(in crate::driver) fn known_daemon(&self, name: &str) -> Option<(u32, DaemonProcesses)> {
        self.0.lock().daemons.get(name).cloned()
    }

    /// Stores a daemon process that was set up here.
    pub(in crate::driver) fn know_daemon(&self, name: String, known: (u32, DaemonProcesses)) {
        self.0.lock().daemons.insert(name, known);
    }

    /// Runs a task on the runtime that sharding was started on.
    pub(in crate::driver) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
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
    pub(in crate::driver) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether this node may run coordinators that need this role.
    pub(in crate::driver) fn can_coordinate(&self, role: &str) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| role.is_empty() || cluster.settings().has_role(role))
    }

    /// The replicator of the nodes that may coordinate types of this role, of which this node is one.
    pub(in crate::driver) fn replicator(
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

    pub(in crate::driver) fn on_cluster_event(&self, event: &ClusterEvent) {
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
        .map_err(|reason| InitError::NoReplicator { reason })
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
