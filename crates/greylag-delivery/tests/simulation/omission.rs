//! Clauses that a run leaves out, in the machines or around them, to see that its checkers notice.

use greylag_delivery::Sabotage;

/// See the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Without {
    /// A clause of the machines.
    pub(crate) machine: Option<Sabotage>,
    /// The store takes what controllers write that have lost the queue to another one (delivery §4.2).
    pub(crate) claims: bool,
}

impl Without {
    pub(crate) const NOTHING: Self = Self { machine: None, claims: false };

    pub(crate) fn clause(clause: Sabotage) -> Self {
        Self { machine: Some(clause), claims: false }
    }
}
