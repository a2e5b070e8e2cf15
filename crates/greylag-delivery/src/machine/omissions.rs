//! Clauses of the specification that the machines of this crate omit on purpose, in simulations.
//!
//! A simulation that never failed proves nothing. So it omits the clauses that the guarantees of this crate depend on,
//! one by one, and must then find a violation. Only the feature `sabotage` makes this possible: without it no clause can
//! be named from outside, and [`Omissions::has`] is constant.
//!
//! Source: delivery scenario 82.

/// A clause that can be omitted, named by what happens without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// Producers do not repeat frames by timer (P8, P9).
    Repeats,
    /// Consumers do not request missing frames (C6, C11).
    Resend,
    /// Duplicates of processed messages are delivered again (C8).
    Dedupe,
    /// An entity forgets how far it has processed each stream (§7).
    Marks,
    /// A producer with an old epoch is not told that it is fenced (C2a).
    FencedAnswer,
    /// Jobs of a worker that is gone do not become pending (W5).
    HandBack,
    /// Work pulling stores confirmations as "up to a number" (W8).
    ExactConfirmations,
    /// A new window is granted only at exactly half of the last one (C9).
    HalfWindow,
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
