//! The inputs and effects of a region, and the contract between machine and driver.
//!
//! # Who holds the machine
//! The driver keeps one [`Region`](super::Region) per entity type behind one mutex. A task that has an
//! input (a sending task whose route is closed, a decode worker, the driver's own task) locks, calls
//! `handle`, executes the effects **in order** and unlocks. Effects never wait and must never call
//! back into the same mutex: an event that would (a message to the own node, a refused send) is put into
//! the driver's inbox and becomes an input later. The hot path does not lock at all, see below.
//!
//! # The route table, and why flips are linearisable
//! [`Effect::RouteChange`] publishes the route of one shard:
//! - [`Route::Closed`] (also every shard never named): a sender locks and gives `LocalSend`.
//! - [`Route::Local`]: a sender pushes to the shard's inbox itself; a decode worker does so with a
//!   frame that needs no check (see [`Effect::Admit`]), and gives every other one as `Frame`.
//! - [`Route::Remote`]: a sender enqueues on the owner's lane itself, with
//!   `Stamp { generation, origin: own region, first: generation, hops: 0, leftover: false }`.
//!
//! `RouteChange` is a **barrier**: when its execution returns, every sender that read the old route
//! has finished its push or enqueue, and every later one sees the new route. So messages sent before
//! the flip are in front of the mark or stop marker that a later effect of the same list appends, and
//! messages sent after it are buffered. (Per slot: a sender raises a counter, reads the route, pushes,
//! lowers the counter; the barrier swaps the route and spins until the counter is 0. A sender must
//! lower the counter before it locks.) When a buffer is emptied, the `Deliver`/`SendData` effects
//! come before the `RouteChange` that opens the route, all under the one lock: no sender can overtake.
//!
//! # Tokens
//! The machine never sees a message: the driver keeps it under a [`Token`]. A token given to the
//! machine is buffered until it is named by exactly one of [`Effect::Deliver`], [`Effect::SendData`]
//! and [`Effect::DeadLetter`]; the driver then forgets it. Messages that come back (leftovers, handed back
//! envelopes) are given new tokens. So `submitted = delivered + forwarded + dead-lettered + buffered`
//! holds at every moment (sharding I3); see [`Counters`].
//!
//! # Shards
//! `StartShard` → the driver spawns the shard's task, which answers `ShardInitialized` once it could
//! serve (lease, remembered ids). `StopShard` → the stop marker goes into the inbox behind the messages
//! delivered; the task answers `ShardStopped` with those never handed to a handler. `KillShard` →
//! the task ends its entities at once, without stop messages, and also answers `ShardStopped`. A
//! shard that fails answers `ShardFailed`; the region decides when `StartShard` comes again. One
//! task per shard lives at a time: `StartShard` never comes before the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, Generation, UniqueAddress};
use greylag_transport::Lane;

use super::report::{Answer, RegionEvent, Request};
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Members;
use crate::machine::message::{AgreementOutcome, FromCoordinator, Mark, PeerMessage, RegionMessage, Stamp};

/// Stands for one message that the driver keeps. A driver never uses a token twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// The properties of a message that the machine needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageInfo {
    /// The message's token.
    pub token: Token,
    /// When the message becomes useless, if it carries an ask.
    pub expires_at: Option<Instant>,
    /// Bytes that count towards the limits of buffers and queues.
    pub size: u32,
}

impl MessageInfo {
    /// A message that no ask waits for, and that takes next to no room.
    pub fn of(token: Token) -> Self {
        Self { token, expires_at: None, size: 0 }
    }
}

/// Where a message that is, or was, in a local shard came from. The shard keeps the provenance beside the message
/// because leftovers need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provenance {
    /// Submitted here, and handed to the shard without having left. Messages pushed by a sender itself are `Own`.
    Own,
    /// Came over the wire, or left this region and came back.
    Received {
        /// Where it was submitted.
        origin: RegionId,
        /// Under which generation it first left there.
        first: Generation,
    },
}

/// A message that a shard gives back, never handed to a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Returned {
    /// The message, under a new token.
    pub message: MessageInfo,
    /// The provenance with which it was delivered.
    pub provenance: Provenance,
}

/// An input to the [`Region`](super::Region) of one entity type: messages of senders and other regions, orders of the
/// coordinator, reports of its shards, the membership, and the passing of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A sender found no open route. If the message is refused at once, the effects of this very
    /// call hold a `DeadLetter` of this token, and the driver returns its reason as `SendError`.
    LocalSend {
        /// The shard that the message is for.
        shard: ShardId,
        /// The message.
        message: MessageInfo,
    },
    /// A message of another region, or one of this region's that came back. The driver has decoded
    /// the header and compared the fingerprint's digest.
    Frame {
        /// The node at the other end of the link.
        node: UniqueAddress,
        /// The shard that the message is for.
        shard: ShardId,
        /// The header.
        stamp: Stamp,
        /// The message.
        message: MessageInfo,
    },
    /// A mark on the shard's data lane, in order with the frames.
    Mark {
        /// The node at the other end of the link.
        node: UniqueAddress,
        /// Which shard's path.
        shard: ShardId,
        /// The mark.
        mark: Mark,
    },
    /// A control message of a node that claims to run the coordinator.
    FromCoordinator {
        /// The node at the other end of the link.
        node: UniqueAddress,
        /// Its message.
        message: FromCoordinator,
    },
    /// A control message of another region.
    FromPeer {
        /// The node at the other end of the link.
        node: UniqueAddress,
        /// Its message.
        message: PeerMessage,
    },
    /// The shard's task is ready to serve.
    ShardInitialized {
        /// Which shard.
        shard: ShardId,
        /// As in `StartShard`.
        generation: Generation,
    },
    /// The shard's task has ended after `StopShard` or `KillShard`: no entity of it lives.
    ShardStopped {
        /// Which shard.
        shard: ShardId,
        /// As in `StartShard`.
        generation: Generation,
        /// Unhandled messages, per entity in order.
        leftovers: Vec<Returned>,
    },
    /// The shard's task has failed and ended: no entity of it lives.
    ShardFailed {
        /// Which shard.
        shard: ShardId,
        /// As in `StartShard`.
        generation: Generation,
        /// Unhandled messages, per entity in order.
        unprocessed: Vec<Returned>,
    },
    /// The journal knows a newer owner of one of the shard's entities, which has ended (sharding §4.6).
    Fenced {
        /// Which shard.
        shard: ShardId,
        /// The shard's own generation.
        generation: Generation,
        /// The owner's generation in the journal; `None` for a newer writer of the same generation.
        stored: Option<Generation>,
    },
    /// The members changed (also the first input after `new`).
    Membership(Arc<Members>),
    /// This node cannot trust its own view (cluster F9): nothing reaches handlers or leaves for other
    /// regions until `SelfTrusted`.
    SelfSuspect,
    /// The view is trusted again.
    SelfTrusted,
    /// This node was downed or removed: everything ends at once.
    SelfDowned,
    /// A stream from or to a node broke.
    LinkLost {
        /// The peer.
        node: UniqueAddress,
        /// Which lane.
        lane: Lane,
    },
    /// The transport will never write these own frames to `node`; frames in queue order. Or a `SendData` to `node` was
    /// refused for good. May hold no frames (cluster T18).
    HandedBack {
        /// The node they were for.
        node: UniqueAddress,
        /// Shard, header and message.
        frames: Vec<(ShardId, Stamp, MessageInfo)>,
    },
    /// A coordinator incarnation runs on this node from now on (its number), or none any more.
    Coordinator(Option<u64>),
    /// Answer to [`Effect::Continue`]: other inputs have had their turn.
    Continue {
        /// Which shard.
        shard: ShardId,
    },
    /// A user's request to the coordinator.
    Request {
        /// Repeated in the answers; a region's caller never uses a number twice.
        number: u64,
        /// The request.
        request: Request,
        /// How long the answers may take.
        timeout: Duration,
    },
    /// Hand everything off, then stop. Source: sharding §2.11.
    GracefulShutdown,
    /// Kill everything and stop, handing nothing off.
    Stop,
    /// A deadline has come; early and repeated ticks are harmless.
    Tick,
}

/// How messages for a shard travel from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Through the machine, which buffers or decides.
    Closed,
    /// Into the inbox of the shard on this node.
    Local {
        /// The hosting generation.
        generation: Generation,
    },
    /// Over the lane to another region.
    Remote {
        /// The owner.
        region: RegionId,
        /// Its generation.
        generation: Generation,
    },
}

/// An order to the driver; effects are executed in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Publish the route, as a barrier (see the module's header).
    RouteChange {
        /// Which shard.
        shard: ShardId,
        /// How its messages travel from now on.
        route: Route,
    },
    /// From now on a frame of this origin needs no check by the machine if `hops == 0`, `!leftover`, the digest agrees
    /// and `stamp.generation` equals the generation of the `Route::Local` now published: the decode worker may push the
    /// frame to the shard's inbox (as `Received { origin, first: generation }`). The next `RouteChange` of the shard
    /// ends the admission.
    Admit {
        /// Which shard.
        shard: ShardId,
        /// The region whose frames are admitted.
        origin: RegionId,
    },
    /// Push to the inbox of the local shard.
    Deliver {
        /// Which shard.
        shard: ShardId,
        /// Its hosting generation.
        generation: Generation,
        /// The message.
        token: Token,
        /// The provenance to keep with the message.
        provenance: Provenance,
    },
    /// Enqueue on the shard's lane to another region. A send refused because the queue is full becomes a dead letter
    /// `QueueFull`; because the peer is quarantined, an input `HandedBack`.
    SendData {
        /// The region to send to.
        to: RegionId,
        /// Which shard.
        shard: ShardId,
        /// The message.
        token: Token,
        /// Its header.
        stamp: Stamp,
    },
    /// Append to the shard's lane to another region, whatever the queue's capacity.
    SendMark {
        /// The region to send to.
        to: RegionId,
        /// Which shard.
        shard: ShardId,
        /// The mark.
        mark: Mark,
    },
    /// Control message to the region of this type on a node.
    SendPeer {
        /// Which node.
        to: UniqueAddress,
        /// The message.
        message: PeerMessage,
    },
    /// Control message to the coordinator, or to a node that may run it.
    SendCoordinator {
        /// Which node.
        to: UniqueAddress,
        /// The message.
        message: RegionMessage,
    },
    /// For the coordinator of this node: how the type's role compares with the claims of other members.
    Agreement {
        /// The incarnation that asked; another incarnation asks anew.
        coordinator: Option<u64>,
        /// The outcome of the comparison.
        outcome: AgreementOutcome,
    },
    /// More messages wait for the shard's route than one turn empties: answered by [`Input::Continue`], queued behind
    /// the inputs that wait for the machine by then.
    Continue {
        /// Which shard.
        shard: ShardId,
    },
    /// Start the shard's task.
    StartShard {
        /// Which shard.
        shard: ShardId,
        /// Its hosting generation.
        generation: Generation,
    },
    /// Put the stop marker behind everything delivered.
    StopShard {
        /// Which shard.
        shard: ShardId,
        /// Its hosting generation.
        generation: Generation,
    },
    /// End the shard's entities now, without stop messages. May follow a `StopShard` or repeat itself;
    /// one `ShardStopped` answers all of them.
    KillShard {
        /// Which shard.
        shard: ShardId,
        /// Its hosting generation.
        generation: Generation,
    },
    /// No handler of any shard may run until `ReleaseShards` (self-suspicion).
    HoldShards,
    /// Handlers run again.
    ReleaseShards,
    /// The message will not be delivered.
    DeadLetter {
        /// Which shard it was for.
        shard: ShardId,
        /// The message.
        token: Token,
        /// Why.
        reason: DeadLetterReason,
    },
    /// The region has stopped: nothing is hosted, nothing is buffered; sends fail from now on. The
    /// machine lives on to repeat `RegionStopped` while `next_deadline` is `Some`, and answers late
    /// coordinators.
    Stopped,
    /// The outcome of a request, or of a part of it.
    Answer {
        /// As in [`Input::Request`].
        number: u64,
        /// The answer.
        answer: Answer,
    },
    /// An event for subscribers.
    Event(RegionEvent),
}
