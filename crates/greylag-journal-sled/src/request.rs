//! What the journal asks of its committer, and what it is answered.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use greylag_persistence::{
    AdvanceError, AppendError, Appended, Claim, ClaimError, DeleteError, EncodedValue, Head, ImportError, OffsetError,
    OwnedSlices, PersistenceId, SeqNr, SnapshotCriteria, SnapshotError, StateWrite, StateWriteError, StoredState,
    Timestamp, Under, WriterEpoch, WriterUuid,
};

use crate::keys::SaveNo;
use crate::offset_row::Place;
use crate::records::{EncodedEvent, EncodedSnapshot};

/// Large and rare variants are boxed, since appends pass through the queue by the thousand.
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
        /// Of one that is taken over from another store; otherwise the clock tells.
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

/// A write of a durable state. Without content the state is deleted.
#[derive(Debug)]
pub(crate) struct WriteState {
    pub(crate) write: StateWrite,
    pub(crate) content: Option<(EncodedValue, Option<String>)>,
}

/// What an owner does to the offsets of its slices.
#[derive(Debug)]
pub(crate) enum OffsetChange {
    /// By slice.
    Save(BTreeMap<u16, Vec<Place>>),
    /// What stands before this ordinal.
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

/// Events that are taken over from another store, with the head that they end at.
#[derive(Debug)]
pub(crate) struct EncodedPart {
    pub(crate) id: PersistenceId,
    /// The head that was found when the part was checked; it must be the stored one still.
    pub(crate) stored: Head,
    pub(crate) head: Head,
    pub(crate) last_append: Timestamp,
    pub(crate) first: SeqNr,
    pub(crate) events: Vec<(Timestamp, EncodedEvent)>,
}

/// Some chunks of a snapshot that one row does not hold.
#[derive(Debug)]
pub(crate) struct SnapshotChunks {
    pub(crate) id: PersistenceId,
    pub(crate) seq_nr: SeqNr,
    pub(crate) save: SaveNo,
    pub(crate) first_chunk: u16,
    pub(crate) chunks: Vec<Vec<u8>>,
}

/// Counts how often the store was opened, again after a failure too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Opening(pub(crate) u64);

/// The answer to the request of the same name.
#[derive(Debug)]
pub(crate) enum Answer {
    Claim(Result<Claim, ClaimError>),
    Advance(Result<(), AdvanceError>),
    Append(Result<Appended, AppendError>),
    DeleteTo(Result<SeqNr, DeleteError>),
    /// In which life of the store they were written; an opening in between sweeps them away.
    SnapshotChunks(Result<Opening, SnapshotError>),
    SaveSnapshot(Result<Timestamp, SnapshotError>),
    DeleteSnapshots(Result<(), SnapshotError>),
    WriteState(Result<(), StateWriteError>),
    ClaimSlices(Result<OwnedSlices, OffsetError>),
    ChangeOffsets(Result<(), OffsetError>),
    /// To both kinds of import.
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
