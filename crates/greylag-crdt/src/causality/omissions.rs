//! Clauses of the specification that updates omit on purpose, in simulations.
//!
//! A simulation that never failed proves nothing. So it omits the clauses that the guarantees of this crate depend on,
//! one by one, and must then find a violation. Only the feature `sabotage` makes this possible: without it no clause can
//! be named from outside, and [`Omissions::has`] is constant.
//!
//! Source: ddata scenario 86.

/// A clause that can be omitted, named by what happens without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// Deltas do not say what they supersede (ddata K7).
    RemovalContext,
    /// Claims include what former replicators of the process drew (ddata K7).
    StartFloor,
    /// Claims begin at the start floor, whatever the entry has seen (ddata K7).
    ClaimStart,
    /// A counter goes on in the slot of the entry's former life (ddata Y4).
    Birth,
}

/// The omitted clauses: none, and no field, without the feature `sabotage`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Omissions {
    /// One bit a clause.
    #[cfg(feature = "sabotage")]
    bits: u32,
}

#[cfg(feature = "sabotage")]
impl Omissions {
    /// Omits these clauses.
    pub fn of(clauses: impl IntoIterator<Item = Clause>) -> Self {
        Self { bits: clauses.into_iter().fold(0, |bits, clause| bits | (1 << clause as u32)) }
    }

    /// Whether the clause is omitted.
    pub fn has(self, clause: Clause) -> bool {
        self.bits & (1 << clause as u32) != 0
    }
}

#[cfg(not(feature = "sabotage"))]
impl Omissions {
    /// Whether the clause is omitted: never, without the feature `sabotage`.
    pub const fn has(self, _clause: Clause) -> bool {
        false
    }
}
