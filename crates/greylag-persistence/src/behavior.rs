//! The behaviour that a user writes: commands in, events out, a state folded from events.

use std::fmt;

use greylag_core::Generation;

use crate::codec::UnreadableRecord;
use crate::ctx::Ctx;
use crate::effect::Effect;
use crate::error::{
    AdvanceError, AppendError, ClaimError, DeleteError, ReadError, RejectReason, SnapshotError, StateWriteError,
};
use crate::event::{Metadata, SeqNr, Tags, Timestamp};
use crate::journal::Head;
use crate::marks::Marks;
use crate::replay_filter::WritersOverlap;
use crate::settings::EventSourcedSettings;
use crate::snapshot::SnapshotCriteria;
use crate::state::StateHead;
use crate::tracker::{Tracked, UnconfirmedWarning};

/// An entity whose state is the fold of its events.
///
/// Handlers are synchronous and must not block. A panic in any of them is caught; the state is then
/// never used again. Source: persistence §2.1.
pub trait EventSourced: Sized + Send + 'static {
    /// The commands that the entity accepts.
    type Command: Send + 'static;
    /// The events that the entity stores.
    type Event: Send + 'static;
    /// The state that the events fold to; the default is the state before the first event.
    type State: Default + Send + 'static;

    /// Name of the journal that keeps the events, of those given by `Stores::with_plugin`. Default `""`:
    /// the node's default journal. Source: persistence §1.
    fn journal_plugin_id(&self) -> &str {
        ""
    }

    /// Name of the snapshot store, likewise.
    fn snapshot_plugin_id(&self) -> &str {
        ""
    }

    /// The entity's settings, made from the settings that the node has for all entities. Default: the node's. To change
    /// some: `EventSourcedSettings { delete_events: true, ..node.clone() }`.
    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        node.clone()
    }

    /// Decides what a command does. `state` is the fold of all events until now, all of them durable.
    fn on_command(
        &mut self,
        cx: &mut Ctx<'_, Self::Command>,
        state: &Self::State,
        command: Self::Command,
    ) -> Effect<Self>;

    /// Folds one event. Must be pure and total: it runs before the event is stored, and again at
    /// every replay.
    fn apply(state: &mut Self::State, event: &Self::Event);

    /// As [`EventSourced::apply`], with the behaviour and the event's number and metadata. Default: calls `apply`.
    fn apply_with(&self, state: &mut Self::State, event: &Self::Event, meta: &EventMeta<'_>) {
        let _ = meta;
        Self::apply(state, event);
    }

    /// Tells the behaviour what happened to the entity. `state` is the default state while the state is lost: after a
    /// panic, before recovery ended, or while it holds the events of an append that is not answered. On a signal that
    /// ends the incarnation (all but `RecoveryCompleted` and the signals of a running entity) timers, work and
    /// messages that the handler asks for are not begun.
    fn on_signal(&mut self, _cx: &mut Ctx<'_, Self::Command>, _state: &Self::State, _signal: &Signal) {}

    /// The tags of a new event, which `state` contains already.
    fn tags(&self, _state: &Self::State, _event: &Self::Event, _meta: &EventMeta<'_>) -> Tags {
        Tags::new()
    }

    /// Whether to save a snapshot after this event, which `state` contains already. A state that may lack
    /// events is not saved even so; see
    /// [`snapshot_every`](crate::EventSourcedSettings::snapshot_every).
    fn snapshot_when(&self, _state: &Self::State, _event: &Self::Event, _seq_nr: SeqNr) -> bool {
        false
    }

    /// For layers that wrap a behaviour: drops marks of deliveries that cannot come again. Called when a new stream got
    /// its first mark. Source: delivery §7.
    #[doc(hidden)]
    fn prune_marks(&self, _marks: &mut Marks, _now: Timestamp) {}

    /// The first event that a snapshot of `state` leaves data to, if the snapshot leaves any out: a
    /// state that grows too large for a snapshot can keep its bulk in the events. Recovery then applies
    /// the events from that number on to the snapshot, first those that the snapshot reflects already
    /// ([`EventMeta::refill`]), and retention keeps them. Called when a snapshot is encoded.
    /// Source: persistence §2.8 (`replay_from`).
    fn replay_from(&self, _state: &Self::State) -> Option<SeqNr> {
        None
    }

    /// The deliveries that the state keeps until they are confirmed, and their sender. A delivery that
    /// `apply` recorded is sent when its event is stored, before the side effects of the command;
    /// after recovery every unconfirmed delivery is sent again, and then from time to time.
    /// A read-only entity sends nothing. Source: persistence §6.
    fn tracker<'a>(&'a mut self, _state: &'a mut Self::State) -> Option<Tracked<'a>> {
        None
    }

    /// A copy of the state to return to when an append is rejected, instead of a restart by recovery. The copy is
    /// taken before every persist; give one only if it is cheap. Source: persistence §2.6 (`rollback`).
    fn rollback_copy(&self, _state: &Self::State) -> Option<Self::State> {
        None
    }
}

/// The number and metadata of an event when it is applied; nothing that is known only after the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventMeta<'a> {
    /// The event's number.
    pub seq_nr: SeqNr,
    /// The metadata attached to the event.
    pub metadata: &'a Metadata,
    /// Whether the state comes from a snapshot that reflects this event already, so that the handler takes
    /// from the event only what the snapshot left out; see [`EventSourced::replay_from`].
    pub refill: bool,
}

/// An occurrence in the life of an entity. Source: persistence §2.8 (signals).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Signal {
    /// The state is complete; commands follow.
    RecoveryCompleted,
    /// The state could not be built.
    RecoveryFailed(RecoveryFailure),
    /// The events of the last command are not stored. If the events were applied already, the entity
    /// restarts, unless it has a copy of the state to return to.
    PersistRejected(RejectReason),
    /// The append failed; if its outcome is unknown, only the coming recovery can tell what is stored.
    PersistFailed(AppendError),
    /// Another writer owns this history now; the entity ends.
    Fenced,
    /// A snapshot was saved.
    SnapshotCompleted(SeqNr),
    /// A snapshot was not saved; nothing is lost.
    SnapshotFailed(SeqNr, String),
    /// The events up to here are deleted.
    DeleteEventsCompleted(SeqNr),
    /// The events up to here were not deleted.
    DeleteEventsFailed(SeqNr, DeleteFailure),
    /// The snapshots that match are deleted.
    DeleteSnapshotsCompleted(SnapshotCriteria),
    /// The snapshots that match were not deleted.
    DeleteSnapshotsFailed(SnapshotCriteria, SnapshotError),
    /// Deliveries of the entity's tracker are unconfirmed for a long time; the tracker goes on sending them.
    Unconfirmed(UnconfirmedWarning),
    /// The entity is about to start anew. If the entity ran until now, the handler gets its last state and that state's
    /// number; if it did not run yet, or its state holds events that may not be stored, the default state and the
    /// number 0. Source: persistence 76.
    PreRestart,
    /// The entity has ended. After a graceful stop the handler gets the last state and that state's number; of an
    /// entity that did not run yet, that failed, that was stopped in the midst of an append or lost its history to
    /// another writer, the default state and the number 0. Source: persistence 76.
    PostStop,
}

impl Signal {
    /// Whether the signal is logged as a warning.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::RecoveryFailed(_)
                | Self::PersistRejected(_)
                | Self::PersistFailed(_)
                | Self::Fenced
                | Self::SnapshotFailed(..)
                | Self::DeleteEventsFailed(..)
                | Self::DeleteSnapshotsFailed(..)
                | Self::Unconfirmed(_)
        )
    }
}

/// Why events were not deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeleteFailure {
    /// There are no events up to this number yet; the store was not asked.
    #[error("the last event is {last}")]
    InvalidRange {
        /// The number of the last event.
        last: SeqNr,
    },
    /// The entity is read-only; the store was not asked.
    #[error("the entity is read-only")]
    ReadOnly,
    /// The store refused.
    #[error(transparent)]
    Store(DeleteError),
}

/// A step of recovery, for error texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryStep {
    /// Reading the head, claiming, advancing.
    Claim,
    /// Loading a snapshot.
    Snapshot,
    /// Waiting for a page of events.
    Replay,
    /// Reading a durable state.
    State,
}

impl fmt::Display for RecoveryStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claim => "claim",
            Self::Snapshot => "snapshot",
            Self::Replay => "replay",
            Self::State => "state",
        })
    }
}

/// Why a state could not be built. Source: persistence §2.5.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryFailure {
    /// A step was not answered in time.
    #[error("no answer to the {0} within its timeout")]
    Timeout(RecoveryStep),
    /// The claim failed.
    #[error(transparent)]
    Claim(ClaimError),
    /// The head or a page could not be read.
    #[error(transparent)]
    Read(ReadError),
    /// The snapshot store could not be reached. Recovery never replays the whole history instead, which would
    /// multiply the load of an outage.
    #[error(transparent)]
    Snapshot(SnapshotError),
    /// None of the snapshots that were tried could be used.
    #[error("none of {attempts} snapshots can be used, and the events alone do not give the state: {last}")]
    SnapshotsUnusable {
        /// Number of snapshots tried.
        attempts: u32,
        /// Reason why the last one could not be used.
        last: String,
    },
    /// The history could not be advanced to its snapshot.
    #[error(transparent)]
    Advance(AdvanceError),
    /// The snapshot needs events of before its own number, and those are deleted.
    #[error("the snapshot of {snapshot} needs the events from {replay_from} on, and those up to {deleted_to} are gone")]
    RefillMissing {
        /// The number of the snapshot.
        snapshot: SeqNr,
        /// The first event that it needs.
        replay_from: SeqNr,
        /// The last number deleted.
        deleted_to: SeqNr,
    },
    /// Events behind the snapshot are deleted, so the snapshot and the remaining events leave a gap.
    #[error("events up to {deleted_to} are deleted, but the snapshot is of {snapshot}")]
    EventsDeletedBeyondSnapshot {
        /// The number of the snapshot.
        snapshot: SeqNr,
        /// The last number deleted.
        deleted_to: SeqNr,
    },
    /// The beginning of the history is deleted, and there is no snapshot in its place.
    #[error("events up to {deleted_to} are deleted, and there is no snapshot")]
    MissingSnapshot {
        /// The last number deleted.
        deleted_to: SeqNr,
    },
    /// The snapshot is newer than the journal: the journal lost events, or belongs to another entity.
    #[error("the snapshot is of {snapshot}, but the journal ends at {highest}")]
    SnapshotAheadOfJournal {
        /// The number of the snapshot.
        snapshot: SeqNr,
        /// The last number in the journal.
        highest: SeqNr,
    },
    /// Two writers ran at the same time, and the settings say to fail then.
    #[error(transparent)]
    Overlap(WritersOverlap),
    /// A gap or a repeated number in the history.
    #[error("corrupt history: event {expected} was expected, {} came", got.map_or("none".to_owned(), |got| got.to_string()))]
    CorruptHistory {
        /// The sequence number that had to follow.
        expected: SeqNr,
        /// The sequence number that came; `None` if the history ended.
        got: Option<SeqNr>,
    },
    /// A record could not be decoded.
    #[error(transparent)]
    Unreadable(UnreadableRecord),
    /// A record's marks of delivery could not be decoded.
    #[error("malformed delivery marks at {0}")]
    Marks(SeqNr),
    /// A handler panicked.
    #[error("{handler} panicked at {seq_nr}: {message}")]
    Panicked {
        /// Name of the handler.
        handler: &'static str,
        /// The event's number, or the last number before.
        seq_nr: SeqNr,
        /// The panic's message.
        message: String,
    },
}

/// Why an entity ended without a request to stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The entity's state could not be built.
    #[error("recovery failed: {0}")]
    Recovery(RecoveryFailure),
    /// An append failed, or was rejected too often.
    #[error("persist failed: {0}")]
    Persist(AppendError),
    /// A durable state was not written.
    #[error("persist failed: {0}")]
    Write(StateWriteError),
    /// A handler panicked.
    #[error("{handler} panicked: {message}")]
    Handler {
        /// Name of the handler.
        handler: &'static str,
        /// The panic's message.
        message: String,
    },
    /// Too many commands wait, and the settings say to fail in that case.
    #[error("the stash is full")]
    StashFull,
    /// A store call ended without an answer, so that its outcome is unknown.
    #[error("a store call panicked; what it did is unknown")]
    StoreLost,
}

/// The writer to which an entity lost its history, as far as the store told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FencedBy {
    /// Another writer claimed the history: the head after its claim.
    Head(Head),
    /// Another append under the same epoch took the number that this entity was about to use.
    Conflict {
        /// The last number stored.
        highest: SeqNr,
    },
    /// Another writer wrote the durable state, or owns it under a greater generation.
    Revision(StateHead),
}

impl FencedBy {
    /// The stored generation, if any; a shard compares its own generation with it.
    pub fn generation(&self) -> Option<Generation> {
        match self {
            Self::Head(head) => head.generation,
            Self::Revision(head) => head.generation,
            Self::Conflict { .. } => None,
        }
    }
}
