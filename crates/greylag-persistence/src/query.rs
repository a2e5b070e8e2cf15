//! Reading events across histories: which, from where, and what comes back.
//!
//! A store answers pages ([`EventPage`]) after a [`Cursor`]; a [`Feed`] makes a stream of them, for
//! what is there now or for ever; [`ReadJournal`](crate::ReadJournal) is what programs hold. Per id
//! the order of a stream is the order of the history; across ids it is the order of storage.
//!
//! Stores that order by [`OffsetKind::Ordinal`] show events in the order of their commits, without a
//! gap. Databases order by the time of the commit, and a commit may become visible after a later one:
//! there a feed goes back over what it has read ([`EventSource::Backtracking`]), and a consumer that needs
//! every event once applies the gap rules, as a projection does.
//!
//! Changes of durable states are read in the same way, by the queries of a state store: a change comes as
//! a record whose number is the revision ([`StoredState::into_record`](crate::StoredState::into_record)).
//! Of each id only the newest is there to be found ([`Shows::Newest`]). Source: persistence §5.

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
        /// Of `0..SLICES`.
        slices: RangeInclusive<u16>,
    },
}

impl EventsOf {
    /// Whether this event is meant.
    pub fn matches(&self, event: &StoredEvent) -> bool {
        match self {
            Self::Tag(tag) => event.tags.contains(tag),
            Self::Slices { .. } => self.may_match(&event.id),
        }
    }

    /// Whether events of this id can be meant, as far as the id alone tells.
    pub fn may_match(&self, id: &PersistenceId) -> bool {
        match self {
            Self::Tag(_) => true,
            Self::Slices { entity_type, slices } => id.entity_type() == entity_type && slices.contains(&id.slice()),
        }
    }
}

/// What the query side of a store can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryCaps {
    /// Which nodes reach the data.
    pub scope: Scope,
    /// What it orders events by.
    pub kind: OffsetKind,
    /// Which numbers of an id it shows.
    pub shows: Shows,
}

/// Which numbers of an id a store shows. A reader of a store of the newest takes a left-out number for no gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// Every one that is not deleted: events.
    Every,
    /// The newest alone, which stands for those that it replaced: the revisions of durable states. A state that is
    /// changed while a current stream runs then stands beyond the stream's end, and is not in it.
    Newest,
}

/// Where a page begins, exclusive. Within one run of a stream; what outlives the run is an [`Offset`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Cursor {
    /// At the start.
    #[default]
    Start,
    /// After this number.
    Ordinal(u64),
    /// After this row, in the order of time, id, number.
    Row {
        /// The time.
        timestamp: Timestamp,
        /// The id; none stands before every id.
        id: Option<PersistenceId>,
        /// The number of the event.
        seq_nr: SeqNr,
    },
}

impl Cursor {
    /// Which store it is for; the start is for every one.
    pub fn kind(&self) -> Option<OffsetKind> {
        match self {
            Self::Start => None,
            Self::Ordinal(_) => Some(OffsetKind::Ordinal),
            Self::Row { .. } => Some(OffsetKind::Timestamp),
        }
    }

    /// Before everything that was committed at this time or later.
    pub const fn at(timestamp: Timestamp) -> Self {
        Self::Row { timestamp, id: None, seq_nr: SeqNr::ZERO }
    }

    /// The time, in a store that orders by it.
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

/// How much of the newest a page leaves out, where an event may become visible after a later one.
/// Stores without such surprises show everything at once, whatever is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visible {
    /// Leaves out nothing: shows all that is committed.
    All,
    /// What the store holds too young to rely on its order (`behind_current_time`).
    Settled,
    /// What is younger than this.
    Older(Duration),
}

/// What is asked of a store for one page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageQuery {
    /// The histories to read.
    pub of: EventsOf,
    /// Where the page begins, exclusive.
    pub after: Cursor,
    /// No event that stands after this, if it is given.
    pub until: Option<Position>,
    /// How far the page keeps from the present.
    pub visible: Visible,
    /// Most events of the page; at least 1.
    pub limit: usize,
    /// Whether the events themselves are wanted. Without them a store that has an index of places
    /// reads that alone; others may answer the events all the same.
    pub load: bool,
}

impl PageQuery {
    /// For stores that order by ordinals: the ordinal to begin after; none at the start.
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

    /// For stores that order by ordinals: the last ordinal that is meant, `u64::MAX` if nothing limits it.
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
    /// Where it stands.
    pub position: Position,
    /// The event, if it was asked for.
    pub event: Option<StoredEvent>,
}

/// Some events, and where to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// In the order of their places.
    pub events: Vec<FoundEvent>,
    /// After everything that was looked at, what was not meant included.
    pub next: Cursor,
    /// Whether the page ended because it was full, so that the next one is worth asking for at once.
    pub more: bool,
}

/// How an event came to its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventSource {
    /// By reading on.
    Live,
    /// By reading again what was read before; most of it is known already.
    Backtracking,
    /// By the writer's own announcement, before it was read. Lossy, and out of order with the rest.
    PubSub,
}

/// What was delivered at one time, shared by the envelopes of that time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SeenAt {
    all: Arc<Vec<(PersistenceId, u64)>>,
    /// How many of them were delivered when this envelope was.
    count: usize,
}

/// One event on its way to a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The id that the event belongs to.
    pub id: PersistenceId,
    /// The event's number.
    pub seq_nr: SeqNr,
    /// Where it stands among all events of the store.
    pub position: Position,
    /// How it came.
    pub source: EventSource,
    /// The record; none if it was not loaded, see [`EventSource::Backtracking`].
    pub record: Option<StoredEvent>,
    seen: Option<SeenAt>,
}

impl Envelope {
    /// The envelope of a record that was read by its id. Its offset knows only itself.
    pub fn of_record(record: StoredEvent, position: Position, source: EventSource) -> Self {
        Self { id: record.id.clone(), seq_nr: record.seq_nr, position, source, record: Some(record), seen: None }
    }

    /// This envelope with its record.
    #[must_use]
    pub fn with_record(mut self, record: StoredEvent) -> Self {
        self.record = Some(record);
        self
    }

    /// Resumes after this envelope.
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

    /// When the event was committed; none only where neither place nor record tells.
    pub fn timestamp(&self) -> Option<Timestamp> {
        match (&self.record, self.position) {
            (Some(record), _) => Some(record.timestamp),
            (None, Position::Timestamp(timestamp)) => Some(timestamp),
            (None, Position::Ordinal(_)) => None,
        }
    }

    /// Whether the record is there and carries no event: it only occupies its number. Of a durable state:
    /// whether this is its deletion.
    pub fn is_filtered(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.kind == EventKind::Filtered)
    }

    /// The event.
    ///
    /// # Errors
    /// [`EnvelopeError::NotLoaded`] if the record is not there, [`EnvelopeError::Undecodable`] if the
    /// codec does not read it.
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

/// Why there is no event in an envelope.
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
    /// The codec does not read it.
    #[error("event {seq_nr} of {id} cannot be decoded")]
    Undecodable {
        /// The id that the event belongs to.
        id: PersistenceId,
        /// The event's number.
        seq_nr: SeqNr,
        /// Why.
        #[source]
        cause: StoredDecodeError,
    },
}
