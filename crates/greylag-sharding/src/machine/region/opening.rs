//! Opening a route: waiting messages go first, then the table.
//!
//! All routes are opened in one place: opening waits until the old path is known to be empty, then empties the buffer
//! into the new route before other senders can use it.
//!
//! Source: sharding §2.4, §2.5, §2.9.

use std::time::Instant;

use greylag_core::{DeadLetterReason, Generation};

use super::buffer::{Content, Waiting};
use super::place::Place;
use super::protocol::Effect;
use super::slot::{Next, Remote, Slot, Task};
use super::{Region, RegionState};
use crate::ids::{RegionId, ShardId};
use crate::machine::message::Mark;

/// Messages that leave one buffer in one turn, under the lock of all shards of the type.
pub(super) const FLUSH_TURN: usize = 512;

impl Region {
    /// Opens the known route, if nothing must be awaited any more.
    pub(super) fn try_open(&mut self, now: Instant, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
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
    fn open_remote(&mut self, now: Instant, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
        let Slot::Remote(Remote { region, generation, .. }) = &place.slot else { return };
        let (region, generation) = (region.clone(), *generation);
        self.send_leftovers(now, shard, place, &region, generation, out);
        self.flush_remote(now, shard, place, self.simulation.flush_turn, out);
        if !place.buffer.is_empty() {
            return Self::continue_later(shard, place, out);
        }
        place.asking.end();
        self.publish(shard, place, out);
    }

    /// Passes the leftovers to a new home that may not be opened yet, since own messages may still be on the old path.
    /// Leftovers have come back from that path or were never on it, so messages still on it must not go first. The new
    /// home waits for the leftovers; through the new home, so may the probe whose echo this region waits for.
    fn send_leftovers_ahead(&mut self, now: Instant, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
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
        place: &mut Place,
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
    pub(super) fn flush_remote(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
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
    fn open_local(&mut self, now: Instant, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
        let own = self.config.id.clone();
        place.owes_leftover_mark = false;
        // The shard has messages from here on: later leftovers are too late, and an ending region must stop the shard,
        // not kill it.
        place.slot.become_local();
        let Some(generation) = place.slot.hosted() else { return };
        for _ in 0..self.simulation.flush_turn {
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
    fn continue_later(shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
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
            self.message_counters.count_out(&waiting.content);
            if message.expires_at.is_some_and(|at| at <= now) {
                return self.drop_waiting(shard, &waiting, DeadLetterReason::Expired, out);
            }
        }
        pass(self, waiting, out);
    }
}
