//! What the log says of a region's events: the levels and the advice of sharding §2.3 and §2.5.

use crate::ids::EntityTypeName;
use crate::machine::region::RegionEvent;
use crate::settings::ShardingSettings;

/// Writes one event of a region to the log.
pub(super) fn log(name: &EntityTypeName, settings: &ShardingSettings, event: &RegionEvent) {
    match event {
        RegionEvent::NoHost { role } => {
            let for_s = settings.no_host_timeout.as_secs();
            tracing::warn!(
                entity_type = %name, role, for_s,
                "no member has the role that hosts this entity type; messages end as dead letters (NoHost) until one has"
            );
        }
        RegionEvent::Refused(mismatch) => tracing::error!(
            entity_type = %name, %mismatch,
            "nodes disagree about this entity type; everything sent to it from here is refused until they agree"
        ),
        RegionEvent::Disputed(mismatch) => tracing::error!(
            entity_type = %name, %mismatch,
            "two sides of the cluster host this entity type, and an entity may live on both; stop one of them"
        ),
        RegionEvent::StillUnregistered { buffered, candidates, obstacle } => tracing::warn!(
            entity_type = %name, buffered, ?candidates, %obstacle,
            "messages wait, and no coordinator has registered this region yet"
        ),
        RegionEvent::BufferFull { buffered } => tracing::warn!(
            entity_type = %name, buffered,
            "the buffer is full, and messages are dropped (BufferFull); does the coordinator of this type run?"
        ),
        RegionEvent::BufferFill { percent: percent @ 0..=50 } => {
            tracing::info!(entity_type = %name, percent, "messages wait for homes of shards");
        }
        RegionEvent::BufferFill { percent } => tracing::warn!(
            entity_type = %name, percent,
            "more than half of the buffer waits for homes of shards; does the coordinator of this type run?"
        ),
        event => tracing::debug!(entity_type = %name, ?event, "region"),
    }
}
