//! Offline work on a journal that no process has open: verify it, export it, and salvage what is sound.
//!
//! ```no_run
//! # use std::path::Path;
//! use greylag_journal_sled::maintenance;
//!
//! let found = maintenance::verify(Path::new("/var/lib/shop/journal"))?;
//! if !found.is_sound() {
//!     let saved = maintenance::salvage(Path::new("/var/lib/shop/journal"), Path::new("/var/lib/shop/journal.new"))?;
//!     println!("{} events saved, {} histories cut", saved.counts.events, saved.cuts.len());
//! }
//! # Ok::<(), maintenance::Failure>(())
//! ```
//! The program `greylag-journal-sled` (feature `program`) does the same. Source: persistence §4.3 (open).

mod commits;
mod copy;
mod export;
mod failure;
mod findings;
mod look;
mod rows;
mod salvage;
mod survey;
mod verify;

pub use export::export;
pub use failure::Failure;
pub use findings::{Counts, Missing, Verification};
pub use salvage::{Cut, LEFT_OVER_FILE, Salvaged, salvage};
pub use verify::{renew_guard, verify};
