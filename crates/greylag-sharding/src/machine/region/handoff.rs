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

use super::protocol::{Effect, Route};
use super::slot::{Acked, Ending, HandOffWait, Slot, State, Task};
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
        let flushed = self.with_slot(shard, |this, slot| {
            let known = slot.acked.filter(|acked| (acked.generation, acked.attempt) == (generation, attempt));
            if let Some(acked) = known {
                return acked.flushed;
            }
            let flushed = this.give_up_route(now, shard, slot, (generation, attempt, &owner), out);
            // An order that comes late, behind one of a newer try, leaves what is known of that.
            if slot.acked.is_none_or(|acked| acked.attempt < attempt) {
                slot.acked = Some(Acked { generation, attempt, flushed });
            }
            flushed
        });
        let shard = shard.clone();
        let ack = RegionMessage::BeginHandOffAck { region, shard, generation, attempt, flushed };
        self.tell_coordinator(ack, out);
    }

    /// Forgets the home that is being handed off; returns whether a mark follows the messages sent to it.
    fn give_up_route(
        &mut self,
        now: Instant,
        shard: &ShardId,
        slot: &mut Slot,
        (generation, attempt, owner): (Generation, Attempt, &RegionId),
        out: &mut Vec<Effect>,
    ) -> bool {
        slot.hear(generation);
        if slot.next.as_ref().is_some_and(|next| next.generation <= generation) {
            slot.next = None;
        }
        match &slot.state {
            State::Remote { generation: known, .. } if *known > generation => return false,
            State::Remote { region, generation: known } => {
                let flushed = *known == generation && region == owner;
                self.leave_remote(now, shard, slot, !flushed, out);
            }
            State::Hosted(_) => return false,
            State::NoRoute => {}
        }
        // A second attempt finds the route closed already; messages sent along it may still be on their way.
        let path = slot.old_path.as_mut().filter(|path| path.generation == generation && path.region == *owner);
        let Some(path) = path else { return false };
        // An order that is late leaves the time of a newer home that is known already: no other home would come to set it.
        if slot.next.is_none() {
            path.deadline = None;
        }
        path.flushed = Some(attempt);
        if self.sabotage != Some(Sabotage::FlushMark) {
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
        self.with_slot(shard, |region, slot| match slot.hosting() {
            None => {
                if matches!(slot.state, State::Remote { generation: known, .. } if known < generation) {
                    region.leave_remote(now, shard, slot, true, out);
                }
                if !region.may_own(slot, generation) {
                    slot.end(generation);
                    return region.tell_stopped(shard, slot, generation, out);
                }
                // The order to host was lost; others were told all the same, and mark what they have sent here.
                let (shard_id, own) = (shard.clone(), region.config.id.clone());
                // What was handled before is not known here, so nothing older than this generation becomes a leftover, which the
                // next owner would take unseen.
                let home = Home { previous: Some(generation), ..Home::new(shard_id, own, generation) };
                region.own(now, slot, &home, Task::Absent(None));
                region.accept_handoff(now, shard, slot, attempt, &flush_from, out);
            }
            Some(hosting) if hosting.generation == generation => {
                region.accept_handoff(now, shard, slot, attempt, &flush_from, out);
            }
            Some(hosting) if hosting.generation < generation => {
                slot.end(generation);
                region.kill(now, shard, slot, Ending::Dropped, out);
            }
            Some(_) => region.tell_stopped(shard, slot, generation, out),
        });
    }

    /// Whether a generation that is not hosted here may be this region's all the same.
    fn may_own(&self, slot: &Slot, generation: Generation) -> bool {
        let is_running =
            matches!(self.state, RegionState::Unregistered | RegionState::Registered | RegionState::ShuttingDown);
        is_running && !self.config.proxy && Some(generation) > slot.ended && Some(generation) >= slot.heard
    }

    fn accept_handoff(
        &mut self,
        now: Instant,
        shard: &ShardId,
        slot: &mut Slot,
        attempt: Attempt,
        flush_from: &[RegionId],
        out: &mut Vec<Effect>,
    ) {
        let own = self.config.id.clone();
        let unmarked = |from: &&RegionId| **from != own && !self.is_marked(&slot.marks, from, attempt);
        let alive = |from: &&RegionId| self.members.contains(&from.node);
        let mut waiting_for = flush_from.iter().filter(unmarked).filter(alive).cloned().collect();
        if self.sabotage == Some(Sabotage::FlushMark) {
            waiting_for = Default::default();
        }
        let open = slot.published != Route::Closed;
        let Some(hosting) = slot.hosting_mut() else { return };
        if hosting.ending.is_some() || hosting.handoff.as_ref().is_some_and(|wait| wait.attempt == attempt) {
            return;
        }
        // Marks of another attempt never count, so a later attempt starts the wait anew.
        let deadline = Some(now + self.config.settings.flush_timeout);
        hosting.handoff = Some(HandOffWait { attempt, waiting_for, deadline });
        let never_opened = !open && !self.suspect && !hosting.is_flushing;
        if never_opened && matches!(hosting.task, Task::Starting | Task::Ready) {
            // A shard that has not begun to serve need not begin.
            hosting.task = Task::Ending;
            let generation = hosting.generation;
            out.push(Effect::KillShard { shard: shard.clone(), generation });
        } else if let Task::Absent(retry_at) = &mut hosting.task {
            *retry_at = None;
        }
        self.try_drain(now, shard, slot, out);
    }

    /// Whether a region has marked that it sends no more, for this try at the handoff.
    fn is_marked(&self, marks: &BTreeMap<RegionId, Attempt>, from: &RegionId, attempt: Attempt) -> bool {
        let any = self.sabotage == Some(Sabotage::Attempt);
        marks.get(from).is_some_and(|marked| any || *marked == attempt)
    }

    /// Appends the stop marker behind everything delivered, once the marks are in. A shard that does not serve has
    /// nothing delivered: all its buffered messages are leftovers, also those of an awaited former owner.
    pub(super) fn try_drain(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, out: &mut Vec<Effect>) {
        let marks = std::mem::take(&mut slot.marks);
        let leftovers_in = slot.hosting().is_some_and(|hosting| self.leftovers_are_in(slot, hosting));
        self.drain_with(now, shard, slot, &marks, leftovers_in, out);
        slot.marks = marks;
    }

    fn drain_with(
        &mut self,
        now: Instant,
        shard: &ShardId,
        slot: &mut Slot,
        marks: &BTreeMap<RegionId, Attempt>,
        leftovers_in: bool,
        out: &mut Vec<Effect>,
    ) {
        let Some(hosting) = slot.hosting_mut().filter(|hosting| hosting.ending.is_none()) else { return };
        let Some(wait) = &mut hosting.handoff else { return };
        let attempt = wait.attempt;
        wait.waiting_for.retain(|from| !self.is_marked(marks, from, attempt));
        if !wait.waiting_for.is_empty() || (hosting.leftover_deadline.is_some() && !leftovers_in) {
            return;
        }
        hosting.leftover_deadline = None;
        hosting.handoff = None;
        hosting.ending = Some(Ending::HandOff);
        let (generation, task) = (hosting.generation, hosting.task);
        if matches!(task, Task::Ready | Task::Starting) {
            hosting.task = Task::Ending;
        }
        let open = slot.published != Route::Closed;
        self.publish(shard, slot, Route::Closed, out);
        let shard_id = shard.clone();
        match task {
            Task::Ready => out.push(Effect::StopShard { shard: shard_id, generation }),
            Task::Starting => out.push(Effect::KillShard { shard: shard_id, generation }),
            Task::Ending | Task::Absent(_) => {}
        }
        if !open {
            self.make_leftovers(shard, slot, out);
        }
        if matches!(task, Task::Absent(_)) {
            self.end_hosting(now, shard, slot, Vec::new(), out);
        }
    }

    /// Turns what waits for a shard that does not serve into leftovers. The next owner takes leftovers unseen, so what this
    /// shard would not have taken is dropped here.
    fn make_leftovers(&mut self, shard: &ShardId, slot: &mut Slot, out: &mut Vec<Effect>) {
        let is_path_open = slot.old_path.is_some();
        let State::Hosted(hosting) = &mut slot.state else { return };
        for waiting in slot.buffer.take() {
            if waiting.becomes_leftover(is_path_open)
                && let Err(reason) = self.check_floor(hosting, &waiting)
            {
                self.count_out(&waiting.content);
                self.drop_waiting(shard, &waiting, reason, out);
            } else {
                slot.buffer.push_back(waiting);
            }
        }
        slot.buffer.make_leftovers(hosting.generation, is_path_open);
    }

    pub(super) fn on_drop_shard(
        &mut self,
        now: Instant,
        shard: &ShardId,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        self.with_slot(shard, |region, slot| match slot.hosting() {
            Some(hosting) if hosting.generation <= generation => {
                slot.end(generation);
                region.kill(now, shard, slot, Ending::Dropped, out);
            }
            _ => {
                slot.end(generation);
                region.tell_stopped(shard, slot, generation, out);
            }
        });
    }

    pub(super) fn tell_stopped(&self, shard: &ShardId, slot: &Slot, generation: Generation, out: &mut Vec<Effect>) {
        let (region, shard) = (self.config.id.clone(), shard.clone());
        let leftovers = slot.buffer.has_leftovers();
        self.tell_coordinator(RegionMessage::ShardStopped { region, shard, generation, leftovers }, out);
    }
}
