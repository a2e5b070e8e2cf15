//! Decides where each shard of one entity type lives.
//!
//! One coordinator runs per type, as a singleton on the oldest node; an *incarnation* chooses an epoch above all that
//! it can learn of, makes the epoch durable, and takes the inventory of what every node hosts before it allocates
//! anything. A shard is given to another region only with proof that no region has it. Nothing is announced before it
//! is durable, and every message is repeated until it is answered.
//!
//! ```text
//! Recovering --read--> commit epoch --(mode ddata: read again)--> Reconciling --inventory complete--> Active
//! Allocated(O, g) --BeginHandOff, acks--> HandOff --ShardStopped(g)--> Deallocated --> Allocated(N, g')
//! ```
//! The coordinator carries out the effects of its parts: `Registry` of regions, `Ledger` of homes, `Decisions`
//! (allocation, rebalance), `HandOffs` under way, `Orders` that are repeated.
//!
//! Source: sharding §2.7 to §2.16, §9. Differs: as tagged `[D]` there.

mod allocate;
mod cluster_view;
mod decisions;
mod drops;
mod epoch_state;
mod handoff;
mod handoffs;
mod inventory;
mod journal_state;
mod ledger;
mod lifecycle;
mod orders;
mod placement;
mod protocol;
mod reconcile;
mod registry;
mod remember;
pub mod replay;
mod requests;
mod stops;
mod tables;

use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use self::cluster_view::ClusterView;
use self::decisions::Decisions;
use self::epoch_state::EpochState;
use self::handoffs::{Ack, HandOffs};
use self::journal_state::JournalState;
use self::ledger::{HomeEntry, Ledger};
use self::orders::Orders;
pub use self::protocol::{
    CoordinatorEvent, Effect, HandOffPhase, Input, Meta, StateEvent, StopReason, StoredHome, StoredState,
};
use self::registry::Registry;
use self::stops::Stops;
use crate::fingerprint::Fingerprint;
use crate::ids::{RegionId, ShardId};
use crate::machine::message::{CoordinatorId, CoordinatorMessage, Epoch, FromCoordinator, Home, RegionMessage};
use crate::settings::ShardingSettings;

/// Homes per frame, so that a table fits a frame of the control lane.
const HOMES_PER_FRAME: usize = 500;

/// Configuration of a coordinator incarnation.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// Its node, and a number that no other incarnation of that process has.
    pub id: CoordinatorId,
    /// How its node describes the type; used if the state has no fingerprint.
    pub fingerprint: Fingerprint,
    /// Role of the nodes that host; empty for all.
    pub role: String,
    /// Timeouts and limits.
    pub settings: ShardingSettings,
    /// Wait after a removal without proof that the process has ended.
    pub down_removal_margin: Duration,
    /// Most events that the store writes atomically: larger batches are split.
    pub max_batch: usize,
}

/// The stage of the incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoordinatorState {
    /// Reads the state of its predecessors.
    Reading,
    /// Makes its epoch durable.
    CommittingEpoch,
    /// Reads again: another incarnation may have chosen the same epoch.
    ReadingAgain,
    /// Takes the inventory: requests for confirmed homes are answered, nothing is decided.
    Reconciling,
    /// Decides allocations and moves.
    Active,
    /// Has ended; the driver starts another incarnation if this node still has to coordinate.
    Stopped,
}

/// A protocol rule that a simulation leaves out on purpose, to prove that its checkers notice.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Decides before every node has answered the inventory (sharding §2.13).
    Inventory,
    /// Decides before all members agree about the type (sharding §1.5, point 4).
    Agreement,
    /// Goes on although it learns of a larger epoch (sharding §2.2, `StaleEpoch`).
    EpochFence,
    /// Takes a removed node for gone at once (sharding §2.12).
    Margin,
    /// Takes any `ShardStopped` for the current home's (sharding §2.10).
    GenerationCheck,
}

/// The machine; see the module's header.
#[derive(Debug)]
pub struct Coordinator {
    config: CoordinatorConfig,
    state: CoordinatorState,
    epoch_state: EpochState,
    cluster_view: ClusterView,
    registry: Registry,
    ledger: Ledger,
    /// Durable data besides homes, in mode persistence.
    journal_state: JournalState,
    decisions: Decisions,
    handoffs: HandOffs,
    stops: Stops,
    orders: Orders,
    /// Whether the singleton is being handed over.
    terminating: bool,
    sabotage: Option<Sabotage>,
}

impl Coordinator {
    /// A new incarnation without any state. Its first inputs must be `Membership` and, in answer to the effect it
    /// begins with, `Read`.
    pub fn new(config: CoordinatorConfig, out: &mut Vec<Effect>) -> Self {
        out.push(Effect::Read);
        Self {
            epoch_state: EpochState::new(config.fingerprint.clone()),
            journal_state: JournalState::new(config.settings.state_store_mode),
            decisions: Decisions::new(&config.fingerprint),
            handoffs: HandOffs::new(&config.settings),
            config,
            state: CoordinatorState::Reading,
            cluster_view: ClusterView::default(),
            registry: Registry::default(),
            ledger: Ledger::default(),
            stops: Stops::default(),
            orders: Orders::default(),
            terminating: false,
            sabotage: None,
        }
    }

    /// Leaves a rule out. For simulations that prove their checkers.
    #[doc(hidden)]
    pub fn sabotage(&mut self, sabotage: Sabotage) {
        self.sabotage = Some(sabotage);
    }

    /// Takes one input. Infallible: an input that makes no sense is dropped.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        if self.state == CoordinatorState::Stopped {
            return;
        }
        if self.cluster_view.suspect && !matches!(input, Input::SelfTrusted | Input::Membership(_) | Input::SelfDowned)
        {
            // A suspect node decides and sends nothing.
            return self.cluster_view.hold(input);
        }
        self.orders.tables.on_input();
        self.dispatch(now, input, out);
        if self.state != CoordinatorState::Stopped && !self.cluster_view.suspect {
            self.process_pending(now, out);
        }
    }

    fn dispatch(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Read { state, wall_secs, seen_epoch } => self.on_read(now, state, wall_secs, seen_epoch, out),
            Input::Unreadable => self.stop(StopReason::Unreadable, out),
            Input::Committed { batch } => self.on_committed(now, batch, out),
            Input::CommitFailed { batch, retryable } => self.on_commit_failed(batch, retryable, out),
            Input::FromRegion { node, message } => self.on_region(now, &node, message, out),
            Input::Membership(members) => self.on_membership(now, members, out),
            Input::Agreement(outcome) => self.cluster_view.outcome = outcome,
            Input::RememberedShards(shards) => self.on_remembered(shards, out),
            Input::ShardsRemembered(shards) => self.on_shards_remembered(shards),
            Input::RememberStopped => self.on_remember_stopped(out),
            Input::Allocated { call, homes } => self.on_allocated(call, homes, out),
            Input::Rebalance { shards } => self.on_rebalance(now, shards, out),
            Input::SelfSuspect => self.cluster_view.suspect = true,
            Input::SelfTrusted => {
                for input in self.cluster_view.trust() {
                    self.handle(now, input, out);
                }
            }
            Input::SelfDowned => self.stop(StopReason::Downed, out),
            Input::Terminate => self.terminating = true,
            Input::Continue => self.orders.tables.on_turn(),
            Input::Tick => self.on_tick(now, out),
        }
    }

    /// When a `Tick` next has work to do, or `None` if only another input can wake this machine.
    pub fn next_deadline(&self) -> Option<Instant> {
        let at = [self.orders.drops.next(), self.margin_deadline()].into_iter().flatten().min();
        match self.state {
            _ if self.cluster_view.suspect => None,
            CoordinatorState::Stopped => None,
            CoordinatorState::Reconciling => {
                [at, self.registry.inquire_at(), self.journal_state.next()].into_iter().flatten().min()
            }
            CoordinatorState::Active => [at, self.work_deadline()].into_iter().flatten().min(),
            _ => at,
        }
    }

    /// When work of an active coordinator is due. Not counted while the inventory is taken: a predecessor's handoff
    /// goes on without this coordinator, whose timer its deadline would keep ready for ever.
    fn work_deadline(&self) -> Option<Instant> {
        let decisions = self.decisions.rebalance_at();
        let by_time =
            [decisions, self.orders.unstarted.next(), self.handoffs.next_deadline(), self.journal_state.next()];
        by_time.into_iter().chain([self.stops.next()]).flatten().min()
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
        self.ledger.all_durable().map(|(shard, entry)| (shard, &entry.stored)).filter(|(_, home)| !home.deallocated)
    }

    /// The regions registered with this incarnation, without proxies.
    pub fn hosting_regions(&self) -> impl Iterator<Item = &RegionId> {
        self.registry.regions().filter(|(_, entry)| !entry.proxy && !entry.refused).map(|(region, _)| region)
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
        if self.registry.get(&region).is_none_or(|entry| entry.serial == 0) {
            // The region takes this node for its coordinator, but is not registered with this incarnation.
            if !self.registry.is_gone(&region) {
                self.send_node(node, CoordinatorMessage::RegionInquiry, out);
            }
            return;
        }
        match message {
            RegionMessage::GetShardHome { shards, .. } => self.on_get_shard_home(&region, shards, out),
            RegionMessage::ShardStarted { shards, .. } => self.on_shard_started(&region, shards),
            RegionMessage::BeginHandOffAck { shard, generation, attempt, flushed, .. } => {
                self.on_ack(now, &region, &shard, Ack { generation, attempt, flushed }, out);
            }
            RegionMessage::ShardStopped { shard, generation, leftovers, .. } => {
                self.on_shard_stopped(&region, &shard, generation, leftovers);
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
    fn send(&self, region: &RegionId, message: CoordinatorMessage, out: &mut Vec<Effect>) {
        let message = FromCoordinator {
            coordinator: self.config.id.clone(),
            epoch: self.epoch_state.epoch,
            to: Some(region.clone()),
            message,
        };
        out.push(Effect::Send { to: region.node.clone(), message });
    }

    /// Sends a message to a node's sharding layer, for any region of this type.
    fn send_node(&self, node: &UniqueAddress, message: CoordinatorMessage, out: &mut Vec<Effect>) {
        let coordinator = self.config.id.clone();
        let message = FromCoordinator { coordinator, epoch: self.epoch_state.epoch, to: None, message };
        out.push(Effect::Send { to: node.clone(), message });
    }

    /// A durable home in the form sent to `to`.
    fn home_for(&self, to: &RegionId, shard: &ShardId, entry: &HomeEntry) -> Home {
        let own = entry.stored.region == *to;
        let flushed = entry.flushed.as_ref().filter(|(_, regions)| regions.contains(to)).map(|(attempt, _)| *attempt);
        Home {
            shard: shard.clone(),
            region: entry.stored.region.clone(),
            generation: entry.stored.generation,
            flushed,
            previous: entry.stored.previous.filter(|_| own),
            leftovers_from: entry.stored.leftovers_from.clone().filter(|_| own),
            given_up: self.handoffs.given_up(shard),
        }
    }

    /// Whether a coordinator of a larger epoch has taken over.
    fn is_fenced_by(&self, epoch: Epoch) -> bool {
        epoch > self.epoch_state.epoch && self.sabotage != Some(Sabotage::EpochFence)
    }

    /// Records a decision about a shard. Nothing is announced before it is durable.
    fn decide(&mut self, shard: &ShardId, home: StoredHome) {
        self.handoffs.end_given_up(shard);
        self.ledger.decide(shard, home);
        self.decisions.requests.mark_fresh(shard);
        self.stops.mark_fresh(shard);
    }

    /// Ends a home; the tombstone keeps the facts that the next allocation needs.
    fn deallocate(&mut self, shard: &ShardId, leftovers_from: Option<RegionId>) {
        if let Some(home) = self.ledger.decided(shard).filter(|home| !home.deallocated).cloned() {
            self.decide(shard, StoredHome { deallocated: true, leftovers_from, previous: None, ..home });
            self.orders.unstarted.remove(shard);
        }
    }

    fn stop(&mut self, reason: StopReason, out: &mut Vec<Effect>) {
        self.state = CoordinatorState::Stopped;
        out.push(Effect::Stop(reason));
    }
}
