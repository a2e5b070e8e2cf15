//! A store of rows with injected faults, for tests.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use greylag_core::Encoded;

use super::{OutboxStore, QueueStore};
use crate::ids::Epoch;
use crate::queue::{MessageSent, QueueChange, QueueClaim, QueueHead, QueueRows, QueueStoreError};

/// A call of a store, passed to the predicate of [`FaultyQueueStore::fail_when`].
#[derive(Debug, Clone, Copy)]
pub enum QueueCall<'a> {
    /// Reads the head row.
    Head,
    /// Reads all rows.
    Read,
    /// A load claims the queue.
    Claim(&'a QueueClaim),
    /// Stores or confirms messages, or forgets qualifiers.
    Write(&'a QueueChange),
    /// Numbers the messages of an outbox.
    Number,
}

/// A fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueFault {
    /// The store cannot be reached: the call fails, and nothing is written.
    Unavailable,
    /// The store refuses the call.
    Rejected,
    /// The answer is lost. A reading call fails as [`Unavailable`](Self::Unavailable).
    AnswerLost {
        /// Whether the change is made all the same.
        done: bool,
    },
}

/// Decides whether a call of a queue fails, and how.
type FailWhen = Arc<dyn Fn(&str, QueueCall<'_>) -> Option<QueueFault> + Send + Sync>;

/// A store of rows with injected delays and faults. Clones share both.
#[derive(Clone)]
pub struct FaultyQueueStore<S> {
    store: S,
    shared: Arc<FaultState>,
}

#[derive(Default)]
struct FaultState {
    plan: Mutex<Plan>,
    writes: Mutex<BTreeMap<String, u64>>,
}

#[derive(Default)]
struct Plan {
    delay: Duration,
    fail_when: Option<FailWhen>,
}

impl<S> FaultyQueueStore<S> {
    /// Wraps `store`, without faults.
    pub fn new(store: S) -> Self {
        Self { store, shared: Arc::default() }
    }

    /// The wrapped store.
    pub fn inner(&self) -> &S {
        &self.store
    }

    /// Delays every later call by this time before it reaches the store. Default zero.
    pub fn delay(&self, delay: Duration) {
        self.plan(|plan| plan.delay = delay);
    }

    /// Makes every later call fail for which `predicate` returns a fault. The predicate is called once per call, after
    /// the delay.
    pub fn fail_when(&self, predicate: impl Fn(&str, QueueCall<'_>) -> Option<QueueFault> + Send + Sync + 'static) {
        self.plan(|plan| plan.fail_when = Some(Arc::new(predicate)));
    }

    /// Makes one claim or change of a queue fail, after `passing` others have succeeded.
    pub fn fail_write(&self, queue: impl Into<String>, passing: u32, fault: QueueFault) {
        let (queue, writes) = (queue.into(), AtomicU32::new(0));
        self.fail_when(move |of, call| {
            let is_write = of == queue && matches!(call, QueueCall::Claim(_) | QueueCall::Write(_));
            (is_write && writes.fetch_add(1, Ordering::Relaxed) == passing).then_some(fault)
        });
    }

    /// Ends all faults.
    pub fn fail_never(&self) {
        self.plan(|plan| plan.fail_when = None);
    }

    /// Number of claims and changes of a queue that the store has made.
    pub fn writes(&self, queue: &str) -> u64 {
        self.counts().get(queue).copied().unwrap_or_default()
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.shared.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan<R>(&self, change: impl FnOnce(&mut Plan) -> R) -> R {
        change(&mut self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for the delay, and returns the fault of the call.
    async fn fault(&self, queue: &str, call: QueueCall<'_>) -> Option<QueueFault> {
        let delay = self.plan(|plan| plan.delay);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let fail_when = self.plan(|plan| plan.fail_when.clone());
        fail_when.and_then(|predicate| predicate(queue, call))
    }

    /// Runs a writing call with its fault: the call may not reach the store, or its answer may be lost.
    async fn writing<R>(
        &self,
        queue: &str,
        fault: Option<QueueFault>,
        call: impl Future<Output = Result<R, QueueStoreError>>,
    ) -> Result<R, QueueStoreError> {
        let planned = || "a fault was planned".to_owned();
        match fault {
            Some(QueueFault::Unavailable) => return Err(QueueStoreError::Unavailable(planned())),
            Some(QueueFault::Rejected) => return Err(QueueStoreError::Rejected(planned())),
            Some(QueueFault::AnswerLost { done: false }) => return Err(QueueStoreError::Unknown(planned())),
            Some(QueueFault::AnswerLost { done: true }) | None => {}
        }
        let done = call.await?;
        *self.counts().entry(queue.to_owned()).or_default() += 1;
        if fault.is_some() { Err(QueueStoreError::Unknown(planned())) } else { Ok(done) }
    }

    async fn check_read(&self, queue: &str, call: QueueCall<'_>) -> Result<(), QueueStoreError> {
        match self.fault(queue, call).await {
            None => Ok(()),
            Some(QueueFault::Rejected) => Err(QueueStoreError::Rejected("a fault was planned".into())),
            Some(_) => Err(QueueStoreError::Unavailable("a fault was planned".into())),
        }
    }
}

#[async_trait]
impl<S: QueueStore> QueueStore for FaultyQueueStore<S> {
    async fn head(&self, queue: &str) -> Result<Option<QueueHead>, QueueStoreError> {
        self.check_read(queue, QueueCall::Head).await?;
        self.store.head(queue).await
    }

    async fn read(&self, queue: &str) -> Result<Option<QueueRows>, QueueStoreError> {
        self.check_read(queue, QueueCall::Read).await?;
        self.store.read(queue).await
    }

    async fn claim(&self, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError> {
        let fault = self.fault(queue, QueueCall::Claim(claim)).await;
        self.writing(queue, fault, self.store.claim(queue, claim)).await
    }

    async fn write(&self, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError> {
        let fault = self.fault(queue, QueueCall::Write(change)).await;
        self.writing(queue, fault, self.store.write(queue, change)).await
    }

    fn max_message_bytes(&self) -> usize {
        self.store.max_message_bytes()
    }
}

#[async_trait]
impl<S: OutboxStore> OutboxStore for FaultyQueueStore<S> {
    async fn number(
        &self,
        queue: &str,
        epoch: Epoch,
        max_messages: usize,
    ) -> Result<Vec<MessageSent<Encoded>>, QueueStoreError> {
        let fault = self.fault(queue, QueueCall::Number).await;
        self.writing(queue, fault, self.store.number(queue, epoch, max_messages)).await
    }
}

impl<S: fmt::Debug> fmt::Debug for FaultyQueueStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FaultyQueueStore").field(&self.store).finish()
    }
}
