//! The events of an entity type on one node, for subscribers.

use std::time::Duration;

use greylag_cluster::LeaseOutcome;
use greylag_core::{DeadLetterReason, Manifest, UniqueAddress};
use greylag_transport::SendError;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::entity::{FailureCause, Verdict};
use crate::host::Fenced;
use crate::ids::{EntityId, EntityTypeName, ShardId};
use crate::machine::coordinator::CoordinatorEvent;
use crate::machine::region::RegionEvent;
use crate::machine::shard::InvalidTransition;
use crate::settings::ShardingSettings;

/// An event of an entity type on this node. Source: sharding §6.5.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An event of the region, such as `ShardMoved` and `ShardRegionDown`.
    Region(RegionEvent),
    /// Messages for the shard have a route from here now, or no longer. Delivery slows its repeats while there is no
    /// route. Source: sharding §2.4.
    RouteChanged {
        /// Which shard.
        shard: ShardId,
        /// Whether there is a route.
        routed: bool,
    },
    /// A shard runs here now.
    ShardStarted(ShardId),
    /// A shard has ended here.
    ShardStopped(ShardId),
    /// A shard has failed here, by a failure that its entity's supervision escalates, a lost lease or a bug. Its
    /// entities have ended; it starts again, and messages wait for it. Source: sharding §4.12.
    ShardFailed(ShardId),
    /// An event of the coordinator, on the node where it runs.
    Coordinator(CoordinatorEvent),
    /// A message was dropped on this node. At most a hundred per second are reported here; all are counted in
    /// [`RegionMetrics::dead_letters`](crate::RegionMetrics::dead_letters).
    DeadLetter {
        /// Why.
        reason: DeadLetterReason,
        /// The shard of the entity, if it has one.
        shard: Option<ShardId>,
        /// The entity that it was for.
        entity: EntityId,
        /// The manifest of the message; empty if no codec names it, and for a message that was dropped because its
        /// entity did not start.
        message: Manifest,
    },
    /// A message named no entity, or the function that reads the name panicked; the message was dropped. Counted and limited
    /// as [`Event::DeadLetter`]. Source: sharding §1.3.
    Unaddressed {
        /// `ExtractorRejected` or `ExtractorPanicked`; the reason of an id that no shard takes.
        reason: DeadLetterReason,
        /// The manifest of the message; empty where no codec names it.
        message: Manifest,
    },
    /// An entity failed, with its supervision's verdict.
    EntityFailed {
        /// The entity.
        entity: EntityId,
        /// How it failed.
        cause: FailureCause,
        /// What becomes of the entity.
        verdict: Verdict,
    },
    /// An entity ended because the journal knows a newer owner.
    EntityFenced {
        /// The entity.
        entity: EntityId,
        /// The owner or writer that the journal knows.
        fenced: Fenced,
    },
    /// A message reached a shard for an entity that the extractor places elsewhere; it was dropped as `WrongShard`. One
    /// id must have one shard, always and on every node. Source: sharding §8.
    EntityMisplaced {
        /// The shard that got the message.
        shard: ShardId,
        /// The entity that it was for.
        entity: EntityId,
    },
    /// An entity has been suspended for `suspend_warn_after`; reported once for each suspension.
    /// Source: sharding §4.3.
    EntitySuspended {
        /// The entity.
        entity: EntityId,
        /// For how long.
        after: Duration,
    },
    /// An entity has not stopped on its stop request yet. For a shard that stops, one of the entities that are left.
    /// Source: sharding §4.5.
    StopIgnored {
        /// The entity.
        entity: EntityId,
        /// For how long.
        after: Duration,
    },
    /// A shard waits for its lease: another owner holds it, or the outcome of the request is unknown. The request is
    /// repeated after `lease_retry_interval`; messages wait meanwhile. Source: sharding §4.12.
    LeaseRefused {
        /// Which shard.
        shard: ShardId,
        /// The outcome of the request.
        outcome: LeaseOutcome,
    },
    /// A shard has lost its lease: its entities ended at once, and it starts again once it holds the lease anew.
    /// Source: sharding §4.12.
    LeaseLost {
        /// Which shard.
        shard: ShardId,
        /// The provider's reason.
        cause: String,
    },
    /// A handler of the shard has not returned for `stuck_handler_threshold`: no other entity of the shard is served,
    /// and the shard cannot stop. Reported once for each handler. Source: sharding §2.10.
    ShardStuck {
        /// Which shard.
        shard: ShardId,
        /// How long the handler has run.
        running_for: Duration,
    },
    /// A request to the store of a shard's remembered entities failed, so the shard fails and starts again; or the
    /// answer is late, and the shard waits for it.
    RememberStoreFailed {
        /// Which shard.
        shard: ShardId,
        /// The store's error, or which answer is late.
        reason: String,
    },
    /// A shard remembers so many entities that a journal would be a better store for them than replicated data.
    ManyRemembered {
        /// Which shard.
        shard: ShardId,
        /// Number of remembered entities.
        entities: usize,
    },
    /// A remembered entity has failed to start so often that its shard does not start it again by itself.
    EntityGivenUp {
        /// The entity.
        entity: EntityId,
        /// Starts in a row that failed.
        failures: u32,
        /// Whether the entity is forgotten too.
        forgotten: bool,
    },
    /// A bug of the runtime: a remembered entity was to change its state against the rules.
    InvalidEntityState(InvalidTransition),
    /// The transport refused a control message. The message is repeated by a deadline; until then shards may wait for
    /// it.
    /// Source: sharding scenario 98.
    ControlRefused {
        /// The receiving node.
        to: UniqueAddress,
        /// The kind of message.
        message: &'static str,
        /// The reason of the refusal.
        error: SendError,
    },
    /// The subscriber was too slow, and has lost events.
    Lagged {
        /// Number of lost events.
        missed: u64,
    },
}

/// Writes one event of a region to the log, with the levels and the advice of sharding §2.3 and §2.5.
pub(in crate::driver) fn log(name: &EntityTypeName, settings: &ShardingSettings, event: &RegionEvent) {
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

/// A subscription to events, which ends on drop.
#[derive(Debug)]
pub struct RegionEvents(pub(crate) broadcast::Receiver<Event>);

impl RegionEvents {
    /// The next event; `None` once the region is gone.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(missed)) => Some(Event::Lagged { missed }),
            Err(RecvError::Closed) => None,
        }
    }
}
