//! What the service shows of entity types. The node's sharding layer implements
//! [`Shards`], because this crate knows the cluster and no entities.

use std::pin::Pin;

use crate::v1;

/// An answer to come.
pub type Answering<T> = Pin<Box<dyn Future<Output = Result<T, ShardsError>> + Send>>;

/// The entity types of one node.
///
/// Addresses are written `host:port#uid`. What does not answer in time is named in an answer, and empties none.
pub trait Shards: Send + Sync + 'static {
    /// The names of the types that are set up, sorted.
    fn types(&self) -> Vec<String>;

    /// The nodes with a region that hosts.
    fn regions(&self, request: v1::ShardRegionsRequest) -> Answering<v1::ShardRegionsReply>;

    /// The shards of all regions, with their entities by state.
    fn stats(&self, request: v1::ShardStatsRequest) -> Answering<v1::ShardStatsReply>;

    /// A page of the entities of one region.
    fn entities(&self, request: v1::ShardEntitiesRequest) -> Answering<v1::ShardEntitiesReply>;

    /// Where an entity belongs, as far as this node knows.
    fn location(&self, request: v1::EntityLocationRequest) -> Answering<v1::EntityLocationReply>;
}

/// Why there is no answer about an entity type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardsError {
    /// The node does not know the type.
    #[error("entity type {name:?} is not set up on this node; these are: {known:?}")]
    UnknownType {
        /// The name asked for.
        name: String,
        /// The types that are set up.
        known: Vec<String>,
    },
    /// No region of the type is there.
    #[error("no region of the type is at {0}")]
    NoRegion(String),
    /// The region there does not answer in time.
    #[error("the region at {0} does not answer")]
    Silent(String),
    /// The request makes no sense.
    #[error("{0}")]
    Nonsense(String),
}
