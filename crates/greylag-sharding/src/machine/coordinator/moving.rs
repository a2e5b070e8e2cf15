//! Homes that are asked for, decided and moved: requests, the registration gate, the calls of the strategy, handoffs, and
//! requests to stop shards.
//!
//! Source: sharding §2.7 to §2.11, §2.16.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use super::config::CoordinatorState;
use super::homes::{Ack, HandOffEffect, Key, Move};
use super::machine::Coordinator;
use super::protocol::{CoordinatorEvent, Effect, StateEvent, StopReason, StoredHome};
use crate::ids::{RegionId, ShardId};
use crate::machine::message::CoordinatorMessage;

impl Coordinator {
    pub(super) fn on_get_shard_home(&mut self, region: &RegionId, shards: Vec<ShardId>, out: &mut Vec<Effect>) {
        let (sendable, open): (Vec<_>, Vec<_>) = shards.into_iter().partition(|shard| self.may_send_home(shard));
        self.send_homes(region, &sendable, CoordinatorMessage::ShardHomes, out);
        for shard in open {
            self.homes.decisions.requests.ask(region, shard);
        }
    }

    /// Answers the regions that wait for homes that may be sent now.
    pub(super) fn answer_requests(&mut self, out: &mut Vec<Effect>) {
        let is_active = self.state == CoordinatorState::Active;
        for (region, shards) in self.homes.take_answers(is_active, &self.nodes.view.members) {
            self.send_homes(&region, &shards, CoordinatorMessage::ShardHomes, out);
        }
    }

    /// Asks the strategy for homes of all shards that need one, in one call.
    pub(super) fn call_strategy(&mut self, out: &mut Vec<Effect>) {
        if self.state != CoordinatorState::Active || !self.homes.decisions.requests.is_call_due() {
            return;
        }
        if !self.homes.decisions.is_initialized()
            && self.nodes.hosting_regions().count() < self.config.settings.min_regions
        {
            return;
        }
        let view = self.nodes.allocation_view(&self.homes.ledger);
        if view.regions.is_empty() {
            return;
        }
        self.homes.call_strategy(view, out);
    }

    pub(super) fn on_allocated(&mut self, call: u64, homes: Vec<(ShardId, Option<RegionId>)>, out: &mut Vec<Effect>) {
        let Some(mut asked) = self.homes.decisions.requests.end_call(call) else { return };
        let candidates: BTreeSet<_> =
            self.nodes.allocation_view(&self.homes.ledger).regions.into_iter().map(|view| view.region).collect();
        for (shard, region) in homes {
            if !asked.remove(&shard) || !self.homes.is_unallocated(&shard) {
                continue;
            }
            let Some(region) = region.filter(|region| candidates.contains(region)) else {
                if self.homes.decisions.requests.fail(&shard) {
                    out.push(Effect::Event(CoordinatorEvent::AllocationFailed { shard }));
                }
                continue;
            };
            let Some(generation) = self.homes.decisions.next_generation(self.epoch_state.epoch) else {
                return self.stop(StopReason::GenerationsUsedUp, out);
            };
            if self.homes.decisions.initialize() && self.nodes.journal_state.is_kept() {
                self.homes.ledger.record(StateEvent::Initialized);
            }
            self.homes.decisions.requests.decided(&shard);
            let ended = self.homes.ledger.decided(&shard);
            // Without a record the shard never had a home, or the record was lost: then nothing that left under an
            // earlier epoch may be taken, since later messages may have been handled.
            let unknown = || Generation::new(self.epoch_state.epoch, 0).ok();
            let previous = ended.map(|home| home.generation).or_else(unknown);
            let leftovers_from = ended.and_then(|home| home.leftovers_from.clone());
            let leftovers_from = leftovers_from.filter(|from| !self.nodes.registry.is_gone(from));
            self.homes.decide(&shard, StoredHome { region, generation, deallocated: false, previous, leftovers_from });
        }
        // Ask again for shards that the answer did not name.
        asked.iter().for_each(|shard| self.homes.decisions.requests.mark_fresh(shard));
    }

    pub(super) fn call_rebalance(&mut self, out: &mut Vec<Effect>) {
        let view = self.nodes.hosting_view(&self.homes.ledger);
        if self.nodes.view.members.is_preparing()
            || self.homes.decisions.is_rebalancing()
            || self.terminating
            || view.regions.is_empty()
        {
            return;
        }
        self.homes.decisions.set_rebalancing(true);
        let in_progress = self.homes.handoffs.shards().cloned().collect();
        out.push(Effect::CallRebalance { view, in_progress });
    }

    pub(super) fn on_rebalance(&mut self, now: Instant, shards: BTreeSet<ShardId>, out: &mut Vec<Effect>) {
        self.homes.decisions.set_rebalancing(false);
        if self.state != CoordinatorState::Active || self.nodes.view.members.is_preparing() {
            return;
        }
        let started: BTreeSet<_> = shards.into_iter().filter(|shard| self.begin_handoff(now, shard, out)).collect();
        if !started.is_empty() {
            out.push(Effect::Event(CoordinatorEvent::RebalanceStarted(started)));
        }
    }

    /// Begins a handoff of the shard, if it has a durable home and is not moving yet. Returns whether it began.
    pub(super) fn begin_handoff(&mut self, now: Instant, shard: &ShardId, out: &mut Vec<Effect>) -> bool {
        if self.homes.ledger.is_pending(shard) || self.homes.handoffs.contains(shard) {
            return false;
        }
        let durable = self.homes.ledger.durable(shard).map(|entry| &entry.stored);
        let Some(home) = durable.filter(|home| !home.deallocated) else {
            return false;
        };
        let (owner, generation) = (home.region.clone(), home.generation);
        let regions = || self.nodes.registry.regions().filter(|(_, entry)| !entry.refused);
        let participants = regions().map(|(region, _)| region.clone()).collect();
        let hosting = regions().filter(|(_, entry)| !entry.proxy).map(|(region, _)| region.clone()).collect();
        self.homes.orders.unstarted.remove(shard);
        let to_move = Move { owner, generation, participants, hosting };
        let mut effects = Vec::new();
        self.homes.handoffs.begin(now, self.epoch_state.epoch, shard, to_move, &mut effects);
        self.carry_out(effects, out);
        true
    }

    pub(super) fn on_ack(&mut self, now: Instant, region: &RegionId, shard: &ShardId, ack: Ack, out: &mut Vec<Effect>) {
        let mut effects = Vec::new();
        self.homes.handoffs.on_ack(now, region, shard, ack, &mut effects);
        self.carry_out(effects, out);
    }

    /// Goes on with handoffs whose last awaited region is gone.
    pub(super) fn go_on_without_gone(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let mut effects = Vec::new();
        self.homes.handoffs.go_on_without_gone(now, &mut effects);
        self.carry_out(effects, out);
    }

    /// Handles each shard on its own: the end of one handoff may answer requests for other shards.
    pub(super) fn tick_handoffs(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for shard in self.homes.handoffs.due(now) {
            let mut effects = Vec::new();
            self.homes.handoffs.tick(now, &shard, &mut effects);
            self.carry_out(effects, out);
        }
    }

    fn carry_out(&mut self, effects: Vec<HandOffEffect>, out: &mut Vec<Effect>) {
        for effect in effects {
            match effect {
                HandOffEffect::Say { to, message } => self.send(&to, message, out),
                HandOffEffect::Event(event) => out.push(Effect::Event(event)),
                HandOffEffect::Stays { shard, owner, participants } => {
                    self.on_stays(&shard, &owner, &participants, out);
                }
            }
        }
    }

    /// Tells the regions that took part in a handoff that the shard stays where it is.
    fn on_stays(
        &mut self,
        shard: &ShardId,
        owner: &RegionId,
        participants: &BTreeSet<RegionId>,
        out: &mut Vec<Effect>,
    ) {
        if let Some(entry) = self.nodes.registry.get_mut(owner) {
            entry.shutting_down = false;
        }
        for region in participants.iter().filter(|region| *region != owner) {
            self.send_homes(region, std::slice::from_ref(shard), CoordinatorMessage::ShardHomes, out);
        }
        self.answer_requests(out);
    }

    /// Gives up the handoffs that wait for acks: in a cluster that prepares to end no region acks.
    pub(super) fn abandon_unacked(&mut self, out: &mut Vec<Effect>) {
        for shard in self.homes.handoffs.unacked() {
            let mut effects = Vec::new();
            self.homes.handoffs.give_up(&shard, &mut effects);
            self.carry_out(effects, out);
        }
    }

    pub(super) fn on_graceful(&mut self, now: Instant, region: &RegionId, out: &mut Vec<Effect>) {
        if self.state != CoordinatorState::Active {
            return;
        }
        let takes = |node: &UniqueAddress| *node != region.node && self.nodes.can_host(node);
        let others = !self.nodes.view.members.is_preparing() && self.nodes.view.members.members.keys().any(takes);
        if let Some(entry) = self.nodes.registry.get_mut(region) {
            entry.shutting_down = true;
        }
        if !others {
            return self.send(region, CoordinatorMessage::StopHere, out);
        }
        let mut owned: Vec<_> = self.homes.ledger.shards_of(region).to_vec();
        owned.sort();
        for shard in owned {
            self.begin_handoff(now, &shard, out);
        }
    }

    pub(super) fn on_stop_shards(
        &mut self,
        now: Instant,
        region: &RegionId,
        request: u64,
        shards: Vec<ShardId>,
        out: &mut Vec<Effect>,
    ) {
        // Keep nothing for later: the region repeats the request until it is answered.
        let is_refused = self.nodes.registry.get(region).is_none_or(|entry| entry.refused);
        if self.state != CoordinatorState::Active || is_refused {
            return;
        }
        if self.epoch_state.fingerprint.remember_entities {
            return self.send(region, CoordinatorMessage::StopShardsRefused { request }, out);
        }
        let end = now + self.config.settings.handoff_timeout;
        let shards = self.homes.stops.take(&(region.clone(), request), shards, end);
        if !shards.is_empty() {
            self.send(region, CoordinatorMessage::ShardsStopped { request, shards }, out);
        }
    }

    /// Begins the requested handoffs, and tells regions which shards have stopped.
    pub(super) fn settle_stops(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let mut stopped: BTreeMap<Key, Vec<ShardId>> = BTreeMap::new();
        for shard in self.homes.stops.take_fresh() {
            if self.homes.is_unallocated(&shard) {
                for key in self.homes.stops.stopped(&shard) {
                    stopped.entry(key).or_default().push(shard.clone());
                }
                continue;
            }
            // A shard whose decision is not durable yet becomes fresh again once it is.
            self.begin_handoff(now, &shard, out);
            self.homes.handoffs.only_stop(&shard);
        }
        for ((region, request), shards) in stopped {
            self.send(&region, CoordinatorMessage::ShardsStopped { request, shards }, out);
        }
    }

    pub(super) fn on_get_current_regions(&self, region: &RegionId, request: u64, out: &mut Vec<Effect>) {
        if self.state == CoordinatorState::Active {
            let regions = self.nodes.hosting_regions().cloned().collect();
            self.send(region, CoordinatorMessage::CurrentRegions { request, regions }, out);
        }
    }
}
