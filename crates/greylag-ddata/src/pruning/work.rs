//! Entries that an owner has to perform, some at a time. Source: ddata Z2, Z5.

use greylag_crdt::ReplicaId;

use crate::key::KeyId;

/// One removed replica's entries, on the way through them.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) removed: ReplicaId,
    pub(crate) phase: Phase,
    /// The last entry that was looked at.
    pub(crate) after: Option<KeyId>,
    /// How many were performed.
    pub(crate) performed: usize,
}

/// First the numbers are found, for which one range is reserved; then entries are performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Scan { numbers: Option<(u64, u64)> },
    Perform,
}

impl Work {
    pub(crate) fn new(removed: ReplicaId) -> Self {
        Self { removed, phase: Phase::Scan { numbers: None }, after: None, performed: 0 }
    }
}
