//! Stores that fail as told, around any others: for tests of what users build on stores.
//!
//! Faults are scripted for one operation of one id, or of all, and for its n-th call from now on.
//! Without a plan each wrapper is what it wraps, and passes the kit as it does. Source: persistence §8.

mod journal;
mod offsets;
mod snapshots;
mod states;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::StoreFailure;

pub use journal::{FaultyJournal, JournalOp};
pub use offsets::{FaultyOffsets, OffsetOp};
pub use snapshots::{FaultySnapshots, SnapshotOp};
pub use states::{FaultyStates, StateOp};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// Nothing is done, and the caller hears that: not stored, or unavailable.
    Unavailable,
    /// Nothing is done, and the store says so itself ([`StoreFailure::is_answer`]): not stored, or
    /// unavailable. A guard keeps its breaker closed.
    Refused,
    /// A write is refused as such; for other operations the same as `Unavailable`.
    Rejected,
    /// The answer is lost: a write is unknown, everything else unavailable.
    AnswerLost {
        /// Whether it is done all the same.
        done: bool,
    },
    /// The call is done or not, and never answers.
    Hang {
        /// Whether it is done.
        done: bool,
    },
    /// The call is done at once, and answered so much later: a slow store. It needs a tokio runtime with time.
    Delay(Duration),
    /// The call panics before anything is done: it ends without an answer.
    Panic,
    /// A read meets a damaged record; for other operations the same as `Unavailable`.
    Corrupt,
}

#[derive(Debug)]
struct Planned<Op> {
    /// An id, or the name of a projection; all of them, if none.
    key: Option<String>,
    op: Op,
    /// Calls that pass before.
    passing: u32,
    fault: StoreFault,
}

/// The faults to come, of one store.
#[derive(Debug)]
struct Plans<Op> {
    store: &'static str,
    planned: Mutex<Vec<Planned<Op>>>,
    /// Until it is back, every call meets `Unavailable`.
    away: AtomicBool,
}

impl<Op: Copy + PartialEq + Send> Plans<Op> {
    fn new(store: &'static str) -> Self {
        Self { store, planned: Mutex::default(), away: AtomicBool::new(false) }
    }

    fn add(&self, key: Option<String>, op: Op, passing: u32, fault: StoreFault) {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).push(Planned { key, op, passing, fault });
    }

    fn set_away(&self, is_away: bool) {
        self.away.store(is_away, Ordering::Relaxed);
    }

    /// The fault that this call meets, if any.
    fn next(&self, key: &str, op: Op) -> Option<StoreFault> {
        if self.away.load(Ordering::Relaxed) {
            return Some(StoreFault::Unavailable);
        }
        let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        let meant = |plan: &Planned<Op>| plan.op == op && plan.key.as_ref().is_none_or(|meant| meant == key);
        let due = planned.iter().position(|plan| meant(plan) && plan.passing == 0);
        planned.iter_mut().filter(|plan| meant(plan)).for_each(|plan| plan.passing = plan.passing.saturating_sub(1));
        due.map(|due| planned.remove(due).fault)
    }

    /// Runs `call` with the fault that it meets; `refuse` puts the fault in the words of the operation.
    async fn meet<T, E>(
        &self,
        key: &str,
        op: Op,
        call: impl Future<Output = Result<T, E>> + Send,
        refuse: impl FnOnce(StoreFault, StoreFailure) -> E + Send,
    ) -> Result<T, E> {
        let Some(fault) = self.next(key, op) else { return call.await };
        assert!(fault != StoreFault::Panic, "{}: panics as planned", self.store);
        if let StoreFault::Delay(by) = fault {
            let answer = call.await;
            tokio::time::sleep(by).await;
            return answer;
        }
        if fault == StoreFault::Refused {
            return Err(refuse(fault, StoreFailure::refusal(self.store, "refused as planned")));
        }
        let (StoreFault::AnswerLost { done } | StoreFault::Hang { done }) = fault else {
            return Err(refuse(fault, StoreFailure::new(self.store, "out of service")));
        };
        if done {
            // The call is done; only its answer gets lost.
            let _ = call.await;
        }
        match fault {
            StoreFault::Hang { .. } => std::future::pending().await,
            _ => Err(refuse(fault, StoreFailure::new(self.store, "the answer is lost"))),
        }
    }
}

/// What is wrapped; there is nothing to show of it.
struct Hidden<T>(T);

impl<T> std::ops::Deref for Hidden<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}
