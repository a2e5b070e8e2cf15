//! Stores with scripted faults, around any others: for tests of code that uses stores.
//!
//! Faults are scripted for one operation of one id, or of all, and for its n-th call from now on.
//! Without a plan each wrapper behaves as its inner store, and passes the same kit. Source: persistence §8.

mod journal;
mod offsets;
mod snapshots;
mod states;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::contract::error::StoreFailure;

pub use journal::{FaultyJournal, JournalOp};
pub use offsets::{FaultyOffsets, OffsetOp};
pub use snapshots::{FaultySnapshots, SnapshotOp};
pub use states::{FaultyStates, StateOp};

/// The fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// Nothing is done, and the answer says so: not stored, or unavailable.
    Unavailable,
    /// Nothing is done, and the store itself answers so ([`StoreFailure::is_answer`]): not stored, or
    /// unavailable. A guard keeps its breaker closed.
    Refused,
    /// A write is rejected for its content; for other operations the same as `Unavailable`.
    Rejected,
    /// The answer is lost: the outcome of a write is unknown, other calls are unavailable.
    AnswerLost {
        /// Whether the call is carried out.
        done: bool,
    },
    /// The call is carried out or not, and never answered.
    Hang {
        /// Whether the call is carried out.
        done: bool,
    },
    /// The call is carried out at once, and answered after this time: a slow store. Needs a tokio runtime with time.
    Delay(Duration),
    /// The call panics before it is carried out: it ends without an answer.
    Panic,
    /// A read meets a damaged record; for other operations the same as `Unavailable`.
    Corrupt,
}

#[derive(Debug)]
struct Planned<Op> {
    /// An id, or the name of a projection; `None` means all.
    key: Option<String>,
    op: Op,
    /// Number of calls that pass before the fault.
    passing: u32,
    fault: StoreFault,
}

/// The planned faults of one store.
#[derive(Debug)]
struct Plans<Op> {
    store: &'static str,
    planned: Mutex<Vec<Planned<Op>>>,
    /// Whether there is an outage: every call meets `Unavailable`.
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

    /// Takes the fault of this call, if any.
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

    /// Runs `call` with its fault, if any; `refuse` makes the operation's error of the fault.
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
            // The call is carried out; only its answer is lost.
            let _ = call.await;
        }
        match fault {
            StoreFault::Hang { .. } => std::future::pending().await,
            _ => Err(refuse(fault, StoreFailure::new(self.store, "the answer is lost"))),
        }
    }
}

/// The wrapped value, left out of debug output.
struct Opaque<T>(T);

impl<T> std::ops::Deref for Opaque<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Opaque<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}
