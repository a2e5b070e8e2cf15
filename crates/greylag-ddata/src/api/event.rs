//! Events of a replicator, for operators. Source: ddata I3.

use std::sync::Arc;

use greylag_core::{NodeAddress, UniqueAddress};
use greylag_crdt::ReplicaId;

use crate::api::key::KeyId;
use crate::storage::store::StoreError;

/// An entry that never converges: a peer holds another type under its id. Source: ddata A5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeConflict {
    /// The entry.
    pub key: KeyId,
    /// The tag of the entry's type here.
    pub own: Arc<str>,
    /// The peer that was heard last in this conflict.
    pub peer: UniqueAddress,
    /// The tag of the entry's type at the peer.
    pub found: Arc<str>,
}

/// An event that operators may want to know. Source: ddata I3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicatorEvent {
    /// A peer holds another type under a key; the key will never converge.
    TypeConflict(TypeConflict),
    /// A peer was asked several times in a row and never answered; perhaps no replicator of this name was started
    /// there. Source: ddata I1.
    PeerSilent {
        /// The peer.
        peer: UniqueAddress,
    },
    /// A write's timestamp is far ahead of the own wall clock; the write wins until other timestamps pass it. Reported
    /// once per entry. Source: ddata Y6.
    ClockAhead {
        /// The entry.
        key: KeyId,
        /// The peer that sent the write; the write itself names the writer whose clock was ahead.
        peer: UniqueAddress,
        /// By how many milliseconds the timestamp is ahead.
        ahead_ms: i64,
    },
    /// A peer holds numbers of this replica that this replica never drew: another process uses its id, or used it
    /// before. Entries may lose elements. Reported once per entry. Source: ddata §9.
    ReplicaIdReused {
        /// The id that is used twice.
        replica: ReplicaId,
        /// The entry.
        key: KeyId,
        /// The peer.
        peer: UniqueAddress,
    },
    /// A peer sent a type that no codec is registered for.
    UnknownType {
        /// The entry.
        key: KeyId,
        /// The peer.
        peer: UniqueAddress,
        /// The type's tag.
        found: Arc<str>,
    },
    /// The delta log was cut before the peer acknowledged all of it; anti-entropy covers the peer.
    PeerLagging {
        /// The peer.
        peer: UniqueAddress,
        /// How many records the peer misses.
        records: usize,
    },
    /// The store failed; the changes to be stored are in memory only. Source: ddata U5.
    StoreError {
        /// The store's error.
        error: StoreError,
        /// How many entries have unstored changes.
        unstored: usize,
    },
    /// A stored record could not be read and was moved aside. Source: ddata U5.
    RecordQuarantined {
        /// The entry.
        key: KeyId,
        /// The damage.
        why: String,
    },
    /// A stored record has a type that is unknown here; it stays in the store and is not served.
    RecordOfUnknownType {
        /// The entry.
        key: KeyId,
        /// The tag of the record's type.
        tag: Arc<str>,
    },
    /// The store is older than what a peer has forgotten, or has forgotten what the peer has not, and
    /// `durable.stale_store` says to go on. Source: ddata Z11.
    StaleStore {
        /// When this store was last in touch, wall clock in milliseconds.
        synced_at: i64,
        /// When the histories of the store and of the peer parted.
        parted: i64,
        /// The forget horizon of the store.
        own_horizon: Option<i64>,
        /// The forget horizon of the peer.
        horizon: Option<i64>,
        /// The peer.
        peer: UniqueAddress,
        /// How many loaded entries were dropped.
        dropped: usize,
    },
    /// The loaded entries are exchanged with no member so far, because no current member has judged whether they are
    /// too old. Reported once a minute. Only an operator can decide to remove these members from the cluster. Source:
    /// ddata Z11.
    GateClosed {
        /// Members that have not told their standing; if all have, and every configured peer was met, the member that
        /// comes before this replicator in order.
        waiting_for: Vec<UniqueAddress>,
        /// Configured peers that were never met; [`PeersHandle::removed`](crate::PeersHandle::removed) takes out a peer
        /// that will not come.
        unmet: Vec<NodeAddress>,
    },
    /// A peer named a time of pruning further ahead than clocks may differ. The time is ignored. Reported once a minute
    /// for each peer. Source: ddata Z9.
    ImplausibleHorizon {
        /// The peer.
        peer: UniqueAddress,
        /// By how many milliseconds the time is ahead of the own clock.
        ahead_ms: i64,
    },
    /// The own wall clock is behind times that this process, or a former one with the same store, had noted. Such times
    /// count as now. Source: ddata Z9.
    ClockWentBack {
        /// By how many milliseconds the noted times are ahead.
        by_ms: i64,
    },
    /// A transfer of a value in fragments or parts was given up: what came was malformed, or nothing more came.
    TransferAborted {
        /// The peer that was sending the value.
        peer: UniqueAddress,
    },
    /// Pruning waits for a member that cannot be reached.
    PruningBlocked {
        /// The unreachable member.
        by: UniqueAddress,
    },
    /// An entry is large, or has grown by a tenth since it was reported. Source: ddata E4.
    EntryLarge {
        /// The entry.
        key: KeyId,
        /// The entry's size in bytes; above 1 MiB approximate.
        bytes: usize,
        /// Whether the entry is, or will soon be, too large for one message.
        in_pieces: bool,
    },
    /// This replica performed a removed one: entries were put under the name of this replica.
    PruningDone {
        /// The removed replica.
        removed: ReplicaId,
        /// The number of entries.
        entries: usize,
    },
}
