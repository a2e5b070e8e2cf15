//! In-memory stores as tests host machines over them by hand: no call waits, and no clock runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use greylag_persistence::{StoreFailure, Timestamp};

/// What a call of an in-memory store answers at once.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("memory never waits")
}

/// Why a store does not answer.
pub(crate) fn failure() -> StoreFailure {
    StoreFailure::new("store", "away")
}

/// A clock that is one microsecond later each time it is read; its copies are the same clock.
pub(crate) fn ticking() -> impl Fn() -> Timestamp + Clone + Send + Sync + 'static {
    let clock = Arc::new(AtomicU64::new(1));
    move || Timestamp::from_micros(clock.fetch_add(1, Ordering::Relaxed))
}
