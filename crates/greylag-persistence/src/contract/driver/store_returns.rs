//! Counts a store's returns after outages, so that entities that back off can start as soon as possible.
//!
//! A breaker counts a probe that is answered after a failure; a store that keeps a connection counts a
//! new connection. An entity notes the count when its incarnation begins; when it backs off it waits for a greater
//! count, so a return between its last call and its wait is not missed. Source: persistence §4.1 (breaker); sharding
//! scenario 114.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::select_all;
use tokio::sync::Notify;

/// The number of returns after outages of a store, or of several stores together. Clones share the count.
///
/// A store that can tell when it is reachable again keeps a count, raises it ([`StoreReturns::note`]), and gives it to
/// entities by [`Journal::store_returns`](crate::Journal::store_returns) and its like: they end their back-off then.
#[derive(Clone, Default)]
pub struct StoreReturns {
    stores: Vec<Arc<Counted>>,
}

#[derive(Default)]
struct Counted {
    count: AtomicU64,
    raised: Notify,
}

impl StoreReturns {
    /// A count of one store, starting at zero.
    #[must_use]
    pub fn of_one() -> Self {
        Self { stores: vec![Arc::default()] }
    }

    /// The sum of the counts of these stores.
    pub(crate) fn of_all<'a>(stores: impl IntoIterator<Item = Option<&'a Self>>) -> Self {
        let stores = stores.into_iter().flatten().flat_map(|store| store.stores.iter().cloned()).collect();
        Self { stores }
    }

    /// Raises the count: the store has returned.
    pub fn note(&self) {
        for store in &self.stores {
            store.count.fetch_add(1, Ordering::AcqRel);
            store.raised.notify_waiters();
        }
    }

    /// The count, summed over all stores.
    pub fn count(&self) -> u64 {
        self.stores.iter().map(|store| store.count.load(Ordering::Acquire)).sum()
    }

    /// Waits until the count is above `seen`; for ever if no store counts.
    pub async fn beyond(self, seen: u64) {
        loop {
            // Listen before reading the count, so that a raise in between is not missed.
            let raised: Vec<_> = self.stores.iter().map(|store| Box::pin(store.raised.notified())).collect();
            if self.count() > seen {
                return;
            }
            if raised.is_empty() {
                std::future::pending::<()>().await;
            }
            let _raised = pin!(select_all(raised)).await;
        }
    }
}

impl fmt::Debug for StoreReturns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreReturns({} stores, {})", self.stores.len(), self.count())
    }
}
