//! A fixed number of workers, one instance of each, spread over the nodes and started again wherever they end.
//!
//! A daemon process is an entity type with one shard per worker. Its manager, a singleton, asks each worker to start
//! again and again, and changes the number of workers: it records the new number, stops all workers of the old number,
//! and only then starts those of the new one. Each change is a revision, which is part of the workers' ids, so that a
//! worker of an older revision is told from a newer one wherever a late message starts it.
//!
//! ```text
//! manager --StartEntity(id), every keep_alive_interval--> worker: reads the record by a majority;
//!                                                                 user code if it is the latest
//! change --> manager --record, incomplete--> majority
//!                    --StopShards--> old workers
//!                    --record, complete--> majority
//! ```
//!
//! This module decides, without I/O: ids, the record, and the [`DaemonManager`]. Source: sharding §6.2.

mod id;
mod manager;
mod record;

pub use id::ProcessId;
pub use manager::{Answer, DaemonManager, DaemonManagerConfig, Effect, Input, Question};
pub use record::{DaemonRecord, NumberOfProcesses};
