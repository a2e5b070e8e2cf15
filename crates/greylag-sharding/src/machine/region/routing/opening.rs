//! Opening a route (waiting messages go first, then the table), and leaving one.
//!
//! All routes are opened in one place: opening waits until the old path is known to be empty, then empties the buffer
//! into the new route before other senders can use it.
//!
//! All routes are left in one place too: the table entry is closed, the route is kept as the old path, and a probe is
//! sent along it unless a flush mark proves the path empty. So a timeout costs a gap, never a swap of messages.
//!
//! Source: sharding §2.4, §2.5, §2.6, §2.9.

use std::time::Instant;

use greylag_core::{DeadLetterReason, Generation};

use super::Router;
use crate::ids::{RegionId, ShardId};
use crate::machine::message::{Home, Mark, Stamp};
use crate::machine::omissions::Clause;
use crate::machine::region::config::RegionState;
use crate::machine::region::place::{Content, LeftRoute, Next, OldPath, Remote, ShardPlace, Slot, Task, Waiting};
use crate::machine::region::protocol::{Effect, Route};
use crate::machine::region::report::RegionEvent;

impl Router {
    /// Opens the known route, if nothing must be awaited any more.
    pub(in crate::machine::region) fn try_open(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut ShardPlace,
        out: &mut Vec<Effect>,
    ) {
        if self.suspect || place.slot.hand_back().is_some() {
            return;
        }
        if matches!(self.state, RegionState::Refused | RegionState::Stopping | RegionState::Stopped) {
            return;
        }
        if place.slot.old_path().is_some() {
            return self.send_leftovers_ahead(now, shard, place, out);
        }
        place.slot.become_remote();
        match &place.slot {
            Slot::Remote(remote) if !remote.is_open => self.open_remote(now, shard, place, out),
            Slot::LocalStarting(starting) => {
                let awaits_leftovers =
                    starting.leftover_deadline.is_some() && !place.has_leftovers_of(&starting.hosting);
                if starting.task == Task::Ready && starting.handoff.is_none() && !awaits_leftovers {
                    self.open_local(now, shard, place, out);
                }
            }
            Slot::Local(local) if local.handoff.is_none() && !place.slot.is_open() => {
                self.open_local(now, shard, place, out);
            }
            _ => {}
        }
    }

    /// Sends the leftovers first, then the leftover mark, then everything else, and opens the table last. Until then
    /// the table has no route, so messages sent meanwhile wait behind.
    fn open_remote(&mut self, now: Instant, shard: &ShardId, place: &mut ShardPlace, out: &mut Vec<Effect>) {
        let Slot::Remote(Remote { region, generation, .. }) = &place.slot else { return };
        let (region, generation) = (region.clone(), *generation);
        self.send_leftovers(now, shard, place, &region, generation, out);
        self.flush_remote(now, shard, place, self.flush_turn, out);
        if !place.buffer.is_empty() {
            return Self::continue_later(shard, place, out);
        }
        place.asking.end();
        self.publish(shard, place, out);
    }

    /// Passes the leftovers to a new home that may not be opened yet, since own messages may still be on the old path.
    /// Leftovers have come back from that path or were never on it, so messages still on it must not go first. The new
    /// home waits for the leftovers; through the new home, so may the probe whose echo this region waits for.
    fn send_leftovers_ahead(&mut self, now: Instant, shard: &ShardId, place: &mut ShardPlace, out: &mut Vec<Effect>) {
        let Some(Next { region, generation }) = place.slot.next().filter(|_| place.slot.has_no_route()) else { return };
        let (region, generation) = (region.clone(), *generation);
        self.send_leftovers(now, shard, place, &region, generation, out);
    }

    /// Passes all leftovers to the next home, and the leftover mark behind them. All in one turn, however many:
    /// leftovers are valid for this home alone, and a route that is left halfway would strand the rest.
    fn send_leftovers(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut ShardPlace,
        region: &RegionId,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        while let Some(waiting) = place.buffer.pop_leftover() {
            self.empty(now, shard, waiting, out, |this, waiting, out| {
                this.forward(shard, region, generation, waiting, out);
            });
        }
        if std::mem::take(&mut place.owes_leftover_mark) {
            let mark = Mark::Leftover { generation, from: self.config.id.clone() };
            out.push(Effect::SendMark { to: region.clone(), shard: shard.clone(), mark });
        }
    }

    /// Passes at most `limit` entries of the buffer to the home elsewhere.
    fn flush_remote(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut ShardPlace,
        limit: usize,
        out: &mut Vec<Effect>,
    ) {
        let Slot::Remote(Remote { region, generation, .. }) = &place.slot else { return };
        let (region, generation) = (region.clone(), *generation);
        for _ in 0..limit {
            let Some(waiting) = place.buffer.pop() else { break };
            self.empty(now, shard, waiting, out, |this, waiting, out| {
                this.forward(shard, &region, generation, waiting, out);
            });
        }
    }

    /// Delivers the messages that wait for this generation, then opens the table.
    fn open_local(&mut self, now: Instant, shard: &ShardId, place: &mut ShardPlace, out: &mut Vec<Effect>) {
        let own = self.config.id.clone();
        place.owes_leftover_mark = false;
        // The shard has messages from here on: later leftovers are too late, and an ending region must stop the shard,
        // not kill it.
        place.slot.become_local();
        let Some(generation) = place.slot.hosted() else { return };
        for _ in 0..self.flush_turn {
            let Some(waiting) = place.buffer.pop_for(generation) else { break };
            self.empty(now, shard, waiting, out, |this, waiting, out| this.deliver(shard, place, waiting, out));
        }
        if place.buffer.has_more() {
            return Self::continue_later(shard, place, out);
        }
        place.buffer.end_flush();
        if let Some(hosting) = place.slot.hosting_mut() {
            // Senders push without asking from now on, so messages of this region that left earlier count as older than
            // pushed ones.
            hosting.floors.insert(own, generation);
        }
        place.asking.end();
        self.publish(shard, place, out);
        self.ask_home(now, shard, place);
    }

    /// Asks for another turn of the flush, so that many messages for one shard hold up no other shard.
    fn continue_later(shard: &ShardId, place: &mut ShardPlace, out: &mut Vec<Effect>) {
        if !std::mem::replace(&mut place.is_turn_asked, true) {
            out.push(Effect::Continue { shard: shard.clone() });
        }
    }

    /// Takes one entry out of the buffer's count and passes it on, unless its ask has expired.
    fn empty(
        &mut self,
        now: Instant,
        shard: &ShardId,
        waiting: Waiting,
        out: &mut Vec<Effect>,
        pass: impl FnOnce(&mut Self, Waiting, &mut Vec<Effect>),
    ) {
        if let Content::Message(message) = waiting.content {
            self.messages.count_out(&waiting.content);
            if message.expires_at.is_some_and(|at| at <= now) {
                return self.messages.drop_waiting(shard, &waiting, DeadLetterReason::Expired, out);
            }
        }
        pass(self, waiting, out);
    }

    /// Closes a remote route and keeps it as the old path. `probe`: send a probe at once, as no flush mark is sent.
    ///
    /// A flush in turns that has begun is completed first: otherwise a part of the waiting messages would be on the old
    /// path while the rest, probes of other regions among them, waits for a new home that may wait for the probes'
    /// echo.
    pub(in crate::machine::region) fn leave_remote(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut ShardPlace,
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

    /// Probes the old path unless a probe is under way, and sets, once the new home is known, the deadline after which
    /// the new route opens without an echo.
    pub(in crate::machine::region) fn probe_old_path(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut ShardPlace,
        out: &mut Vec<Effect>,
    ) {
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

    /// Forgets the old path if the coordinator says that the former owner waited for this region's flush mark.
    pub(in crate::machine::region) fn clear_flushed(&self, place: &mut ShardPlace, home: &Home) {
        let Some(path) = place.slot.old_path() else { return };
        let flushed = path.flushed.is_some() && path.flushed == home.flushed;
        let same = path.region == home.region && path.generation == home.generation;
        if flushed || same || self.omits(Clause::OldPath) {
            place.slot.forget_left();
        }
    }

    /// Closes the route of a shard, if it is open.
    pub(in crate::machine::region) fn close(&self, shard: &ShardId, place: &mut ShardPlace, out: &mut Vec<Effect>) {
        if place.slot.close() {
            out.push(Effect::RouteChange { shard: shard.clone(), route: Route::Closed });
        }
    }

    /// Publishes the route of a shard, which is known and closed. A home other than the last one is reported as a move,
    /// so that delivery sends again.
    fn publish(&self, shard: &ShardId, place: &mut ShardPlace, out: &mut Vec<Effect>) {
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
}
