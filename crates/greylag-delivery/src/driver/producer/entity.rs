//! The target of a message to an entity, and the state of a sharding producer as its handles see it.

use std::sync::Arc;

use crate::driver::sending::{Address, PublishedState};
use crate::machine::sharding_producer::{DemandSets, ProducerStats};
use crate::machine::storing::StoringState;

/// Address of one entity.
#[derive(Debug, Clone)]
pub(in crate::driver) struct Entity {
    pub(super) id: Arc<str>,
    pub(super) shard: Arc<str>,
    /// Whether the entity is on this node, or its node is not known yet; such messages are not encoded.
    pub(super) stays: bool,
}

impl Address for Entity {
    type State = PublishedEntities;
    type Demand = DemandSets;

    fn has_room(&self, published: &mut PublishedEntities) -> bool {
        published.wants_demand = true;
        published.demand.buffered(&self.id) < published.buffer_size_per_entity
    }

    fn stays(&self) -> bool {
        self.stays
    }
}

/// The state of a sharding producer as its handles see it.
#[derive(Debug)]
pub(in crate::driver) struct PublishedEntities {
    pub(in crate::driver) stats: ProducerStats,
    pub(in crate::driver) store: StoringState,
    pub(super) demand: DemandSets,
    /// Whether a handle has called `try_send`; from then on the task keeps `demand` up to date.
    pub(super) wants_demand: bool,
    pub(super) buffer_size_per_entity: usize,
}

impl Default for PublishedEntities {
    fn default() -> Self {
        Self {
            stats: ProducerStats::default(),
            store: StoringState::InMemory,
            demand: DemandSets::default(),
            wants_demand: false,
            buffer_size_per_entity: 0,
        }
    }
}

impl PublishedState for PublishedEntities {
    fn undelivered(&self) -> u64 {
        self.stats.unconfirmed + self.stats.storing + self.stats.waiting
    }
}
