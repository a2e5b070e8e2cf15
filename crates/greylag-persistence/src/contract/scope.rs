//! The nodes that reach the data of a store.

/// The nodes that reach the data of a store. Source: persistence §1 (scope guard).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// This process only; the data ends with it.
    Process,
    /// One node at a time, on its disk.
    Node,
    /// All nodes.
    Shared,
}
