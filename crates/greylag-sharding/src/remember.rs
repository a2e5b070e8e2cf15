//! Remembering which entities run, so that they start again with their shard.
//!
//! A type that remembers its entities stores the id of each entity at its first start, and removes the id when it
//! passivates. Any other end of an entity (a crash, the loss of its node, a rebalance, a shutdown of everything) leaves
//! it remembered, and it starts again wherever its shard lives next, without a message. The state of an entity is not
//! remembered: an entity that needs its state persists it.
//!
//! ```text
//! first message --> shard: remembering --stored--> entity starts, its messages flow
//! shard starts  --> load --> Starter --StartEntity, through routing--> shards --> ack
//! ```
//! Stores: replicated data, a journal, or one of your own ([`RememberEntitiesStore`]).
//!
//! Source: sharding §4.7 to §4.9.

pub(crate) mod starter;

pub use crate::driver::{InMemoryRememberStore, RememberEntitiesStore, RememberError, RememberStore, ShardTerm};
