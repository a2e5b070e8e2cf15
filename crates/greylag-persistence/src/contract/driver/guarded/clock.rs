//! The clock and the locks of a guard.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The runtime's clock, so that a test can pause it.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Locks a mutex whose holders never run foreign code, so poison is ignored.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
