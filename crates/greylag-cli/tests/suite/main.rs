//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

mod common;

mod commands;
mod delivery;
mod features;
#[cfg(all(feature = "journal-sled", feature = "journal-postgres"))]
mod journal;
#[cfg(feature = "journal-sled")]
mod removal;
#[cfg(feature = "journal-sled")]
mod serve;
mod shards;
mod tls;
