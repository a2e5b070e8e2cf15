//! Entity types as the service shows them. The node's sharding layer implements [`Shards`], because this crate knows
//! the cluster but no entities.

use std::pin::Pin;

use crate::v1;

/// A future answer.
pub type Answering<T> = Pin<Box<dyn Future<Output = Result<T, ShardsError>> + Send>>;

/// The entity types of one node.
///
/// Addresses are written `host:port#uid`. A region that does not answer in time is named in the answer, which has all
/// others.
pub trait Shards: Send + Sync + 'static {
    /// The names of the entity types that are set up, sorted.
    fn types(&self) -> Vec<String>;

    /// The nodes with a hosting region.
    fn regions(&self, request: v1::ShardRegionsRequest) -> Answering<v1::ShardRegionsReply>;

    /// The shards of all regions, with their entities by state.
    fn stats(&self, request: v1::ShardStatsRequest) -> Answering<v1::ShardStatsReply>;

    /// A page of the entities of one region.
    fn entities(&self, request: v1::ShardEntitiesRequest) -> Answering<v1::ShardEntitiesReply>;

    /// The shard and node of an entity, as far as this node knows.
    fn location(&self, request: v1::EntityLocationRequest) -> Answering<v1::EntityLocationReply>;
}

/// Why a question about an entity type is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardsError {
    /// The node does not know the type.
    #[error("entity type {name:?} is not set up on this node; these are: {known:?}")]
    UnknownType {
        /// The name as given.
        name: String,
        /// The types that are set up on the node.
        known: Vec<String>,
    },
    /// The type has no region at this address.
    #[error("no region of the type is at {0}")]
    NoRegion(String),
    /// The region at this address does not answer in time.
    #[error("the region at {0} does not answer")]
    Silent(String),
    /// The request is invalid.
    #[error("{0}")]
    Nonsense(String),
}
