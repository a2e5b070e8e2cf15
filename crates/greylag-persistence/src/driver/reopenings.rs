//! Counts how often the breakers of a store have closed, so that what backs off can start as soon as it may.
//!
//! An entity remembers the count as its incarnation begins; when it backs off it waits for a greater one, so a
//! breaker that closes between its last call and its wait is not missed. Source: persistence §4.1 (breaker).

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::select_all;
use tokio::sync::Notify;

/// How often the breakers of a store, or of several stores, have closed. Clones count the same.
#[derive(Clone, Default)]
pub struct Reopenings {
    stores: Vec<Arc<Counted>>,
}

#[derive(Default)]
struct Counted {
    count: AtomicU64,
    raised: Notify,
}

impl Reopenings {
    /// Of one store, none yet.
    pub(crate) fn of_one() -> Self {
        Self { stores: vec![Arc::default()] }
    }

    /// Of all of these stores.
    pub(crate) fn of_all<'a>(stores: impl IntoIterator<Item = Option<&'a Self>>) -> Self {
        let stores = stores.into_iter().flatten().flat_map(|store| store.stores.iter().cloned()).collect();
        Self { stores }
    }

    /// A breaker has closed.
    pub(crate) fn note(&self) {
        for store in &self.stores {
            store.count.fetch_add(1, Ordering::AcqRel);
            store.raised.notify_waiters();
        }
    }

    /// How often in all.
    pub fn count(&self) -> u64 {
        self.stores.iter().map(|store| store.count.load(Ordering::Acquire)).sum()
    }

    /// Waits until the count is above `seen`; for ever where no store has a breaker.
    pub async fn beyond(self, seen: u64) {
        loop {
            // Made before the look: what is raised in between is heard.
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

impl fmt::Debug for Reopenings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reopenings({} stores, {})", self.stores.len(), self.count())
    }
}
