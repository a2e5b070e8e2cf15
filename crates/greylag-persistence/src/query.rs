//! Reading events across histories: queries, cursors and envelopes.
//!
//! A store answers pages ([`EventPage`]) after a [`Cursor`]; a [`Feed`] makes a stream of pages, up to the
//! present end or for ever; [`ReadJournal`](crate::ReadJournal) is the interface for programs. Per id
//! the order of a stream is the order of the history; across ids it is the order of storage.
//!
//! Stores that order by [`OffsetKind::Ordinal`] show events in the order of their commits, without
//! gaps. Databases order by the time of the commit, and a commit may become visible after a later one:
//! there a feed goes back over events that it has read ([`EventSource::Backtracking`]), and a consumer that needs
//! every event once applies the gap rules, as a projection does.
//!
//! Changes of durable states are read in the same way, by the queries of a state store: a change comes as
//! a record whose number is the revision ([`StoredState::into_record`](crate::StoredState::into_record)).
//! Only the newest revision of each id is shown ([`Shows::Newest`]). Source: persistence §5.

mod feed;
mod follower;
mod settings;
mod shared_reader;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::{EncodedValue, EventSeq, StoredCodec, StoredDecodeError};
use crate::error::QueryError;
use crate::event::{EventKind, SeqNr, StoredEvent, Timestamp};
use crate::journal::Scope;
use crate::offset::{Offset, OffsetKind, Position};
use crate::persistence_id::PersistenceId;

pub use feed::{Feed, FeedEffect, FeedInput};
pub(crate) use feed::{after, before};
pub use follower::{Follower, FollowerEffect, FollowerInput};
pub use settings::{BacktrackingSettings, QuerySettings, SharingSettings};
pub use shared_reader::{ConsumerId, SharedAnswer, SharedReader, SharedReaderEffect, SharedReaderInput};

/// The histories whose events to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventsOf {
    /// The events with this tag.
    Tag(String),
    /// The events of one entity type in these slices.
    Slices {
        /// As [`PersistenceId::entity_type`].
        entity_type: String,
        /// Slices of `0..SLICES`.
        slices: RangeInclusive<u16>,
    },
}

impl EventsOf {
    /// Whether the query covers this event.
    pub fn matches(&self, event: &StoredEvent) -> bool {
        match self {
            Self::Tag(tag) => event.tags.contains(tag),
            Self::Slices { .. } => self.may_match(&event.id),
        }
    }

    /// Whether the query may cover events of this id, as far as the id alone tells.
    pub fn may_match(&self, id: &PersistenceId) -> bool {
        match self {
            Self::Tag(_) => true,
            Self::Slices { entity_type, slices } => id.entity_type() == entity_type && slices.contains(&id.slice()),
        }
    }
}

/// The capabilities of the query side of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryCaps {
    /// The nodes that reach the data.
    pub scope: Scope,
    /// The kind of offset that orders events.
    pub kind: OffsetKind,
    /// The numbers of an id that the store shows.
    pub shows: Shows,
}

/// The numbers of an id that a store shows. For a reader of `Newest` a missing number is no gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// Every number that is not deleted: events.
    Every,
    /// Only the newest number, which replaces all earlier ones: the revisions of durable states. A state that is
    /// changed while a current stream runs then stands beyond the stream's end, and is left out.
    Newest,
}

/// The exclusive start of a page. Valid within one run of a stream; an [`Offset`] outlives the run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Cursor {
    /// At the start.
    #[default]
    Start,
    /// After this ordinal.
    Ordinal(u64),
    /// After this row, in the order of time, id, number.
    Row {
        /// The time.
        timestamp: Timestamp,
        /// The id; `None` stands before every id.
        id: Option<PersistenceId>,
        /// The number of the event.
        seq_nr: SeqNr,
    },
}

impl Cursor {
    /// The kind of store that the cursor is for; `None` for the start, which every store takes.
    pub fn kind(&self) -> Option<OffsetKind> {
        match self {
            Self::Start => None,
            Self::Ordinal(_) => Some(OffsetKind::Ordinal),
            Self::Row { .. } => Some(OffsetKind::Timestamp),
        }
    }

    /// Before all events that were committed at this time or later.
    pub const fn at(timestamp: Timestamp) -> Self {
        Self::Row { timestamp, id: None, seq_nr: SeqNr::ZERO }
    }

    /// The time, for a store that orders by time.
    pub fn timestamp(&self) -> Option<Timestamp> {
        match self {
            Self::Row { timestamp, .. } => Some(*timestamp),
            Self::Start | Self::Ordinal(_) => None,
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::Ordinal(ordinal) => write!(f, "{ordinal}"),
            Self::Row { timestamp, id, seq_nr } => {
                write!(f, "{timestamp}/{}/{seq_nr}", id.as_ref().map_or("", PersistenceId::as_str))
            }
        }
    }
}

/// How many of the newest events a page leaves out, where an event may become visible after a later one.
/// Stores that show events in the order of their commits leave out none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visible {
    /// Leaves out none: shows all committed events.
    All,
    /// Leaves out events that are too young for their order to be final (`behind_current_time`).
    Settled,
    /// Leaves out events younger than this.
    Older(Duration),
}

/// A query for one page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageQuery {
    /// The histories to read.
    pub of: EventsOf,
    /// Exclusive start of the page.
    pub after: Cursor,
    /// Last position of the page, if given.
    pub until: Option<Position>,
    /// Which of the newest events the page leaves out.
    pub visible: Visible,
    /// Most events of the page; at least 1.
    pub limit: usize,
    /// Whether the records are wanted. Without them a store that has an index of positions
    /// reads only the index; other stores may answer the records all the same.
    pub load: bool,
}

impl PageQuery {
    /// For stores that order by ordinals: the ordinal to begin after; `None` at the start.
    ///
    /// # Errors
    /// [`QueryError::ForeignOffset`] for a cursor of another kind of store.
    pub fn after_ordinal(&self) -> Result<Option<u64>, QueryError> {
        match &self.after {
            Cursor::Start => Ok(None),
            Cursor::Ordinal(ordinal) => Ok(Some(*ordinal)),
            Cursor::Row { .. } => {
                Err(QueryError::ForeignOffset { expected: OffsetKind::Ordinal, found: OffsetKind::Timestamp })
            }
        }
    }

    /// For stores that order by ordinals: the last ordinal of the page, `u64::MAX` without a limit.
    ///
    /// # Errors
    /// As [`PageQuery::after_ordinal`].
    pub fn until_ordinal(&self) -> Result<u64, QueryError> {
        match self.until {
            None => Ok(u64::MAX),
            Some(Position::Ordinal(ordinal)) => Ok(ordinal),
            Some(Position::Timestamp(_)) => {
                Err(QueryError::ForeignOffset { expected: OffsetKind::Ordinal, found: OffsetKind::Timestamp })
            }
        }
    }
}

/// One event of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundEvent {
    /// The id that the event belongs to.
    pub id: PersistenceId,
    /// The event's number.
    pub seq_nr: SeqNr,
    /// Position of the event.
    pub position: Position,
    /// The record, if it was asked for.
    pub event: Option<StoredEvent>,
}

/// Some events, and the start of the next page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// Events in the order of their positions.
    pub events: Vec<FoundEvent>,
    /// Cursor after all events that the store examined, including those that the query does not cover.
    pub next: Cursor,
    /// Whether the page ended because it was full, so that the next page should be queried at once.
    pub more: bool,
}

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
struct SeenAt {
    all: Arc<Vec<(PersistenceId, u64)>>,
    /// How many of the events had been delivered with this envelope.
    count: usize,
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
    seen: Option<SeenAt>,
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
