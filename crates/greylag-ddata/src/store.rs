//! What a store of durable entries is: load everything once, append changes, flush.
//!
//! ```text
//! start   machine: Load             --> store: load_all  --> Loaded*, LoadDone | LoadFailed
//! change  machine: Store{ticket}    --> store: append, flush --> Stored{ticket}
//! lost    machine: LoadAnew         --> store: set_aside, load_all  --> as start
//! stop                                  store: close
//! ```
//!
//! The replicator hands over changes, one append at a time: changes made while one is under way go
//! into the next, so that pending changes of all entries share one flush. A store knows
//! nothing of types; it keeps, for each entry, the snapshot last put and the deltas appended since.
//!
//! The default store is the feature `ddata` of `greylag-store-sled`. Source: ddata U2.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use greylag_crdt::{Markers, ReplicaId};

use crate::gate::Starts;
use crate::key::KeyId;

/// One change of what is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreOp {
    /// The entry is this now; a snapshot and deltas that are stored for it give way, a tombstone too.
    Put {
        /// The entry.
        key: KeyId,
        /// The tag of its type.
        tag: Arc<str>,
        /// The canonical bytes of its value.
        bytes: Bytes,
        /// What was put where of removed replicas.
        markers: Markers,
    },
    /// A delta to be joined with what is stored for the entry. Only after a `Put` of it.
    Delta {
        /// The entry.
        key: KeyId,
        /// The canonical bytes of the delta.
        bytes: Bytes,
    },
    /// The entry is deleted; what was stored for it gives way.
    Tombstone {
        /// The entry.
        key: KeyId,
        /// Wall clock of the deletion, in milliseconds.
        deleted_at: i64,
    },
    /// Nothing is stored for the entry any more; nothing happens if nothing was.
    Remove {
        /// The entry.
        key: KeyId,
    },
    /// Everything that is stored for the entry is moved aside: it is kept for operators to look at, and
    /// loaded no more.
    Quarantine {
        /// The entry.
        key: KeyId,
    },
    /// What the replicator itself has to remember, in place of what it remembered before.
    Meta(StoreMeta),
}

/// What a replicator remembers beside its entries. Source: ddata Z9.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreMeta {
    /// When this was written: wall clock in milliseconds.
    pub written_at: i64,
    /// When the latest complete round with a member began whose gate was open, or the time of writing as long as
    /// nothing was exchanged with any member.
    pub synced_at: Option<i64>,
    /// Whether data were ever exchanged with another member.
    pub has_met_others: bool,
    /// Up to when markers and tombstones were forgotten.
    pub forget_horizon: Option<i64>,
    /// The starts of the history that this store belongs to. Source: ddata Z11.
    pub starts: Starts,
    /// Replicas that were removed and are not forgotten.
    pub removed: BTreeSet<ReplicaId>,
}

/// What is stored for one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadedRecord {
    /// A value.
    Value {
        /// The entry.
        key: KeyId,
        /// The tag of its type.
        tag: Arc<str>,
        /// The canonical bytes of the snapshot.
        bytes: Bytes,
        /// The markers of the snapshot.
        markers: Markers,
        /// Deltas that were appended since; their order does not matter.
        deltas: Vec<Bytes>,
    },
    /// A deleted entry.
    Tombstone {
        /// The entry.
        key: KeyId,
        /// Wall clock of the deletion, in milliseconds.
        deleted_at: i64,
    },
    /// Something is stored for the entry and cannot be read.
    Bad {
        /// The entry.
        key: KeyId,
        /// What is wrong with it.
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

/// Some of what is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadBatch {
    /// Entries, each in one batch only.
    pub records: Vec<LoadedRecord>,
    /// What the replicator remembered; in one batch at most, whichever.
    pub meta: Option<StoreMeta>,
}

/// Why a store did not do what it was asked. Source: ddata U5.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another process has the store open.
    #[error("store {place} is in use by another process; stop that process or choose another place")]
    Locked {
        /// Where it is.
        place: String,
    },
    /// Changes that it had acknowledged are gone from its end, so it is not opened: it would show an older state. Source:
    /// ddata U2.
    #[error(
        "store {place} has lost its end: commit {expected} was acknowledged, the last one that is there is {found}"
    )]
    TailLost {
        /// Where it is.
        place: String,
        /// The last commit that was acknowledged.
        expected: u64,
        /// The last one that is there; 0 if there is none.
        found: u64,
    },
    /// The store cannot be opened, read or written. What was appended last may or may not be stored.
    #[error("store {place} failed: {why}")]
    Failed {
        /// Where it is.
        place: String,
        /// What it said.
        why: String,
    },
}

/// Keeps the durable entries of one replicator.
///
/// The calls come from one task, one at a time, `load_all` first. The public conformance kit says in
/// tests what is asked of an implementation: `greylag_ddata::tck`, behind the feature `tck`.
pub trait DurableStore: Send + Sync + 'static {
    /// Opens the store if it is not open, and reads all of it. Called again after an error.
    ///
    /// A record that cannot be read is a [`LoadedRecord::Bad`] and no error: the others are wanted.
    fn load_all(&self) -> BoxStream<'_, Result<LoadBatch, StoreError>>;

    /// Takes changes, to be made in this order. They need not be durable before [`Self::flush`] returns.
    /// After an error the outcome of all changes since the last flush is unknown; those that matter come
    /// again, as [`StoreOp::Put`], and the store must take them if it can by then.
    fn append(&self, ops: Vec<StoreOp>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Returns once everything appended is durable, also against power loss.
    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Gives what is stored another name, under which nothing opens it by itself, and answers that name. The place is empty
    /// then. Asked only of a store that said [`StoreError::TailLost`], if `durable.stale_store` is `Discard`. Default: an
    /// error, for stores that never say that. Source: ddata U5.
    fn set_aside(&self) -> BoxFuture<'_, Result<String, StoreError>> {
        let (place, why) = ("of this kind".to_owned(), "it cannot be set aside".to_owned());
        Box::pin(std::future::ready(Err(StoreError::Failed { place, why })))
    }

    /// Flushes and closes. The same place can be opened anew at once, by any process.
    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>>;
}
