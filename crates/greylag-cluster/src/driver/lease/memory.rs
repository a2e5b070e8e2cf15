//! Leases in memory, shared by the nodes of one process, with faults for tests.
//!
//! No lease expires here: a holder loses its lease only when a test takes it away. Source: cluster S16.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{Lease, LeaseError, LeaseProvider, LeaseSettings, OnLost};

/// The fault that an operation on a lease meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseFault {
    /// `acquire` answers `Ok(false)`.
    Deny,
    /// The operation answers an error and does nothing.
    Fail,
    /// The operation does its work and answers an error all the same: the answer was lost.
    FailAfter,
    /// The operation never answers and does nothing.
    Hang,
}

/// Leases of one process. Clones share them.
#[derive(Clone, Default)]
pub struct InMemoryLeases {
    shared: Arc<Mutex<BTreeMap<String, Entry>>>,
    handles: Arc<AtomicU64>,
}

#[derive(Default)]
struct Entry {
    /// The owner that holds the lease, and its handle: a later handle of the same owner takes the lease over.
    holder: Option<(String, u64)>,
    on_lost: Option<OnLost>,
    /// The fault of every operation.
    fault: Option<LeaseFault>,
    /// The faults of the next operations, one each, which come before `fault`.
    next: VecDeque<LeaseFault>,
}

impl Entry {
    fn owner(&self) -> Option<&String> {
        self.holder.as_ref().map(|(owner, _)| owner)
    }
}

impl fmt::Debug for InMemoryLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holders: BTreeMap<String, Option<String>> =
            self.lock().iter().map(|(name, entry)| (name.clone(), entry.owner().cloned())).collect();
        f.debug_struct("InMemoryLeases").field("holders", &holders).finish()
    }
}

impl InMemoryLeases {
    /// Leases of which none is held.
    pub fn new() -> Self {
        Self::default()
    }

    /// The owner that holds the lease.
    pub fn holder(&self, name: &str) -> Option<String> {
        self.lock().get(name).and_then(|entry| entry.owner().cloned())
    }

    /// Makes every operation on the lease meet this fault from now on; `None` ends it.
    pub fn set_fault(&self, name: &str, fault: Option<LeaseFault>) {
        self.lock().entry(name.to_owned()).or_default().fault = fault;
    }

    /// Makes one later operation on the lease meet this fault, after the faults that were queued before.
    pub fn fail_next(&self, name: &str, fault: LeaseFault) {
        self.lock().entry(name.to_owned()).or_default().next.push_back(fault);
    }

    /// Takes the lease away from its holder, and tells the holder. True if there was one.
    pub fn lose(&self, name: &str) -> bool {
        let (holder, on_lost) = {
            let mut leases = self.lock();
            let Some(entry) = leases.get_mut(name) else { return false };
            (entry.holder.take(), entry.on_lost.take())
        };
        tell(name, holder.as_ref().map(|(owner, _)| owner), on_lost);
        holder.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        // Callbacks run outside of the lock, so a panic leaves the map whole.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls an owner's callback of loss; call this outside of any lock, since the callback is user code.
fn tell(name: &str, owner: Option<&String>, on_lost: Option<OnLost>) {
    if let (Some(owner), Some(on_lost)) = (owner, on_lost) {
        on_lost(LeaseError::TakenAway { name: name.to_owned(), owner: owner.clone() });
    }
}

impl LeaseProvider for InMemoryLeases {
    fn lease(&self, name: &str, owner: &str, _settings: &LeaseSettings) -> Result<Arc<dyn Lease>, LeaseError> {
        let handle = self.handles.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(InMemoryLease { leases: self.clone(), name: name.to_owned(), owner: owner.to_owned(), handle }))
    }
}

struct InMemoryLease {
    leases: InMemoryLeases,
    name: String,
    owner: String,
    handle: u64,
}

impl InMemoryLease {
    /// Returns the fault that this operation meets. A hang never returns.
    async fn fault(&self) -> Option<LeaseFault> {
        let fault = {
            let mut leases = self.leases.lock();
            let entry = leases.entry(self.name.clone()).or_default();
            entry.next.pop_front().or(entry.fault)
        };
        if fault == Some(LeaseFault::Hang) {
            std::future::pending::<()>().await;
        }
        fault
    }

    fn failed(&self, operation: &'static str) -> LeaseError {
        let cause = Arc::new(std::io::Error::other("a test told it to fail"));
        LeaseError::Store { name: self.name.clone(), operation, cause }
    }

    fn is_mine(&self, entry: &Entry) -> bool {
        entry.holder.as_ref().is_some_and(|(_, handle)| *handle == self.handle)
    }

    /// Grants the lease if no other owner holds it. Returns whether it did, and the callback of the holder that lost
    /// it.
    fn grant(&self, on_lost: OnLost, answer_is_lost: bool) -> (bool, Option<OnLost>) {
        let mut leases = self.leases.lock();
        let entry = leases.entry(self.name.clone()).or_default();
        if entry.owner().is_some_and(|owner| *owner != self.owner) {
            return (false, None);
        }
        let same = self.is_mine(entry);
        let former = if answer_is_lost { entry.on_lost.take() } else { entry.on_lost.replace(on_lost) };
        // Use no handle's number if the answer is lost: `check` must not count a lease as held whose grant its owner
        // did not hear of.
        let handle = if answer_is_lost { u64::MAX } else { self.handle };
        entry.holder = Some((self.owner.clone(), handle));
        (true, former.filter(|_| !same))
    }
}

#[async_trait]
impl Lease for InMemoryLease {
    fn name(&self) -> &str {
        &self.name
    }

    fn owner(&self) -> &str {
        &self.owner
    }

    async fn acquire(&self, on_lost: OnLost) -> Result<bool, LeaseError> {
        let fault = self.fault().await;
        match fault {
            Some(LeaseFault::Deny) => return Ok(false),
            Some(LeaseFault::Fail) => return Err(self.failed("acquire")),
            _ => {}
        }
        let (granted, former) = self.grant(on_lost, fault.is_some());
        tell(&self.name, Some(&self.owner), former);
        if fault.is_some() { Err(self.failed("acquire")) } else { Ok(granted) }
    }

    async fn release(&self) -> Result<bool, LeaseError> {
        let fault = self.fault().await;
        if fault == Some(LeaseFault::Fail) {
            return Err(self.failed("release"));
        }
        let given_up = {
            let mut leases = self.leases.lock();
            let entry = leases.entry(self.name.clone()).or_default();
            let unknown =
                entry.holder.as_ref().is_some_and(|(owner, handle)| *owner == self.owner && *handle == u64::MAX);
            if unknown || self.is_mine(entry) {
                entry.holder = None;
                entry.on_lost = None;
            }
            entry.holder.is_none()
        };
        if fault.is_some() { Err(self.failed("release")) } else { Ok(given_up) }
    }

    fn check(&self) -> bool {
        self.leases.lock().get(&self.name).is_some_and(|entry| self.is_mine(entry))
    }
}
