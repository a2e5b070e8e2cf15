//! The tokio half: tasks of regions and shards, and the handles that users hold.

mod alone;
mod answering;
mod blocking;
mod control;
mod coordinator;
mod daemon;
mod desired;
mod dispatchers;
mod durable_state;
mod event;
mod event_sourced;
mod external;
mod external_shards;
mod handle;
mod handlers;
mod inquiries;
mod inspect;
mod lease;
mod limit;
mod mailbox;
mod members;
mod node;
mod persistent;
mod readiness;
mod region;
mod remember;
mod removal;
mod requests;
mod shard;
mod sharding;
mod shared;
mod stopping;
mod store;
mod strategy;
mod watchdog;
mod wire;

pub use daemon::{DaemonError, DaemonInit, DaemonProcess, DaemonProcesses};
pub use durable_state::DurableStateEntity;
pub use event::{Event, RegionEvents};
pub use event_sourced::EventSourcedEntity;
pub use external::ExternalAllocation;
pub use external_shards::{ExternalShards, ExternalShardsError};
pub use handle::Region;
pub use handlers::HandlerCounts;
pub use inspect::Inspector;
pub(crate) use node::Node;
pub use persistent::{HostedMachine, PersistentEntity, Standing};
pub use remember::{InMemoryRememberStore, RememberEntitiesStore, RememberError, RememberStore, ShardTerm};
pub use removal::{RemovalError, Removed, remove_internal_sharding_data, remove_remembered_entities};
pub(crate) use sharding::SharedSharding;
pub use sharding::{InitError, NotStarted, Sharding};
pub use stopping::{StopShardsError, StoppingShards};
pub use strategy::{AllocationStrategy, StrategySetup};

#[cfg(test)]
mod tests;
