//! What a lease and its provider do, and why a lease fails.
//!
//! Source: cluster S16.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::settings::LeaseSettings;

/// Called when a held lease is lost: at most once, and only after the `acquire` that the callback was given to has
/// answered `Ok(true)`. Must not block.
pub type OnLost = Box<dyn FnOnce(LeaseError) + Send>;

/// Why a lease was lost, or why it is unknown whether it was granted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LeaseError {
    /// No answer in time. Whether the lease was granted or given up is unknown; try again.
    #[error("lease {name}: {operation} did not answer within {after:?}; try again")]
    TimedOut {
        /// The lease.
        name: String,
        /// The operation.
        operation: &'static str,
        /// How long the caller waited.
        after: Duration,
    },
    /// The implementation panicked, which is a bug in it. Whether the lease is held is unknown.
    #[error("lease {name}: {operation} panicked, which is a bug of the lease implementation")]
    Panicked {
        /// The lease.
        name: String,
        /// The operation.
        operation: &'static str,
    },
    /// The lease could not be renewed in time, so another owner may get it soon. Stop the work that it protects.
    #[error("lease {name} was not renewed for {silent:?}; whatever it protects must stop now")]
    NotRenewed {
        /// The lease.
        name: String,
        /// How long the store has not answered.
        silent: Duration,
    },
    /// Another owner holds the lease, although this one did before. Stop the work that it protects.
    #[error("lease {name} was taken away from {owner}; whatever it protects must stop now")]
    TakenAway {
        /// The lease.
        name: String,
        /// The owner that held it.
        owner: String,
    },
    /// The store behind the lease refused or failed. The source says why, and what to do about it.
    #[error("lease {name}: {operation} failed")]
    Store {
        /// The lease.
        name: String,
        /// The operation.
        operation: &'static str,
        /// The store's own error.
        #[source]
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// No lease can be made under this name, by this owner, or with these settings.
    #[error("lease {name:?} cannot be used: {why}")]
    Unusable {
        /// The lease.
        name: String,
        /// Why not, and what would be right.
        why: String,
    },
}

/// One lease, as seen by one owner.
///
/// Futures may be dropped before they complete (a time-out): their operation may then be carried out or not,
/// [`Lease::check`] must not become true by it later, and a [`Lease::release`] that follows must give up any grant.
///
/// `greylag_cluster::tck::lease` (feature `tck`) proves an implementation.
#[async_trait]
pub trait Lease: Send + Sync + 'static {
    /// The lease's name.
    fn name(&self) -> &str;

    /// The owner in whose name this handle holds the lease: `host:port`.
    fn owner(&self) -> &str;

    /// Tries to get the lease, once. `Ok(false)`: another owner definitely holds it. For the holder a further call
    /// succeeds, and its `on_lost` replaces the former one.
    ///
    /// # Errors
    /// The outcome is unknown: the lease may have been granted.
    async fn acquire(&self, on_lost: OnLost) -> Result<bool, LeaseError>;

    /// Gives the lease up. `Ok(true)`: this owner does not hold it any more, or did not; `Ok(false)`: another owner
    /// holds it. `on_lost` is not called for a lease that was given up.
    ///
    /// # Errors
    /// The outcome is unknown; the lease ends by itself after `heartbeat_timeout`.
    async fn release(&self) -> Result<bool, LeaseError>;

    /// True only if this owner certainly holds the lease, as far as known without waiting.
    fn check(&self) -> bool;
}

/// Makes leases. A node has one provider; one name and owner should be asked for once per process.
pub trait LeaseProvider: fmt::Debug + Send + Sync + 'static {
    /// Makes a lease that is not acquired yet.
    ///
    /// # Errors
    /// [`LeaseError::Unusable`], when no lease can ever be made with these arguments.
    fn lease(&self, name: &str, owner: &str, settings: &LeaseSettings) -> Result<Arc<dyn Lease>, LeaseError>;
}
