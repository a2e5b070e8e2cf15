//! One entity type on one node: its region, whose machine decides where messages go, and the task around it.

pub(super) mod any_region;
pub(super) mod event;
pub(super) mod handle;
pub(super) mod limit;
pub(super) mod liveness_probe;
pub(super) mod run;
pub(super) mod shard_names;
pub(super) mod shards;
pub(super) mod shared;
pub(super) mod task;
pub(super) mod type_services;
