//! The inputs of an entity machine, and the actions that the machine asks of its host.
//!
//! ```text
//! host --Input::Command--> EntityCore --Action::Store(call)--> host: call.perform(&stores).await
//!      <-----------------------------------------------------       Input::Answer { incarnation, answer }
//! ```

use std::fmt;
use std::time::Duration;

use greylag_core::{DeadLetterReason, EntityError, answer_dropped};

use crate::contract::error::{AdvanceError, AppendError, ClaimError, DeleteError, ReadError, SnapshotError};
use crate::contract::head::{Claim, Head, Under};
use crate::contract::journal::{Append, Appended, Page, ReadRange};
use crate::contract::records::event::{SeqNr, Timestamp, WriterEpoch, WriterUuid};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::{NewSnapshot, Snapshot, SnapshotCriteria};
use crate::entities::behavior::failure::{Failure, FencedBy};
use crate::entities::context::background_work::{HostTask, WorkNo};
use crate::entities::context::ctx::HostRequests;

/// One life of an entity between two starts; answers to an earlier incarnation are ignored.
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

/// An input to an entity machine: commands, answers of stores and host, and the passing of time. The defaults are those
/// of an event-sourced entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<C, Answer = StoreAnswer> {
    /// A command arrived.
    Command(C),
    /// The recovery permit that [`Action::RequestPermit`] asked for was granted.
    PermitGranted(Incarnation),
    /// A store answered [`Action::Store`].
    Answer {
        /// Incarnation of the action.
        incarnation: Incarnation,
        /// The store's answer.
        answer: Answer,
    },
    /// Work that [`Action::Work`] asked for has ended.
    Worked {
        /// Incarnation of the action.
        incarnation: Incarnation,
        /// Number of the action's work.
        work: WorkNo,
        /// The command that the work returned; `None` if it returned none, was aborted, or panicked.
        command: Option<C>,
    },
    /// [`EntityCore::next_deadline`](crate::EntityCore::next_deadline) has come. Early and repeated
    /// ticks are harmless.
    Tick,
    /// The stores answer again after an outage: an entity that backs off starts anew, at once unless such a start
    /// failed before; in any other phase nothing changes.
    StoreBack,
    /// End after the commands that arrived before this input.
    Stop,
    /// End now; waiting commands are dropped, and an append under way is not awaited.
    StopNow,
}

/// An action that an entity machine asks of its host; the host performs actions in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<C, Call = StoreCall> {
    /// Get one of the node's recovery permits, first come first served, and answer
    /// [`Input::PermitGranted`]. Hold it until [`Action::ReturnPermit`] of the same incarnation.
    RequestPermit(Incarnation),
    /// Return the permit, or stop waiting for it.
    ReturnPermit(Incarnation),
    /// Run [`StoreCall::perform`] and answer [`Input::Answer`]. Never dropped, never run twice.
    Store {
        /// Incarnation to answer with.
        incarnation: Incarnation,
        /// The store call to perform.
        call: Call,
    },
    /// Run the work that `take_work` of the machine returns for this number, and answer [`Input::Worked`].
    Work {
        /// Incarnation to answer with.
        incarnation: Incarnation,
        /// Number of the work.
        work: WorkNo,
    },
    /// The entity told itself a command, which the machine keeps: queue a turn behind the inputs queued for the entity
    /// by now, and answer [`Input::Worked`] without a command when the turn comes.
    ToSelf {
        /// Incarnation to answer with.
        incarnation: Incarnation,
        /// Number of the work to answer with.
        work: WorkNo,
    },
    /// The state is complete: the entity handles commands now. For hosts that suspend their mailbox; count it.
    Recovered {
        /// The incarnation that recovered.
        incarnation: Incarnation,
        /// Number of stored events replayed, without those of a refill.
        replayed: u64,
        /// Number of events read and skipped, refill included, because this code does not know them.
        skipped: u64,
        /// Time since the permit was granted.
        took: Duration,
    },
    /// The entity asks to be passivated; it runs on until [`Input::Stop`].
    Passivate,
    /// A handler asked its host for something; passivation has an action of its own.
    HostRequests(HostRequests),
    /// The behaviour had no answer to a command; count it.
    Unhandled,
    /// An event, state or snapshot was to be stored and was not sent to a store; count it. The behaviour gets the
    /// reason by a signal, waiting callers by their answers.
    Withheld(Withheld),
    /// A command was dropped; count and report it, then [`DroppedCommand::discard`] it.
    DeadLetter(DroppedCommand<C>),
    /// The machine starts anew by itself, after a failure that leaves no doubt once the state is recovered. Send
    /// [`Input::StoreBack`] if one of its stores answers again before the machine asks for its permit.
    Restarting(Failure),
    /// The entity has ended, since another writer owns its history; confirm the entity's home before starting it again,
    /// and hand the commands of [`EntityCore::take_waiting`](crate::EntityCore::take_waiting) to its successor.
    /// Source: sharding §4.6.
    Fenced(FencedBy),
    /// The entity has failed and waits for the host's verdict: [`EntityCore::restart`](crate::EntityCore::restart)
    /// with a new behaviour, or [`Input::StopNow`]. Commands wait until then.
    Failed(Failure),
    /// The entity has ended; drop the machine.
    Stopped,
}

impl<C, Call> Action<C, Call> {
    pub(crate) fn of_host_task(incarnation: Incarnation, task: HostTask) -> Self {
        match task {
            HostTask::Work(work) => Self::Work { incarnation, work },
            HostTask::ToSelf(work) => Self::ToSelf { incarnation, work },
        }
    }

    /// The actions for a handler's requests to the host.
    pub(crate) fn of_host_requests(requests: HostRequests) -> impl Iterator<Item = Self> {
        let passivate = requests.passivate.then_some(Self::Passivate);
        let rest = HostRequests { passivate: false, delete_to: None, ..requests };
        passivate.into_iter().chain((!rest.is_empty()).then_some(Self::HostRequests(rest)))
    }
}

/// A write that was not sent to a store, because it cannot be encoded or breaks a limit.
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
    /// The reason, for events and counters.
    pub reason: DeadLetterReason,
    /// The error that its asker is answered.
    pub answer: EntityError,
}

impl<C> DroppedCommand<C> {
    /// Drops the command; a reply token inside it is answered `answer`.
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
        /// The id whose history to claim.
        id: PersistenceId,
        /// The writer that claims.
        writer_uuid: WriterUuid,
        /// The right to claim: a generation, or the epoch seen.
        under: Under,
    },
    /// [`Journal::advance`](crate::Journal::advance).
    Advance {
        /// The id that the history belongs to.
        id: PersistenceId,
        /// The epoch of the claim.
        epoch: WriterEpoch,
        /// The last number to skip.
        to: SeqNr,
    },
    /// [`SnapshotStore::load`](crate::SnapshotStore::load).
    LoadSnapshot {
        /// The id that the snapshot belongs to.
        id: PersistenceId,
        /// Criteria that the snapshot must match.
        criteria: SnapshotCriteria,
    },
    /// [`Journal::read`](crate::Journal::read).
    ReadPage {
        /// The id that the events belong to.
        id: PersistenceId,
        /// Range and limits of the page.
        range: ReadRange,
    },
    /// [`Journal::append`](crate::Journal::append).
    Append(Append),
    /// [`Journal::delete_to`](crate::Journal::delete_to).
    DeleteEvents {
        /// The id that the events belong to.
        id: PersistenceId,
        /// The epoch of the claim.
        epoch: WriterEpoch,
        /// The last number to delete.
        to: SeqNr,
        /// The part of the entity that asked for the deletion.
        by: DeletedBy,
    },
    /// [`SnapshotStore::save`](crate::SnapshotStore::save).
    SaveSnapshot(NewSnapshot),
    /// [`SnapshotStore::delete_matching`](crate::SnapshotStore::delete_matching).
    DeleteSnapshots {
        /// The id that the snapshots belong to.
        id: PersistenceId,
        /// Criteria of the snapshots to delete.
        criteria: SnapshotCriteria,
    },
}

/// A store call of a machine, as far as hosts have to know its kind.
pub trait EntityCall {
    /// Whether the call saves a snapshot, which was encoded in the same turn.
    fn saves_snapshot(&self) -> bool {
        false
    }
}

impl EntityCall for StoreCall {
    fn saves_snapshot(&self) -> bool {
        matches!(self, Self::SaveSnapshot(_))
    }
}

/// The part of an entity that asked for a deletion of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletedBy {
    /// Retention, by the settings.
    Retention,
    /// A handler, by its context.
    Handler,
}

/// A store's answer to a [`StoreCall`].
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
    /// To [`StoreCall::SaveSnapshot`], with the number of the snapshot.
    SnapshotSaved(SeqNr, Result<Timestamp, SnapshotError>),
    /// To [`StoreCall::DeleteEvents`], with the number asked for and the part that asked.
    EventsDeleted(SeqNr, DeletedBy, Result<SeqNr, DeleteError>),
    /// To [`StoreCall::DeleteSnapshots`], with the criteria asked for.
    SnapshotsDeleted(SnapshotCriteria, Result<(), SnapshotError>),
}
