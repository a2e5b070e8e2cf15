//! From settings to a running node.

use std::sync::Arc;

use greylag_cluster::{Cluster, Downing, JoinError, SbrSettings};
use greylag_core::{InvalidAddress, NodeAddress, Registry};
use greylag_transport::{BindError, GrpcTransport, Remoting};

use crate::node::Node;
use crate::settings::NodeSettings;

/// A node that does not run yet.
///
/// Without [`NodeBuilder::seed_nodes`] the node forms a cluster of its own. Without stores,
/// persistent entity types are refused.
#[must_use = "a builder does nothing until it is started"]
pub struct NodeBuilder {
    settings: NodeSettings,
    seeds: Vec<Result<NodeAddress, InvalidAddress>>,
    #[cfg(feature = "persistence")]
    stores: Option<greylag_persistence::Stores>,
}

impl NodeBuilder {
    pub(crate) fn new(cluster_name: String) -> Self {
        let mut settings = NodeSettings::default();
        settings.transport.cluster_name = cluster_name;
        // The crate below decides nothing by default; a node that hosts anything should (cluster S1).
        settings.cluster.downing = Downing::SplitBrainResolver(SbrSettings::default());
        Self {
            settings,
            seeds: Vec::new(),
            #[cfg(feature = "persistence")]
            stores: None,
        }
    }

    /// What others dial, and what is listened on. Port 0 picks a free one.
    pub fn bind(mut self, host: impl Into<String>, port: u16) -> Self {
        self.settings.transport.canonical_host = Some(host.into());
        self.settings.transport.canonical_port = 0;
        self.settings.transport.bind_port = Some(port);
        self
    }

    /// What this node is for; entity types and singletons choose nodes by role.
    pub fn roles<R: Into<String>>(mut self, roles: impl IntoIterator<Item = R>) -> Self {
        self.settings.cluster.roles = roles.into_iter().map(Into::into).collect();
        self
    }

    /// Through whom to join. The first of the list starts the cluster if nobody has; give every node
    /// the same list.
    pub fn seed_nodes<A: AsRef<str>>(mut self, seeds: impl IntoIterator<Item = A>) -> Self {
        self.seeds = seeds.into_iter().map(|seed| seed.as_ref().parse()).collect();
        self
    }

    /// Where persistent entities keep their events. Every node of the cluster must reach the same.
    #[cfg(feature = "persistence")]
    pub fn stores(mut self, stores: greylag_persistence::Stores) -> Self {
        self.stores = Some(stores);
        self
    }

    /// Changes any setting. The defaults suit a production LAN.
    pub fn configure(mut self, change: impl FnOnce(&mut NodeSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Binds the listener, joins, and waits until the node is Up.
    ///
    /// # Errors
    /// [`StartError`] says which part failed and what it said; everything started before is closed.
    pub async fn start(self) -> Result<Node, StartError> {
        let seeds = self.seeds.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut settings = self.settings;
        // One small runtime carries the control lanes and membership (cluster C7).
        settings.transport.control_threads = settings.cluster.cluster_threads;
        let transport = GrpcTransport::bind(settings.transport, Arc::new(Registry::new())).await?;
        let remoting: Arc<dyn Remoting> = transport.clone();
        let started = async {
            let cluster = Cluster::start_on(transport.control_runtime(), settings.cluster, remoting).await?;
            #[cfg(feature = "sharding")]
            let sharding = {
                let sharding = greylag_sharding::Sharding::start(cluster.clone(), self.stores, settings.sharding);
                sharding.await?
            };
            let node = Node {
                transport: transport.clone(),
                cluster,
                #[cfg(feature = "sharding")]
                sharding,
            };
            if seeds.is_empty() {
                node.cluster.join_self().await?;
            } else {
                node.cluster.join_seed_nodes(seeds).await?;
            }
            node.cluster.wait_up().await?;
            Ok(node)
        };
        let outcome = started.await;
        if outcome.is_err() {
            transport.shutdown().await;
        }
        outcome
    }
}

impl std::fmt::Debug for NodeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeBuilder")
            .field("settings", &self.settings)
            .field("seeds", &self.seeds)
            .finish_non_exhaustive()
    }
}

/// Why a node did not start. Nothing of it is left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A seed node is not an address.
    #[error(transparent)]
    Seed(#[from] InvalidAddress),
    /// The listener could not be bound, or a transport setting is wrong.
    #[error("the transport did not start: {0}")]
    Bind(#[from] BindError),
    /// A cluster setting is wrong.
    #[error("membership did not start: {0}")]
    Cluster(#[from] greylag_cluster::StartError),
    /// A sharding setting is wrong.
    #[cfg(feature = "sharding")]
    #[error("sharding did not start: {0}")]
    Sharding(#[from] greylag_sharding::error::InvalidSetting),
    /// The node could not join; the cluster is as it was.
    #[error("the node did not join: {0}")]
    Join(#[from] JoinError),
    /// The node joined, but ended before it was Up.
    #[error("the node never became Up: {0}")]
    NeverUp(#[from] greylag_cluster::Terminated),
}
