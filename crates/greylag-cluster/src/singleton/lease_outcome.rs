//! What a request for a lease came to.

/// The outcome of a request for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// This node holds the lease now.
    Granted,
    /// Another owner holds the lease.
    Denied,
    /// The outcome is unknown: the lease may have been granted.
    Failed,
}
