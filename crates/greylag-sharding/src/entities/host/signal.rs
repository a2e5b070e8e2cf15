//! What an entity is told at its end, and what it tells of a newer owner.

use std::fmt;

use greylag_core::Generation;

/// A signal to an entity just before its incarnation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The entity failed, and a new value from the factory is about to replace this one.
    PreRestart,
    /// The entity has stopped; no message follows. A killed entity does not get this signal.
    PostStop,
}

/// Why an entity type's journal knows a newer owner; see [`ShardCx::fenced`](super::ShardCx::fenced).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fenced {
    /// The generation in the journal, if that was the reason for the refusal.
    pub stored: Option<Generation>,
}

impl fmt::Display for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stored {
            Some(stored) => write!(f, "fenced by generation {stored}"),
            None => f.write_str("fenced by another writer"),
        }
    }
}
