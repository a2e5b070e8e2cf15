//! A store of leases on virtual time, shared by all processes of a world.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greylag_cluster::LeaseOutcome;
use greylag_core::UniqueAddress;

/// How long a lease lives without being renewed.
const LIFE: Duration = Duration::from_secs(120);
/// Interval of renewals.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(12);

/// The kinds of leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Of {
    Resolver,
    Singleton,
}

/// The held leases, each with its owner and expiry.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    held: BTreeMap<Of, (UniqueAddress, Instant)>,
    /// A fault: the outcome of every request for the lease.
    pub(crate) fault: BTreeMap<Of, LeaseOutcome>,
    /// Every grant and every release, in order.
    pub(crate) log: Vec<(Of, UniqueAddress, bool)>,
    /// Every request, in order, with its time and outcome.
    pub(crate) requests: Vec<(Of, UniqueAddress, Instant, LeaseOutcome)>,
}

impl Leases {
    pub(crate) fn holder(&self, of: Of) -> Option<&UniqueAddress> {
        self.held.get(&of).map(|(holder, _)| holder)
    }

    pub(crate) fn acquire(&mut self, of: Of, by: &UniqueAddress, now: Instant) -> LeaseOutcome {
        let outcome = self.grant(of, by, now);
        self.requests.push((of, by.clone(), now, outcome));
        outcome
    }

    fn grant(&mut self, of: Of, by: &UniqueAddress, now: Instant) -> LeaseOutcome {
        if let Some(fault) = self.fault.get(&of) {
            return *fault;
        }
        let taken = |(holder, until): &(UniqueAddress, Instant)| holder.address() != by.address() && now < *until;
        if self.held.get(&of).is_some_and(taken) {
            return LeaseOutcome::Denied;
        }
        self.held.insert(of, (by.clone(), now + LIFE));
        self.log.push((of, by.clone(), true));
        LeaseOutcome::Granted
    }

    pub(crate) fn renew(&mut self, of: Of, by: &UniqueAddress, now: Instant) -> bool {
        match self.held.get_mut(&of) {
            Some((holder, until)) if holder == by && now < *until => {
                *until = now + LIFE;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn release(&mut self, of: Of, by: &UniqueAddress) {
        if self.holder(of) == Some(by) {
            self.held.remove(&of);
            self.log.push((of, by.clone(), false));
        }
    }

    /// Takes a lease away without telling its holder; the next renewal fails.
    pub(crate) fn lose(&mut self, of: Of) {
        self.held.remove(&of);
    }
}
