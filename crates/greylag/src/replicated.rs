//! Replicated data of a node, and the one replicator that holds it.
//!
//! Source: ddata §3, U4, U5.

use std::sync::{Arc, Mutex, PoisonError};

use greylag_cluster::Cluster;
use greylag_crdt::ReplicatedData;
use greylag_ddata::{
    KeyId, Lifecycle, Membership, Replicated, Replicator, ReplicatorSettings, RequestError, StartError, TypeTable,
};
use greylag_transport::GrpcTransport;

use crate::node::Node;
use crate::settings::NodeSettings;

/// The node's replicator, once it was asked for. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct NodeReplicator(Arc<Mutex<Option<Replicator>>>);

/// Why an entry cannot be used on a node.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicatedError {
    /// The node's replicator did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The id cannot name an entry, or the replicator has stopped.
    #[error(transparent)]
    Request(#[from] RequestError),
}

greylag_core::debug_is_sentence!(ReplicatedError);

impl Node {
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
    /// [`ReplicatedError`].
    pub fn replicated<T: ReplicatedData>(&self, id: impl Into<KeyId>) -> Result<Replicated<T>, ReplicatedError> {
        // A replicator knows the type before it loads durable entries: it stops at an entry whose type it does not know.
        Ok(self.replicator(TypeTable::new().with::<T>())?.replicated(id)?)
    }

    /// The node's replicator, with the settings `ddata.*`: the first call starts it, connected to this node's cluster,
    /// and later calls return the same. When the node leaves, the replicator hands over the changes that no other
    /// replicator has yet. `types` lists types that peers may send, or that durable entries have, before this node has
    /// used them.
    ///
    /// # Errors
    /// [`StartError`]: this node lacks a role of `ddata.roles`, or a replicator of that name was started by
    /// [`Node::replicator_with`].
    pub fn replicator(&self, types: TypeTable) -> Result<Replicator, StartError> {
        self.replicator.get(&self.settings, &self.transport, &self.cluster, types)
    }
}

impl NodeReplicator {
    /// The node's replicator, started if it does not run.
    pub(crate) fn get(
        &self,
        settings: &NodeSettings,
        transport: &Arc<GrpcTransport>,
        cluster: &Cluster,
        types: TypeTable,
    ) -> Result<Replicator, StartError> {
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = own.as_ref().filter(|known| !matches!(*known.lifecycle().borrow(), Lifecycle::Stopped(_)))
        {
            // A replicator too busy to take the types learns each of them when it is used.
            known.add_types(types).ok();
            return Ok(known.clone());
        }
        let started = start(settings, transport, cluster, settings.ddata.clone(), types)?;
        *own = Some(started.clone());
        Ok(started)
    }
}

/// Starts a replicator on a node's cluster.
pub(crate) fn start(
    node: &NodeSettings,
    transport: &Arc<GrpcTransport>,
    cluster: &Cluster,
    settings: ReplicatorSettings,
    types: TypeTable,
) -> Result<Replicator, StartError> {
    let membership = Membership::from_cluster(cluster);
    #[cfg(feature = "ddata-sled")]
    if settings.durable.is_used() {
        let store = crate::node::ddata_store(node, cluster.self_address().address(), &settings.name);
        return Replicator::start_durable(settings, types, transport.clone(), membership, store);
    }
    #[cfg(not(feature = "ddata-sled"))]
    let _ = node;
    Replicator::start(settings, types, transport.clone(), membership)
}

/// Lets the workers of this node and the producers of their work find each other across the cluster, by the node's
/// replicator, which the first of them starts.
#[cfg(feature = "delivery")]
pub(crate) fn find_workers(
    delivery: &greylag_delivery::NodeDelivery,
    replicator: &NodeReplicator,
    settings: &Arc<NodeSettings>,
    transport: &Arc<GrpcTransport>,
    cluster: &Cluster,
) {
    let (replicator, settings, transport, cluster) =
        (replicator.clone(), settings.clone(), transport.clone(), cluster.clone());
    delivery.find_workers_by(move || {
        let own = cluster.self_address().clone();
        let replicator = replicator.get(&settings, &transport, &cluster, TypeTable::new());
        let replicator = replicator.map_err(|error| error.to_string())?;
        Ok(Arc::new(greylag_delivery::DdataWorkerDirectory::new(replicator, own)))
    });
}
