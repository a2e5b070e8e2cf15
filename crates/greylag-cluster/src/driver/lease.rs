//! Leases: a lock outside the cluster that at most one owner holds, for decisions while the cluster itself is in doubt.
//!
//! A lease has a name and is held by an owner, the `host:port` of a node. The holder renews it by heartbeats; a holder
//! that cannot renew it has lost it, and is told so *before* another owner may get it. A restarted process is the same
//! owner, and takes the lease over from its predecessor at once.
//!
//! Users of a lease call it through [`GuardedLease`], which reports the answer of an implementation that
//! panics or hangs as unknown. Source: cluster S16.

mod guard;
pub(super) mod in_use;
mod leases;
mod lock;
mod memory;
mod settings;

pub use guard::GuardedLease;
pub use leases::Leases;
pub use lock::{Lease, LeaseError, LeaseProvider, OnLost};
pub use memory::{InMemoryLeases, LeaseFault};
pub use settings::LeaseSettings;
