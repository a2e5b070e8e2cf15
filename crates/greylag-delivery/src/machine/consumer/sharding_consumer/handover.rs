//! What a controller leaves to its successor after the entity failed.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::ids::{ProducerId, SeqNr, StreamId};
use crate::machine::dedupe::{Attempts, Dedupe};

/// State that a controller leaves to its successor after the entity failed.
#[derive(Debug, Clone)]
pub(crate) struct HandoverState {
    pub(super) left_at: Instant,
    pub(super) attempts: Vec<(StreamId, SeqNr, Attempts)>,
    pub(super) given_up: BTreeSet<(StreamId, ProducerId)>,
    /// The confirmed total of each stream. The entity keeps no trace of messages that were given up, and copies of them
    /// may be on their way, sent before their producer got the confirmation.
    pub(super) confirmed: Dedupe,
}

impl HandoverState {
    pub(crate) fn is_empty(&self) -> bool {
        self.attempts.is_empty() && self.given_up.is_empty() && self.confirmed.iter().next().is_none()
    }
}
