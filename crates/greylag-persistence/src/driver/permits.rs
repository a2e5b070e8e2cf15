//! How many entities of a node recover at the same time.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The recovery permits of a node for one store, handed out first come first served. Cheap to clone.
///
/// A node that takes over many shards would otherwise read all their histories at once and starve
/// everything else. Source: persistence §2.5.1.
#[derive(Clone)]
pub struct RecoveryPermits(Arc<Semaphore>);

/// One permit; dropping it gives it back, so that no end of an entity can leak it.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct RecoveryPermit {
    _permit: OwnedSemaphorePermit,
}

impl RecoveryPermits {
    /// `max_concurrent` permits, at least one.
    pub fn new(max_concurrent: usize) -> Self {
        Self(Arc::new(Semaphore::new(max_concurrent.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    pub async fn acquire(&self) -> RecoveryPermit {
        let permit = self.0.clone().acquire_owned().await;
        RecoveryPermit { _permit: permit.expect("this semaphore is never closed") }
    }

    /// How many are free now.
    pub fn available(&self) -> usize {
        self.0.available_permits()
    }
}

impl Default for RecoveryPermits {
    /// 50 permits.
    fn default() -> Self {
        Self::new(50)
    }
}

impl fmt::Debug for RecoveryPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecoveryPermits({} free)", self.available())
    }
}
