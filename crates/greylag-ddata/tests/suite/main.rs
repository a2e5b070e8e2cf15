//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

mod catching_up;
#[cfg(feature = "cluster")]
mod cluster;
mod dissemination;
mod driver;
mod durable;
mod expiry;
mod hostile;
mod limits;
mod loading;
mod pruning;
mod scenarios;
#[cfg(feature = "tck")]
mod store;
