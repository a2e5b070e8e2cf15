//! Clauses that can be left out on purpose.
//!
//! A simulation that never failed proves nothing, so each clause that the promises of this crate
//! rest on can be switched off, and the simulation must then find a violation. Nothing but a
//! simulation sets one: no configuration file reaches it.
//!
//! Source: cluster scenario 74.

/// The clause that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A merge keeps a member that the other side has removed (cluster M9, M29).
    Tombstones,
    /// The leader acts on states that not all members have seen (cluster M17, M20).
    Convergence,
    /// The resolver decides at the first look (cluster S4).
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
