//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

mod common;

mod bootstrap;
mod clauses;
mod cluster;
mod large;
#[cfg(feature = "tck")]
mod lease;
mod lifecycle;
mod singleton;
mod singleton_model;
mod singleton_proxies;
mod sockets;
