//! A region as a producer uses it, with the type of bypass messages erased.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;
use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_sharding::ids::{EntityId, ShardId};
use greylag_sharding::{DirectRef, Event, Region, RegionEvent, SendError};

use crate::delivery::payload::Payload;
use crate::delivery::with_delivery::{ProtocolMessage, WithDelivery};
use crate::ids::ControllerRef;
use crate::message::{ProducerStopped, SequencedBatch};

/// The region of an entity type under delivery.
pub(super) trait Downstream<T>: Send + Sync {
    /// The shard of an entity, or why the id is invalid.
    fn shard_of(&self, entity: &str) -> Result<Arc<str>, DeadLetterReason>;
    /// Sends frames to an entity.
    ///
    /// # Errors
    /// [`SendRefusal`]: the frames were dropped.
    fn send(&self, entity: Arc<str>, batch: SequencedBatch<Payload<T>>) -> Result<(), SendRefusal>;
    /// Tells a consumer controller that its link has ended.
    fn stopped(&self, to: &ControllerRef, message: ProducerStopped);
    /// The present home of the shard; `None` if its messages wait for a route.
    fn home_of(&self, shard: &Arc<str>) -> Option<Home>;
    /// Subscribes to route changes and drops of the region.
    fn route_events(&self) -> BoxStream<'static, RouteEvent>;
}

/// The home of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Home {
    /// The node of the shard's entities.
    pub(crate) node: UniqueAddress,
    /// Whether messages are handed over within this process, and need no encoding.
    pub(crate) hands_over: bool,
}

/// Why the region refused frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendRefusal {
    /// The lane or an inbox is full; room will be free soon.
    NoRoom,
    /// The region's buffer has no room for messages without a route.
    NotBuffered,
    /// Another reason; the protocol repeats the frames at its own intervals.
    Otherwise,
}

impl<T: Send + Sync + 'static, Q: Send + 'static> Downstream<T> for Region<WithDelivery<T, Q>> {
    fn shard_of(&self, entity: &str) -> Result<Arc<str>, DeadLetterReason> {
        EntityId::new(entity)?;
        let shard = Region::shard_of(self, entity).ok_or(DeadLetterReason::ExtractorRejected)?;
        Ok(shard.shared().clone())
    }

    fn send(&self, entity: Arc<str>, batch: SequencedBatch<Payload<T>>) -> Result<(), SendRefusal> {
        let batch = WithDelivery::protocol(ProtocolMessage::Batch(batch));
        self.entity_ref(entity).tell(batch).map_err(send_refusal)
    }

    fn stopped(&self, to: &ControllerRef, message: ProducerStopped) {
        let to = DirectRef { node: to.node.clone(), path: to.path.clone(), instance: to.instance };
        // Best effort: without the message, the consumer notices the end of the link after a while.
        self.tell_direct(&to, WithDelivery::protocol(ProtocolMessage::Stopped(message))).ok();
    }

    fn home_of(&self, shard: &Arc<str>) -> Option<Home> {
        let shard = ShardId::new(shard.clone()).ok()?;
        let node = self.shard_home(&shard)?;
        // The route may change between the two calls; an event follows.
        Some(Home { node, hands_over: self.hands_over(&shard) })
    }

    fn route_events(&self) -> BoxStream<'static, RouteEvent> {
        let events = futures::stream::unfold(self.subscribe(), async |mut events| {
            let event = events.next().await?;
            Some((event, events))
        });
        events.filter_map(|event| std::future::ready(route_event(event))).boxed()
    }
}

/// Translates a refusal of the region.
fn send_refusal(error: SendError) -> SendRefusal {
    match error {
        SendError::QueueFull | SendError::ShardInboxFull => SendRefusal::NoRoom,
        SendError::BufferFull => SendRefusal::NotBuffered,
        error => {
            tracing::debug!(%error, "frames refused; the protocol will resend them");
            SendRefusal::Otherwise
        }
    }
}

/// An event of the region, translated for links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RouteEvent {
    /// The shard has a new home.
    Moved(Arc<str>),
    /// The shard now has (`true`) or has no longer (`false`) a route.
    Routed(Arc<str>, bool),
    /// Any shard without a route may have lost its home: look up these shards.
    RefreshUnrouted,
    /// The region dropped a message for this entity.
    Dropped(Arc<str>),
    /// The region may have dropped any message that waited for a route.
    DroppedMany,
    /// Events were lost: look up every route.
    RefreshAll,
}

fn route_event(event: Event) -> Option<RouteEvent> {
    match event {
        Event::Region(RegionEvent::ShardMoved { shard, .. }) => Some(RouteEvent::Moved(shard.shared().clone())),
        Event::Region(RegionEvent::ShardRegionDown { .. }) => Some(RouteEvent::RefreshUnrouted),
        Event::Region(RegionEvent::NoHost { .. } | RegionEvent::HostFound) => Some(RouteEvent::DroppedMany),
        Event::RouteChanged { shard, routed } => Some(RouteEvent::Routed(shard.shared().clone(), routed)),
        Event::DeadLetter { entity, .. } => Some(RouteEvent::Dropped(entity.as_str().into())),
        Event::Lagged { .. } => Some(RouteEvent::RefreshAll),
        _ => None,
    }
}

/// The known homes of the shards to which a producer sends, to detect changes after lost events.
#[derive(Debug, Default)]
pub(super) struct KnownShardHomes(BTreeMap<Arc<str>, Option<UniqueAddress>>);

impl KnownShardHomes {
    /// Adds a shard to which a message goes. Returns whether the shard is new, so that its home must be looked up.
    pub(super) fn add_if_new(&mut self, shard: &Arc<str>) -> bool {
        let is_new = !self.0.contains_key(shard);
        if is_new {
            self.0.insert(shard.clone(), None);
        }
        is_new
    }

    /// Sets the home of a known shard. Returns whether the home differs from the last known one; a shard without a home
    /// counts as moved only when it gets a new one.
    pub(super) fn note(&mut self, shard: &str, home: UniqueAddress) -> bool {
        let Some(known) = self.0.get_mut(shard) else { return false };
        known.replace(home.clone()).is_some_and(|former| former != home)
    }

    /// The known shards, after forgetting those without links.
    pub(super) fn retain<'a>(&mut self, with_links: impl Iterator<Item = &'a Arc<str>>) -> Vec<Arc<str>> {
        let with_links: std::collections::BTreeSet<&Arc<str>> = with_links.collect();
        self.0.retain(|shard, _| with_links.contains(shard));
        self.0.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use greylag_core::Manifest;
    use greylag_sharding::ids::RegionId;

    use super::*;

    /// Delivery S7, 93, 97: events of the region about routes, dropped messages and lost events.
    #[test]
    fn relevant_region_events_become_route_events() {
        let (entity, shard) = (EntityId::new("e").unwrap(), ShardId::new("s").unwrap());
        let region = RegionId { node: "a:1#1".parse().unwrap(), incarnation: 1 };
        let (from, to) = (region.clone(), RegionId { incarnation: 2, ..region.clone() });
        let of_region = |event| route_event(Event::Region(event));
        let moved = of_region(RegionEvent::ShardMoved { shard: shard.clone(), from, to });
        assert_eq!(moved, Some(RouteEvent::Moved("s".into())));
        assert_eq!(of_region(RegionEvent::ShardRegionDown { region }), Some(RouteEvent::RefreshUnrouted));
        assert_eq!(of_region(RegionEvent::NoHost { role: String::new() }), Some(RouteEvent::DroppedMany));
        assert_eq!(of_region(RegionEvent::HostFound), Some(RouteEvent::DroppedMany));
        for routed in [true, false] {
            let changed = route_event(Event::RouteChanged { shard: shard.clone(), routed });
            assert_eq!(changed, Some(RouteEvent::Routed("s".into(), routed)));
        }
        let reason = DeadLetterReason::BufferFull;
        let dropped = Event::DeadLetter { reason, shard: Some(shard.clone()), entity, message: Manifest::default() };
        assert_eq!(route_event(dropped), Some(RouteEvent::Dropped("e".into())));
        assert_eq!(route_event(Event::Lagged { missed: 1 }), Some(RouteEvent::RefreshAll));
        assert_eq!(route_event(Event::ShardStarted(shard)), None);
    }

    /// delivery 94: frames refused by a full lane or inbox are retried soon, by a full buffer when there is a home.
    #[test]
    fn temporary_send_refusals_are_distinguished() {
        for (error, not) in [
            (SendError::QueueFull, SendRefusal::NoRoom),
            (SendError::ShardInboxFull, SendRefusal::NoRoom),
            (SendError::BufferFull, SendRefusal::NotBuffered),
            (SendError::Refused, SendRefusal::Otherwise),
        ] {
            assert_eq!(send_refusal(error), not);
        }
    }

    #[test]
    fn a_shard_has_moved_when_its_home_is_another_one() {
        let (a, b): (UniqueAddress, UniqueAddress) = ("a:1#1".parse().unwrap(), "b:1#1".parse().unwrap());
        let (s, t): (Arc<str>, Arc<str>) = ("s".into(), "t".into());
        let mut homes = KnownShardHomes::default();
        assert!(homes.add_if_new(&s));
        assert!(!homes.add_if_new(&s), "it is known");
        assert!(homes.add_if_new(&t));
        assert!(!homes.note("s", a.clone()), "its first home");
        assert!(!homes.note("s", a), "it came back to where it was");
        assert!(homes.note("s", b.clone()));
        assert!(!homes.note("unknown", b));
        assert_eq!(homes.retain(std::iter::once(&s)), vec![s]);
        assert!(homes.add_if_new(&t), "it was forgotten");
    }
}
