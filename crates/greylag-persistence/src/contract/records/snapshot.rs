//! Snapshots: states saved so that recovery need not replay everything.
//!
//! The trait that stores implement is [`SnapshotStore`](crate::SnapshotStore).

use bytes::Bytes;
use greylag_core::CodecId;

use super::checksum::Checksum;
use super::event::{Metadata, SeqNr, Timestamp};
use super::persistence_id::PersistenceId;
use crate::contract::scope::Scope;

/// The capabilities and limits of a snapshot store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotCaps {
    /// The nodes that reach the data.
    pub scope: Scope,
    /// Largest payload in bytes. Default 64 MiB.
    pub max_bytes: usize,
    /// Whether only the latest snapshot of an id is kept; retention then deletes events up to it
    /// and no snapshots.
    pub latest_only: bool,
}

impl SnapshotCaps {
    /// All capabilities, at the default limits.
    pub const fn full(scope: Scope) -> Self {
        Self { scope, max_bytes: 64 << 20, latest_only: false }
    }
}

/// A selection of snapshots; all bounds are inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotCriteria {
    /// Lowest number.
    pub min_seq_nr: SeqNr,
    /// Highest number.
    pub max_seq_nr: SeqNr,
    /// Earliest time.
    pub min_timestamp: Timestamp,
    /// Latest time.
    pub max_timestamp: Timestamp,
}

impl SnapshotCriteria {
    /// Matches all snapshots; a load returns the newest.
    pub const LATEST: Self = Self {
        min_seq_nr: SeqNr::ZERO,
        max_seq_nr: SeqNr::MAX,
        min_timestamp: Timestamp::from_micros(0),
        max_timestamp: Timestamp::from_micros(u64::MAX),
    };

    /// Matches the snapshots up to `max_seq_nr`.
    pub const fn up_to(max_seq_nr: SeqNr) -> Self {
        Self { max_seq_nr, ..Self::LATEST }
    }

    /// Whether a snapshot of this number and time matches.
    pub fn matches(&self, seq_nr: SeqNr, timestamp: Timestamp) -> bool {
        (self.min_seq_nr..=self.max_seq_nr).contains(&seq_nr)
            && (self.min_timestamp..=self.max_timestamp).contains(&timestamp)
    }
}

impl Default for SnapshotCriteria {
    fn default() -> Self {
        Self::LATEST
    }
}

/// A snapshot to save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// The id that the state belongs to.
    pub id: PersistenceId,
    /// The number of the last event that the state reflects.
    pub seq_nr: SeqNr,
    /// Id of the codec that wrote the payload.
    pub codec_id: CodecId,
    /// The name of the state's type; 1 to 255 bytes.
    pub manifest: String,
    /// Version of the type's format under this manifest.
    pub schema_version: u32,
    /// The encoded state.
    pub payload: Bytes,
    /// Extra data, such as the marks of delivery.
    pub metadata: Metadata,
}

impl NewSnapshot {
    /// The snapshot as it is to be stored at `timestamp`, with its checksum.
    pub fn stored(self, timestamp: Timestamp) -> Snapshot {
        let mut snapshot = Snapshot {
            id: self.id,
            seq_nr: self.seq_nr,
            timestamp,
            codec_id: self.codec_id,
            manifest: self.manifest,
            schema_version: self.schema_version,
            payload: self.payload,
            metadata: self.metadata,
            crc32c: 0,
        };
        snapshot.crc32c = snapshot.compute_crc32c();
        snapshot
    }
}

/// A snapshot as a store keeps and returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The id that the state belongs to.
    pub id: PersistenceId,
    /// The number of the last event that the state reflects.
    pub seq_nr: SeqNr,
    /// When it was saved, by the store's clock.
    pub timestamp: Timestamp,
    /// Id of the codec that reads the payload.
    pub codec_id: CodecId,
    /// The name of the state's type.
    pub manifest: String,
    /// Version of the type's format under this manifest.
    pub schema_version: u32,
    /// The encoded state.
    pub payload: Bytes,
    /// Extra data.
    pub metadata: Metadata,
    /// CRC-32C of everything above but the timestamp.
    pub crc32c: u32,
}

impl Snapshot {
    /// The checksum that the snapshot should carry; layout as for
    /// [`StoredEvent::compute_crc32c`](crate::StoredEvent::compute_crc32c), without the writer, kind
    /// and tags, which a snapshot does not have.
    pub fn compute_crc32c(&self) -> u32 {
        let mut crc = Checksum::new();
        crc.text(self.id.as_str());
        crc.u64(self.seq_nr.as_u64());
        crc.u32(self.codec_id.as_u32());
        crc.text(&self.manifest);
        crc.u32(self.schema_version);
        crc.bytes(&self.payload);
        crc.metadata(&self.metadata);
        crc.finish()
    }

    /// Whether the snapshot is whole and stands where it was saved.
    pub fn is_intact(&self) -> bool {
        self.crc32c == self.compute_crc32c()
    }
}
