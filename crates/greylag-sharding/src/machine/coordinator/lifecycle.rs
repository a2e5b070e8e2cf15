//! From the first read to the end: the epoch, commits, members that go, deadlines.
//!
//! Source: sharding §2.12 to §2.15.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use super::ledger::HomeEntry;
use super::protocol::{CoordinatorEvent, Effect, Meta, StateEvent, StopReason, StoredHome, StoredState};
use super::{Coordinator, CoordinatorState, Sabotage};
use crate::fingerprint::Fingerprint;
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::{Members, Phase};
use crate::machine::message::{ClaimState, CoordinatorMessage, Epoch, Home, Standing};

impl Coordinator {
    pub(super) fn on_read(
        &mut self,
        now: Instant,
        state: StoredState,
        wall_secs: u64,
        seen_epoch: Epoch,
        out: &mut Vec<Effect>,
    ) {
        self.seen_epoch = self.seen_epoch.max(seen_epoch);
        match self.state {
            CoordinatorState::Reading => self.choose_epoch(state, wall_secs),
            CoordinatorState::ReadingAgain => self.take_over(now, state, out),
            _ => {}
        }
    }

    /// Chooses an epoch above all that any node is known to have seen; the wall clock is only a floor, for state
    /// that was lost while journals kept larger generations.
    fn choose_epoch(&mut self, state: StoredState, wall_secs: u64) {
        let stored = state.meta.as_ref().map_or(0, |meta| meta.epoch);
        let generations = state.homes.values().map(|home| home.generation.epoch()).max().unwrap_or(0);
        let known = stored.max(generations).max(self.seen_epoch);
        self.epoch = (known + 1).max(wall_secs).min(Generation::MAX_EPOCH);
        if let Some(meta) = &state.meta {
            // Codecs change over node by node, so the names that count are those of this node and not the first one's.
            let codec = self.config.fingerprint.codec.clone();
            self.fingerprint = Fingerprint { codec, ..meta.fingerprint.clone() };
        }
        self.state = CoordinatorState::CommittingEpoch;
        let recorded = state.meta.as_ref().map(|meta| &meta.fingerprint);
        if self.recorded.is_kept() && recorded != Some(&self.fingerprint) {
            self.ledger.record(StateEvent::FingerprintRecorded(self.fingerprint.clone()));
        }
        self.ledger.record(StateEvent::EpochStarted(self.meta()));
        self.recorded.keep(state);
    }

    fn meta(&self) -> Meta {
        Meta { epoch: self.epoch, coordinator: self.config.id.clone(), fingerprint: self.fingerprint.clone() }
    }

    /// The epoch is durable. Either this read shows what a rival wrote, or the rival's shows ours.
    fn take_over(&mut self, now: Instant, state: StoredState, out: &mut Vec<Effect>) {
        let rival = state.meta.as_ref().filter(|meta| **meta != self.meta()).map(|meta| meta.epoch);
        let foreign = state.homes.values().map(|home| home.generation.epoch()).filter(|e| *e >= self.epoch).max();
        let seen = Some(self.seen_epoch).filter(|seen| *seen >= self.epoch);
        if let Some(by) = rival.max(foreign).max(seen) {
            return self.stop(StopReason::Fenced { by }, out);
        }
        self.take_stock(now, state, out);
    }

    /// The epoch is durable. A journal has compared it with what was read before, so no rival can have written since;
    /// replicated data has to be read again.
    fn on_epoch_durable(&mut self, now: Instant, out: &mut Vec<Effect>) {
        match self.recorded.take() {
            Some(_) if self.seen_epoch >= self.epoch => self.stop(StopReason::Fenced { by: self.seen_epoch }, out),
            Some(state) => self.take_stock(now, state, out),
            None => {
                self.state = CoordinatorState::ReadingAgain;
                out.push(Effect::Read);
            }
        }
    }

    fn take_stock(&mut self, now: Instant, state: StoredState, out: &mut Vec<Effect>) {
        self.ledger.load(state.homes);
        if self.remembered.is_in_store() {
            out.push(Effect::ReadRemembered);
        }
        self.recorded.load(state.regions, now + self.config.settings.journal.recovery_timeout);
        self.initialized |= state.initialized;
        self.state = CoordinatorState::Reconciling;
        self.inquire_at = Some(now);
        self.note_missing(now);
        self.on_tick(now, out);
    }

    /// What follows from everything that was decided or learnt, in the order of need.
    pub(super) fn pump(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.end_what_is_gone(now);
        self.go_on_without_gone(now, out);
        if self.state == CoordinatorState::Reconciling && self.inventory_is_complete(now) && self.all_agree() {
            self.become_active(now, out);
        }
        // Told to hand over, it stays as long as the region beside it hands off: only an active coordinator can give the
        // shards of that region a home as they stop, one by one.
        let local_goes =
            self.registry.regions().any(|(region, e)| e.shutting_down && region.node == self.config.id.node);
        if self.terminating && !local_goes {
            return self.stop(StopReason::HandedOver, out);
        }
        self.settle_stops(now, out);
        self.call_strategy(out);
        let batch = self.ledger.next_batch(self.config.max_batch);
        out.extend(batch.map(|(batch, events)| Effect::Commit { batch, events }));
        self.tell_tables(out);
    }

    pub(super) fn on_committed(&mut self, now: Instant, batch: u64, out: &mut Vec<Effect>) {
        let Some(events) = self.ledger.committed(batch) else { return };
        if events.iter().any(|event| matches!(event, StateEvent::EpochStarted(_))) {
            match self.state {
                CoordinatorState::CommittingEpoch => return self.on_epoch_durable(now, out),
                _ => self.recorded.refreshed(now),
            }
        }
        let mut told = Announcements::default();
        for event in events {
            if let StateEvent::Home { shard, home } = event {
                self.apply(now, shard, home, &mut told, out);
            }
        }
        self.announce(told, out);
    }

    pub(super) fn on_commit_failed(&mut self, batch: u64, retryable: bool, out: &mut Vec<Effect>) {
        match self.ledger.under_way(batch) {
            Some(events) if retryable => out.push(Effect::Commit { batch, events: events.clone() }),
            Some(_) => self.stop(StopReason::CommitFailed, out),
            None => {}
        }
    }

    /// Carries out a decision that is durable: regions hear of none before that.
    fn apply(
        &mut self,
        now: Instant,
        shard: ShardId,
        home: StoredHome,
        told: &mut Announcements,
        out: &mut Vec<Effect>,
    ) {
        let adopted = self.adopting.get(&shard).filter(|(generation, _)| *generation == home.generation).copied();
        let flush = self.handoffs.flush(&shard).filter(|_| !home.deallocated);
        let participants = flush.map(|flush| flush.participants.clone()).unwrap_or_default();
        let flushed = flush.map(|flush| (flush.attempt, flush.flush_from.clone()));
        let entry = HomeEntry { stored: home.clone(), confirmed: adopted.is_some(), flushed };
        let is_latest = self.ledger.apply(&shard, entry);
        self.stops.look_again(&shard);
        if home.deallocated || !is_latest {
            // A tombstone, or overtaken by the next decision: there is nothing to announce.
            return;
        }
        self.handoffs.end_flush(&shard);
        let owner = home.region.clone();
        if let Some((generation, state)) = adopted {
            self.adopting.remove(&shard);
            if state == ClaimState::Stopping {
                self.await_stopped(now, &shard, &owner, generation);
                return;
            }
        } else if !self.registry.contains(&owner) {
            self.deallocate(&shard, None);
            return;
        } else {
            self.unstarted.set(&shard, now + self.config.settings.shard_start_timeout);
            told.hosts.entry(owner.clone()).or_default().push(shard.clone());
            let (region, generation) = (owner.clone(), home.generation);
            out.push(Effect::Event(CoordinatorEvent::ShardAllocated { shard: shard.clone(), region, generation }));
        }
        let waiting = self.requests.answer(&shard);
        for region in participants.into_iter().chain(waiting).collect::<BTreeSet<_>>() {
            if region != owner && self.registry.contains(&region) {
                told.homes.entry(region).or_default().push(shard.clone());
            }
        }
    }

    pub(super) fn announce(&self, told: Announcements, out: &mut Vec<Effect>) {
        for (region, shards) in told.hosts {
            self.tell_homes(&region, &shards, CoordinatorMessage::HostShard, out);
        }
        for (region, shards) in told.homes {
            self.tell_homes(&region, &shards, CoordinatorMessage::ShardHomes, out);
        }
    }

    /// Tells a region of homes, in frames of bounded size.
    pub(super) fn tell_homes(
        &self,
        region: &RegionId,
        shards: &[ShardId],
        message: fn(Vec<Home>) -> CoordinatorMessage,
        out: &mut Vec<Effect>,
    ) {
        for chunk in shards.chunks(super::HOMES_PER_FRAME) {
            let home = |shard: &ShardId| self.ledger.durable(shard).map(|entry| self.home_for(region, shard, entry));
            let homes: Vec<_> = chunk.iter().filter_map(home).collect();
            if !homes.is_empty() {
                self.send(region, message(homes), out);
            }
        }
    }

    pub(super) fn on_membership(&mut self, now: Instant, members: Arc<Members>, out: &mut Vec<Effect>) {
        self.members = members;
        self.note_missing(now);
        if self.members.is_preparing() {
            self.abandon_unacked(out);
        }
    }

    /// Nodes that own something and are no members: their time runs.
    fn note_missing(&mut self, now: Instant) {
        let regions = self.registry.regions().map(|(region, _)| region);
        let named = self.ledger.owners().chain(self.recorded.regions()).chain(regions).map(|region| &region.node);
        let missing: BTreeSet<_> = named.filter(|node| !self.members.contains(node)).cloned().collect();
        let members = &self.members;
        self.registry.note_missing(missing, |node| members.removed.get(node).map_or(now, |removal| removal.at));
    }

    /// Whether nothing of a process that is no member can be alive: it left in order, or its margin is over.
    fn is_over(&self, node: &UniqueAddress, since: Instant, now: Instant) -> bool {
        let clean = self.members.removed.get(node).is_some_and(|removal| removal.clean);
        let unwaited = self.sabotage == Some(Sabotage::Margin);
        clean || unwaited || since + self.config.down_removal_margin <= now
    }

    fn end_what_is_gone(&mut self, now: Instant) {
        let over = self.registry.missing().filter(|(node, since)| self.is_over(node, *since, now));
        for node in over.map(|(node, _)| node.clone()).collect::<Vec<_>>() {
            self.registry.end_missing(&node);
            self.terminate_node(&node);
        }
    }

    pub(super) fn margin_deadline(&self) -> Option<Instant> {
        let missing = self.registry.missing().map(|(_, since)| since + self.config.down_removal_margin).min();
        [missing, self.margin_at].into_iter().flatten().min()
    }

    /// Everything of a process is gone: all regions that it is known to have had.
    pub(super) fn terminate_node(&mut self, node: &UniqueAddress) {
        let registered = self.registry.regions().map(|(region, _)| region);
        let named = self.ledger.named().chain(self.recorded.regions()).chain(registered);
        let regions: BTreeSet<_> = named.filter(|region| region.node == *node).cloned().collect();
        for region in regions {
            self.terminate(&region);
        }
    }

    /// A region is proven to be gone, and with it everything it hosted.
    pub(super) fn terminate(&mut self, region: &RegionId) {
        self.registry.end(region);
        let mut owned = self.ledger.shards_of(region).to_vec();
        owned.sort();
        for shard in owned {
            if self.handoffs.remove(&shard).is_some_and(|handoff| handoff.is_move()) {
                self.requests.make_eager(&shard);
            }
            self.lost_home(&shard);
            self.deallocate(&shard, None);
        }
        if self.recorded.remove(region) {
            self.ledger.record(StateEvent::RegionTerminated(region.clone()));
        }
        for shard in self.drops.forget(region) {
            self.requests.look_again(&shard);
            self.stops.look_again(&shard);
        }
        self.handoffs.forget(region);
        self.requests.forget(region);
        self.stops.forget(region);
        self.tables.forget(region);
    }

    fn become_active(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.state = CoordinatorState::Active;
        self.inquire_at = None;
        self.recorded.refreshed(now);
        self.initialized |= self.ledger.all_durable().next().is_some();
        self.rebalance_at = Some(now + self.config.settings.rebalance_interval);
        let shards = self.homes().count();
        out.push(Effect::Event(CoordinatorEvent::Active { epoch: self.epoch, shards }));
        for region in self.hosting_regions().cloned().collect::<Vec<_>>() {
            self.host_absent(now, &region, out);
        }
        self.handoffs.resend_now(now);
        // A route that is older than the inventory would cost its first message a gap (sharding §2.6).
        for region in self.registry.regions().map(|(region, _)| region.clone()).collect::<Vec<_>>() {
            self.tell_table(&region, out);
        }
        self.answer_requests(out);
        self.want_remembered(out);
        self.on_tick(now, out);
    }

    pub(super) fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let retry = self.config.settings.retry_interval;
        if self.recorded.tick(now) {
            self.ledger.record(StateEvent::EpochStarted(self.meta()));
        }
        if self.state == CoordinatorState::Reconciling && self.inquire_at.is_some_and(|at| at <= now) {
            self.inquire_at = Some(now + retry);
            for node in self.silent_nodes() {
                self.send_node(&node, CoordinatorMessage::RegionInquiry, out);
            }
        }
        self.repeat_drops(now, out);
        if self.state != CoordinatorState::Active {
            return;
        }
        let mut told = Announcements::default();
        let again = now + self.config.settings.shard_start_timeout;
        for shard in self.unstarted.due(now) {
            match self.ledger.durable(&shard) {
                Some(entry) if !entry.stored.deallocated => {
                    self.unstarted.set(&shard, again);
                    told.hosts.entry(entry.stored.region.clone()).or_default().push(shard);
                }
                _ => self.unstarted.remove(&shard),
            }
        }
        self.announce(told, out);
        self.stops.end_due(now);
        self.tick_handoffs(now, out);
        if self.rebalance_at.is_some_and(|at| at <= now) {
            self.rebalance_at = Some(now + self.config.settings.rebalance_interval);
            self.want_remembered(out);
            self.call_rebalance(out);
        }
    }

    fn repeat_drops(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let retry = self.config.settings.retry_interval;
        for (shard, region, generation) in self.drops.repeat(now, now + retry) {
            self.send(&region, CoordinatorMessage::DropShard { shard, generation }, out);
        }
    }

    /// Members that may host, or may still be hosting, and have not told this incarnation what.
    pub(super) fn silent_nodes(&self) -> Vec<UniqueAddress> {
        if self.recorded.is_kept() {
            return self.unregistered_nodes();
        }
        let may_host = self
            .members
            .members
            .iter()
            .filter(|(_, member)| member.phase != Phase::Joining && member.has_role(&self.config.role));
        may_host.map(|(node, _)| node).filter(|node| !self.has_spoken(node)).cloned().collect()
    }

    /// In mode persistence: members that can be reached and host by what is recorded, and have not registered again.
    fn unregistered_nodes(&self) -> Vec<UniqueAddress> {
        let can_register = |node: &UniqueAddress| {
            let member = self.members.members.get(node);
            member.is_some_and(|member| member.reachable && !matches!(member.phase, Phase::Joining | Phase::Down))
        };
        let silent =
            self.recorded.regions().filter(|region| !self.registry.contains(region)).map(|region| &region.node);
        silent.filter(|node| can_register(node)).cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn has_spoken(&self, node: &UniqueAddress) -> bool {
        if self.registry.is_without_region(node) {
            return true;
        }
        let dropped = |region: &RegionId| !self.drops.waits_for_region(region);
        self.registry.regions().any(|(region, entry)| {
            region.node == *node && !entry.proxy && entry.current && (!entry.refused || dropped(region))
        })
    }

    /// Whether all members mean the same by the type: a side that another role's coordinator does not know of could give
    /// an entity a second home.
    fn all_agree(&self) -> bool {
        self.sabotage == Some(Sabotage::Agreement) || self.standing == Standing::Agreed
    }

    /// Whether every node has spoken or is gone: then a shard that is not known does not run anywhere. A journal knows all
    /// that do: there it is enough that those have spoken which it names, and their silence ends with its time.
    fn inventory_is_complete(&mut self, now: Instant) -> bool {
        if self.sabotage == Some(Sabotage::Inventory) {
            return true;
        }
        if self.recorded.is_kept() {
            return self.recorded.is_overdue() || self.silent_nodes().is_empty();
        }
        let replaced = |node: &UniqueAddress| {
            let replaces = |region: &RegionId| region.node.address() == node.address() && region.node != *node;
            self.registry.regions().any(|(region, _)| replaces(region))
        };
        let running = self.members.removed.iter().filter(|(node, removal)| {
            !self.members.contains(node) && !self.is_over(node, removal.at, now) && !replaced(node)
        });
        let margin_at = running.map(|(_, removal)| removal.at + self.config.down_removal_margin).min();
        self.margin_at = margin_at;
        self.silent_nodes().is_empty() && margin_at.is_none()
    }
}

/// What is to be told after a commit, gathered per region.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    pub(super) hosts: BTreeMap<RegionId, Vec<ShardId>>,
    pub(super) homes: BTreeMap<RegionId, Vec<ShardId>>,
}
