//! Revisions of durable states, and the newest one of an id as its store knows it.

use std::fmt;

use greylag_core::Generation;

use super::event::{SeqNr, WriterUuid};

/// The number of writes and deletions of a durable state; [`Revision::NONE`] means never written.
///
/// Raised by one by every write, never reused, not even after a deletion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// Never written.
    pub const NONE: Self = Self(0);
    /// The revision of the first write.
    pub const FIRST: Self = Self(1);
    /// The largest revision, `i64::MAX`, so that every database has a type for it.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// `number`, unless it is past [`Revision::MAX`].
    pub const fn new(number: u64) -> Option<Self> {
        if number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// The number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The revision of the next write; `None` after [`Revision::MAX`].
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }

    /// The revision of the previous write; [`Revision::NONE`] before [`Revision::FIRST`].
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Whether the state was never written.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl From<Revision> for SeqNr {
    fn from(revision: Revision) -> Self {
        Self::saturating(revision.0)
    }
}

impl From<u32> for Revision {
    fn from(number: u32) -> Self {
        Self(u64::from(number))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The stored facts about a state besides its value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateHead {
    /// Revision of the last write; [`Revision::NONE`] if the id was never written.
    pub revision: Revision,
    /// The greatest generation ever written with, if any.
    pub generation: Option<Generation>,
    /// Writer of the last write.
    pub writer_uuid: WriterUuid,
    /// Checksum of the last value; `None` for a tombstone.
    pub crc32c: Option<u32>,
}
