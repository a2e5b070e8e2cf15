//! The entries that an owner has to perform, some at a time. Source: ddata Z2, Z5.

use greylag_crdt::ReplicaId;

use crate::api::key::KeyId;

/// The progress through the entries of one removed replica.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) removed: ReplicaId,
    pub(crate) phase: PruningStep,
    /// The last entry examined.
    pub(crate) after: Option<KeyId>,
    /// The number of performed entries.
    pub(crate) performed: usize,
}

/// First all entries are scanned for the numbers to reserve one range for; then they are performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PruningStep {
    Scan { numbers: Option<(u64, u64)> },
    Perform,
}

impl Work {
    pub(crate) fn new(removed: ReplicaId) -> Self {
        Self { removed, phase: PruningStep::Scan { numbers: None }, after: None, performed: 0 }
    }
}
