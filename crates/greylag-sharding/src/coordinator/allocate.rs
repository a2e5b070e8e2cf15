//! Requests for homes, the gate, and the questions to the strategy.
//!
//! Source: sharding §2.7, §2.8, §2.16.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::Generation;

use super::protocol::{CoordinatorEvent, Effect, StopReason, StoredHome};
use super::{Coordinator, CoordinatorState};
use crate::allocation::{RegionView, View};
use crate::ids::{RegionId, ShardId};
use crate::membership::Phase;
use crate::message::CoordinatorMessage;

/// Answers of the strategy that may be unusable before a request is dropped.
const STRATEGY_TRIES: u32 = 3;

impl Coordinator {
    pub(super) fn on_get_shard_home(&mut self, region: &RegionId, shards: Vec<ShardId>, out: &mut Vec<Effect>) {
        let (told, open): (Vec<_>, Vec<_>) = shards.into_iter().partition(|shard| self.is_told(shard));
        self.tell_homes(region, &told, CoordinatorMessage::ShardHomes, out);
        for shard in open {
            self.requested.entry(shard).or_default().insert(region.clone());
        }
    }

    /// Whether a shard's home may be told now: it is durable, lives on a member, and is not moving.
    pub(super) fn is_told(&self, shard: &ShardId) -> bool {
        let Some(entry) = self.homes.get(shard) else { return false };
        !entry.stored.deallocated
            && (self.state == CoordinatorState::Active || entry.confirmed)
            && !self.pending.contains_key(shard)
            && !self.handoffs.contains_key(shard)
            && self.members.contains(&entry.stored.region.node)
    }

    /// Answers the regions that wait for homes that may be told now.
    pub(super) fn answer_requests(&mut self, out: &mut Vec<Effect>) {
        let told: Vec<_> = self.requested.keys().filter(|shard| self.is_told(shard)).cloned().collect();
        let mut answers: BTreeMap<RegionId, Vec<ShardId>> = BTreeMap::new();
        for shard in told {
            for region in self.requested.remove(&shard).unwrap_or_default() {
                answers.entry(region).or_default().push(shard.clone());
            }
        }
        for (region, shards) in answers {
            self.tell_homes(&region, &shards, CoordinatorMessage::ShardHomes, out);
        }
    }

    pub(super) fn on_shard_started(&mut self, region: &RegionId, shards: Vec<(ShardId, Generation)>) {
        for (shard, generation) in shards {
            let home = self.homes.get(&shard).map(|entry| &entry.stored);
            if home.is_some_and(|home| home.region == *region && home.generation == generation) {
                self.unstarted.remove(&shard);
            }
        }
    }

    /// Whether a shard has to be given a home now, and may be.
    fn is_wanted(&self, shard: &ShardId) -> bool {
        self.decided(shard).is_none_or(|home| home.deallocated)
            && !self.handoffs.contains_key(shard)
            && !self.drops.keys().any(|(dropped, _)| dropped == shard)
    }

    /// Asks the strategy for everything that is wanted, in one call.
    pub(super) fn call_strategy(&mut self, out: &mut Vec<Effect>) {
        if self.state != CoordinatorState::Active || self.asked.is_some() {
            return;
        }
        if self.requested.is_empty() && self.eager.is_empty() {
            return;
        }
        if !self.initialized && self.hosting_regions().count() < self.config.settings.min_regions {
            return;
        }
        let wanted = self.requested.keys().chain(&self.eager).filter(|shard| self.is_wanted(shard));
        let wanted: BTreeSet<_> = wanted.cloned().collect();
        let view = self.allocation_view();
        if wanted.is_empty() || view.regions.is_empty() {
            return;
        }
        self.calls += 1;
        let asker = |shard: &ShardId| self.requested.get(shard).and_then(|waiting| waiting.first().cloned());
        let shards = wanted.iter().map(|shard| (shard.clone(), asker(shard))).collect();
        out.push(Effect::CallAllocate { call: self.calls, shards, view });
        self.asked = Some((self.calls, wanted));
    }

    pub(super) fn on_allocated(&mut self, call: u64, homes: Vec<(ShardId, Option<RegionId>)>, out: &mut Vec<Effect>) {
        let Some((_, asked)) = self.asked.take_if(|(number, _)| *number == call) else { return };
        let candidates = self.allocation_view();
        for (shard, region) in homes {
            if !asked.contains(&shard) || !self.is_wanted(&shard) {
                continue;
            }
            let usable = |region: &RegionId| candidates.regions.iter().any(|view| view.region == *region);
            let Some(region) = region.filter(usable) else {
                self.on_unusable(shard, out);
                continue;
            };
            self.strategy_failures.remove(&shard);
            let Ok(generation) = Generation::new(self.epoch, self.next_seq) else {
                return self.stop(StopReason::GenerationsUsedUp, out);
            };
            self.next_seq += 1;
            self.initialized = true;
            self.eager.remove(&shard);
            let ended = self.decided(&shard);
            // Without a record there was no home, or it was lost with the state: then nothing that left
            // under an earlier epoch may be taken, since later messages may have been handled.
            let unknown = || Generation::new(self.epoch, 0).ok();
            let previous = ended.map(|home| home.generation).or_else(unknown);
            let leftovers_from = ended.and_then(|home| home.leftovers_from.clone());
            let leftovers_from = leftovers_from.filter(|from| !self.gone.contains(from));
            self.decide(&shard, StoredHome { region, generation, deallocated: false, previous, leftovers_from });
        }
    }

    fn on_unusable(&mut self, shard: ShardId, out: &mut Vec<Effect>) {
        let failures = self.strategy_failures.entry(shard.clone()).or_default();
        *failures += 1;
        if *failures >= STRATEGY_TRIES {
            self.strategy_failures.remove(&shard);
            self.requested.remove(&shard);
            self.eager.remove(&shard);
            out.push(Effect::Event(CoordinatorEvent::AllocationFailed { shard }));
        }
    }

    /// Who can be given a shard: members that stay and are reachable, if there is one such.
    fn allocation_view(&self) -> View {
        let mut view = self.view();
        let leaves = |region: &RegionView| matches!(region.phase, Phase::Leaving | Phase::Exiting | Phase::Down);
        if view.regions.iter().any(|region| !leaves(region)) {
            view.regions.retain(|region| !leaves(region));
        }
        if view.regions.iter().any(|region| region.reachable) {
            view.regions.retain(|region| region.reachable);
        }
        view
    }

    /// Every region that can host, with the shards it has.
    fn view(&self) -> View {
        let mut shards: BTreeMap<&RegionId, Vec<(Generation, &ShardId)>> = BTreeMap::new();
        let undecided = self.homes.iter().filter(|(shard, _)| !self.pending.contains_key(*shard));
        let decided = undecided.map(|(shard, entry)| (shard, &entry.stored)).chain(&self.pending);
        for (shard, home) in decided.filter(|(_, home)| !home.deallocated) {
            shards.entry(&home.region).or_default().push((home.generation, shard));
        }
        let hosting = self.regions.iter().filter(|(_, e)| !e.proxy && !e.refused && !e.shutting_down);
        let regions = hosting.filter_map(|(region, _)| {
            let member = self.members.members.get(&region.node)?;
            let mut own = shards.remove(region).unwrap_or_default();
            own.sort();
            Some(RegionView {
                region: region.clone(),
                shards: own.into_iter().map(|(_, shard)| shard.clone()).collect(),
                phase: member.phase,
                reachable: member.reachable,
                app_version: member.app_version.clone(),
            })
        });
        let members = self.members.members.values();
        let unsettled = members.into_iter().any(|member| !member.reachable || member.phase == Phase::Joining);
        View { regions: regions.collect(), unsettled }
    }

    pub(super) fn call_rebalance(&mut self, out: &mut Vec<Effect>) {
        let preparing = self.members.members.values().any(|member| member.phase == Phase::Preparing);
        let view = self.view();
        if preparing || self.rebalancing || self.terminating || view.regions.is_empty() {
            return;
        }
        self.rebalancing = true;
        let in_progress = self.handoffs.keys().cloned().collect();
        out.push(Effect::CallRebalance { view, in_progress });
    }
}
