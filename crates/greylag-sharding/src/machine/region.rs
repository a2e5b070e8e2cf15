//! Routes the messages of one entity type on one node: knows homes, buffers, hosts, hands off.
//!
//! A region keeps the home of every shard, as far as it knows it, and publishes the homes as a route table;
//! only messages that have no open route, or need a check, pass through this machine. The region takes orders
//! from one coordinator at a time and checks every one by epoch and generation. Shards themselves,
//! messages and links belong to the driver; see [`protocol`](self) for the contract with it.
//!
//! ```text
//! Unknown -> Resolving -> Remote(region, generation) -> Buffering -> Remote ...
//!                      -> LocalStarting -> Local(generation) -> Draining -> Resolving ...
//! ```
//!
//! Source: sharding §2.3 to §2.6, §2.9 to §2.12, §9. Differs: as tagged `[D]` there.

mod agreement;
mod buffer;
mod handoff;
mod host_watch;
mod hosting;
mod protocol;
mod registration;
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
use self::buffer::{Content, Rank, Waiting};
use self::host_watch::HostWatch;
pub use self::protocol::{
    Answer, Counters, Effect, Input, MessageInfo, Provenance, RegionEvent, Request, RequestEnd, Returned, Route, Token,
};
use self::registration::Registration;
pub use self::registration::answer_without_region;
use self::requests::Requests;
use self::slot::{Slot, State};
use crate::fingerprint::Fingerprint;
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Members;
use crate::machine::message::{ClaimState, RegionMessage};
use crate::settings::{BufferOverflow, ShardingSettings};
use crate::timetable::Timetable;

/// What a region is made of.
#[derive(Clone)]
pub struct RegionConfig {
    /// The process and the incarnation of this region in it.
    pub id: RegionId,
    /// Routes but never hosts.
    pub proxy: bool,
    /// What this node understands the type to be.
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

/// How far the region is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionState {
    /// No coordinator has taken its registration yet (or the coordinator was lost).
    Unregistered,
    /// A coordinator has.
    Registered,
    /// A coordinator refused it: sends fail.
    Refused,
    /// Hands off; still routes and buffers.
    ShuttingDown,
    /// Ends at once: its shards are dying.
    Stopping,
    /// Over.
    Stopped,
}

/// A rule left out on purpose, so that a simulation can prove that it would notice.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Flush marks are neither sent nor awaited (sharding §2.9).
    FlushMark,
    /// Late homes are believed and ended generations start again (sharding §2.4).
    GenerationCheck,
    /// Stragglers are taken (sharding §2.6).
    Floor,
    /// Routes left are thought to be empty (sharding §2.6).
    OldPath,
    /// The new owner does not wait for leftovers (sharding §2.9).
    LeftoverMark,
    /// A mark counts whatever try it was sent for (sharding §2.2).
    Attempt,
    /// Coordinators of earlier epochs are obeyed (sharding §2.1).
    EpochFence,
}

/// A debug build looks at all slots after each input, up to so many: with more of them, work would grow with the square.
const CHECKED_SLOTS: usize = 1000;

/// What is said at the end of the input that gave rise to it, in one message for each receiver.
#[derive(Debug, Default)]
struct Collected {
    /// Homes to ask the coordinator for.
    asks: Vec<ShardId>,
    /// `StaleRoute`s.
    stale: BTreeMap<UniqueAddress, Vec<(ShardId, Generation)>>,
}

/// How full the buffers are together, besides the number of messages that the counters have.
#[derive(Debug, Default)]
struct Fill {
    bytes: u64,
    /// The tenth last reported.
    reported: usize,
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
    slots: BTreeMap<ShardId, Slot>,
    /// When each slot has work to do.
    alarms: Timetable<ShardId>,
    collected: Collected,
    /// Members to which the transport writes nothing any more: it has handed back what it held for them.
    dead_ends: BTreeSet<UniqueAddress>,
    host_watch: HostWatch,
    agreement: Agreement,
    /// Probes sent so far.
    nonce: u64,
    counters: Counters,
    fill: Fill,
    /// Why messages are dropped from the moment on at which the region ends.
    end_reason: DeadLetterReason,
    /// Messages that leave one buffer in one turn.
    flush_turn: usize,
    sabotage: Option<Sabotage>,
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
            slots: BTreeMap::new(),
            alarms: Timetable::default(),
            collected: Collected::default(),
            dead_ends: BTreeSet::new(),
            nonce: 0,
            counters: Counters::default(),
            fill: Fill::default(),
            end_reason: DeadLetterReason::RegionStopped,
            flush_turn: routing::FLUSH_TURN,
            sabotage: None,
        }
    }

    /// Empties a buffer in turns of so many messages. For simulations, whose buffers are small.
    #[doc(hidden)]
    pub fn flush_in_turns_of(&mut self, messages: usize) {
        self.flush_turn = messages;
    }

    /// Leaves a rule out. For simulations that prove their checkers.
    #[doc(hidden)]
    pub fn sabotage(&mut self, sabotage: Sabotage) {
        self.sabotage = Some(sabotage);
    }

    /// Takes one input. Infallible: what makes no sense is dropped.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::LocalSend { shard, message } => self.on_local_send(now, shard, message, out),
            Input::Frame { node, shard, stamp, message } => {
                let content = Content::Message(message);
                self.counters.submitted += 1;
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
            Input::Continue { shard } => self.with_slot(&shard, |region, slot| {
                slot.is_turn_asked = false;
                region.try_open(now, &shard, slot, out);
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
        let own = [self.alarms.next(), self.registration_deadline(), self.requests.next()];
        own.into_iter().chain(watches).flatten().min()
    }

    /// The id of this region.
    pub fn id(&self) -> &RegionId {
        &self.config.id
    }

    /// How far it is.
    pub fn state(&self) -> RegionState {
        self.state
    }

    /// What became of the messages that passed through the machine.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The shards hosted here, with their generations.
    pub fn hosted(&self) -> impl Iterator<Item = (&ShardId, Generation)> {
        self.slots.iter().filter_map(|(shard, slot)| slot.hosting().map(|hosting| (shard, hosting.generation)))
    }

    /// How far each of them is.
    pub fn hosted_states(&self) -> impl Iterator<Item = ClaimState> {
        self.claims().into_iter().map(|claim| claim.state)
    }

    /// What the route table holds now.
    pub fn routes(&self) -> impl Iterator<Item = (&ShardId, &Route)> {
        self.slots.iter().map(|(shard, slot)| (shard, &slot.published))
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for shard in self.alarms.due(now) {
            self.with_slot(&shard, |region, slot| region.on_slot_alarm(now, &shard, slot, out));
        }
        self.on_registration_tick(now, out);
        self.on_requests_tick(now, out);
        self.on_host_watch(now, out);
        self.agreement.on_tick(now, out);
    }

    /// Tells that no member hosts the type, and ends what has waited for too long.
    fn on_host_watch(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let due = self.host_watch.tick(now);
        if due.tell {
            out.push(Effect::Event(RegionEvent::NoHost { role: self.config.fingerprint.role.clone() }));
        }
        let Some(cutoff) = now.checked_sub(self.host_watch.timeout()) else { return };
        for shard in due.shards {
            self.with_slot(&shard, |region, slot| {
                for waiting in slot.buffer.take_older(cutoff) {
                    region.count_out(&waiting.content);
                    region.drop_waiting(&shard, &waiting, DeadLetterReason::NoHost, out);
                }
                if let Some(since) = slot.buffer.oldest() {
                    region.host_watch.waits_on(now, &shard, since);
                }
            });
        }
    }

    /// Why this node is not ready for the type, as a sentence that begins after its name; `None` if it is.
    pub fn not_ready(&self) -> Option<String> {
        if self.host_watch.is_told() {
            return Some(format!("no member with role {:?}", self.config.fingerprint.role));
        }
        if let Some(mismatch) = self.agreement.dispute() {
            return Some(format!("active on both sides: {mismatch}"));
        }
        let refused = self.registration.refused_for().filter(|_| self.state == RegionState::Refused)?;
        Some(format!("refused: {refused}"))
    }

    /// Does everything due for one shard.
    fn on_slot_alarm(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, out: &mut Vec<Effect>) {
        if slot.asking.at.is_some_and(|at| at <= now) {
            slot.asking.at = None;
            self.ask_home(now, shard, slot);
        }
        if slot.hand_back.as_ref().is_some_and(|(_, at)| *at <= now) {
            slot.hand_back = None;
        }
        if slot.old_path.as_ref().is_some_and(|path| path.deadline.is_some_and(|at| at <= now)) {
            slot.old_path = None;
        }
        self.on_hosting_alarm(now, shard, slot, out);
        self.try_open(now, shard, slot, out);
    }

    /// Lends out a shard's slot together with the rest of the region, and keeps its alarm right.
    fn with_slot<R>(&mut self, shard: &ShardId, act: impl FnOnce(&mut Self, &mut Slot) -> R) -> R {
        let mut slot = self.slots.remove(shard).unwrap_or_default();
        let result = act(self, &mut slot);
        self.alarms.change(shard, slot.deadline());
        self.slots.insert(shard.clone(), slot);
        result
    }

    fn shards_where(&self, wanted: impl Fn(&Slot) -> bool) -> Vec<ShardId> {
        self.slots.iter().filter(|(_, slot)| wanted(slot)).map(|(shard, _)| shard.clone()).collect()
    }

    /// Sends the messages that were collected while the input was handled.
    fn finish(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for (node, routes) in std::mem::take(&mut self.collected.stale) {
            out.push(Effect::SendPeer { to: node, message: crate::machine::message::PeerMessage::StaleRoute(routes) });
        }
        let mut shards = std::mem::take(&mut self.collected.asks);
        shards.sort();
        shards.dedup();
        if !shards.is_empty()
            && let Some(coordinator) = self.registration.coordinator()
        {
            let to = coordinator.node.clone();
            let region = self.config.id.clone();
            out.push(Effect::SendCoordinator { to, message: RegionMessage::GetShardHome { region, shards } });
        }
        self.report_fill(out);
        self.try_finish_shutdown(now, out);
    }

    /// Asks at once, and again after `retry_interval` while something waits. Without a coordinator
    /// the registration that is under way will ask.
    fn ask_home(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot) {
        if !slot.wants_home() || slot.asking.at.is_some() || self.registration.coordinator().is_none() {
            return;
        }
        self.collected.asks.push(shard.clone());
        slot.asking.at = Some(now + self.config.settings.retry_interval);
    }

    /// Keeps an entry until its shard has a route.
    fn keep(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, waiting: Waiting, out: &mut Vec<Effect>) {
        let is_message = matches!(waiting.content, Content::Message(_));
        if is_message && !self.make_room(shard, slot, &waiting, out) {
            return;
        }
        self.host_watch.kept(now, shard);
        let waiting = Waiting { kept_at: Some(now), ..waiting };
        self.count_in(&waiting.content);
        slot.buffer.insert(waiting);
        self.hasten_restart(now, slot);
        self.ask_home(now, shard, slot);
    }

    /// Whether one message more may wait. Marks, and messages accepted once already, always may.
    fn make_room(&mut self, shard: &ShardId, slot: &mut Slot, waiting: &Waiting, out: &mut Vec<Effect>) -> bool {
        let size = waiting.content.size();
        if waiting.rank != Rank::Plain {
            return true;
        }
        let drops_old = self.config.settings.buffer_overflow == BufferOverflow::DropOld;
        while self.is_full(size) {
            let Some(dropped) = drops_old.then(|| slot.buffer.take_oldest_plain()).flatten() else {
                self.drop_waiting(shard, waiting, DeadLetterReason::BufferFull, out);
                return false;
            };
            self.count_out(&dropped.content);
            self.drop_waiting(shard, &dropped, DeadLetterReason::BufferFull, out);
        }
        true
    }

    /// Whether a message of that size is one too many. One that is larger than all of the buffer waits alone.
    fn is_full(&self, size: u64) -> bool {
        let settings = &self.config.settings;
        let is_beyond = self.fill.bytes + size > settings.buffer_bytes as u64;
        self.counters.buffered >= settings.buffer_size as u64 || (is_beyond && self.counters.buffered > 0)
    }

    fn count_in(&mut self, content: &Content) {
        if let Content::Message(message) = content {
            self.counters.buffered += 1;
            self.fill.bytes += u64::from(message.size);
        }
    }

    fn count_out(&mut self, content: &Content) {
        if let Content::Message(message) = content {
            self.counters.buffered -= 1;
            self.fill.bytes -= u64::from(message.size);
        }
    }

    /// Ends the wait of an entry that is in no buffer any more. A probe vanishes silently: the region
    /// that sent it has a timeout.
    fn drop_waiting(&mut self, shard: &ShardId, waiting: &Waiting, reason: DeadLetterReason, out: &mut Vec<Effect>) {
        if let Content::Message(message) = waiting.content {
            self.counters.dead_lettered += 1;
            out.push(Effect::DeadLetter { shard: shard.clone(), token: message.token, reason });
        }
    }

    /// Empties one shard's buffer into dead letters.
    fn drop_buffer(&mut self, shard: &ShardId, slot: &mut Slot, reason: DeadLetterReason, out: &mut Vec<Effect>) {
        for waiting in slot.buffer.take() {
            self.count_out(&waiting.content);
            self.drop_waiting(shard, &waiting, reason, out);
        }
        slot.owes_leftover_mark = false;
    }

    fn report_fill(&mut self, out: &mut Vec<Effect>) {
        let settings = &self.config.settings;
        let messages = (self.counters.buffered as usize).saturating_mul(10) / settings.buffer_size;
        let bytes = (self.fill.bytes as usize).saturating_mul(10) / settings.buffer_bytes;
        let tenth = messages.max(bytes);
        if tenth > self.fill.reported {
            out.push(Effect::Event(RegionEvent::BufferFill { percent: (tenth.min(10) * 10) as u8 }));
        }
        self.fill.reported = tenth;
    }

    /// Publishes a route if it differs from the one published.
    fn publish(&self, shard: &ShardId, slot: &mut Slot, route: Route, out: &mut Vec<Effect>) {
        if slot.published != route {
            slot.published = route.clone();
            let home = match &route {
                Route::Closed => None,
                Route::Local { .. } => Some(self.config.id.clone()),
                Route::Remote { region, .. } => Some(region.clone()),
            };
            out.push(Effect::RouteChange { shard: shard.clone(), route });
            self.tell_of_move(shard, slot, home, out);
            if let Some(hosting) = slot.hosting_mut() {
                hosting.admitted.clear();
            }
        }
    }

    /// A shard that answers from another place than before has moved; delivery sends again on it.
    fn tell_of_move(&self, shard: &ShardId, slot: &mut Slot, home: Option<RegionId>, out: &mut Vec<Effect>) {
        let Some(to) = home else { return };
        if let Some(from) = slot.last_home.replace(to.clone()).filter(|from| *from != to) {
            out.push(Effect::Event(RegionEvent::ShardMoved { shard: shard.clone(), from, to }));
        }
    }

    fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            let c = &self.counters;
            assert_eq!(c.submitted, c.delivered + c.forwarded + c.dead_lettered + c.buffered, "no message is lost");
            if self.slots.len() > CHECKED_SLOTS {
                return;
            }
            let messages: usize = self.slots.values().map(|slot| slot.buffer.messages()).sum();
            assert_eq!(messages as u64, c.buffered, "what is counted as buffered is in a buffer");
            assert!(c.buffered > 0 || self.fill.bytes == 0, "what is not there takes no room");
            for (shard, slot) in &self.slots {
                match &slot.published {
                    Route::Closed => {}
                    Route::Local { generation } => {
                        let hosting = slot.hosting().expect("a published local route is hosted");
                        assert_eq!(hosting.generation, *generation, "{shard}");
                        assert!(!self.suspect && hosting.ending.is_none(), "{shard}");
                    }
                    Route::Remote { .. } => assert!(matches!(slot.state, State::Remote { .. }), "{shard}"),
                }
            }
        }
    }
}
