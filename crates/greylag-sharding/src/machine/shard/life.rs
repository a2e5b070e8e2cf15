//! The stage of a shard's life.

use std::time::Instant;

/// Slots visited in one step by sweeps over all entities, so that no step takes long.
pub(super) const SWEEP_STEP: u32 = 2048;

/// The stage of the shard's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Serving,
    /// Stop requests go out to the slots from `next` on.
    Stopping {
        next: u32,
        deadline: Instant,
        /// When to warn that the stop takes long.
        warn_at: Option<Instant>,
    },
    Stopped,
}

impl Life {
    /// Whether entities may start.
    pub(super) fn is_serving(self) -> bool {
        self == Self::Serving
    }
}
