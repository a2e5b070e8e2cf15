//! The node's entity types for its admin service.

use std::time::Duration;

use greylag_core::{NodeAddress, UniqueAddress};
use greylag_management::{Answering, Shards, ShardsError, v1};
use greylag_sharding::ids::{EntityId, ShardId};
use greylag_sharding::inspection::{EntityCounts, Position, RegionEntities, RegionStats};
use greylag_sharding::{Inspector, Sharding};

/// Time limit of a question that does not give one.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time limit of a question.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// Implements the admin service's view of a node's entity types.
pub(crate) struct NodeShards(Sharding);

impl NodeShards {
    pub(crate) fn new(sharding: Sharding) -> Self {
        Self(sharding)
    }

    fn inspect(&self, entity_type: &str) -> Result<Inspector, ShardsError> {
        self.0
            .inspect(entity_type)
            .map_err(|unknown| ShardsError::UnknownType { name: unknown.name, known: unknown.known })
    }
}

/// Asks the inspector; answers at once if the entity type is unknown.
fn with_inspector<T: Send + 'static, F: Future<Output = Result<T, ShardsError>> + Send + 'static>(
    inspector: Result<Inspector, ShardsError>,
    ask: impl FnOnce(Inspector) -> F,
) -> Answering<T> {
    match inspector {
        Ok(inspector) => Box::pin(ask(inspector)),
        Err(error) => Box::pin(std::future::ready(Err(error))),
    }
}

fn timeout(timeout_ms: u32) -> Duration {
    match timeout_ms {
        0 => DEFAULT_TIMEOUT,
        timeout_ms => Duration::from_millis(timeout_ms.into()).min(MAX_TIMEOUT),
    }
}

impl Shards for NodeShards {
    fn types(&self) -> Vec<String> {
        self.0.shard_type_names().iter().map(ToString::to_string).collect()
    }

    fn regions(&self, request: v1::ShardRegionsRequest) -> Answering<v1::ShardRegionsReply> {
        with_inspector(self.inspect(&request.entity_type), move |inspector| async move {
            let found = inspector.current_regions(timeout(request.timeout_ms)).await;
            let regions = found.addresses.iter().map(ToString::to_string).collect();
            Ok(v1::ShardRegionsReply { regions, coordinator_missing: found.coordinator_missing })
        })
    }

    fn stats(&self, request: v1::ShardStatsRequest) -> Answering<v1::ShardStatsReply> {
        with_inspector(self.inspect(&request.entity_type), move |inspector| async move {
            let found = inspector.cluster_stats(timeout(request.timeout_ms)).await;
            Ok(v1::ShardStatsReply {
                regions: found.regions.iter().map(|(region, stats)| region_stats(region, stats)).collect(),
                failed_regions: found.failed_regions.iter().map(ToString::to_string).collect(),
                coordinator_missing: found.coordinator_missing,
            })
        })
    }

    fn entities(&self, request: v1::ShardEntitiesRequest) -> Answering<v1::ShardEntitiesReply> {
        let own = self.0.remoting().self_address().clone();
        with_inspector(self.inspect(&request.entity_type), move |inspector| async move {
            let from = request.from.map(position).transpose()?;
            let limit = timeout(request.timeout_ms);
            let region = match request.region.as_str() {
                "" => own,
                named => region_at(&inspector, named, limit).await?,
            };
            let found = inspector.entities_of(&region, from, limit).await;
            let found = found.ok_or_else(|| ShardsError::Silent(region.to_string()))?;
            Ok(entities(&region, found))
        })
    }

    fn location(&self, request: v1::EntityLocationRequest) -> Answering<v1::EntityLocationReply> {
        with_inspector(self.inspect(&request.entity_type), move |inspector| async move {
            let found = inspector.entity_location(&request.entity);
            let found = found.map_err(|reason| {
                ShardsError::Nonsense(format!("{:?} is not an entity id: {reason}", request.entity))
            })?;
            let region = found.region.map(|region| region.node.to_string()).unwrap_or_default();
            Ok(v1::EntityLocationReply { shard: found.shard.to_string(), region })
        })
    }
}

/// The region of the type at an address, or of one incarnation there.
async fn region_at(inspector: &Inspector, named: &str, limit: Duration) -> Result<UniqueAddress, ShardsError> {
    let nonsense = |error: greylag_core::InvalidAddress| ShardsError::Nonsense(error.to_string());
    if named.contains('#') {
        return named.parse().map_err(nonsense);
    }
    let address: NodeAddress = named.parse().map_err(nonsense)?;
    let regions = inspector.current_regions(limit).await.addresses;
    // Of two incarnations the later one is alive.
    let found = regions.into_iter().rfind(|region| *region.address() == address);
    found.ok_or_else(|| ShardsError::NoRegion(named.to_owned()))
}

fn position(position: v1::EntityPosition) -> Result<Position, ShardsError> {
    let v1::EntityPosition { shard, after } = position;
    let invalid = |what: &str, text: &str| ShardsError::Nonsense(format!("{text:?} is not a valid {what} id"));
    let id = |after: String| EntityId::new(after.as_str()).map_err(|_| invalid("entity", &after));
    let after = Some(after).filter(|after| !after.is_empty()).map(id).transpose()?;
    let shard = ShardId::new(shard.as_str()).map_err(|_| invalid("shard", &shard))?;
    Ok(Position { shard, after })
}

fn counts(counts: EntityCounts) -> v1::EntityCounts {
    let EntityCounts { active, passivating, remembered_not_started, waiting_restart } = counts;
    v1::EntityCounts { active, passivating, remembered_not_started, waiting_restart }
}

fn region_stats(region: &UniqueAddress, stats: &RegionStats) -> v1::RegionStats {
    let shards = stats
        .shards
        .iter()
        .map(|(shard, found)| v1::ShardCounts { shard: shard.to_string(), entities: Some(counts(*found)) });
    v1::RegionStats {
        region: region.to_string(),
        shards: shards.collect(),
        failed: stats.failed.iter().map(ToString::to_string).collect(),
    }
}

fn entities(region: &UniqueAddress, found: RegionEntities) -> v1::ShardEntitiesReply {
    let shards = found.shards.iter().map(|(shard, ids)| v1::ShardEntities {
        shard: shard.to_string(),
        entities: ids.iter().map(ToString::to_string).collect(),
    });
    let next = found.next.map(|Position { shard, after }| v1::EntityPosition {
        shard: shard.to_string(),
        after: after.map(|after| after.to_string()).unwrap_or_default(),
    });
    v1::ShardEntitiesReply {
        region: region.to_string(),
        shards: shards.collect(),
        failed: found.failed.iter().map(ToString::to_string).collect(),
        next,
    }
}
