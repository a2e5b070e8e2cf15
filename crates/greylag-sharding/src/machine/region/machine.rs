//! The region itself: hands each input to the part that it is for, and ends.
//!
//! Source: sharding §2.3 to §2.6, §2.11, §2.12.

use std::time::Instant;

use greylag_core::{DeadLetterReason, Generation, UniqueAddress};

use super::agreement::Agreement;
use super::config::{RegionConfig, RegionState};
use super::place::{AfterDrain, Content, Ending, Places, ShardPlace};
use super::protocol::{Effect, Input, MessageInfo, Route};
use super::report::{Counters, RegionEvent};
use super::requests::Requests;
use super::routing::Router;
use crate::ids::{RegionId, ShardId};
use crate::machine::message::{ClaimState, Mark, PeerMessage};
use crate::machine::omissions::Clause;

/// A debug build checks all shards after each input, up to this many shards: with more, the work would grow with the
/// square.
const CHECKED_PLACES: usize = 1000;

/// The machine; see the module's header.
#[derive(Debug)]
pub struct Region {
    pub(super) router: Router,
    pub(super) places: Places,
    pub(super) requests: Requests,
    pub(super) agreement: Agreement,
}

impl Region {
    /// A region that knows nothing. Its first input must be `Membership`.
    pub fn new(config: RegionConfig, now: Instant) -> Self {
        Self {
            requests: Requests::default(),
            agreement: Agreement::new(&config),
            router: Router::new(config, now),
            places: Places::default(),
        }
    }

    /// Empties a buffer in turns of `messages` messages. For simulations, whose buffers are small.
    #[doc(hidden)]
    pub fn flush_in_turns_of(&mut self, messages: usize) {
        self.router.flush_in_turns_of(messages);
    }

    /// Takes one input. Infallible: an input that makes no sense is dropped.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::LocalSend { shard, message } => self.on_local_send(now, &shard, message, out),
            Input::Frame { node, shard, stamp, message } => {
                let content = Content::Message(message);
                self.router.messages.on_submitted(1);
                self.with_place(&shard, |router, place| {
                    router.on_frame(now, node, &shard, place, (stamp, content), out);
                });
            }
            Input::Mark { node, shard, mark } => self.on_mark(now, node, &shard, mark, out),
            Input::FromCoordinator { node, message } => self.on_coordinator(now, node, message, out),
            Input::FromPeer { node, message } => self.on_peer(now, &node, message, out),
            Input::ShardInitialized { shard, generation } => self.with_place(&shard, |router, place| {
                place.on_initialized(now, &shard, router, generation, out);
            }),
            Input::ShardStopped { shard, generation, leftovers } => self.with_place(&shard, |router, place| {
                place.on_shard_stopped(now, &shard, router, generation, leftovers, out);
            }),
            Input::ShardFailed { shard, generation, unprocessed } => self.with_place(&shard, |router, place| {
                place.on_shard_failed(now, &shard, router, generation, unprocessed, out);
            }),
            Input::Fenced { shard, generation, stored } => self.with_place(&shard, |router, place| {
                place.on_fenced(now, &shard, router, generation, stored, out);
            }),
            Input::Membership(members) => self.on_membership(now, members, out),
            Input::SelfSuspect => self.on_suspect(out),
            Input::SelfTrusted => self.on_trusted(now, out),
            Input::SelfDowned => self.on_downed(now, out),
            Input::LinkLost { node, lane } => self.on_link_lost(now, &node, lane, out),
            Input::HandedBack { node, frames } => self.on_handed_back(now, &node, frames, out),
            Input::Continue { shard } => self.with_place(&shard, |router, place| {
                place.is_turn_asked = false;
                router.try_open(now, &shard, place, out);
            }),
            Input::Coordinator(incarnation) => {
                self.agreement.on_coordinator(now, incarnation, out);
                self.follow_agreement(now, out);
            }
            Input::Request { number, request, timeout } => {
                self.requests.on_request(now, number, request, timeout, &self.router, out);
            }
            Input::GracefulShutdown => self.on_graceful(now, out),
            Input::Stop => self.on_stop(now, out),
            Input::Tick => self.on_tick(now, out),
        }
        self.finish(now, out);
        self.check_invariants();
    }

    /// When a `Tick` next has work to do, or `None` if only another input can wake this machine.
    pub fn next_deadline(&self) -> Option<Instant> {
        let watches = [self.router.host_watch.next_deadline(), self.agreement.next_deadline()];
        let own = [self.places.next_deadline(), self.router.registration.next_deadline(), self.requests.next()];
        own.into_iter().chain(watches).flatten().min()
    }

    /// The id of this region.
    pub fn id(&self) -> &RegionId {
        &self.router.config.id
    }

    /// The stage of the region's life.
    pub fn state(&self) -> RegionState {
        self.router.state
    }

    /// Counts of the messages that passed through the machine.
    pub fn counters(&self) -> Counters {
        self.router.messages.counters()
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
            self.with_place(&shard, |router, place| place.on_alarm(now, &shard, router, out));
        }
        self.on_registration_tick(now, out);
        self.requests.on_tick(now, &self.router, out);
        self.on_host_watch(now, out);
        self.agreement.on_tick(now, out);
    }

    /// Why this node is not ready for the type, as the rest of a sentence that begins with the type's name; `None` if
    /// ready.
    pub fn not_ready(&self) -> Option<String> {
        if self.router.host_watch.is_reported() {
            return Some(format!("no member with role {:?}", self.router.config.fingerprint.role));
        }
        if let Some(mismatch) = self.agreement.dispute() {
            return Some(format!("active on both sides: {mismatch}"));
        }
        let refused = self.router.registration.refused_for().filter(|_| self.router.state == RegionState::Refused)?;
        Some(format!("refused: {refused}"))
    }

    /// Takes the shard's place out while `act` runs, so that `act` can change both the place and the router.
    pub(super) fn with_place<R>(&mut self, shard: &ShardId, act: impl FnOnce(&mut Router, &mut ShardPlace) -> R) -> R {
        let mut place = self.places.take(shard);
        let result = act(&mut self.router, &mut place);
        self.places.put(shard, place);
        result
    }

    /// Sends the messages that were collected while the input was handled.
    fn finish(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.router.send_collected(out);
        self.try_finish_shutdown(now, out);
    }

    /// Checks, after each input, the invariants that span several states; the types of the states ensure all others.
    fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            let are_few = self.places.len() <= CHECKED_PLACES;
            let buffered = || self.places.iter().map(|(_, place)| place.buffer.messages()).sum();
            self.router.messages.check_invariants(are_few.then(buffered));
            let is_closed = || self.places.iter().all(|(_, place)| !place.slot.is_open());
            assert!(!are_few || !self.router.suspect || is_closed(), "nothing passes by a node that is suspect");
            if are_few {
                self.places.check_invariants(!self.router.omits(Clause::GenerationCheck));
            }
            self.requests.check_invariants();
            self.agreement.check_invariants();
            self.router.host_watch.check_invariants();
            self.router.registration.check_invariants(self.router.state);
        }
    }

    fn on_local_send(&mut self, now: Instant, shard: &ShardId, message: MessageInfo, out: &mut Vec<Effect>) {
        self.router.messages.on_submitted(1);
        let waiting = self.router.submitted_here(message);
        if let Some(reason) = self.router.refuses_sends() {
            return self.router.messages.drop_waiting(shard, &waiting, reason, out);
        }
        self.with_place(shard, |router, place| router.route(now, shard, place, waiting, out));
    }

    /// A mark of another region, on the data lane of the shard.
    fn on_mark(&mut self, now: Instant, node: UniqueAddress, shard: &ShardId, mark: Mark, out: &mut Vec<Effect>) {
        match mark {
            Mark::Probe { nonce, stamp } => self.with_place(shard, |router, place| {
                router.on_frame(now, node, shard, place, (stamp, Content::Probe { nonce }), out);
            }),
            Mark::Flush { attempt, from, .. } if from.node == node => self.with_place(shard, |router, place| {
                place.on_flush_mark(now, shard, router, (attempt, from), out);
            }),
            Mark::Leftover { generation, from } if from.node == node => self.with_place(shard, |router, place| {
                place.on_leftover_mark(now, shard, router, (generation, from), out);
            }),
            Mark::Flush { .. } | Mark::Leftover { .. } => {}
        }
    }

    fn on_peer(&mut self, now: Instant, node: &UniqueAddress, message: PeerMessage, out: &mut Vec<Effect>) {
        if !self.router.members.contains(node) {
            return;
        }
        match message {
            PeerMessage::StaleRoute(routes) => {
                for (shard, generation) in routes {
                    self.with_place(&shard, |router, place| {
                        place.on_stale_route(now, node, &shard, router, generation, out);
                    });
                }
            }
            PeerMessage::FlushEcho { shard, nonce, to } if to == self.router.config.id => {
                self.with_place(&shard, |router, place| {
                    place.on_own_echo(nonce);
                    router.try_open(now, &shard, place, out);
                });
            }
            PeerMessage::FlushEcho { .. } => {}
            message @ (PeerMessage::AnnounceType { .. }
            | PeerMessage::TypeOk { .. }
            | PeerMessage::TypeConflict { .. }) => {
                self.agreement.on_message(now, node, message, out);
                self.follow_agreement(now, out);
            }
        }
    }

    /// Reports that no member hosts the type, and ends the messages that have waited for too long.
    fn on_host_watch(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let due = self.router.host_watch.tick(now);
        if due.tell {
            out.push(Effect::Event(RegionEvent::NoHost { role: self.router.config.fingerprint.role.clone() }));
        }
        let Some(cutoff) = now.checked_sub(self.router.host_watch.timeout()) else { return };
        for shard in due.shards {
            self.with_place(&shard, |router, place| {
                for waiting in place.buffer.take_older(cutoff) {
                    router.messages.count_out(&waiting.content);
                    router.messages.drop_waiting(&shard, &waiting, DeadLetterReason::NoHost, out);
                }
                if let Some(since) = place.buffer.oldest() {
                    router.host_watch.waits_on(now, &shard, since);
                }
            });
        }
    }

    pub(super) fn on_graceful(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if matches!(self.router.state, RegionState::Stopping | RegionState::Stopped | RegionState::ShuttingDown) {
            return;
        }
        self.router.state = RegionState::ShuttingDown;
        if self.router.members.is_preparing() {
            self.end_without_handoff(now, out);
        } else if !self.is_idle() {
            self.try_now(now, out);
        }
    }

    /// Ends a region that shuts down without handing its shards off: the whole cluster ends, and no other region takes
    /// them over. Source: sharding §2.18.
    pub(super) fn end_without_handoff(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.router.state == RegionState::ShuttingDown {
            self.end_shards(now, DeadLetterReason::RegionStopped, false, out);
        }
    }

    fn is_idle(&self) -> bool {
        self.router.messages.counters().buffered == 0 && self.hosted().next().is_none()
    }

    /// Stops all shards here, since no other region can host: entities get their stop message, and waiting messages
    /// become dead letters.
    pub(super) fn on_stop_here(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.router.state == RegionState::ShuttingDown {
            self.end_shards(now, DeadLetterReason::NoOtherRegion, false, out);
        }
    }

    /// Ends at once: shards are killed.
    pub(super) fn on_stop(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.router.state != RegionState::Stopped {
            self.end_shards(now, DeadLetterReason::RegionStopped, true, out);
        }
    }

    /// Ends at once after this node was downed: other regions may host these shards soon, so no handler may run again.
    pub(super) fn on_downed(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.router.state != RegionState::Stopped {
            self.end_shards(now, DeadLetterReason::RegionStopped, true, out);
        }
    }

    fn end_shards(&mut self, now: Instant, reason: DeadLetterReason, kill: bool, out: &mut Vec<Effect>) {
        self.router.state = RegionState::Stopping;
        self.router.end_reason = reason;
        for shard in self.places.of(|_| true) {
            self.with_place(&shard, |router, place| {
                place.slot.forget_left();
                place.slot.plan(None);
                router.close(&shard, place, out);
                router.drop_buffer(&shard, place, reason, out);
                if kill || !place.stop_in_order(&shard, out) {
                    place.kill(now, &shard, router, Ending::RegionEnds, AfterDrain::Ask, out);
                }
            });
        }
    }

    /// Ends a region that shuts down once it hosts no shard and buffers no message.
    pub(super) fn try_finish_shutdown(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !matches!(self.router.state, RegionState::ShuttingDown | RegionState::Stopping) || !self.is_idle() {
            return;
        }
        self.router.state = RegionState::Stopped;
        self.agreement.on_stopped();
        for shard in self.places.of(|_| true) {
            self.with_place(&shard, |router, place| router.close(&shard, place, out));
        }
        self.places.clear();
        self.requests.end_all(out);
        out.push(Effect::Stopped);
        self.try_now(now, out);
    }
}
