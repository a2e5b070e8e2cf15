//! The state that nodes gossip, and its parts.

pub(crate) mod counter_bounds;
pub(crate) mod reachability;
pub(crate) mod seen;
pub(crate) mod shared;
pub(crate) mod state;
pub(crate) mod stats;
pub(crate) mod version;
