//! The public conformance kit for leases: one call proves an implementation.
//!
//! ```
//! use greylag_cluster::{InMemoryLeases, tck};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! tck::lease(&tck::Bench::new(InMemoryLeases::new())).await.assert_conforms();
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Hooks for actions that only the implementation itself can perform (cut its connection, take a lease away) are
//! optional; a case that lacks its hook is reported as skipped, never as passed. The kit runs within tokio. Source:
//! cluster S16.

mod cases;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Lease, LeaseProvider, LeaseSettings};

pub use cases::lease;

/// The implementation under test, with its hooks.
#[async_trait]
pub trait LeaseBench: Send + Sync {
    /// The provider of one node. Calls with another `node` must share the store and nothing else.
    fn provider(&self, node: usize) -> Arc<dyn LeaseProvider>;

    /// The settings of the leases. Short times make a short run.
    fn settings(&self) -> LeaseSettings {
        LeaseSettings::test()
    }

    /// Takes a lease away without telling its holder; returns whether the implementation can.
    async fn take_away(&self, _name: &str) -> bool {
        false
    }

    /// Cuts the node off from the store without telling it, or reconnects it; returns whether the implementation can.
    async fn cut(&self, _node: usize, _cut: bool) -> bool {
        false
    }
}

/// A bench without hooks, whose nodes share one provider.
#[derive(Debug, Clone)]
pub struct Bench<P>(P, LeaseSettings);

impl<P: LeaseProvider + Clone> Bench<P> {
    /// A bench of clones of `provider`.
    pub fn new(provider: P) -> Self {
        Self(provider, LeaseSettings::test())
    }

    /// Sets the settings. Leases that never expire need no long `heartbeat_timeout`.
    #[must_use]
    pub fn with_settings(mut self, settings: LeaseSettings) -> Self {
        self.1 = settings;
        self
    }
}

impl<P: LeaseProvider + Clone> LeaseBench for Bench<P> {
    fn provider(&self, _node: usize) -> Arc<dyn LeaseProvider> {
        Arc::new(self.0.clone())
    }

    fn settings(&self) -> LeaseSettings {
        self.1
    }
}

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The implementation behaves as required.
    Passed,
    /// The case was not tried; holds the reason.
    Skipped(&'static str),
    /// The implementation behaves differently; holds the expected and the actual behaviour.
    Failed(String),
}

/// The outcomes of all cases, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The name of each case, and its outcome.
    pub cases: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// The cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = &'static str> {
        self.cases.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).map(|(name, _)| *name)
    }

    /// The cases that were not tried.
    pub fn skipped(&self) -> impl Iterator<Item = &'static str> {
        self.cases.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_))).map(|(name, _)| *name)
    }

    /// Fails unless every case passed or was skipped.
    ///
    /// # Panics
    /// With the whole report.
    pub fn assert_conforms(&self) {
        assert!(self.failed().next().is_none(), "the lease does not conform:\n{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.cases {
            match outcome {
                Outcome::Passed => writeln!(f, "passed   {name}")?,
                Outcome::Skipped(why) => writeln!(f, "skipped  {name}: {why}")?,
                Outcome::Failed(how) => writeln!(f, "FAILED   {name}: {how}")?,
            }
        }
        Ok(())
    }
}

/// How long a case waits for an event that must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// A lease of the bench.
fn make(bench: &dyn LeaseBench, node: usize, name: &str, owner: &str) -> Result<Arc<dyn Lease>, String> {
    bench
        .provider(node)
        .lease(name, owner, &bench.settings())
        .map_err(|error| format!("no lease could be made: {error}"))
}
