//! Homes: the durable ones, decisions that are not durable yet, and the one write that may be under way.
//!
//! ```text
//! decide --> pending, queue --next_batch--> one write --committed--> apply --> durable
//! ```
//! All decisions that wait when a write ends go into the next write. Source: sharding §2.7 (point 7).

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::Generation;

use super::checked::CHECKED;
use super::placement::Placement;
use crate::allocation::ShardList;
use crate::ids::{RegionId, ShardId};
use crate::machine::coordinator::protocol::{StateEvent, StoredHome};
use crate::machine::message::{Attempt, ClaimState};

/// A durable home, and the facts about it that are held in memory only.
#[derive(Debug)]
pub(in crate::machine::coordinator) struct HomeEntry {
    pub(in crate::machine::coordinator) stored: StoredHome,
    /// Whether its region has claimed the home, which may then be sent before the inventory is complete.
    pub(in crate::machine::coordinator) confirmed: bool,
    /// The handoff that ended before this allocation: its attempt, and the regions whose marks the former owner waited
    /// for.
    pub(in crate::machine::coordinator) flushed: Option<(Attempt, BTreeSet<RegionId>)>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(in crate::machine::coordinator) struct Ledger {
    homes: BTreeMap<ShardId, HomeEntry>,
    /// The latest decision per shard that is not durable yet.
    pending: BTreeMap<ShardId, StoredHome>,
    queue: Vec<StateEvent>,
    in_flight: Option<(u64, Vec<StateEvent>)>,
    batch: u64,
    placement: Placement,
    /// Decisions that adopt a region's claim: their allocation needs no `HostShard`.
    adopting: BTreeMap<ShardId, (Generation, ClaimState)>,
}

impl Ledger {
    /// Takes the homes recorded by predecessors.
    pub(in crate::machine::coordinator) fn load(&mut self, homes: BTreeMap<ShardId, StoredHome>) {
        for (shard, home) in &homes {
            if !home.deallocated {
                self.placement.add(&home.region, shard, home.generation);
            }
        }
        let entry = |(shard, stored)| (shard, HomeEntry { stored, confirmed: false, flushed: None });
        self.homes = homes.into_iter().map(entry).collect();
    }

    /// The durable record of a shard.
    pub(in crate::machine::coordinator) fn durable(&self, shard: &ShardId) -> Option<&HomeEntry> {
        self.homes.get(shard)
    }

    pub(in crate::machine::coordinator) fn durable_mut(&mut self, shard: &ShardId) -> Option<&mut HomeEntry> {
        self.homes.get_mut(shard)
    }

    /// All durable records, in the order of the shards' names.
    pub(in crate::machine::coordinator) fn all_durable(&self) -> impl Iterator<Item = (&ShardId, &HomeEntry)> {
        self.homes.iter()
    }

    /// The durable records behind a shard, in the order of the shards' names.
    pub(in crate::machine::coordinator) fn durable_after(
        &self,
        shard: Option<&ShardId>,
    ) -> impl Iterator<Item = (&ShardId, &HomeEntry)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.homes.range::<ShardId, _>((shard.map_or(Unbounded, Excluded), Unbounded))
    }

    /// Whether the shard has a decision that is not durable yet.
    pub(in crate::machine::coordinator) fn is_pending(&self, shard: &ShardId) -> bool {
        self.pending.contains_key(shard)
    }

    /// The latest decision about a shard, durable or not.
    pub(in crate::machine::coordinator) fn decided(&self, shard: &ShardId) -> Option<&StoredHome> {
        self.pending.get(shard).or_else(|| self.homes.get(shard).map(|entry| &entry.stored))
    }

    /// Regions that any record names, tombstones included.
    pub(in crate::machine::coordinator) fn named(&self) -> impl Iterator<Item = &RegionId> {
        let durable = self.homes.values().map(|entry| &entry.stored.region);
        durable.chain(self.pending.values().map(|home| &home.region))
    }

    /// Regions that have a shard by the decisions so far.
    pub(in crate::machine::coordinator) fn owners(&self) -> impl Iterator<Item = &RegionId> {
        self.placement.regions()
    }

    /// The shards of a region by the decisions so far, in the order of their allocation.
    pub(in crate::machine::coordinator) fn shards_of(&self, region: &RegionId) -> ShardList {
        self.placement.of(region)
    }

    /// Records a decision about a shard.
    pub(in crate::machine::coordinator) fn decide(&mut self, shard: &ShardId, home: StoredHome) {
        let former = self.decided(shard).filter(|former| !former.deallocated).cloned();
        if let Some(former) = former {
            self.placement.remove(&former.region, shard, former.generation);
        }
        if !home.deallocated {
            self.placement.add(&home.region, shard, home.generation);
        }
        self.pending.insert(shard.clone(), home.clone());
        self.queue.push(StateEvent::Home { shard: shard.clone(), home });
    }

    /// Notes that the decision about the shard adopts a region's claim.
    pub(in crate::machine::coordinator) fn adopt(
        &mut self,
        shard: &ShardId,
        generation: Generation,
        state: ClaimState,
    ) {
        self.adopting.insert(shard.clone(), (generation, state));
    }

    /// The state in which the region claimed this generation, if the claim was adopted.
    pub(in crate::machine::coordinator) fn adopted(
        &self,
        shard: &ShardId,
        generation: Generation,
    ) -> Option<ClaimState> {
        self.adopting.get(shard).filter(|(adopted, _)| *adopted == generation).map(|(_, state)| *state)
    }

    /// Ends an adoption: the adopted claim is durable.
    pub(in crate::machine::coordinator) fn end_adoption(&mut self, shard: &ShardId) {
        self.adopting.remove(shard);
    }

    /// Puts an event about something other than homes into the next write.
    pub(in crate::machine::coordinator) fn record(&mut self, event: StateEvent) {
        self.queue.push(event);
    }

    /// The next write, of `limit` events at most, if there are events and no write is under way.
    pub(in crate::machine::coordinator) fn next_batch(&mut self, limit: usize) -> Option<(u64, Vec<StateEvent>)> {
        if self.in_flight.is_some() || self.queue.is_empty() {
            return None;
        }
        self.batch += 1;
        let rest = self.queue.split_off(limit.clamp(1, self.queue.len()));
        let events = std::mem::replace(&mut self.queue, rest);
        self.in_flight = Some((self.batch, events.clone()));
        Some((self.batch, events))
    }

    /// Whether a write is under way.
    pub(in crate::machine::coordinator) fn is_writing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Ends a write that is durable and returns its events. `None` if it is not the write under way.
    pub(in crate::machine::coordinator) fn committed(&mut self, batch: u64) -> Option<Vec<StateEvent>> {
        self.in_flight.take_if(|(number, _)| *number == batch).map(|(_, events)| events)
    }

    /// The events of the write under way, if `batch` is its number.
    pub(in crate::machine::coordinator) fn under_way(&self, batch: u64) -> Option<&Vec<StateEvent>> {
        self.in_flight.as_ref().filter(|(number, _)| *number == batch).map(|(_, events)| events)
    }

    /// Source: sharding §2.7, point 7.
    pub(in crate::machine::coordinator) fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert!(self.queue.is_empty() || self.in_flight.is_some(), "a decision waits only for the write under way");
        let is_newest = self.in_flight.as_ref().is_none_or(|(batch, _)| *batch == self.batch);
        assert!(is_newest, "one write is under way at a time");
        if self.homes.len() + self.pending.len() + self.queue.len() > CHECKED {
            return;
        }
        let under_way = self.in_flight.iter().flat_map(|(_, events)| events);
        let to_come: Vec<&StateEvent> = under_way.chain(&self.queue).collect();
        for (shard, home) in &self.pending {
            let latest = to_come.iter().rev().find_map(|event| match event {
                StateEvent::Home { shard: of, home } if of == shard => Some(home),
                _ => None,
            });
            assert_eq!(latest, Some(home), "{shard:?}: the latest decision is on its way to the store");
        }
        let settled = self.homes.iter().filter(|(shard, _)| !self.is_pending(shard)).map(|(_, entry)| &entry.stored);
        let lives = settled.chain(self.pending.values()).filter(|home| !home.deallocated).count();
        assert_eq!(self.placement.all().count(), lives, "each shard with a home is placed once");
        for (shard, region, generation) in self.placement.all() {
            let home = self.decided(shard).filter(|home| !home.deallocated);
            let is_there = home.is_some_and(|home| home.region == *region && home.generation == generation);
            assert!(is_there, "{shard:?} is placed where it was decided");
        }
    }

    /// Applies a durable decision. Returns whether it is the latest about its shard.
    pub(in crate::machine::coordinator) fn apply(&mut self, shard: &ShardId, entry: HomeEntry) -> bool {
        if self.pending.get(shard) == Some(&entry.stored) {
            self.pending.remove(shard);
        }
        self.homes.insert(shard.clone(), entry);
        !self.pending.contains_key(shard)
    }
}
