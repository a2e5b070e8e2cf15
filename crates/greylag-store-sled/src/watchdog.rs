//! Finds commits that hang, and values outside the log.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::ballast::Ballast;
use crate::error::StoreError;
use crate::planner::Planner;
use crate::shared::{Phase, Shared};

const BLOB_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Looks after one store until it is closed.
pub(crate) fn watch<P: Planner>(shared: &Shared<P>) {
    let interval = (shared.settings.commit_stall_timeout / 4).clamp(Duration::from_millis(1), BLOB_CHECK_INTERVAL);
    let mut blobs_checked_at = Instant::now();
    let mut state = shared.lock();
    while !matches!(state.phase, Phase::Closed) {
        let stalled = |since: Instant| since.elapsed() > shared.settings.commit_stall_timeout;
        if matches!(state.phase, Phase::Up) && state.committing.front().is_some_and(|group| stalled(group.since)) {
            shared.poison_locked(&mut state, &StoreError::Stalled(shared.settings.commit_stall_timeout));
            state.hung_since = Some(Instant::now());
        }
        if shared.settings.abort_when_stuck && state.hung_since.is_some_and(stalled) {
            tracing::error!(path = %shared.path.display(), "the store hangs and cannot be let go of; ending the process");
            std::process::abort();
        }
        if blobs_checked_at.elapsed() >= BLOB_CHECK_INTERVAL {
            blobs_checked_at = Instant::now();
            drop(state);
            let reader = shared.reader();
            let has_blobs = reader.is_ok_and(|reader| reader.has_blobs());
            Ballast::new(&shared.path, shared.settings.ballast_bytes).restore();
            state = shared.lock();
            state.has_blobs = has_blobs;
        }
        state = shared.phase_changed.wait_timeout(state, interval).unwrap_or_else(PoisonError::into_inner).0;
    }
}
