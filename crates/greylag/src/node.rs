//! One node: transport, membership, and what runs on them, put together.

use std::sync::Arc;

use greylag_cluster::{Cluster, ShutdownReason};
use greylag_core::{NodeAddress, Registry, UniqueAddress};
use greylag_transport::GrpcTransport;
use tokio::runtime::Handle;

use crate::builder::NodeBuilder;
use crate::config::Config;
use crate::settings::NodeSettings;

/// A running member of a cluster. Cheap to clone; the node runs until [`Node::shutdown`].
///
/// Hold it for as long as the program works with entities. When the last clone is dropped without a
/// shutdown, the node says so in the log and begins one in the background: other handles (of entities, of
/// singletons, of the cluster) do not keep it alive.
#[derive(Clone)]
pub struct Node {
    pub(crate) settings: Arc<NodeSettings>,
    pub(crate) transport: Arc<GrpcTransport>,
    pub(crate) cluster: Cluster,
    #[cfg(feature = "persistence")]
    pub(crate) journal: Option<crate::journals::NodeJournal>,
    #[cfg(feature = "management")]
    pub(crate) management: Option<std::net::SocketAddr>,
    #[cfg(feature = "sharding")]
    pub(crate) sharding: greylag_sharding::Sharding,
    #[cfg(feature = "delivery")]
    pub(crate) delivery: greylag_delivery::NodeDelivery,
    #[cfg(feature = "ddata")]
    pub(crate) replicator: crate::replicated::NodeReplicator,
    pub(crate) _last: Arc<LastHandle>,
}

/// What the clones of a node share, and its start before them: it goes with the last of them.
pub(crate) struct LastHandle {
    pub(crate) cluster: Cluster,
    pub(crate) transport: Arc<GrpcTransport>,
    /// The program's.
    pub(crate) runtime: Handle,
}

impl Drop for LastHandle {
    fn drop(&mut self) {
        let (cluster, transport) = (self.cluster.clone(), self.transport.clone());
        if cluster.ended().is_none() {
            tracing::warn!(
                node = %cluster.self_address(),
                "the last handle of this node, or its start, was dropped without a shutdown; it leaves in order now"
            );
            cluster.begin_shutdown(ShutdownReason::Stopped);
        }
        // A runtime that has ended takes the listener with it; work that may still run keeps the port (cluster T33).
        self.runtime.spawn(async move {
            cluster.terminated().await;
            transport.shutdown().await;
        });
    }
}

impl Node {
    /// Begins a node of the cluster with this name.
    pub fn builder(cluster_name: impl Into<String>) -> NodeBuilder {
        let cluster_name = cluster_name.into();
        NodeBuilder::new(Config::new()).configure(move |settings| settings.transport.cluster_name = cluster_name)
    }

    /// Begins a node whose settings, its cluster's name among them, stand in a file or the environment.
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

    /// What it runs with.
    pub fn settings(&self) -> &NodeSettings {
        &self.settings
    }

    /// Where its admin service listens, if it is on.
    #[cfg(feature = "management")]
    pub fn management_address(&self) -> Option<std::net::SocketAddr> {
        self.management
    }

    /// This process: its address, and the uid of this incarnation.
    pub fn unique_address(&self) -> &UniqueAddress {
        self.cluster.self_address()
    }

    /// The address at which others reach this node, and that they name as a seed.
    pub fn address(&self) -> &NodeAddress {
        self.cluster.self_address().address()
    }

    /// The cluster's members, and what happens to them.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Whether this node should be given work: it is Up, and none of its stores is down. What load balancers and
    /// orchestrators ask; `greylag health` tells it too. Never waits.
    pub fn readiness(&self) -> greylag_cluster::Readiness {
        self.cluster.readiness()
    }

    /// The transport, for layers of one's own on top of it.
    pub fn transport(&self) -> &Arc<GrpcTransport> {
        &self.transport
    }

    /// The codecs of this node.
    pub fn registry(&self) -> &Arc<Registry> {
        greylag_transport::Remoting::registry(&*self.transport)
    }

    /// The journal that the settings name, for entities without shards and for projections. `None` if they name
    /// none, or if the program gave stores of its own.
    #[cfg(feature = "persistence")]
    pub fn journal(&self) -> Option<&crate::journals::NodeJournal> {
        self.journal.as_ref()
    }

    /// A name for an entity. If its type is not set up on this node ([`NodeBuilder::entity`], [`NodeBuilder::proxy`]), what
    /// is sent to it is refused.
    #[cfg(feature = "sharding")]
    pub fn entity_ref<M: Send + 'static>(
        &self,
        key: greylag_sharding::EntityKey<M>,
        id: impl Into<Arc<str>>,
    ) -> greylag_sharding::EntityRef<M> {
        self.sharding.entity_ref(key, id)
    }

    /// Has `count` workers of this name in the cluster, each alive once, and started again wherever one ends: see
    /// [`Sharding::daemon_process`](greylag_sharding::Sharding::daemon_process). Say it on every node. Settings are those of
    /// `sharding.sharded_daemon_process.*`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use greylag::prelude::*;
    /// # struct Part(u32);
    /// # impl Entity for Part {
    /// #     type Message = ();
    /// #     fn receive(&mut self, (): (), _: &mut Ctx<'_, ()>) -> Result<(), Failure> { Ok(()) }
    /// # }
    /// # #[tokio::main]
    /// # async fn main() -> greylag::Result {
    /// # let node = Node::builder("parts").start().await?;
    /// let parts = node.daemon_process("parts", 4, |init| Ok(Part(init.index))).start()?;
    /// parts.change_number_of_processes(8).await?;
    /// assert_eq!(parts.number_of_processes().await?.count, 8);
    /// # node.shutdown().await
    /// # }
    /// ```
    #[cfg(feature = "sharding")]
    pub fn daemon_process<E, F>(
        &self,
        name: impl Into<String>,
        count: u32,
        factory: F,
    ) -> greylag_sharding::DaemonProcess<E, F>
    where
        E: greylag_sharding::Entity,
        F: Fn(&greylag_sharding::DaemonInit) -> Result<E, greylag_sharding::Failure> + Send + Sync + 'static,
    {
        self.sharding.daemon_process(name, count, factory)
    }

    /// Entities found by name.
    #[cfg(feature = "sharding")]
    pub fn sharding(&self) -> &greylag_sharding::Sharding {
        &self.sharding
    }

    /// The way of messages between nodes, for what a program starts itself, such as a controller of point-to-point delivery.
    #[cfg(feature = "sharding")]
    pub fn remoting(&self) -> &Arc<dyn greylag_transport::Remoting> {
        self.sharding().remoting()
    }

    /// Messages that reach entities and workers once and in order, whatever is lost on the way, by the settings `delivery.*`.
    #[cfg(feature = "delivery")]
    pub fn delivery(&self) -> &greylag_delivery::NodeDelivery {
        &self.delivery
    }

    /// Starts a replicator with settings of its own, beside [`Node::replicator`]; it needs a name of its own.
    ///
    /// # Errors
    /// [`greylag_ddata::StartError`].
    #[cfg(feature = "ddata")]
    pub fn replicator_with(
        &self,
        settings: greylag_ddata::ReplicatorSettings,
        types: greylag_ddata::TypeTable,
    ) -> Result<greylag_ddata::Replicator, greylag_ddata::StartError> {
        crate::replicated::start(&self.settings, &self.transport, &self.cluster, settings, types)
    }

    /// Leaves the cluster in order: shards are handed off, singletons handed over, the others see a
    /// clean removal and wait for nothing. Then the transport closes.
    ///
    /// What did not end within the time of its phase (an instance of a singleton, a hook) goes on, and
    /// this node's port stays bound for it until the process ends: a port that refuses is proof to the
    /// others that nothing runs behind it any more. Source: cluster T33.
    ///
    /// # Errors
    /// [`EndedOtherwise`]: the node was downed, or could not go on, before it had left.
    pub async fn shutdown(&self) -> crate::Result {
        let reason = self.end().await;
        if reason.exit_code() == 0 { Ok(()) } else { Err(EndedOtherwise(reason).into()) }
    }

    /// As [`Node::shutdown`], whatever ended the node.
    async fn end(&self) -> ShutdownReason {
        let reason = self.cluster.shutdown().await;
        self.transport.shutdown().await;
        reason
    }

    /// Runs until the node ends: it was told to leave, was downed, or the process got SIGTERM or
    /// SIGINT, which begin the orderly [`Node::shutdown`]. A second signal does not wait for it. Signals
    /// are listened to from here on: one that comes before ends the process as it would any other.
    ///
    /// For the end of `main`: [`ShutdownReason::exit_code`] tells a supervisor a node that was downed
    /// (20) from one that left or was asked to end by a signal (0).
    ///
    /// ```no_run
    /// # async fn live(node: greylag::Node) -> std::process::ExitCode {
    /// std::process::ExitCode::from(node.run().await.exit_code())
    /// # }
    /// ```
    ///
    /// Source: cluster M35.
    pub async fn run(&self) -> ShutdownReason {
        tokio::select! {
            _ended = self.terminated() => {}
            () = asked_to_end() => {
                tracing::info!(node = %self.unique_address(), "asked to end by a signal");
                // The first reason wins: not that of the shutdown below.
                self.cluster.begin_shutdown(ShutdownReason::Terminated);
            }
        }
        tokio::select! {
            reason = self.end() => reason,
            () = asked_to_end() => {
                tracing::warn!(node = %self.unique_address(), "asked to end again; the shutdown is cut off");
                // Work that the shutdown did not wait for may run until the process ends.
                greylag_transport::Remoting::keep_port(&*self.transport);
                ShutdownReason::Stopped
            }
        }
    }

    /// Waits until this node is no member any more: it left, or it was downed. A process whose node
    /// was downed must end, or start a new node; the same incarnation never joins again.
    pub async fn terminated(&self) -> ShutdownReason {
        self.cluster.terminated().await
    }
}

/// A node did not end by its shutdown.
#[derive(thiserror::Error)]
#[error("the node ended otherwise than by its shutdown: {0}")]
pub struct EndedOtherwise(pub ShutdownReason);

greylag_core::debug_is_sentence!(EndedOtherwise);

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.unique_address())
    }
}

/// Completes with the next SIGTERM or SIGINT.
async fn asked_to_end() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            tracing::error!("signals cannot be heard; only the cluster can end this node in order");
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
    #[cfg(not(unix))]
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// Where a node at this address keeps the durable entries of a replicator. Source: ddata U6.
#[cfg(feature = "ddata-sled")]
pub(crate) fn ddata_store(
    settings: &NodeSettings,
    address: &NodeAddress,
    replicator: &str,
) -> Arc<greylag_store_sled::DdataStore> {
    use greylag_store_sled::{DdataStore, DdataStoreSettings};
    let (place, transport) = (&settings.ddata_store, &settings.transport);
    let path =
        DdataStore::place(std::path::Path::new(""), &place.path, &transport.cluster_name, replicator, address.port());
    let is_chosen = transport.canonical_port == 0 && transport.bind_port.unwrap_or(0) == 0;
    if is_chosen && path != place.path {
        tracing::warn!(path = %path.display(), "the place of durable entries is named for a port that the system chose; after a restart it will be another");
    }
    let (cache_bytes, min_free_bytes) = (place.cache_bytes as u64, place.min_free_bytes);
    let ballast_bytes = place.ballast_bytes;
    let settings = DdataStoreSettings { cache_bytes, min_free_bytes, ballast_bytes, ..DdataStoreSettings::default() };
    Arc::new(DdataStore::new(path, settings))
}
