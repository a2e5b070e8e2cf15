//! The inputs of an entity machine, and the actions that it asks of its host.
//!
//! ```text
//! host --Input::Command--> EntityCore --Action::Store(call)--> host: call.perform(&stores).await
//!      <-----------------------------------------------------       Input::Answer { incarnation, answer }
//! ```

use std::fmt;
use std::time::Duration;

use greylag_core::{DeadLetterReason, EntityError, answer_dropped};

use crate::behavior::{Failure, FencedBy};
use crate::ctx::Wishes;
use crate::errands::{Wish, WorkNo};
use crate::error::{AdvanceError, AppendError, ClaimError, DeleteError, ReadError, SnapshotError};
use crate::event::{SeqNr, Timestamp, WriterEpoch, WriterUuid};
use crate::journal::{Append, Appended, Claim, Head, Page, ReadRange, Under};
use crate::persistence_id::PersistenceId;
use crate::snapshot::{NewSnapshot, Snapshot, SnapshotCriteria};

/// One life of an entity between two starts; answers to an earlier one are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    /// Given by the host, larger for every machine of one process.
    pub start: u64,
    /// Counted by the machine, which starts anew by itself after failures.
    pub restart: u32,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.start, self.restart)
    }
}

/// An input to an entity machine: commands, answers of stores and host, and that time passed. The entity is an
/// event-sourced one, unless another `Answer` is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<C, Answer = StoreAnswer> {
    /// A command arrived.
    Command(C),
    /// The permit asked for by [`Action::RequestPermit`] is there.
    PermitGranted(Incarnation),
    /// A store answered [`Action::Store`].
    Answer {
        /// Of the action.
        incarnation: Incarnation,
        /// What it answered.
        answer: Answer,
    },
    /// What [`Action::Work`] came back with.
    Worked {
        /// Of the action.
        incarnation: Incarnation,
        /// Of the action.
        work: WorkNo,
        /// The command that the work gave; none if it gave none, was ended, or panicked.
        command: Option<C>,
    },
    /// [`EntityCore::next_deadline`](crate::EntityCore::next_deadline) has come. Early and repeated
    /// ticks are harmless.
    Tick,
    /// The stores answer again after they did not: an entity that backs off starts anew, at once unless that came to
    /// nothing before; any other goes on as it was.
    StoreBack,
    /// End after the commands that arrived before.
    Stop,
    /// End now; what waits is dropped, an append on its way is left to itself.
    StopNow,
}

/// What an entity machine asks its host to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<C, Call = StoreCall> {
    /// Get one of the node's recovery permits, first come first served, and answer
    /// [`Input::PermitGranted`]. Hold it until [`Action::ReturnPermit`] of the same incarnation.
    RequestPermit(Incarnation),
    /// Give back the permit, or stop waiting for it.
    ReturnPermit(Incarnation),
    /// Run [`StoreCall::perform`] and answer [`Input::Answer`]. Never dropped, never run twice.
    Store {
        /// For the answer.
        incarnation: Incarnation,
        /// What to do.
        call: Call,
    },
    /// Run what `take_work` of the machine gives for this, and answer [`Input::Worked`].
    Work {
        /// For the answer.
        incarnation: Incarnation,
        /// Which work.
        work: WorkNo,
    },
    /// The entity told itself a command, which the machine keeps: queue a turn behind what is queued for the entity by
    /// now, and answer [`Input::Worked`] without a command when it comes.
    ToSelf {
        /// For the answer.
        incarnation: Incarnation,
        /// The number of the work whose turn it is.
        work: WorkNo,
    },
    /// The state is complete: the entity takes commands now. For hosts that suspend their mailbox; count it.
    Recovered {
        /// Which life began.
        incarnation: Incarnation,
        /// How many stored events were replayed, those of a refill apart.
        replayed: u64,
        /// How many of all that were read were skipped because this code does not know them.
        skipped: u64,
        /// Since the permit was granted.
        took: Duration,
    },
    /// The entity asks to be passivated; it runs on until [`Input::Stop`].
    Passivate,
    /// A handler asked its host for something; passivation has an action of its own.
    Wish(Wishes),
    /// The behaviour had no answer to a command; count it.
    Unhandled,
    /// An event, state or snapshot was to be stored and did not reach a store; count it. The behaviour hears why, and
    /// so do the callers that wait for an answer.
    Withheld(Withheld),
    /// A command was dropped; count and report it, then [`DroppedCommand::discard`] it.
    DeadLetter(DroppedCommand<C>),
    /// The machine starts anew by itself, after a failure that left nothing in doubt but the state. Tell it
    /// [`Input::StoreBack`] should one of its stores come back before it asks for its permit.
    Restarting(Failure),
    /// The entity has ended; have its home confirmed before it is started again, and hand the
    /// commands of [`EntityCore::take_waiting`](crate::EntityCore::take_waiting) to its successor.
    /// Source: sharding §4.6.
    Fenced(FencedBy),
    /// The entity has failed and waits for a verdict: [`EntityCore::restart`](crate::EntityCore::restart)
    /// with a new behaviour, or [`Input::StopNow`]. Commands wait until then.
    Failed(Failure),
    /// The entity has ended; drop the machine.
    Stopped,
}

impl<C, Call> Action<C, Call> {
    pub(crate) fn of_wish(incarnation: Incarnation, wish: Wish) -> Self {
        match wish {
            Wish::Work(work) => Self::Work { incarnation, work },
            Wish::ToSelf(work) => Self::ToSelf { incarnation, work },
        }
    }

    /// What a handler wants of the host.
    pub(crate) fn of_host_wishes(wishes: Wishes) -> impl Iterator<Item = Self> {
        let passivate = wishes.passivate.then_some(Self::Passivate);
        let rest = Wishes { passivate: false, delete_to: None, ..wishes };
        passivate.into_iter().chain((!rest.is_empty()).then_some(Self::Wish(rest)))
    }
}

/// What was not even sent to a store, because it cannot be encoded or breaks a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withheld {
    /// Events, or a durable state.
    Write,
    /// A snapshot.
    Snapshot,
}

/// A command that will not be handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedCommand<C> {
    /// The command.
    pub command: C,
    /// Why, for events and counters.
    pub reason: DeadLetterReason,
    /// What its asker is answered.
    pub answer: EntityError,
}

impl<C> DroppedCommand<C> {
    /// Drops the command; a reply token inside answers why.
    pub fn discard(self) {
        let Self { command, answer, .. } = self;
        answer_dropped(answer, || drop(command));
    }
}

/// One call of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreCall {
    /// [`Journal::head`](crate::Journal::head); before every claim without a generation, and to
    /// prove ownership.
    ReadHead {
        /// The id that the head belongs to.
        id: PersistenceId,
    },
    /// [`Journal::claim`](crate::Journal::claim).
    Claim {
        /// What to claim.
        id: PersistenceId,
        /// The writer that claims.
        writer_uuid: WriterUuid,
        /// By what right.
        under: Under,
    },
    /// [`Journal::advance`](crate::Journal::advance).
    Advance {
        /// The id that the history belongs to.
        id: PersistenceId,
        /// Of the claim.
        epoch: WriterEpoch,
        /// The last number skipped.
        to: SeqNr,
    },
    /// [`SnapshotStore::load`](crate::SnapshotStore::load).
    LoadSnapshot {
        /// The id that the snapshot belongs to.
        id: PersistenceId,
        /// Which one.
        criteria: SnapshotCriteria,
    },
    /// [`Journal::read`](crate::Journal::read).
    ReadPage {
        /// The id that the events belong to.
        id: PersistenceId,
        /// Which ones.
        range: ReadRange,
    },
    /// [`Journal::append`](crate::Journal::append).
    Append(Append),
    /// [`Journal::delete_to`](crate::Journal::delete_to).
    DeleteEvents {
        /// The id that the events belong to.
        id: PersistenceId,
        /// Of the claim.
        epoch: WriterEpoch,
        /// The last number to delete.
        to: SeqNr,
        /// What wants it.
        by: DeletedBy,
    },
    /// [`SnapshotStore::save`](crate::SnapshotStore::save).
    SaveSnapshot(NewSnapshot),
    /// [`SnapshotStore::delete_matching`](crate::SnapshotStore::delete_matching).
    DeleteSnapshots {
        /// The id that the snapshots belong to.
        id: PersistenceId,
        /// Which ones.
        criteria: SnapshotCriteria,
    },
}

/// A call that a machine asks for, as far as hosts have to know it.
pub trait EntityCall {
    /// Whether it saves a snapshot, which was encoded in the turn that asked for it.
    fn saves_snapshot(&self) -> bool {
        false
    }
}

impl EntityCall for StoreCall {
    fn saves_snapshot(&self) -> bool {
        matches!(self, Self::SaveSnapshot(_))
    }
}

/// What wanted events deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletedBy {
    /// The settings.
    Retention,
    /// A handler.
    Handler,
}

/// What a store answered to a [`StoreCall`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAnswer {
    /// To [`StoreCall::ReadHead`].
    Head(Result<Head, ReadError>),
    /// To [`StoreCall::Claim`].
    Claimed(Result<Claim, ClaimError>),
    /// To [`StoreCall::Advance`].
    Advanced(Result<(), AdvanceError>),
    /// To [`StoreCall::LoadSnapshot`].
    Snapshot(Result<Option<Snapshot>, SnapshotError>),
    /// To [`StoreCall::ReadPage`].
    Page(Result<Page, ReadError>),
    /// To [`StoreCall::Append`].
    Appended(Result<Appended, AppendError>),
    /// To [`StoreCall::SaveSnapshot`], with the number it was to have.
    SnapshotSaved(SeqNr, Result<Timestamp, SnapshotError>),
    /// To [`StoreCall::DeleteEvents`], with the number asked for and who asked.
    EventsDeleted(SeqNr, DeletedBy, Result<SeqNr, DeleteError>),
    /// To [`StoreCall::DeleteSnapshots`], with the criteria asked for.
    SnapshotsDeleted(SnapshotCriteria, Result<(), SnapshotError>),
}
