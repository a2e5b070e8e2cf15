//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

mod common;

mod away;
mod conformance;
mod crash;
mod lost_answers;
mod queries;
mod service;
mod stores;
mod tls;
