//! How much of a coordinator the checks of invariants look at.

/// Limit of entries up to which debug builds check a collection after each input.
pub(in crate::machine::coordinator) const CHECKED: usize = 64;
