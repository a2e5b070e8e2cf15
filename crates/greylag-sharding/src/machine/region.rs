//! Routes the messages of one entity type on one node: knows homes, buffers, hosts, hands off.
//!
//! A region keeps the last known home of every shard and publishes the homes as a route table; only messages that have
//! no open route, or need a check, pass through this machine. The region takes orders from one coordinator at a time
//! and checks every order by epoch and generation. Shards themselves, messages and links belong to the driver; see
//! [`protocol`](self) for the contract with the driver.
//!
//! ```text
//! Unknown -> Resolving -> Remote(region, generation) -> Buffering -> Remote ...
//!                      -> LocalStarting <-> Local(generation) -> Draining -> Resolving ...
//! ```
//! These states are a type, `slot::Slot`: each state owns the data that only this state has, and a transition consumes
//! the state that it leaves. Data kept for a shard in every state (waiting messages, generations heard of) is in
//! `place::Place`.
//!
//! Source: sharding §2.3 to §2.6, §2.9 to §2.12, §9. Differs: as tagged `[D]` there.

mod agreement;
mod buffer;
mod handoff;
mod homes;
mod host_watch;
mod hosting;
mod keeping;
mod message_counters;
mod nodes;
mod opening;
mod orders;
mod place;
mod protocol;
mod registration;
mod report;
mod requests;
mod routing;
mod shutdown;
mod slot;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use greylag_core::{DeadLetterReason, Generation, UniqueAddress};
use greylag_transport::Lane;

use self::agreement::Agreement;
use self::buffer::Content;
use self::host_watch::HostWatch;
use self::message_counters::MessageCounters;
pub use self::orders::answer_without_region;
use self::place::{Place, Places};
pub use self::protocol::{Effect, Input, MessageInfo, Provenance, Returned, Route, Token};
use self::registration::Registration;
pub use self::report::{Answer, Counters, Obstacle, RegionEvent, Request, RequestEnd};
use self::requests::Requests;
use self::slot::LeftRoute;
use crate::fingerprint::Fingerprint;
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Members;
use crate::machine::message::{ClaimState, PeerMessage, RegionMessage};
use crate::settings::ShardingSettings;

/// Configuration of a region.
#[derive(Clone)]
pub struct RegionConfig {
    /// The process and the incarnation of this region in it.
    pub id: RegionId,
    /// Routes but never hosts.
    pub proxy: bool,
    /// How this node describes the type: compared with the other members and the coordinator.
    pub fingerprint: Fingerprint,
    /// Role of the nodes that may run the coordinator; empty for all.
    pub coordinator_role: String,
    /// Timeouts and sizes.
    pub settings: ShardingSettings,
    /// The lane on which the frames and marks of a shard travel: `Remoting::lane_of`, a pure function.
    pub lane_of: Arc<dyn Fn(&ShardId) -> Lane + Send + Sync>,
}

impl fmt::Debug for RegionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionConfig").field("id", &self.id).field("proxy", &self.proxy).finish_non_exhaustive()
    }
}

/// The stage of the region's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionState {
    /// No coordinator has taken its registration yet (or the coordinator was lost).
    Unregistered,
    /// A coordinator has taken the registration.
    Registered,
    /// A coordinator refused the registration: sends fail.
    Refused,
    /// Hands its shards off; still routes and buffers.
    ShuttingDown,
    /// Ends at once: its shards are being killed.
    Stopping,
    /// No shard is hosted and no message is buffered any more.
    Stopped,
}

/// A protocol rule that a simulation leaves out on purpose, to prove that its checkers notice.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Flush marks are neither sent nor awaited (sharding §2.9).
    FlushMark,
    /// Homes of older generations are believed, and ended generations start again (sharding §2.4).
    GenerationCheck,
    /// Messages older than the shard's floor are taken (sharding §2.6).
    Floor,
    /// A route that was left counts as empty (sharding §2.6).
    OldPath,
    /// The new owner does not wait for the former owner's leftovers (sharding §2.9).
    LeftoverMark,
    /// A mark counts whatever handoff attempt it was sent for (sharding §2.2).
    Attempt,
    /// Coordinators of earlier epochs are obeyed (sharding §2.1).
    EpochFence,
}

/// A debug build checks all shards after each input, up to this many shards: with more, the work would grow with the
/// square.
const CHECKED_PLACES: usize = 1000;

/// Messages collected while one input is handled, and sent at its end: one message for each receiver.
#[derive(Debug, Default)]
struct PendingMessages {
    /// Homes to ask the coordinator for.
    asks: Vec<ShardId>,
    /// `StaleRoute`s.
    stale: BTreeMap<UniqueAddress, Vec<(ShardId, Generation)>>,
}

/// Settings that only a simulation changes.
#[derive(Debug)]
struct SimulationSettings {
    /// Messages that leave one buffer in one turn.
    flush_turn: usize,
    /// The rule that is left out.
    sabotage: Option<Sabotage>,
}

/// The machine; see the module's header.
#[derive(Debug)]
pub struct Region {
    config: RegionConfig,
    state: RegionState,
    members: Arc<Members>,
    suspect: bool,
    registration: Registration,
    requests: Requests,
    places: Places,
    pending: PendingMessages,
    /// Members for which the transport has handed back all its frames and writes no more.
    dead_ends: BTreeSet<UniqueAddress>,
    host_watch: HostWatch,
    agreement: Agreement,
    /// Probes sent so far.
    nonce: u64,
    message_counters: MessageCounters,
    /// Dead-letter reason for messages dropped once the region ends.
    end_reason: DeadLetterReason,
    simulation: SimulationSettings,
}

impl Region {
    /// A region that knows nothing. Its first input must be `Membership`.
    pub fn new(config: RegionConfig, now: Instant) -> Self {
        Self {
            registration: Registration::new(now),
            requests: Requests::default(),
            host_watch: HostWatch::new(config.settings.no_host_timeout),
            agreement: Agreement::new(&config),
            config,
            state: RegionState::Unregistered,
            members: Arc::default(),
            suspect: false,
            places: Places::default(),
            pending: PendingMessages::default(),
            dead_ends: BTreeSet::new(),
            nonce: 0,
            message_counters: MessageCounters::default(),
            end_reason: DeadLetterReason::RegionStopped,
            simulation: SimulationSettings { flush_turn: opening::FLUSH_TURN, sabotage: None },
        }
    }

    /// Empties a buffer in turns of `messages` messages. For simulations, whose buffers are small.
    #[doc(hidden)]
    pub fn flush_in_turns_of(&mut self, messages: usize) {
        self.simulation.flush_turn = messages;
    }

    /// Leaves a rule out. For simulations that prove their checkers.
    #[doc(hidden)]
    pub fn sabotage(&mut self, sabotage: Sabotage) {
        self.simulation.sabotage = Some(sabotage);
    }

    /// Whether the rule is left out.
    fn is_without(&self, rule: Sabotage) -> bool {
        self.simulation.sabotage == Some(rule)
    }

    /// Takes one input. Infallible: an input that makes no sense is dropped.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::LocalSend { shard, message } => self.on_local_send(now, shard, message, out),
            Input::Frame { node, shard, stamp, message } => {
                let content = Content::Message(message);
                self.message_counters.counters.submitted += 1;
                self.on_frame(now, node, &shard, stamp, content, out);
            }
            Input::Mark { node, shard, mark } => self.on_mark(now, node, &shard, mark, out),
            Input::FromCoordinator { node, message } => self.on_coordinator(now, node, message, out),
            Input::FromPeer { node, message } => self.on_peer(now, &node, message, out),
            Input::ShardInitialized { shard, generation } => self.on_initialized(now, &shard, generation, out),
            Input::ShardStopped { shard, generation, leftovers } => {
                self.on_shard_stopped(now, &shard, generation, leftovers, out);
            }
            Input::ShardFailed { shard, generation, unprocessed } => {
                self.on_shard_failed(now, &shard, generation, unprocessed, out);
            }
            Input::Fenced { shard, generation, stored } => self.on_fenced(now, &shard, generation, stored, out),
            Input::Membership(members) => self.on_membership(now, members, out),
            Input::SelfSuspect => self.on_suspect(out),
            Input::SelfTrusted => self.on_trusted(now, out),
            Input::SelfDowned => self.on_downed(now, out),
            Input::LinkLost { node, lane } => self.on_link_lost(now, &node, lane, out),
            Input::HandedBack { node, frames } => self.on_handed_back(now, &node, frames, out),
            Input::Continue { shard } => self.with_place(&shard, |region, place| {
                place.is_turn_asked = false;
                region.try_open(now, &shard, place, out);
            }),
            Input::Coordinator(incarnation) => {
                self.agreement.on_coordinator(now, incarnation, out);
                self.follow_agreement(now, out);
            }
            Input::Request { number, request, timeout } => self.on_request(now, number, request, timeout, out),
            Input::GracefulShutdown => self.on_graceful(now, out),
            Input::Stop => self.on_stop(now, out),
            Input::Tick => self.on_tick(now, out),
        }
        self.finish(now, out);
        self.check_invariants();
    }

    /// When a `Tick` next has work to do, or `None` if only another input can wake this machine.
    pub fn next_deadline(&self) -> Option<Instant> {
        let watches = [self.host_watch.next_deadline(), self.agreement.next_deadline()];
        let own = [self.places.next_deadline(), self.registration_deadline(), self.requests.next()];
        own.into_iter().chain(watches).flatten().min()
    }

    /// The id of this region.
    pub fn id(&self) -> &RegionId {
        &self.config.id
    }

    /// The stage of the region's life.
    pub fn state(&self) -> RegionState {
        self.state
    }

    /// Counts of the messages that passed through the machine.
    pub fn counters(&self) -> Counters {
        self.message_counters.counters
    }

    /// The shards hosted here, with their generations.
    pub fn hosted(&self) -> impl Iterator<Item = (&ShardId, Generation)> {
        self.places.hosted().filter_map(|(shard, place)| place.slot.hosted().map(|generation| (shard, generation)))
    }

    /// The state in which each hosted shard is reported to the coordinator.
    pub fn hosted_states(&self) -> impl Iterator<Item = ClaimState> {
        self.claims().into_iter().map(|claim| claim.state)
    }

    /// The entries of the route table.
    pub fn routes(&self) -> impl Iterator<Item = (&ShardId, Route)> {
        self.places.iter().map(|(shard, place)| (shard, place.slot.route()))
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for shard in self.places.due(now) {
            self.with_place(&shard, |region, place| region.on_alarm(now, &shard, place, out));
        }
        self.on_registration_tick(now, out);
        self.on_requests_tick(now, out);
        self.on_host_watch(now, out);
        self.agreement.on_tick(now, out);
    }

    /// Why this node is not ready for the type, as the rest of a sentence that begins with the type's name; `None` if
    /// ready.
    pub fn not_ready(&self) -> Option<String> {
        if self.host_watch.is_reported() {
            return Some(format!("no member with role {:?}", self.config.fingerprint.role));
        }
        if let Some(mismatch) = self.agreement.dispute() {
            return Some(format!("active on both sides: {mismatch}"));
        }
        let refused = self.registration.refused_for().filter(|_| self.state == RegionState::Refused)?;
        Some(format!("refused: {refused}"))
    }

    /// Does everything that is due for one shard.
    fn on_alarm(&mut self, now: Instant, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
        if place.asking.at.is_some_and(|at| at <= now) {
            place.asking.at = None;
            self.ask_home(now, shard, place);
        }
        let is_over = |left: &LeftRoute| match left {
            LeftRoute::Path(path) => path.deadline.is_some_and(|at| at <= now),
            LeftRoute::HandBack(_, until) => *until <= now,
        };
        if place.slot.left().is_some_and(is_over) {
            place.slot.forget_left();
        }
        self.on_hosting_alarm(now, shard, place, out);
        self.try_open(now, shard, place, out);
    }

    /// Takes the shard's place out while `act` runs, so that `act` can change both the place and the rest of the
    /// region.
    fn with_place<R>(&mut self, shard: &ShardId, act: impl FnOnce(&mut Self, &mut Place) -> R) -> R {
        let mut place = self.places.take(shard);
        let result = act(self, &mut place);
        self.places.put(shard, place);
        result
    }

    /// Sends the messages that were collected while the input was handled.
    fn finish(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for (node, routes) in std::mem::take(&mut self.pending.stale) {
            out.push(Effect::SendPeer { to: node, message: PeerMessage::StaleRoute(routes) });
        }
        let mut shards = std::mem::take(&mut self.pending.asks);
        shards.sort();
        shards.dedup();
        if !shards.is_empty()
            && let Some(coordinator) = self.registration.coordinator()
        {
            let to = coordinator.node.clone();
            let region = self.config.id.clone();
            out.push(Effect::SendCoordinator { to, message: RegionMessage::GetShardHome { region, shards } });
        }
        if let Some(percent) = self.message_counters.fill_to_report(&self.config.settings) {
            out.push(Effect::Event(RegionEvent::BufferFill { percent }));
        }
        self.try_finish_shutdown(now, out);
    }

    /// Asks the coordinator at once, and again after `retry_interval` while something waits. Without a coordinator the
    /// registration that is under way will ask.
    fn ask_home(&mut self, now: Instant, shard: &ShardId, place: &mut Place) {
        if !place.wants_home() || place.asking.at.is_some() || self.registration.coordinator().is_none() {
            return;
        }
        self.pending.asks.push(shard.clone());
        place.asking.at = Some(now + self.config.settings.retry_interval);
    }

    /// Closes the route of a shard, if it is open.
    fn close(&self, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
        if place.slot.close() {
            out.push(Effect::RouteChange { shard: shard.clone(), route: Route::Closed });
        }
    }

    /// Publishes the route of a shard, which is known and closed. A home other than the last one is reported as a move,
    /// so that delivery sends again.
    fn publish(&self, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
        place.slot.open();
        let route = place.slot.route();
        let to = match &route {
            Route::Closed => return,
            Route::Local { .. } => self.config.id.clone(),
            Route::Remote { region, .. } => region.clone(),
        };
        out.push(Effect::RouteChange { shard: shard.clone(), route });
        if let Some(from) = place.last_home.replace(to.clone()).filter(|from| *from != to) {
            out.push(Effect::Event(RegionEvent::ShardMoved { shard: shard.clone(), from, to }));
        }
    }

    /// Checks, after each input, the invariants that span several states; the types of the states ensure all others.
    fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            let are_few = self.places.len() <= CHECKED_PLACES;
            let buffered = || self.places.iter().map(|(_, place)| place.buffer.messages()).sum();
            self.message_counters.check_invariants(are_few.then(buffered));
            let is_closed = || self.places.iter().all(|(_, place)| !place.slot.is_open());
            assert!(!are_few || !self.suspect || is_closed(), "nothing passes by a node that is suspect");
        }
    }
}
