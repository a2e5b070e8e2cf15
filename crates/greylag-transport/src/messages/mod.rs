//! What two nodes say to each other: envelopes, questions and their answers, and the Hello that begins a stream.

pub(crate) mod ask;
pub(crate) mod envelope;
#[cfg(feature = "grpc")]
pub(crate) mod hello;
