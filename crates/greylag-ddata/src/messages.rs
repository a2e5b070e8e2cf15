//! What replicas say to each other: the messages, their bytes, and the bounds of what is believed of them.

pub(crate) mod bounds;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub(crate) mod message;
pub(crate) mod transfers;
pub(crate) mod wire;
