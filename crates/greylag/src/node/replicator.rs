//! The one replicator of a node, and its store for durable entries.
//!
//! Source: ddata §3, U4, U5.

use std::sync::{Arc, Mutex, PoisonError};

use greylag_cluster::Cluster;
use greylag_ddata::{Lifecycle, Membership, Replicator, ReplicatorSettings, RequestError, StartError, TypeTable};
use greylag_transport::GrpcTransport;

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

impl NodeReplicator {
    /// The node's replicator, started if it does not run.
    pub(crate) fn get_or_start(
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
        let store = ddata_store(node, cluster.self_address().address(), &settings.name);
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
        let replicator = replicator.get_or_start(&settings, &transport, &cluster, TypeTable::new());
        let replicator = replicator.map_err(|error| error.to_string())?;
        Ok(Arc::new(greylag_delivery::DdataWorkerDirectory::new(replicator, own)))
    });
}

/// The store for the durable entries of a replicator of the node at this address. Source: ddata U6.
#[cfg(feature = "ddata-sled")]
pub(crate) fn ddata_store(
    settings: &NodeSettings,
    address: &greylag_core::NodeAddress,
    replicator: &str,
) -> Arc<greylag_store_sled::DdataStore> {
    use greylag_store_sled::{DdataStore, DdataStoreSettings};
    let (place, transport) = (&settings.ddata_store, &settings.transport);
    let path =
        DdataStore::place(std::path::Path::new(""), &place.path, &transport.cluster_name, replicator, address.port());
    let is_chosen = transport.canonical_port == 0 && transport.bind_port.unwrap_or(0) == 0;
    if is_chosen && path != place.path {
        tracing::warn!(path = %path.display(), "the directory of durable entries contains a port that the system chose, so a restart uses another directory; set transport.canonical_port, or end ddata.durable.path otherwise than in ddata");
    }
    let (cache_bytes, min_free_bytes) = (place.cache_bytes as u64, place.min_free_bytes);
    let ballast_bytes = place.ballast_bytes;
    let settings = DdataStoreSettings { cache_bytes, min_free_bytes, ballast_bytes, ..DdataStoreSettings::default() };
    Arc::new(DdataStore::new(path, settings))
}
