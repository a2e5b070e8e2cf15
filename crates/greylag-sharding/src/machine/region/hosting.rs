//! Hosting: accepting a shard, starting it, restarting it, and its end.
//!
//! Source: sharding §2.4, §2.8, §4.12.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, Generation, UniqueAddress};

use super::buffer::{Content, Rank, Waiting};
use super::place::Place;
use super::protocol::{Effect, Provenance, Returned};
use super::report::RegionEvent;
use super::slot::{AfterDrain, Ending, Slot, Task};
use super::{Region, RegionState, Sabotage};
use crate::entity::Failures;
use crate::ids::ShardId;
use crate::machine::message::{Home, RegionMessage};

/// Shortest time between two starts of a failed shard that messages wait for.
const MIN_RESTART: Duration = Duration::from_millis(100);
/// How often the restart backoff of a failed shard doubles at most, where the shard remembers its entities.
const MOST_DOUBLINGS: u32 = 3;
/// A shard whose last failure lies more than this many shortest backoffs back begins with the shortest again.
const FORGIVEN: u32 = 20;

impl Region {
    /// Takes `HostShard`, or a `ShardHome` that names this region.
    pub(super) fn on_host(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
        home: Home,
        out: &mut Vec<Effect>,
    ) {
        let generation = home.generation;
        if self.config.proxy {
            out.push(Effect::Event(RegionEvent::HostShardOnProxy { shard: shard.clone() }));
            return;
        }
        match self.state {
            RegionState::Unregistered | RegionState::Registered | RegionState::ShuttingDown => {}
            RegionState::Refused | RegionState::Stopping | RegionState::Stopped => return,
        }
        if place.slot.hosted() == Some(generation) {
            if let Some(task) = place.slot.task().filter(|_| place.slot.handoff().is_none()) {
                self.report_accepted(shard, generation, task, out);
            }
            return;
        }
        // A generation that ended here, or that is older than one heard of, must not start: saying so makes the
        // coordinator allocate anew, whether this order is a late duplicate or comes from a lost state.
        let checked = !self.is_without(Sabotage::GenerationCheck);
        if checked && (Some(generation) <= place.ended || Some(generation) < place.heard) {
            place.end(generation);
            return self.report_stopped(shard, place, generation, out);
        }
        place.note_generation(generation);
        match &place.slot {
            Slot::Draining(_) => place.slot.plan_host(home),
            Slot::LocalStarting(_) | Slot::Local(_) => {
                self.kill(now, shard, place, Ending::Dropped, AfterDrain::Host(home), out);
            }
            Slot::Remote(_) => {
                self.leave_remote(now, shard, place, false, out);
                self.accept(now, shard, place, &home, out);
            }
            Slot::Unknown | Slot::Resolving(_) | Slot::Buffering(_) => self.accept(now, shard, place, &home, out),
        }
    }

    /// Takes the shard and starts it. A region that shuts down does not start it, and asks for its handoff again.
    fn accept(&mut self, now: Instant, shard: &ShardId, place: &mut Place, home: &Home, out: &mut Vec<Effect>) {
        let is_leaving = self.state == RegionState::ShuttingDown;
        let task = if is_leaving { Task::Absent } else { Task::Starting };
        self.own(now, place, home, task);
        if !is_leaving {
            out.push(Effect::StartShard { shard: shard.clone(), generation: home.generation });
        }
        self.report_accepted(shard, home.generation, task, out);
        self.probe_old_path(now, shard, place, out);
    }

    /// Owns the shard until a handoff ends the hosting, even if it is not started: other regions send messages to this
    /// home, and marks behind them, so the messages that wait here must become leftovers, in order.
    pub(super) fn own(&mut self, now: Instant, place: &mut Place, home: &Home, task: Task) {
        self.clear_flushed(place, home);
        place.asking.end();
        place.leftover_marks.retain(|(of, _)| *of >= home.generation);
        let awaited = home
            .leftovers_from
            .as_ref()
            .is_some_and(|from| *from != self.config.id && self.members.contains(&from.node));
        let awaited = awaited && !self.is_without(Sabotage::LeftoverMark);
        let leftover_deadline = awaited.then(|| now + self.config.settings.flush_timeout);
        place.slot.become_starting(home, task, leftover_deadline);
        self.registration.hosted_changed();
    }

    /// Tells the coordinator that the shard is accepted; a region that does not start the shard asks for its handoff
    /// instead.
    fn report_accepted(&self, shard: &ShardId, generation: Generation, task: Task, out: &mut Vec<Effect>) {
        let region = self.config.id.clone();
        if task == Task::Absent {
            return self.send_to_coordinator(RegionMessage::GracefulShutdownReq { region }, out);
        }
        self.send_to_coordinator(
            RegionMessage::ShardStarted { region, shards: vec![(shard.clone(), generation)] },
            out,
        );
    }

    pub(super) fn on_initialized(
        &mut self,
        now: Instant,
        shard: &ShardId,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        self.with_place(shard, |region, place| {
            if let Slot::LocalStarting(starting) = &mut place.slot
                && starting.hosting.generation == generation
                && starting.task == Task::Starting
            {
                starting.task = Task::Ready;
                region.try_open(now, shard, place, out);
            }
        });
    }

    /// Ends a hosted shard without stop messages, or hastens an end under way, whose next step stays as planned.
    pub(super) fn kill(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
        ending: Ending,
        after_drain: AfterDrain,
        out: &mut Vec<Effect>,
    ) {
        let Some(generation) = place.slot.hosted() else { return };
        let is_absent = matches!(place.slot.task(), Some(Task::Failed(_) | Task::Absent));
        self.close(shard, place, out);
        place.slot.become_draining(ending, after_drain);
        if is_absent {
            self.end_hosting(now, shard, place, Vec::new(), out);
        } else {
            out.push(Effect::KillShard { shard: shard.clone(), generation });
        }
    }

    pub(super) fn on_shard_stopped(
        &mut self,
        now: Instant,
        shard: &ShardId,
        generation: Generation,
        leftovers: Vec<Returned>,
        out: &mut Vec<Effect>,
    ) {
        self.message_counters.counters.submitted += leftovers.len() as u64;
        self.with_place(shard, |region, place| {
            if place.slot.hosted() != Some(generation) {
                return region.drop_returned(shard, leftovers, DeadLetterReason::RegionStopped, out);
            }
            if matches!(place.slot, Slot::Draining(_)) {
                return region.end_hosting(now, shard, place, leftovers, out);
            }
            // The start was aborted while the marks of the handoff are still awaited, or the shard stopped without a
            // request.
            let backoff = region.config.settings.shard_failure_backoff;
            region.lose_task(now + backoff, shard, place, leftovers, out);
            region.try_drain(now, shard, place, out);
        });
    }

    pub(super) fn on_shard_failed(
        &mut self,
        now: Instant,
        shard: &ShardId,
        generation: Generation,
        unprocessed: Vec<Returned>,
        out: &mut Vec<Effect>,
    ) {
        self.message_counters.counters.submitted += unprocessed.len() as u64;
        self.with_place(shard, |region, place| {
            if place.slot.hosted() != Some(generation) {
                return region.drop_returned(shard, unprocessed, DeadLetterReason::RegionStopped, out);
            }
            let Some(hosting) = place.slot.hosting_mut() else {
                return region.end_hosting(now, shard, place, unprocessed, out);
            };
            let settings = &region.config.settings;
            let backoff = match settings.shard_failure_backoff {
                // The store of remembered entities may need the whole backoff, even if messages wait.
                backoff if settings.remember.enabled => {
                    let before = Failures::count(&mut hosting.failures, now, backoff.saturating_mul(FORGIVEN));
                    backoff.saturating_mul(1 << before.min(MOST_DOUBLINGS))
                }
                backoff if unprocessed.is_empty() => backoff,
                backoff => backoff.min(MIN_RESTART),
            };
            region.lose_task(now + backoff, shard, place, unprocessed, out);
            region.try_drain(now, shard, place, out);
        });
    }

    /// Notes that the task of a shard that does not end is gone. The shard restarts at `retry_at`, unless it is handed
    /// off.
    fn lose_task(
        &mut self,
        retry_at: Instant,
        shard: &ShardId,
        place: &mut Place,
        returned: Vec<Returned>,
        out: &mut Vec<Effect>,
    ) {
        let Some(generation) = place.slot.hosted() else { return };
        let task = if place.slot.handoff().is_some() { Task::Absent } else { Task::Failed(retry_at) };
        self.close(shard, place, out);
        place.slot.become_waiting(task);
        self.take_back(place, returned, generation, &Rank::Taken { generation });
    }

    /// Shortens the backoff of a failed shard that a message waits for, unless the shard remembers its entities.
    pub(super) fn hasten_restart(&self, now: Instant, place: &mut Place) {
        if self.config.settings.remember.enabled {
            return;
        }
        if let Slot::LocalStarting(starting) = &mut place.slot
            && let Task::Failed(retry_at) = &mut starting.task
        {
            *retry_at = (*retry_at).min(now + MIN_RESTART);
        }
    }

    /// Puts the messages that a shard gave back in front of all that wait, in the order given.
    fn take_back(&mut self, place: &mut Place, returned: Vec<Returned>, generation: Generation, rank: &Rank) {
        for returned in returned.into_iter().rev() {
            let content = Content::Message(returned.message);
            self.message_counters.count_in(&content);
            let (origin, first) = match returned.provenance {
                Provenance::Own => (self.config.id.clone(), generation),
                Provenance::Received { origin, first } => (origin, first),
            };
            place.buffer.push_front(Waiting {
                content,
                origin,
                first: Some(first),
                stamped: None,
                hops: 1,
                rank: rank.clone(),
                kept_at: None,
            });
        }
    }

    fn drop_returned(
        &mut self,
        shard: &ShardId,
        returned: Vec<Returned>,
        reason: DeadLetterReason,
        out: &mut Vec<Effect>,
    ) {
        self.message_counters.counters.dead_lettered += returned.len() as u64;
        let dead =
            |returned: Returned| Effect::DeadLetter { shard: shard.clone(), token: returned.message.token, reason };
        out.extend(returned.into_iter().map(dead));
    }

    /// Reports that no entity of the hosted generation lives any more, and routes the waiting messages on.
    pub(super) fn end_hosting(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
        returned: Vec<Returned>,
        out: &mut Vec<Effect>,
    ) {
        let Some((generation, ending, home)) = place.slot.end() else { return };
        match ending {
            Ending::RegionEnds => self.drop_returned(shard, returned, self.end_reason, out),
            Ending::HandOff | Ending::Fenced => {
                self.take_back(place, returned, generation, &Rank::Leftover { ended: generation });
            }
            Ending::Dropped => self.take_back(place, returned, generation, &Rank::Back),
        }
        place.end(generation);
        place.leftover_marks.retain(|(of, _)| *of > generation);
        place.owes_leftover_mark = place.buffer.has_leftovers();
        self.registration.hosted_changed();
        let ended = place.ended.unwrap_or(generation);
        self.report_stopped(shard, place, ended, out);
        if ended != generation {
            self.report_stopped(shard, place, generation, out);
        }
        if let Some(home) = home.filter(|home| Some(home.generation) > place.ended) {
            self.accept(now, shard, place, &home, out);
        } else {
            self.probe_old_path(now, shard, place, out);
            self.ask_home(now, shard, place);
        }
        self.try_open(now, shard, place, out);
    }

    pub(super) fn on_hosting_alarm(&mut self, now: Instant, shard: &ShardId, place: &mut Place, out: &mut Vec<Effect>) {
        if let Some(wait) = place.slot.handoff_mut()
            && wait.deadline.is_some_and(|at| at <= now)
        {
            // Do not wait for regions whose marks are late: the floor rejects their frames that still come.
            wait.deadline = None;
            wait.waiting_for.clear();
        }
        if let Slot::LocalStarting(starting) = &mut place.slot {
            starting.leftover_deadline.take_if(|at| *at <= now);
            if matches!(starting.task, Task::Failed(at) if at <= now) {
                starting.task = Task::Starting;
                let generation = starting.hosting.generation;
                out.push(Effect::StartShard { shard: shard.clone(), generation });
            }
        }
        self.try_drain(now, shard, place, out);
    }

    pub(super) fn on_hosting_nodes_gone(
        &mut self,
        now: Instant,
        shard: &ShardId,
        place: &mut Place,
        gone: &BTreeSet<UniqueAddress>,
        out: &mut Vec<Effect>,
    ) {
        if let Slot::LocalStarting(starting) = &mut place.slot
            && starting.hosting.leftovers_from.as_ref().is_some_and(|from| gone.contains(&from.node))
        {
            starting.leftover_deadline = None;
        }
        if let Some(wait) = place.slot.handoff_mut() {
            wait.waiting_for.retain(|region| !gone.contains(&region.node));
        }
        self.try_drain(now, shard, place, out);
    }

    /// The journal knows a newer owner: asks the coordinator where the shard lives now.
    pub(super) fn on_fenced(
        &mut self,
        now: Instant,
        shard: &ShardId,
        generation: Generation,
        stored: Option<Generation>,
        out: &mut Vec<Effect>,
    ) {
        self.with_place(shard, |region, place| {
            if place.slot.hosting().is_none_or(|hosting| hosting.generation != generation) {
                return;
            }
            if stored.is_none_or(|stored| stored <= generation) {
                return region.pending.asks.push(shard.clone());
            }
            // End the shard, so that the coordinator allocates it anew: under this generation no owner can claim again.
            // The coordinator may know this very generation, since a claim after numbering was lost keeps it through
            // later epochs.
            if let Some(stored) = stored.filter(|stored| stored.epoch() > region.registration.highest_epoch()) {
                out.push(Effect::Event(RegionEvent::GenerationBehind { stored, own: generation }));
                if !region.registration.adopt_epoch(now, stored.epoch()) {
                    return region.pending.asks.push(shard.clone());
                }
            }
            region.kill(now, shard, place, Ending::Fenced, AfterDrain::Ask, out);
        });
    }
}
