//! Builds a running node from settings.

use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, Discovery, LeaseProvider, Leases, ShutdownReason};
use greylag_core::{Codec, InvalidAddress, NodeAddress, Registry, RegistryError};
use greylag_transport::{GrpcTransport, Remoting, TransportSettings};

use crate::config::{Config, ConfigProblems, Origin, Problem, ReadSettings};
use crate::leases::{self, MakeLeases};
use crate::node::{LastHandle, Node};
use crate::settings::NodeSettings;
use crate::start_error::StartError;

type Change = Box<dyn FnOnce(&mut NodeSettings) + Send>;

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
    changes: Vec<Change>,
    seeds: Option<Vec<Result<NodeAddress, InvalidAddress>>>,
    discovery: Option<Arc<dyn Discovery>>,
    joins: bool,
    start_timeout: Option<Duration>,
    stores_of_leases: Vec<(String, MakeLeases)>,
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
            stores_of_leases: Vec::new(),
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
        self.stores_of_leases.push((name.into(), Box::new(|cluster| Leases::new(cluster, provider))));
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
        let is_told_nothing = self.config.is_empty() && self.seeds.is_none() && self.discovery.is_none();
        let mut read: ReadSettings = self.config.read()?;
        read.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        for change in self.changes {
            change(&mut read.settings);
        }
        if is_told_nothing {
            stay_on_loopback(&mut read.settings);
        }
        if let Some(seeds) = self.seeds {
            read.settings.cluster.seed_nodes = seeds.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        if let Some(timeout) = self.start_timeout {
            let until_let_in = &mut read.settings.cluster.shutdown_after_unsuccessful_join_seed_nodes;
            *until_let_in = Some(until_let_in.unwrap_or(timeout).min(timeout * 9 / 10));
        }
        let without_store = leases::choose(&mut read.settings, self.stores_of_leases);
        read.check_with(without_store)?;
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
        let last = std::sync::OnceLock::<Arc<LastHandle>>::new();
        let started = async {
            let remoting: Arc<dyn Remoting> = transport.clone();
            let cluster = Cluster::start_on(transport.control_runtime(), settings.cluster.clone(), remoting).await?;
            let handle = Arc::new(LastHandle {
                cluster: cluster.clone(),
                transport: transport.clone(),
                runtime: tokio::runtime::Handle::current(),
            });
            last.set(handle.clone()).ok();
            #[cfg(feature = "ddata")]
            greylag_ddata::expect_replicators(&*transport);
            // Nodes with the same seeds may have called already; their messages find their recipients from here on.
            transport.open();
            #[cfg(feature = "management")]
            let management = manage(&settings, &cluster, &transport).await?;
            #[cfg(feature = "persistence")]
            let (stores, journal) = journal(&settings, &cluster, self.stores).await?;
            #[cfg(feature = "sharding")]
            let sharding = {
                let defaults = settings.sharding.clone();
                let sharding = greylag_sharding::Sharding::start(cluster.clone(), stores, defaults).await?;
                #[cfg(feature = "ddata-sled")]
                let sharding = {
                    let (settings, address) = (settings.clone(), cluster.self_address().address().clone());
                    sharding.durable_store(move |replicator| crate::node::ddata_store(&settings, &address, replicator))
                };
                #[cfg(feature = "management")]
                if let Some(managed) = &management {
                    managed.shards.show(Arc::new(crate::shards::NodeShards::new(sharding.clone())));
                }
                sharding
            };
            // Before the entity types are set up, since they start from these settings.
            #[cfg(feature = "delivery")]
            let delivery = greylag_delivery::NodeDelivery::of(&sharding, settings.delivery.clone())
                .expect("the settings of the node were checked");
            #[cfg(feature = "ddata")]
            let replicator = crate::replicated::NodeReplicator::default();
            #[cfg(all(feature = "delivery", feature = "ddata"))]
            crate::replicated::find_workers(&delivery, &replicator, &settings, &transport, &cluster);
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
            if let Some(managed) = &management {
                managed.delivery.show(Arc::new(crate::deliveries::NodeDeliveries::new(delivery.clone())));
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
                _last: handle,
                #[cfg(feature = "persistence")]
                journal,
                #[cfg(feature = "management")]
                management: management.map(|managed| managed.address),
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
                Err(_) => Err(StartError::timed_out(timeout, last.get().map(|last| &last.cluster)).await),
            },
        };
        if outcome.is_err() {
            if let Some(last) = last.get() {
                // The phases of the shutdown end everything that was started.
                last.cluster.begin_shutdown(ShutdownReason::Stopped);
                last.cluster.terminated().await;
            }
            transport.shutdown().await;
        }
        outcome
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
    by_dns(settings)
}

#[cfg(feature = "discovery-dns")]
fn by_dns(settings: &NodeSettings) -> Result<Option<Arc<dyn Discovery>>, StartError> {
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
fn by_dns(_: &NodeSettings) -> Result<Option<Arc<dyn Discovery>>, StartError> {
    Ok(None)
}

/// The stores of entities: the program's, or those of the journal that the settings name.
#[cfg(feature = "persistence")]
async fn journal(
    settings: &NodeSettings,
    cluster: &Cluster,
    own: Option<greylag_persistence::Stores>,
) -> Result<(Option<greylag_persistence::Stores>, Option<crate::journals::NodeJournal>), crate::journals::JournalError>
{
    if let Some(own) = own {
        return Ok((Some(host(settings, cluster, own)), None));
    }
    let Some(mut journal) = crate::journals::open(settings).await? else { return Ok((None, None)) };
    // The journal's own stores get the same settings, for programs that spawn entities on them without sharding.
    journal.stores = host(settings, cluster, journal.stores);
    Ok((Some(journal.stores.clone()), Some(journal)))
}

/// Makes stores a part of the node: entities start from the node's settings, a store that is down makes the node not
/// ready, and the node closes the stores when it ends. Source: persistence §4.1, §9, §10.15.
#[cfg(feature = "persistence")]
fn host(
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
                tracing::error!(%store, %error, "a store did not close cleanly");
            }
            failed.is_empty()
        })
    });
    stores.with_settings(settings.persistence.clone(), settings.durable_state.clone())
}

/// The parts of a running admin service that the start of its node needs.
#[cfg(feature = "management")]
struct Managed {
    address: std::net::SocketAddr,
    #[cfg(feature = "sharding")]
    shards: greylag_management::Shown<dyn greylag_management::Shards>,
    #[cfg(feature = "delivery")]
    delivery: greylag_management::Shown<dyn greylag_management::Delivery>,
}

/// Starts the admin service before the node joins, so that a node that cannot join can be asked why.
#[cfg(feature = "management")]
async fn manage(
    settings: &NodeSettings,
    cluster: &Cluster,
    transport: &Arc<GrpcTransport>,
) -> Result<Option<Managed>, greylag_management::StartError> {
    use greylag_management::ManagementServer;

    let service = ManagementServer::start(settings.management.clone(), cluster.clone(), transport.clone()).await?;
    let managed = service.as_ref().map(|service| Managed {
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
    Ok(managed)
}

impl std::fmt::Debug for NodeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeBuilder").field("config", &self.config).field("seeds", &self.seeds).finish_non_exhaustive()
    }
}
