//! Builds a running node from settings.

use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, Discovery, LeaseProvider, Leases, ShutdownReason};
use greylag_core::{Codec, InvalidAddress, NodeAddress, Registry, RegistryError};
use greylag_transport::{GrpcTransport, Remoting, TransportSettings};

use crate::config::{Config, ConfigProblems, Origin, Problem, ReadSettings};
use crate::settings::{MakeLeases, NodeSettings};

use super::handle::{Node, ShutdownOnDrop};
use super::leases;
use super::start_error::StartError;

/// A change of the settings by the program.
type SettingsChange = Box<dyn FnOnce(&mut NodeSettings) + Send>;

/// A node that does not run yet.
///
/// Without seed nodes the node forms a cluster of its own; if neither its address nor any other node is given, it
/// listens on a free port of 127.0.0.1. Without stores, given by the program or named by `persistence.journal`,
/// persistent entity types are refused. The methods of the builder win over the environment, the environment over the
/// config file.
#[must_use = "a builder does nothing until it is started"]
pub struct NodeBuilder {
    config: Config,
    /// Changes that the program asked for, in order.
    changes: Vec<SettingsChange>,
    seeds: Option<Vec<Result<NodeAddress, InvalidAddress>>>,
    discovery: Option<Arc<dyn Discovery>>,
    joins: bool,
    start_timeout: Option<Duration>,
    lease_stores: Vec<(String, MakeLeases)>,
    #[cfg(feature = "persistence")]
    stores: Option<greylag_persistence::Stores>,
    /// Codecs, in the order given.
    codecs: Vec<SetUpCodec>,
    /// Entity types, in the order given.
    #[cfg(feature = "sharding")]
    entities: Vec<SetUpEntities>,
}

/// Registers a codec with the node.
type SetUpCodec = Box<dyn FnOnce(&Registry) -> Result<(), RegistryError> + Send>;

/// Sets up an entity type on the node.
#[cfg(feature = "sharding")]
type SetUpEntities = Box<dyn FnOnce(&greylag_sharding::Sharding) -> Result<(), greylag_sharding::InitError> + Send>;

impl NodeBuilder {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            changes: Vec::new(),
            seeds: None,
            discovery: None,
            joins: true,
            start_timeout: None,
            lease_stores: Vec::new(),
            #[cfg(feature = "persistence")]
            stores: None,
            codecs: Vec::new(),
            #[cfg(feature = "sharding")]
            entities: Vec::new(),
        }
    }

    /// Reads a config file, and the environment, which wins over the file.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// The address that other nodes dial and that is listened on. Port 0 picks a free one.
    pub fn bind(self, host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        self.configure(move |settings| {
            settings.transport.canonical_host = Some(host);
            settings.transport.canonical_port = 0;
            settings.transport.bind_port = Some(port);
        })
    }

    /// The roles of this node; entity types and singletons choose nodes by role.
    pub fn roles<R: Into<String>>(self, roles: impl IntoIterator<Item = R>) -> Self {
        let roles = roles.into_iter().map(Into::into).collect();
        self.configure(move |settings| settings.cluster.roles = roles)
    }

    /// The nodes through which to join. The first of the list founds the cluster if none runs; give every node the same
    /// list.
    pub fn seed_nodes<A: AsRef<str>>(mut self, seeds: impl IntoIterator<Item = A>) -> Self {
        self.seeds = Some(seeds.into_iter().map(|seed| seed.as_ref().parse()).collect());
        self
    }

    /// Finds the other nodes by `discovery`, in place of seed nodes. `cluster.bootstrap.required_contacts` must be set,
    /// too: more than half of the processes that start together.
    pub fn discovery(mut self, discovery: Arc<dyn Discovery>) -> Self {
        self.discovery = Some(discovery);
        self
    }

    /// A store of leases of the program's own, named `name`. The resolver and singletons use it if
    /// `cluster.sbr.lease_majority.lease` names it, or if the setting names none and this is the only store.
    pub fn lease_provider(mut self, name: impl Into<String>, provider: impl LeaseProvider) -> Self {
        self.lease_stores.push((name.into(), Box::new(|cluster| Leases::new(cluster, provider))));
        self
    }

    /// Starts the node without joining. It becomes a member when the program joins by [`Node::cluster`], or an operator
    /// by `greylag join`.
    pub fn join_later(mut self) -> Self {
        self.joins = false;
        self
    }

    /// The stores of persistent entities. Every node of the cluster must reach the same stores. Entities start from the
    /// node's settings, `persistence.*` of the configuration.
    ///
    /// The node closes the stores when it ends, except those that are [kept
    /// open](greylag_persistence::Stores::kept_open); the timeout of the phase `before_node_terminate` bounds the
    /// closing. While a store is down, the node is not ready: [`Node::readiness`].
    #[cfg(feature = "persistence")]
    pub fn stores(mut self, stores: greylag_persistence::Stores) -> Self {
        self.stores = Some(stores);
        self
    }

    /// Registers the codec of a type that needs its own: a message of a singleton, or an answer that the format of its
    /// question cannot encode.
    pub fn register<T: Send + 'static>(mut self, codec: impl Codec<T>) -> Self {
        self.codecs.push(Box::new(move |registry| registry.register(codec)));
        self
    }

    /// Sets up an entity type before the node joins: hosts it if the node has the type's role, and routes to it in any
    /// case.
    #[cfg(feature = "sharding")]
    pub fn entity<M, K>(mut self, entity_type: greylag_sharding::EntityType<M, K>) -> Self
    where
        M: Send + 'static,
        K: greylag_sharding::Kind<M> + Send + 'static,
    {
        self.entities.push(Box::new(move |sharding| sharding.init(entity_type).map(drop)));
        self
    }

    /// Sets up an entity type before the node joins, as a proxy: this node only sends to its entities.
    #[cfg(feature = "sharding")]
    pub fn proxy<M, K>(mut self, entity_type: greylag_sharding::EntityType<M, K>) -> Self
    where
        M: Send + 'static,
        K: greylag_sharding::Kind<M> + Send + 'static,
    {
        self.entities.push(Box::new(move |sharding| sharding.init_proxy(entity_type).map(drop)));
        self
    }

    /// Changes settings by a closure. The defaults suit a production LAN.
    pub fn configure(mut self, change: impl FnOnce(&mut NodeSettings) + Send + 'static) -> Self {
        self.changes.push(Box::new(change));
        self
    }

    /// How long [`start`](Self::start) may take. After that, the node ends in order and the start fails with
    /// [`StartError::TimedOut`], or, if no seed node let it in, with what is known of each seed node. Default: no
    /// limit.
    ///
    /// With a limit, `cluster.shutdown_after_unsuccessful_join_seed_nodes` is at most nine tenths of it, so that a
    /// failed join is reported before the time is over.
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = Some(timeout);
        self
    }

    /// Binds the listener, joins, and waits until the node is Up.
    ///
    /// If the future is dropped before it is done, the node ends in order, in the background.
    ///
    /// # Errors
    /// [`StartError`] says which part failed and why; everything started before is closed.
    pub async fn start(self) -> Result<Node, StartError> {
        let is_unconfigured = self.config.is_empty() && self.seeds.is_none() && self.discovery.is_none();
        let mut read: ReadSettings = self.config.read()?;
        read.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        for change in self.changes {
            change(&mut read.settings);
        }
        if is_unconfigured {
            stay_on_loopback(&mut read.settings);
        }
        if let Some(seeds) = self.seeds {
            read.settings.cluster.seed_nodes = seeds.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        if let Some(timeout) = self.start_timeout {
            let join_limit = &mut read.settings.cluster.shutdown_after_unsuccessful_join_seed_nodes;
            *join_limit = Some(join_limit.unwrap_or(timeout).min(timeout * 9 / 10));
        }
        let without_store = leases::choose_store(&mut read.settings, self.lease_stores);
        read.validate_with(without_store)?;
        let discovery = discovery(self.discovery, &read.settings)?;
        // One small runtime carries the control lanes and membership (cluster C7).
        read.settings.transport.control_threads = read.settings.cluster.cluster_threads;
        let settings = Arc::new(read.settings);
        let registry = Arc::new(Registry::new());
        for set_up in self.codecs {
            set_up(&registry)?;
        }
        let transport = GrpcTransport::bind_closed(settings.transport.clone(), registry).await?;
        // Dropped with this future, so that an abandoned start ends the node.
        let begun = std::sync::OnceLock::<Arc<ShutdownOnDrop>>::new();
        let started = async {
            let remoting: Arc<dyn Remoting> = transport.clone();
            let cluster = Cluster::start_on(transport.control_runtime(), settings.cluster.clone(), remoting).await?;
            let shutdown_on_drop = Arc::new(ShutdownOnDrop {
                cluster: cluster.clone(),
                transport: transport.clone(),
                runtime: tokio::runtime::Handle::current(),
            });
            begun.set(shutdown_on_drop.clone()).ok();
            #[cfg(feature = "ddata")]
            greylag_ddata::expect_replicators(&*transport);
            // Nodes with the same seeds may have called already; their messages find their recipients from here on.
            transport.open();
            #[cfg(feature = "management")]
            let admin = start_admin_service(&settings, &cluster, &transport).await?;
            #[cfg(feature = "persistence")]
            let (stores, journal) = open_stores(&settings, &cluster, self.stores).await?;
            #[cfg(feature = "sharding")]
            let sharding = {
                let defaults = settings.sharding.clone();
                let sharding = greylag_sharding::Sharding::start(cluster.clone(), stores, defaults).await?;
                #[cfg(feature = "ddata-sled")]
                let sharding = {
                    let (settings, address) = (settings.clone(), cluster.self_address().address().clone());
                    sharding.durable_store(move |replicator| {
                        super::replicator::ddata_store(&settings, &address, replicator)
                    })
                };
                #[cfg(feature = "management")]
                if let Some(admin) = &admin {
                    admin.shards.show(Arc::new(crate::admin::NodeShards::new(sharding.clone())));
                }
                sharding
            };
            // Before the entity types are set up, since they start from these settings.
            #[cfg(feature = "delivery")]
            let delivery = greylag_delivery::NodeDelivery::of(&sharding, settings.delivery.clone())
                .expect("the settings of the node were checked");
            #[cfg(feature = "ddata")]
            let replicator = super::replicator::NodeReplicator::default();
            #[cfg(all(feature = "delivery", feature = "ddata"))]
            super::replicator::find_workers(&delivery, &replicator, &settings, &transport, &cluster);
            #[cfg(feature = "delivery")]
            {
                let delivery = delivery.clone();
                cluster.on_phase(greylag_cluster::Phase::BeforeClusterShutdown, "delivery", move || {
                    Box::pin(async move {
                        delivery.end().await;
                        true
                    })
                });
            }
            #[cfg(all(feature = "delivery", feature = "management"))]
            if let Some(admin) = &admin {
                admin.delivery.show(Arc::new(crate::admin::NodeDeliveries::new(delivery.clone())));
            }
            #[cfg(feature = "sharding")]
            for set_up in self.entities {
                set_up(&sharding)?;
            }
            #[cfg(all(feature = "persistence", not(feature = "sharding")))]
            drop(stores);
            if self.joins {
                join(&settings, &cluster, discovery).await?;
            }
            Ok(Node {
                settings: settings.clone(),
                transport: transport.clone(),
                cluster,
                _shutdown_on_drop: shutdown_on_drop,
                #[cfg(feature = "persistence")]
                journal,
                #[cfg(feature = "management")]
                management: admin.map(|admin| admin.address),
                #[cfg(feature = "sharding")]
                sharding,
                #[cfg(feature = "delivery")]
                delivery,
                #[cfg(feature = "ddata")]
                replicator,
            })
        };
        let outcome = match self.start_timeout {
            None => started.await,
            Some(timeout) => match tokio::time::timeout(timeout, started).await {
                Ok(outcome) => outcome,
                Err(_) => Err(StartError::timed_out(timeout, begun.get().map(|begun| &begun.cluster)).await),
            },
        };
        if outcome.is_err() {
            if let Some(begun) = begun.get() {
                // The phases of the shutdown end everything that was started.
                begun.cluster.begin_shutdown(ShutdownReason::Stopped);
                begun.cluster.terminated().await;
            }
            transport.shutdown().await;
        }
        outcome
    }
}

impl Node {
    /// A builder for a node of the cluster with this name.
    pub fn builder(cluster_name: impl Into<String>) -> NodeBuilder {
        let cluster_name = cluster_name.into();
        NodeBuilder::new(Config::new()).configure(move |settings| settings.transport.cluster_name = cluster_name)
    }

    /// A builder for a node whose settings, including its cluster's name, are in a file or the environment.
    ///
    /// ```no_run
    /// # use greylag::{Config, Node};
    /// # async fn start() -> Result<(), greylag::StartError> {
    /// let node = Node::from_config(Config::new().file("greylag.toml").environment()).start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_config(config: Config) -> NodeBuilder {
        NodeBuilder::new(config)
    }
}

/// A node that was given neither an address nor any other node gets a free port that no other machine reaches, for a
/// cluster of one.
fn stay_on_loopback(settings: &mut NodeSettings) {
    let (transport, default) = (&mut settings.transport, TransportSettings::default());
    let place = |transport: &TransportSettings| {
        let TransportSettings { canonical_host, canonical_port, bind_host, bind_port, .. } = transport;
        (canonical_host.clone(), *canonical_port, bind_host.clone(), *bind_port)
    };
    if place(transport) == place(&default) && settings.cluster.seed_nodes.is_empty() {
        transport.canonical_host = Some("127.0.0.1".to_owned());
        transport.canonical_port = 0;
    }
}

async fn join(
    settings: &NodeSettings,
    cluster: &Cluster,
    discovery: Option<Arc<dyn Discovery>>,
) -> Result<(), StartError> {
    let seeds = settings.cluster.seed_nodes.clone();
    if let Some(discovery) = discovery {
        cluster.bootstrap(discovery, settings.bootstrap.clone()).await?;
    } else if seeds.is_empty() {
        cluster.join_self().await?;
    } else {
        cluster.join_seed_nodes(seeds).await?;
    }
    cluster.wait_up().await?;
    Ok(())
}

/// The discovery of the program, or the one that the settings name.
fn discovery(
    program: Option<Arc<dyn Discovery>>,
    settings: &NodeSettings,
) -> Result<Option<Arc<dyn Discovery>>, StartError> {
    if program.is_some() {
        let found = settings.bootstrap.validate().err().into_iter().flatten();
        let problems: Vec<Problem> = found
            .map(|error| Problem {
                origin: Origin::Program,
                key: format!("cluster.{}", error.setting),
                why: format!("{}: {}", error.value, error.why),
            })
            .collect();
        return if problems.is_empty() { Ok(program) } else { Err(ConfigProblems(problems).into()) };
    }
    dns_discovery(settings)
}

#[cfg(feature = "discovery-dns")]
fn dns_discovery(settings: &NodeSettings) -> Result<Option<Arc<dyn Discovery>>, StartError> {
    use greylag_discovery_dns::DnsDiscovery;

    use crate::settings::DiscoveryMethod;

    let wanted = &settings.discovery;
    let dns = match wanted.method {
        DiscoveryMethod::SeedNodes => return Ok(None),
        DiscoveryMethod::DnsAddresses => DnsDiscovery::addresses(&wanted.name, wanted.port),
        DiscoveryMethod::DnsService => DnsDiscovery::service(&wanted.name),
    };
    match dns {
        Ok(dns) => Ok(Some(Arc::new(dns))),
        Err(error) => {
            let key = "cluster.discovery.name".to_owned();
            let problem = Problem { origin: Origin::Program, key, why: error.to_string() };
            Err(ConfigProblems(vec![problem]).into())
        }
    }
}

/// Never called with discovery by DNS: the settings refuse it without the feature.
#[cfg(not(feature = "discovery-dns"))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature with and without the feature")]
fn dns_discovery(_: &NodeSettings) -> Result<Option<Arc<dyn Discovery>>, StartError> {
    Ok(None)
}

/// The stores of entities: the program's, or those of the journal that the settings name.
#[cfg(feature = "persistence")]
async fn open_stores(
    settings: &NodeSettings,
    cluster: &Cluster,
    own: Option<greylag_persistence::Stores>,
) -> Result<(Option<greylag_persistence::Stores>, Option<super::journal::NodeJournal>), super::journal::JournalError> {
    if let Some(own) = own {
        return Ok((Some(attach_stores(settings, cluster, own)), None));
    }
    let Some(mut journal) = super::journal::open(settings).await? else { return Ok((None, None)) };
    // The journal's own stores get the same settings, for programs that spawn entities on them without sharding.
    journal.stores = attach_stores(settings, cluster, journal.stores);
    Ok((Some(journal.stores.clone()), Some(journal)))
}

/// Makes stores a part of the node: entities start from the node's settings, a store that is down makes the node not
/// ready, and the node closes the stores when it ends. Source: persistence §4.1, §9, §10.15.
#[cfg(feature = "persistence")]
fn attach_stores(
    settings: &NodeSettings,
    cluster: &Cluster,
    stores: greylag_persistence::Stores,
) -> greylag_persistence::Stores {
    use greylag_cluster::{Phase, Readiness};
    use greylag_persistence::Health;

    let watched = stores.clone();
    cluster.add_readiness_check(move || {
        let mut readiness = Readiness::default();
        for (store, health) in watched.health() {
            match health {
                Health::Up => {}
                Health::Degraded(reasons) => {
                    readiness.degraded.extend(reasons.into_iter().map(|reason| format!("{store}: {reason}")));
                }
                Health::Down(reason) => readiness.not_ready.push(format!("{store} is down: {reason}")),
            }
        }
        readiness
    });
    let closed = stores.clone();
    // Closed after the regions, the singletons and everything else that may write, within the timeout of the phase.
    cluster.on_phase(Phase::BeforeNodeTerminate, "stores", move || {
        Box::pin(async move {
            let failed = closed.close().await.err().unwrap_or_default();
            for (store, error) in &failed {
                tracing::error!(%store, %error, "closing a store failed");
            }
            failed.is_empty()
        })
    });
    stores.with_settings(settings.persistence.clone(), settings.durable_state.clone())
}

/// The parts of a running admin service that the start of its node needs.
#[cfg(feature = "management")]
struct AdminService {
    address: std::net::SocketAddr,
    #[cfg(feature = "sharding")]
    shards: greylag_management::Shown<dyn greylag_management::Shards>,
    #[cfg(feature = "delivery")]
    delivery: greylag_management::Shown<dyn greylag_management::Delivery>,
}

/// Starts the admin service before the node joins, so that a node that cannot join can be asked why.
#[cfg(feature = "management")]
async fn start_admin_service(
    settings: &NodeSettings,
    cluster: &Cluster,
    transport: &Arc<GrpcTransport>,
) -> Result<Option<AdminService>, greylag_management::StartError> {
    use greylag_management::ManagementServer;

    let service = ManagementServer::start(settings.management.clone(), cluster.clone(), transport.clone()).await?;
    let admin = service.as_ref().map(|service| AdminService {
        address: service.local_address(),
        #[cfg(feature = "sharding")]
        shards: service.shards().clone(),
        #[cfg(feature = "delivery")]
        delivery: service.delivery().clone(),
    });
    if let Some(service) = service {
        // In a late phase, so that watchers see the shutdown until its end.
        cluster.on_phase(greylag_cluster::Phase::BeforeNodeTerminate, "management", move || {
            Box::pin(async move {
                service.shutdown().await;
                true
            })
        });
    }
    Ok(admin)
}

impl std::fmt::Debug for NodeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeBuilder").field("config", &self.config).field("seeds", &self.seeds).finish_non_exhaustive()
    }
}
