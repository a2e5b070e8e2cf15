//! What a node says of its health, beside its view.

use greylag_cluster::{Cluster, HeldAddress};
use greylag_core::UniqueAddress;

/// Who accuses whom, and what else stands in the way. Source: cluster M19, M36.
#[derive(Debug, Clone, Default)]
pub(crate) struct Condition {
    /// Who finds whom unreachable, observer first.
    pub(crate) accusations: Vec<(UniqueAddress, UniqueAddress)>,
    /// Members that have not seen the state.
    pub(crate) unseen: Vec<UniqueAddress>,
    /// The id of another cluster of the same name.
    pub(crate) foreign_cluster: Option<u128>,
    /// Members whose addresses other processes claim (cluster T15).
    pub(crate) held_addresses: Vec<HeldAddress>,
}

impl Condition {
    pub(crate) async fn of(cluster: &Cluster) -> Self {
        let health = cluster.health().await;
        let accusations = health
            .unreachable
            .into_iter()
            .flat_map(|(subject, observers)| observers.into_iter().map(move |observer| (observer, subject.clone())));
        Self {
            accusations: accusations.collect(),
            unseen: health.blockers.unseen,
            foreign_cluster: health.foreign_cluster.map(|foreign| foreign.cluster_id),
            held_addresses: health.held_addresses,
        }
    }

    /// Who finds `subject` unreachable.
    pub(crate) fn observers_of<'a>(&'a self, subject: &'a UniqueAddress) -> impl Iterator<Item = &'a UniqueAddress> {
        self.accusations.iter().filter(move |(_, accused)| accused == subject).map(|(observer, _)| observer)
    }
}
