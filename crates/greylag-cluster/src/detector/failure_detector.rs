//! What every failure detector does.

use std::fmt;
use std::time::Instant;

/// Judges the silence of one peer. Source: cluster F7.
pub trait FailureDetector: fmt::Debug + Send {
    /// Notes an answer of the peer.
    fn heartbeat(&mut self, now: Instant);

    /// Whether any sign of life was noted, real or assumed.
    fn is_started(&self) -> bool;

    /// Whether the peer counts as alive. A peer that was never heard does.
    fn is_available(&self, now: Instant) -> bool;

    /// Restarts after a pause of this process, which ended at `now`: neither the silence before nor the interval that
    /// begins now says anything about the peer. Source: cluster F9.
    fn restart_after_pause(&mut self, now: Instant);
}
