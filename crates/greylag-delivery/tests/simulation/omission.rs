//! Clauses that a run omits, in the machines or in the store, as a test of the checkers.

use greylag_delivery::{Clause, Omissions};

/// See the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Without {
    /// The omitted clauses of the machines.
    pub(crate) machine: &'static [Clause],
    /// The store accepts writes of controllers that have lost the queue to another one (delivery §4.2).
    pub(crate) claims: bool,
}

impl Without {
    pub(crate) const NOTHING: Self = Self { machine: &[], claims: false };

    pub(crate) fn clauses(machine: &'static [Clause]) -> Self {
        Self { machine, claims: false }
    }

    /// What the machines omit.
    pub(crate) fn omissions(self) -> Omissions {
        Omissions::of(self.machine.iter().copied())
    }
}
