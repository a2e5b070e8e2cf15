//! The clock of stores in memory, and their locks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::contract::error::StoreFailure;
use crate::contract::records::event::Timestamp;

pub(crate) const NAME: &str = "in-memory store";

pub(crate) type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The system's clock.
pub(crate) fn system_clock() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
}

pub(crate) fn closed() -> StoreFailure {
    StoreFailure::new(NAME, "closed")
}

/// Locks a mutex whose holders never run foreign code, so poison is ignored.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
