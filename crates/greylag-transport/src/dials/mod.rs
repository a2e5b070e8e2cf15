//! Dials that failed: why, when a person is warned, and which addresses no dial can reach.

pub(crate) mod failure;
pub(crate) mod reach;
#[cfg(feature = "grpc")]
pub(crate) mod warnings;
