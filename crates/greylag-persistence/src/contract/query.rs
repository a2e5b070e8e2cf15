//! Pages of events across histories: what a query asks of a store, and what the store answers.
//!
//! A store answers pages ([`EventPage`]) after a [`Cursor`]. Stores that order by [`OffsetKind::Ordinal`] show events in
//! the order of their commits, without gaps. Source: persistence §5.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::error::QueryError;
use super::offset::{OffsetKind, Position};
use super::records::event::{SeqNr, StoredEvent, Timestamp};
use super::records::persistence_id::PersistenceId;
use super::scope::Scope;

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

/// The exclusive start of a page. Valid within one run of a stream; an [`Offset`](crate::Offset) outlives the run.
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
