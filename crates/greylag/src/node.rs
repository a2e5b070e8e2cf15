//! One node: transport, membership, and what runs on them, put together.

use std::sync::Arc;

use greylag_cluster::{Cluster, ShutdownReason};
use greylag_core::{NodeAddress, Registry, UniqueAddress};
use greylag_transport::GrpcTransport;

use crate::builder::NodeBuilder;

/// A running member of a cluster. Cheap to clone; the node runs until [`Node::shutdown`].
#[derive(Clone)]
pub struct Node {
    pub(crate) transport: Arc<GrpcTransport>,
    pub(crate) cluster: Cluster,
    #[cfg(feature = "sharding")]
    pub(crate) sharding: greylag_sharding::Sharding,
}

impl Node {
    /// Begins a node of the cluster with this name.
    pub fn builder(cluster_name: impl Into<String>) -> NodeBuilder {
        NodeBuilder::new(cluster_name.into())
    }

    /// This process: its address, and the uid of this incarnation.
    pub fn unique_address(&self) -> &UniqueAddress {
        self.cluster.self_address()
    }

    /// Where others reach this node; what they name as a seed.
    pub fn address(&self) -> &NodeAddress {
        self.cluster.self_address().address()
    }

    /// Who else is a member, and what happens to them.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The transport, for layers of one's own on top of it.
    pub fn transport(&self) -> &Arc<GrpcTransport> {
        &self.transport
    }

    /// The codecs of this node.
    pub fn registry(&self) -> &Arc<Registry> {
        greylag_transport::Remoting::registry(&*self.transport)
    }

    /// Entities found by name.
    #[cfg(feature = "sharding")]
    pub fn sharding(&self) -> &greylag_sharding::Sharding {
        &self.sharding
    }

    /// Leaves the cluster in order: shards are handed off, singletons handed over, the others see a
    /// clean removal and wait for nothing. Then the transport closes.
    pub async fn shutdown(&self) -> ShutdownReason {
        let reason = self.cluster.shutdown().await;
        self.transport.shutdown().await;
        reason
    }

    /// Waits until this node is no member any more: it left, or it was downed. A process whose node
    /// was downed must end, or start a new node; the same incarnation never joins again.
    pub async fn terminated(&self) -> ShutdownReason {
        self.cluster.terminated().await
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.unique_address())
    }
}
