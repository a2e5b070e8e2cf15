//! Offsets of projections, and the owners of their slices.

use greylag_persistence::{OffsetCaps, OwnedSlices, OwnerEpoch, Position, Processed, Scope, Timestamp};

use super::states::{from_kind, kind, slice};
use super::values::{Decoded, Malformed, id, seq_nr};
use crate::generated::{self as proto, position};

pub(crate) fn from_offset_caps(caps: OffsetCaps) -> proto::OffsetCaps {
    proto::OffsetCaps { kind: from_kind(caps.kind).into() }
}

/// The capabilities of the served store; for clients the scope is `Shared`.
pub(crate) fn offset_caps(caps: proto::OffsetCaps) -> OffsetCaps {
    OffsetCaps { scope: Scope::Shared, kind: kind(caps.kind()) }
}

pub(crate) fn from_position(position: Position) -> proto::Position {
    let position = match position {
        Position::Ordinal(ordinal) => position::Position::Ordinal(ordinal),
        Position::Timestamp(timestamp) => position::Position::Timestamp(timestamp.as_micros()),
    };
    proto::Position { position: Some(position) }
}

pub(crate) fn position(message: Option<proto::Position>) -> Decoded<Position> {
    match message.and_then(|message| message.position) {
        Some(position::Position::Ordinal(ordinal)) => Ok(Position::Ordinal(ordinal)),
        Some(position::Position::Timestamp(micros)) => Ok(Position::Timestamp(Timestamp::from_micros(micros))),
        None => Err(Malformed("position")),
    }
}

pub(crate) fn from_owned(owned: &OwnedSlices) -> proto::OwnedSlices {
    proto::OwnedSlices {
        projection: owned.projection.clone(),
        slices: owned.epochs.keys().copied().map(u32::from).collect(),
        epochs: owned.epochs.values().map(|epoch| epoch.as_u64()).collect(),
    }
}

pub(crate) fn owned(message: proto::OwnedSlices) -> Decoded<OwnedSlices> {
    let proto::OwnedSlices { projection, slices, epochs } = message;
    if slices.len() != epochs.len() {
        return Err(Malformed("owned slices"));
    }
    let pairs = slices.into_iter().zip(epochs);
    let epochs = pairs.map(|(number, epoch)| Ok((slice(number)?, OwnerEpoch::from_u64(epoch))));
    Ok(OwnedSlices { projection, epochs: epochs.collect::<Decoded<_>>()? })
}

pub(crate) fn from_processed(processed: &Processed) -> proto::Processed {
    proto::Processed {
        persistence_id: processed.id.as_str().to_owned(),
        seq_nr: processed.seq_nr.as_u64(),
        position: Some(from_position(processed.position)),
    }
}

pub(crate) fn processed(message: proto::Processed) -> Decoded<Processed> {
    Ok(Processed {
        id: id(&message.persistence_id)?,
        seq_nr: seq_nr(message.seq_nr)?,
        position: position(message.position)?,
    })
}
