//! Setting the nodes on which the shards of a type belong.
//!
//! Source: sharding §3 "External".

use std::collections::BTreeMap;
use std::time::Duration;

use greylag_core::NodeAddress;
use greylag_ddata::GetError;

use crate::driver::coordinator::desired::{DesiredLocations, parsed};
use crate::driver::sharding::handle::Sharding;
use crate::ids::ShardId;

/// Why desired locations were not read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExternalShardsError {
    /// Fewer nodes than necessary answered in time. The write may nevertheless have been made on this node, and then
    /// spreads.
    #[error("reading or writing the desired locations of {entity_type} timed out after {timeout:?}")]
    ClientTimeout {
        /// The entity type.
        entity_type: String,
        /// The setting `external_shard_allocation_strategy.client_timeout`.
        timeout: Duration,
    },
    /// Nothing was written, because no coordinator on this node would read the locations.
    #[error(
        "{entity_type} is not set up with external allocation on this node, or this node lacks its role; \
         set shard locations on a node that hosts it"
    )]
    NotStarted {
        /// The entity type.
        entity_type: String,
    },
    /// The type has no such shard. Nothing was written.
    #[error("{entity_type} has no shard {shard}: its shards are numbered from 0 to {}", number_of_shards - 1)]
    NoSuchShard {
        /// The entity type.
        entity_type: String,
        /// The shard as given.
        shard: ShardId,
        /// Number of shards of the type.
        number_of_shards: u32,
    },
    /// This node does not keep the locations any more, or refuses the write.
    #[error("the replicator of the desired locations of {entity_type} failed: {cause}")]
    Failed {
        /// The entity type.
        entity_type: String,
        /// The replicator's error.
        cause: String,
    },
}

/// Sets and reads the desired locations of one type's shards. Made by [`Sharding::external_shards`].
///
/// Locations set here spread to the other nodes, the last write for a shard wins, and the coordinator obeys: at the
/// shard's first message, or by moving the shard in its next round (`sharding.rebalance_interval`).
#[derive(Debug, Clone)]
pub struct ExternalShards {
    sharding: Sharding,
    name: String,
}

impl ExternalShards {
    pub(in crate::driver) fn new(sharding: Sharding, name: &str) -> Self {
        Self { sharding, name: name.to_owned() }
    }

    /// Sets the address of the node on which a shard belongs, now or once that node has joined. Waits for this node
    /// alone.
    ///
    /// # Errors
    /// [`ExternalShardsError`].
    pub async fn update_shard_location(&self, shard: ShardId, node: NodeAddress) -> Result<(), ExternalShardsError> {
        self.update_shard_locations([(shard, node)]).await
    }

    /// As [`ExternalShards::update_shard_location`], for many shards at once: all of them or none.
    ///
    /// # Errors
    /// [`ExternalShardsError`].
    pub async fn update_shard_locations(
        &self,
        locations: impl IntoIterator<Item = (ShardId, NodeAddress)> + Send,
    ) -> Result<(), ExternalShardsError> {
        let Some(desired) = self.desired() else {
            return Err(ExternalShardsError::NotStarted { entity_type: self.name.clone() });
        };
        let locations = locations.into_iter().map(|(shard, node)| self.checked(shard, &node, &desired));
        let locations = locations.collect::<Result<Vec<_>, _>>()?;
        match tokio::time::timeout(desired.client_timeout, desired.put(locations)).await {
            Ok(written) => written.map_err(|error| self.failed(&error)),
            Err(_) => Err(self.timed_out(&desired)),
        }
    }

    /// The locations known to a majority of the nodes; empty if the type is not set up.
    ///
    /// # Errors
    /// [`ExternalShardsError`].
    pub async fn shard_locations(&self) -> Result<BTreeMap<ShardId, NodeAddress>, ExternalShardsError> {
        let Some(desired) = self.desired() else { return Ok(BTreeMap::new()) };
        match tokio::time::timeout(desired.client_timeout, desired.of_majority()).await {
            Ok(Ok(known)) => Ok(parsed(&known)),
            Err(_) | Ok(Err(GetError::Failure { .. })) => Err(self.timed_out(&desired)),
            Ok(Err(error)) => Err(self.failed(&error)),
        }
    }

    fn desired(&self) -> Option<DesiredLocations> {
        self.sharding.desired_locations(&self.name)
    }

    fn checked(
        &self,
        shard: ShardId,
        node: &NodeAddress,
        desired: &DesiredLocations,
    ) -> Result<(String, String), ExternalShardsError> {
        let number_of_shards = desired.number_of_shards;
        // Accept any shard of a type whose extractor names shards freely: it may exist later.
        if number_of_shards == 0 || shard.index().is_some_and(|index| index < number_of_shards) {
            return Ok((shard.to_string(), node.to_string()));
        }
        Err(ExternalShardsError::NoSuchShard { entity_type: self.name.clone(), shard, number_of_shards })
    }

    fn timed_out(&self, desired: &DesiredLocations) -> ExternalShardsError {
        ExternalShardsError::ClientTimeout { entity_type: self.name.clone(), timeout: desired.client_timeout }
    }

    fn failed(&self, error: &dyn std::error::Error) -> ExternalShardsError {
        ExternalShardsError::Failed { entity_type: self.name.clone(), cause: error.to_string() }
    }
}
