//! A region as a producer uses it, with the entity's second message type forgotten.

use std::sync::Arc;

use greylag_core::DeadLetterReason;
use greylag_sharding::ids::{EntityId, ShardId};
use greylag_sharding::{DirectRef, Event, Region, RegionEvent, RegionEvents};

use crate::ids::ControllerRef;
use crate::message::{ProducerStopped, SequencedBatch};
use crate::payload::Payload;
use crate::with_delivery::{ProtocolMessage, WithDelivery};

/// The region of an entity type under delivery.
pub(super) trait Downstream<T>: Send + Sync {
    /// The shard of an entity, or why there can be none.
    fn shard_of(&self, entity: &str) -> Result<Arc<str>, DeadLetterReason>;
    /// Sends frames towards an entity; the protocol repeats those that are not taken.
    fn send(&self, entity: Arc<str>, batch: SequencedBatch<Payload<T>>);
    /// Tells one consumer controller that its link has ended.
    fn stopped(&self, to: &ControllerRef, message: ProducerStopped);
    /// Whether messages for the shard leave now.
    fn is_routed(&self, shard: &str) -> bool;
    /// What the region learns from now on.
    fn subscribe(&self) -> RegionEvents;
}

impl<T: Send + Sync + 'static, Q: Send + 'static> Downstream<T> for Region<WithDelivery<T, Q>> {
    fn shard_of(&self, entity: &str) -> Result<Arc<str>, DeadLetterReason> {
        EntityId::new(entity)?;
        let shard = Region::shard_of(self, entity).ok_or(DeadLetterReason::ExtractorRejected)?;
        Ok(shard.shared().clone())
    }

    fn send(&self, entity: Arc<str>, batch: SequencedBatch<Payload<T>>) {
        let batch = WithDelivery::protocol(ProtocolMessage::Batch(batch));
        if let Err(error) = self.entity_ref(entity).tell(batch) {
            tracing::debug!(%error, "frames were not taken; they come again");
        }
    }

    fn stopped(&self, to: &ControllerRef, message: ProducerStopped) {
        let to = DirectRef { node: to.node.clone(), path: to.path.clone(), instance: to.instance };
        // Best effort: the consumer finds out by itself after a while.
        self.tell_direct(&to, WithDelivery::protocol(ProtocolMessage::Stopped(message))).ok();
    }

    fn is_routed(&self, shard: &str) -> bool {
        ShardId::new(shard).is_ok_and(|shard| Region::is_routed(self, &shard))
    }

    fn subscribe(&self) -> RegionEvents {
        Region::subscribe(self)
    }
}

/// What a region's event means for links.
pub(super) enum RouteNews {
    /// The entities of this shard have a new home.
    Moved(Arc<str>),
    /// Messages for this shard leave now, or no longer.
    Routed(Arc<str>, bool),
    /// Any shard without a route may have lost its home.
    LookAtUnrouted,
    /// Events were lost; every route is to be looked at anew.
    LookAtAll,
}

pub(super) fn news(event: Event) -> Option<RouteNews> {
    match event {
        Event::Region(RegionEvent::ShardMoved { shard, .. }) => Some(RouteNews::Moved(shard.shared().clone())),
        Event::Region(RegionEvent::ShardRegionDown { .. }) => Some(RouteNews::LookAtUnrouted),
        Event::RouteChanged { shard, routed } => Some(RouteNews::Routed(shard.shared().clone(), routed)),
        Event::Lagged { .. } => Some(RouteNews::LookAtAll),
        _ => None,
    }
}
