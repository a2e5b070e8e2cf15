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

/// Something that happened to an entity type on this node. Source: sharding §6.5.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// What the region learned or decided, such as `ShardMoved` and `ShardRegionDown`.
    Region(RegionEvent),
    /// Messages for the shard have a route from here now, or lost it. Delivery slows its repeats
    /// while they have none. Source: sharding §2.4.
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
    /// A shard has failed here, by a failure that its entity's supervision escalates, a lost lease or a bug. Its entities
    /// have ended; it starts again, and messages wait for it. Source: sharding §4.12.
    ShardFailed(ShardId),
    /// What the coordinator decided or met, on the node where it runs.
    Coordinator(CoordinatorEvent),
    /// A message was dropped on this node. Of a flood a hundred are told in a second; all are counted in
    /// [`RegionMetrics::dead_letters`](crate::RegionMetrics::dead_letters).
    DeadLetter {
        /// Why.
        reason: DeadLetterReason,
        /// Where it belonged, unless its entity has none.
        shard: Option<ShardId>,
        /// The entity that it was for.
        entity: EntityId,
        /// The manifest of the message; empty where no codec names it, and for a message that was dropped because its entity
        /// did not start.
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
    /// An entity failed, and its supervision has decided what follows.
    EntityFailed {
        /// Which one.
        entity: EntityId,
        /// How it failed.
        cause: FailureCause,
        /// What follows.
        verdict: Verdict,
    },
    /// An entity ended because the journal knows a newer owner.
    EntityFenced {
        /// Which one.
        entity: EntityId,
        /// What the journal knows.
        fenced: Fenced,
    },
    /// A message reached a shard for an entity that the extractor places elsewhere; it was dropped as `WrongShard`. One id must
    /// have one shard, always and on every node. Source: sharding §8.
    EntityMisplaced {
        /// The shard that got the message.
        shard: ShardId,
        /// The entity that it was for.
        entity: EntityId,
    },
    /// An entity has been suspended for `suspend_warn_after`; it is told once for each suspension.
    /// Source: sharding §4.3.
    EntitySuspended {
        /// Which one.
        entity: EntityId,
        /// For how long.
        after: Duration,
    },
    /// An entity has not stopped on its stop request yet. Of a shard that stops, one of those that are left.
    /// Source: sharding §4.5.
    StopIgnored {
        /// Which one.
        entity: EntityId,
        /// For how long.
        after: Duration,
    },
    /// A shard waits for its lease: another owner holds it, or it is unknown whether it was granted. It is asked for again
    /// after `lease_retry_interval`; messages wait meanwhile. Source: sharding §4.12.
    LeaseRefused {
        /// Which shard.
        shard: ShardId,
        /// What became of the request.
        outcome: LeaseOutcome,
    },
    /// A shard has lost its lease: its entities ended at once, and it starts again once it holds the lease anew.
    /// Source: sharding §4.12.
    LeaseLost {
        /// Which shard.
        shard: ShardId,
        /// Why, in the provider's words.
        cause: String,
    },
    /// A handler of the shard has not returned for `stuck_handler_threshold`: no other entity of the shard is served, and the
    /// shard cannot stop. It is told once for each handler. Source: sharding §2.10.
    ShardStuck {
        /// Which shard.
        shard: ShardId,
        /// How long the handler has run.
        running_for: Duration,
    },
    /// The store of a shard's remembered entities did not do what it was asked for: the shard fails and starts again, or it
    /// waits for an answer that is late.
    RememberStoreFailed {
        /// Which shard.
        shard: ShardId,
        /// What the store said, or what it did not say.
        reason: String,
    },
    /// A shard remembers so many entities that a journal is the better store for them than replicated data.
    ManyRemembered {
        /// Which shard.
        shard: ShardId,
        /// How many.
        entities: usize,
    },
    /// A remembered entity has failed to start so often that its shard does not start it again by itself.
    EntityGivenUp {
        /// Which one.
        entity: EntityId,
        /// Starts in a row that failed.
        failures: u32,
        /// It is not remembered any more either.
        forgotten: bool,
    },
    /// A bug of the runtime: a remembered entity was to go to a state that no rule allows.
    InvalidEntityState(InvalidTransition),
    /// The transport did not take a control message. It is said again by a deadline; until then shards may wait for it.
    /// Source: sharding scenario 98.
    ControlRefused {
        /// The node that it was for.
        to: UniqueAddress,
        /// Its kind.
        message: &'static str,
        /// Why it was not taken.
        error: SendError,
    },
    /// The subscriber was too slow: so many events are lost to it.
    Lagged {
        /// How many.
        missed: u64,
    },
}

/// Writes one event of a region to the log, with the levels and the advice of sharding §2.3 and §2.5.
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

/// A subscription. Dropping it ends it.
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
