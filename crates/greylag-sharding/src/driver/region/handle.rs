//! The user's handle of one entity type on one node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::{DeadLetterReason, ReplyAddress, ReplyPort, UniqueAddress};

use crate::driver::metrics::handlers::HandlerCounts;
use crate::driver::metrics::region::RegionMetrics;
use crate::driver::questions::inspect::Inspector;
use crate::driver::questions::stopping::StoppingShards;
use crate::driver::region::event::RegionEvents;
use crate::driver::region::shared::{Asked, RegionInner};
use crate::entity_ref::{Answer, AskError, SendError};
use crate::host::DirectRef;
use crate::ids::{EntityId, EntityTypeName, RegionId, ShardId};
use crate::machine::region::{Counters, Input, RegionState, Request};
use crate::parcel::Parcel;
use crate::routes::{Open, RouteCell};
use crate::start::StartEntityAck;

/// One entity type on this node. Clones are the same region; dropping the last clone does not stop it.
pub struct Region<M>(pub(crate) Arc<RegionInner<M>>);

impl<M> Clone for Region<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Handles of one region are equal; handles of a stopped region and of its successor are not.
impl<M> PartialEq for Region<M> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<M> Eq for Region<M> {}

impl<M: Send + 'static> Region<M> {
    /// The entity id and the number of its shard, unless the id is invalid.
    pub(crate) fn target(&self, id: impl Into<Arc<str>>) -> Result<(EntityId, u32), DeadLetterReason> {
        self.0.shards.target(id)
    }

    /// The timeout of an ask without its own.
    pub(crate) fn ask_timeout(&self) -> Duration {
        self.0.settings.ask_timeout
    }

    /// Starts an entity, or finds it running, wherever its shard lives: completes once the entity runs and has handled
    /// the messages sent to it before, at the latest after the type's ask timeout. A type that remembers its entities
    /// remembers this entity from then on. The request is sent before this method returns, whether or not the future is
    /// awaited.
    ///
    /// The shard in the ack is the one in which the entity lives: it differs from the shard by this node's extractor if
    /// nodes disagree. Source: sharding §4.7.
    ///
    /// # Errors
    /// [`AskError`]: the outcome is unknown, unless the variant says otherwise; the call may be repeated.
    pub fn start_entity(&self, id: impl Into<Arc<str>>) -> Answer<StartEntityAck> {
        let id = id.into();
        let begun = self.0.begin_start(id.clone(), self.ask_timeout());
        let (entity_type, node) = (self.name().to_string(), self.id().node.clone());
        Box::pin(async move {
            let request = "StartEntity";
            let asked = |timeout| AskError::Timeout {
                entity_type,
                entity: id.to_string(),
                message_type: request.to_owned(),
                timeout,
            };
            let answer = begun?.await.map_err(|error| AskError::of_transport(error, asked, request))?;
            answer.downcast::<StartEntityAck>().map(|ack| *ack).map_err(|_| AskError::Codec {
                type_name: std::any::type_name::<StartEntityAck>().to_owned(),
                node,
                cause: "the answer is of another type".to_owned(),
            })
        })
    }

    /// The id of this region.
    pub fn id(&self) -> &RegionId {
        &self.0.id
    }

    /// The stage of the region's life.
    pub fn state(&self) -> RegionState {
        self.0.state()
    }

    /// Counts of the messages that did not take the direct way past the region's machine.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// Counts of the handlers of the type's entities on this node.
    pub fn handler_counts(&self) -> HandlerCounts {
        self.0.counts.handled.counts()
    }

    /// The shard of an entity; `None` if the id is invalid.
    pub fn shard_of(&self, id: &str) -> Option<ShardId> {
        let (_, shard) = self.0.shards.target(id).ok()?;
        self.0.shards.name(shard)
    }

    /// Whether messages for the shard have a route from here now. Source: sharding §2.4.
    pub fn is_routed(&self, shard: &ShardId) -> bool {
        self.0.shards.cell(shard).is_some_and(RouteCell::is_open)
    }

    /// How many shards each node hosts, as far as this node has routes.
    pub fn shard_homes(&self) -> BTreeMap<UniqueAddress, usize> {
        let mut homes = BTreeMap::new();
        for cell in self.0.shards.routes.iter() {
            let node = match cell.load().as_deref() {
                None => continue,
                Some(Open::Local(_)) => self.0.id.node.clone(),
                Some(Open::Remote(remote)) => remote.home.region.node.clone(),
            };
            *homes.entry(node).or_default() += 1;
        }
        homes
    }

    /// The node of a shard, if this node has a route to it.
    pub fn shard_home(&self, shard: &ShardId) -> Option<UniqueAddress> {
        match self.0.shards.cell(shard)?.load().as_deref()? {
            Open::Local(_) => Some(self.0.id.node.clone()),
            Open::Remote(remote) => Some(remote.home.region.node.clone()),
        }
    }

    /// Whether messages for the shard are handed over within this process now: the shard is hosted here, as far as this
    /// node has a route, and messages are not serialized for a test (`runtime.serialize_messages` of
    /// [`ShardingSettings`](crate::ShardingSettings)).
    pub fn hands_over(&self, shard: &ShardId) -> bool {
        let is_local = |cell: &RouteCell<_>| matches!(cell.load().as_deref(), Some(Open::Local(_)));
        !self.0.settings.runtime.serialize_messages && self.0.shards.cell(shard).is_some_and(is_local)
    }

    /// Sets how many entities of this region stay active; entities beyond the limit end at once, by the type's policy.
    /// Does nothing for a type that has no limit: see [`Passivation`](crate::Passivation). Source: sharding §4.10.
    pub fn set_active_entity_limit(&self, limit: usize) {
        self.0.set_limit(limit.max(1));
    }

    /// Subscribes to the region's events from now on.
    pub fn subscribe(&self) -> RegionEvents {
        RegionEvents(self.0.events.subscribe())
    }

    /// Sends a message to the entity that the message itself names, by the type's
    /// [`EntityType::addressed_by`](crate::EntityType::addressed_by).
    ///
    /// # Errors
    /// [`SendError`]: the message was not taken. [`DeadLetterReason::ExtractorRejected`] if the message names no
    /// entity, or the type has no such function; [`DeadLetterReason::ExtractorPanicked`] if the function panics.
    pub fn send(&self, message: M) -> Result<(), SendError> {
        self.0.send_by_content(message)
    }

    /// Drops a message to an id that no entity can have.
    pub(crate) fn drop_unaddressed(&self, message: M, reason: DeadLetterReason) -> SendError {
        self.0.drop_unaddressed(message, reason)
    }

    /// Sends a message to one incarnation of an entity, wherever its node is. The message skips routing and starts no
    /// entity. Source: sharding §4.11.
    ///
    /// # Errors
    /// [`SendError`]: the message was not taken. Only the incarnation's own node knows that it has ended.
    pub fn tell_direct(&self, to: &DirectRef, message: M) -> Result<(), SendError> {
        self.0.send_direct(to, message)
    }

    /// Hands every shard over to other regions, then stops. Completes when that is done; may be called repeatedly.
    /// Source: sharding §2.11.
    pub async fn graceful_shutdown(&self) {
        self.0.input(Input::GracefulShutdown);
        self.0.task.stopped().await;
    }

    /// Counters and gauges of this region. Source: sharding §6.5.
    pub fn metrics(&self) -> RegionMetrics {
        self.0.metrics()
    }

    /// Inspects the type: its regions, the contents of their shards, the shard of an entity. Source: sharding §6.1.
    pub fn inspect(&self) -> Inspector {
        Inspector::new(Arc::new(self.clone()))
    }

    /// Stops this region at once, without handing anything over: its shards are killed, so that entities get neither
    /// their stop message nor `PostStop`, and waiting messages become dead letters. Other regions host the shards once
    /// the coordinator knows. Completes when no entity lives here any more; may be called repeatedly. Source: sharding
    /// §2.11.
    pub async fn stop(&self) {
        self.0.input(Input::Stop);
        self.0.task.stopped().await;
    }

    /// Stops shards of this type, wherever they run: their entities are asked to stop as in a handoff. A stopped shard
    /// gets a new home with the next message to it, and not before. A shard without a home counts as stopped.
    ///
    /// The returned value yields each shard as it stops, for `handoff_timeout` at most. Shards go on stopping if it is
    /// dropped.
    ///
    /// ```
    /// # use greylag_sharding::{Region, StopShardsError};
    /// # use greylag_sharding::ids::ShardId;
    /// # async fn stop<M: Send + 'static>(region: Region<M>) -> Result<(), StopShardsError> {
    /// region.stop_shards([ShardId::from_index(3), ShardId::from_index(4)]).all().await
    /// # }
    /// ```
    /// Source: sharding §2.11.
    pub fn stop_shards(&self, shards: impl IntoIterator<Item = ShardId>) -> StoppingShards {
        let shards: BTreeSet<_> = shards.into_iter().collect();
        let request = Request::StopShards(shards.clone());
        StoppingShards::new(shards, self.0.request(request, self.0.settings.handoff_timeout))
    }

    pub(crate) fn tell(&self, shard: u32, id: EntityId, message: M) -> Result<(), SendError> {
        self.0.send(shard, Parcel::local(id, message, None))
    }

    pub(crate) fn begin_ask(
        &self,
        shard: u32,
        id: EntityId,
        message: impl FnOnce(ReplyAddress, Arc<dyn ReplyPort>) -> M,
        timeout: Duration,
    ) -> Result<Asked, AskError> {
        self.0.begin_ask(shard, id, message, timeout)
    }
}

impl<M> Region<M> {
    /// The entity type's name.
    pub fn name(&self) -> &EntityTypeName {
        &self.0.name
    }
}

impl<M> fmt::Debug for Region<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("name", &self.0.name).field("id", &self.0.id).finish_non_exhaustive()
    }
}
