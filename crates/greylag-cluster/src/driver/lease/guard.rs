//! A lease whose implementation is not trusted: panics and time-outs become errors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{Lease, LeaseError, OnLost};

/// Calls a lease within `operation_timeout`, on a runtime of the caller's choice.
///
/// `on_lost` reaches the caller only after the acquire that it was given to succeeded, whatever the
/// implementation does. Source: cluster S16, §7.
#[derive(Clone)]
pub struct GuardedLease {
    lease: Arc<dyn Lease>,
    timeout: Duration,
    runtime: Handle,
}

impl std::fmt::Debug for GuardedLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuardedLease").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Aborts the call when the task that waits for it ends.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl GuardedLease {
    /// Guards `lease`; its code runs on `runtime`.
    pub fn new(lease: Arc<dyn Lease>, timeout: Duration, runtime: Handle) -> Self {
        Self { lease, timeout, runtime }
    }

    /// As [`Lease::acquire`].
    ///
    /// # Errors
    /// Also [`LeaseError::TimedOut`] and [`LeaseError::Panicked`].
    pub async fn acquire(&self, on_lost: OnLost) -> Result<bool, LeaseError> {
        let gate = Arc::new(Gate::default());
        let lease = self.lease.clone();
        let guarded = gate.guard(on_lost);
        let result = self.call("acquire", async move { lease.acquire(guarded).await }).await;
        match &result {
            Ok(true) => gate.open(),
            _ => gate.shut(),
        }
        result
    }

    /// As [`Lease::release`].
    ///
    /// # Errors
    /// Also [`LeaseError::TimedOut`] and [`LeaseError::Panicked`].
    pub async fn release(&self) -> Result<bool, LeaseError> {
        let lease = self.lease.clone();
        self.call("release", async move { lease.release().await }).await
    }

    /// As [`Lease::check`]; a check that panics counts as not held.
    pub fn check(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.lease.check())).unwrap_or(false)
    }

    async fn call<F>(&self, operation: &'static str, call: F) -> Result<bool, LeaseError>
    where
        F: Future<Output = Result<bool, LeaseError>> + Send + 'static,
    {
        let task = self.runtime.spawn(call);
        let _ends_with_us = AbortOnDrop(task.abort_handle());
        let name = || catch_unwind(AssertUnwindSafe(|| self.lease.name().to_owned())).unwrap_or_default();
        match tokio::time::timeout(self.timeout, task).await {
            Ok(Ok(result)) => result,
            Ok(Err(_panicked)) => Err(LeaseError::Panicked { name: name(), operation }),
            Err(_late) => Err(LeaseError::TimedOut { name: name(), operation, after: self.timeout }),
        }
    }
}

/// Holds the report of a loss back until the acquire is known to have succeeded; for ever, if it has not.
#[derive(Default)]
struct Gate {
    state: AtomicU8,
    kept: std::sync::Mutex<Option<(OnLost, LeaseError)>>,
}

const UNDECIDED: u8 = 0;
const OPEN: u8 = 1;
const SHUT: u8 = 2;

impl Gate {
    fn guard(self: &Arc<Self>, on_lost: OnLost) -> OnLost {
        let gate = self.clone();
        Box::new(move |error| {
            let mut kept = gate.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match gate.state.load(Ordering::Acquire) {
                OPEN => {
                    drop(kept);
                    on_lost(error);
                }
                UNDECIDED => *kept = Some((on_lost, error)),
                _ => {}
            }
        })
    }

    fn open(&self) {
        let kept = self.decide(OPEN);
        if let Some((on_lost, error)) = kept {
            on_lost(error);
        }
    }

    fn shut(&self) {
        drop(self.decide(SHUT));
    }

    fn decide(&self, state: u8) -> Option<(OnLost, LeaseError)> {
        let mut kept = self.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.state.store(state, Ordering::Release);
        kept.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;

    use super::*;

    /// A lease of the tests with one fault in every operation.
    struct Bad(Mutex<Vec<OnLost>>, &'static str);

    #[async_trait]
    impl Lease for Bad {
        fn name(&self) -> &str {
            "bad"
        }

        fn owner(&self) -> &str {
            "a:1"
        }

        async fn acquire(&self, on_lost: OnLost) -> Result<bool, LeaseError> {
            match self.1 {
                "panics" => panic!("on purpose"),
                "hangs" => std::future::pending().await,
                "denies" => {
                    self.0.lock().unwrap().push(on_lost);
                    Ok(false)
                }
                _ => {
                    on_lost(LeaseError::TakenAway { name: "bad".into(), owner: "a:1".into() });
                    Ok(true)
                }
            }
        }

        async fn release(&self) -> Result<bool, LeaseError> {
            panic!("on purpose")
        }

        fn check(&self) -> bool {
            panic!("on purpose")
        }
    }

    fn guarded(what: &'static str) -> (Arc<Bad>, GuardedLease) {
        let bad = Arc::new(Bad(Mutex::default(), what));
        (bad.clone(), GuardedLease::new(bad, Duration::from_millis(20), Handle::current()))
    }

    /// Source: cluster S16 and the table of cluster §7.
    #[tokio::test]
    async fn panics_and_time_outs_of_an_implementation_are_errors() {
        let (_, lease) = guarded("panics");
        assert!(matches!(lease.acquire(Box::new(|_| {})).await, Err(LeaseError::Panicked { .. })));
        assert!(matches!(lease.release().await, Err(LeaseError::Panicked { .. })));
        assert!(!lease.check());
        let (_, lease) = guarded("hangs");
        let error = lease.acquire(Box::new(|_| {})).await.unwrap_err();
        assert_eq!(error.to_string(), "lease bad: acquire did not answer within 20ms; try again");
    }

    /// Source: cluster S16.
    #[tokio::test]
    async fn a_loss_is_told_only_after_a_successful_acquire() {
        let told = Arc::new(Mutex::new(0));
        let on_lost = || {
            let told = told.clone();
            Box::new(move |_| *told.lock().unwrap() += 1) as OnLost
        };
        let (bad, lease) = guarded("denies");
        assert!(!lease.acquire(on_lost()).await.unwrap());
        for on_lost in bad.0.lock().unwrap().drain(..) {
            on_lost(LeaseError::TakenAway { name: "bad".into(), owner: "a:1".into() });
        }
        assert_eq!(*told.lock().unwrap(), 0, "it never held it");
        let (_, lease) = guarded("loses at once");
        assert!(lease.acquire(on_lost()).await.unwrap());
        assert_eq!(*told.lock().unwrap(), 1, "kept back until the acquire had answered");
    }
}
