//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

mod common;

#[cfg(feature = "grpc")]
mod asks;
#[cfg(feature = "grpc")]
mod dials;
#[cfg(feature = "grpc")]
mod faults;
#[cfg(feature = "grpc")]
mod frames;
mod held;
#[cfg(feature = "grpc")]
mod quarantine;
#[cfg(feature = "grpc")]
mod reliable;
#[cfg(feature = "grpc")]
mod streams;
mod watch;
