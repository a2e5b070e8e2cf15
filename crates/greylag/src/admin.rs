//! What the admin service of a node shows of its entity types and of its reliable delivery.

#[cfg(feature = "delivery")]
mod deliveries;
#[cfg(feature = "sharding")]
mod shards;

#[cfg(feature = "delivery")]
pub(crate) use deliveries::NodeDeliveries;
#[cfg(feature = "sharding")]
pub(crate) use shards::NodeShards;
