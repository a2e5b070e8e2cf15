//! Which processes and hosts this node lets in, and how many.

#[cfg(feature = "grpc")]
pub(crate) mod callers;
#[cfg(feature = "grpc")]
pub(crate) mod control;
pub(crate) mod membership;
