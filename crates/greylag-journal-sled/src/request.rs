//! Requests to the committer, and its answers.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use greylag_persistence::{
    AdvanceError, AppendError, Appended, Claim, ClaimError, DeleteError, EncodedValue, Head, ImportError, OffsetError,
    OwnedSlices, PersistenceId, SeqNr, SnapshotCriteria, SnapshotError, StateWrite, StateWriteError, StoredState,
    Timestamp, Under, WriterEpoch, WriterUuid,
};

use crate::rows::keys::SaveNo;
use crate::rows::offset_row::ProcessedChange;
use crate::rows::records::{EncodedEvent, EncodedSnapshot};

/// A request. Large and rare variants are boxed, since appends pass through the queue by the thousand.
#[derive(Debug)]
pub(crate) enum Request {
    Claim {
        id: PersistenceId,
        writer_uuid: WriterUuid,
        under: Under,
    },
    Advance {
        id: PersistenceId,
        epoch: WriterEpoch,
        to: SeqNr,
    },
    Append(EncodedAppend),
    DeleteTo {
        id: PersistenceId,
        epoch: WriterEpoch,
        to: SeqNr,
    },
    SnapshotChunks(SnapshotChunks),
    SaveSnapshot {
        snapshot: EncodedSnapshot,
        chunks_written_in: Option<Opening>,
        /// Timestamp of a snapshot that is imported from another store; `None` takes the clock's.
        taken_at: Option<Timestamp>,
    },
    DeleteSnapshot {
        id: PersistenceId,
        seq_nr: SeqNr,
    },
    DeleteSnapshots {
        id: PersistenceId,
        criteria: SnapshotCriteria,
    },
    WriteState(Box<WriteState>),
    ClaimSlices {
        projection: String,
        slices: RangeInclusive<u16>,
    },
    ChangeOffsets {
        owned: OwnedSlices,
        change: OffsetChange,
    },
    ImportEvents(Box<EncodedPart>),
    ImportState(Box<StoredState>),
}

/// A write of a durable state. `None` as content deletes the state.
#[derive(Debug)]
pub(crate) struct WriteState {
    pub(crate) write: StateWrite,
    pub(crate) content: Option<(EncodedValue, Option<String>)>,
}

/// A change of the offsets of slices by their owner.
#[derive(Debug)]
pub(crate) enum OffsetChange {
    /// Saves places, by slice.
    Save(BTreeMap<u16, Vec<ProcessedChange>>),
    /// Forgets places before this ordinal.
    ForgetBefore(u64),
    Reset,
}

/// An append whose events are encoded already, on the caller's thread.
#[derive(Debug)]
pub(crate) struct EncodedAppend {
    pub(crate) id: PersistenceId,
    pub(crate) epoch: WriterEpoch,
    pub(crate) writer_uuid: WriterUuid,
    pub(crate) first: SeqNr,
    pub(crate) last: SeqNr,
    pub(crate) events: Vec<EncodedEvent>,
}

/// Events that are imported from another store, with the head after them.
#[derive(Debug)]
pub(crate) struct EncodedPart {
    pub(crate) id: PersistenceId,
    /// The stored head when the part was checked; it must still be the stored one.
    pub(crate) stored: Head,
    pub(crate) head: Head,
    pub(crate) last_append: Timestamp,
    pub(crate) first: SeqNr,
    pub(crate) events: Vec<(Timestamp, EncodedEvent)>,
}

/// Some chunks of a snapshot that does not fit into one row.
#[derive(Debug)]
pub(crate) struct SnapshotChunks {
    pub(crate) id: PersistenceId,
    pub(crate) seq_nr: SeqNr,
    pub(crate) save: SaveNo,
    pub(crate) first_chunk: u16,
    pub(crate) chunks: Vec<Vec<u8>>,
}

/// Counts openings of the store; a reopening after a failure counts, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Opening(pub(crate) u64);

/// The answer to the request of the same name.
#[derive(Debug)]
pub(crate) enum Answer {
    Claim(Result<Claim, ClaimError>),
    Advance(Result<(), AdvanceError>),
    Append(Result<Appended, AppendError>),
    DeleteTo(Result<SeqNr, DeleteError>),
    /// The opening in which the chunks were written; a later opening sweeps them away.
    SnapshotChunks(Result<Opening, SnapshotError>),
    SaveSnapshot(Result<Timestamp, SnapshotError>),
    DeleteSnapshots(Result<(), SnapshotError>),
    WriteState(Result<(), StateWriteError>),
    ClaimSlices(Result<OwnedSlices, OffsetError>),
    ChangeOffsets(Result<(), OffsetError>),
    /// Answer to both kinds of import.
    Import(Result<(), ImportError>),
}

impl greylag_store_sled::Request for Request {
    fn bytes(&self) -> usize {
        const OVERHEAD: usize = 128;
        const SLICE_BYTES: usize = 64;
        OVERHEAD
            + match self {
                Self::Append(append) => append.events.iter().map(EncodedEvent::len).sum(),
                Self::SnapshotChunks(part) => part.chunks.iter().map(Vec::len).sum(),
                Self::SaveSnapshot { snapshot, .. } => snapshot.len(),
                Self::WriteState(asked) => asked.content.as_ref().map_or(0, |(value, _)| value.payload.len()),
                Self::ClaimSlices { projection, slices } => slices.len() * (projection.len() + SLICE_BYTES),
                Self::ChangeOffsets { owned, change } => {
                    let places =
                        if let OffsetChange::Save(places) = change { places.values().map(Vec::len).sum() } else { 0 };
                    owned.projection.len() + (owned.epochs.len() + places) * SLICE_BYTES
                }
                Self::ImportEvents(part) => part.events.iter().map(|(_, event)| event.len()).sum(),
                Self::ImportState(state) => state.value.as_ref().map_or(0, |value| value.payload.len()),
                _ => 0,
            }
    }
}
