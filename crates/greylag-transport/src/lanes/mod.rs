//! The lanes to a peer, which lane a message takes, and the queue of a lane.

pub(crate) mod lane;
pub(crate) mod lane_map;
#[cfg(feature = "grpc")]
pub(crate) mod queue;
