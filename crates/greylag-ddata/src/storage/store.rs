//! The interface of stores of durable entries: load everything once, append changes, flush.
//!
//! ```text
//! start   machine: Load             --> store: load_all  --> Loaded*, LoadDone | LoadFailed
//! change  machine: Store{ticket}    --> store: append, flush --> Stored{ticket}
//! lost    machine: LoadAnew         --> store: set_aside, load_all  --> as start
//! stop                                  store: close
//! ```
//!
//! The replicator makes one append at a time: changes made meanwhile go into the next one, so that pending changes of
//! all entries share one flush. A store knows no types; it keeps, for each entry, the snapshot last put and the deltas
//! appended since.
//!
//! The default store is the feature `ddata` of `greylag-store-sled`. Source: ddata U2.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use greylag_crdt::{Markers, ReplicaId};

use crate::api::key::KeyId;
use crate::gate::Starts;

/// A change to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreOp {
    /// Stores a snapshot of the entry; it replaces a stored snapshot with its deltas, or a tombstone.
    Put {
        /// The entry.
        key: KeyId,
        /// The tag of the value's type.
        tag: Arc<str>,
        /// The canonical bytes of the value.
        bytes: Bytes,
        /// The markers of removed replicas.
        markers: Markers,
    },
    /// Appends a delta to the stored snapshot of the entry. Only after a `Put` of the entry.
    Delta {
        /// The entry.
        key: KeyId,
        /// The canonical bytes of the delta.
        bytes: Bytes,
    },
    /// Stores a tombstone; it replaces everything stored for the entry.
    Tombstone {
        /// The entry.
        key: KeyId,
        /// Wall clock of the deletion, in milliseconds.
        deleted_at: i64,
    },
    /// Removes everything stored for the entry; does nothing if there is nothing.
    Remove {
        /// The entry.
        key: KeyId,
    },
    /// Moves everything stored for the entry aside: it is kept for operators to inspect, and no longer loaded.
    Quarantine {
        /// The entry.
        key: KeyId,
    },
    /// Stores the replicator's own record, which replaces the former one.
    Meta(StoreMeta),
}

/// The replicator's own record: what it remembers beside its entries. Source: ddata Z9.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreMeta {
    /// When this was written: wall clock in milliseconds.
    pub written_at: i64,
    /// When the latest complete round with a member whose gate was open began; or the time of writing, as long as
    /// nothing was exchanged with any member.
    pub synced_at: Option<i64>,
    /// Whether data were ever exchanged with another member.
    pub has_met_others: bool,
    /// The time up to which markers and tombstones were forgotten.
    pub forget_horizon: Option<i64>,
    /// The starts of the history that this store belongs to. Source: ddata Z11.
    pub starts: Starts,
    /// Replicas that were removed and are not forgotten.
    pub removed: BTreeSet<ReplicaId>,
}

/// The stored record of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadedRecord {
    /// A value.
    Value {
        /// The entry.
        key: KeyId,
        /// The tag of the value's type.
        tag: Arc<str>,
        /// The canonical bytes of the snapshot.
        bytes: Bytes,
        /// The markers of the snapshot.
        markers: Markers,
        /// The deltas appended since; their order does not matter.
        deltas: Vec<Bytes>,
    },
    /// A deleted entry.
    Tombstone {
        /// The entry.
        key: KeyId,
        /// Wall clock of the deletion, in milliseconds.
        deleted_at: i64,
    },
    /// A record that cannot be read.
    Bad {
        /// The entry.
        key: KeyId,
        /// The damage.
        why: String,
    },
}

impl LoadedRecord {
    /// The entry.
    pub fn key(&self) -> &KeyId {
        match self {
            Self::Value { key, .. } | Self::Tombstone { key, .. } | Self::Bad { key, .. } => key,
        }
    }
}

/// A part of the stored records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadBatch {
    /// Records of entries, each in one batch only.
    pub records: Vec<LoadedRecord>,
    /// The replicator's own record; in at most one batch, whichever.
    pub meta: Option<StoreMeta>,
}

/// Why a store failed. Source: ddata U5.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another process has the store open.
    #[error("store {place} is in use by another process; stop that process or choose another place")]
    Locked {
        /// The path of the store.
        place: String,
    },
    /// Acknowledged changes are missing at the end of the store, so it is not opened: it would show an older state.
    /// Source: ddata U2.
    #[error(
        "store {place} has lost its last commits: commit {expected} was acknowledged, the last one that is there is {found}"
    )]
    TailLost {
        /// The path of the store.
        place: String,
        /// The last acknowledged commit.
        expected: u64,
        /// The last commit that is there; 0 if there is none.
        found: u64,
    },
    /// The store cannot be opened, read or written. The last appended changes may or may not be stored.
    #[error("store {place} failed: {why}")]
    Failed {
        /// The path of the store.
        place: String,
        /// The store's error.
        why: String,
    },
}

/// Keeps the durable entries of one replicator.
///
/// The calls come from one task, one at a time, `load_all` first. The public conformance kit tests the requirements on
/// an implementation: `greylag_ddata::tck`, behind the feature `tck`.
pub trait DurableStore: Send + Sync + 'static {
    /// Opens the store if it is not open, and reads all of it. Called again after an error.
    ///
    /// A record that cannot be read is a [`LoadedRecord::Bad`] and no error: the other records are still needed.
    fn load_all(&self) -> BoxStream<'_, Result<LoadBatch, StoreError>>;

    /// Appends changes, to be made in this order. They need not be durable before [`Self::flush`] returns. After an
    /// error the outcome of all changes since the last flush is unknown; those that matter are appended again, as
    /// [`StoreOp::Put`], and the store must accept them if it can by then.
    fn append(&self, ops: Vec<StoreOp>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Returns once everything appended is durable, also against power loss.
    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Renames the stored data, so that nothing opens them by themselves, and returns the new path; the old path is
    /// then free. Called only after [`StoreError::TailLost`], if `durable.stale_store` is `Discard`. Default: an error,
    /// for stores that never return that error. Source: ddata U5.
    fn set_aside(&self) -> BoxFuture<'_, Result<String, StoreError>> {
        let (place, why) = ("of this kind".to_owned(), "it cannot be set aside".to_owned());
        Box::pin(std::future::ready(Err(StoreError::Failed { place, why })))
    }

    /// Flushes and closes. Any process can open the same path again at once.
    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>>;
}
