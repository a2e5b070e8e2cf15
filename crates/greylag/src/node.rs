//! A running node: its builder, its handle, and the parts that the builder starts.

mod builder;
mod handle;
#[cfg(feature = "persistence")]
mod journal;
mod leases;
#[cfg(feature = "ddata")]
mod replicator;
mod singleton;
mod start_error;

pub use builder::NodeBuilder;
pub use handle::{EndedOtherwise, Node};
#[cfg(feature = "persistence")]
pub use journal::{JournalError, NodeJournal};
#[cfg(feature = "ddata")]
pub use replicator::ReplicatedError;
pub use singleton::{SingletonInstance, StartSingleton};
pub use start_error::StartError;
