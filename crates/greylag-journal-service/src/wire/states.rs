//! Durable states: writes, rows and the feed of their changes.

use std::ops::RangeInclusive;

use greylag_core::{CodecId, Generation};
use greylag_persistence::{
    ChangesOf, EncodedValue, Offset, OffsetKind, Revision, Scope, StateCaps, StateChange, StateHead, StateWrite,
    StoredState, Timestamp,
};

use super::values::{Decoded, Malformed, from_writer_uuid, id, usize_of, writer_uuid};
use crate::generated::{self as proto, offset, selection};
use crate::settings::MAX_VALUE_BYTES;

pub(crate) fn from_kind(kind: OffsetKind) -> proto::OffsetKind {
    match kind {
        OffsetKind::Ordinal => proto::OffsetKind::Ordinal,
        OffsetKind::Timestamp => proto::OffsetKind::Timestamp,
    }
}

pub(crate) fn kind(kind: proto::OffsetKind) -> OffsetKind {
    match kind {
        proto::OffsetKind::Ordinal => OffsetKind::Ordinal,
        proto::OffsetKind::Timestamp => OffsetKind::Timestamp,
    }
}

pub(crate) fn from_state_caps(caps: StateCaps) -> proto::StateCaps {
    proto::StateCaps {
        max_state_bytes: caps.max_state_bytes.min(MAX_VALUE_BYTES) as u64,
        changes: caps.changes.map(|kind| from_kind(kind).into()),
    }
}

/// The capabilities of the served store; for clients the scope is `Shared`.
pub(crate) fn state_caps(caps: proto::StateCaps) -> StateCaps {
    let changes = caps.changes.map(|_| kind(caps.changes()));
    StateCaps { scope: Scope::Shared, max_state_bytes: usize_of(caps.max_state_bytes), changes }
}

fn revision(number: u64) -> Decoded<Revision> {
    Revision::new(number).ok_or(Malformed("revision"))
}

fn generation(number: Option<u64>) -> Decoded<Option<Generation>> {
    number.map(|number| Generation::from_u64(number).ok_or(Malformed("generation"))).transpose()
}

fn from_value(value: EncodedValue) -> proto::Value {
    let EncodedValue { codec_id, manifest, schema_version, payload } = value;
    proto::Value { codec_id: codec_id.as_u32(), manifest, schema_version, payload }
}

fn value(value: proto::Value) -> EncodedValue {
    let proto::Value { codec_id, manifest, schema_version, payload } = value;
    EncodedValue { codec_id: CodecId::from_u32(codec_id), manifest, schema_version, payload }
}

/// A value and its tag; a deletion has neither.
pub(crate) type Content = Option<(EncodedValue, Option<String>)>;

pub(crate) fn from_write(write: StateWrite, content: Content) -> proto::WriteState {
    let (value, tag) = content.map_or((None, None), |(value, tag)| (Some(from_value(value)), tag));
    proto::WriteState {
        persistence_id: write.id.as_str().to_owned(),
        revision: write.revision.as_u64(),
        generation: write.generation.map(Generation::as_u64),
        writer_uuid: from_writer_uuid(write.writer_uuid),
        value,
        tag,
    }
}

pub(crate) fn write(message: proto::WriteState) -> Decoded<(StateWrite, Content)> {
    let write = StateWrite {
        id: id(&message.persistence_id)?,
        revision: revision(message.revision)?,
        generation: generation(message.generation)?,
        writer_uuid: writer_uuid(&message.writer_uuid)?,
    };
    Ok((write, message.value.map(|stored| (value(stored), message.tag))))
}

pub(crate) fn from_state(state: StoredState) -> proto::StoredState {
    proto::StoredState {
        persistence_id: state.id.as_str().to_owned(),
        revision: state.revision.as_u64(),
        generation: state.generation.map(Generation::as_u64),
        writer_uuid: from_writer_uuid(state.writer_uuid),
        timestamp: state.timestamp.as_micros(),
        value: state.value.map(from_value),
        tag: state.tag,
        crc32c: state.crc32c,
    }
}

/// Decodes a row and verifies its checksum, so that the wire protects what the disk does.
pub(crate) fn state(message: proto::StoredState) -> Decoded<StoredState> {
    let state = StoredState {
        id: id(&message.persistence_id)?,
        revision: revision(message.revision)?,
        generation: generation(message.generation)?,
        writer_uuid: writer_uuid(&message.writer_uuid)?,
        timestamp: Timestamp::from_micros(message.timestamp),
        value: message.value.map(value),
        tag: message.tag,
        crc32c: message.crc32c,
    };
    if state.is_intact() { Ok(state) } else { Err(Malformed("state: its checksum does not match")) }
}

pub(super) fn from_state_head(head: StateHead) -> proto::StateHead {
    proto::StateHead {
        revision: head.revision.as_u64(),
        generation: head.generation.map(Generation::as_u64),
        writer_uuid: from_writer_uuid(head.writer_uuid),
        crc32c: head.crc32c,
    }
}

pub(super) fn state_head(head: &proto::StateHead) -> Decoded<StateHead> {
    Ok(StateHead {
        revision: revision(head.revision)?,
        generation: generation(head.generation)?,
        writer_uuid: writer_uuid(&head.writer_uuid)?,
        crc32c: head.crc32c,
    })
}

pub(super) fn from_slices(entity_type: &str, slices: &RangeInclusive<u16>) -> proto::Slices {
    let (first, last) = (u32::from(*slices.start()), u32::from(*slices.end()));
    proto::Slices { entity_type: entity_type.to_owned(), first, last }
}

pub(super) fn slice(number: u32) -> Decoded<u16> {
    u16::try_from(number).map_err(|_| Malformed("slice"))
}

/// The slices from `first` to `last`, both included; empty if `last` is the smaller.
pub(crate) fn slices(first: u32, last: u32) -> Decoded<RangeInclusive<u16>> {
    Ok(slice(first)?..=slice(last)?)
}

pub(crate) fn from_changes_of(of: &ChangesOf) -> proto::Selection {
    let of = match of {
        ChangesOf::Tag(tag) => selection::Of::Tag(tag.clone()),
        ChangesOf::Slices { entity_type, slices } => selection::Of::Slices(from_slices(entity_type, slices)),
    };
    proto::Selection { of: Some(of) }
}

pub(crate) fn changes_of(message: Option<proto::Selection>) -> Decoded<ChangesOf> {
    match message.and_then(|message| message.of) {
        Some(selection::Of::Tag(tag)) => Ok(ChangesOf::Tag(tag)),
        Some(selection::Of::Slices(meant)) => {
            let slices = slices(meant.first, meant.last)?;
            Ok(ChangesOf::Slices { entity_type: meant.entity_type, slices })
        }
        None => Err(Malformed("selection")),
    }
}

pub(crate) fn from_offset(offset: &Offset) -> Option<proto::Offset> {
    let offset = match offset {
        Offset::None => return None,
        Offset::Ordinal(ordinal) => offset::Offset::Ordinal(*ordinal),
        Offset::Timestamp { timestamp, seen } => {
            let seen =
                seen.iter().map(|(id, number)| proto::Seen { persistence_id: id.as_str().to_owned(), number: *number });
            offset::Offset::Timestamp(proto::Moment { timestamp: timestamp.as_micros(), seen: seen.collect() })
        }
    };
    Some(proto::Offset { offset: Some(offset) })
}

pub(crate) fn offset(message: Option<proto::Offset>) -> Decoded<Offset> {
    let Some(message) = message else { return Ok(Offset::None) };
    match message.offset.ok_or(Malformed("offset"))? {
        offset::Offset::Ordinal(ordinal) => Ok(Offset::Ordinal(ordinal)),
        offset::Offset::Timestamp(moment) => {
            let seen = moment.seen.iter().map(|seen| Ok((id(&seen.persistence_id)?, seen.number)));
            let seen = seen.collect::<Decoded<_>>()?;
            Ok(Offset::Timestamp { timestamp: Timestamp::from_micros(moment.timestamp), seen })
        }
    }
}

pub(crate) fn from_change(change: StateChange) -> proto::Change {
    proto::Change { offset: from_offset(&change.offset), state: Some(from_state(change.state)) }
}

pub(crate) fn change(message: proto::Change) -> Decoded<StateChange> {
    let state = state(message.state.ok_or(Malformed("change without a state"))?)?;
    Ok(StateChange { offset: offset(message.offset)?, state })
}
