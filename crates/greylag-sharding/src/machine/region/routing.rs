//! Where messages go: sends, frames and marks of other regions, and which of them a shard's floor lets pass.
//!
//! A [`Router`] is what the shards of a region have in common: whom the region knows, what its messages amount to, and
//! what it asks for at the end of an input. What is known of one shard is its `ShardPlace`, which every call names.
//!
//! Source: sharding §2.4, §2.6.

mod messages;
mod opening;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use greylag_core::{DeadLetterReason, Generation, UniqueAddress};

use self::messages::Messages;
use super::config::{RegionConfig, RegionState};
use super::host_watch::HostWatch;
use super::place::{Content, Hosting, LeftRoute, Local, Rank, Served, ShardPlace, Slot, Table, Task, Waiting};
use super::protocol::{Effect, MessageInfo, Provenance, Route};
use super::registration::Registration;
use super::report::RegionEvent;
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Members;
use crate::machine::message::{Attempt, Mark, PeerMessage, RegionMessage, Stamp};
use crate::machine::omissions::Clause;
use crate::settings::HandoffStraggler;

/// Messages that leave one buffer in one turn, under the lock of all shards of the type.
const FLUSH_TURN: usize = 512;
/// A message forwarded more often than this suggests that homes known here are wrong.
const SUSPICIOUS_HOPS: u8 = 4;
/// A message forwarded more often than this runs in a circle.
const MAX_HOPS: u8 = 8;

/// See the module's description.
#[derive(Debug)]
pub(super) struct Router {
    pub(super) config: RegionConfig,
    pub(super) state: RegionState,
    pub(super) members: Arc<Members>,
    /// Whether this node cannot trust its own view: no route is open then.
    pub(super) suspect: bool,
    pub(super) registration: Registration,
    pub(super) host_watch: HostWatch,
    pub(super) messages: Messages,
    /// Members for which the transport has handed back all its frames and writes no more.
    pub(super) dead_ends: BTreeSet<UniqueAddress>,
    /// Dead-letter reason for messages dropped once the region ends.
    pub(super) end_reason: DeadLetterReason,
    /// Homes to ask the coordinator for at the end of the input.
    asks: Vec<ShardId>,
    /// `StaleRoute`s to send at the end of the input.
    stale: BTreeMap<UniqueAddress, Vec<(ShardId, Generation)>>,
    /// Probes sent so far.
    nonce: u64,
    /// Messages that leave one buffer in one turn.
    flush_turn: usize,
}

impl Router {
    /// A router that knows no member, no coordinator and no home.
    pub(super) fn new(config: RegionConfig, now: Instant) -> Self {
        Self {
            registration: Registration::new(now),
            host_watch: HostWatch::new(config.settings.no_host_timeout),
            config,
            state: RegionState::Unregistered,
            members: Arc::default(),
            suspect: false,
            asks: Vec::new(),
            stale: BTreeMap::new(),
            dead_ends: BTreeSet::new(),
            nonce: 0,
            messages: Messages::default(),
            end_reason: DeadLetterReason::RegionStopped,
            flush_turn: FLUSH_TURN,
        }
    }

    /// Empties a buffer in turns of `messages` messages.
    pub(super) fn flush_in_turns_of(&mut self, messages: usize) {
        self.flush_turn = messages;
    }

    pub(super) fn omits(&self, clause: Clause) -> bool {
        self.config.omissions.has(clause)
    }

    /// A message that is submitted here, before anything was done with it.
    pub(super) fn submitted_here(&self, message: MessageInfo) -> Waiting {
        Waiting {
            content: Content::Message(message),
            origin: self.config.id.clone(),
            first: None,
            stamped: None,
            hops: 0,
            rank: Rank::Plain,
            kept_at: None,
        }
    }

    /// Why a message that is submitted here is dropped at once, if so.
    pub(super) fn refuses_sends(&self) -> Option<DeadLetterReason> {
        match self.state {
            RegionState::Stopping => Some(self.end_reason),
            RegionState::Stopped => Some(DeadLetterReason::RegionStopped),
            RegionState::Refused => Some(DeadLetterReason::Refused),
            RegionState::Unregistered | RegionState::Registered | RegionState::ShuttingDown => None,
        }
    }

    /// Whether a region has marked, for this handoff attempt, that it sends no more.
    pub(super) fn is_marked(&self, marks: &BTreeMap<RegionId, Attempt>, from: &RegionId, attempt: Attempt) -> bool {
        let any = self.omits(Clause::Attempt);
        marks.get(from).is_some_and(|marked| any || *marked == attempt)
    }

    /// Whether the node was a member, and is none any more.
    pub(super) fn is_gone(&self, node: &UniqueAddress) -> bool {
        self.members.removed.contains_key(node) && !self.members.contains(node)
    }

    /// The state that makes a new route wait until `hold` for the frames that the transport still holds for a removed
    /// node. `None` if the transport handed its frames back before the removal: no more will come.
    pub(super) fn awaited_hand_back(&self, node: &UniqueAddress, hold: Instant) -> Option<LeftRoute> {
        (!self.dead_ends.contains(node)).then(|| LeftRoute::HandBack(node.clone(), hold))
    }

    /// Asks the coordinator for the shard's home at the end of the input.
    pub(super) fn ask_for(&mut self, shard: &ShardId) {
        self.asks.push(shard.clone());
    }

    /// Sends the messages that were collected while the input was handled: one for each receiver.
    pub(super) fn send_collected(&mut self, out: &mut Vec<Effect>) {
        for (node, routes) in std::mem::take(&mut self.stale) {
            out.push(Effect::SendPeer { to: node, message: PeerMessage::StaleRoute(routes) });
        }
        let mut shards = std::mem::take(&mut self.asks);
        shards.sort();
        shards.dedup();
        if !shards.is_empty()
            && let Some(coordinator) = self.registration.coordinator()
        {
            let to = coordinator.node.clone();
            let region = self.config.id.clone();
            out.push(Effect::SendCoordinator { to, message: RegionMessage::GetShardHome { region, shards } });
        }
        if let Some(percent) = self.messages.fill_to_report(&self.config.settings) {
            out.push(Effect::Event(RegionEvent::BufferFill { percent }));
        }
    }

    /// Sends an entry along the open route, or keeps it in the buffer.
    pub(super) fn route(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut ShardPlace,
        waiting: Waiting,
        out: &mut Vec<Effect>,
    ) {
        match place.slot.route() {
            Route::Closed => self.keep(now, shard, place, waiting, out),
            Route::Local { generation } if waiting.stamped > Some(generation) => {
                // Keep the message: a newer allocation to this region is on its way.
                self.keep(now, shard, place, waiting, out);
            }
            Route::Local { .. } => self.deliver(shard, place, waiting, out),
            Route::Remote { region, generation } => self.forward(shard, &region, generation, waiting, out),
        }
    }

    /// Keeps an entry until its shard has a route.
    pub(super) fn keep(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut ShardPlace,
        waiting: Waiting,
        out: &mut Vec<Effect>,
    ) {
        let is_message = matches!(waiting.content, Content::Message(_));
        if is_message && !self.messages.make_room(shard, &mut place.buffer, &waiting, &self.config.settings, out) {
            return;
        }
        self.host_watch.kept(now, shard);
        let waiting = Waiting { kept_at: Some(now), ..waiting };
        self.messages.count_in(&waiting.content);
        place.buffer.insert(waiting);
        // A shard that remembers its entities keeps its backoff: its store may need it.
        if !self.config.settings.remember.enabled {
            place.hasten_restart(now);
        }
        self.ask_home(now, shard, place);
    }

    /// Hands an entry to the local shard if the floor of its origin allows.
    pub(super) fn deliver(&mut self, shard: &ShardId, place: &mut ShardPlace, waiting: Waiting, out: &mut Vec<Effect>) {
        let own = waiting.origin == self.config.id;
        let Content::Message(MessageInfo { token, .. }) = waiting.content else {
            if let Content::Probe { nonce } = waiting.content {
                self.echo(shard, place, waiting.origin, nonce, out);
            }
            return;
        };
        let Slot::Local(local) = &mut place.slot else { return };
        let Local { hosting, table, .. } = &mut **local;
        let generation = hosting.generation;
        if let Err(reason) = self.check_floor(hosting, &waiting) {
            // The origin may still use the older home, since a region that buffered the message for want of a home knew
            // no newer home to report. Report the generation before this one: enough to leave the older home, while a
            // route to here stays open.
            let newer = hosting.previous.filter(|previous| waiting.first.is_some_and(|first| first < *previous));
            if let Some(newer) = newer.filter(|_| !own) {
                self.note_stale(waiting.origin.node.clone(), shard, newer);
            }
            return self.messages.drop_waiting(shard, &waiting, reason, out);
        }
        let provenance = match waiting.first {
            None if own => Provenance::Own,
            first => Provenance::Received { origin: waiting.origin.clone(), first: first.unwrap_or(generation) },
        };
        self.messages.on_delivered();
        out.push(Effect::Deliver { shard: shard.clone(), generation, token, provenance });
        let straight = waiting.hops == 1 && waiting.first == Some(generation) && waiting.rank == Rank::Plain;
        if let Table::Open { admitted } = table
            && straight
            && admitted.insert(waiting.origin.clone())
        {
            out.push(Effect::Admit { shard: shard.clone(), origin: waiting.origin });
        }
    }

    /// The floor: nothing older is taken from an origin than was taken from it before (sharding §2.6). Leftovers pass
    /// the floor, since they were checked where they were made, and raise it for later messages.
    pub(super) fn check_floor(&self, hosting: &mut Hosting, waiting: &Waiting) -> Result<(), DeadLetterReason> {
        let first = waiting.first.unwrap_or(hosting.generation);
        let relaxed = self.config.settings.handoff_straggler == HandoffStraggler::Forward || self.omits(Clause::Floor);
        let floor = hosting.floors.get(&waiting.origin).copied();
        match &waiting.rank {
            // The leftovers must have been kept for the allocation of this hosting.
            Rank::Leftover { ended } if hosting.previous == Some(*ended) => {}
            Rank::Handed { by, addressed }
                if *addressed == hosting.generation
                    && hosting.leftovers_from.as_ref().is_some_and(|from| from.node == *by) => {}
            Rank::Leftover { .. } | Rank::Handed { .. } => return Err(DeadLetterReason::HandOffStraggler),
            Rank::Taken { generation } if *generation == hosting.generation => return Ok(()),
            Rank::Taken { .. } | Rank::Back | Rank::Plain => {
                let too_old = floor.max(hosting.previous).is_some_and(|floor| first < floor);
                if too_old && !relaxed {
                    return Err(DeadLetterReason::RouteStraggler);
                }
            }
        }
        hosting.floors.insert(waiting.origin.clone(), floor.max(Some(first)).unwrap_or(first));
        Ok(())
    }

    pub(super) fn forward(
        &mut self,
        shard: &ShardId,
        to: &RegionId,
        generation: Generation,
        waiting: Waiting,
        out: &mut Vec<Effect>,
    ) {
        let leftover = match &waiting.rank {
            Rank::Leftover { .. } => true,
            // The message was kept for a home of this region that was never hosted.
            Rank::Handed { .. } => {
                return self.messages.drop_waiting(shard, &waiting, DeadLetterReason::HandOffStraggler, out);
            }
            Rank::Taken { .. } | Rank::Back | Rank::Plain => false,
        };
        let stamp = Stamp {
            generation,
            origin: waiting.origin,
            first: waiting.first.unwrap_or(generation),
            hops: waiting.hops,
            leftover,
        };
        let (to, shard) = (to.clone(), shard.clone());
        match waiting.content {
            Content::Message(MessageInfo { token, .. }) => {
                self.messages.on_forwarded();
                out.push(Effect::SendData { to, shard, token, stamp });
            }
            Content::Probe { nonce } => {
                out.push(Effect::SendMark { to, shard, mark: Mark::Probe { nonce, stamp } });
            }
        }
    }

    fn echo(&mut self, shard: &ShardId, place: &mut ShardPlace, to: RegionId, nonce: u64, out: &mut Vec<Effect>) {
        if to == self.config.id {
            return place.on_own_echo(nonce);
        }
        let node = to.node.clone();
        out.push(Effect::SendPeer { to: node, message: PeerMessage::FlushEcho { shard: shard.clone(), nonce, to } });
    }

    /// A message or probe from another region (sharding §2.6).
    pub(super) fn on_frame(
        &mut self,
        now: Instant,
        node: UniqueAddress,
        shard: &ShardId,
        place: &mut ShardPlace,
        (stamp, content): (Stamp, Content),
        out: &mut Vec<Effect>,
    ) {
        let own = stamp.origin == self.config.id;
        let rank = match (stamp.leftover, own) {
            (true, _) => Rank::Handed { by: node.clone(), addressed: stamp.generation },
            (false, true) => Rank::Back,
            (false, false) => Rank::Plain,
        };
        let waiting = Waiting {
            content,
            origin: stamp.origin,
            first: Some(stamp.first),
            stamped: Some(stamp.generation),
            hops: stamp.hops.saturating_add(1),
            rank,
            kept_at: None,
        };
        if let Some(reason) = self.refusal(place, stamp.hops, &waiting) {
            return self.refuse(node, shard, stamp.generation, &waiting, reason, out);
        }
        place.note_generation(stamp.generation);
        // A probe that comes back to its sender counts as its echo.
        if let (Content::Probe { nonce }, true) = (&waiting.content, own) {
            place.on_own_echo(*nonce);
            return self.try_open(now, shard, place, out);
        }
        self.on_stamp(now, node, shard, place, (stamp.generation, stamp.hops), out);
        self.route(now, shard, place, waiting, out);
    }

    /// Learns from a frame which generation its sender believed in: leaves an own route that is older, and tells a
    /// sender whose home is older.
    fn on_stamp(
        &mut self,
        now: Instant,
        node: UniqueAddress,
        shard: &ShardId,
        place: &mut ShardPlace,
        (stamped, hops): (Generation, u8),
        out: &mut Vec<Effect>,
    ) {
        match &place.slot {
            Slot::Remote(remote) if remote.generation < stamped || hops > SUSPICIOUS_HOPS => {
                self.leave_remote(now, shard, place, true, out);
            }
            Slot::Remote(remote) => self.note_stale(node, shard, remote.generation),
            Slot::LocalStarting(_) | Slot::Local(_) | Slot::Draining(_) => {
                if let Some(hosted) = place.slot.hosted().filter(|hosted| *hosted > stamped) {
                    self.note_stale(node, shard, hosted);
                }
            }
            // Tell the sender that its home is older even if no home is known here.
            Slot::Unknown | Slot::Resolving(_) | Slot::Buffering(_) => {
                if let Some(heard) = place.heard.filter(|heard| *heard > stamped) {
                    self.note_stale(node, shard, heard);
                }
            }
        }
    }

    /// Drops a frame. A sender whose route ends at a stopped region is told so: as long as this node is a member,
    /// neither a change of members nor an unrequested home would make the sender leave that route.
    fn refuse(
        &mut self,
        node: UniqueAddress,
        shard: &ShardId,
        generation: Generation,
        waiting: &Waiting,
        reason: DeadLetterReason,
        out: &mut Vec<Effect>,
    ) {
        if self.state == RegionState::Stopped {
            self.note_stale(node, shard, generation);
        }
        self.messages.drop_waiting(shard, waiting, reason, out);
    }

    /// Why a frame may not even wait here.
    fn refusal(&self, place: &ShardPlace, hops: u8, waiting: &Waiting) -> Option<DeadLetterReason> {
        match self.state {
            RegionState::Stopped | RegionState::Stopping => return Some(DeadLetterReason::RegionStopped),
            RegionState::Refused => return Some(DeadLetterReason::Refused),
            _ => {}
        }
        if hops > MAX_HOPS {
            return Some(DeadLetterReason::RouteLoop);
        }
        let Rank::Handed { addressed, .. } = &waiting.rank else { return None };
        // Leftovers are valid for the home that they were sent to, until it serves.
        let timely = match place.slot.hosting().filter(|hosting| hosting.generation >= *addressed) {
            Some(hosting) => {
                let has_served = match &place.slot {
                    Slot::LocalStarting(starting) => starting.served != Served::Never,
                    _ => true,
                };
                hosting.generation == *addressed && !has_served
            }
            None => Some(*addressed) > place.ended && Some(*addressed) >= place.heard,
        };
        (!timely).then_some(DeadLetterReason::HandOffStraggler)
    }

    fn note_stale(&mut self, node: UniqueAddress, shard: &ShardId, generation: Generation) {
        let routes = self.stale.entry(node).or_default();
        if routes.last() != Some(&(shard.clone(), generation)) {
            routes.push((shard.clone(), generation));
        }
    }

    /// Empties one shard's buffer into dead letters.
    pub(super) fn drop_buffer(
        &mut self,
        shard: &ShardId,
        place: &mut ShardPlace,
        reason: DeadLetterReason,
        out: &mut Vec<Effect>,
    ) {
        for waiting in place.buffer.take() {
            self.messages.count_out(&waiting.content);
            self.messages.drop_waiting(shard, &waiting, reason, out);
        }
        place.owes_leftover_mark = false;
    }

    /// Asks the coordinator at once, and again after `retry_interval` while something waits. Without a coordinator the
    /// registration that is under way will ask.
    pub(super) fn ask_home(&mut self, now: Instant, shard: &ShardId, place: &mut ShardPlace) {
        if !place.wants_home() || place.asking.at.is_some() || self.registration.coordinator().is_none() {
            return;
        }
        self.ask_for(shard);
        place.asking.at = Some(now + self.config.settings.retry_interval);
    }

    /// Sends a message to the coordinator, if one is known; a lost message is repeated or asked for again.
    pub(super) fn send_to_coordinator(&self, message: RegionMessage, out: &mut Vec<Effect>) {
        if let Some(coordinator) = self.registration.coordinator() {
            out.push(Effect::SendCoordinator { to: coordinator.node.clone(), message });
        }
    }

    /// Tells the coordinator that the shard is accepted; a region that does not start the shard asks for its handoff
    /// instead.
    pub(super) fn report_accepted(&self, shard: &ShardId, generation: Generation, task: Task, out: &mut Vec<Effect>) {
        let region = self.config.id.clone();
        if task == Task::Absent {
            return self.send_to_coordinator(RegionMessage::GracefulShutdownReq { region }, out);
        }
        self.send_to_coordinator(
            RegionMessage::ShardStarted { region, shards: vec![(shard.clone(), generation)] },
            out,
        );
    }
}
