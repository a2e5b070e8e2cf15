//! The shards of a type as this node knows them: the shard of each entity, its number, and its route.
//!
//! Source: sharding §1.3, §2.4.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use greylag_core::DeadLetterReason;

use crate::driver::region::shard_names::ShardNames;
use crate::extractor::{Extractor, is_built_in};
use crate::ids::{EntityId, EntityTypeName, ShardId};
use crate::remember::RememberStore;
use crate::routes::{RouteCell, RouteTable};
use crate::settings::ShardingSettings;

/// See the module's description. `T` is the item of a shard's inbox.
pub(crate) struct Shards<T> {
    extractor: Arc<dyn Extractor>,
    names: ShardNames,
    /// Whether a shard asks the extractor again for each message: an extractor of the program may be inconsistent, a
    /// built-in one cannot.
    is_checked: bool,
    /// `Some` if the type remembers its entities: its store must have room for the name of a shard.
    remembered: Option<(EntityTypeName, RememberStore)>,
    pub(crate) routes: RouteTable<T>,
}

impl<T> Shards<T> {
    pub(crate) fn new(name: &EntityTypeName, extractor: Arc<dyn Extractor>, settings: &ShardingSettings) -> Self {
        let count = extractor.number_of_shards();
        let store = Some(settings.remember.store.clone()).filter(|_| settings.remember.enabled);
        Self {
            is_checked: !is_built_in(&*extractor),
            extractor,
            names: ShardNames::new(count),
            remembered: store.map(|store| (name.clone(), store)),
            routes: RouteTable::new(count),
        }
    }

    /// The entity id, and the number of its shard, unless the id is invalid.
    pub(crate) fn target(&self, id: impl Into<Arc<str>>) -> Result<(EntityId, u32), DeadLetterReason> {
        let id = EntityId::new(id.into())?;
        let shard = match &self.names {
            ShardNames::Numbered(_) => {
                let index = catch_unwind(AssertUnwindSafe(|| self.extractor.shard_index(&id)));
                let index = index.map_err(|_| DeadLetterReason::ExtractorPanicked)?;
                index.ok_or(DeadLetterReason::InvalidShardId)?
            }
            ShardNames::Free(_) => self.intern(&self.place(&id)?)?,
        };
        Ok((id, shard))
    }

    /// The shard of an entity, by the extractor.
    pub(crate) fn place(&self, id: &EntityId) -> Result<ShardId, DeadLetterReason> {
        let placed = catch_unwind(AssertUnwindSafe(|| self.extractor.shard_id(id)));
        placed.unwrap_or(Err(DeadLetterReason::ExtractorPanicked))
    }

    /// Whether a message that reached a shard is for an entity of another one. Built-in extractors are not asked again.
    pub(crate) fn is_misplaced(&self, id: &EntityId, shard: &ShardId) -> bool {
        self.is_checked && self.place(id).as_ref() != Ok(shard)
    }

    /// The number of a shard, assigned now if it is new.
    pub(crate) fn intern(&self, shard: &ShardId) -> Result<u32, DeadLetterReason> {
        if let Some(number) = self.names.number(shard.as_str()) {
            return Ok(number);
        }
        if self.remembered.as_ref().is_some_and(|(name, store)| !store.has_room_for(name, shard)) {
            return Err(DeadLetterReason::InvalidShardId);
        }
        let number = self.names.intern(shard)?;
        self.routes.grow(number);
        Ok(number)
    }

    /// The number of a shard that is known here, by its name.
    pub(crate) fn number(&self, shard: &str) -> Option<u32> {
        self.names.number(shard)
    }

    /// The name of a shard.
    pub(crate) fn name(&self, number: u32) -> Option<ShardId> {
        self.names.name(number)
    }

    /// The name of a shard that has a route or had one.
    pub(crate) fn known(&self, number: u32) -> ShardId {
        self.name(number).expect("the table has cells for known shards alone")
    }

    /// The route of a shard that is known here.
    pub(crate) fn cell(&self, shard: &ShardId) -> Option<&RouteCell<T>> {
        self.routes.cell(self.number(shard.as_str())?)
    }
}
