//! What a factory is told about the entity that it makes.

use std::sync::Arc;

use greylag_core::Generation;
use greylag_persistence::{InvalidPersistenceId, PersistenceId, Stores};

use crate::driver::Node;
use crate::extensions::Extensions;
use crate::ids::{EntityId, EntityTypeName, ShardId};

/// The facts that a factory gets about the entity that it makes.
#[derive(Debug, Clone)]
pub struct EntityInit {
    /// The entity type's name.
    pub entity_type: EntityTypeName,
    /// The entity's id.
    pub id: EntityId,
    /// Its shard.
    pub shard: ShardId,
    /// The allocation of the shard under which the entity starts; named in journal claims.
    pub generation: Generation,
    /// Number of this incarnation; never used twice by a process.
    pub incarnation: u64,
    /// Whether its history or state may be in a store that only this node reaches.
    pub allow_local_journal: bool,
    pub(crate) node: Arc<Node>,
}

impl EntityInit {
    /// The persistence id of the entity's history or state, unless its type has another rule: its type and its id.
    ///
    /// # Errors
    /// [`InvalidPersistenceId`] if the two are too long together, or one of them contains a `|`.
    pub fn persistence_id(&self) -> Result<PersistenceId, InvalidPersistenceId> {
        PersistenceId::of(self.entity_type.as_str(), self.id.as_str())
    }

    /// Values that layers above keep with this node's sharding.
    pub fn extensions(&self) -> &Extensions {
        &self.node.extensions
    }

    /// The stores that this node's sharding was started with.
    pub fn stores(&self) -> Option<&Stores> {
        self.node.stores.as_ref()
    }
}
