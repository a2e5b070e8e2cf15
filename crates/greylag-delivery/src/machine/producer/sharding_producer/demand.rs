//! Sets of entities with and without demand, updated with each message.
//!
//! Entities are hashed into buckets that copies share, so that a copy costs the same for any number of entities, and a
//! change after the copy clones one bucket alone.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

const BUCKETS: usize = 256;

/// A snapshot of the entities with and without demand. Source: delivery S4.
#[derive(Debug, Clone)]
pub struct DemandSets {
    buckets: Arc<[Arc<Bucket>]>,
    with_demand: usize,
}

#[derive(Debug, Clone, Default)]
struct Bucket {
    with: BTreeSet<Arc<str>>,
    without: BTreeMap<Arc<str>, usize>,
}

impl Default for DemandSets {
    fn default() -> Self {
        let empty = Arc::new(Bucket::default());
        Self { buckets: (0..BUCKETS).map(|_| empty.clone()).collect(), with_demand: 0 }
    }
}

impl DemandSets {
    /// Whether a message to this entity is sent at once. An entity that the producer does not know has demand.
    pub fn has_demand(&self, entity: &str) -> bool {
        !self.buckets[bucket_of(entity)].without.contains_key(entity)
    }

    /// Number of messages that wait for the entity's demand.
    pub fn buffered(&self, entity: &str) -> usize {
        self.buckets[bucket_of(entity)].without.get(entity).copied().unwrap_or_default()
    }

    /// The known entities with demand.
    pub fn entities_with_demand(&self) -> BTreeSet<Arc<str>> {
        self.buckets.iter().flat_map(|bucket| bucket.with.iter().cloned()).collect()
    }

    /// Number of known entities with demand.
    pub fn with_demand(&self) -> usize {
        self.with_demand
    }

    /// Every known entity without demand, with the number of messages that wait.
    pub fn buffered_for_entities_without_demand(&self) -> BTreeMap<Arc<str>, usize> {
        self.buckets.iter().flat_map(|bucket| bucket.without.iter().map(|(id, count)| (id.clone(), *count))).collect()
    }

    pub(super) fn set(&mut self, entity: &Arc<str>, buffered_without_demand: Option<usize>) {
        let bucket = self.bucket_mut(entity);
        let had_demand = match buffered_without_demand {
            Some(count) => {
                bucket.without.insert(entity.clone(), count);
                bucket.with.remove(entity)
            }
            None => {
                bucket.without.remove(entity);
                !bucket.with.insert(entity.clone())
            }
        };
        let has_demand = buffered_without_demand.is_none();
        self.with_demand = self.with_demand + usize::from(has_demand) - usize::from(had_demand);
    }

    pub(super) fn forget(&mut self, entity: &Arc<str>) {
        let bucket = self.bucket_mut(entity);
        bucket.without.remove(entity);
        let had_demand = bucket.with.remove(entity);
        self.with_demand -= usize::from(had_demand);
    }

    fn bucket_mut(&mut self, entity: &str) -> &mut Bucket {
        Arc::make_mut(&mut Arc::make_mut(&mut self.buckets)[bucket_of(entity)])
    }
}

fn bucket_of(entity: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    entity.hash(&mut hasher);
    hasher.finish() as usize % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_copy_is_unaffected_by_later_changes() {
        let mut demand = DemandSets::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        demand.set(&a, None);
        let taken = demand.clone();
        demand.set(&a, Some(3));
        demand.set(&b, None);
        assert!(taken.has_demand("a") && taken.has_demand("unknown"));
        assert_eq!(taken.entities_with_demand(), [a.clone()].into());
        assert!(!demand.has_demand("a"));
        assert_eq!(demand.entities_with_demand(), [b.clone()].into());
        demand.set(&b, None);
        assert_eq!((taken.with_demand(), demand.with_demand()), (1, 1));
        assert_eq!(demand.buffered_for_entities_without_demand(), [(a.clone(), 3)].into());
        demand.forget(&a);
        demand.forget(&b);
        assert_eq!(demand.with_demand(), 0);
        assert!(demand.entities_with_demand().is_empty() && demand.buffered_for_entities_without_demand().is_empty());
    }
}
