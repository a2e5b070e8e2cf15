//! The traits of stores that can be moved, and the copy.

pub mod copy;
pub(crate) mod memory;
pub(crate) mod records;
