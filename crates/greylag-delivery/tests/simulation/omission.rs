//! Clauses that a run omits, in the machines or in the store, as a test of the checkers.

use greylag_delivery::Sabotage;

/// See the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Without {
    /// The omitted clause of the machines.
    pub(crate) machine: Option<Sabotage>,
    /// The store accepts writes of controllers that have lost the queue to another one (delivery §4.2).
    pub(crate) claims: bool,
}

impl Without {
    pub(crate) const NOTHING: Self = Self { machine: None, claims: false };

    pub(crate) fn clause(clause: Sabotage) -> Self {
        Self { machine: Some(clause), claims: false }
    }
}
