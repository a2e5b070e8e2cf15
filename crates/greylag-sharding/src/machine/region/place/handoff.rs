//! Handing a shard off: the part of the regions that send to it, and the part of the region that owns it.
//!
//! ```text
//! sender  <--BeginHandOff--  C            closes the route, --FlushMark--> owner (data lane), acks
//! owner   <--HandOff(flush_from)-- C      serves until the marks are in, then the stop marker
//! owner   --ShardStopped(leftovers)--> C  nothing of this generation lives or will live there
//! ```
//! Source: sharding §2.9, §2.10.

use std::time::Instant;

use greylag_core::{Generation, UniqueAddress};

use super::slot::{AfterDrain, Ending, HandOffWait, Remote, Served, Slot, Table, Task};
use super::{Acked, ShardPlace};
use crate::ids::{RegionId, ShardId};
use crate::machine::message::{Attempt, Home, Mark, RegionMessage};
use crate::machine::omissions::Clause;
use crate::machine::region::config::RegionState;
use crate::machine::region::protocol::Effect;
use crate::machine::region::routing::Router;

impl ShardPlace {
    /// Stops sending to a shard that is handed off, and acks that; a repeated order gets the same ack.
    pub(in crate::machine::region) fn on_begin_handoff(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        (generation, attempt): (Generation, Attempt),
        owner: RegionId,
        out: &mut Vec<Effect>,
    ) {
        let known = self.acked.filter(|acked| (acked.generation, acked.attempt) == (generation, attempt));
        let flushed = match known {
            Some(acked) => acked.flushed,
            None => {
                let flushed = self.give_up_route(now, shard, router, (generation, attempt, &owner), out);
                // A late order, behind an order of a newer attempt, must not replace the newer ack.
                if self.acked.is_none_or(|acked| acked.attempt < attempt) {
                    self.acked = Some(Acked { generation, attempt, flushed });
                }
                flushed
            }
        };
        let (region, shard) = (router.config.id.clone(), shard.clone());
        let ack = RegionMessage::BeginHandOffAck { region, shard, generation, attempt, flushed };
        router.send_to_coordinator(ack, out);
    }

    /// Forgets the home that is being handed off; returns whether a flush mark follows the messages sent to it.
    fn give_up_route(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        (generation, attempt, owner): (Generation, Attempt, &RegionId),
        out: &mut Vec<Effect>,
    ) -> bool {
        self.note_generation(generation);
        self.slot.unplan_if(|next| next.generation <= generation);
        match &self.slot {
            Slot::Remote(Remote { generation: known, .. }) if *known > generation => return false,
            Slot::Remote(Remote { region, generation: known, .. }) => {
                let flushed = *known == generation && region == owner;
                router.leave_remote(now, shard, self, !flushed, out);
            }
            Slot::LocalStarting(_) | Slot::Local(_) | Slot::Draining(_) => return false,
            Slot::Unknown | Slot::Resolving(_) | Slot::Buffering(_) => {}
        }
        // A second attempt finds the route closed already; messages sent along it may still be on their way.
        let has_next = self.slot.next().is_some();
        let path = self.slot.old_path_mut().filter(|path| path.generation == generation && path.region == *owner);
        let Some(path) = path else { return false };
        // A late order keeps the deadline if a newer home is known already: no other home would come to set it.
        if !has_next {
            path.deadline = None;
        }
        path.flushed = Some(attempt);
        if !router.omits(Clause::FlushMark) {
            let mark = Mark::Flush { generation, attempt, from: router.config.id.clone() };
            out.push(Effect::SendMark { to: owner.clone(), shard: shard.clone(), mark });
        }
        true
    }

    pub(in crate::machine::region) fn on_handoff(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        (generation, attempt): (Generation, Attempt),
        flush_from: &[RegionId],
        out: &mut Vec<Effect>,
    ) {
        match self.slot.hosted() {
            None => {
                if self.slot.remote().is_some_and(|remote| remote.generation < generation) {
                    router.leave_remote(now, shard, self, true, out);
                }
                if !self.may_own(router, generation) {
                    self.end(generation);
                    return self.report_stopped(shard, router, generation, out);
                }
                // Own the shard although the order to host was lost: other regions know this home and mark what they
                // have sent here.
                let (shard_id, own) = (shard.clone(), router.config.id.clone());
                // Only messages of this generation become leftovers: the next owner takes leftovers unchecked, and this
                // region does not know which older messages former owners have handled.
                let home = Home { previous: Some(generation), ..Home::new(shard_id, own, generation) };
                self.note_generation(generation);
                self.own(now, router, &home, Task::Absent);
                self.accept_handoff(now, shard, router, attempt, flush_from, out);
            }
            Some(hosted) if hosted == generation => {
                self.accept_handoff(now, shard, router, attempt, flush_from, out);
            }
            Some(hosted) if hosted < generation => {
                self.end(generation);
                self.kill(now, shard, router, Ending::Dropped, AfterDrain::Ask, out);
            }
            Some(_) => self.report_stopped(shard, router, generation, out),
        }
    }

    /// Whether a generation that is not hosted here may still have been allocated to this region.
    fn may_own(&self, router: &Router, generation: Generation) -> bool {
        let is_running =
            matches!(router.state, RegionState::Unregistered | RegionState::Registered | RegionState::ShuttingDown);
        is_running && !router.config.proxy && Some(generation) > self.ended && Some(generation) >= self.heard
    }

    fn accept_handoff(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        attempt: Attempt,
        flush_from: &[RegionId],
        out: &mut Vec<Effect>,
    ) {
        let own = router.config.id.clone();
        let unmarked = |from: &&RegionId| **from != own && !router.is_marked(&self.marks, from, attempt);
        let alive = |from: &&RegionId| router.members.contains(&from.node);
        let mut waiting_for = flush_from.iter().filter(unmarked).filter(alive).cloned().collect();
        if router.omits(Clause::FlushMark) {
            waiting_for = Default::default();
        }
        if self.slot.handoff().is_some_and(|wait| wait.attempt == attempt) {
            return;
        }
        // Marks of another attempt never count, so a later attempt starts the wait anew.
        let deadline = Some(now + router.config.settings.flush_timeout);
        let wait = HandOffWait { attempt, waiting_for, deadline };
        match &mut self.slot {
            Slot::LocalStarting(starting) => starting.handoff = Some(wait),
            Slot::Local(local) => local.handoff = Some(wait),
            _ => return,
        }
        self.give_up_start(shard, router, out);
        self.try_drain(now, shard, router, out);
    }

    /// Cancels the start, or restart, of a shard that is handed off before it serves.
    fn give_up_start(&mut self, shard: &ShardId, router: &Router, out: &mut Vec<Effect>) {
        let (Some(generation), Some(task)) = (self.slot.hosted(), self.slot.task()) else { return };
        let has_begun = match &self.slot {
            Slot::LocalStarting(starting) => starting.served == Served::InPart,
            Slot::Local(local) => !matches!(local.table, Table::Held),
            _ => return,
        };
        match task {
            Task::Starting | Task::Ready if !has_begun && !router.suspect => {
                self.slot.become_waiting(Task::Aborting);
                out.push(Effect::KillShard { shard: shard.clone(), generation });
            }
            Task::Failed(_) => self.slot.become_waiting(Task::Absent),
            Task::Starting | Task::Ready | Task::Aborting | Task::Absent => {}
        }
    }

    /// A region has marked that it sends no more to this home.
    pub(in crate::machine::region) fn on_flush_mark(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        (attempt, from): (Attempt, RegionId),
        out: &mut Vec<Effect>,
    ) {
        let largest = self.marks.entry(from).or_insert(attempt);
        *largest = attempt.max(*largest);
        self.try_drain(now, shard, router, out);
    }

    /// A former owner has marked that all its leftovers for this home are here.
    pub(in crate::machine::region) fn on_leftover_mark(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        (generation, from): (Generation, RegionId),
        out: &mut Vec<Effect>,
    ) {
        if self.ended < Some(generation) {
            self.leftover_marks.insert((generation, from));
        }
        self.try_drain(now, shard, router, out);
        router.try_open(now, shard, self, out);
    }

    /// The data lane to a node broke: its flush mark may be lost, and is waited for no more.
    pub(in crate::machine::region) fn on_lane_lost(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        node: &UniqueAddress,
        out: &mut Vec<Effect>,
    ) {
        if let Some(wait) = self.slot.handoff_mut() {
            wait.waiting_for.retain(|region| region.node != *node);
        }
        self.try_drain(now, shard, router, out);
    }

    /// Appends the stop marker behind everything delivered, once the marks are in. A shard that does not serve has no
    /// delivered messages: all its buffered messages are leftovers, also those of an awaited former owner.
    pub(in crate::machine::region) fn try_drain(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        out: &mut Vec<Effect>,
    ) {
        let is_leftover_missing = match &self.slot {
            Slot::LocalStarting(starting) => {
                starting.leftover_deadline.is_some() && !self.has_leftovers_of(&starting.hosting)
            }
            _ => false,
        };
        let ShardPlace { slot, marks, .. } = self;
        let Some(wait) = slot.handoff_mut() else { return };
        let attempt = wait.attempt;
        wait.waiting_for.retain(|from| !router.is_marked(marks, from, attempt));
        if wait.waiting_for.is_empty() && !is_leftover_missing {
            self.drain(now, shard, router, out);
        }
    }

    fn drain(&mut self, now: Instant, shard: &ShardId, router: &mut Router, out: &mut Vec<Effect>) {
        let (Some(generation), Some(task)) = (self.slot.hosted(), self.slot.task()) else { return };
        let was_open = self.slot.is_open();
        router.close(shard, self, out);
        let shard_id = shard.clone();
        match task {
            Task::Ready => out.push(Effect::StopShard { shard: shard_id, generation }),
            Task::Starting => out.push(Effect::KillShard { shard: shard_id, generation }),
            Task::Aborting | Task::Failed(_) | Task::Absent => {}
        }
        if !was_open {
            self.make_leftovers(shard, router, out);
        }
        self.slot.become_draining(Ending::HandOff, AfterDrain::Ask);
        if matches!(task, Task::Failed(_) | Task::Absent) {
            self.end_hosting(now, shard, router, Vec::new(), out);
        }
    }

    /// Turns the messages that wait for a shard that does not serve into leftovers. The next owner takes leftovers
    /// unchecked, so messages that this shard's floor refuses are dropped here.
    fn make_leftovers(&mut self, shard: &ShardId, router: &mut Router, out: &mut Vec<Effect>) {
        let is_path_open = self.slot.old_path().is_some();
        let ShardPlace { slot, buffer, .. } = self;
        let Some(hosting) = slot.hosting_mut() else { return };
        for waiting in buffer.take() {
            if waiting.becomes_leftover(is_path_open)
                && let Err(reason) = router.check_floor(hosting, &waiting)
            {
                router.messages.count_out(&waiting.content);
                router.messages.drop_waiting(shard, &waiting, reason, out);
            } else {
                buffer.push_back(waiting);
            }
        }
        buffer.make_leftovers(hosting.generation, is_path_open);
    }

    pub(in crate::machine::region) fn on_drop_shard(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        match self.slot.hosted() {
            Some(hosted) if hosted <= generation => {
                self.end(generation);
                self.kill(now, shard, router, Ending::Dropped, AfterDrain::Ask, out);
            }
            _ => {
                self.end(generation);
                self.report_stopped(shard, router, generation, out);
            }
        }
    }

    pub(in crate::machine::region) fn report_stopped(
        &self,
        shard: &ShardId,
        router: &Router,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        let (region, shard) = (router.config.id.clone(), shard.clone());
        let leftovers = self.buffer.has_leftovers();
        router.send_to_coordinator(RegionMessage::ShardStopped { region, shard, generation, leftovers }, out);
    }

    /// Stops a serving shard by stop messages, or lets a stop under way go on. False for a shard that has never served.
    pub(in crate::machine::region) fn stop_in_order(&mut self, shard: &ShardId, out: &mut Vec<Effect>) -> bool {
        let Some(generation) = self.slot.hosted() else { return false };
        let (serves, ends) = match &self.slot {
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
            self.slot.become_draining(Ending::RegionEnds, AfterDrain::Ask);
        }
        serves || ends
    }
}
