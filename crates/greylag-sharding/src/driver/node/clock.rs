//! The clock of the tasks: tokio's clock, so that a test that pauses it moves timers and machines alike.

use std::time::Instant;

/// The time by tokio's clock, which drivers pass to machines: a test that pauses that clock moves the machines with it.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
