//! The store of leases, outside of all hosts, and the use that a process's driver makes of it.
//!
//! A request takes time in both directions, and may fail: then it is unknown whether the lease was granted. A lease is
//! renewed as long as its process runs, and expires a while after the last renewal; a paused process does not renew. An
//! owner is an address, so a process restarted there gets the lease at once.
//!
//! Source: cluster S10, S16, P5.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greylag_cluster::{Input, LeaseOutcome, LeaseSettings, ManagerInput};
use rand::RngExt;

use super::world::{Happening, Local, Micros, ProcessId, World, micros};

/// Purpose of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lease {
    Resolver,
    Singleton,
}

/// A request to the store.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    Acquire { asked_at: Instant },
    Renew { grant: u64 },
    Release,
}

/// News for a process from its driver.
#[derive(Debug, Clone, Copy)]
pub(super) enum LeaseNews {
    Answered { asked_at: Instant, outcome: LeaseOutcome, grant: u64 },
    RenewalIsDue { grant: u64 },
    Lost,
    Released,
}

#[derive(Debug)]
struct Held {
    by: ProcessId,
    grant: u64,
    until: Micros,
}

/// The leases and their holders.
#[derive(Debug, Default)]
pub(super) struct Leases {
    held: BTreeMap<Lease, Held>,
    grants: u64,
}

impl World {
    /// Time of one way between a process and the store. It is sometimes slow, but no request takes longer than the
    /// driver waits.
    fn way_to_store(&mut self) -> Duration {
        let slow = self.rng.random_bool(0.02);
        Duration::from_micros(self.rng.random_range(if slow { 100_000..2_000_000 } else { 500..50_000 }))
    }

    pub(super) fn acquire_lease(&mut self, process: ProcessId, lease: Lease) {
        let asked_at = self.clock(process);
        self.request(process, lease, Request::Acquire { asked_at });
    }

    pub(super) fn release_lease(&mut self, process: ProcessId, lease: Lease) {
        if lease == Lease::Singleton && self.processes[process].instance {
            let what = format!("{} gives the lease back under its instance", self.processes[process].address);
            self.checks.broken("a lease outlives its instance (cluster P4)", what);
        }
        self.request(process, lease, Request::Release);
    }

    fn request(&mut self, process: ProcessId, lease: Lease, request: Request) {
        let at = self.now + micros(self.way_to_store());
        self.push(at, Happening::AtStore { process, lease, request });
    }

    pub(super) fn on_request(&mut self, process: ProcessId, lease: Lease, request: Request) {
        let news = match request {
            Request::Acquire { asked_at } => {
                let fails = self.plan.leases.failures > 0.0 && self.rng.random_bool(self.plan.leases.failures);
                let reached = !fails || self.rng.random_bool(0.5);
                let outcome = if reached { self.grant(process, lease) } else { LeaseOutcome::Failed };
                let outcome = if fails { LeaseOutcome::Failed } else { outcome };
                LeaseNews::Answered { asked_at, outcome, grant: self.leases.grants }
            }
            Request::Renew { grant } => {
                let until = self.now + micros(LeaseSettings::default().heartbeat_timeout);
                let held = self.leases.held.get_mut(&lease);
                match held.filter(|held| held.grant == grant && held.until > self.now) {
                    Some(held) => {
                        held.until = until;
                        return self.renew_later(process, lease, grant);
                    }
                    None => LeaseNews::Lost,
                }
            }
            Request::Release => {
                if self.leases.held.get(&lease).is_some_and(|held| held.by == process) {
                    self.leases.held.remove(&lease);
                }
                LeaseNews::Released
            }
        };
        let back = self.way_to_store();
        self.later(process, back, Local::Lease(lease, news));
    }

    fn grant(&mut self, process: ProcessId, lease: Lease) -> LeaseOutcome {
        let place = self.processes[process].place;
        let taken = |held: &Held| held.until > self.now && self.processes[held.by].place != place;
        if self.leases.held.get(&lease).is_some_and(taken) {
            return LeaseOutcome::Denied;
        }
        self.leases.grants += 1;
        let until = self.now + micros(LeaseSettings::default().heartbeat_timeout);
        self.leases.held.insert(lease, Held { by: process, grant: self.leases.grants, until });
        LeaseOutcome::Granted
    }

    fn renew_later(&mut self, process: ProcessId, lease: Lease, grant: u64) {
        let after = LeaseSettings::default().heartbeat_interval;
        self.later(process, after, Local::Lease(lease, LeaseNews::RenewalIsDue { grant }));
    }

    pub(super) fn on_lease_news(&mut self, process: ProcessId, lease: Lease, news: LeaseNews) {
        match news {
            LeaseNews::RenewalIsDue { grant } => {
                if self.leases.held.get(&lease).is_some_and(|held| held.by == process && held.grant == grant) {
                    self.request(process, lease, Request::Renew { grant });
                }
            }
            LeaseNews::Answered { asked_at, outcome, grant } => {
                let late = self.clock(process).saturating_duration_since(asked_at);
                let too_late = late > LeaseSettings::default().operation_timeout;
                let outcome = if too_late { LeaseOutcome::Failed } else { outcome };
                if outcome == LeaseOutcome::Granted {
                    self.renew_later(process, lease, grant);
                }
                match lease {
                    Lease::Resolver => self.core_input(process, Input::LeaseResult(outcome)),
                    Lease::Singleton => self.manage(process, ManagerInput::LeaseResult(outcome)),
                }
            }
            LeaseNews::Lost => match lease {
                Lease::Resolver => self.core_input(process, Input::LeaseLost),
                Lease::Singleton => self.manage(process, ManagerInput::LeaseLost),
            },
            LeaseNews::Released => {
                if lease == Lease::Singleton {
                    self.manage(process, ManagerInput::LeaseReleased);
                }
            }
        }
    }
}
