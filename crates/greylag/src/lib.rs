//! Stateful entities spread over many nodes: found by name, kept alive through crashes, never alive
//! twice.
//!
//! ```
//! use greylag::prelude::*;
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
//! #[tokio::main]
//! async fn main() -> greylag::Result {
//!     let counters = EntityType::event_sourced(COUNTER, |_| Ok(Counter))
//!         .commands(json("counter.command"))
//!         .events(json("counter.incremented"));
//!     // A cluster of one. A second node names this one: `.seed_nodes([node.address().to_string()])`.
//!     let node = Node::builder("counters").stores(Stores::in_memory_shared()).entity(counters).start().await?;
//!
//!     let geese = node.entity_ref(COUNTER, "geese");
//!     geese.tell(Command::Increment)?;
//!     assert_eq!(geese.ask(Command::Get).await?, 1);
//!     node.shutdown().await
//! }
//! ```
//!
//! The facade combines the layers; each layer is a crate of its own and can be used alone. Re-exports depend on the
//! features: `ddata`, `persistence`, `sharding`, `delivery` and `management` by default, `ddata-sled` (durable
//! entries), `journal-sled`, `journal-postgres`, `journal-service`, `discovery-dns` and `lease-postgres` on request.
//!
//! Settings come from the program, the environment and a TOML file: see [`config`]. Example programs:
//! - Entities: `examples/counter`, `examples/rate-limiter` (in memory, with a timer, passivated without requests),
//!   `examples/orders` (two types that send each other messages), `examples/web` (a web server in front of entities on
//!   other nodes; [`NodeBuilder::proxy`]), `examples/rolling-restart` (nodes are replaced under load),
//!   `examples/job-scheduler` (jobs that continue by themselves after a restart), `examples/daemon` (a fixed number of
//!   workers, each running once; [`Node::daemon_process`]), `examples/singleton` (one till in the whole cluster;
//!   [`SingletonInstance`]), `examples/storefront`.
//! - Delivery ([`Node::delivery`]): `examples/checksums` (jobs for workers that are killed), `examples/file-transfer`
//!   (a file in pieces, point to point; [`Node::remoting`]), `examples/meter` (an entity with its own file counts each
//!   delivery once) and `examples/paid-orders` (orders and cards that send to each other exactly once).
//! - Persistent entities without a cluster: `examples/bank-account` and `examples/read-side`.
//! - Replicated data ([`Node::replicated`]): `examples/cart`, `examples/voting` and, without a cluster,
//!   `examples/replicator`.

#[cfg(all(feature = "management", any(feature = "sharding", feature = "delivery")))]
mod admin;
pub mod config;
mod error;
#[cfg(doctest)]
mod guide;
mod node;
pub mod prelude;
mod settings;

pub use config::{Config, ConfigProblems};
pub use error::{Error, Result};
#[cfg(feature = "ddata")]
pub use node::ReplicatedError;
pub use node::{EndedOtherwise, Node, NodeBuilder, SingletonInstance, StartError, StartSingleton};
#[cfg(feature = "persistence")]
pub use node::{JournalError, NodeJournal};
#[cfg(feature = "ddata")]
pub use settings::DdataPlace;
#[cfg(feature = "journal-postgres")]
pub use settings::PostgresJournalPlace;
#[cfg(feature = "journal-service")]
pub use settings::ServiceJournalPlace;
#[cfg(feature = "journal-sled")]
pub use settings::SledJournalPlace;
pub use settings::{
    DiscoveryMethod, DiscoverySettings, LeaseStoreSettings, NodeSettings, PostgresLeaseSettings, Secret,
};
#[cfg(feature = "persistence")]
pub use settings::{JournalKind, JournalSettings};

pub use greylag_cluster as cluster;
pub use greylag_codec as codec;
pub use greylag_core as core;
#[cfg(feature = "ddata")]
pub use greylag_crdt as crdt;
#[cfg(feature = "ddata")]
pub use greylag_ddata as ddata;
#[cfg(feature = "delivery")]
pub use greylag_delivery as delivery;
#[cfg(feature = "discovery-dns")]
pub use greylag_discovery_dns as discovery_dns;
#[cfg(feature = "journal-postgres")]
pub use greylag_journal_postgres as journal_postgres;
#[cfg(feature = "journal-service")]
pub use greylag_journal_service as journal_service;
#[cfg(feature = "journal-sled")]
pub use greylag_journal_sled as journal_sled;
#[cfg(feature = "lease-postgres")]
pub use greylag_lease_postgres as lease_postgres;
#[cfg(feature = "management")]
pub use greylag_management as management;
#[cfg(feature = "persistence")]
pub use greylag_persistence as persistence;
#[cfg(feature = "sharding")]
pub use greylag_sharding as sharding;
pub use greylag_transport as transport;
