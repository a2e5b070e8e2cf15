//! A lease in use by a machine of this node: asked for and given back on the runtime of the user, and
//! the machine is told what became of that.
//!
//! Source: cluster P5, S10, S16.

use std::sync::Arc;

use greylag_core::UniqueAddress;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::DriverInput;
use super::lease::{GuardedLease, LeaseError, OnLost};
use crate::settings::ClusterSettings;
use crate::singleton::lease::LeaseOutcome;

/// What became of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseNews {
    /// A request has ended.
    Result(LeaseOutcome),
    /// It was given back, well or not.
    Released,
    /// It was held, and is lost.
    Lost,
}

/// Where the requests of one machine for its lease go.
#[derive(Clone)]
pub(crate) struct LeaseInUse {
    name: Arc<str>,
    /// `None` if none can be made; then every request fails.
    lease: Option<GuardedLease>,
    runtime: Handle,
    inbox: mpsc::Sender<DriverInput>,
    /// Makes the machine's input of it; `None`: of no interest.
    news: Arc<dyn Fn(LeaseNews) -> Option<DriverInput> + Send + Sync>,
}

impl LeaseInUse {
    /// The lease `name` of this node. Without a provider, or if that refuses, it can only fail.
    pub(crate) fn new(
        name: String,
        settings: &ClusterSettings,
        node: &UniqueAddress,
        runtime: &Handle,
        inbox: &mpsc::Sender<DriverInput>,
        news: impl Fn(LeaseNews) -> Option<DriverInput> + Send + Sync + 'static,
    ) -> Self {
        let owner = node.address().to_string();
        let made = settings.leases.as_ref().map(|leases| leases.provider().lease(&name, &owner, &settings.lease));
        let lease = match made {
            Some(Ok(lease)) => Some(GuardedLease::new(lease, settings.lease.operation_timeout, runtime.clone())),
            Some(Err(error)) => {
                tracing::error!(lease = name, error = describe(&error), "no lease can be made");
                None
            }
            None => {
                tracing::error!(lease = name, "a lease is to be used, but the settings name no provider of leases");
                None
            }
        };
        Self { name: name.into(), lease, runtime: runtime.clone(), inbox: inbox.clone(), news: Arc::new(news) }
    }

    /// Asks; the answer comes as `Result`, a later loss as `Lost`.
    pub(crate) fn acquire(&self) {
        let this = self.clone();
        self.runtime.spawn(async move {
            let outcome = match &this.lease {
                Some(lease) if lease.check() => LeaseOutcome::Granted,
                Some(lease) => this.outcome(lease.acquire(this.on_lost()).await),
                None => LeaseOutcome::Failed,
            };
            this.tell(LeaseNews::Result(outcome)).await;
        });
    }

    /// Gives it back; `Released` follows in any case.
    pub(crate) fn release(&self) {
        let this = self.clone();
        self.runtime.spawn(async move {
            if let Some(lease) = &this.lease
                && let Err(error) = lease.release().await
            {
                let lease = &this.name;
                tracing::warn!(%lease, error = describe(&error), "a lease was not given back; it ends by itself");
            }
            this.tell(LeaseNews::Released).await;
        });
    }

    fn outcome(&self, answer: Result<bool, LeaseError>) -> LeaseOutcome {
        match answer {
            Ok(true) => LeaseOutcome::Granted,
            Ok(false) => LeaseOutcome::Denied,
            Err(error) => {
                tracing::warn!(lease = %self.name, error = describe(&error), "a lease was not obtained");
                LeaseOutcome::Failed
            }
        }
    }

    fn on_lost(&self) -> OnLost {
        let this = self.clone();
        Box::new(move |error| {
            tracing::warn!(lease = %this.name, error = describe(&error), "a lease is lost");
            let runtime = this.runtime.clone();
            runtime.spawn(async move { this.tell(LeaseNews::Lost).await });
        })
    }

    async fn tell(&self, news: LeaseNews) {
        if let Some(input) = (self.news)(news) {
            let _node_has_ended = self.inbox.send(input).await;
        }
    }
}

/// An error with everything that led to it.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
