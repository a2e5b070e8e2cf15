//! The half that waits: store traits, the in-memory stores, and hosts of the entity machine.

mod memory;
mod perform;
pub(crate) mod stores;

pub use memory::{AppendFault, InMemoryJournal, InMemorySnapshots};
