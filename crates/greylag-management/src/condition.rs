//! Facts about a node's health that its view does not have.

use greylag_cluster::{Cluster, HeldAddress};
use greylag_core::UniqueAddress;

/// Accusations of unreachability, and other conditions that keep the leader from acting. Source: cluster M19, M36.
#[derive(Debug, Clone, Default)]
pub(crate) struct Condition {
    /// Pairs of members: the observer, and the member that it finds unreachable.
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

    /// The members that find `subject` unreachable.
    pub(crate) fn observers_of<'a>(&'a self, subject: &'a UniqueAddress) -> impl Iterator<Item = &'a UniqueAddress> {
        self.accusations.iter().filter(move |(_, accused)| accused == subject).map(|(observer, _)| observer)
    }
}
