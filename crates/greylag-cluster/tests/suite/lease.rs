//! Tests the lease in memory, and the conformance kit with this lease and with broken ones.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use greylag_cluster::tck::{self, Bench, LeaseBench};
use greylag_cluster::{InMemoryLeases, Lease, LeaseError, LeaseFault, LeaseProvider, LeaseSettings, OnLost};

/// Settings for leases in memory, which never expire, so that the kit has nothing to wait for.
fn nothing_expires() -> LeaseSettings {
    LeaseSettings { heartbeat_timeout: std::time::Duration::from_millis(1), ..LeaseSettings::test() }
}

#[derive(Debug)]
struct Memory(InMemoryLeases);

#[async_trait]
impl LeaseBench for Memory {
    fn provider(&self, _node: usize) -> Arc<dyn LeaseProvider> {
        Arc::new(self.0.clone())
    }

    fn settings(&self) -> LeaseSettings {
        nothing_expires()
    }

    async fn take_away(&self, name: &str) -> bool {
        self.0.lose(name)
    }
}

/// Source: cluster S16.
#[tokio::test]
async fn the_lease_in_memory_conforms() {
    let report = tck::lease(&Memory(InMemoryLeases::new())).await;
    report.assert_conforms();
    assert_eq!(report.skipped().count(), 2, "nothing can be cut off from memory:\n{report}");
}

/// A lease with one fault.
#[derive(Debug, Clone)]
struct Broken(InMemoryLeases, &'static str);

struct BrokenLease(Arc<dyn Lease>, &'static str, Mutex<Vec<OnLost>>);

impl LeaseProvider for Broken {
    fn lease(&self, name: &str, owner: &str, settings: &LeaseSettings) -> Result<Arc<dyn Lease>, LeaseError> {
        let (name, owner) = match self.1 {
            "one lease for all names" => ("x", owner),
            "one owner for all" => (name, "a:1"),
            _ => (name, owner),
        };
        Ok(Arc::new(BrokenLease(self.0.lease(name, owner, settings)?, self.1, Mutex::default())))
    }
}

#[async_trait]
impl Lease for BrokenLease {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn owner(&self) -> &str {
        self.0.owner()
    }

    async fn acquire(&self, on_lost: OnLost) -> Result<bool, LeaseError> {
        match self.1 {
            "refuses its own holder" if self.0.check() => return Ok(false),
            "tells of a loss when denied" => {
                let granted = self.0.acquire(Box::new(|_| {})).await?;
                if !granted {
                    on_lost(LeaseError::TakenAway { name: String::new(), owner: String::new() });
                }
                return Ok(granted);
            }
            "never tells of a loss" => {
                self.2.lock().unwrap().push(on_lost);
                return self.0.acquire(Box::new(|_| {})).await;
            }
            _ => {}
        }
        self.0.acquire(on_lost).await
    }

    async fn release(&self) -> Result<bool, LeaseError> {
        match self.1 {
            "forgets to release" => Ok(true),
            _ => self.0.release().await,
        }
    }

    fn check(&self) -> bool {
        self.1 == "always sure" || self.0.check()
    }
}

#[tokio::test]
async fn the_kit_finds_each_broken_lease() {
    for what in [
        "one lease for all names",
        "one owner for all",
        "refuses its own holder",
        "tells of a loss when denied",
        "forgets to release",
        "always sure",
    ] {
        let bench = Bench::new(Broken(InMemoryLeases::new(), what)).with_settings(nothing_expires());
        let report = tck::lease(&bench).await;
        assert!(report.failed().next().is_some(), "{what}:\n{report}");
    }
}

/// Source: cluster S16.
#[tokio::test]
async fn faults_are_met_in_the_order_they_were_said() {
    let leases = InMemoryLeases::new();
    let make = |owner: &str| leases.lease("x", owner, &LeaseSettings::test()).unwrap();
    let (a, b) = (make("a:1"), make("b:1"));
    leases.fail_next("x", LeaseFault::Deny);
    leases.fail_next("x", LeaseFault::FailAfter);
    assert!(!a.acquire(Box::new(|_| {})).await.unwrap());
    assert!(a.acquire(Box::new(|_| {})).await.is_err());
    assert!(!a.check(), "the owner did not see it granted");
    assert_eq!(leases.holder("x").as_deref(), Some("a:1"), "and yet it was");
    assert!(!b.acquire(Box::new(|_| {})).await.unwrap());
    assert!(a.release().await.unwrap(), "what may have been granted is given up");
    leases.set_fault("x", Some(LeaseFault::Hang));
    let hung = tokio::time::timeout(std::time::Duration::from_millis(5), b.acquire(Box::new(|_| {}))).await;
    assert!(hung.is_err());
    leases.set_fault("x", None);
    assert!(b.acquire(Box::new(|_| {})).await.unwrap());
}
