//! The carriers of envelopes: threads and queues within one process, or tonic streams between many.

#[cfg(feature = "grpc")]
pub mod beside;
#[cfg(feature = "grpc")]
pub(crate) mod grpc;
pub mod memory;
