//! How far a reader of changes is: offsets of streams, and what a projection has processed.
//!
//! An [`Offset`] resumes a stream after a place. What a projection has processed is kept for each id
//! in an [`OffsetStore`](crate::OffsetStore), under a fence: a projection that starts raises the
//! [`OwnerEpoch`] of each of its slices, and what an earlier owner saves later is refused.
//! Source: persistence §5.

use std::collections::BTreeMap;
use std::fmt;

use crate::event::{SeqNr, Timestamp};
use crate::journal::Scope;
use crate::persistence_id::PersistenceId;

/// What a store orders its changes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OffsetKind {
    /// One number for each change, without gaps: sled and memory.
    Ordinal,
    /// The time of the commit, which several changes may share: databases.
    Timestamp,
}

/// Where a stream of changes goes on; exclusive. Offsets of one kind mean nothing to a store of the
/// other, which refuses them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Offset {
    /// At the start.
    #[default]
    None,
    /// After this number.
    Ordinal(u64),
    /// After this time, and after what was delivered at exactly this time.
    Timestamp {
        /// The time.
        timestamp: Timestamp,
        /// What was delivered at exactly this time: ids with their number or revision.
        seen: Vec<(PersistenceId, u64)>,
    },
}

impl Offset {
    /// Which store it is for; the start is for every one.
    pub fn kind(&self) -> Option<OffsetKind> {
        match self {
            Self::None => None,
            Self::Ordinal(_) => Some(OffsetKind::Ordinal),
            Self::Timestamp { .. } => Some(OffsetKind::Timestamp),
        }
    }

    /// Whether a store of this kind takes it.
    pub fn fits(&self, kind: OffsetKind) -> bool {
        self.kind().is_none_or(|own| own == kind)
    }
}

/// The place of one change among all changes of its store. Two of different kinds never meet: a
/// store refuses the foreign one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Position {
    /// The change's number.
    Ordinal(u64),
    /// The time of its commit.
    Timestamp(Timestamp),
}

impl Position {
    /// Which kind of store it is of.
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
    /// Where the change stands.
    pub position: Position,
}

/// The entity type of [marks](Processed::is_mark).
pub(crate) const MARK_TYPE: &str = "gl.projection";

/// What ids of [starts](Processed::is_start) begin with, for stores that look at the text.
pub const START_PREFIX: &str = "gl.projection|!";

impl Processed {
    /// Whether this is a mark, which a projection saves under an id of its own: it tells how far
    /// *everything* of a range of slices was processed, not only the slice that its id falls into.
    pub fn is_mark(&self) -> bool {
        self.id.entity_type() == MARK_TYPE
    }

    /// Whether this is a mark that says that slices started over. Stores keep these for good: neither a
    /// reset nor forgetting removes one, since the marks that it overrules may be in other slices.
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

    /// From its stored form.
    pub const fn from_u64(epoch: u64) -> Self {
        Self(epoch)
    }

    /// The number.
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
    /// The slices, each with the epoch that it was claimed at.
    pub epochs: BTreeMap<u16, OwnerEpoch>,
}

/// What an offset store can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffsetCaps {
    /// Which nodes reach the data.
    pub scope: Scope,
    /// Of which kind its positions are.
    pub kind: OffsetKind,
}

/// Longest name of a projection in bytes.
pub const MAX_PROJECTION_BYTES: usize = 255;

/// Whether a projection may have this name: 1 to [`MAX_PROJECTION_BYTES`] bytes without control
/// characters, which separate names on disk.
pub fn is_projection_name(name: &str) -> bool {
    (1..=MAX_PROJECTION_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}
