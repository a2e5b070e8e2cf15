//! Records for tests that use only id, number and time.

use bytes::Bytes;
use greylag_core::CodecId;
use greylag_persistence::{
    EventKind, Metadata, PersistenceId, SeqNr, StoredEvent, Tags, Timestamp, WriterEpoch, WriterUuid,
};

/// A record without a payload and without a writer.
pub(crate) fn record(id: PersistenceId, seq_nr: SeqNr, timestamp: Timestamp) -> StoredEvent {
    StoredEvent {
        id,
        seq_nr,
        timestamp,
        writer_uuid: WriterUuid::NONE,
        writer_epoch: WriterEpoch::NONE,
        codec_id: CodecId::JSON,
        manifest: "test".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: Bytes::new(),
        metadata: Metadata::new(),
        tags: Tags::new(),
        crc32c: 0,
    }
}
