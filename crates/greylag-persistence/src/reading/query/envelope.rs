//! One event of a stream, with the way on which its reader got it.

use std::sync::Arc;

use crate::contract::offset::{Offset, Position};
use crate::contract::records::codec::{EncodedValue, EventSeq, StoredCodec, StoredDecodeError};
use crate::contract::records::event::{EventKind, SeqNr, StoredEvent, Timestamp};
use crate::contract::records::persistence_id::PersistenceId;

/// The way on which a reader got an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventSource {
    /// Read in order, for the first time.
    Live,
    /// Read again by a backtracking pass; most such events are known already.
    Backtracking,
    /// Published by the writer itself, before it was read. Lossy, and not in the order of the others.
    PubSub,
}

/// The events delivered at one timestamp, shared by the envelopes of that timestamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeenAt {
    pub(super) all: Arc<Vec<(PersistenceId, u64)>>,
    /// How many of the events had been delivered with this envelope.
    pub(super) count: usize,
}

/// One event as a reader gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The id that the event belongs to.
    pub id: PersistenceId,
    /// The event's number.
    pub seq_nr: SeqNr,
    /// Position among all events of the store.
    pub position: Position,
    /// The way on which the reader got the event.
    pub source: EventSource,
    /// The record; `None` if it was not loaded, see [`EventSource::Backtracking`].
    pub record: Option<StoredEvent>,
    pub(super) seen: Option<SeenAt>,
}

impl Envelope {
    /// The envelope of a record that was read by its id. Its offset covers only the event itself.
    pub fn of_record(record: StoredEvent, position: Position, source: EventSource) -> Self {
        Self { id: record.id.clone(), seq_nr: record.seq_nr, position, source, record: Some(record), seen: None }
    }

    /// This envelope with its record.
    #[must_use]
    pub fn with_record(mut self, record: StoredEvent) -> Self {
        self.record = Some(record);
        self
    }

    /// The offset to resume from after this envelope.
    pub fn offset(&self) -> Offset {
        match self.position {
            Position::Ordinal(ordinal) => Offset::Ordinal(ordinal),
            Position::Timestamp(timestamp) => Offset::Timestamp {
                timestamp,
                seen: match &self.seen {
                    Some(seen) => seen.all.iter().take(seen.count).cloned().collect(),
                    None => vec![(self.id.clone(), self.seq_nr.as_u64())],
                },
            },
        }
    }

    /// The commit time; `None` if neither position nor record tells it.
    pub fn timestamp(&self) -> Option<Timestamp> {
        match (&self.record, self.position) {
            (Some(record), _) => Some(record.timestamp),
            (None, Position::Timestamp(timestamp)) => Some(timestamp),
            (None, Position::Ordinal(_)) => None,
        }
    }

    /// Whether the record is loaded and carries no event: it only occupies its number. Of a durable state:
    /// whether the record is a deletion.
    pub fn is_filtered(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.kind == EventKind::Filtered)
    }

    /// Decodes the event.
    ///
    /// # Errors
    /// [`EnvelopeError::NotLoaded`] if the record is not loaded, [`EnvelopeError::Undecodable`] if the
    /// codec cannot read it.
    pub fn decode<E: 'static>(&self, codec: &StoredCodec<E>) -> Result<EventSeq<E>, EnvelopeError> {
        let (id, seq_nr) = (&self.id, self.seq_nr);
        let record = self.record.as_ref().ok_or_else(|| EnvelopeError::NotLoaded { id: id.clone(), seq_nr })?;
        let stored = EncodedValue {
            codec_id: record.codec_id,
            manifest: record.manifest.clone(),
            schema_version: record.schema_version,
            payload: record.payload.clone(),
        };
        let decoded = codec.decode(record.kind, stored);
        decoded.map_err(|cause| EnvelopeError::Undecodable { id: id.clone(), seq_nr, cause })
    }
}

/// Why an envelope does not give an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The envelope came without its record; load it by `load_envelope`.
    #[error("event {seq_nr} of {id} was not loaded; load it by its number")]
    NotLoaded {
        /// The id that the event belongs to.
        id: PersistenceId,
        /// The event's number.
        seq_nr: SeqNr,
    },
    /// The codec cannot read the record.
    #[error("event {seq_nr} of {id} cannot be decoded")]
    Undecodable {
        /// The id that the event belongs to.
        id: PersistenceId,
        /// The event's number.
        seq_nr: SeqNr,
        /// The decode error.
        #[source]
        cause: StoredDecodeError,
    },
}
