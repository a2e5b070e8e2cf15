//! Event sourcing: the journal contract with its fence, entities, recovery, snapshots.

mod behavior;
mod codec;
pub mod driver;
mod effect;
mod entity;
mod error;
mod event;
mod journal;
mod marks;
mod persistence_id;
mod settings;
mod snapshot;
#[cfg(feature = "tck")]
pub mod tck;

pub use behavior::{
    CommandContext, DeleteFailure, EventMeta, EventSourced, Failure, FencedBy, RecoveryFailure, RecoveryStep, Signal,
};
pub use codec::{EncodedValue, EventSeq, StoredCodec, StoredDecodeError, UnreadableRecord, Upcaster};
pub use driver::stores::{Journal, SnapshotStore, Stores};
pub use driver::{AppendFault, InMemoryJournal, InMemorySnapshots};
pub use effect::Effect;
pub use entity::{
    Action, DeletedBy, DroppedCommand, EntityCore, EntityInit, Incarnation, Input, PhaseName, StoreAnswer, StoreCall,
};
pub use error::{
    AdvanceError, AppendError, ClaimError, CloseError, Corrupt, CorruptKind, DeleteError, ReadError, RejectReason,
    SnapshotError, StoreFailure,
};
pub use event::{
    EventKind, MAX_MANIFEST_BYTES, MAX_TAG_BYTES, MAX_TAGS, Metadata, NewEvent, SeqNr, StoredEvent, Tags, Timestamp,
    WriterEpoch, WriterUuid,
};
pub use journal::{Append, Appended, Caps, Claim, Head, Health, Page, ReadRange, Scope, Under};
pub use marks::{Applied, MARK_NAME, MalformedMarks, Mark, Marks, StreamId};
pub use persistence_id::{
    InvalidPersistenceId, InvalidSliceCount, MAX_ID_BYTES, PersistenceId, SEPARATOR, SLICES, slice_ranges,
};
pub use settings::{
    Backoff, EventSourcedSettings, OnFailure, OnUnknownEvent, Recovery, SettingsError, SnapshotFailurePolicy,
    StashOverflow,
};
pub use snapshot::{NewSnapshot, Snapshot, SnapshotCaps, SnapshotCriteria};
