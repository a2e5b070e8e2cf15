//! What all entity types of a node share.

pub(super) mod blocking;
pub(super) mod clock;
pub(super) mod dispatchers;
pub(super) mod services;
pub(super) mod watchable;
