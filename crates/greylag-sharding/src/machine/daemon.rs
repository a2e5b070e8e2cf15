//! A fixed number of workers, each alive once, spread over the nodes and started again wherever they end.
//!
//! A daemon process is an entity type with one shard per worker. Its keeper, a singleton, asks each worker to start again and
//! again, and changes how many there are: it writes the new number down, stops all workers of the old number, and only then
//! starts those of the new one. Each change is a revision, which stands in the ids of the workers, so that a worker of an older
//! revision is told from a newer one wherever a late message starts it.
//!
//! ```text
//! keeper --StartEntity(id), every keep_alive_interval--> worker: reads the record by a majority; user code if it is the latest
//! change --> keeper --record, incomplete--> majority     --StopShards--> old workers     --record, complete--> majority
//! ```
//!
//! Here is what decides, without I/O: ids, the record, and the [`Keeper`]. Source: sharding §6.2.

mod id;
mod keeper;
mod record;

pub use id::ProcessId;
pub use keeper::{Answer, Effect, Input, Keeper, KeeperConfig, Question};
pub use record::{DaemonRecord, NumberOfProcesses};
