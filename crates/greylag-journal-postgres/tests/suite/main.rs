//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

mod common;

mod clock;
mod conformance;
mod copy;
mod crash;
mod full_disk;
mod journal;
mod outage;
mod outcomes;
mod projections;
mod restart;
mod stats;
