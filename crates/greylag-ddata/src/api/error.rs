//! Errors of requests, and the effects that a failed request leaves.

use greylag_core::UniqueAddress;
use greylag_crdt::MergeError;

use crate::api::key::{InvalidKey, KeyId};
use crate::storage::store::StoreError;

/// Why an update did not succeed. Source: ddata R3.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError<E> {
    /// The update is done here, perhaps elsewhere, and will spread, but fewer replicas confirmed it than required. If
    /// the entry expired meanwhile, the change is gone here together with the entry.
    #[error(
        "{acked} of {needed} replicas confirmed the update and {refused} refused it; it is done locally and will spread"
    )]
    Timeout {
        /// How many confirmations were required.
        needed: usize,
        /// How many replicas confirmed, including this one if it counts.
        acked: usize,
        /// How many replicas refused or had to be given up.
        refused: usize,
    },
    /// The closure returned an error. Nothing changed.
    #[error("the update was refused by its closure: {0}")]
    Modify(E),
    /// The closure panicked. Nothing changed.
    #[error("the update's closure panicked; nothing changed")]
    ModifyPanicked,
    /// The closure's value cannot be joined with the entry. Nothing changed.
    #[error("the closure's value was refused; nothing changed: {0}")]
    Merge(MergeError),
    /// The update is in memory, perhaps replicated, but fewer replicas stored it than required.
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
        /// The requested type.
        expected: String,
        /// The type that the entry holds.
        found: String,
    },
    /// The entry would grow above `max_entry_bytes`. Nothing changed.
    #[error("{key:?} would have {size} bytes, more than {max}; nothing changed")]
    EntryTooLarge {
        /// The entry.
        key: KeyId,
        /// The entry's size after the update, in bytes.
        size: usize,
        /// The limit, `max_entry_bytes`.
        max: usize,
    },
    /// See [`RequestError`].
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Why a read was not answered. Source: ddata R4.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// Fewer replicas answered than required. The answers that arrived were joined.
    #[error("{got} of {needed} replicas answered")]
    Failure {
        /// How many answers were required.
        needed: usize,
        /// How many replicas answered, including this one if it counts.
        got: usize,
    },
    /// The entry holds another type.
    #[error("{key:?} holds a {found}, not a {expected}")]
    TypeMismatch {
        /// The entry.
        key: KeyId,
        /// The requested type.
        expected: String,
        /// The type that the entry holds.
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
    /// The entry is deleted for good.
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
    /// The entry is deleted here, and the deletion will spread, but fewer replicas confirmed it than required.
    #[error("{acked} of {needed} replicas confirmed the delete; it is done locally and will spread")]
    ReplicationFailed {
        /// How many confirmations were required.
        needed: usize,
        /// How many replicas confirmed, including this one if it counts.
        acked: usize,
    },
    /// The entry is deleted in memory, but fewer replicas stored the deletion than required.
    #[error("the delete of {key:?} is in memory but could not be stored as required")]
    StoreFailed {
        /// The entry.
        key: KeyId,
    },
    /// See [`RequestError`].
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Why a request was not accepted. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The id cannot name an entry.
    #[error(transparent)]
    InvalidKey(#[from] InvalidKey),
    /// The level has a count below 2 or a timeout of zero; use the local level for one replica.
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
    /// Durable entries could not be loaded, after all retries.
    #[error("durable entries could not be loaded: {0}")]
    StoreLoadFailed(StoreError),
    /// The store has lost acknowledged changes. It was not opened, and stays as it is. Source: ddata U5.
    #[error(
        "the store {place} has lost its last commits: commit {expected} was acknowledged, the last one that is there is {found}; \
         restore it from a copy, or set durable.stale_store to discard, which sets it aside under another name"
    )]
    StoreTailLost {
        /// The path of the store.
        place: String,
        /// The last acknowledged commit.
        expected: u64,
        /// The last commit that is there.
        found: u64,
    },
    /// A stored record cannot be read. See `durable.on_bad_record`.
    #[error(
        "the stored record of {key:?} cannot be read: {why}; repair the store, or set durable.on_bad_record to quarantine"
    )]
    BadRecord {
        /// The entry.
        key: KeyId,
        /// The damage.
        why: String,
    },
    /// The store's history parted from that of the others, and since then one of both has forgotten what was removed.
    /// Nothing was exchanged. The replicator goes on answering others that it is refused until its last handle is
    /// dropped. See `durable.stale_store`. Source: ddata Z11.
    #[error(
        "the store was last in touch at {synced_at}; its history and that of {peer} parted at {parted}, and since then \
         something was forgotten ({}); remove the store, or set durable.stale_store to discard",
        forgotten(*own_horizon, *horizon)
    )]
    StoreTooOld {
        /// When this store was last in touch, wall clock in milliseconds.
        synced_at: i64,
        /// When the histories of the store and of the peer parted, wall clock in milliseconds.
        parted: i64,
        /// The forget horizon of the store.
        own_horizon: Option<i64>,
        /// The forget horizon of the peer.
        horizon: Option<i64>,
        /// The peer that judged the store.
        peer: UniqueAddress,
    },
}

/// The horizons of both sides, in words.
fn forgotten(own: Option<i64>, theirs: Option<i64>) -> String {
    let part = |who: &str, horizon: Option<i64>| horizon.map(|horizon| format!("{who} up to {horizon}"));
    [part("here", own), part("there", theirs)].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Why a replicator did not start.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// A setting is out of range, or two settings contradict each other.
    #[error("invalid settings: {0}")]
    Settings(String),
    /// This node lacks a role that the replicator needs.
    #[error("the replicator needs the roles {required:?}, this node has {own:?}")]
    RoleMismatch {
        /// All roles that the replicator needs.
        required: Vec<String>,
        /// The roles of the node.
        own: Vec<String>,
    },
    /// Another replicator of the same name runs on this node.
    #[error("a replicator named {name:?} runs on {node} already; give this one another name")]
    DuplicateName {
        /// The name.
        name: String,
        /// The node.
        node: UniqueAddress,
    },
}

greylag_core::debug_is_sentence!(StartError);
