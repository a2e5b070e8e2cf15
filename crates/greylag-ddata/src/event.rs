//! What a replicator tells of that operators may want to know. Source: ddata I3.

use std::sync::Arc;

use greylag_core::{NodeAddress, UniqueAddress};
use greylag_crdt::ReplicaId;

use crate::key::KeyId;
use crate::replicator::TypeConflict;
use crate::store::StoreError;

/// Something that operators may want to know. Source: ddata I3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicatorEvent {
    /// A peer holds another type under a key; the key will never agree.
    TypeConflict(TypeConflict),
    /// A peer was asked several times in a row and never answered: perhaps the replicator of this name was
    /// never started there. Source: ddata I1.
    PeerSilent {
        /// The peer.
        peer: UniqueAddress,
    },
    /// A write's timestamp is far ahead of the wall clock here; it wins until others pass it. Told once per
    /// entry. Source: ddata Y6.
    ClockAhead {
        /// The entry.
        key: KeyId,
        /// The peer that sent the write; the write itself names the replica whose clock it was.
        peer: UniqueAddress,
        /// By how many milliseconds.
        ahead_ms: i64,
    },
    /// A peer holds numbers of this replica that it never drew: its id is used by another process, or was
    /// used before. Entries may lose elements. Told once per entry. Source: ddata §9.
    ReplicaIdReused {
        /// The id.
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
        /// What the peer sent.
        found: Arc<str>,
    },
    /// The delta log was cut short; anti-entropy covers the peer.
    PeerLagging {
        /// The peer.
        peer: UniqueAddress,
        /// How many records it misses.
        records: usize,
    },
    /// The store failed; the changes it was asked to write are in memory only. Source: ddata U5.
    StoreError {
        /// What it said.
        error: StoreError,
        /// How many entries are not stored as they are.
        unstored: usize,
    },
    /// A stored record could not be read and was moved aside. Source: ddata U5.
    RecordQuarantined {
        /// The entry.
        key: KeyId,
        /// What is wrong with it.
        why: String,
    },
    /// A stored record is of a type that is unknown here; it stays in the store and is not served.
    RecordOfUnknownType {
        /// The entry.
        key: KeyId,
        /// The tag of its type.
        tag: Arc<str>,
    },
    /// The store is older than what a peer has forgotten, or has forgotten what the peer has not, and the settings say
    /// to go on. Source: ddata Z11.
    StaleStore {
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
        /// How many loaded entries were dropped for it.
        dropped: usize,
    },
    /// The loaded entries are exchanged with no member so far, because no current member has judged whether they are
    /// too old. Told once a minute. Only an operator can decide to remove these members from the cluster.
    /// Source: ddata Z11.
    GateClosed {
        /// Members that have not said how they stand; if all have and every configured peer was met, the member that
        /// comes before this replicator.
        waiting_for: Vec<UniqueAddress>,
        /// Configured peers that were never met; one that will not come is taken out by
        /// [`PeersHandle::removed`](crate::PeersHandle::removed).
        unmet: Vec<NodeAddress>,
    },
    /// A peer names a time of pruning that lies further ahead than clocks may differ. It counts for nothing.
    /// Told once a minute for each peer. Source: ddata Z9.
    ImplausibleHorizon {
        /// The peer.
        peer: UniqueAddress,
        /// By how many milliseconds it is ahead of the clock here.
        ahead_ms: i64,
    },
    /// The wall clock here contradicts what this process, or the one before it, had noted. That counts from now on.
    /// Source: ddata Z9.
    ClockWentBack {
        /// By how many milliseconds what was noted is ahead.
        by_ms: i64,
    },
    /// A value in fragments or parts was given up: what came made no sense, or nothing more came.
    TransferAborted {
        /// The peer that was sending the value.
        peer: UniqueAddress,
    },
    /// Pruning waits for a member that cannot be reached.
    PruningBlocked {
        /// That member.
        by: UniqueAddress,
    },
    /// An entry is large, or has grown by a tenth since that was told. Source: ddata E4.
    EntryLarge {
        /// The entry.
        key: KeyId,
        /// Its size; above a megabyte, about.
        bytes: usize,
        /// Whether it is, or will soon be, too large for one message.
        in_pieces: bool,
    },
    /// Entries were put under the name of this replica.
    PruningDone {
        /// The removed replica whose they were.
        removed: ReplicaId,
        /// How many.
        entries: usize,
    },
}
