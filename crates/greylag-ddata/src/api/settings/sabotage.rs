//! Clauses that can be left out on purpose, for simulations.
//!
//! A simulation that never failed proves nothing. So each clause that the guarantees of this crate rest on can be
//! switched off, and the simulation must then find a violation. Only simulations set a clause: no configuration file
//! reaches it.
//!
//! Source: ddata scenario 86.

/// A clause to leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sabotage {
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
