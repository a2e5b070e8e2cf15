//! Homes: where the coordinator and other regions say that a shard lives, and how a route is left for a new home.
//!
//! All routes are left in one place: the table entry is closed, the route is kept as the old path, and a probe is sent
//! along it unless a flush mark proves the path empty. So a timeout costs a gap, never a swap of messages.
//!
//! Source: sharding §2.4, §2.6.

use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use super::place::Place;
use super::protocol::Effect;
use super::report::RegionEvent;
use super::slot::{AfterDrain, Ending, LeftRoute, Next, OldPath, Remote, Slot};
use super::{Region, RegionState, Sabotage};
use crate::ids::ShardId;
use crate::machine::message::{Home, Mark, Stamp};

impl Region {
    /// A home from the coordinator: an answer, a push, or an order to host.
    pub(super) fn on_home(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
        home: Home,
        out: &mut Vec<Effect>,
    ) {
        let checked = !self.is_without(Sabotage::GenerationCheck);
        if home.region == self.config.id {
            return self.on_host(now, shard, place, home, out);
        }
        if checked && Some(home.generation) < place.heard || self.state == RegionState::Refused {
            return;
        }
        if self.is_from_before_ack(place, &home) {
            return;
        }
        place.note_generation(home.generation);
        place.slot.unplan_host();
        if self.is_gone(&home.region.node) {
            return;
        }
        let reachable = !self.dead_ends.contains(&home.region.node);
        let next = reachable.then(|| Next { region: home.region.clone(), generation: home.generation });
        let is_known = |remote: &Remote| remote.region == home.region && remote.generation == home.generation;
        if place.slot.remote().is_some_and(is_known) {
            return;
        }
        self.follow_home(now, shard, place, &home, next, out);
        if !reachable && place.wants_home() {
            place.asking.later(now, self.config.settings.retry_interval);
        }
        self.probe_old_path(now, shard, place, out);
        self.try_open(now, shard, place, out);
    }

    /// Leaves a route or hosting older than `home`, and plans `next`, which is `None` if the home's node is
    /// unreachable.
    fn follow_home(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
        home: &Home,
        next: Option<Next>,
        out: &mut Vec<Effect>,
    ) {
        let checked = !self.is_without(Sabotage::GenerationCheck);
        match &place.slot {
            Slot::Remote(remote) => {
                if remote.generation < home.generation || !checked {
                    self.leave_remote(now, shard, place, true, out);
                    place.slot.plan(next);
                }
            }
            Slot::LocalStarting(_) | Slot::Local(_) => {
                if let Some(generation) = place.slot.hosted().filter(|hosted| *hosted < home.generation) {
                    out.push(Effect::Event(RegionEvent::OwnershipConflict { shard: shard.clone(), generation }));
                    let after_drain = next.map_or(AfterDrain::Ask, AfterDrain::Route);
                    self.kill(now, shard, place, Ending::Dropped, after_drain, out);
                }
            }
            Slot::Draining(_) => place.slot.plan(next),
            Slot::Unknown | Slot::Resolving(_) | Slot::Buffering(_) => {
                self.clear_flushed(place, home);
                place.slot.plan(next);
            }
        }
    }

    /// Whether a home was sent before this region closed its route to it for a handoff that may still be under way.
    /// Messages sent to the home now would reach the owner behind the flush mark, too late.
    fn is_from_before_ack(&self, place: &Place, home: &Home) -> bool {
        place.acked.is_some_and(|acked| {
            acked.generation == home.generation
                && acked.attempt.epoch() == self.registration.highest_epoch()
                && home.given_up < Some(acked.attempt)
        })
    }

    /// Forgets the old path if the coordinator says that the former owner waited for this region's flush mark.
    pub(super) fn clear_flushed(&self, place: &mut Place, home: &Home) {
        let Some(path) = place.slot.old_path() else { return };
        let flushed = path.flushed.is_some() && path.flushed == home.flushed;
        let same = path.region == home.region && path.generation == home.generation;
        if flushed || same || self.is_without(Sabotage::OldPath) {
            place.slot.forget_left();
        }
    }

    /// Probes the old path unless a probe is under way, and sets, once the new home is known, the deadline after which
    /// the new route opens without an echo.
    pub(super) fn probe_old_path(&mut self, now: Instant, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
        let due = place.slot.next().is_some() || place.slot.hosting().is_some();
        let Some(path) = place.slot.old_path_mut() else { return };
        if path.probe.is_none() {
            self.nonce += 1;
            path.probe = Some(self.nonce);
            let (to, generation) = (path.region.clone(), path.generation);
            let stamp = Stamp::straight(self.config.id.clone(), generation);
            let mark = Mark::Probe { nonce: self.nonce, stamp };
            out.push(Effect::SendMark { to, shard: shard.clone(), mark });
        }
        if due && path.deadline.is_none() {
            path.deadline = Some(now + self.config.settings.flush_timeout);
        }
    }

    /// Closes a remote route and keeps it as the old path. `probe`: send a probe at once, as no flush mark is sent.
    ///
    /// A flush in turns that has begun is completed first: otherwise a part of the waiting messages would be on the old
    /// path while the rest, probes of other regions among them, waits for a new home that may wait for the probes'
    /// echo.
    pub(super) fn leave_remote(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
        probe: bool,
        out: &mut Vec<Effect>,
    ) {
        if !place.slot.is_open() && !self.suspect {
            self.flush_remote(now, shard, place, usize::MAX, out);
        }
        if place.slot.remote().is_none() {
            return;
        }
        self.close(shard, place, out);
        place.slot.leave_remote(|left| Some(LeftRoute::Path(OldPath::new(left.region, left.generation))));
        if probe {
            self.probe_old_path(now, shard, place, out);
        }
        self.ask_home(now, shard, place);
    }

    fn is_gone(&self, node: &UniqueAddress) -> bool {
        self.members.removed.contains_key(node) && !self.members.contains(node)
    }

    pub(super) fn on_stale_route(
        &mut self,
        now: Instant,
        node: &UniqueAddress,
        shard: &ShardId,
        place: &mut Place,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        place.note_generation(generation);
        match &place.slot {
            Slot::Remote(remote) => {
                // Only the owner reports its own generation as stale: the owner has stopped.
                let has_stopped = remote.generation == generation && remote.region.node == *node;
                if remote.generation < generation || has_stopped {
                    self.leave_remote(now, shard, place, true, out);
                }
            }
            slot if slot.hosting().is_some_and(|hosting| hosting.generation < generation) => {
                self.pending.asks.push(shard.clone());
            }
            _ => {}
        }
        self.ask_home(now, shard, place);
    }

    /// Forgets the old path if the echo is that of its probe: the path is empty now.
    pub(super) fn on_own_echo(place: &mut Place, nonce: u64) {
        if place.slot.old_path().is_some_and(|path| path.probe == Some(nonce)) {
            place.slot.forget_left();
        }
    }
}
