//! Entities found by id: one coordinator per type, a region per node, shards, and the runtime of their entities.
//!
//! ```
//! use std::sync::Arc;
//!
//! use greylag_cluster::{Cluster, ClusterSettings};
//! use greylag_codec::json;
//! use greylag_core::{Registry, ReplyTo};
//! use greylag_persistence::{Ctx, Effect, EventSourced, Stores};
//! use greylag_sharding::{EntityKey, EntityType, Sharding, ShardingSettings};
//! use greylag_transport::memory::MemoryNetwork;
//! use serde::{Deserialize, Serialize};
//!
//! const COUNTER: EntityKey<Command> = EntityKey::new("Counter");
//!
//! #[derive(Serialize, Deserialize)]
//! enum Command {
//!     Increment,
//!     Get(ReplyTo<u64>),
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Incremented;
//!
//! struct Counter;
//!
//! impl EventSourced for Counter {
//!     type Command = Command;
//!     type Event = Incremented;
//!     type State = u64;
//!
//!     fn on_command(&mut self, _: &mut Ctx<'_, Command>, count: &u64, command: Command) -> Effect<Self> {
//!         match command {
//!             Command::Increment => Effect::persist(Incremented),
//!             Command::Get(reply_to) => Effect::reply(reply_to, *count),
//!         }
//!     }
//!
//!     fn apply(count: &mut u64, _: &Incremented) {
//!         *count += 1;
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A cluster of one. Others would join it with this node's address as their seed.
//! let remoting = MemoryNetwork::new().node("a:1#1".parse()?, Arc::new(Registry::new()));
//! let cluster = Cluster::start(ClusterSettings::test(), remoting).await?;
//! cluster.join_self().await?;
//!
//! let stores = Some(Stores::in_memory_shared());
//! let sharding = Sharding::start(cluster, stores, ShardingSettings::test()).await?;
//! let counters = EntityType::event_sourced(COUNTER, |_| Ok(Counter))
//!     .commands(json("counter.command"))
//!     .events(json("counter.incremented"));
//! sharding.init(counters)?;
//!
//! let geese = sharding.entity_ref(COUNTER, "geese");
//! geese.tell(Command::Increment)?;
//! assert_eq!(geese.ask(Command::Get).await?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//! - **One at a time.** Among nodes that share a view of the cluster, an entity lives at most once.
//!   A shard moves only on proof that its former owner has none of it left; every decision carries a
//!   generation, checked by region, shard and journal, and an older one changes nothing.
//! - **Order.** What one task sends to one entity is handled in that order, through buffering,
//!   forwarding, moves and restarts; a message may be dropped with a reason, never overtaken.
//! - **Nothing vanishes silently.** A message is handled, refused to its sender, or a dead letter.
//!
//! An entity that needs no history keeps its newest state only: [`EntityType::durable_state`]. An entity that must run
//! without a message starts again with its shard: [`EntityType::remember_entities`].
//!
//! Delivery is at most once; `greylag-delivery` makes it exactly once in effect.
//!
//! # How it is made
//! Three [machines](machine) without I/O: a coordinator decides homes, a region routes and buffers,
//! a shard runs entities. The driver puts tasks, lanes and stores around them. A local message
//! passes none of the machines' tasks: the sender reads the published route table and pushes into
//! the shard's inbox (`routes`, `inbox`), and one task per shard runs the handlers.
//!
//! ```text
//! EntityRef::tell --> route table --local---> shard inbox --> shard task --> Entity::receive
//!                                 --remote--> lane of the shard --> owner's decode worker --> as above
//!                                 --none----> region machine: buffer, ask the coordinator, flush later
//! ```

pub mod allocation;
mod driver;
mod entities;
#[allow(missing_docs, clippy::all, unreachable_pub, unused_qualifications)]
mod generated {
    include!("generated/greylag.sharding.v1.rs");
}
pub mod machine;
mod nouns;
pub mod passivation;
pub mod remember;
pub mod settings;
mod start;
mod transfer;
pub mod wire;

pub use self::entities::{entity, entity_type, host};
pub(crate) use self::entities::{entity_ref, extensions};
pub(crate) use self::machine::{interned, timetable};
pub(crate) use self::nouns::key;
pub use self::nouns::{error, extractor, fingerprint, healthcheck, horizon, ids, inspection};
pub use self::transfer::parts;
pub(crate) use self::transfer::{frame, held, inbox, parcel, routes};

pub use driver::{
    AllocationStrategy, CoordinatorMetrics, DaemonError, DaemonInit, DaemonProcess, DaemonProcesses, Event,
    ExternalAllocation, ExternalShards, ExternalShardsError, HandlerCounts, Histogram, InitError, Inspector,
    NotStarted, PassivationCounts, Region, RegionEvents, RegionMetrics, RemovalError, Removed, Sharding, ShardsByState,
    StopShardsError, StoppingShards, StrategySetup, Writes, remove_internal_sharding_data, remove_remembered_entities,
};
pub use entity::{
    Backoff, Directive, Entity, EntityCtx, EntityInit, Failure, FailureCause, Signal, Supervision, TimerKey, Verdict,
};
pub use entity_ref::{Answer, Ask, AskError, EntityRef, SendError};
pub use entity_type::{ByEvents, ByState, EntityType, EventSourcedParts, Kind, Plain, Proxy};
pub use extensions::Extensions;
pub use extractor::{Extractor, HashV1, JavaHash, Murmur2};
pub use greylag_persistence::{CannotSuspend, Ctx};
pub use host::DirectRef;
pub use key::EntityKey;
pub use machine::coordinator::{CoordinatorEvent, HandOffPhase};
pub use machine::daemon::NumberOfProcesses;
#[cfg(feature = "sabotage")]
#[doc(hidden)]
pub use machine::omissions::Clause;
#[doc(hidden)]
pub use machine::omissions::Omissions;
pub use machine::region::{Counters, Obstacle, RegionEvent, RegionState};
pub use machine::shard::InvalidTransition;
pub use passivation::Passivation;
pub use remember::{InMemoryRememberStore, RememberEntitiesStore, RememberError, RememberStore, ShardTerm};
pub use settings::ShardingSettings;
pub use start::StartEntityAck;
