//! The progress of a reader of changes: offsets of streams, and the processed changes of a projection.
//!
//! An [`Offset`] resumes a stream after a position. The progress of a projection is kept for each id
//! in an [`OffsetStore`](crate::OffsetStore), under a fence: a projection that starts raises the
//! [`OwnerEpoch`] of each of its slices, and later saves of an earlier owner are refused.
//! Source: persistence §5.

use std::collections::BTreeMap;
use std::fmt;

use super::records::event::{SeqNr, Timestamp};
use super::records::persistence_id::PersistenceId;
use super::scope::Scope;

/// The order of changes in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OffsetKind {
    /// One number for each change, without gaps: sled and memory.
    Ordinal,
    /// The time of the commit, which several changes may share: databases.
    Timestamp,
}

/// The exclusive start of a stream of changes. A store refuses offsets of the
/// other kind, which mean nothing to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Offset {
    /// At the start.
    #[default]
    None,
    /// After this ordinal.
    Ordinal(u64),
    /// After this time, and after the changes delivered at exactly this time.
    Timestamp {
        /// The time.
        timestamp: Timestamp,
        /// The changes delivered at exactly this time: ids with their number or revision.
        seen: Vec<(PersistenceId, u64)>,
    },
}

impl Offset {
    /// The kind of store that the offset is for; `None` for the start, which every store takes.
    pub fn kind(&self) -> Option<OffsetKind> {
        match self {
            Self::None => None,
            Self::Ordinal(_) => Some(OffsetKind::Ordinal),
            Self::Timestamp { .. } => Some(OffsetKind::Timestamp),
        }
    }

    /// Whether a store of this kind takes the offset.
    pub fn fits(&self, kind: OffsetKind) -> bool {
        self.kind().is_none_or(|own| own == kind)
    }
}

/// The position of one change among all changes of its store. Positions of different kinds are never compared: a
/// store refuses a foreign one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Position {
    /// The change's ordinal.
    Ordinal(u64),
    /// The time of the change's commit.
    Timestamp(Timestamp),
}

impl Position {
    /// The kind of store that the position is of.
    pub const fn kind(self) -> OffsetKind {
        match self {
            Self::Ordinal(_) => OffsetKind::Ordinal,
            Self::Timestamp(_) => OffsetKind::Timestamp,
        }
    }
}

/// One change that a projection has processed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processed {
    /// The id that the change belongs to.
    pub id: PersistenceId,
    /// The number of the event, or the revision of the state.
    pub seq_nr: SeqNr,
    /// Position of the change.
    pub position: Position,
}

/// The entity type of [marks](Processed::is_mark).
pub(crate) const MARK_TYPE: &str = "gl.projection";

/// Prefix of the ids of [starts](Processed::is_start), for stores that match it in the text.
pub const START_PREFIX: &str = "gl.projection|!";

impl Processed {
    /// Whether this is a mark, which a projection saves under an id of its own: the position up to which
    /// *all* events of a range of slices were processed, not only those of the slice that its id falls into.
    pub fn is_mark(&self) -> bool {
        self.id.entity_type() == MARK_TYPE
    }

    /// Whether this is a mark that says that slices started over. Stores keep such marks for good: neither a
    /// reset nor forgetting removes them, since the marks that they override may be in other slices.
    pub fn is_start(&self) -> bool {
        self.id.as_str().starts_with(START_PREFIX)
    }
}

/// The fence of one slice of a projection; every new owner raises it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerEpoch(u64);

impl OwnerEpoch {
    /// The slice never had an owner.
    pub const NONE: Self = Self(0);

    /// An epoch from its stored form.
    pub const fn from_u64(epoch: u64) -> Self {
        Self(epoch)
    }

    /// The stored form.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The epoch of the next owner.
    ///
    /// # Panics
    /// After 2^64 owners of one slice.
    #[must_use]
    pub fn raised(self) -> Self {
        Self(self.0.checked_add(1).expect("2^64 owners of one slice take longer than the disk lives"))
    }
}

impl fmt::Display for OwnerEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The right to save offsets of some slices of one projection, until another owner claims them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedSlices {
    /// The name of the projection.
    pub projection: String,
    /// The slices, each with the epoch of its claim.
    pub epochs: BTreeMap<u16, OwnerEpoch>,
}

/// The capabilities of an offset store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffsetCaps {
    /// The nodes that reach the data.
    pub scope: Scope,
    /// The kind of the store's positions.
    pub kind: OffsetKind,
}

/// Longest name of a projection in bytes.
pub const MAX_PROJECTION_BYTES: usize = 255;

/// Whether a projection may have this name: 1 to [`MAX_PROJECTION_BYTES`] bytes without control
/// characters, which separate names on disk.
pub fn is_projection_name(name: &str) -> bool {
    (1..=MAX_PROJECTION_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}
