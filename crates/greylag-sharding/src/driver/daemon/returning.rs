//! Starts a worker as soon as its shard is hosted here, instead of waiting for the manager's next round.

use std::sync::Weak;

use super::worker::Latest;
use crate::driver::region::shared::RegionInner;
use crate::driver::{Event, Region, RegionEvents};
use crate::ids::ShardId;
use crate::machine::daemon::ProcessId;

/// Watches the shards of a region until the region is gone.
pub(super) async fn start_with_shards<M: Send + 'static>(
    region: Weak<RegionInner<M>>,
    mut events: RegionEvents,
    latest: Latest,
) {
    while let Some(event) = events.next().await {
        if let Event::ShardStarted(shard) = event {
            tokio::spawn(start(region.clone(), shard, latest.clone()));
        }
    }
}

/// Starts the worker of a shard, if the latest revision has one. Failures are left to the manager's next round.
async fn start<M: Send + 'static>(region: Weak<RegionInner<M>>, shard: ShardId, latest: Latest) {
    let record = latest.record().await;
    let id = shard.index().map(|index| ProcessId { revision: record.revision, count: record.count, index });
    let region = region.upgrade().map(Region);
    if let (Some(id), Some(region)) = (id.filter(|id| record.allows(id)), region) {
        region.start_entity(id.to_string()).await.ok();
    }
}
