//! References to entities in messages: as type and id, found again on the node that reads them.

use greylag_core::{ReplyScope, StorageScope};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::EntityRef;
use crate::driver::SharedSharding;
use crate::ids::EntityTypeName;
use crate::key::EntityKey;

impl<M> Serialize for EntityRef<M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if StorageScope::is_open() {
            return Err(ser::Error::custom("a reference to an entity cannot be stored; store its id"));
        }
        (self.entity_type(), self.id()).serialize(serializer)
    }
}

impl<'de, M: Send + 'static> Deserialize<'de> for EntityRef<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (entity_type, id) = <(String, String)>::deserialize(deserializer)?;
        let sharding = ReplyScope::resource::<SharedSharding>().and_then(|shared| shared.get());
        let sharding =
            sharding.ok_or_else(|| de::Error::custom("a reference to an entity was read outside of a node"))?;
        let key = EntityKey::<M>::named(entity_type);
        let entities = sharding.known_entities(&key).ok_or_else(|| {
            let missing = sharding.not_started(key.name());
            // Log here, since the errors of codecs do not repeat the decoded content.
            if EntityTypeName::new(&missing.name).is_ok() {
                tracing::warn!(entity_type = ?missing.name, "a message refers to an entity of a type that is not set up here");
            }
            de::Error::custom(missing)
        })?;
        Ok(EntityRef::new(entities, id))
    }
}
