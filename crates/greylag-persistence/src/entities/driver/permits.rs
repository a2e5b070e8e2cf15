//! Limits how many entities of a node recover at the same time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::coop::unconstrained;

/// The recovery permits of a node, one set for all its stores, handed out first come first served. Cheap to clone.
///
/// A node that takes over many shards would otherwise read all their histories at once and starve
/// all other work. Waiting counts towards no time-out; a long wait is logged.
/// Source: persistence §2.5.1.
#[derive(Clone)]
pub struct RecoveryPermits {
    permits: Arc<Semaphore>,
    max_concurrent: usize,
    waiting: Arc<AtomicUsize>,
    wait_warn: Duration,
}

/// Default of `permit_wait_warn`.
const WAIT_WARN: Duration = Duration::from_secs(30);

/// One permit; dropping it returns it, so that no end of an entity can leak it.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct RecoveryPermit {
    _permit: OwnedSemaphorePermit,
}

impl RecoveryPermits {
    /// `max_concurrent` permits, at least one.
    pub fn new(max_concurrent: usize) -> Self {
        let max_concurrent = max_concurrent.clamp(1, Semaphore::MAX_PERMITS);
        let permits = Arc::new(Semaphore::new(max_concurrent));
        Self { permits, max_concurrent, waiting: Arc::default(), wait_warn: WAIT_WARN }
    }

    /// These permits, with a warning in the log for each wait that reaches `permit_wait_warn`. Default 30 s.
    #[must_use]
    pub fn warn_after(self, permit_wait_warn: Duration) -> Self {
        Self { wait_warn: permit_wait_warn, ..self }
    }

    /// Waits for a permit, with a place in the queue from its first poll on. Dropping the future leaves the queue.
    pub async fn acquire(&self) -> RecoveryPermit {
        let _waiting = WaitingEntity::new(&self.waiting);
        // Unconstrained: a task that has used up its budget would get no place at its first poll, and later ones would
        // pass.
        let mut acquiring = std::pin::pin!(unconstrained(self.permits.clone().acquire_owned()));
        let permit = match tokio::time::timeout(self.wait_warn, &mut acquiring).await {
            Ok(permit) => permit,
            Err(_) => {
                tracing::warn!(waited = ?self.wait_warn, "recovery waits long for a permit; all permits are in use");
                acquiring.await
            }
        };
        RecoveryPermit { _permit: permit.expect("this semaphore is never closed") }
    }

    /// Number of free permits.
    pub fn available(&self) -> usize {
        self.permits.available_permits()
    }

    /// Number of entities that recover now, each with a permit. Source: persistence §10.16.
    pub fn in_use(&self) -> usize {
        self.max_concurrent.saturating_sub(self.available())
    }

    /// Number of entities that wait for a permit now. Source: persistence §10.16.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Counts one waiting entity until its drop, which also comes when the entity gives up waiting.
struct WaitingEntity<'a>(&'a AtomicUsize);

impl<'a> WaitingEntity<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for WaitingEntity<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
        write!(f, "RecoveryPermits({} free, {} waiting)", self.available(), self.waiting())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::task::coop::{consume_budget, has_budget_remaining};

    use super::*;

    /// Persistence §10.16: permits in use and waiting entities are counted, also when an entity gives up waiting.
    #[tokio::test]
    async fn permits_in_use_and_waiting_are_counted() {
        let permits = RecoveryPermits::new(2);
        let counted = |permits: &RecoveryPermits| (permits.in_use(), permits.available(), permits.waiting());
        assert_eq!(counted(&permits), (0, 2, 0));
        let held = (permits.acquire().await, permits.acquire().await);
        assert_eq!(counted(&permits), (2, 0, 0));
        let (mut first, mut second) = (Box::pin(permits.acquire()), Box::pin(permits.acquire()));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        assert_eq!(counted(&permits), (2, 0, 2));
        drop(second);
        assert_eq!(counted(&permits), (2, 0, 1));
        drop(held.0);
        let first = first.await;
        assert_eq!(counted(&permits), (2, 0, 0));
        drop((first, held.1));
        assert_eq!(counted(&permits), (0, 2, 0));
    }

    /// persistence §2.5.1: a long wait is only logged; the place in the queue stays.
    #[tokio::test(start_paused = true)]
    async fn a_long_wait_keeps_its_queue_position() {
        let permits = RecoveryPermits::new(1).warn_after(Duration::from_secs(30));
        let held = permits.acquire().await;
        let mut first = Box::pin(permits.acquire());
        assert!(first.as_mut().now_or_never().is_none());
        tokio::time::advance(Duration::from_secs(31)).await;
        assert!(first.as_mut().now_or_never().is_none(), "warned, and waiting on");
        let mut second = Box::pin(permits.acquire());
        assert!(second.as_mut().now_or_never().is_none());
        drop(held);
        assert!(second.as_mut().now_or_never().is_none(), "behind the first");
        drop(first.await);
        drop(second.await);
    }

    /// persistence §2.5.1: permits are granted in the order of requests, also to a task that has used up its budget:
    /// tokio's semaphore gives such a task no place in its queue.
    #[tokio::test]
    async fn a_busy_task_has_its_place_from_its_first_poll() {
        let permits = RecoveryPermits::new(1);
        let held = permits.acquire().await;
        while has_budget_remaining() {
            consume_budget().await;
        }
        let mut first = Box::pin(permits.acquire());
        assert!(first.as_mut().now_or_never().is_none());
        let others = permits.clone();
        let second = tokio::spawn(async move { others.acquire().await });
        while permits.waiting() < 2 {
            tokio::task::yield_now().await;
        }
        drop(held);
        assert!(first.now_or_never().is_some(), "the permit went to who asked later");
        drop(second.await);
    }
}
