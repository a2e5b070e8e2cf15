//! The consumer's side: links, the controllers around them, and what a consumer remembers of each stream.

pub mod consumer_controller;
pub mod consumer_link;
pub(crate) mod dedupe;
pub mod sharding_consumer;
