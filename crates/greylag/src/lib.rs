//! Stateful entities spread over many nodes: found by name, kept alive through crashes, never alive
//! twice.
//!
//! ```
//! use std::time::Duration;
//!
//! use greylag::prelude::*;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! enum Command {
//!     Deposit { cents: u64 },
//!     Balance { reply_to: ReplyTo<u64> },
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Deposited {
//!     cents: u64,
//! }
//!
//! struct Account(PersistenceId);
//!
//! impl EventSourced for Account {
//!     type Command = Command;
//!     type Event = Deposited;
//!     type State = u64;
//!
//!     fn persistence_id(&self) -> PersistenceId {
//!         self.0.clone()
//!     }
//!
//!     fn event_codec(&self) -> StoredCodec<Deposited> {
//!         StoredCodec::new(json("account.deposited"))
//!     }
//!
//!     fn on_command(&mut self, _: &mut CommandContext<'_, Self::Command>, balance: &u64, command: Command) -> Effect<Self> {
//!         match command {
//!             Command::Deposit { cents } => Effect::persist(Deposited { cents }),
//!             Command::Balance { reply_to } => Effect::reply(reply_to, *balance),
//!         }
//!     }
//!
//!     fn apply(&self, balance: &mut u64, event: &Deposited, _: &EventMeta<'_>) {
//!         *balance += event.cents;
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A cluster of one. A second node names this one: `.seed_nodes([node.address().to_string()])`.
//! let node = Node::builder("bank").bind("127.0.0.1", 0).stores(Stores::in_memory_shared()).start().await?;
//! node.registry().register::<u64>(json("cents"))?;
//! let accounts = node.sharding().init(
//!     EntityType::event_sourced("Account", |init| Ok(Account(init.persistence_id()?))).codec(json("account.command")),
//! )?;
//!
//! accounts.entity_ref("ada").tell(Command::Deposit { cents: 1250 })?;
//! let balance = accounts.entity_ref("ada").ask(|reply_to| Command::Balance { reply_to }, Duration::from_secs(10));
//! assert_eq!(balance.await?, 1250);
//! node.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! The facade puts the layers together; each is a crate of its own and can be used alone. What is
//! re-exported depends on the features: `ddata`, `persistence`, `sharding`, `delivery` and
//! `management` by default, `ddata-sled` (durable entries), `journal-sled`, `journal-postgres`, `journal-service`, `discovery-dns` and
//! `lease-postgres` on request.
//!
//! Settings come from the program, the environment and a TOML file: [`config`]. Programs to read:
//! `examples/counter`, `examples/singleton` (one till in the whole cluster, reached from every node), `examples/storefront`;
//! of entities that persist, without a cluster, `examples/bank-account` and `examples/read-side`;
//! of replicated data `examples/cart`, `examples/voting` and, without a cluster, `examples/replicator`.

mod builder;
pub mod config;
#[cfg(feature = "persistence")]
mod journals;
mod leases;
mod node;
pub mod prelude;
mod settings;
mod start_error;

pub use builder::NodeBuilder;
pub use config::{Config, ConfigProblems};
#[cfg(feature = "journal-postgres")]
pub use journals::PostgresJournalPlace;
#[cfg(feature = "journal-service")]
pub use journals::ServiceJournalPlace;
#[cfg(feature = "journal-sled")]
pub use journals::SledJournalPlace;
#[cfg(feature = "persistence")]
pub use journals::{JournalError, JournalKind, JournalSettings, NodeJournal};
pub use leases::{LeaseStoreSettings, PostgresLeaseSettings, Secret};
pub use node::Node;
#[cfg(feature = "ddata")]
pub use settings::DdataPlace;
pub use settings::{DiscoveryMethod, DiscoverySettings, NodeSettings};
pub use start_error::StartError;

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
