//! The inputs and effects of a shard.

use std::time::{Duration, Instant};

use greylag_core::DeadLetterReason;

use super::remembering::{InvalidTransition, StoreUpdate};
use crate::entity::{FailureCause, TimerKey, Verdict};
use crate::host::Suspension;
use crate::ids::EntityId;

/// The place of an entity in its shard. Used again after the entity has ended; messages that must
/// not reach a successor name the incarnation too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// What a payload counts in the limits of queues.
pub trait Weigh {
    /// In bytes.
    fn weight(&self) -> usize;
}

/// What a handler run left behind.
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
    /// Messages to itself.
    pub to_self: Vec<P>,
    /// Messages that it took and did not handle, oldest first: they go back to the front of its queue, for
    /// its successor if it ends.
    pub give_back: Vec<P>,
    /// Timers to set (with a message) or to cancel, in order.
    pub timers: Vec<TimerChange<P>>,
    /// Whether, and after how long a time without a message, the entity is to be told of that.
    pub receive_timeout: Option<Option<Duration>>,
}

/// One change of an entity's timers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimerChange<P> {
    /// Once, replacing a timer of the same key.
    Set {
        /// Its name.
        key: TimerKey,
        /// When it is due.
        at: Instant,
        /// What the entity is then sent.
        payload: P,
        /// Whether that ends a silence of the entity.
        influences: bool,
    },
    /// Forget it, also if its message is queued.
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

/// An input to the [`Shard`](super::Shard): messages for its entities, what became of their handlers, and orders to
/// stop. `P` stands for a message that the shell keeps, or is the message itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// A message that came through sharding.
    Deliver {
        /// For which entity.
        id: EntityId,
        /// The message.
        payload: P,
        /// Whether it counts as activity.
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
        /// Which incarnation began it.
        incarnation: u64,
        /// Its result.
        payload: P,
        /// It was a suspension: the result goes ahead of the queue.
        suspension: bool,
    },
    /// The factory and `on_start` have run. `payload` comes back from [`Effect::Start`].
    Started {
        /// Which entity.
        slot: SlotId,
        /// What `on_start` left behind.
        outcome: Outcome<P>,
        /// The message that woke it.
        payload: Option<P>,
    },
    /// A handler has run and left something behind. Not needed for one that did not.
    Done {
        /// Which entity.
        slot: SlotId,
        /// What it left behind.
        outcome: Outcome<P>,
    },
    /// What an entity that is being replaced took and did not handle, oldest first. Between
    /// [`Effect::Restart`] and its answer.
    GivenBack {
        /// The entity's slot.
        slot: SlotId,
        /// The messages; they go to the front of the entity's queue.
        payloads: Vec<P>,
    },
    /// An entity failed: in a handler, in its start, or in a suspension.
    Failed {
        /// Which entity.
        slot: SlotId,
        /// How it failed.
        cause: FailureCause,
        /// The message that woke it, if it failed to start.
        payload: Option<P>,
    },
    /// Handles one more of the queued messages, if there are any. The shell repeats it while
    /// [`super::Shard::has_work`].
    Turn,
    /// The stop marker: start nothing, send every entity its stop request, and end by force those that are
    /// left after `deadline`.
    Stop {
        /// How long entities may take.
        deadline: Duration,
    },
    /// The shard begins: what it remembers is loaded first, if it does. Before any other input.
    Begin,
    /// Answer to [`Effect::Load`]: the entities that are remembered.
    Loaded {
        /// Their ids.
        ids: Vec<EntityId>,
    },
    /// Answer to [`Effect::Load`]: the store said no.
    LoadFailed,
    /// Answer to [`Effect::Store`].
    Stored {
        /// As in the effect.
        number: u64,
    },
    /// Answer to [`Effect::Store`]: the store said no, or may have stored it or not.
    StoreFailed {
        /// As in the effect.
        number: u64,
    },
    /// Remembered entities that have not started here live in other shards: they are taken out of the store.
    Moved {
        /// Their ids.
        ids: Vec<EntityId>,
    },
    /// So many entities may be active: others end by the type's policy.
    Limit {
        /// This shard's part of the region's limit.
        entities: usize,
    },
    /// End everything at once, without stop requests.
    Kill,
    /// A deadline has come; early and repeated ticks are harmless.
    Tick,
}

/// What takes long in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overdue {
    /// The entity has been suspended for `suspend_warn_after`.
    Suspension,
    /// The entity has not ended on its stop request for [`super::STOP_WARN_AFTER`].
    Stop,
}

/// What a shard tells of its remembered entities.
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
        /// It is not remembered any more either.
        forgotten: bool,
    },
}

/// Why an incarnation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Stopped,
    /// The entity had not stopped when its time was over.
    Forced,
    /// The entity failed.
    Failed,
    /// The journal knows a newer owner.
    Fenced,
    /// The shard was killed: `PostStop` is skipped.
    Killed,
}

/// What the shell is asked to do, in this order. It answers a handler run with [`Input::Done`] or
/// [`Input::Failed`] before it goes on to the next effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<E, P> {
    /// Make the entity and run `on_start`; answer `Started` or `Failed`, with the payload.
    Start {
        /// Which entity.
        slot: SlotId,
        /// The message that wakes it.
        payload: Option<P>,
    },
    /// Replace the entity after a failure: cancel its work, `PreRestart`, factory, `on_start`; answer
    /// `GivenBack` if it had something left, then `Started` or `Failed`.
    Restart {
        /// Which entity.
        slot: SlotId,
    },
    /// Handle a message.
    Run {
        /// Which entity.
        slot: SlotId,
        /// The message.
        payload: P,
    },
    /// Tell the entity that it has handled no message for so long as it asked; answer as to [`Effect::Run`].
    TellSilence {
        /// Which entity.
        slot: SlotId,
    },
    /// Call `on_stop`; answer `Done` or `Failed`. It may be suspended, and then stays so unless it ends.
    SendStop {
        /// Which entity.
        slot: SlotId,
    },
    /// The incarnation is over: `PostStop` unless killed, cancel its work.
    End {
        /// Where it was.
        slot: SlotId,
        /// The entity that ended.
        id: EntityId,
        /// Which incarnation.
        incarnation: u64,
        /// It; `None` if it never came to life.
        entity: Option<E>,
        /// Why.
        why: Ended,
    },
    /// An entity failed, and this becomes of it: what follows carries it out.
    Failed {
        /// Which one.
        id: EntityId,
        /// How.
        cause: FailureCause,
        /// What follows.
        verdict: Verdict,
    },
    /// The message will not be handled.
    DeadLetter {
        /// The entity that it was for.
        id: EntityId,
        /// The message.
        payload: P,
        /// Why.
        reason: DeadLetterReason,
    },
    /// A result came back after its incarnation had ended.
    Late(P),
    /// Something takes long; subscribers are to be told, and nothing else follows.
    Overdue {
        /// The entity.
        id: EntityId,
        /// What.
        what: Overdue,
    },
    /// The shard stops, and entities have not ended for [`super::STOP_WARN_AFTER`]; subscribers are to be told.
    StopOverdue {
        /// How many entities are left.
        entities: usize,
        /// Five of them at most.
        ids: Vec<EntityId>,
    },
    /// A direct message that will not be handled: its incarnation has ended or never was, or too much waits for it.
    DropDirect {
        /// The message.
        payload: P,
        /// Why.
        reason: DeadLetterReason,
    },
    /// The shard has failed, by an entity's failure that is made its own or by that of the store: what follows ends it, and
    /// its region starts it again.
    Escalate,
    /// Read which entities are remembered; answer `Loaded` or `LoadFailed`. It comes again if there was no answer, which
    /// then is not awaited any more.
    Load,
    /// Store what is remembered; answer `Stored` or `StoreFailed`. One is under way at a time.
    Store {
        /// The number of the write.
        number: u64,
        /// What changes.
        update: StoreUpdate,
    },
    /// The shard could serve now.
    Initialized {
        /// Entities that are to be started by way of the region: see [`Input::Deliver`].
        remembered: Vec<EntityId>,
    },
    /// Something about remembered entities that an operator may want to know.
    Notice(Notice),
    /// No entity lives and none will. These messages were never handed to a handler.
    Stopped(Vec<(EntityId, P)>),
}
