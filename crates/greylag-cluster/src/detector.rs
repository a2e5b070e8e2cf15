//! How silent and dead peers are found: heartbeats to the peers on the ring, failure detectors of a kind that can be
//! chosen, one per watched peer, and proofs of death.
//!
//! A detector is told of each sign of life and decides whether the present silence is still ordinary. [`PhiAccrual`]
//! learns the peer's rhythm; [`Deadline`] has a fixed limit; a program may bring a kind of its own.
//!
//! Source: cluster F5, F7.

pub(crate) mod dead_list;
mod deadline;
mod failure_detector;
pub(crate) mod heartbeat;
mod kind;
mod phi;
pub(crate) mod proof;
pub(crate) mod ring;
mod settings;

pub use deadline::Deadline;
pub use failure_detector::FailureDetector;
pub use phi::PhiAccrual;
pub use settings::{CustomDetector, DetectorKind, FailureDetectorSettings};
