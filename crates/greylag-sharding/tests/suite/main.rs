//! The integration tests of this crate that can share a process. They are one program, because each program links the
//! whole workspace once more.

mod common;

mod allocations;
mod append_path;
mod bounds;
mod buffer;
mod cluster;
mod daemons;
mod errors;
mod escalate;
mod external;
mod flush;
mod free_names;
mod last_host;
mod leases;
mod limits;
mod many_shards;
mod metrics;
mod moves;
mod no_host;
mod ownership;
mod queries;
mod readiness;
mod remember;
mod remote_drops;
mod requests;
mod scenarios;
mod setup;
mod shard_backoff;
mod shutdown;
mod start_entity;
mod state_stores;
mod stop_shards;
mod takeover;
mod two_roles;
mod user_code;
mod watching;
