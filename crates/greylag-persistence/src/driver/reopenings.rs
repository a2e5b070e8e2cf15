//! Counts how often a store has come back after it did not answer, so that what backs off can start as soon as it may.
//!
//! A breaker counts a probe that is answered after something failed; a store that keeps a connection counts when it has
//! one again. An entity remembers the count as its incarnation begins; when it backs off it waits for a greater one, so a
//! return between its last call and its wait is not missed. Source: persistence §4.1 (breaker); sharding scenario 114.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::select_all;
use tokio::sync::Notify;

/// How often a store, or several stores together, have come back after they did not answer. Clones count the same.
///
/// A store that knows when it can be reached again keeps one, counts ([`Reopenings::note`]), and gives it to entities
/// by [`Journal::reopenings`](crate::Journal::reopenings) and its like: they end their back-off then.
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
    #[must_use]
    pub fn of_one() -> Self {
        Self { stores: vec![Arc::default()] }
    }

    /// Of all of these stores.
    pub(crate) fn of_all<'a>(stores: impl IntoIterator<Item = Option<&'a Self>>) -> Self {
        let stores = stores.into_iter().flatten().flat_map(|store| store.stores.iter().cloned()).collect();
        Self { stores }
    }

    /// The store has come back.
    pub fn note(&self) {
        for store in &self.stores {
            store.count.fetch_add(1, Ordering::AcqRel);
            store.raised.notify_waiters();
        }
    }

    /// How often in all.
    pub fn count(&self) -> u64 {
        self.stores.iter().map(|store| store.count.load(Ordering::Acquire)).sum()
    }

    /// Waits until the count is above `seen`; for ever where no store counts.
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
