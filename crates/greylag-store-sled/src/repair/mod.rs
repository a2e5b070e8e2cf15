//! Damaged stores: what is saved from a damaged log, and how sound pages are kept from harm.

mod rebuild;
mod removal;

pub use rebuild::rebuild;
pub use removal::{remove_all_unneeded, remove_next_unneeded, remove_unneeded};
