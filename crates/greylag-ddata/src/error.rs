//! Why a request failed, and what it left behind.

use greylag_core::UniqueAddress;
use greylag_crdt::MergeError;

use crate::key::{InvalidKey, KeyId};
use crate::store::StoreError;

/// Why an update did not succeed. Source: ddata R3.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError<E> {
    /// Done here, perhaps elsewhere, and it will spread; but not confirmed by as many as required. Where the entry expired
    /// meanwhile, the change is as gone here as the rest of the entry.
    #[error(
        "{acked} of {needed} replicas confirmed the update and {refused} refused it; it is done locally and will spread"
    )]
    Timeout {
        /// How many were required.
        needed: usize,
        /// How many confirmed, this one included if it counts.
        acked: usize,
        /// How many refused or had to be given up.
        refused: usize,
    },
    /// The closure refused. Nothing changed.
    #[error("the update was refused by its closure: {0}")]
    Modify(E),
    /// The closure panicked. Nothing changed.
    #[error("the update's closure panicked; nothing changed")]
    ModifyPanicked,
    /// What the closure left cannot be joined with the entry. Nothing changed.
    #[error("the closure's value was refused; nothing changed: {0}")]
    Merge(MergeError),
    /// In memory, perhaps replicated, but not stored by as many as required.
    #[error("the update of {key:?} is in memory but could not be stored as required")]
    StoreFailed {
        /// The entry.
        key: KeyId,
    },
    /// The entry is deleted, here or at a replica that was asked.
    #[error("{key:?} is deleted")]
    Deleted {
        /// The entry.
        key: KeyId,
    },
    /// The entry holds another type. The closure was not called.
    #[error("{key:?} holds a {found}, not a {expected}")]
    TypeMismatch {
        /// The entry.
        key: KeyId,
        /// The type asked for.
        expected: String,
        /// The type that is there.
        found: String,
    },
    /// The entry would grow above `max_entry_bytes`. Nothing changed.
    #[error("{key:?} would have {size} bytes, more than {max}; nothing changed")]
    EntryTooLarge {
        /// The entry.
        key: KeyId,
        /// Its size after the update.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// See [`RequestError`].
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Why a read was not answered. Source: ddata R4.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// Fewer replicas answered than required. The answers that did arrive were joined.
    #[error("{got} of {needed} replicas answered")]
    Failure {
        /// How many were required.
        needed: usize,
        /// How many answered, this one included if it counts.
        got: usize,
    },
    /// The entry holds another type.
    #[error("{key:?} holds a {found}, not a {expected}")]
    TypeMismatch {
        /// The entry.
        key: KeyId,
        /// The type asked for.
        expected: String,
        /// The type that is there.
        found: String,
    },
    /// See [`RequestError`].
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Why an entry was not read as a value of its type. Source: ddata R4, R5.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// See [`GetError`].
    #[error(transparent)]
    Get(#[from] GetError),
    /// The entry is deleted, and stays so.
    #[error("{key:?} is deleted")]
    Deleted {
        /// The entry.
        key: KeyId,
    },
}

/// Why a delete did not succeed. Source: ddata R5.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// The entry was deleted before.
    #[error("{key:?} is deleted already")]
    AlreadyDeleted {
        /// The entry.
        key: KeyId,
    },
    /// Deleted here, and it will spread; but not confirmed by as many as required.
    #[error("{acked} of {needed} replicas confirmed the delete; it is done locally and will spread")]
    ReplicationFailed {
        /// How many were required.
        needed: usize,
        /// How many confirmed, this one included if it counts.
        acked: usize,
    },
    /// Deleted in memory, but not stored by as many as required.
    #[error("the delete of {key:?} is in memory but could not be stored as required")]
    StoreFailed {
        /// The entry.
        key: KeyId,
    },
    /// See [`RequestError`].
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Why a request was not taken. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The id cannot name an entry.
    #[error(transparent)]
    InvalidKey(#[from] InvalidKey),
    /// A count below 2 or a timeout of zero; use the local level for one replica.
    #[error("a level needs a timeout above zero and at least 2 replicas; use the local level for one")]
    InvalidConsistency,
    /// Too many requests wait; try again later.
    #[error("too many requests wait")]
    Overloaded,
    /// The replicator has stopped.
    #[error("the replicator has stopped: {0}")]
    Stopped(StopReason),
}

/// Why a replicator stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// The program, or its node, shut the replicator down.
    #[error("it was shut down")]
    ShutDown,
    /// This node is no longer a member.
    #[error("this node was removed")]
    Removed,
    /// Durable entries could not be loaded, however often it was tried.
    #[error("durable entries could not be loaded: {0}")]
    StoreLoadFailed(StoreError),
    /// The store has lost changes that it had acknowledged. It was not opened, and stays as it is. Source: ddata U5.
    #[error(
        "the store {place} has lost its end: commit {expected} was acknowledged, the last one that is there is {found}; \
         restore it from a copy, or set durable.stale_store to discard, which sets it aside under another name"
    )]
    StoreTailLost {
        /// Where the store is.
        place: String,
        /// The last commit that was acknowledged.
        expected: u64,
        /// The last one that is there.
        found: u64,
    },
    /// A stored record cannot be read. See `durable.on_bad_record`.
    #[error(
        "the stored record of {key:?} cannot be read: {why}; repair the store, or set durable.on_bad_record to quarantine"
    )]
    BadRecord {
        /// The entry.
        key: KeyId,
        /// What is wrong with it.
        why: String,
    },
    /// The store parted from what the others hold, and since then one of both has forgotten what was removed. Nothing
    /// was exchanged. The replicator goes on telling others that it is refused until its last handle is dropped.
    /// See `durable.stale_store`. Source: ddata Z11.
    #[error(
        "the store was last in touch at {synced_at}; its history and that of {peer} parted at {parted}, and since then \
         something was forgotten ({}); remove the store, or set durable.stale_store to discard",
        forgotten(*own_horizon, *horizon)
    )]
    StoreTooOld {
        /// When this store was last in touch, wall clock in milliseconds.
        synced_at: i64,
        /// When its history and that of the peer parted.
        parted: i64,
        /// Up to when things were forgotten here.
        own_horizon: Option<i64>,
        /// Up to when the peer has forgotten.
        horizon: Option<i64>,
        /// The peer.
        peer: UniqueAddress,
    },
}

/// Up to when which of both has forgotten.
fn forgotten(own: Option<i64>, theirs: Option<i64>) -> String {
    let part = |who: &str, horizon: Option<i64>| horizon.map(|horizon| format!("{who} up to {horizon}"));
    [part("here", own), part("there", theirs)].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Why a replicator did not start.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Two settings exclude each other, or one is out of range.
    #[error("invalid settings: {0}")]
    Settings(String),
    /// This node lacks a role that the replicator needs.
    #[error("the replicator needs the roles {required:?}, this node has {own:?}")]
    RoleMismatch {
        /// All that are needed.
        required: Vec<String>,
        /// What the node has.
        own: Vec<String>,
    },
    /// Another replicator of that name runs on this node.
    #[error("a replicator named {name:?} runs on {node} already; give this one another name")]
    DuplicateName {
        /// The name.
        name: String,
        /// The node.
        node: UniqueAddress,
    },
}

greylag_core::debug_is_sentence!(StartError);
