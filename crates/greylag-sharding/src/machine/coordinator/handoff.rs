//! The coordinator's part in handoffs: which shards move, and what follows when a shard has stopped, or stays.
//!
//! Source: sharding §2.9, §2.10, §2.11.

use std::collections::BTreeSet;
use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use super::handoffs::{Ack, HandOffEffect, Move};
use super::protocol::{CoordinatorEvent, Effect};
use super::registry::RegionEntry;
use super::{Coordinator, CoordinatorState, Sabotage};
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Phase;
use crate::machine::message::CoordinatorMessage;

impl Coordinator {
    pub(super) fn on_rebalance(&mut self, now: Instant, shards: BTreeSet<ShardId>, out: &mut Vec<Effect>) {
        self.decisions.set_rebalancing(false);
        if self.state != CoordinatorState::Active || self.cluster_view.members.is_preparing() {
            return;
        }
        let started: BTreeSet<_> = shards.into_iter().filter(|shard| self.begin_handoff(now, shard, out)).collect();
        if !started.is_empty() {
            out.push(Effect::Event(CoordinatorEvent::RebalanceStarted(started)));
        }
    }

    /// Begins a handoff of the shard, if it has a durable home and is not moving yet. Returns whether it began.
    pub(super) fn begin_handoff(&mut self, now: Instant, shard: &ShardId, out: &mut Vec<Effect>) -> bool {
        if self.ledger.is_pending(shard) || self.handoffs.contains(shard) {
            return false;
        }
        let durable = self.ledger.durable(shard).map(|entry| &entry.stored);
        let Some(home) = durable.filter(|home| !home.deallocated) else {
            return false;
        };
        let (owner, generation) = (home.region.clone(), home.generation);
        let regions = || self.registry.regions().filter(|(_, entry)| !entry.refused);
        let participants = regions().map(|(region, _)| region.clone()).collect();
        let hosting = regions().filter(|(_, entry)| !entry.proxy).map(|(region, _)| region.clone()).collect();
        self.orders.unstarted.remove(shard);
        let to_move = Move { owner, generation, participants, hosting };
        let mut effects = Vec::new();
        self.handoffs.begin(now, self.epoch_state.epoch, shard, to_move, &mut effects);
        self.carry_out(effects, out);
        true
    }

    /// Waits for an owner that stops the shard already, by the order of a predecessor of this incarnation.
    pub(super) fn await_stopped(&mut self, now: Instant, shard: &ShardId, owner: &RegionId, generation: Generation) {
        if !self.handoffs.contains(shard) {
            self.handoffs.await_stopped(now, self.epoch_state.epoch, shard, owner, generation);
        }
    }

    pub(super) fn on_ack(&mut self, now: Instant, region: &RegionId, shard: &ShardId, ack: Ack, out: &mut Vec<Effect>) {
        let mut effects = Vec::new();
        self.handoffs.on_ack(now, region, shard, ack, &mut effects);
        self.carry_out(effects, out);
    }

    /// Goes on with handoffs whose last awaited region is gone.
    pub(super) fn go_on_without_gone(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let mut effects = Vec::new();
        self.handoffs.go_on_without_gone(now, &mut effects);
        self.carry_out(effects, out);
    }

    /// Handles each shard on its own: the end of one handoff may answer requests for other shards.
    pub(super) fn tick_handoffs(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for shard in self.handoffs.due(now) {
            let mut effects = Vec::new();
            self.handoffs.tick(now, &shard, &mut effects);
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
        if let Some(entry) = self.registry.get_mut(owner) {
            entry.shutting_down = false;
        }
        for region in participants.iter().filter(|region| *region != owner) {
            self.send_homes(region, std::slice::from_ref(shard), CoordinatorMessage::ShardHomes, out);
        }
        self.answer_requests(out);
    }

    /// Gives up the handoffs that wait for acks: in a cluster that prepares to end no region acks.
    pub(super) fn abandon_unacked(&mut self, out: &mut Vec<Effect>) {
        for shard in self.handoffs.unacked() {
            let mut effects = Vec::new();
            self.handoffs.give_up(&shard, &mut effects);
            self.carry_out(effects, out);
        }
    }

    pub(super) fn on_shard_stopped(
        &mut self,
        region: &RegionId,
        shard: &ShardId,
        generation: Generation,
        leftovers: bool,
    ) {
        if self.orders.drops.stopped(shard, region, generation) {
            self.decisions.requests.mark_fresh(shard);
            self.stops.mark_fresh(shard);
        }
        let unchecked = self.sabotage == Some(Sabotage::GenerationCheck);
        let ended = self.ledger.decided(shard).is_some_and(|home| {
            let same = home.region == *region && home.generation == generation;
            !home.deallocated && (same || unchecked)
        });
        if !ended {
            return;
        }
        if self.handoffs.stopped(shard) == Some(true) {
            // Allocate at once, even with no traffic: an idle cluster would lose its shards otherwise.
            self.decisions.requests.make_eager(shard);
        }
        self.deallocate(shard, leftovers.then(|| region.clone()));
    }

    pub(super) fn on_graceful(&mut self, now: Instant, region: &RegionId, out: &mut Vec<Effect>) {
        if self.state != CoordinatorState::Active {
            return;
        }
        let takes = |node: &UniqueAddress| *node != region.node && self.can_host(node);
        let others = !self.cluster_view.members.is_preparing() && self.cluster_view.members.members.keys().any(takes);
        if let Some(entry) = self.registry.get_mut(region) {
            entry.shutting_down = true;
        }
        if !others {
            return self.send(region, CoordinatorMessage::StopHere, out);
        }
        let mut owned: Vec<_> = self.ledger.shards_of(region).to_vec();
        owned.sort();
        for shard in owned {
            self.begin_handoff(now, &shard, out);
        }
    }

    /// Whether a shard could be given to this node: it stays, and a hosting region is registered or may still register.
    fn can_host(&self, node: &UniqueAddress) -> bool {
        let stays = self.cluster_view.members.members.get(node).is_some_and(|member| {
            matches!(member.phase, Phase::Up | Phase::Preparing) && member.has_role(&self.config.role)
        });
        let goes = |(region, entry): (&RegionId, &RegionEntry)| {
            region.node == *node && !entry.proxy && (entry.shutting_down || entry.refused)
        };
        stays && !self.registry.is_without_region(node) && !self.registry.regions().any(goes)
    }
}
