//! A lease in use by a machine of this node: acquires and releases it on the runtime of the user, and reports the
//! outcome to the machine.
//!
//! Source: cluster P5, S10, S16.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::UniqueAddress;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::guard::GuardedLease;
use super::lock::{LeaseError, OnLost};
use crate::driver::input::DriverInput;
use crate::settings::ClusterSettings;
use crate::singleton::lease_outcome::LeaseOutcome;

/// An event of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseEvent {
    /// A request has ended.
    Result(LeaseOutcome),
    /// The lease was given back; the release may have failed.
    Released,
    /// The lease was held, and is lost.
    Lost,
}

/// Sends the requests of one machine to its lease.
#[derive(Clone)]
pub(crate) struct LeaseInUse {
    name: Arc<str>,
    /// The lease: empty while it is being made, `None` if none can be made; then every request fails.
    lease: watch::Receiver<Option<Option<GuardedLease>>>,
    patience: Duration,
    runtime: Handle,
    inbox: mpsc::Sender<DriverInput>,
    /// Makes the machine's input from an event; `None`: the machine does not need the event.
    to_input: Arc<dyn Fn(LeaseEvent) -> Option<DriverInput> + Send + Sync>,
}

impl LeaseInUse {
    /// Begins to make the lease `name` of this node on `runtime`, since a provider is user code that may block or
    /// panic. Without a provider, or if the provider refuses, all requests fail.
    pub(crate) fn new(
        name: String,
        settings: &ClusterSettings,
        node: &UniqueAddress,
        runtime: &Handle,
        inbox: &mpsc::Sender<DriverInput>,
        to_input: impl Fn(LeaseEvent) -> Option<DriverInput> + Send + Sync + 'static,
    ) -> Self {
        let name: Arc<str> = name.into();
        let (made, lease) = watch::channel(None);
        let patience = settings.lease.operation_timeout;
        let this = Self {
            name,
            lease,
            patience,
            runtime: runtime.clone(),
            inbox: inbox.clone(),
            to_input: Arc::new(to_input),
        };
        let Some(leases) = settings.leases.clone() else {
            tracing::error!(lease = %this.name, "a lease is to be used, but the settings name no provider of leases");
            return this;
        };
        let (name, owner, runtime) = (this.name.clone(), node.address().to_string(), runtime.clone());
        let lease_settings = settings.lease;
        let making = this.runtime.spawn_blocking(move || {
            let lease = leases.provider().lease(&name, &owner, &lease_settings);
            let lease = lease.map(|lease| GuardedLease::new(lease, patience, runtime));
            let lease = lease.inspect_err(|error| {
                tracing::error!(lease = %name, error = describe(error), "the lease provider made no lease");
            });
            made.send_replace(Some(lease.ok()));
        });
        let name = this.name.clone();
        this.runtime.spawn(async move {
            if let Err(error) = making.await {
                tracing::error!(lease = %name, %error, "the lease provider panicked");
            }
        });
        this
    }

    /// Waits for the lease; `None` if it cannot be made, or not in time.
    async fn lease(&self) -> Option<GuardedLease> {
        let mut lease = self.lease.clone();
        let made = tokio::time::timeout(self.patience, lease.wait_for(Option::is_some)).await;
        made.ok()?.ok()?.clone().flatten()
    }

    /// Whether the lease is certainly held, as far as known without waiting.
    pub(crate) fn is_certainly_held(&self) -> bool {
        let lease = self.lease.borrow().clone().flatten();
        lease.is_some_and(|lease| lease.check())
    }

    /// Requests the lease; the answer comes as `Result`, a later loss as `Lost`.
    pub(crate) fn acquire(&self) {
        let this = self.clone();
        self.runtime.spawn(async move {
            let outcome = match this.lease().await {
                Some(lease) if lease.check() => LeaseOutcome::Granted,
                Some(lease) => this.outcome(lease.acquire(this.on_lost()).await),
                None => LeaseOutcome::Failed,
            };
            this.tell(LeaseEvent::Result(outcome)).await;
        });
    }

    /// Gives the lease back; `Released` follows in any case.
    pub(crate) fn release(&self) {
        let this = self.clone();
        self.runtime.spawn(async move {
            if let Some(lease) = this.lease().await
                && let Err(error) = lease.release().await
            {
                let lease = &this.name;
                tracing::warn!(%lease, error = describe(&error), "a lease was not given back; it ends by itself");
            }
            this.tell(LeaseEvent::Released).await;
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
            runtime.spawn(async move { this.tell(LeaseEvent::Lost).await });
        })
    }

    async fn tell(&self, event: LeaseEvent) {
        if let Some(input) = (self.to_input)(event) {
            let _node_has_ended = self.inbox.send(input).await;
        }
    }
}

/// The text of an error with all its causes.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::driver::lease::{InMemoryLeases, Lease, LeaseProvider, LeaseSettings, Leases};

    /// A provider that waits for a message before it makes a lease; panics if the sender is dropped.
    #[derive(Debug)]
    struct Slow(Mutex<std::sync::mpsc::Receiver<()>>, InMemoryLeases);

    impl LeaseProvider for Slow {
        fn lease(&self, name: &str, owner: &str, settings: &LeaseSettings) -> Result<Arc<dyn Lease>, LeaseError> {
            self.0.lock().unwrap().recv().expect("a word");
            self.1.lease(name, owner, settings)
        }
    }

    fn in_use(provider: impl LeaseProvider) -> (LeaseInUse, mpsc::Receiver<DriverInput>) {
        let mut settings = ClusterSettings { leases: Some(Leases::new("test", provider)), ..ClusterSettings::test() };
        settings.lease.operation_timeout = Duration::from_millis(100);
        let (inbox, answers) = mpsc::channel(10);
        let to_input = |event| match event {
            LeaseEvent::Result(outcome) => Some(DriverInput::Core(crate::core::Input::LeaseResult(outcome))),
            LeaseEvent::Released | LeaseEvent::Lost => None,
        };
        let node = "a:1#1".parse().unwrap();
        (LeaseInUse::new("x".into(), &settings, &node, &Handle::current(), &inbox, to_input), answers)
    }

    async fn asked((lease, answers): &mut (LeaseInUse, mpsc::Receiver<DriverInput>)) -> LeaseOutcome {
        lease.acquire();
        let answer = tokio::time::timeout(Duration::from_secs(30), answers.recv()).await.expect("an answer");
        let Some(DriverInput::Core(crate::core::Input::LeaseResult(outcome))) = answer else {
            panic!("another answer")
        };
        outcome
    }

    /// cluster §7: the machines' own task neither waits for user code nor ends by its panic.
    #[tokio::test]
    async fn a_provider_that_blocks_or_panics_is_a_lease_that_fails() {
        let (tell, told) = std::sync::mpsc::channel();
        let mut blocked = in_use(Slow(Mutex::new(told), InMemoryLeases::new()));
        assert_eq!(asked(&mut blocked).await, LeaseOutcome::Failed);
        tell.send(()).unwrap();
        blocked.0.lease.wait_for(Option::is_some).await.unwrap();
        assert_eq!(asked(&mut blocked).await, LeaseOutcome::Granted, "late is not never");

        let (tell, told) = std::sync::mpsc::channel();
        drop(tell);
        let mut broken = in_use(Slow(Mutex::new(told), InMemoryLeases::new()));
        assert_eq!(asked(&mut broken).await, LeaseOutcome::Failed);
    }
}
