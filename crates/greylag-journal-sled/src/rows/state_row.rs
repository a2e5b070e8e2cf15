//! Rows of durable states: the state with its ordinal in the order of changes, and the changes themselves.
//!
//! A row is cut into chunks like an event. Keys of chunks have the revision, so that the chunks of the previous
//! revision stay where readers look for them until the new one is durable. `docs/formats/journal-sled.md` describes
//! the bytes.

use bytes::Bytes;
use greylag_core::{CodecId, Generation};
use greylag_persistence::{EncodedValue, PersistenceId, Revision, StoredState, Timestamp, WriterUuid};

use crate::rows::bytes_format::{FieldReader, FieldWriter};
use crate::rows::records::{BODY_WHOLE, Row, split};

const CHANGE_VERSION: u8 = 1;

/// A state, and the ordinal of the change that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateRow {
    pub(crate) ordinal: u64,
    pub(crate) state: StoredState,
}

impl StateRow {
    /// The value of the state's row, and the chunks that do not fit into it.
    pub(crate) fn encode(&self) -> (Vec<u8>, Vec<Vec<u8>>) {
        let StoredState { id: _, revision, generation, writer_uuid, timestamp, value, tag, crc32c } = &self.state;
        let payload_bytes = value.as_ref().map_or(0, |value| value.payload.len() + value.manifest.len());
        let mut out = FieldWriter::with_capacity(96 + payload_bytes);
        out.u8(BODY_WHOLE);
        out.u64(self.ordinal);
        out.u64(timestamp.as_micros());
        out.u64(revision.as_u64());
        out.u8(generation.is_some().into());
        out.u64(generation.map_or(0, Generation::as_u64));
        out.u128(writer_uuid.as_u128());
        out.u8(tag.is_some().into());
        tag.iter().for_each(|tag| out.text(tag));
        out.u8(value.is_some().into());
        if let Some(value) = value {
            out.u32(crc32c.unwrap_or_default());
            out.varint(value.codec_id.as_u32().into());
            out.varint(value.schema_version.into());
            out.text(&value.manifest);
            out.0.extend_from_slice(&value.payload);
        }
        split(out.0, revision.as_u64())
    }

    /// Decodes a whole body. From the content of the row alone, all but the payload is right.
    pub(crate) fn decode(id: &PersistenceId, body: Bytes) -> Option<Self> {
        let mut fields = FieldReader(body);
        let ordinal = fields.u64()?;
        let timestamp = Timestamp::from_micros(fields.u64()?);
        let revision = Revision::new(fields.u64()?)?;
        let has_generation = fields.u8()? != 0;
        let generation = Generation::from_u64(fields.u64()?)?;
        let generation = has_generation.then_some(generation);
        let writer_uuid = WriterUuid::from_u128(fields.u128()?);
        let tag = if fields.u8()? != 0 { Some(fields.text()?) } else { None };
        let (mut value, mut crc32c) = (None, None);
        if fields.u8()? != 0 {
            crc32c = Some(fields.u32()?);
            let codec_id = CodecId::from_u32(u32::try_from(fields.varint()?).ok()?);
            let schema_version = u32::try_from(fields.varint()?).ok()?;
            let manifest = fields.text()?;
            value = Some(EncodedValue { codec_id, manifest, schema_version, payload: fields.0 });
        } else if !fields.is_empty() {
            return None;
        }
        let id = id.clone();
        let state = StoredState { id, revision, generation, writer_uuid, timestamp, value, tag, crc32c };
        Some(Self { ordinal, state })
    }
}

/// The data that a change superseded: the previous change of the state, and the chunks of the previous revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superseded {
    pub(crate) ordinal: u64,
    pub(crate) revision: Revision,
    pub(crate) chunks: u16,
}

impl Superseded {
    /// The data that is superseded when `row`, which holds `state`, is overwritten.
    pub(crate) fn of(row: &Row, state: &StateRow) -> Self {
        Self { ordinal: state.ordinal, revision: state.state.revision, chunks: row.chunks }
    }
}

/// One entry in the order of changes: the id of the state, and what the change superseded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChangeRow {
    pub(crate) id: PersistenceId,
    pub(crate) superseded: Option<Superseded>,
}

impl ChangeRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::with_capacity(32 + self.id.as_str().len());
        out.u8(CHANGE_VERSION);
        out.text(self.id.as_str());
        out.u8(self.superseded.is_some().into());
        if let Some(Superseded { ordinal, revision, chunks }) = &self.superseded {
            out.u64(*ordinal);
            out.u64(revision.as_u64());
            out.u16(*chunks);
        }
        out.0
    }

    pub(crate) fn decode(value: Bytes) -> Option<Self> {
        let mut fields = FieldReader(value);
        if fields.u8()? != CHANGE_VERSION {
            return None;
        }
        let id = PersistenceId::unique(&fields.text()?).ok()?;
        let superseded = if fields.u8()? != 0 {
            let (ordinal, revision) = (fields.u64()?, Revision::new(fields.u64()?)?);
            Some(Superseded { ordinal, revision, chunks: fields.u16()? })
        } else {
            None
        };
        fields.is_empty().then_some(Self { id, superseded })
    }
}

#[cfg(test)]
mod tests {
    use greylag_persistence::StateWrite;
    use greylag_store_sled::MAX_VALUE_BYTES;

    use super::*;

    fn row(payload: Bytes) -> StateRow {
        let write = StateWrite {
            id: "Counter|1".parse().unwrap(),
            revision: Revision::from(2),
            generation: Some(Generation::new(1, 2).unwrap()),
            writer_uuid: WriterUuid::from_u128(9),
        };
        let value = EncodedValue { codec_id: CodecId::JSON, manifest: "c".into(), schema_version: 1, payload };
        let before = StoredState::absent(write.id.clone());
        let state = write.row(&before, Some((value, Some("red".into()))), Timestamp::from_micros(1000));
        StateRow { ordinal: 42, state }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_bytes_of_a_state_and_of_a_change_are_fixed() {
        let (bytes, chunks) = row(Bytes::from_static(b"{}")).encode();
        assert_eq!(
            hex(&bytes),
            concat!(
                "01000000000000002a00000000000003e8000000000000000201000000001000000200000000000000000000000000000009",
                "010372656401",
                "CRC",
                "020101637b7d"
            )
            .replace("CRC", &format!("{:08x}", row(Bytes::from_static(b"{}")).state.crc32c.unwrap()))
        );
        assert!(chunks.is_empty());
        let superseded = Some(Superseded { ordinal: 1, revision: Revision::FIRST, chunks: 3 });
        let change = ChangeRow { id: "a".parse().unwrap(), superseded };
        assert_eq!(hex(&change.encode()), "0101610100000000000000010000000000000001".to_owned() + "0003");
        assert_eq!(ChangeRow::decode(change.encode().into()), Some(change.clone()));
        let first = ChangeRow { superseded: None, ..change };
        assert_eq!(ChangeRow::decode(first.encode().into()), Some(first));
    }

    #[test]
    fn states_come_back_whatever_their_size() {
        let mut rows: Vec<_> =
            [0, 1, MAX_VALUE_BYTES, 1 << 20].into_iter().map(|size| row(vec![7; size].into())).collect();
        let mut tombstone = row(Bytes::new());
        (tombstone.state.value, tombstone.state.crc32c, tombstone.state.generation) = (None, None, None);
        rows.push(tombstone);
        for row in rows {
            let (value, chunks) = row.encode();
            assert!(value.len() <= MAX_VALUE_BYTES && chunks.iter().all(|chunk| chunk.len() <= MAX_VALUE_BYTES));
            let read = Row::decode(value.into()).unwrap();
            assert_eq!(usize::from(read.chunks), chunks.len());
            let chunk = |at: u16| Ok::<_, ()>(chunks.get(usize::from(at)).map(|chunk| chunk.clone().into()));
            let body = read.join(chunk).unwrap().unwrap();
            assert_eq!(StateRow::decode(&row.state.id, body), Some(row));
        }
    }

    #[test]
    fn cut_and_flipped_bytes_never_panic() {
        let id = "Counter|1".parse().unwrap();
        let change = ChangeRow { id: "a".parse().unwrap(), superseded: None };
        for whole in [row(Bytes::new()).encode().0, change.encode()] {
            for at in 0..whole.len() {
                for flip in [1_u8, 0x80, 0xff] {
                    let mut damaged = whole.clone();
                    damaged[at] ^= flip;
                    for bytes in [Bytes::from(damaged), Bytes::copy_from_slice(&whole[..at])] {
                        let _ = ChangeRow::decode(bytes.clone());
                        let _ = StateRow::decode(&id, bytes.slice(bytes.len().min(1)..));
                    }
                }
            }
        }
    }
}
