//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

mod at_size;
#[cfg(all(feature = "tck", feature = "persistence"))]
mod conformance;
#[cfg(all(feature = "persistence", feature = "sharding"))]
mod critical;
#[cfg(all(feature = "persistence", feature = "sharding"))]
mod end_to_end;
#[cfg(all(feature = "persistence", feature = "sharding"))]
mod entities;
#[cfg(all(feature = "persistence", feature = "sharding"))]
mod event_sourced;
#[cfg(feature = "persistence")]
mod formats;
#[cfg(all(feature = "persistence", feature = "sharding"))]
mod moving;
#[cfg(all(feature = "persistence", feature = "serde", feature = "sharding"))]
mod outbox;
mod point_to_point;
#[cfg(feature = "persistence")]
mod queue;
#[cfg(all(feature = "persistence", feature = "sharding"))]
mod remote;
#[cfg(all(feature = "persistence", feature = "sharding"))]
mod sharding;
mod work_pulling;
