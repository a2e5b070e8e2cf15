//! Entities that persist, as their shards host them.

pub(super) mod durable_state;
pub(super) mod entity;
pub(super) mod event_sourced;
