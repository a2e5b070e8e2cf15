//! Desired locations of shards: their replicated map.
//!
//! ```text
//! ExternalShards --put, local--> map external-sharding-{type} --deltas--> other nodes
//!                <-majority read-                             --local read--> ExternalAllocation, on the coordinator's node
//! ```
//!
//! The map belongs to the replicator of the coordinators' state, so it is on every node that may run the type's
//! coordinator, and nowhere else.
//!
//! Source: sharding §3 "External".

use std::collections::BTreeMap;
use std::time::Duration;

use greylag_core::NodeAddress;
use greylag_crdt::{ClockExhausted, LwwMap, UpdateCx};
use greylag_ddata::{GetError, Key, ReadLevel, Replicator, UpdateError, WriteLevel};

use crate::ids::{EntityTypeName, ShardId};
use crate::settings::ShardingSettings;

/// Shards, and the addresses of the nodes on which the program wants them.
pub(in crate::driver) type Locations = LwwMap<String, String>;

/// The desired locations of one type, as kept by one node.
#[derive(Debug, Clone)]
pub(crate) struct DesiredLocations {
    replicator: Replicator,
    key: Key<Locations>,
    /// How long one request of the client may take.
    pub(in crate::driver) client_timeout: Duration,
    /// How long the strategy waits for one read. Shorter than the coordinator waits for the strategy, or nothing would
    /// be decided.
    query_timeout: Duration,
    pub(in crate::driver) number_of_shards: u32,
}

impl DesiredLocations {
    pub(crate) fn new(
        replicator: Replicator,
        name: &EntityTypeName,
        settings: &ShardingSettings,
        number_of_shards: u32,
    ) -> Self {
        let client_timeout = settings.external.client_timeout;
        let query_timeout = client_timeout.min(settings.allocation_timeout / 2);
        let key = Key::new(format!("external-sharding-{}", name.encoded())).expect("type names are short");
        Self { replicator, key, client_timeout, query_timeout, number_of_shards }
    }

    /// Puts locations on this node; replication spreads them.
    pub(in crate::driver) async fn put(
        &self,
        locations: Vec<(String, String)>,
    ) -> Result<(), UpdateError<ClockExhausted>> {
        let put = move |map: &mut Locations, cx: &mut UpdateCx<'_>| {
            locations.into_iter().try_for_each(|(shard, node)| map.put(cx, shard, node))
        };
        self.replicator.update(&self.key, WriteLevel::Local, Locations::new, put).await
    }

    /// The locations known to a majority of the nodes.
    pub(in crate::driver) async fn of_majority(&self) -> Result<Locations, GetError> {
        let read = self.replicator.get(&self.key, ReadLevel::majority(self.client_timeout)).await?;
        Ok(read.found().unwrap_or_default())
    }

    /// The locations known to this node; `None` if there is no answer in time.
    pub(in crate::driver) async fn known_here(&self) -> Option<Locations> {
        let read = self.replicator.get(&self.key, ReadLevel::Local);
        let read = tokio::time::timeout(self.query_timeout, read).await.ok()?.ok()?;
        Some(read.found().unwrap_or_default())
    }
}

/// The valid entries of a map. This client puts no invalid ones, but a peer might.
pub(in crate::driver) fn parsed(locations: &Locations) -> BTreeMap<ShardId, NodeAddress> {
    let read = |(shard, node): (&String, &String)| Some((ShardId::new(shard.as_str()).ok()?, node.parse().ok()?));
    locations.iter().filter_map(read).collect()
}
