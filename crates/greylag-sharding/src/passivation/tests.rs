//! The scenarios of sharding §11 that need no shard: ids are slots, and a region is a map of strategies.

mod composite;
mod frequency;
mod properties;
mod recency;
mod vetoes;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Passivation, Strategy};

/// No slot is chosen.
const NONE: [u32; 0] = [];

/// A hash of an id, as well mixed as that of a shard.
fn hash(id: u32) -> u64 {
    let mixed = (u64::from(id) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

fn ids(range: RangeInclusive<u32>) -> Vec<u32> {
    range.collect()
}

/// A strategy, and the slots that are active according to it.
struct Watched {
    strategy: Strategy,
    active: BTreeSet<u32>,
}

impl Watched {
    fn new(settings: &Passivation, limit: usize) -> Self {
        Self { strategy: Strategy::new(settings, limit), active: BTreeSet::new() }
    }

    fn touch(&mut self, id: u32) -> Vec<u32> {
        self.active.insert(id);
        self.watch(|strategy, out| strategy.touched(id, hash(id), out))
    }

    fn limit(&mut self, limit: usize) -> Vec<u32> {
        self.watch(|strategy, out| strategy.set_limit(limit, out))
    }

    fn veto(&mut self, id: u32, veto: bool) -> Vec<u32> {
        self.watch(|strategy, out| strategy.set_veto(id, veto, out))
    }

    fn end(&mut self, id: u32) {
        self.active.remove(&id);
        self.strategy.terminated(id);
    }

    fn watch(&mut self, call: impl FnOnce(&mut Strategy, &mut Vec<u32>)) -> Vec<u32> {
        let mut out = Vec::new();
        call(&mut self.strategy, &mut out);
        for victim in &out {
            assert!(self.active.remove(victim), "{victim} was not active");
        }
        assert_eq!(self.strategy.live_count(), self.active.len());
        out
    }
}

/// The shards of a region, which divide its limit.
struct Region {
    settings: Passivation,
    limit: usize,
    shards: BTreeMap<u32, Watched>,
}

impl Region {
    fn new(settings: Passivation) -> Self {
        let limit = settings.active_entity_limit().unwrap_or(0);
        Self { settings, limit, shards: BTreeMap::new() }
    }

    /// Touches an id, and starts its shard if this is its first id. Returns all victims.
    fn touch(&mut self, shard: u32, id: u32) -> Vec<u32> {
        let mut victims = Vec::new();
        if !self.shards.contains_key(&shard) {
            self.shards.insert(shard, Watched::new(&self.settings, 1));
            victims = self.share_limit();
        }
        victims.extend(self.shards.get_mut(&shard).unwrap().touch(id));
        victims
    }

    fn set_limit(&mut self, limit: usize) -> Vec<u32> {
        self.limit = limit;
        self.share_limit()
    }

    fn share_limit(&mut self) -> Vec<u32> {
        let limit = Passivation::per_shard_limit(self.limit, self.shards.len());
        self.shards.values_mut().flat_map(|shard| shard.limit(limit)).collect()
    }

    fn end(&mut self, shard: u32, id: u32) {
        self.shards.get_mut(&shard).unwrap().end(id);
    }

    fn active(&self, shard: u32) -> Vec<u32> {
        self.shards[&shard].active.iter().copied().collect()
    }
}

/// Scenario sharding 69, the part of the settings: `none` and a timeout of 0 passivate no entity.
#[test]
fn no_entity_is_passivated_where_nothing_is_set() {
    for settings in [Passivation::none(), Passivation::idle_after(Duration::ZERO)] {
        assert!(settings.is_none() && settings.idle_check_interval().is_none());
        let mut shard = Watched::new(&settings, 1);
        let mut out = Vec::new();
        for id in 0..1000 {
            shard.strategy.touched(id, hash(id), &mut out);
            shard.strategy.set_veto(id, id % 2 == 0, &mut out);
        }
        shard.strategy.set_limit(1, &mut out);
        assert_eq!((out, shard.strategy.live_count()), (vec![], 0));
    }
    assert!(Passivation::idle_after(Duration::from_secs(1)).with_idle(Duration::ZERO).is_none());
}

#[test]
fn idle_entities_are_looked_for_twenty_times_in_their_time() {
    let second = Duration::from_secs(1);
    let settings = Passivation::least_recently_used(3).with_idle(second);
    assert_eq!((settings.idle_timeout(), settings.idle_check_interval()), (Some(second), Some(second / 20)));
    assert_eq!(settings.idle_interval(second / 4).idle_check_interval(), Some(second / 4));
    assert_eq!(Passivation::default().idle_timeout(), Some(second * 120));
    assert_eq!(Passivation::recommended().idle_timeout(), None);
}

#[test]
fn every_shard_may_have_one_entity() {
    for (limit, shards, expected) in [(10, 3, 3), (10, 11, 1), (10, 0, 10), (1, 1, 1)] {
        assert_eq!(Passivation::per_shard_limit(limit, shards), expected);
    }
}

#[test]
fn a_strategy_without_a_limit_costs_a_pointer() {
    assert_eq!(size_of::<Strategy>(), size_of::<usize>());
}
