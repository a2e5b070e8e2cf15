//! Clauses that can be left out on purpose.
//!
//! A simulation that never failed proves nothing, so each clause that the promises of this crate
//! rest on can be switched off, and the simulation must then find a violation. Nothing but a
//! simulation sets one: no configuration file reaches it.
//!
//! Source: ddata scenario 86.

/// The clause that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sabotage {
    /// An owner prunes and writes down no marker (ddata Z5).
    Marker,
    /// Deltas do not say what they supersede or remove (ddata K7).
    RemovalContext,
    /// Deltas are joined whatever is missing before them (ddata G5).
    Gap,
    /// What is to be durable is acknowledged before it is flushed (ddata U3).
    Flush,
    /// Deltas carry no markers (ddata Z7).
    DeltaMarkers,
    /// An owner performs before it has collected all members (ddata Z4).
    Collection,
    /// A member is collected that has not shown that it knows the round (ddata Z4).
    Shown,
    /// Collection goes on although a member vanished before it was collected (ddata Z4).
    Afresh,
    /// A store from before the forget horizon is taken (ddata Z9).
    StaleStore,
    /// Markers are forgotten although a member is unreachable (ddata Z9).
    Unreachable,
    /// A replicator claims what former ones of its process drew (ddata K7).
    StartFloor,
    /// A claim begins at the start floor, not above the entry's highest own number (ddata K7).
    ClaimStart,
    /// Deltas claim numbers that are reserved for renaming (ddata K7, Z6).
    Reserved,
    /// A counter counts on in the slot of its entry's former life (ddata Y4).
    Birth,
    /// A marker does not say to which slot of its owner an amount was moved (ddata Y4).
    MovedTo,
    /// A store is judged by any member whose own gate is open (ddata Z11).
    OpenJudge,
    /// A store is judged by any member (ddata Z11).
    AnyJudge,
    /// Every member with a store makes the start (ddata Z11).
    EveryStart,
    /// Horizons and times of pruning are believed however far ahead they are (ddata Z9).
    Horizon,
}
