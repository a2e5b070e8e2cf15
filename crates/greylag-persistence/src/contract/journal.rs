//! Data types of a journal: heads, claims, appends, pages, and the rule of the fence.
//!
//! A writer claims an id and gets an epoch; from then on appends and deletes with a smaller epoch
//! are refused as Fenced. An append is compared with the head (epoch and next number) and stored whole or
//! not at all. So every history stays linear, whatever the number of hosts that write to it.
//!
//! ```text
//! claim(id, uuid, Generation(g) | Seen(epoch)) --> Claim { epoch, highest, deleted_to }
//! append(id, epoch, first = highest + 1, events) --> Appended | Fenced | Conflict | Unknown | …
//! ```
//! The trait that stores implement is [`Journal`](crate::Journal).

use std::fmt;

use super::error::RejectReason;
use super::records::event::{
    EventKind, MAX_MANIFEST_BYTES, MAX_TAG_BYTES, MAX_TAGS, NewEvent, SeqNr, StoredEvent, Timestamp, WriterEpoch,
    WriterUuid,
};
use super::records::persistence_id::PersistenceId;
use super::scope::Scope;

/// The capabilities and limits of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// The nodes that reach the data.
    pub scope: Scope,
    /// Largest payload of one event in bytes. Default 4 MiB.
    pub max_event_bytes: usize,
    /// Most events of one append. Default 1000.
    pub max_atomic_events: usize,
    /// Whether queries find events by tag.
    pub tags: bool,
    /// Whether queries find events by slice.
    pub slices: bool,
    /// Whether metadata of events is kept. Entities under delivery need it.
    pub metadata: bool,
    /// Whether claims fence. Without it, a journal does not protect a history from two writers.
    pub fencing: bool,
}

impl Caps {
    /// All capabilities, at the default limits.
    pub const fn full(scope: Scope) -> Self {
        Self {
            scope,
            max_event_bytes: 4 << 20,
            max_atomic_events: 1000,
            tags: true,
            slices: true,
            metadata: true,
            fencing: true,
        }
    }
}

/// Events to be stored together, under one number range and one timestamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The id that the events belong to.
    pub id: PersistenceId,
    /// Epoch of the writer's claim.
    pub epoch: WriterEpoch,
    /// Uuid of the writer's claim.
    pub writer_uuid: WriterUuid,
    /// The number of the first event: `highest + 1`.
    pub first: SeqNr,
    /// The events: at least one, at most [`Caps::max_atomic_events`].
    pub events: Vec<NewEvent>,
}

impl Append {
    /// The number of the last event; `None` if there are no events, or the numbers are used up.
    pub fn last(&self) -> Option<SeqNr> {
        let last = self.first.plus(u64::try_from(self.events.len()).ok()?.checked_sub(1)?);
        last.filter(|last| *last <= SeqNr::LAST)
    }

    /// Checks the limits that every journal enforces before it reads the head.
    ///
    /// # Errors
    /// [`RejectReason`], naming the limit and the event.
    pub fn check(&self, caps: &Caps) -> Result<(), RejectReason> {
        let (count, max) = (self.events.len(), caps.max_atomic_events);
        if count == 0 {
            return Err(RejectReason::Empty);
        }
        if count > max {
            return Err(RejectReason::TooManyEvents { count, max });
        }
        if self.last().is_none() || self.first.is_zero() {
            return Err(RejectReason::SeqNrOverflow);
        }
        (self.first.as_u64()..)
            .zip(&self.events)
            .try_for_each(|(number, event)| event.check(SeqNr::saturating(number), caps))
    }

    /// The records as they are to be stored at `timestamp`, with their checksums.
    pub fn records(&self, timestamp: Timestamp) -> Vec<StoredEvent> {
        (self.first.as_u64()..)
            .zip(&self.events)
            .map(|(number, event)| self.record(SeqNr::saturating(number), event, timestamp))
            .collect()
    }

    /// Whether `stored`, the record under [`Append::last`], shows that this very append was stored
    /// by an earlier try: same writer, same place, same content. Source: persistence J10.
    pub fn was_stored_as(&self, stored: &StoredEvent) -> bool {
        self.last().zip(self.events.last()).is_some_and(|(last, event)| {
            stored.seq_nr == last
                && stored.writer_uuid == self.writer_uuid
                && stored.crc32c == self.record(last, event, stored.timestamp).crc32c
        })
    }

    fn record(&self, seq_nr: SeqNr, event: &NewEvent, timestamp: Timestamp) -> StoredEvent {
        let mut record = StoredEvent {
            id: self.id.clone(),
            seq_nr,
            timestamp,
            writer_uuid: self.writer_uuid,
            writer_epoch: self.epoch,
            codec_id: event.codec_id,
            manifest: event.manifest.clone(),
            schema_version: event.schema_version,
            kind: event.kind,
            payload: event.payload.clone(),
            metadata: event.metadata.clone(),
            tags: event.tags.clone(),
            crc32c: 0,
        };
        record.crc32c = record.compute_crc32c();
        record
    }
}

impl NewEvent {
    /// Checks the limits of one event that will get `seq_nr`.
    ///
    /// # Errors
    /// [`RejectReason`], naming the limit.
    pub fn check(&self, seq_nr: SeqNr, caps: &Caps) -> Result<(), RejectReason> {
        let (bytes, max) = (self.payload.len(), caps.max_event_bytes);
        if bytes > max {
            return Err(RejectReason::EventTooLarge { seq_nr, bytes, max });
        }
        if self.manifest.is_empty() || self.manifest.len() > MAX_MANIFEST_BYTES {
            return Err(RejectReason::InvalidManifest { seq_nr });
        }
        if self.kind == EventKind::Filtered && bytes > 0 {
            return Err(RejectReason::FilteredPayload { seq_nr });
        }
        // Stores separate tags on disk by control characters.
        let fine = |tag: &String| (1..=MAX_TAG_BYTES).contains(&tag.len()) && !tag.chars().any(char::is_control);
        if self.tags.len() > MAX_TAGS || !self.tags.iter().all(fine) {
            return Err(RejectReason::InvalidTags { seq_nr });
        }
        Ok(())
    }
}

/// An append that is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The timestamp of all its events.
    pub timestamp: Timestamp,
}

/// A range of events to read, and the limits of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRange {
    /// First number, inclusive.
    pub from: SeqNr,
    /// Last number, inclusive.
    pub to: SeqNr,
    /// Most records of the page; 0 gives an empty page.
    pub max_events: usize,
    /// The page ends before the record with which the sum of [`StoredEvent::size_bytes`] would exceed this many bytes,
    /// but holds at least one.
    pub max_bytes: usize,
}

impl ReadRange {
    /// `from..=to` in pages of the default size: 1000 records or 1 MiB.
    pub const fn new(from: SeqNr, to: SeqNr) -> Self {
        Self { from, to, max_events: 1000, max_bytes: 1 << 20 }
    }

    /// The whole history, in pages of the default size.
    pub const fn all() -> Self {
        Self::new(SeqNr::FIRST, SeqNr::MAX)
    }
}

/// Some events, and the start of the next page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Records in ascending order, without gaps.
    pub records: Vec<StoredEvent>,
    /// The `from` of the next page; `None` once the end of the range or of the history is reached.
    pub next: Option<SeqNr>,
}

/// The condition of a store; part of the readiness of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// The store works.
    Up,
    /// The journal works, but an operator should look at it: reasons.
    Degraded(Vec<String>),
    /// The journal refuses to work: reason.
    Down(String),
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up => f.write_str("up"),
            Self::Degraded(reasons) => write!(f, "degraded: {}", reasons.join(", ")),
            Self::Down(reason) => write!(f, "down: {reason}"),
        }
    }
}
