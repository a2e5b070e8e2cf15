//! Entities found by name: coordinator, regions, shards, and the runtime of their entities.

#![allow(dead_code)]

pub mod allocation;
pub mod coordinator;
mod driver;
pub mod entity;
mod entity_ref;
pub mod entity_type;
pub mod error;
pub mod extractor;
pub mod fingerprint;
mod frame;
#[allow(missing_docs, clippy::all, unreachable_pub, unused_qualifications)]
mod generated {
    include!("generated/greylag.sharding.v1.rs");
}
pub mod ids;
mod inbox;
pub mod membership;
pub mod message;
mod parcel;
pub mod region;
mod routes;
pub mod settings;
pub mod shard;
pub mod wire;

pub use driver::{Event, EventSourcedEntity, InitError, NotStarted, Region, RegionEvents, Sharding};
pub use entity::{
    AlreadySuspended, Ctx, DirectRef, Directive, Entity, EntityInit, Failure, FailureCause, Fenced, Signal,
    Supervision, TimerKey,
};
pub use entity_ref::{Answer, AskError, EntityRef, SendError};
pub use entity_type::EntityType;
pub use extractor::{Extractor, HashV1, JavaHash, Murmur2};
pub use settings::ShardingSettings;
