//! Requests for homes, the registration gate, and the calls of the strategy.
//!
//! Source: sharding §2.7, §2.8, §2.16.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::Generation;

use super::handoffs::HandOffs;
use super::ledger::Ledger;
use super::orders::Orders;
use super::protocol::{CoordinatorEvent, Effect, StateEvent, StopReason, StoredHome};
use super::{Coordinator, CoordinatorState};
use crate::allocation::{RegionView, View};
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Phase;
use crate::machine::message::CoordinatorMessage;

impl Coordinator {
    pub(super) fn on_get_shard_home(&mut self, region: &RegionId, shards: Vec<ShardId>, out: &mut Vec<Effect>) {
        let (sendable, open): (Vec<_>, Vec<_>) = shards.into_iter().partition(|shard| self.may_send_home(shard));
        self.send_homes(region, &sendable, CoordinatorMessage::ShardHomes, out);
        for shard in open {
            self.decisions.requests.ask(region, shard);
        }
    }

    /// Whether a shard's home may be sent now: the home is durable, lives on a member, and is not moving.
    pub(super) fn may_send_home(&self, shard: &ShardId) -> bool {
        let Some(entry) = self.ledger.durable(shard) else { return false };
        !entry.stored.deallocated
            && (self.state == CoordinatorState::Active || entry.confirmed)
            && !self.ledger.is_pending(shard)
            && !self.handoffs.contains(shard)
            && self.cluster_view.members.contains(&entry.stored.region.node)
    }

    /// Answers the regions that wait for homes that may be sent now.
    pub(super) fn answer_requests(&mut self, out: &mut Vec<Effect>) {
        let sendable: Vec<_> =
            self.decisions.requests.awaited().filter(|shard| self.may_send_home(shard)).cloned().collect();
        let mut answers: BTreeMap<RegionId, Vec<ShardId>> = BTreeMap::new();
        for shard in sendable {
            for region in self.decisions.requests.answer(&shard) {
                answers.entry(region).or_default().push(shard.clone());
            }
        }
        for (region, shards) in answers {
            self.send_homes(&region, &shards, CoordinatorMessage::ShardHomes, out);
        }
    }

    pub(super) fn on_shard_started(&mut self, region: &RegionId, shards: Vec<(ShardId, Generation)>) {
        for (shard, generation) in shards {
            let home = self.ledger.durable(&shard).map(|entry| &entry.stored);
            if home.is_some_and(|home| home.region == *region && home.generation == generation) {
                self.orders.unstarted.remove(&shard);
            }
        }
    }

    /// Whether no entity of the shard lives anywhere, by the decisions so far: the shard may be given a home.
    pub(super) fn is_unallocated(&self, shard: &ShardId) -> bool {
        is_unallocated(&self.ledger, &self.handoffs, &self.orders, shard)
    }

    /// Asks the strategy for homes of all shards that need one, in one call.
    pub(super) fn call_strategy(&mut self, out: &mut Vec<Effect>) {
        if self.state != CoordinatorState::Active || !self.decisions.requests.is_call_due() {
            return;
        }
        if !self.decisions.is_initialized() && self.hosting_regions().count() < self.config.settings.min_regions {
            return;
        }
        let view = self.allocation_view();
        if view.regions.is_empty() {
            return;
        }
        let Self { decisions, ledger, handoffs, orders, .. } = self;
        decisions.call(view, |shard| is_unallocated(ledger, handoffs, orders, shard), out);
    }

    pub(super) fn on_allocated(&mut self, call: u64, homes: Vec<(ShardId, Option<RegionId>)>, out: &mut Vec<Effect>) {
        let Some(mut asked) = self.decisions.requests.end_call(call) else { return };
        let candidates: BTreeSet<_> = self.allocation_view().regions.into_iter().map(|view| view.region).collect();
        for (shard, region) in homes {
            if !asked.remove(&shard) || !self.is_unallocated(&shard) {
                continue;
            }
            let Some(region) = region.filter(|region| candidates.contains(region)) else {
                if self.decisions.requests.fail(&shard) {
                    out.push(Effect::Event(CoordinatorEvent::AllocationFailed { shard }));
                }
                continue;
            };
            let Some(generation) = self.decisions.next_generation(self.epoch_state.epoch) else {
                return self.stop(StopReason::GenerationsUsedUp, out);
            };
            if self.decisions.initialize() && self.journal_state.is_kept() {
                self.ledger.record(StateEvent::Initialized);
            }
            self.decisions.requests.decided(&shard);
            let ended = self.ledger.decided(&shard);
            // Without a record the shard never had a home, or the record was lost: then nothing that left under an
            // earlier epoch may be taken, since later messages may have been handled.
            let unknown = || Generation::new(self.epoch_state.epoch, 0).ok();
            let previous = ended.map(|home| home.generation).or_else(unknown);
            let leftovers_from = ended.and_then(|home| home.leftovers_from.clone());
            let leftovers_from = leftovers_from.filter(|from| !self.registry.is_gone(from));
            self.decide(&shard, StoredHome { region, generation, deallocated: false, previous, leftovers_from });
        }
        // Ask again for shards that the answer did not name.
        asked.iter().for_each(|shard| self.decisions.requests.mark_fresh(shard));
    }

    /// The regions that can be given a shard: on members that stay and are reachable, if there is one.
    fn allocation_view(&self) -> View {
        let view = self.view();
        let regions = view.candidates().into_iter().cloned().collect();
        View { regions, ..view }
    }

    /// Every region that can host, with its shards.
    fn view(&self) -> View {
        let hosting = self.registry.regions().filter(|(_, e)| !e.proxy && !e.refused && !e.shutting_down);
        let regions = hosting.filter_map(|(region, _)| {
            let member = self.cluster_view.members.members.get(&region.node)?;
            Some(RegionView {
                region: region.clone(),
                shards: self.ledger.shards_of(region),
                phase: member.phase,
                reachable: member.reachable,
                app_version: member.app_version.clone(),
            })
        });
        let mut members = self.cluster_view.members.members.values();
        let unsettled = members.any(|member| !member.reachable || member.phase == Phase::Joining);
        View { regions: regions.collect(), unsettled }
    }

    pub(super) fn call_rebalance(&mut self, out: &mut Vec<Effect>) {
        let view = self.view();
        if self.cluster_view.members.is_preparing()
            || self.decisions.is_rebalancing()
            || self.terminating
            || view.regions.is_empty()
        {
            return;
        }
        self.decisions.set_rebalancing(true);
        let in_progress = self.handoffs.shards().cloned().collect();
        out.push(Effect::CallRebalance { view, in_progress });
    }
}

/// Whether no entity of the shard lives anywhere, by the decisions so far.
fn is_unallocated(ledger: &Ledger, handoffs: &HandOffs, orders: &Orders, shard: &ShardId) -> bool {
    ledger.decided(shard).is_none_or(|home| home.deallocated)
        && !handoffs.contains(shard)
        && !orders.drops.waits_for(shard)
}
