//! One node: transport and membership, with the layers on top of them.

use std::sync::Arc;

use greylag_cluster::{Cluster, ShutdownReason};
use greylag_core::{NodeAddress, Registry, UniqueAddress};
use greylag_transport::GrpcTransport;
use tokio::runtime::Handle;

use crate::settings::NodeSettings;

/// A running member of a cluster. Cheap to clone; the node runs until [`Node::shutdown`].
///
/// Hold it for as long as the program works with entities. When the last clone is dropped without a shutdown, the node
/// logs a warning and shuts down in the background: other handles (of entities, of singletons, of the cluster) do not
/// keep it alive.
#[derive(Clone)]
pub struct Node {
    pub(crate) settings: Arc<NodeSettings>,
    pub(crate) transport: Arc<GrpcTransport>,
    pub(crate) cluster: Cluster,
    #[cfg(feature = "persistence")]
    pub(crate) journal: Option<super::journal::NodeJournal>,
    #[cfg(feature = "management")]
    pub(crate) management: Option<std::net::SocketAddr>,
    #[cfg(feature = "sharding")]
    pub(crate) sharding: greylag_sharding::Sharding,
    #[cfg(feature = "delivery")]
    pub(crate) delivery: greylag_delivery::NodeDelivery,
    #[cfg(feature = "ddata")]
    pub(crate) replicator: super::replicator::NodeReplicator,
    pub(crate) _shutdown_on_drop: Arc<ShutdownOnDrop>,
}

/// Shared by all clones of a node, and by its start before there are any; its drop shuts the node down.
pub(crate) struct ShutdownOnDrop {
    pub(crate) cluster: Cluster,
    pub(crate) transport: Arc<GrpcTransport>,
    /// The runtime of the program.
    pub(crate) runtime: Handle,
}

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        let (cluster, transport) = (self.cluster.clone(), self.transport.clone());
        if cluster.ended().is_none() {
            tracing::warn!(
                node = %cluster.self_address(),
                "the last handle of this node, or its start, was dropped without a shutdown; the node leaves in order now"
            );
            cluster.begin_shutdown(ShutdownReason::Stopped);
        }
        // A runtime that has ended drops the task and the listener with it; work that may still run keeps the port
        // (cluster T33).
        self.runtime.spawn(async move {
            cluster.terminated().await;
            transport.shutdown().await;
        });
    }
}

impl Node {
    /// The settings that the node runs with.
    pub fn settings(&self) -> &NodeSettings {
        &self.settings
    }

    /// Address of the admin service, if it is on.
    #[cfg(feature = "management")]
    pub fn management_address(&self) -> Option<std::net::SocketAddr> {
        self.management
    }

    /// This process: its address, and the uid of this incarnation.
    pub fn unique_address(&self) -> &UniqueAddress {
        self.cluster.self_address()
    }

    /// The address at which other nodes reach this node, and which they name as a seed.
    pub fn address(&self) -> &NodeAddress {
        self.cluster.self_address().address()
    }

    /// The cluster: its members and events.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Whether this node should be given work: it is Up, and none of its stores is down. For load balancers and
    /// orchestrators; `greylag health` shows it, too. Never waits.
    pub fn readiness(&self) -> greylag_cluster::Readiness {
        self.cluster.readiness()
    }

    /// The transport, for further layers on top of it.
    pub fn transport(&self) -> &Arc<GrpcTransport> {
        &self.transport
    }

    /// The codecs of this node.
    pub fn registry(&self) -> &Arc<Registry> {
        greylag_transport::Remoting::registry(&*self.transport)
    }

    /// The journal named by the settings, for entities without sharding and for projections. `None` if the settings
    /// name none, or if the program gave stores of its own.
    #[cfg(feature = "persistence")]
    pub fn journal(&self) -> Option<&super::journal::NodeJournal> {
        self.journal.as_ref()
    }

    /// A reference to an entity by name. If its type is not set up on this node ([`NodeBuilder::entity`](crate::NodeBuilder::entity),
    /// [`NodeBuilder::proxy`](crate::NodeBuilder::proxy)), messages to it are refused.
    #[cfg(feature = "sharding")]
    pub fn entity_ref<M: Send + 'static>(
        &self,
        key: greylag_sharding::EntityKey<M>,
        id: impl Into<Arc<str>>,
    ) -> greylag_sharding::EntityRef<M> {
        self.sharding.entity_ref(key, id)
    }

    /// Runs `count` workers of this name in the cluster, each alive once, and restarted wherever one ends: see
    /// [`Sharding::daemon_process`](greylag_sharding::Sharding::daemon_process). Call it on every node. Settings are
    /// those of `sharding.sharded_daemon_process.*`.
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

    /// Sharded entities of this node.
    #[cfg(feature = "sharding")]
    pub fn sharding(&self) -> &greylag_sharding::Sharding {
        &self.sharding
    }

    /// Sends messages between nodes, for parts that a program starts itself, such as a controller of point-to-point
    /// delivery.
    #[cfg(feature = "sharding")]
    pub fn remoting(&self) -> &Arc<dyn greylag_transport::Remoting> {
        self.sharding().remoting()
    }

    /// Reliable delivery: messages reach entities and workers once and in order, even if the network loses some.
    /// Settings are those of `delivery.*`.
    #[cfg(feature = "delivery")]
    pub fn delivery(&self) -> &greylag_delivery::NodeDelivery {
        &self.delivery
    }

    /// The entry with this id in the data that the nodes replicate; its value is a `T`. The first call starts the
    /// node's replicator, with the settings `ddata.*`; call it on every node that should have a copy.
    ///
    /// ```
    /// # use greylag::prelude::*;
    /// # #[tokio::main]
    /// # async fn main() -> greylag::Result {
    /// # let node = Node::builder("poll").start().await?;
    /// let votes = node.replicated::<PNCounter>("votes")?;
    /// votes.update(|votes, cx| votes.increment(cx, 1)).await?; // local
    /// votes.update(|votes, cx| votes.increment(cx, 1)).majority().await?; // on most nodes
    /// assert_eq!(votes.get().majority().await?.value(), 2);
    /// # node.shutdown().await
    /// # }
    /// ```
    ///
    /// A durable entry must have a type that the node knows before it loads the entry: a flag, a counter, a set, register
    /// or map of texts, or the type of the first call. A program with durable entries of more types names all of them
    /// before, by [`Node::replicator`]; otherwise the replicator stops at the next start (`ddata.durable.on_bad_record`).
    ///
    /// # Errors
    /// [`ReplicatedError`](crate::ReplicatedError).
    #[cfg(feature = "ddata")]
    pub fn replicated<T: greylag_crdt::ReplicatedData>(
        &self,
        id: impl Into<greylag_ddata::KeyId>,
    ) -> Result<greylag_ddata::Replicated<T>, super::replicator::ReplicatedError> {
        // A replicator knows the type before it loads durable entries: it stops at an entry whose type it does not know.
        Ok(self.replicator(greylag_ddata::TypeTable::new().with::<T>())?.replicated(id)?)
    }

    /// The node's replicator, with the settings `ddata.*`: the first call starts it, connected to this node's cluster,
    /// and later calls return the same. When the node leaves, the replicator hands over the changes that no other
    /// replicator has yet. `types` lists types that peers may send, or that durable entries have, before this node has
    /// used them.
    ///
    /// # Errors
    /// [`StartError`](greylag_ddata::StartError): this node lacks a role of `ddata.roles`, or a replicator of that name was started by
    /// [`Node::replicator_with`].
    #[cfg(feature = "ddata")]
    pub fn replicator(
        &self,
        types: greylag_ddata::TypeTable,
    ) -> Result<greylag_ddata::Replicator, greylag_ddata::StartError> {
        self.replicator.get_or_start(&self.settings, &self.transport, &self.cluster, types)
    }

    /// Starts a replicator with its own settings, beside [`Node::replicator`]; it needs its own name.
    ///
    /// # Errors
    /// [`greylag_ddata::StartError`].
    #[cfg(feature = "ddata")]
    pub fn replicator_with(
        &self,
        settings: greylag_ddata::ReplicatorSettings,
        types: greylag_ddata::TypeTable,
    ) -> Result<greylag_ddata::Replicator, greylag_ddata::StartError> {
        super::replicator::start(&self.settings, &self.transport, &self.cluster, settings, types)
    }

    /// Leaves the cluster in order: shards are handed off, singletons handed over, and the other nodes see a clean
    /// removal without waiting for a timeout. Then the transport closes.
    ///
    /// Work that did not end within the time of its phase (an instance of a singleton, a hook) goes on, and this node's
    /// port stays bound for it until the process ends: a port that refuses connections proves to the other nodes that
    /// no work runs behind it any more. Source: cluster T33.
    ///
    /// # Errors
    /// [`EndedOtherwise`]: the node was downed, or failed, before it had left.
    pub async fn shutdown(&self) -> crate::Result {
        let reason = self.end().await;
        if reason.exit_code() == 0 { Ok(()) } else { Err(EndedOtherwise(reason).into()) }
    }

    /// Like [`Node::shutdown`], but returns the reason even if the node ended in another way.
    async fn end(&self) -> ShutdownReason {
        let reason = self.cluster.shutdown().await;
        self.transport.shutdown().await;
        reason
    }

    /// Runs until the node ends: it was told to leave, was downed, or the process got SIGTERM or SIGINT, which begin
    /// the orderly [`Node::shutdown`]. A second signal cuts the shutdown off. Signals are handled from the first poll
    /// on: an earlier signal ends the process as it would any other.
    ///
    /// For the end of `main`: by [`ShutdownReason::exit_code`] a supervisor can tell a node that was downed (20) from a
    /// node that left or was ended by a signal (0).
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
            () = termination_signal() => {
                tracing::info!(node = %self.unique_address(), "signal received; the node shuts down in order");
                // The first reason is kept, so this one wins over that of the shutdown below.
                self.cluster.begin_shutdown(ShutdownReason::Terminated);
            }
        }
        tokio::select! {
            reason = self.end() => reason,
            () = termination_signal() => {
                tracing::warn!(node = %self.unique_address(), "second signal received; the shutdown is aborted");
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

/// The node ended before its shutdown did.
#[derive(thiserror::Error)]
#[error("the node ended before its shutdown was complete: {0}")]
pub struct EndedOtherwise(pub ShutdownReason);

greylag_core::debug_is_sentence!(EndedOtherwise);

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.unique_address())
    }
}

/// Completes with the next SIGTERM or SIGINT.
async fn termination_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            tracing::error!("SIGTERM and SIGINT cannot be handled; only the cluster can shut this node down in order");
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
