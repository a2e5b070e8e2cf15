//! Clauses of the specification that the machines of this crate omit on purpose, in simulations.
//!
//! A simulation that never failed proves nothing. So it omits the clauses that the guarantees of this crate depend on,
//! one by one, and must then find a violation. Only the feature `sabotage` makes this possible: without it no clause can
//! be named from outside, and [`Omissions::has`] is constant.
//!
//! Source: cluster scenario 74.

/// A clause that can be omitted, named by what happens without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// A merge keeps a member that the other side has removed (cluster M9, M29).
    Tombstones,
    /// The leader acts on states that not all members have seen (cluster M17, M20).
    Convergence,
    /// The resolver decides at its first tick (cluster S4).
    StableAfter,
    /// The duties of a removed member start elsewhere at once (cluster S14, P6).
    Margin,
    /// A new oldest asks only the latest of its predecessors (cluster P3a).
    Clearance,
    /// A verdict is not checked against what the other side may know (cluster S6, S8).
    Recheck,
    /// A dial that ends in any other way counts as refused (cluster S20).
    TimeoutIsRefusal,
    /// A member is Down at once when its name is heard from another host (cluster M25, T15).
    MovedName,
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
