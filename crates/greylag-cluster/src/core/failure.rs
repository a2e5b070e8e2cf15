//! How this node finds that others have failed, or itself, and what it does then.

pub(super) mod deaths;
pub(super) mod detection;
pub(super) mod downing;
pub(super) mod quarantines;
pub(super) mod trust;
