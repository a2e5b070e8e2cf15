//! Finds the other nodes: by a list that an operator wrote, a name in DNS, an orchestrator.

use std::fmt;

use greylag_core::NodeAddress;

use crate::driver::future::BoxFuture;

/// Why discovery has no answer. The former answer still holds.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("discovery by {by} has no answer: {why}")]
pub struct DiscoveryError {
    /// The discovery, with what it looked for.
    pub by: String,
    /// The error that it met.
    pub why: String,
}

greylag_core::debug_is_sentence!(DiscoveryError);

/// Finds the addresses of nodes that may belong to the cluster.
///
/// Answers need not be complete, nor the same for every node: [`Cluster::bootstrap`](crate::Cluster::bootstrap)
/// waits until they are stable, and founds one cluster although they differ. An empty answer means that there are no
/// nodes, an error that nothing is known.
pub trait Discovery: fmt::Debug + Send + Sync + 'static {
    /// Looks up once. May take its time; a lookup that takes long delays the next.
    ///
    /// # Errors
    /// [`DiscoveryError`].
    fn lookup(&self) -> BoxFuture<'_, Result<Vec<NodeAddress>, DiscoveryError>>;
}

/// A list that an operator wrote.
///
/// If all nodes have the same list, [`Cluster::join_seed_nodes`](crate::Cluster::join_seed_nodes) is sufficient, and
/// faster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedList(pub Vec<NodeAddress>);

impl Discovery for SeedList {
    fn lookup(&self) -> BoxFuture<'_, Result<Vec<NodeAddress>, DiscoveryError>> {
        let list = self.0.clone();
        Box::pin(async move { Ok(list) })
    }
}
