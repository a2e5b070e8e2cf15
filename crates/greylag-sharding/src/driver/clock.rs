//! The clock of the tasks: tokio's, so that a test that pauses it moves timers and machines by one time.

use std::time::Instant;

/// What machines are told as the present.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
