//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

mod support;

mod asking;
mod background_work;
mod breaker;
#[cfg(feature = "serde")]
mod delivery_tracker;
mod entity;
#[cfg(feature = "tck")]
mod guarded;
mod hints;
#[cfg(feature = "tck")]
mod kit;
#[cfg(feature = "tck")]
mod kit_copy;
#[cfg(feature = "tck")]
mod kit_crash;
#[cfg(feature = "tck")]
mod kit_queries;
#[cfg(feature = "tck")]
mod kit_stores;
#[cfg(feature = "tck")]
mod kit_writers;
mod projections;
mod queries;
mod replay_from;
mod sharing;
mod state_entity;
mod stats;
mod store_back;
mod testkit;
mod two_writers;
