//! In-memory stores for tests that host machines by hand: no call waits, and no clock runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use greylag_persistence::{StoreFailure, Timestamp};

/// The answer of a call of an in-memory store, which never waits.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("memory never waits")
}

/// The failure of an unavailable store.
pub(crate) fn failure() -> StoreFailure {
    StoreFailure::new("store", "away")
}

/// A clock that advances by one microsecond each time it is read; its copies share the time.
pub(crate) fn ticking() -> impl Fn() -> Timestamp + Clone + Send + Sync + 'static {
    let clock = Arc::new(AtomicU64::new(1));
    move || Timestamp::from_micros(clock.fetch_add(1, Ordering::Relaxed))
}
