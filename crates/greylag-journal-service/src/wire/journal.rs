//! Appends, claims, pages of events, heads and the health of the journal.

use greylag_core::{CodecId, Generation};
use greylag_persistence::{
    Append, Caps, Corrupt, CorruptKind, EventKind, Head, Health, Metadata, NewEvent, Page, PersistenceId, ReadRange,
    Scope, SeqNr, StoredEvent, Timestamp, Under, WriterEpoch,
};

use super::values::{Decoded, Malformed, from_writer_uuid, id, seq_nr, usize_of, writer_uuid};
use crate::generated as proto;
use crate::settings::MAX_VALUE_BYTES;

pub(crate) fn from_append(append: Append) -> proto::Append {
    proto::Append {
        persistence_id: append.id.as_str().to_owned(),
        epoch: append.epoch.as_u64(),
        writer_uuid: from_writer_uuid(append.writer_uuid),
        first: append.first.as_u64(),
        events: append.events.into_iter().map(from_event).collect(),
    }
}

pub(crate) fn append(append: proto::Append) -> Decoded<Append> {
    Ok(Append {
        id: id(&append.persistence_id)?,
        epoch: WriterEpoch::from_u64(append.epoch),
        writer_uuid: writer_uuid(&append.writer_uuid)?,
        first: seq_nr(append.first)?,
        events: append.events.into_iter().map(event).collect(),
    })
}

fn from_event(event: NewEvent) -> proto::Event {
    proto::Event {
        codec_id: event.codec_id.as_u32(),
        manifest: event.manifest,
        schema_version: event.schema_version,
        filtered: event.kind == EventKind::Filtered,
        payload: event.payload,
        metadata: from_metadata(event.metadata),
        tags: event.tags.into_iter().collect(),
    }
}

fn event(event: proto::Event) -> NewEvent {
    NewEvent {
        codec_id: CodecId::from_u32(event.codec_id),
        manifest: event.manifest,
        schema_version: event.schema_version,
        kind: if event.filtered { EventKind::Filtered } else { EventKind::Event },
        payload: event.payload,
        metadata: metadata(event.metadata),
        tags: event.tags.into_iter().collect(),
    }
}

pub(super) fn from_metadata(metadata: Metadata) -> Vec<proto::MetadataEntry> {
    metadata.into_iter().map(|(name, value)| proto::MetadataEntry { name, value }).collect()
}

pub(super) fn metadata(entries: Vec<proto::MetadataEntry>) -> Metadata {
    entries.into_iter().map(|entry| (entry.name, entry.value)).collect()
}

pub(crate) fn from_under(under: Under) -> proto::claim::Under {
    match under {
        Under::Generation(generation) => proto::claim::Under::Generation(generation.as_u64()),
        Under::Seen(epoch) => proto::claim::Under::SeenEpoch(epoch.as_u64()),
    }
}

pub(crate) fn under(under: Option<proto::claim::Under>) -> Decoded<Under> {
    match under {
        Some(proto::claim::Under::Generation(number)) => {
            Generation::from_u64(number).map(Under::Generation).ok_or(Malformed("generation"))
        }
        Some(proto::claim::Under::SeenEpoch(epoch)) => Ok(Under::Seen(WriterEpoch::from_u64(epoch))),
        None => Err(Malformed("claim without a generation or a seen epoch")),
    }
}

pub(crate) fn from_read(id: &PersistenceId, range: ReadRange) -> proto::Read {
    proto::Read {
        persistence_id: id.as_str().to_owned(),
        from: range.from.as_u64(),
        to: range.to.as_u64(),
        max_events: range.max_events as u64,
        max_bytes: range.max_bytes as u64,
        query: false,
        changes: false,
    }
}

pub(crate) fn read_range(read: &proto::Read) -> Decoded<ReadRange> {
    Ok(ReadRange {
        from: seq_nr(read.from)?,
        to: seq_nr(read.to)?,
        max_events: usize_of(read.max_events),
        max_bytes: usize_of(read.max_bytes),
    })
}

pub(crate) fn from_page(page: Page) -> proto::Page {
    proto::Page {
        records: page.records.into_iter().map(from_stored).collect(),
        next: page.next.map_or(0, SeqNr::as_u64),
    }
}

pub(crate) fn page(id: &PersistenceId, page: proto::Page) -> Decoded<Page> {
    let records = page.records.into_iter().map(|record| stored(id, record)).collect::<Decoded<Vec<_>>>()?;
    let next = seq_nr(page.next)?;
    Ok(Page { records, next: (!next.is_zero()).then_some(next) })
}

pub(super) fn from_stored(stored: StoredEvent) -> proto::StoredEvent {
    proto::StoredEvent {
        seq_nr: stored.seq_nr.as_u64(),
        timestamp: stored.timestamp.as_micros(),
        writer_uuid: from_writer_uuid(stored.writer_uuid),
        writer_epoch: stored.writer_epoch.as_u64(),
        crc32c: stored.crc32c,
        event: Some(from_event(NewEvent {
            codec_id: stored.codec_id,
            manifest: stored.manifest,
            schema_version: stored.schema_version,
            kind: stored.kind,
            payload: stored.payload,
            metadata: stored.metadata,
            tags: stored.tags,
        })),
    }
}

/// Decodes a record of `id` and verifies its checksum, so that the wire protects what the disk does.
pub(super) fn stored(id: &PersistenceId, record: proto::StoredEvent) -> Decoded<StoredEvent> {
    let event = event(record.event.ok_or(Malformed("record without an event"))?);
    let stored = StoredEvent {
        id: id.clone(),
        seq_nr: seq_nr(record.seq_nr)?,
        timestamp: Timestamp::from_micros(record.timestamp),
        writer_uuid: writer_uuid(&record.writer_uuid)?,
        writer_epoch: WriterEpoch::from_u64(record.writer_epoch),
        codec_id: event.codec_id,
        manifest: event.manifest,
        schema_version: event.schema_version,
        kind: event.kind,
        payload: event.payload,
        metadata: event.metadata,
        tags: event.tags,
        crc32c: record.crc32c,
    };
    if stored.is_intact() { Ok(stored) } else { Err(Malformed("record: its checksum does not match")) }
}

pub(crate) fn from_head(head: Head) -> proto::Head {
    proto::Head {
        epoch: head.epoch.as_u64(),
        writer_uuid: from_writer_uuid(head.writer_uuid),
        generation: head.generation.map(Generation::as_u64),
        highest: head.highest.as_u64(),
        deleted_to: head.deleted_to.as_u64(),
    }
}

pub(crate) fn head(head: proto::Head) -> Decoded<Head> {
    let generation = head.generation.map(|number| Generation::from_u64(number).ok_or(Malformed("generation")));
    Ok(Head {
        epoch: WriterEpoch::from_u64(head.epoch),
        writer_uuid: writer_uuid(&head.writer_uuid)?,
        generation: generation.transpose()?,
        highest: seq_nr(head.highest)?,
        deleted_to: seq_nr(head.deleted_to)?,
    })
}

pub(crate) fn from_caps(caps: Caps) -> proto::JournalCaps {
    proto::JournalCaps {
        max_event_bytes: caps.max_event_bytes.min(MAX_VALUE_BYTES) as u64,
        max_atomic_events: caps.max_atomic_events as u64,
        tags: caps.tags,
        slices: caps.slices,
        metadata: caps.metadata,
        fencing: caps.fencing,
    }
}

/// The capabilities of the served journal; for clients the scope is `Shared`.
pub(crate) fn caps(caps: proto::JournalCaps) -> Caps {
    Caps {
        scope: Scope::Shared,
        max_event_bytes: usize_of(caps.max_event_bytes),
        max_atomic_events: usize_of(caps.max_atomic_events),
        tags: caps.tags,
        slices: caps.slices,
        metadata: caps.metadata,
        fencing: caps.fencing,
    }
}

pub(crate) fn from_health(health: Health) -> proto::Health {
    let (kind, reasons) = match health {
        Health::Up => (proto::health::Kind::Up, Vec::new()),
        Health::Degraded(reasons) => (proto::health::Kind::Degraded, reasons),
        Health::Down(reason) => (proto::health::Kind::Down, vec![reason]),
    };
    proto::Health { kind: kind.into(), reasons }
}

pub(crate) fn health(health: proto::Health) -> Health {
    match health.kind() {
        proto::health::Kind::Up => Health::Up,
        proto::health::Kind::Degraded => Health::Degraded(health.reasons),
        proto::health::Kind::Down => Health::Down(health.reasons.join(", ")),
    }
}

pub(super) fn from_corrupt_kind(kind: CorruptKind) -> proto::corrupt::Kind {
    match kind {
        CorruptKind::Checksum => proto::corrupt::Kind::Checksum,
        CorruptKind::Missing => proto::corrupt::Kind::Missing,
        CorruptKind::Unreadable => proto::corrupt::Kind::Unreadable,
    }
}

pub(super) fn corrupt_kind(kind: proto::corrupt::Kind) -> CorruptKind {
    match kind {
        proto::corrupt::Kind::Checksum => CorruptKind::Checksum,
        proto::corrupt::Kind::Missing => CorruptKind::Missing,
        proto::corrupt::Kind::Unreadable => CorruptKind::Unreadable,
    }
}

pub(crate) fn from_corrupt(corrupt: &Corrupt) -> proto::Corrupt {
    proto::Corrupt {
        persistence_id: corrupt.id.as_str().to_owned(),
        seq_nr: corrupt.seq_nr.as_u64(),
        kind: from_corrupt_kind(corrupt.kind).into(),
    }
}

pub(crate) fn corrupt(corrupt: &proto::Corrupt) -> Decoded<Corrupt> {
    let kind = corrupt_kind(corrupt.kind());
    Ok(Corrupt { id: id(&corrupt.persistence_id)?, seq_nr: seq_nr(corrupt.seq_nr)?, kind })
}
