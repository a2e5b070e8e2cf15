//! The incarnation from the first read to the end: the epoch, commits, members that go, deadlines.
//!
//! Source: sharding §2.12 to §2.15.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use greylag_core::UniqueAddress;

use super::ledger::HomeEntry;
use super::protocol::{CoordinatorEvent, Effect, StateEvent, StopReason, StoredHome, StoredState};
use super::{Coordinator, CoordinatorState, Sabotage};
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Members;
use crate::machine::message::{ClaimState, CoordinatorMessage, Epoch, Home};

impl Coordinator {
    pub(super) fn on_read(
        &mut self,
        now: Instant,
        state: StoredState,
        wall_secs: u64,
        seen_epoch: Epoch,
        out: &mut Vec<Effect>,
    ) {
        self.epoch_state.see(seen_epoch);
        match self.state {
            CoordinatorState::Reading => self.choose_epoch(state, wall_secs),
            CoordinatorState::ReadingAgain => self.take_over(now, state, out),
            _ => {}
        }
    }

    fn choose_epoch(&mut self, state: StoredState, wall_secs: u64) {
        self.epoch_state.choose(&state, wall_secs);
        self.state = CoordinatorState::CommittingEpoch;
        let recorded = state.meta.as_ref().map(|meta| &meta.fingerprint);
        if self.journal_state.is_kept() && recorded != Some(&self.epoch_state.fingerprint) {
            self.ledger.record(StateEvent::FingerprintRecorded(self.epoch_state.fingerprint.clone()));
        }
        self.ledger.record(StateEvent::EpochStarted(self.epoch_state.meta(&self.config.id)));
        self.journal_state.keep(state);
    }

    /// Takes over unless a rival has chosen the same epoch or a larger one. The epoch is durable: either this read
    /// shows the rival's write, or the rival's read shows ours.
    fn take_over(&mut self, now: Instant, state: StoredState, out: &mut Vec<Effect>) {
        if let Some(by) = self.epoch_state.rival(&state, &self.config.id) {
            return self.stop(StopReason::Fenced { by }, out);
        }
        self.begin_inventory(now, state, out);
    }

    /// Goes on with the durable epoch. A journal's write is fenced by the state read before, so no rival can have
    /// written since; replicated data must be read again.
    fn on_epoch_durable(&mut self, now: Instant, out: &mut Vec<Effect>) {
        match self.journal_state.take() {
            Some(_) if self.epoch_state.seen_rival().is_some() => {
                self.stop(StopReason::Fenced { by: self.epoch_state.seen_epoch }, out);
            }
            Some(state) => self.begin_inventory(now, state, out),
            None => {
                self.state = CoordinatorState::ReadingAgain;
                out.push(Effect::Read);
            }
        }
    }

    fn begin_inventory(&mut self, now: Instant, state: StoredState, out: &mut Vec<Effect>) {
        self.ledger.load(state.homes);
        if self.decisions.remembered.is_in_store() {
            out.push(Effect::ReadRemembered);
        }
        self.journal_state.load(state.regions, now + self.config.settings.journal.recovery_timeout);
        if state.initialized {
            self.decisions.initialize();
        }
        self.state = CoordinatorState::Reconciling;
        self.registry.inquire_again_at(Some(now));
        self.note_missing(now);
        self.on_tick(now, out);
    }

    /// Carries out everything that follows from the decisions and inputs so far, in the order of dependency.
    pub(super) fn process_pending(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.terminate_removed(now);
        self.go_on_without_gone(now, out);
        if self.state == CoordinatorState::Reconciling && self.inventory_is_complete(now) && self.all_agree() {
            self.become_active(now, out);
        }
        // While the region of this node hands off, a coordinator that is handed over stays: only an active coordinator
        // can give the shards of that region a home as they stop, one by one.
        let local_goes =
            self.registry.regions().any(|(region, e)| e.shutting_down && region.node == self.config.id.node);
        if self.terminating && !local_goes {
            return self.stop(StopReason::HandedOver, out);
        }
        self.settle_stops(now, out);
        self.call_strategy(out);
        let batch = self.ledger.next_batch(self.config.max_batch);
        out.extend(batch.map(|(batch, events)| Effect::Commit { batch, events }));
        self.send_tables(out);
    }

    pub(super) fn on_committed(&mut self, now: Instant, batch: u64, out: &mut Vec<Effect>) {
        let Some(events) = self.ledger.committed(batch) else { return };
        if events.iter().any(|event| matches!(event, StateEvent::EpochStarted(_))) {
            match self.state {
                CoordinatorState::CommittingEpoch => return self.on_epoch_durable(now, out),
                _ => self.journal_state.refreshed(now),
            }
        }
        let mut announcements = Announcements::default();
        for event in events {
            if let StateEvent::Home { shard, home } = event {
                self.apply(now, shard, home, &mut announcements, out);
            }
        }
        self.announce(announcements, out);
    }

    pub(super) fn on_commit_failed(&mut self, batch: u64, retryable: bool, out: &mut Vec<Effect>) {
        match self.ledger.under_way(batch) {
            Some(events) if retryable => out.push(Effect::Commit { batch, events: events.clone() }),
            Some(_) => self.stop(StopReason::CommitFailed, out),
            None => {}
        }
    }

    /// Carries out a durable decision: regions hear of no decision before that.
    fn apply(
        &mut self,
        now: Instant,
        shard: ShardId,
        home: StoredHome,
        announcements: &mut Announcements,
        out: &mut Vec<Effect>,
    ) {
        let adopted = self.ledger.adopted(&shard, home.generation);
        let flush = self.handoffs.flush(&shard).filter(|_| !home.deallocated);
        let participants = flush.map(|flush| flush.participants.clone()).unwrap_or_default();
        let flushed = flush.map(|flush| (flush.attempt, flush.flush_from.clone()));
        let entry = HomeEntry { stored: home.clone(), confirmed: adopted.is_some(), flushed };
        let is_latest = self.ledger.apply(&shard, entry);
        self.stops.mark_fresh(&shard);
        if home.deallocated || !is_latest {
            // Announce nothing for a tombstone, or for a home that the next decision replaces.
            return;
        }
        self.handoffs.end_flush(&shard);
        let owner = home.region.clone();
        if let Some(state) = adopted {
            self.ledger.end_adoption(&shard);
            if state == ClaimState::Stopping {
                self.await_stopped(now, &shard, &owner, home.generation);
                return;
            }
        } else if !self.registry.contains(&owner) {
            self.deallocate(&shard, None);
            return;
        } else {
            self.orders.unstarted.set(&shard, now + self.config.settings.shard_start_timeout);
            announcements.hosts.entry(owner.clone()).or_default().push(shard.clone());
            let (region, generation) = (owner.clone(), home.generation);
            out.push(Effect::Event(CoordinatorEvent::ShardAllocated { shard: shard.clone(), region, generation }));
        }
        let waiting = self.decisions.requests.answer(&shard);
        for region in participants.into_iter().chain(waiting).collect::<BTreeSet<_>>() {
            if region != owner && self.registry.contains(&region) {
                announcements.homes.entry(region).or_default().push(shard.clone());
            }
        }
    }

    pub(super) fn announce(&self, announcements: Announcements, out: &mut Vec<Effect>) {
        for (region, shards) in announcements.hosts {
            self.send_homes(&region, &shards, CoordinatorMessage::HostShard, out);
        }
        for (region, shards) in announcements.homes {
            self.send_homes(&region, &shards, CoordinatorMessage::ShardHomes, out);
        }
    }

    /// Sends homes to a region, in frames of bounded size.
    pub(super) fn send_homes(
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
        self.cluster_view.members = members;
        self.note_missing(now);
        if self.cluster_view.members.is_preparing() {
            self.abandon_unacked(out);
        }
    }

    /// Starts the removal margin of nodes that own something and are no members.
    fn note_missing(&mut self, now: Instant) {
        let regions = self.registry.regions().map(|(region, _)| region);
        let named = self.ledger.owners().chain(self.journal_state.regions()).chain(regions).map(|region| &region.node);
        let missing: BTreeSet<_> = named.filter(|node| !self.cluster_view.members.contains(node)).cloned().collect();
        let members = &self.cluster_view.members;
        self.registry.note_missing(missing, |node| members.removed.get(node).map_or(now, |removal| removal.at));
    }

    /// Whether a process that is no member must have ended: it left in order, or its margin is over.
    pub(super) fn is_over(&self, node: &UniqueAddress, since: Instant, now: Instant) -> bool {
        let clean = self.cluster_view.members.removed.get(node).is_some_and(|removal| removal.clean);
        let unwaited = self.sabotage == Some(Sabotage::Margin);
        clean || unwaited || since + self.config.down_removal_margin <= now
    }

    fn terminate_removed(&mut self, now: Instant) {
        let over = self.registry.missing().filter(|(node, since)| self.is_over(node, *since, now));
        for node in over.map(|(node, _)| node.clone()).collect::<Vec<_>>() {
            self.registry.end_missing(&node);
            self.terminate_node(&node);
        }
    }

    pub(super) fn margin_deadline(&self) -> Option<Instant> {
        self.registry.margin_deadline(self.config.down_removal_margin)
    }

    /// Terminates all known regions of a process that has ended.
    pub(super) fn terminate_node(&mut self, node: &UniqueAddress) {
        let registered = self.registry.regions().map(|(region, _)| region);
        let named = self.ledger.named().chain(self.journal_state.regions()).chain(registered);
        let regions: BTreeSet<_> = named.filter(|region| region.node == *node).cloned().collect();
        for region in regions {
            self.terminate(&region);
        }
    }

    /// Terminates a region that is proven to be gone, and ends its homes.
    pub(super) fn terminate(&mut self, region: &RegionId) {
        self.registry.end(region);
        let mut owned = self.ledger.shards_of(region).to_vec();
        owned.sort();
        for shard in owned {
            if self.handoffs.end(&shard) == Some(true) {
                self.decisions.requests.make_eager(&shard);
            }
            self.lost_home(&shard);
            self.deallocate(&shard, None);
        }
        if self.journal_state.remove(region) {
            self.ledger.record(StateEvent::RegionTerminated(region.clone()));
        }
        for shard in self.orders.drops.forget(region) {
            self.decisions.requests.mark_fresh(&shard);
            self.stops.mark_fresh(&shard);
        }
        self.handoffs.forget(region);
        self.decisions.requests.forget(region);
        self.stops.forget(region);
        self.orders.tables.forget(region);
    }

    fn become_active(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.state = CoordinatorState::Active;
        self.registry.inquire_again_at(None);
        self.journal_state.refreshed(now);
        if self.ledger.all_durable().next().is_some() {
            self.decisions.initialize();
        }
        self.decisions.schedule_rebalance(now, self.config.settings.rebalance_interval);
        let shards = self.homes().count();
        out.push(Effect::Event(CoordinatorEvent::Active { epoch: self.epoch_state.epoch, shards }));
        for region in self.hosting_regions().cloned().collect::<Vec<_>>() {
            self.host_absent(now, &region, out);
        }
        self.handoffs.resend_now(now);
        // Send the table to all: a route older than the inventory would cost its first message a gap (sharding §2.6).
        for region in self.registry.regions().map(|(region, _)| region.clone()).collect::<Vec<_>>() {
            self.begin_table(&region, out);
        }
        self.answer_requests(out);
        self.want_remembered(out);
        self.on_tick(now, out);
    }

    pub(super) fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let retry = self.config.settings.retry_interval;
        if self.journal_state.tick(now) {
            self.ledger.record(StateEvent::EpochStarted(self.epoch_state.meta(&self.config.id)));
        }
        if self.state == CoordinatorState::Reconciling && self.registry.inquire_at().is_some_and(|at| at <= now) {
            self.registry.inquire_again_at(Some(now + retry));
            for node in self.unreported_nodes() {
                self.send_node(&node, CoordinatorMessage::RegionInquiry, out);
            }
        }
        self.repeat_drops(now, out);
        if self.state != CoordinatorState::Active {
            return;
        }
        let mut announcements = Announcements::default();
        let again = now + self.config.settings.shard_start_timeout;
        for shard in self.orders.unstarted.due(now) {
            match self.ledger.durable(&shard) {
                Some(entry) if !entry.stored.deallocated => {
                    self.orders.unstarted.set(&shard, again);
                    announcements.hosts.entry(entry.stored.region.clone()).or_default().push(shard);
                }
                _ => self.orders.unstarted.remove(&shard),
            }
        }
        self.announce(announcements, out);
        self.stops.end_due(now);
        self.tick_handoffs(now, out);
        if self.decisions.is_rebalance_due(now, self.config.settings.rebalance_interval) {
            self.want_remembered(out);
            self.call_rebalance(out);
        }
    }

    fn repeat_drops(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let retry = self.config.settings.retry_interval;
        for (shard, region, generation) in self.orders.drops.repeat(now, now + retry) {
            self.send(&region, CoordinatorMessage::DropShard { shard, generation }, out);
        }
    }
}

/// Messages to send after a commit, gathered per region.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    pub(super) hosts: BTreeMap<RegionId, Vec<ShardId>>,
    pub(super) homes: BTreeMap<RegionId, Vec<ShardId>>,
}
