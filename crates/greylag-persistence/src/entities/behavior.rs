//! What a user writes of an entity, and what its handlers answer and are told.

pub(crate) mod chain;
pub(crate) mod durable_state;
pub(crate) mod event_sourced;
pub(crate) mod failure;
pub(crate) mod persisted;
pub(crate) mod signal;
