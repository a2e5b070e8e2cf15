//! The tokio half: the task that owns the machines, and the handles on it.
//!
//! One task on a small runtime owns the membership machine and the singleton managers of this node: on the transport's
//! control runtime, so that a heartbeat meets no other threads between its socket and the machine
//! ([`Cluster::start_on`]), or on a runtime of its own ([`Cluster::start`]). All inputs reach the task through one
//! bounded inbox; deadlines go first. User code (singleton instances, shutdown tasks) runs on the runtime that called
//! [`Cluster::start`], never here. Source: cluster C7.

mod clock;
mod ending;
mod events;
mod future;
mod handle;
mod input;
pub(crate) mod lease;
mod node;
mod pulse;
mod singleton;
pub(crate) mod watch;

pub use clock::Clock;
pub use ending::{RunningHere, Runs};
pub use events::ClusterEvents;
pub use future::BoxFuture;
pub use handle::{
    ChildWitness, Cluster, DeathWitness, Discovery, DiscoveryError, FileWitness, Readiness, SeedList, Target,
};
pub use pulse::Pulse;
pub use singleton::{
    Mailbox, NoMessages, Singleton, SingletonAnswer, SingletonAskError, SingletonContext, SingletonRef,
    SingletonSendError, StopToken,
};
pub use watch::Watch;
