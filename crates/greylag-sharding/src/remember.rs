//! Remembering which entities run, so that they start again with their shard.
//!
//! A type that remembers its entities stores the id of each when it starts first, and takes it back when it passivates.
//! Whatever else ends an entity (a crash, the loss of its node, a rebalance, a shutdown of everything) leaves it
//! remembered, and it starts again wherever its shard lives next, without a message. What an entity knew is not part of
//! that: an entity that needs its state persists it.
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
