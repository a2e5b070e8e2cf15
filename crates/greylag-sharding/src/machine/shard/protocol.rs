//! The inputs and effects of a shard.

use std::time::{Duration, Instant};

use greylag_core::DeadLetterReason;

use super::remembering::{InvalidTransition, StoreUpdate};
use crate::entity::{FailureCause, TimerKey, Verdict};
use crate::host::Suspension;
use crate::ids::EntityId;

/// The slot of an entity in its shard. Reused after the entity has ended; messages that must not reach a successor name
/// the incarnation too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// The size of a payload, as counted towards the limits of queues.
pub trait Weigh {
    /// Bytes.
    fn weight(&self) -> usize;
}

/// The requests that a handler run left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome<P> {
    /// The incarnation ends.
    pub stop: bool,
    /// The entity wants to be passivated.
    pub passivate: bool,
    /// The entity waits for asynchronous work.
    pub suspend: Option<Suspension>,
    /// The entity counts as active.
    pub touch: bool,
    /// The entity got a direct address.
    pub direct: bool,
    /// The entity forbids or allows automatic passivation.
    pub veto: Option<bool>,
    /// The journal knows a newer owner: the incarnation ends and nothing starts for a while.
    pub fenced: bool,
    /// Messages of the entity to itself.
    pub to_self: Vec<P>,
    /// Messages that the entity took and did not handle, oldest first: they go back to the front of the queue, for the
    /// successor if the entity ends.
    pub give_back: Vec<P>,
    /// Timers to set (with a message) or to cancel, in order.
    pub timers: Vec<TimerChange<P>>,
    /// `Some` to set the receive timeout of the entity (`Some`) or to cancel it (`None`).
    pub receive_timeout: Option<Option<Duration>>,
}

/// One change of an entity's timers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimerChange<P> {
    /// Sets a timer that fires once, replacing a timer of the same key.
    Set {
        /// The key.
        key: TimerKey,
        /// When the timer is due.
        at: Instant,
        /// The message sent to the entity then.
        payload: P,
        /// Whether the message ends a silence of the entity.
        influences: bool,
    },
    /// Cancels a timer, even if its message is queued.
    Cancel(TimerKey),
}

impl<P> Default for Outcome<P> {
    fn default() -> Self {
        Self {
            stop: false,
            passivate: false,
            suspend: None,
            touch: false,
            direct: false,
            veto: None,
            fenced: false,
            to_self: Vec::new(),
            give_back: Vec::new(),
            timers: Vec::new(),
            receive_timeout: None,
        }
    }
}

impl<P> Outcome<P> {
    /// Whether the handler left nothing behind: the usual case.
    pub fn is_empty(&self) -> bool {
        let flags = self.stop || self.passivate || self.touch || self.direct || self.fenced;
        let options = self.suspend.is_some() || self.veto.is_some() || self.receive_timeout.is_some();
        let messages = !self.to_self.is_empty() || !self.give_back.is_empty();
        !flags && !options && !messages && self.timers.is_empty()
    }
}

/// An input to the [`Shard`](super::Shard): messages for its entities, results of their handlers, and orders to stop.
/// `P` stands for a message that the shell keeps, or is the message itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// A message sent through sharding.
    Deliver {
        /// For which entity.
        id: EntityId,
        /// The message.
        payload: P,
        /// Whether the message counts as activity.
        activity: bool,
    },
    /// A message to one incarnation, by its direct address.
    Direct {
        /// The incarnation.
        incarnation: u64,
        /// The message.
        payload: P,
    },
    /// Asynchronous work of an entity is done.
    Resumed {
        /// The entity's slot.
        slot: SlotId,
        /// The incarnation that began the work.
        incarnation: u64,
        /// The work's result.
        payload: P,
        /// Whether the work was a suspension: then the result goes ahead of the queue.
        suspension: bool,
    },
    /// The factory and `on_start` have run. `payload` comes back from [`Effect::Start`].
    Started {
        /// The entity's slot.
        slot: SlotId,
        /// The outcome of `on_start`.
        outcome: Outcome<P>,
        /// The message that woke the entity.
        payload: Option<P>,
    },
    /// A handler has run and left something behind. Not needed for an empty outcome.
    Done {
        /// The entity's slot.
        slot: SlotId,
        /// The outcome of the handler.
        outcome: Outcome<P>,
    },
    /// Messages that an entity that is being replaced took and did not handle, oldest first. Comes between
    /// [`Effect::Restart`] and its answer.
    GivenBack {
        /// The entity's slot.
        slot: SlotId,
        /// The messages; they go to the front of the entity's queue.
        payloads: Vec<P>,
    },
    /// An entity failed: in a handler, in its start, or in a suspension.
    Failed {
        /// The entity's slot.
        slot: SlotId,
        /// How it failed.
        cause: FailureCause,
        /// The message that woke the entity, if its start failed.
        payload: Option<P>,
    },
    /// Handles the next queued message, if there is one. The shell repeats it while [`super::Shard::has_work`].
    Turn,
    /// The stop marker: start nothing, send every entity its stop request, and end by force those that are
    /// left after `deadline`.
    Stop {
        /// How long entities may take.
        deadline: Duration,
    },
    /// The shard begins: it loads the remembered entities first, if its type remembers them. Before any other input.
    Begin,
    /// Answer to [`Effect::Load`]: the entities that are remembered.
    Loaded {
        /// Their ids.
        ids: Vec<EntityId>,
    },
    /// Answer to [`Effect::Load`]: the store returned an error.
    LoadFailed,
    /// Answer to [`Effect::Store`].
    Stored {
        /// As in the effect.
        number: u64,
    },
    /// Answer to [`Effect::Store`]: the store returned an error, or the outcome of the write is unknown.
    StoreFailed {
        /// As in the effect.
        number: u64,
    },
    /// Remembered entities that have not started here live in other shards: the shard removes them from its store.
    Moved {
        /// Their ids.
        ids: Vec<EntityId>,
    },
    /// The number of entities that may be active: others end by the type's policy.
    Limit {
        /// This shard's part of the region's limit.
        entities: usize,
    },
    /// End everything at once, without stop requests.
    Kill,
    /// A deadline has come; early and repeated ticks are harmless.
    Tick,
}

/// An operation that takes long in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// The entity has been suspended for `suspend_warn_after`.
    Suspension,
    /// The entity has not ended on its stop request for [`super::STOP_WARN_AFTER`].
    Stop,
}

/// A report about remembered entities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The store has not answered a load in time; it is asked again.
    LoadIsSlow,
    /// The store has not answered a write in time: the shard fails.
    StoreIsLate,
    /// A bug of the runtime.
    InvalidTransition(InvalidTransition),
    /// An entity has failed to start so often that the shard does not start it again by itself.
    GivenUp {
        /// Which entity.
        id: EntityId,
        /// Starts in a row that failed.
        failures: u32,
        /// Whether the entity is forgotten too.
        forgotten: bool,
    },
}

/// Why an incarnation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The entity stopped by itself.
    Stopped,
    /// The entity had not stopped when its timeout was over.
    Forced,
    /// The entity failed.
    Failed,
    /// The journal knows a newer owner.
    Fenced,
    /// The shard was killed: `PostStop` is skipped.
    Killed,
}

/// An order to the shell; effects are executed in the order given. The shell answers a handler run with [`Input::Done`]
/// or [`Input::Failed`] before it goes on to the next effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<E, P> {
    /// Make the entity and run `on_start`; answer `Started` or `Failed`, with the payload.
    Start {
        /// The entity's slot.
        slot: SlotId,
        /// The message that wakes the entity.
        payload: Option<P>,
    },
    /// Replace the entity after a failure: cancel its work, `PreRestart`, factory, `on_start`; answer `GivenBack` if
    /// the old entity had unhandled messages, then `Started` or `Failed`.
    Restart {
        /// The entity's slot.
        slot: SlotId,
    },
    /// Handle a message.
    Run {
        /// The entity's slot.
        slot: SlotId,
        /// The message.
        payload: P,
    },
    /// Tell the entity that it has handled no message for its receive timeout; answer as to [`Effect::Run`].
    NotifyReceiveTimeout {
        /// The entity's slot.
        slot: SlotId,
    },
    /// Call `on_stop`; answer `Done` or `Failed`. A suspended entity stays suspended unless it ends.
    SendStop {
        /// The entity's slot.
        slot: SlotId,
    },
    /// The incarnation has ended: run `PostStop` unless it was killed, and cancel its work.
    End {
        /// The slot that it had.
        slot: SlotId,
        /// The entity that ended.
        id: EntityId,
        /// Which incarnation.
        incarnation: u64,
        /// The entity; `None` if its start never completed.
        entity: Option<E>,
        /// Why.
        why: Ended,
    },
    /// An entity failed with this verdict, which the effects that follow carry out.
    Failed {
        /// The entity.
        id: EntityId,
        /// How the entity failed.
        cause: FailureCause,
        /// What becomes of the entity.
        verdict: Verdict,
    },
    /// The message will not be handled.
    DeadLetter {
        /// The entity that the message was for.
        id: EntityId,
        /// The message.
        payload: P,
        /// Why.
        reason: DeadLetterReason,
    },
    /// A result came back after its incarnation had ended.
    Late(P),
    /// An operation takes long; tell subscribers, nothing else follows.
    Overdue {
        /// The entity.
        id: EntityId,
        /// The operation.
        what: Overdue,
    },
    /// The shard stops, and entities have not ended for [`super::STOP_WARN_AFTER`]; subscribers are to be told.
    StopOverdue {
        /// How many entities are left.
        entities: usize,
        /// Five of them at most.
        ids: Vec<EntityId>,
    },
    /// A direct message that will not be handled: its incarnation has ended or never was, or its queue is full.
    DropDirect {
        /// The message.
        payload: P,
        /// Why.
        reason: DeadLetterReason,
    },
    /// The shard has failed, by an escalated failure of an entity or by a failure of the store: the effects that follow
    /// end it, and its region starts it again.
    Escalate,
    /// Read which entities are remembered; answer `Loaded` or `LoadFailed`. Repeated if no answer comes in time; the
    /// first answer counts.
    Load,
    /// Store which entities are remembered; answer `Stored` or `StoreFailed`. One write is under way at a time.
    Store {
        /// The number of the write.
        number: u64,
        /// The changes.
        update: StoreUpdate,
    },
    /// The shard is ready to serve.
    Initialized {
        /// Entities to be started by messages that the region routes: see [`Input::Deliver`].
        remembered: Vec<EntityId>,
    },
    /// An event about remembered entities for the operator.
    Notice(Notice),
    /// No entity lives and none will start. Holds the messages that were never handed to a handler.
    Stopped(Vec<(EntityId, P)>),
}
