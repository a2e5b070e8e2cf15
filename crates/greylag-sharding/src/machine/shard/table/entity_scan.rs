//! Counting and naming the entities of a shard, some slots at a time, so that no message waits long meanwhile.
//!
//! Source: sharding §6.1, §10.

use std::collections::BTreeSet;

use super::Table;
use super::slab::IncarnationPhase;
use crate::ids::EntityId;
use crate::inspection::EntityCounts;
use crate::machine::shard::life::SWEEP_STEP;

/// The counts so far, and the next slot to count.
#[derive(Debug)]
pub(crate) struct EntityScan {
    next: u32,
    counts: EntityCounts,
    named: Option<Named>,
}

/// The first live entities behind a given id, in the order of their ids.
#[derive(Debug)]
struct Named {
    after: Option<EntityId>,
    limit: usize,
    ids: BTreeSet<EntityId>,
    is_cut: bool,
}

impl EntityScan {
    /// Counts all entities.
    pub(crate) fn of_counts() -> Self {
        Self { next: 0, counts: EntityCounts::default(), named: None }
    }

    /// Counts all entities, and names the first `limit` live entities behind `after`.
    pub(crate) fn of_entities(after: Option<EntityId>, limit: usize) -> Self {
        let named = Named { after, limit, ids: BTreeSet::new(), is_cut: false };
        Self { named: Some(named), ..Self::of_counts() }
    }

    /// Counts some more slots. Returns whether all have been counted.
    pub(in crate::machine::shard) fn count_some<E, P>(&mut self, table: &Table<E, P>) -> bool {
        let end = self.next.saturating_add(SWEEP_STEP).min(table.bound());
        for at in self.next..end {
            let slot = table.get(at);
            let Some(id) = &slot.id else { continue };
            let counts = &mut self.counts;
            match slot.phase {
                IncarnationPhase::Absent | IncarnationPhase::Held | IncarnationPhase::Storing => {
                    counts.waiting_restart += 1;
                }
                IncarnationPhase::Starting | IncarnationPhase::Active | IncarnationPhase::Suspended(_) => {
                    if slot.stop_requested {
                        counts.passivating += 1;
                    } else {
                        counts.active += 1;
                    }
                    if let Some(named) = &mut self.named {
                        named.add(id);
                    }
                }
            }
        }
        self.next = end;
        end >= table.bound()
    }

    /// Notes how many remembered entities have not started.
    pub(in crate::machine::shard) fn note_not_started(&mut self, entities: usize) {
        self.counts.remembered_not_started = u64::try_from(entities).unwrap_or(u64::MAX);
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> EntityCounts {
        self.counts
    }

    /// The named entities, and whether there are more behind them.
    pub(crate) fn into_entities(self) -> (BTreeSet<EntityId>, bool) {
        self.named.map(|named| (named.ids, named.is_cut)).unwrap_or_default()
    }
}

impl Named {
    fn add(&mut self, id: &EntityId) {
        if self.after.as_ref().is_some_and(|after| id <= after) {
            return;
        }
        if self.ids.len() < self.limit {
            self.ids.insert(id.clone());
            return;
        }
        // Leave out the larger id. An entity may be met twice, if it ended and started in another slot meanwhile.
        let is_before_last = self.ids.last().is_some_and(|last| id < last);
        if is_before_last && self.ids.insert(id.clone()) {
            self.ids.pop_last();
            self.is_cut = true;
        } else if !self.ids.contains(id) {
            self.is_cut = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> EntityId {
        EntityId::new(text).unwrap()
    }

    fn named(after: Option<&str>, limit: usize, met: &[&str]) -> (Vec<String>, bool) {
        let mut scan = EntityScan::of_entities(after.map(id), limit);
        met.iter().for_each(|met| scan.named.as_mut().unwrap().add(&id(met)));
        let (ids, is_cut) = scan.into_entities();
        (ids.iter().map(ToString::to_string).collect(), is_cut)
    }

    #[test]
    fn the_first_entities_behind_a_name_are_named_and_a_cut_is_told() {
        for (after, limit, met, ids, is_cut) in [
            (None, 3, &["c", "a", "b"][..], &["a", "b", "c"][..], false),
            (None, 2, &["c", "a", "b"], &["a", "b"], true),
            (None, 2, &["a", "b", "c"], &["a", "b"], true),
            (None, 2, &["b", "a", "b", "a"], &["a", "b"], false),
            (Some("a"), 2, &["c", "a", "b"], &["b", "c"], false),
            (Some("b"), 1, &["d", "a", "c", "b"], &["c"], true),
            (Some("d"), 1, &["d", "a", "c", "b"], &[], false),
            (None, 0, &["a"], &[], true),
        ] {
            assert_eq!(named(after, limit, met), (ids.iter().map(ToString::to_string).collect(), is_cut), "{met:?}");
        }
    }
}
