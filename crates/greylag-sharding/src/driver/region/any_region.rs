//! A region of any type of message, as coordinators, inspections and the node's list of types use it.

use std::time::Duration;

use greylag_core::{DeadLetterReason, UniqueAddress};
use greylag_transport::Envelope;
use tokio::sync::oneshot;

use crate::driver::questions::inquiries::Inquiries;
use crate::driver::questions::requests::Answers;
use crate::driver::region::event::Event;
use crate::ids::{EntityTypeName, RegionId, ShardId};
use crate::inspection::{EntityLocation, InspectionMessage};
use crate::machine::region::{Input, RegionState, Request};
use crate::machine::shard::EntityScan;
use crate::settings::ShardingSettings;

/// A region with its message type erased.
pub(crate) trait AnyRegion: Send + Sync {
    /// Passes an input to the machine.
    fn tell(&self, input: Input);
    /// Passes a member's message of `bytes` bytes to the machine. False if too many wait.
    fn offer_peer_input(&self, input: Input, bytes: usize) -> bool;
    /// Takes envelopes of the region back that were never written.
    fn hand_back(&self, node: UniqueAddress, envelopes: Vec<Envelope>);
    /// Publishes an event to the type's subscribers.
    fn publish(&self, event: Event);
    /// The region's id.
    fn id(&self) -> &RegionId;
    /// Ends the stopped region once a coordinator knows of its end: another region of the type takes over on this node.
    fn retire(&self);
    /// Why the node is not ready for the type.
    fn not_ready(&self) -> Option<String>;
    /// For a downcast to a typed handle.
    fn as_any(&self) -> &(dyn std::any::Any + Send + Sync);
    /// The stage of the region's life.
    fn state(&self) -> RegionState;
    /// Whether its task has answered the last liveness question.
    fn has_answered(&self) -> bool;
    /// Sends its task a liveness question, unless one is open.
    fn ask_liveness(&self);
    /// The entity type.
    fn name(&self) -> &EntityTypeName;
    /// The settings of the type.
    fn settings(&self) -> &ShardingSettings;
    /// The runtime of its tasks.
    fn runtime(&self) -> &tokio::runtime::Handle;
    /// Sends a request to the coordinator.
    fn request(&self, request: Request, timeout: Duration) -> Answers;
    /// The shards hosted here, by name.
    fn hosted(&self) -> Vec<ShardId>;
    /// Makes a shard count its entities. `None` if the shard has no task now, or its inbox is full.
    fn count(&self, shard: &ShardId, scan: EntityScan) -> Option<oneshot::Receiver<EntityScan>>;
    /// Where an entity belongs, by the routes known here.
    fn locate(&self, id: &str) -> Result<EntityLocation, DeadLetterReason>;
    /// The questions to regions of other nodes.
    fn inquiries(&self) -> &Inquiries;
    /// Sends a question or an answer to the region of another node.
    fn send_inspection(&self, to: &UniqueAddress, message: &InspectionMessage);
}
