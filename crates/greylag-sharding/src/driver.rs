//! The tokio half: tasks of regions and shards, and the handles of users.

mod coordinator;
mod daemon;
mod lanes;
mod metrics;
mod node;
mod persistent;
mod questions;
mod region;
mod remember;
mod shard;
mod sharding;
#[cfg(test)]
mod tests;

pub use self::coordinator::coordinated::CoordinatorMetrics;
pub use self::coordinator::external::ExternalAllocation;
pub use self::coordinator::external_shards::{ExternalShards, ExternalShardsError};
pub use self::coordinator::strategy::{AllocationStrategy, StrategySetup};
pub use self::daemon::{DaemonError, DaemonInit, DaemonProcess, DaemonProcesses};
pub use self::metrics::handlers::HandlerCounts;
pub use self::metrics::histogram::{Histogram, Writes};
pub use self::metrics::region::{PassivationCounts, RegionMetrics, ShardsByState};
pub(crate) use self::node::services::Node;
pub use self::persistent::durable_state::DurableStateEntity;
pub use self::persistent::entity::{HostedMachine, MachineState, PersistentEntity};
pub use self::persistent::event_sourced::EventSourcedEntity;
pub use self::questions::inspect::Inspector;
pub use self::questions::stopping::{StopShardsError, StoppingShards};
pub use self::region::event::{Event, RegionEvents};
pub use self::region::handle::Region;
pub(crate) use self::region::shared::Asked;
pub use self::remember::{InMemoryRememberStore, RememberEntitiesStore, RememberError, RememberStore, ShardTerm};
pub use self::sharding::handle::Sharding;
pub(crate) use self::sharding::handle::SharedSharding;
pub use self::sharding::init_error::{InitError, NotStarted};
pub use self::sharding::removal::{RemovalError, Removed, remove_internal_sharding_data, remove_remembered_entities};
