//! Event sourcing: the journal contract with its fence, entities, recovery, snapshots.

mod error;
mod event;
mod journal;
mod persistence_id;
mod snapshot;
mod stores;

pub use error::{
    AdvanceError, AppendError, ClaimError, CloseError, Corrupt, CorruptKind, DeleteError, ReadError, RejectReason,
    SnapshotError, StoreFailure,
};
pub use event::{
    EventKind, MAX_MANIFEST_BYTES, MAX_TAG_BYTES, MAX_TAGS, Metadata, NewEvent, SeqNr, StoredEvent, Tags, Timestamp,
    WriterEpoch, WriterUuid,
};
pub use journal::{Append, Appended, Caps, Claim, Head, Health, Journal, Page, ReadRange, Scope, Under};
pub use persistence_id::{
    InvalidPersistenceId, InvalidSliceCount, MAX_ID_BYTES, PersistenceId, SEPARATOR, SLICES, slice_ranges,
};
pub use snapshot::{NewSnapshot, Snapshot, SnapshotCaps, SnapshotCriteria, SnapshotStore};
pub use stores::Stores;
