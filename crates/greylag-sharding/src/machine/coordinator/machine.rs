//! The incarnation from the first read to the end: the epoch, commits, members that go, deadlines, and each message of a
//! region on its way to the part that it is for.
//!
//! Source: sharding §2.12 to §2.15.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::config::{CoordinatorConfig, CoordinatorState, HOMES_PER_FRAME};
use super::epoch_state::EpochState;
use super::homes::{Ack, HomeEntry, Homes};
use super::nodes::Nodes;
use super::protocol::{CoordinatorEvent, Effect, Input, StateEvent, StopReason, StoredHome, StoredState};
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Members;
use crate::machine::message::{
    AgreementOutcome, ClaimState, CoordinatorMessage, Epoch, FromCoordinator, Home, RegionMessage,
};
use crate::machine::omissions::Clause;

/// The machine; see the module's header.
#[derive(Debug)]
pub struct Coordinator {
    pub(super) config: CoordinatorConfig,
    pub(super) state: CoordinatorState,
    pub(super) epoch_state: EpochState,
    pub(super) nodes: Nodes,
    pub(super) homes: Homes,
    /// Whether the singleton is being handed over.
    pub(super) terminating: bool,
}

impl Coordinator {
    /// A new incarnation without any state. Its first inputs must be `Membership` and, in answer to the effect it
    /// begins with, `Read`.
    pub fn new(config: CoordinatorConfig, out: &mut Vec<Effect>) -> Self {
        out.push(Effect::Read);
        let mode = config.settings.state_store_mode;
        let omits_margin = config.omissions.has(Clause::Margin);
        let margin = if omits_margin { Duration::ZERO } else { config.down_removal_margin };
        Self {
            epoch_state: EpochState::new(config.fingerprint.clone()),
            nodes: Nodes::new(config.role.clone(), margin, mode),
            homes: Homes::new(&config.fingerprint, &config.settings),
            config,
            state: CoordinatorState::Reading,
            terminating: false,
        }
    }

    /// Takes one input. Infallible: an input that makes no sense is dropped.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        if self.state == CoordinatorState::Stopped {
            return;
        }
        if self.nodes.view.suspect && !matches!(input, Input::SelfTrusted | Input::Membership(_) | Input::SelfDowned) {
            // A suspect node decides and sends nothing.
            return self.nodes.view.hold(input);
        }
        self.homes.orders.tables.on_input();
        self.dispatch(now, input, out);
        if self.state != CoordinatorState::Stopped && !self.nodes.view.suspect {
            self.process_pending(now, out);
            self.check_invariants();
        }
    }

    /// Checks what holds after each input that was not the last. Source: sharding §2.12, §2.13.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) || self.state == CoordinatorState::Stopped {
            return;
        }
        let (state, nodes) = (self.state, &self.nodes);
        assert_eq!(self.epoch() == 0, state == CoordinatorState::Reading, "{state:?}: an epoch is chosen first");
        assert_eq!(
            nodes.registry.inquire_at().is_some(),
            state == CoordinatorState::Reconciling,
            "{state:?}: asks nodes"
        );
        let rebalances = self.homes.decisions.rebalance_at().is_some();
        assert_eq!(rebalances, state == CoordinatorState::Active, "{state:?}: rebalances");
        let commits_epoch = state == CoordinatorState::CommittingEpoch;
        assert!(commits_epoch || !nodes.journal_state.has_read(), "{state:?}: the state read is taken over once");
        assert!(!commits_epoch || self.homes.ledger.is_writing(), "the epoch is being written");
        let decides = matches!(state, CoordinatorState::Reconciling | CoordinatorState::Active);
        assert!(decides || nodes.registry.regions().next().is_none(), "{state:?}: has no region yet");
        nodes.journal_state.check_invariants();
        nodes.registry.check_invariants();
        self.homes.check_invariants(|region| nodes.registry.contains(region));
    }

    fn dispatch(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Read { state, wall_secs, seen_epoch } => self.on_read(now, state, wall_secs, seen_epoch, out),
            Input::Unreadable => self.stop(StopReason::Unreadable, out),
            Input::Committed { batch } => self.on_committed(now, batch, out),
            Input::CommitFailed { batch, retryable } => self.on_commit_failed(batch, retryable, out),
            Input::FromRegion { node, message } => self.on_region(now, &node, message, out),
            Input::Membership(members) => self.on_membership(now, members, out),
            Input::Agreement(outcome) => self.nodes.view.outcome = outcome,
            Input::RememberedShards(shards) => self.on_remembered(shards, out),
            Input::ShardsRemembered(shards) => self.homes.on_shards_remembered(shards),
            Input::RememberStopped => self.on_remember_stopped(out),
            Input::Allocated { call, homes } => self.on_allocated(call, homes, out),
            Input::Rebalance { shards } => self.on_rebalance(now, shards, out),
            Input::SelfSuspect => self.nodes.view.suspect = true,
            Input::SelfTrusted => {
                for input in self.nodes.view.trust() {
                    self.handle(now, input, out);
                }
            }
            Input::SelfDowned => self.stop(StopReason::Downed, out),
            Input::Terminate => self.terminating = true,
            Input::Continue => self.homes.orders.tables.on_turn(),
            Input::Tick => self.on_tick(now, out),
        }
    }

    /// When a `Tick` next has work to do, or `None` if only another input can wake this machine.
    pub fn next_deadline(&self) -> Option<Instant> {
        let at = [self.homes.orders.drops.next(), self.nodes.margin_deadline()].into_iter().flatten().min();
        match self.state {
            _ if self.nodes.view.suspect => None,
            CoordinatorState::Stopped => None,
            CoordinatorState::Reconciling => {
                [at, self.nodes.registry.inquire_at(), self.nodes.journal_state.next()].into_iter().flatten().min()
            }
            CoordinatorState::Active => [at, self.work_deadline()].into_iter().flatten().min(),
            _ => at,
        }
    }

    /// When work of an active coordinator is due. Not counted while the inventory is taken: a predecessor's handoff
    /// goes on without this coordinator, whose timer its deadline would keep ready for ever.
    fn work_deadline(&self) -> Option<Instant> {
        [self.homes.next_deadline(), self.nodes.journal_state.next()].into_iter().flatten().min()
    }

    /// The stage of the incarnation.
    pub fn state(&self) -> CoordinatorState {
        self.state
    }

    /// Its epoch; 0 before one is chosen.
    pub fn epoch(&self) -> Epoch {
        self.epoch_state.epoch
    }

    /// The durable homes.
    pub fn homes(&self) -> impl Iterator<Item = (&ShardId, &StoredHome)> {
        self.homes.durable()
    }

    /// The regions registered with this incarnation, without proxies.
    pub fn hosting_regions(&self) -> impl Iterator<Item = &RegionId> {
        self.nodes.hosting_regions()
    }

    fn on_region(&mut self, now: Instant, node: &UniqueAddress, message: RegionMessage, out: &mut Vec<Effect>) {
        // A region must speak for itself alone, and from the node that it names. A `StaleEpoch` counts even from an
        // unknown node: the node may be a member in a newer view, and missing its epoch would let two coordinators
        // decide.
        if message.region().is_some_and(|region| region.node != *node) {
            return;
        }
        if let RegionMessage::StaleEpoch { epoch, .. } = message {
            self.epoch_state.see(epoch);
            if self.is_fenced_by(epoch) && self.epoch_state.epoch != 0 {
                self.stop(StopReason::Fenced { by: epoch }, out);
            }
            return;
        }
        if let RegionMessage::Register(register) = message {
            return self.on_register(now, register, out);
        }
        if !matches!(self.state, CoordinatorState::Reconciling | CoordinatorState::Active) {
            return;
        }
        if let RegionMessage::NoRegion { epoch } = message {
            return self.on_no_region(node, epoch);
        }
        if let RegionMessage::RegionStopped { region } = message {
            self.terminate(&region);
            return self.send(&region, CoordinatorMessage::RegionStoppedAck, out);
        }
        let Some(region) = message.region().cloned() else { return };
        if self.nodes.registry.get(&region).is_none_or(|entry| entry.serial == 0) {
            // The region takes this node for its coordinator, but is not registered with this incarnation.
            if !self.nodes.registry.is_gone(&region) {
                self.send_node(node, CoordinatorMessage::RegionInquiry, out);
            }
            return;
        }
        match message {
            RegionMessage::GetShardHome { shards, .. } => self.on_get_shard_home(&region, shards, out),
            RegionMessage::ShardStarted { shards, .. } => self.homes.on_shard_started(&region, shards),
            RegionMessage::BeginHandOffAck { shard, generation, attempt, flushed, .. } => {
                self.on_ack(now, &region, &shard, Ack { generation, attempt, flushed }, out);
            }
            RegionMessage::ShardStopped { shard, generation, leftovers, .. } => {
                let unchecked = self.omits(Clause::GenerationCheck);
                self.homes.on_shard_stopped(&region, &shard, generation, (leftovers, unchecked));
            }
            RegionMessage::GracefulShutdownReq { .. } => self.on_graceful(now, &region, out),
            RegionMessage::StopShards { request, shards, .. } => {
                self.on_stop_shards(now, &region, request, shards, out);
            }
            RegionMessage::GetCurrentRegions { request, .. } => self.on_get_current_regions(&region, request, out),
            _ => {}
        }
    }

    /// Sends a message to one region, with this incarnation's authority.
    pub(super) fn send(&self, region: &RegionId, message: CoordinatorMessage, out: &mut Vec<Effect>) {
        let message = FromCoordinator {
            coordinator: self.config.id.clone(),
            epoch: self.epoch_state.epoch,
            to: Some(region.clone()),
            message,
        };
        out.push(Effect::Send { to: region.node.clone(), message });
    }

    /// Sends a message to a node's sharding layer, for any region of this type.
    pub(super) fn send_node(&self, node: &UniqueAddress, message: CoordinatorMessage, out: &mut Vec<Effect>) {
        let coordinator = self.config.id.clone();
        let message = FromCoordinator { coordinator, epoch: self.epoch_state.epoch, to: None, message };
        out.push(Effect::Send { to: node.clone(), message });
    }

    /// Sends homes to a region, in frames of bounded size.
    pub(super) fn send_homes(
        &self,
        region: &RegionId,
        shards: &[ShardId],
        message: fn(Vec<Home>) -> CoordinatorMessage,
        out: &mut Vec<Effect>,
    ) {
        for chunk in shards.chunks(HOMES_PER_FRAME) {
            let homes = self.homes.homes_for(region, chunk);
            if !homes.is_empty() {
                self.send(region, message(homes), out);
            }
        }
    }

    /// Whether a shard's home may be sent now.
    pub(super) fn may_send_home(&self, shard: &ShardId) -> bool {
        self.homes.may_send(shard, self.state == CoordinatorState::Active, &self.nodes.view.members)
    }

    fn announce(&self, announcements: Announcements, out: &mut Vec<Effect>) {
        for (region, shards) in announcements.hosts {
            self.send_homes(&region, &shards, CoordinatorMessage::HostShard, out);
        }
        for (region, shards) in announcements.homes {
            self.send_homes(&region, &shards, CoordinatorMessage::ShardHomes, out);
        }
    }

    fn omits(&self, clause: Clause) -> bool {
        self.config.omissions.has(clause)
    }

    /// Whether a coordinator of a larger epoch has taken over.
    pub(super) fn is_fenced_by(&self, epoch: Epoch) -> bool {
        epoch > self.epoch_state.epoch && !self.omits(Clause::EpochFence)
    }

    pub(super) fn stop(&mut self, reason: StopReason, out: &mut Vec<Effect>) {
        self.state = CoordinatorState::Stopped;
        out.push(Effect::Stop(reason));
    }

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
        if self.nodes.journal_state.is_kept() && recorded != Some(&self.epoch_state.fingerprint) {
            self.homes.ledger.record(StateEvent::FingerprintRecorded(self.epoch_state.fingerprint.clone()));
        }
        self.homes.ledger.record(StateEvent::EpochStarted(self.epoch_state.meta(&self.config.id)));
        self.nodes.journal_state.keep(state);
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
        match self.nodes.journal_state.take() {
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
        self.homes.ledger.load(state.homes);
        if self.homes.decisions.remembered.is_in_store() {
            out.push(Effect::ReadRemembered);
        }
        self.nodes.journal_state.load(state.regions, now + self.config.settings.journal.recovery_timeout);
        if state.initialized {
            self.homes.decisions.initialize();
        }
        self.state = CoordinatorState::Reconciling;
        self.nodes.registry.inquire_again_at(Some(now));
        self.nodes.note_missing(now, self.homes.ledger.owners());
        self.on_tick(now, out);
    }

    /// Whether every node has reported or is gone, so that an unknown shard runs nowhere.
    fn inventory_is_complete(&mut self, now: Instant) -> bool {
        self.omits(Clause::Inventory) || self.nodes.is_inventory_complete(now, &self.homes.orders.drops)
    }

    /// Whether all members agree about the type: a side that another role's coordinator does not know of could give an
    /// entity a second home.
    pub(super) fn all_agree(&self) -> bool {
        self.omits(Clause::Agreement) || self.nodes.view.outcome == AgreementOutcome::Agreed
    }

    fn become_active(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.state = CoordinatorState::Active;
        self.nodes.registry.inquire_again_at(None);
        self.nodes.journal_state.refreshed(now);
        if self.homes.ledger.all_durable().next().is_some() {
            self.homes.decisions.initialize();
        }
        self.homes.decisions.schedule_rebalance(now, self.config.settings.rebalance_interval);
        let shards = self.homes().count();
        out.push(Effect::Event(CoordinatorEvent::Active { epoch: self.epoch_state.epoch, shards }));
        for region in self.nodes.hosting_regions().cloned().collect::<Vec<_>>() {
            self.host_absent(now, &region, out);
        }
        self.homes.handoffs.resend_now(now);
        // Send the table to all: a route older than the inventory would cost its first message a gap (sharding §2.6).
        for region in self.nodes.registry.regions().map(|(region, _)| region.clone()).collect::<Vec<_>>() {
            self.begin_table(&region, out);
        }
        self.answer_requests(out);
        self.want_remembered(out);
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
            self.nodes.registry.regions().any(|(region, e)| e.shutting_down && region.node == self.config.id.node);
        if self.terminating && !local_goes {
            return self.stop(StopReason::HandedOver, out);
        }
        self.settle_stops(now, out);
        self.call_strategy(out);
        let batch = self.homes.ledger.next_batch(self.config.max_batch);
        out.extend(batch.map(|(batch, events)| Effect::Commit { batch, events }));
        self.send_tables(out);
    }

    pub(super) fn on_committed(&mut self, now: Instant, batch: u64, out: &mut Vec<Effect>) {
        let Some(events) = self.homes.ledger.committed(batch) else { return };
        if events.iter().any(|event| matches!(event, StateEvent::EpochStarted(_))) {
            match self.state {
                CoordinatorState::CommittingEpoch => return self.on_epoch_durable(now, out),
                _ => self.nodes.journal_state.refreshed(now),
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
        match self.homes.ledger.under_way(batch) {
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
        let adopted = self.homes.ledger.adopted(&shard, home.generation);
        let flush = self.homes.handoffs.flush(&shard).filter(|_| !home.deallocated);
        let participants = flush.map(|flush| flush.participants.clone()).unwrap_or_default();
        let flushed = flush.map(|flush| (flush.attempt, flush.flush_from.clone()));
        let entry = HomeEntry { stored: home.clone(), confirmed: adopted.is_some(), flushed };
        let is_latest = self.homes.ledger.apply(&shard, entry);
        self.homes.stops.mark_fresh(&shard);
        if home.deallocated || !is_latest {
            // Announce nothing for a tombstone, or for a home that the next decision replaces.
            return;
        }
        self.homes.handoffs.end_flush(&shard);
        let owner = home.region.clone();
        if let Some(state) = adopted {
            self.homes.ledger.end_adoption(&shard);
            if state == ClaimState::Stopping {
                let epoch = self.epoch_state.epoch;
                self.homes.await_stopped(now, epoch, &shard, (&owner, home.generation));
                return;
            }
        } else if !self.nodes.registry.contains(&owner) {
            self.homes.deallocate(&shard, None);
            return;
        } else {
            self.homes.orders.unstarted.set(&shard, now + self.config.settings.shard_start_timeout);
            announcements.hosts.entry(owner.clone()).or_default().push(shard.clone());
            let (region, generation) = (owner.clone(), home.generation);
            out.push(Effect::Event(CoordinatorEvent::ShardAllocated { shard: shard.clone(), region, generation }));
        }
        let waiting = self.homes.decisions.requests.answer(&shard);
        for region in participants.into_iter().chain(waiting).collect::<BTreeSet<_>>() {
            if region != owner && self.nodes.registry.contains(&region) {
                announcements.homes.entry(region).or_default().push(shard.clone());
            }
        }
    }

    pub(super) fn on_membership(&mut self, now: Instant, members: Arc<Members>, out: &mut Vec<Effect>) {
        self.nodes.view.members = members;
        self.nodes.note_missing(now, self.homes.ledger.owners());
        if self.nodes.view.members.is_preparing() {
            self.abandon_unacked(out);
        }
    }

    fn terminate_removed(&mut self, now: Instant) {
        for node in self.nodes.take_ended(now) {
            self.terminate_node(&node);
        }
    }

    /// Terminates all known regions of a process that has ended.
    fn terminate_node(&mut self, node: &UniqueAddress) {
        for region in self.nodes.known_of(node, self.homes.ledger.named()) {
            self.terminate(&region);
        }
    }

    /// Terminates a region that is proven to be gone, and ends its homes.
    pub(super) fn terminate(&mut self, region: &RegionId) {
        self.nodes.registry.end(region);
        self.homes.end_region(region);
        if self.nodes.journal_state.remove(region) {
            self.homes.ledger.record(StateEvent::RegionTerminated(region.clone()));
        }
        self.homes.forget_region(region);
    }

    pub(super) fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let retry = self.config.settings.retry_interval;
        if self.nodes.journal_state.tick(now) {
            self.homes.ledger.record(StateEvent::EpochStarted(self.epoch_state.meta(&self.config.id)));
        }
        if self.state == CoordinatorState::Reconciling && self.nodes.registry.inquire_at().is_some_and(|at| at <= now) {
            self.nodes.registry.inquire_again_at(Some(now + retry));
            for node in self.nodes.unreported(&self.homes.orders.drops) {
                self.send_node(&node, CoordinatorMessage::RegionInquiry, out);
            }
        }
        self.repeat_drops(now, out);
        if self.state != CoordinatorState::Active {
            return;
        }
        let again = now + self.config.settings.shard_start_timeout;
        let hosts = self.homes.unstarted_due(now, again);
        self.announce(Announcements { hosts, ..Announcements::default() }, out);
        self.homes.stops.end_due(now);
        self.tick_handoffs(now, out);
        if self.homes.decisions.is_rebalance_due(now, self.config.settings.rebalance_interval) {
            self.want_remembered(out);
            self.call_rebalance(out);
        }
    }

    fn repeat_drops(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let retry = self.config.settings.retry_interval;
        for (shard, region, generation) in self.homes.orders.drops.repeat(now, now + retry) {
            self.send(&region, CoordinatorMessage::DropShard { shard, generation }, out);
        }
    }

    /// Takes the remembered shards read from the store.
    fn on_remembered(&mut self, shards: BTreeSet<ShardId>, out: &mut Vec<Effect>) {
        self.homes.on_remembered(shards);
        self.want_remembered(out);
    }

    /// Asks for a home for every remembered shard without one, once the coordinator is active.
    fn want_remembered(&mut self, out: &mut Vec<Effect>) {
        if self.state == CoordinatorState::Active {
            self.homes.want_remembered(out);
        }
    }

    /// Ends the incarnation, since the store has failed; the next incarnation opens it again.
    pub(super) fn on_remember_stopped(&mut self, out: &mut Vec<Effect>) {
        self.stop(StopReason::RememberStoreStopped, out);
    }
}

/// Messages to send after a commit, gathered per region.
#[derive(Debug, Default)]
struct Announcements {
    hosts: BTreeMap<RegionId, Vec<ShardId>>,
    homes: BTreeMap<RegionId, Vec<ShardId>>,
}
