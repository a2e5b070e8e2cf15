//! Entities found by name: coordinator, regions, shards, and the runtime of their entities.

pub mod error;
pub mod fingerprint;
pub mod ids;
pub mod membership;
pub mod message;
pub mod region;
pub mod settings;
