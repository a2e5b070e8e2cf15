//! The end of a region: by handing shards off, at once, or because this node is no member any more.
//!
//! Source: sharding §2.11, §2.12.

use std::time::Instant;

use greylag_core::DeadLetterReason;

use super::place::Place;
use super::protocol::Effect;
use super::slot::{AfterDrain, Ending, Served, Slot, Task};
use super::{Region, RegionState};
use crate::ids::ShardId;

impl Region {
    pub(super) fn on_graceful(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if matches!(self.state, RegionState::Stopping | RegionState::Stopped | RegionState::ShuttingDown) {
            return;
        }
        self.state = RegionState::ShuttingDown;
        if self.members.is_preparing() {
            self.end_without_handoff(now, out);
        } else if !self.is_idle() {
            self.try_now(now, out);
        }
    }

    /// Ends a region that shuts down without handing its shards off: the whole cluster ends, and no other region takes
    /// them over. Source: sharding §2.18.
    pub(super) fn end_without_handoff(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.state == RegionState::ShuttingDown {
            self.end_shards(now, DeadLetterReason::RegionStopped, false, out);
        }
    }

    fn is_idle(&self) -> bool {
        self.message_counters.counters.buffered == 0 && self.hosted().next().is_none()
    }

    /// Stops all shards here, since no other region can host: entities get their stop message, and waiting messages
    /// become dead letters.
    pub(super) fn on_stop_here(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.state == RegionState::ShuttingDown {
            self.end_shards(now, DeadLetterReason::NoOtherRegion, false, out);
        }
    }

    /// Ends at once: shards are killed.
    pub(super) fn on_stop(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.state != RegionState::Stopped {
            self.end_shards(now, DeadLetterReason::RegionStopped, true, out);
        }
    }

    /// Ends at once after this node was downed: other regions may host these shards soon, so no handler may run again.
    pub(super) fn on_downed(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.state != RegionState::Stopped {
            self.end_shards(now, DeadLetterReason::RegionStopped, true, out);
        }
    }

    fn end_shards(&mut self, now: Instant, reason: DeadLetterReason, kill: bool, out: &mut Vec<Effect>) {
        self.state = RegionState::Stopping;
        self.end_reason = reason;
        for shard in self.places.of(|_| true) {
            self.with_place(&shard, |region, place| {
                place.slot.forget_left();
                place.slot.plan(None);
                region.close(&shard, place, out);
                region.drop_buffer(&shard, place, reason, out);
                if kill || !Self::stop_in_order(&shard, place, out) {
                    region.kill(now, &shard, place, Ending::RegionEnds, AfterDrain::Ask, out);
                }
            });
        }
    }

    /// Stops a serving shard by stop messages, or lets a stop under way go on. False for a shard that has never served.
    fn stop_in_order(shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) -> bool {
        let Some(generation) = place.slot.hosted() else { return false };
        let (serves, ends) = match &place.slot {
            Slot::Local(_) => (true, false),
            Slot::LocalStarting(starting) => {
                let is_ready = starting.task == Task::Ready && starting.served != Served::Never;
                (is_ready, starting.task == Task::Aborting)
            }
            _ => (false, true),
        };
        if serves {
            out.push(Effect::StopShard { shard: shard.clone(), generation });
        }
        if serves || ends {
            place.slot.become_draining(Ending::RegionEnds, AfterDrain::Ask);
        }
        serves || ends
    }

    /// Ends a region that shuts down once it hosts no shard and buffers no message.
    pub(super) fn try_finish_shutdown(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if !matches!(self.state, RegionState::ShuttingDown | RegionState::Stopping) || !self.is_idle() {
            return;
        }
        self.state = RegionState::Stopped;
        self.agreement.on_stopped();
        for shard in self.places.of(|_| true) {
            self.with_place(&shard, |region, place| region.close(&shard, place, out));
        }
        self.places.clear();
        self.end_requests(out);
        out.push(Effect::Stopped);
        self.try_now(now, out);
    }
}
