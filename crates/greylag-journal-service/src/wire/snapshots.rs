//! Snapshots, the criteria that choose them, and their failures.

use greylag_core::CodecId;
use greylag_persistence::{NewSnapshot, Scope, Snapshot, SnapshotCaps, SnapshotCriteria, SnapshotError, Timestamp};

use super::failure::store_failure;
use super::journal::{corrupt, from_corrupt, from_metadata, metadata};
use super::values::{Decoded, Malformed, id, seq_nr, usize_of};
use crate::generated as proto;
use crate::settings::MAX_SNAPSHOT_BYTES;

pub(crate) fn from_snapshot_caps(caps: SnapshotCaps) -> proto::SnapshotCaps {
    proto::SnapshotCaps { max_bytes: caps.max_bytes.min(MAX_SNAPSHOT_BYTES) as u64, latest_only: caps.latest_only }
}

pub(crate) fn snapshot_caps(caps: proto::SnapshotCaps) -> SnapshotCaps {
    SnapshotCaps { scope: Scope::Shared, max_bytes: usize_of(caps.max_bytes), latest_only: caps.latest_only }
}

pub(crate) fn from_criteria(criteria: SnapshotCriteria) -> proto::SnapshotCriteria {
    proto::SnapshotCriteria {
        min_seq_nr: criteria.min_seq_nr.as_u64(),
        max_seq_nr: criteria.max_seq_nr.as_u64(),
        min_timestamp: criteria.min_timestamp.as_micros(),
        max_timestamp: criteria.max_timestamp.as_micros(),
    }
}

pub(crate) fn criteria(criteria: proto::SnapshotCriteria) -> Decoded<SnapshotCriteria> {
    Ok(SnapshotCriteria {
        min_seq_nr: seq_nr(criteria.min_seq_nr)?,
        max_seq_nr: seq_nr(criteria.max_seq_nr)?,
        min_timestamp: Timestamp::from_micros(criteria.min_timestamp),
        max_timestamp: Timestamp::from_micros(criteria.max_timestamp),
    })
}

pub(crate) fn from_new_snapshot(snapshot: NewSnapshot) -> proto::Snapshot {
    from_snapshot(snapshot.stored(Timestamp::default()))
}

pub(crate) fn from_snapshot(snapshot: Snapshot) -> proto::Snapshot {
    proto::Snapshot {
        persistence_id: snapshot.id.as_str().to_owned(),
        seq_nr: snapshot.seq_nr.as_u64(),
        codec_id: snapshot.codec_id.as_u32(),
        manifest: snapshot.manifest,
        schema_version: snapshot.schema_version,
        payload: snapshot.payload,
        metadata: from_metadata(snapshot.metadata),
        timestamp: snapshot.timestamp.as_micros(),
        crc32c: snapshot.crc32c,
    }
}

pub(crate) fn snapshot(snapshot: proto::Snapshot) -> Decoded<Snapshot> {
    let snapshot = Snapshot {
        id: id(&snapshot.persistence_id)?,
        seq_nr: seq_nr(snapshot.seq_nr)?,
        timestamp: Timestamp::from_micros(snapshot.timestamp),
        codec_id: CodecId::from_u32(snapshot.codec_id),
        manifest: snapshot.manifest,
        schema_version: snapshot.schema_version,
        payload: snapshot.payload,
        metadata: metadata(snapshot.metadata),
        crc32c: snapshot.crc32c,
    };
    if snapshot.is_intact() { Ok(snapshot) } else { Err(Malformed("snapshot: its checksum does not match")) }
}

/// Decodes a snapshot without the fields that the store fills in.
pub(crate) fn new_snapshot(message: proto::Snapshot) -> Decoded<NewSnapshot> {
    let snapshot = snapshot(message)?;
    Ok(NewSnapshot {
        id: snapshot.id,
        seq_nr: snapshot.seq_nr,
        codec_id: snapshot.codec_id,
        manifest: snapshot.manifest,
        schema_version: snapshot.schema_version,
        payload: snapshot.payload,
        metadata: snapshot.metadata,
    })
}

pub(crate) fn from_snapshot_error(error: SnapshotError) -> proto::SnapshotFailure {
    use proto::snapshot_failure::Failure;
    let is_answer = matches!(&error, SnapshotError::Unavailable(failure) if failure.is_answer());
    let failure = match error {
        SnapshotError::Corrupt(corrupt) => Failure::Corrupt(from_corrupt(&corrupt)),
        SnapshotError::TooLarge { bytes, max } => {
            Failure::TooLarge(proto::TooLarge { bytes: bytes as u64, max: max as u64 })
        }
        SnapshotError::Unavailable(failure) => Failure::Unavailable(failure.text()),
    };
    proto::SnapshotFailure { failure: Some(failure), is_answer }
}

pub(crate) fn snapshot_error(failure: proto::SnapshotFailure, store: &str) -> SnapshotError {
    use proto::snapshot_failure::Failure;
    let is_answer = failure.is_answer;
    let unavailable = |cause: String| SnapshotError::Unavailable(store_failure(is_answer, store, cause));
    match failure.failure {
        Some(Failure::Corrupt(found)) => {
            corrupt(&found).map_or_else(|malformed| unavailable(malformed.to_string()), SnapshotError::Corrupt)
        }
        Some(Failure::TooLarge(size)) => {
            SnapshotError::TooLarge { bytes: usize_of(size.bytes), max: usize_of(size.max) }
        }
        Some(Failure::Unavailable(cause)) => unavailable(cause),
        None => unavailable(Malformed("failure").to_string()),
    }
}
