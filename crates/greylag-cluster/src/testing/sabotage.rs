//! Clauses of the specification that can be omitted on purpose.
//!
//! A simulation that never failed proves nothing, so each clause that the guarantees of this crate depend on can be
//! disabled, and the simulation must then find a violation. Only simulations do this: no configuration file can.
//!
//! Source: cluster scenario 74.

/// The omitted clause, named by what happens without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
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
