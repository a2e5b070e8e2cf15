//! Clauses of the specification that coordinators and regions omit on purpose, in simulations.
//!
//! A simulation that never failed proves nothing. So it omits the clauses that the guarantees of this crate depend on,
//! one by one, and must then find a violation. Only the feature `sabotage` makes this possible: without it no clause can
//! be named from outside, and [`Omissions::has`] is constant.
//!
//! Source: sharding scenario 96.

/// A clause that can be omitted, named by what happens without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// The coordinator decides before every node has answered the inventory (sharding §2.13).
    Inventory,
    /// The coordinator decides before all members agree about the type (sharding §1.5, point 4).
    Agreement,
    /// The coordinator goes on although it learns of a larger epoch, and regions obey coordinators of earlier epochs
    /// (sharding §2.1; §2.2, `StaleEpoch`).
    EpochFence,
    /// The coordinator takes a removed node for gone at once (sharding §2.12).
    Margin,
    /// The coordinator takes any `ShardStopped` for the current home's; regions believe homes of older generations, and
    /// start ended generations again (sharding §2.4, §2.10).
    GenerationCheck,
    /// Flush marks are neither sent nor awaited (sharding §2.9).
    FlushMark,
    /// Messages older than the shard's floor are taken (sharding §2.6).
    Floor,
    /// A route that was left counts as empty (sharding §2.6).
    OldPath,
    /// The new owner does not wait for the former owner's leftovers (sharding §2.9).
    LeftoverMark,
    /// A mark counts whatever handoff attempt it was sent for (sharding §2.2).
    Attempt,
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
