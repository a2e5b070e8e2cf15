//! Handing a shard off: the part of the regions that send to it, and the part of the region that owns it.
//!
//! ```text
//! sender  <--BeginHandOff--  C            closes the route, --FlushMark--> owner (data lane), acks
//! owner   <--HandOff(flush_from)-- C      serves until the marks are in, then the stop marker
//! owner   --ShardStopped(leftovers)--> C  nothing of this generation lives or will live there
//! ```
//! Source: sharding §2.9, §2.10.

use std::collections::BTreeMap;
use std::time::Instant;

use greylag_core::Generation;

use super::place::{Acked, Place};
use super::protocol::Effect;
use super::slot::{AfterDrain, Ending, HandOffWait, Remote, Served, Slot, Table, Task};
use super::{Region, RegionState, Sabotage};
use crate::ids::{RegionId, ShardId};
use crate::machine::message::{Attempt, Home, Mark, RegionMessage};

impl Region {
    pub(super) fn on_begin_handoff(
        &mut self,
        now: Instant,
        shard: &ShardId,
        generation: Generation,
        attempt: Attempt,
        owner: RegionId,
        out: &mut Vec<Effect>,
    ) {
        if self.members.is_preparing() {
            return;
        }
        let region = self.config.id.clone();
        let flushed = self.with_place(shard, |this, place| {
            let known = place.acked.filter(|acked| (acked.generation, acked.attempt) == (generation, attempt));
            if let Some(acked) = known {
                return acked.flushed;
            }
            let flushed = this.give_up_route(now, shard, place, (generation, attempt, &owner), out);
            // A late order, behind an order of a newer attempt, must not replace the newer ack.
            if place.acked.is_none_or(|acked| acked.attempt < attempt) {
                place.acked = Some(Acked { generation, attempt, flushed });
            }
            flushed
        });
        let shard = shard.clone();
        let ack = RegionMessage::BeginHandOffAck { region, shard, generation, attempt, flushed };
        self.send_to_coordinator(ack, out);
    }

    /// Forgets the home that is being handed off; returns whether a flush mark follows the messages sent to it.
    fn give_up_route(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
        (generation, attempt, owner): (Generation, Attempt, &RegionId),
        out: &mut Vec<Effect>,
    ) -> bool {
        place.note_generation(generation);
        place.slot.unplan_if(|next| next.generation <= generation);
        match &place.slot {
            Slot::Remote(Remote { generation: known, .. }) if *known > generation => return false,
            Slot::Remote(Remote { region, generation: known, .. }) => {
                let flushed = *known == generation && region == owner;
                self.leave_remote(now, shard, place, !flushed, out);
            }
            Slot::LocalStarting(_) | Slot::Local(_) | Slot::Draining(_) => return false,
            Slot::Unknown | Slot::Resolving(_) | Slot::Buffering(_) => {}
        }
        // A second attempt finds the route closed already; messages sent along it may still be on their way.
        let has_next = place.slot.next().is_some();
        let path = place.slot.old_path_mut().filter(|path| path.generation == generation && path.region == *owner);
        let Some(path) = path else { return false };
        // A late order keeps the deadline if a newer home is known already: no other home would come to set it.
        if !has_next {
            path.deadline = None;
        }
        path.flushed = Some(attempt);
        if !self.is_without(Sabotage::FlushMark) {
            let mark = Mark::Flush { generation, attempt, from: self.config.id.clone() };
            out.push(Effect::SendMark { to: owner.clone(), shard: shard.clone(), mark });
        }
        true
    }

    pub(super) fn on_handoff(
        &mut self,
        now: Instant,
        shard: &ShardId,
        generation: Generation,
        attempt: Attempt,
        flush_from: Vec<RegionId>,
        out: &mut Vec<Effect>,
    ) {
        self.with_place(shard, |region, place| match place.slot.hosted() {
            None => {
                if place.slot.remote().is_some_and(|remote| remote.generation < generation) {
                    region.leave_remote(now, shard, place, true, out);
                }
                if !region.may_own(place, generation) {
                    place.end(generation);
                    return region.report_stopped(shard, place, generation, out);
                }
                // Own the shard although the order to host was lost: other regions know this home and mark what they
                // have sent here.
                let (shard_id, own) = (shard.clone(), region.config.id.clone());
                // Only messages of this generation become leftovers: the next owner takes leftovers unchecked, and this
                // region does not know which older messages former owners have handled.
                let home = Home { previous: Some(generation), ..Home::new(shard_id, own, generation) };
                region.own(now, place, &home, Task::Absent);
                region.accept_handoff(now, shard, place, attempt, &flush_from, out);
            }
            Some(hosted) if hosted == generation => {
                region.accept_handoff(now, shard, place, attempt, &flush_from, out);
            }
            Some(hosted) if hosted < generation => {
                place.end(generation);
                region.kill(now, shard, place, Ending::Dropped, AfterDrain::Ask, out);
            }
            Some(_) => region.report_stopped(shard, place, generation, out),
        });
    }

    /// Whether a generation that is not hosted here may still have been allocated to this region.
    fn may_own(&self, place: &Place, generation: Generation) -> bool {
        let is_running =
            matches!(self.state, RegionState::Unregistered | RegionState::Registered | RegionState::ShuttingDown);
        is_running && !self.config.proxy && Some(generation) > place.ended && Some(generation) >= place.heard
    }

    fn accept_handoff(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
        attempt: Attempt,
        flush_from: &[RegionId],
        out: &mut Vec<Effect>,
    ) {
        let own = self.config.id.clone();
        let unmarked = |from: &&RegionId| **from != own && !self.is_marked(&place.marks, from, attempt);
        let alive = |from: &&RegionId| self.members.contains(&from.node);
        let mut waiting_for = flush_from.iter().filter(unmarked).filter(alive).cloned().collect();
        if self.is_without(Sabotage::FlushMark) {
            waiting_for = Default::default();
        }
        if place.slot.handoff().is_some_and(|wait| wait.attempt == attempt) {
            return;
        }
        // Marks of another attempt never count, so a later attempt starts the wait anew.
        let deadline = Some(now + self.config.settings.flush_timeout);
        let wait = HandOffWait { attempt, waiting_for, deadline };
        match &mut place.slot {
            Slot::LocalStarting(starting) => starting.handoff = Some(wait),
            Slot::Local(local) => local.handoff = Some(wait),
            _ => return,
        }
        self.give_up_start(shard, place, out);
        self.try_drain(now, shard, place, out);
    }

    /// Cancels the start, or restart, of a shard that is handed off before it serves.
    fn give_up_start(&self, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
        let (Some(generation), Some(task)) = (place.slot.hosted(), place.slot.task()) else { return };
        let has_begun = match &place.slot {
            Slot::LocalStarting(starting) => starting.served == Served::InPart,
            Slot::Local(local) => !matches!(local.table, Table::Held),
            _ => return,
        };
        match task {
            Task::Starting | Task::Ready if !has_begun && !self.suspect => {
                place.slot.become_waiting(Task::Aborting);
                out.push(Effect::KillShard { shard: shard.clone(), generation });
            }
            Task::Failed(_) => place.slot.become_waiting(Task::Absent),
            Task::Starting | Task::Ready | Task::Aborting | Task::Absent => {}
        }
    }

    /// Whether a region has marked, for this handoff attempt, that it sends no more.
    fn is_marked(&self, marks: &BTreeMap<RegionId, Attempt>, from: &RegionId, attempt: Attempt) -> bool {
        let any = self.is_without(Sabotage::Attempt);
        marks.get(from).is_some_and(|marked| any || *marked == attempt)
    }

    /// Appends the stop marker behind everything delivered, once the marks are in. A shard that does not serve has no
    /// delivered messages: all its buffered messages are leftovers, also those of an awaited former owner.
    pub(super) fn try_drain(&mut self, now: Instant, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
        let is_leftover_missing = match &place.slot {
            Slot::LocalStarting(starting) => {
                starting.leftover_deadline.is_some() && !place.has_leftovers_of(&starting.hosting)
            }
            _ => false,
        };
        let Place { slot, marks, .. } = place;
        let Some(wait) = slot.handoff_mut() else { return };
        let attempt = wait.attempt;
        wait.waiting_for.retain(|from| !self.is_marked(marks, from, attempt));
        if wait.waiting_for.is_empty() && !is_leftover_missing {
            self.drain(now, shard, place, out);
        }
    }

    fn drain(&mut self, now: Instant, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
        let (Some(generation), Some(task)) = (place.slot.hosted(), place.slot.task()) else { return };
        let was_open = place.slot.is_open();
        self.close(shard, place, out);
        let shard_id = shard.clone();
        match task {
            Task::Ready => out.push(Effect::StopShard { shard: shard_id, generation }),
            Task::Starting => out.push(Effect::KillShard { shard: shard_id, generation }),
            Task::Aborting | Task::Failed(_) | Task::Absent => {}
        }
        if !was_open {
            self.make_leftovers(shard, place, out);
        }
        place.slot.become_draining(Ending::HandOff, AfterDrain::Ask);
        if matches!(task, Task::Failed(_) | Task::Absent) {
            self.end_hosting(now, shard, place, Vec::new(), out);
        }
    }

    /// Turns the messages that wait for a shard that does not serve into leftovers. The next owner takes leftovers
    /// unchecked, so messages that this shard's floor refuses are dropped here.
    fn make_leftovers(&mut self, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
        let is_path_open = place.slot.old_path().is_some();
        let Place { slot, buffer, .. } = place;
        let Some(hosting) = slot.hosting_mut() else { return };
        for waiting in buffer.take() {
            if waiting.becomes_leftover(is_path_open)
                && let Err(reason) = self.check_floor(hosting, &waiting)
            {
                self.message_counters.count_out(&waiting.content);
                self.drop_waiting(shard, &waiting, reason, out);
            } else {
                buffer.push_back(waiting);
            }
        }
        buffer.make_leftovers(hosting.generation, is_path_open);
    }

    pub(super) fn on_drop_shard(
        &mut self,
        now: Instant,
        shard: &ShardId,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        self.with_place(shard, |region, place| match place.slot.hosted() {
            Some(hosted) if hosted <= generation => {
                place.end(generation);
                region.kill(now, shard, place, Ending::Dropped, AfterDrain::Ask, out);
            }
            _ => {
                place.end(generation);
                region.report_stopped(shard, place, generation, out);
            }
        });
    }

    pub(super) fn report_stopped(&self, shard: &ShardId, place: &Place, generation: Generation, out: &mut Vec<Effect>) {
        let (region, shard) = (self.config.id.clone(), shard.clone());
        let leftovers = place.buffer.has_leftovers();
        self.send_to_coordinator(RegionMessage::ShardStopped { region, shard, generation, leftovers }, out);
    }
}
