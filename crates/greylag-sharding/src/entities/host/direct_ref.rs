//! The address of one incarnation of an entity.

use std::fmt;
use std::sync::Arc;

use greylag_core::UniqueAddress;
use greylag_transport::Recipient;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::percent_encode;

/// The address of one incarnation of one entity: a message to it skips routing and starts no entity.
///
/// A successor of the incarnation never gets messages meant for it (dead letter `StaleRecipient`).
/// Source: sharding §4.11.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectRef {
    /// The process of the incarnation.
    pub node: UniqueAddress,
    /// The entity type and the shard, as `type|shard`.
    pub path: Arc<str>,
    /// The incarnation; never used twice by that process.
    pub instance: u64,
}

impl DirectRef {
    pub(crate) fn of(node: &UniqueAddress, entity_type: &str, shard: &str, instance: u64) -> Self {
        Self { node: node.clone(), path: format!("{entity_type}|{shard}").into(), instance }
    }

    /// The recipient by which a watcher learns from the transport of [`DirectRef::node`] of the incarnation's end.
    /// Addresses from [`EntityCtx::direct_ref`](crate::EntityCtx::direct_ref) can be watched; see
    /// [`EntityCtx::watch_entity`](crate::EntityCtx::watch_entity).
    pub fn recipient(&self) -> Recipient {
        let (entity_type, shard) = self.path.split_once('|').unwrap_or((&self.path, ""));
        let (entity_type, shard) = (percent_encode(entity_type), percent_encode(shard));
        Recipient::new(format!("sharding-entity/{entity_type}/{shard}/{}", self.instance))
    }
}

/// Serialized as a node, a path and an instance.
impl Serialize for DirectRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.node, &*self.path, self.instance).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for DirectRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (node, path, instance) = <(UniqueAddress, String, u64)>::deserialize(deserializer)?;
        Ok(Self { node, path: path.into(), instance })
    }
}

impl fmt::Display for DirectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.node, self.path, self.instance)
    }
}
