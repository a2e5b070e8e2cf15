//! Clauses of the specification that a replicator omits on purpose, in simulations.
//!
//! A simulation that never failed proves nothing. So it omits the clauses that the guarantees of this crate depend on,
//! one by one, and must then find a violation. Only the feature `sabotage` makes this possible: without it no clause can
//! be named from outside, and [`Omissions::has`] is constant.
//!
//! Source: ddata scenario 86.

#[cfg(feature = "sabotage")]
use greylag_crdt::Clause as OfUpdates;
use greylag_crdt::Omissions as OmittedByUpdates;

/// A clause that can be omitted, named by what happens without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// An owner prunes and records no marker (ddata Z5).
    Marker,
    /// Deltas do not say what they supersede or remove (ddata K7).
    RemovalContext,
    /// Deltas are joined even if deltas before them are missing (ddata G5).
    Gap,
    /// Changes of durable entries are acknowledged before they are flushed (ddata U3).
    Flush,
    /// Deltas carry no markers (ddata Z7).
    DeltaMarkers,
    /// An owner performs before it has collected all members (ddata Z4).
    Collection,
    /// A member is collected although it has not shown that it knows the round (ddata Z4).
    Shown,
    /// Collection goes on although a member vanished before it was collected (ddata Z4).
    Afresh,
    /// A store that parted before the forget horizon is accepted (ddata Z9).
    StaleStore,
    /// Markers are forgotten although a member is unreachable (ddata Z9).
    Unreachable,
    /// A replicator claims numbers that former replicators of its process drew (ddata K7).
    StartFloor,
    /// A claim begins at the start floor, not above the entry's highest own number (ddata K7).
    ClaimStart,
    /// Deltas claim numbers that are reserved for renaming (ddata K7, Z6).
    Reserved,
    /// A counter goes on in the slot of its entry's former life (ddata Y4).
    Birth,
    /// A marker does not record to which slot of its owner an amount was moved (ddata Y4).
    MovedTo,
    /// A store is judged by any member whose own gate is open (ddata Z11).
    OpenJudge,
    /// A store is judged by any member (ddata Z11).
    AnyJudge,
    /// Every member with a store makes the start (ddata Z11).
    EveryStart,
    /// Horizons and times of pruning are accepted however far ahead they are (ddata Z9).
    Horizon,
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

    /// What updates of values omit.
    pub(crate) fn of_updates(self) -> OmittedByUpdates {
        let of_updates = [
            (Clause::RemovalContext, OfUpdates::RemovalContext),
            (Clause::StartFloor, OfUpdates::StartFloor),
            (Clause::ClaimStart, OfUpdates::ClaimStart),
            (Clause::Birth, OfUpdates::Birth),
        ];
        OmittedByUpdates::of(of_updates.into_iter().filter(|(clause, _)| self.has(*clause)).map(|(_, clause)| clause))
    }
}

#[cfg(not(feature = "sabotage"))]
impl Omissions {
    /// Whether the clause is omitted: never, without the feature `sabotage`.
    pub const fn has(self, _clause: Clause) -> bool {
        false
    }

    /// What updates of values omit: nothing.
    pub(crate) fn of_updates(self) -> OmittedByUpdates {
        OmittedByUpdates::default()
    }
}
