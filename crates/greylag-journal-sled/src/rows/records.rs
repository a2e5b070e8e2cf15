//! Values of the journal: heads, events, commit records, snapshots. Each begins with a version.
//!
//! `docs/formats/journal-sled.md` describes them field by field; the vectors in this file's tests
//! pin the bytes.

use bytes::Bytes;
use greylag_core::{CodecId, Generation};
use greylag_persistence::{
    Append, EventKind, Head, Metadata, NewSnapshot, PersistenceId, SeqNr, Snapshot, StoredEvent, Tags, Timestamp,
    WriterEpoch, WriterUuid,
};
use greylag_store_sled::MAX_VALUE_BYTES;

use crate::rows::bytes_format::{FieldReader, FieldWriter};
use crate::rows::keys::{PidNo, SaveNo};

const HEAD_VERSION: u8 = 1;
pub(crate) const BODY_WHOLE: u8 = 1;
const BODY_CHUNKED: u8 = 2;
const FORMAT_MAGIC: &[u8] = b"greylag-journal";
const FORMAT_VERSION: u16 = 1;

/// The head of one id with its number and the timestamp of its last append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredHead {
    pub(crate) pid: PidNo,
    pub(crate) head: Head,
    /// Timestamp of the last append.
    pub(crate) timestamp: Timestamp,
    pub(crate) slice: u16,
}

impl StoredHead {
    pub(crate) fn encode(&self, entity_type: &str) -> Vec<u8> {
        let mut out = FieldWriter::with_capacity(96 + entity_type.len());
        out.u8(HEAD_VERSION);
        out.u64(self.pid.0);
        out.u64(self.head.epoch.as_u64());
        out.u128(self.head.writer_uuid.as_u128());
        out.u8(self.head.generation.is_some().into());
        out.u64(self.head.generation.map_or(0, Generation::as_u64));
        out.u64(self.head.highest.as_u64());
        out.u64(self.head.deleted_to.as_u64());
        out.u64(self.timestamp.as_micros());
        out.u16(self.slice);
        out.text(entity_type);
        out.0
    }

    pub(crate) fn decode(value: Bytes) -> Option<Self> {
        let mut fields = FieldReader(value);
        if fields.u8()? != HEAD_VERSION {
            return None;
        }
        let pid = PidNo(fields.u64()?);
        let epoch = WriterEpoch::from_u64(fields.u64()?);
        let writer_uuid = WriterUuid::from_u128(fields.u128()?);
        let has_generation = fields.u8()? != 0;
        let generation = Generation::from_u64(fields.u64()?)?;
        let head = Head {
            epoch,
            writer_uuid,
            generation: has_generation.then_some(generation),
            highest: SeqNr::new(fields.u64()?)?,
            deleted_to: SeqNr::new(fields.u64()?)?,
        };
        let timestamp = Timestamp::from_micros(fields.u64()?);
        Some(Self { pid, head, timestamp, slice: fields.u16()? })
    }
}

/// One event of an append, encoded by the caller's thread; the committer fills in timestamp and ordinal.
#[derive(Debug)]
pub(crate) struct EncodedEvent {
    pub(crate) crc32c: u32,
    pub(crate) tags: Tags,
    body: Vec<u8>,
}

/// Place of timestamp and ordinal in an encoded body.
const STAMP_AT: usize = 1;

impl EncodedEvent {
    pub(crate) fn all(append: &Append) -> Vec<Self> {
        append.records(Timestamp::default()).iter().map(Self::new).collect()
    }

    pub(crate) fn new(event: &StoredEvent) -> Self {
        let mut out = FieldWriter::with_capacity(96 + event.size_bytes() + 8 * event.metadata.len());
        out.u8(BODY_WHOLE);
        out.u64(0); // timestamp
        out.u64(0); // ordinal
        out.u32(event.crc32c);
        out.u8(event.kind.as_u8());
        out.u128(event.writer_uuid.as_u128());
        out.varint(event.writer_epoch.as_u64());
        out.varint(event.codec_id.as_u32().into());
        out.varint(event.schema_version.into());
        out.text(&event.manifest);
        out.varint(event.tags.len() as u64);
        event.tags.iter().for_each(|tag| out.text(tag));
        write_metadata(&mut out, &event.metadata);
        out.0.extend_from_slice(&event.payload);
        Self { crc32c: event.crc32c, tags: event.tags.clone(), body: out.0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.body.len()
    }

    /// Whether the body is too large for one row.
    pub(crate) fn has_chunks(&self) -> bool {
        self.body.len() > MAX_VALUE_BYTES
    }

    /// The value of the event's row, and the chunks that do not fit into it.
    pub(crate) fn into_rows(mut self, timestamp: Timestamp, ordinal: u64) -> (Vec<u8>, Vec<Vec<u8>>) {
        self.body[STAMP_AT..STAMP_AT + 8].copy_from_slice(&timestamp.as_micros().to_be_bytes());
        self.body[STAMP_AT + 8..STAMP_AT + 16].copy_from_slice(&ordinal.to_be_bytes());
        split(self.body, 0)
    }
}

/// An event row as read: the event, without chunks, and its ordinal.
#[derive(Debug, PartialEq)]
pub(crate) struct EventRow {
    pub(crate) event: StoredEvent,
    pub(crate) ordinal: u64,
}

impl EventRow {
    /// Decodes a whole body as [`join`] answers it.
    pub(crate) fn decode(id: &PersistenceId, seq_nr: SeqNr, body: Bytes) -> Option<Self> {
        let mut fields = FieldReader(body);
        let timestamp = Timestamp::from_micros(fields.u64()?);
        let ordinal = fields.u64()?;
        let crc32c = fields.u32()?;
        let kind = EventKind::from_u8(fields.u8()?)?;
        let writer_uuid = WriterUuid::from_u128(fields.u128()?);
        let writer_epoch = WriterEpoch::from_u64(fields.varint()?);
        let codec_id = CodecId::from_u32(u32::try_from(fields.varint()?).ok()?);
        let schema_version = u32::try_from(fields.varint()?).ok()?;
        let manifest = fields.text()?;
        let tags = (0..fields.count(1)?).map(|_| fields.text()).collect::<Option<Tags>>()?;
        let metadata = read_metadata(&mut fields)?;
        let payload = fields.0;
        let event = StoredEvent {
            id: id.clone(),
            seq_nr,
            timestamp,
            writer_uuid,
            writer_epoch,
            codec_id,
            manifest,
            schema_version,
            kind,
            payload,
            metadata,
            tags,
            crc32c,
        };
        Some(Self { event, ordinal })
    }

    /// The event's checksum alone, without decoding the rest; for verifying commits.
    pub(crate) fn crc32c(row: &Bytes) -> Option<u32> {
        let mut fields = FieldReader(row.clone());
        let at = match fields.u8()? {
            BODY_WHOLE => 16,
            BODY_CHUNKED => CHUNKED_HEADER_BYTES - 1 + 16,
            _ => return None,
        };
        (0..at).try_for_each(|_| fields.u8().map(drop))?;
        fields.u32()
    }
}

fn write_metadata(out: &mut FieldWriter, metadata: &Metadata) {
    out.varint(metadata.len() as u64);
    for (name, value) in metadata {
        out.text(name);
        out.bytes(value);
    }
}

fn read_metadata(fields: &mut FieldReader) -> Option<Metadata> {
    (0..fields.count(2)?).map(|_| Some((fields.text()?, fields.bytes()?))).collect()
}

/// Bytes of the header of a chunked body: version, count of chunks, length, save number.
const CHUNKED_HEADER_BYTES: usize = 1 + 2 + 4 + 8;

/// Cuts a body (which begins with [`BODY_WHOLE`]) into its row and chunks.
pub(crate) fn split(body: Vec<u8>, save: u64) -> (Vec<u8>, Vec<Vec<u8>>) {
    if body.len() <= MAX_VALUE_BYTES {
        return (body, Vec::new());
    }
    let content = &body[1..];
    let (first, rest) = content.split_at(MAX_VALUE_BYTES - CHUNKED_HEADER_BYTES);
    let chunks: Vec<_> = rest.chunks(MAX_VALUE_BYTES).map(<[u8]>::to_vec).collect();
    let mut row = FieldWriter::with_capacity(MAX_VALUE_BYTES + 4);
    row.u8(BODY_CHUNKED);
    row.u16(u16::try_from(chunks.len()).expect("limits keep bodies below 4 GiB"));
    row.u32(u32::try_from(content.len()).expect("limits keep bodies below 4 GiB"));
    row.u64(save);
    row.0.extend_from_slice(first);
    (row.0, chunks)
}

/// A row split into its parts: the count of chunks that follow, their save number, and the content so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) chunks: u16,
    pub(crate) save: SaveNo,
    len: usize,
    pub(crate) content: Bytes,
}

impl Row {
    pub(crate) fn decode(value: Bytes) -> Option<Self> {
        let mut fields = FieldReader(value);
        match fields.u8()? {
            BODY_WHOLE => Some(Self { chunks: 0, save: SaveNo(0), len: fields.0.len(), content: fields.0 }),
            BODY_CHUNKED => {
                let (chunks, len, save) = (fields.u16()?, fields.u32()?, fields.u64()?);
                Some(Self { chunks, save: SaveNo(save), len: usize::try_from(len).ok()?, content: fields.0 })
            }
            _ => None,
        }
    }

    /// The whole body, with its chunks in order; `None` if a chunk is missing or too long.
    pub(crate) fn join<E>(self, mut chunk: impl FnMut(u16) -> Result<Option<Bytes>, E>) -> Result<Option<Bytes>, E> {
        if self.chunks == 0 {
            return Ok(Some(self.content));
        }
        let mut body = self.content.to_vec();
        for at in 0..self.chunks {
            match chunk(at)? {
                Some(bytes) => body.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
        Ok((body.len() == self.len).then(|| body.into()))
    }
}

/// A snapshot, encoded by the caller's thread and cut into the rows it will take.
#[derive(Debug)]
pub(crate) struct EncodedSnapshot {
    pub(crate) id: PersistenceId,
    pub(crate) seq_nr: SeqNr,
    pub(crate) save: SaveNo,
    row: Vec<u8>,
    /// The snapshot's chunks. The caller takes them out and writes them before the row is stored.
    pub(crate) chunks: Vec<Vec<u8>>,
}

impl EncodedSnapshot {
    pub(crate) fn new(snapshot: NewSnapshot, save: SaveNo) -> Self {
        let snapshot = snapshot.stored(Timestamp::default());
        let mut out = FieldWriter::with_capacity(64 + snapshot.payload.len());
        out.u8(BODY_WHOLE);
        out.u64(0); // timestamp
        out.u32(snapshot.crc32c);
        out.varint(snapshot.codec_id.as_u32().into());
        out.varint(snapshot.schema_version.into());
        out.text(&snapshot.manifest);
        write_metadata(&mut out, &snapshot.metadata);
        out.0.extend_from_slice(&snapshot.payload);
        let (row, chunks) = split(out.0, save.0);
        Self { id: snapshot.id, seq_nr: snapshot.seq_nr, save, row, chunks }
    }

    pub(crate) fn len(&self) -> usize {
        self.row.len()
    }

    pub(crate) fn into_row(mut self, timestamp: Timestamp) -> Vec<u8> {
        let at = if self.row[0] == BODY_WHOLE { 1 } else { CHUNKED_HEADER_BYTES };
        self.row[at..at + 8].copy_from_slice(&timestamp.as_micros().to_be_bytes());
        self.row
    }
}

/// The timestamp of a snapshot, from its row alone.
pub(crate) fn snapshot_timestamp(row: &Row) -> Option<Timestamp> {
    FieldReader(row.content.clone()).u64().map(Timestamp::from_micros)
}

pub(crate) fn decode_snapshot(id: &PersistenceId, seq_nr: SeqNr, body: Bytes) -> Option<Snapshot> {
    let mut fields = FieldReader(body);
    Some(Snapshot {
        id: id.clone(),
        seq_nr,
        timestamp: Timestamp::from_micros(fields.u64()?),
        crc32c: fields.u32()?,
        codec_id: CodecId::from_u32(u32::try_from(fields.varint()?).ok()?),
        schema_version: u32::try_from(fields.varint()?).ok()?,
        manifest: fields.text()?,
        metadata: read_metadata(&mut fields)?,
        payload: fields.0,
    })
}

/// The format record: magic, version and the uuid of the store.
pub(crate) fn encode_format(instance: u128) -> Vec<u8> {
    let mut out = FieldWriter::default();
    out.bytes(FORMAT_MAGIC);
    out.u16(FORMAT_VERSION);
    out.u128(instance);
    out.0
}

/// Checks the format record; the error says what is wrong.
pub(crate) fn check_format(value: Bytes) -> Result<(), String> {
    let mut fields = FieldReader(value);
    if fields.bytes().is_none_or(|magic| magic != FORMAT_MAGIC) {
        return Err("this is another kind of store, not a journal".into());
    }
    match fields.u16() {
        Some(FORMAT_VERSION) => Ok(()),
        Some(version) => Err(format!("format version {version} is not known; version {FORMAT_VERSION} is")),
        None => Err("the format record is cut off".into()),
    }
}

/// The last verified commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) commit_no: u64,
    /// The ordinal after the last verified event or change.
    pub(crate) next_ordinal: u64,
}

impl Verified {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        out.u64(self.commit_no);
        out.u64(self.next_ordinal);
        out.0
    }

    pub(crate) fn decode(value: Bytes) -> Option<Self> {
        let mut fields = FieldReader(value);
        Some(Self { commit_no: fields.u64()?, next_ordinal: fields.u64()? })
    }
}

#[cfg(test)]
mod tests;
