//! Hosting: accepting a shard, starting it, starting it again, and its end.
//!
//! Source: sharding §2.4, §2.8, §4.12.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, Generation, UniqueAddress};

use super::buffer::{Content, Rank, Waiting};
use super::protocol::{Effect, Provenance, RegionEvent, Returned, Route};
use super::slot::{Ending, Hosting, Slot, State, Task};
use super::{Region, RegionState, Sabotage};
use crate::entity::Failures;
use crate::ids::ShardId;
use crate::machine::message::{Home, RegionMessage};

/// Shortest time between two starts of a failed shard that messages wait for.
const MIN_RESTART: Duration = Duration::from_millis(100);
/// How often the time before a failed shard starts again doubles, where it remembers its entities.
const MOST_DOUBLINGS: u32 = 3;
/// A shard whose last failure lies so many of the shortest such times back begins with the shortest again.
const FORGIVEN: u32 = 20;

impl Region {
    /// `HostShard`, or a `ShardHome` that names this region.
    pub(super) fn on_host(
        &mut self,
        now: Instant,
        shard: &ShardId,
        slot: &mut Slot,
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
        if let Some(hosting) = slot.hosting().filter(|hosting| hosting.generation == generation) {
            if hosting.ending.is_none() && hosting.handoff.is_none() {
                self.tell_accepted(shard, generation, hosting.task, out);
            }
            return;
        }
        // A generation that ended here cannot start again, nor one that others have left behind: saying so
        // makes the coordinator allocate anew, whether this is a late duplicate or a lost state.
        let checked = self.sabotage != Some(Sabotage::GenerationCheck);
        if checked && (Some(generation) <= slot.ended || Some(generation) < slot.heard) {
            slot.end(generation);
            return self.tell_stopped(shard, slot, generation, out);
        }
        slot.hear(generation);
        slot.next = None;
        match &slot.state {
            State::Hosted(hosting) => {
                let ending = hosting.ending.is_some();
                slot.pending_host = Some(home);
                if !ending {
                    self.kill(now, shard, slot, Ending::Dropped, out);
                }
            }
            State::Remote { .. } => {
                self.leave_remote(now, shard, slot, false, out);
                self.accept(now, shard, slot, &home, out);
            }
            State::NoRoute => self.accept(now, shard, slot, &home, out),
        }
    }

    /// Takes the shard and starts it. A region that shuts down does not start it any more, and asks again to be rid of it.
    fn accept(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, home: &Home, out: &mut Vec<Effect>) {
        let is_leaving = self.state == RegionState::ShuttingDown;
        let task = if is_leaving { Task::Absent(None) } else { Task::Starting };
        self.own(now, slot, home, task);
        if !is_leaving {
            out.push(Effect::StartShard { shard: shard.clone(), generation: home.generation });
        }
        self.tell_accepted(shard, home.generation, task, out);
        self.prove_old_path(now, shard, slot, out);
    }

    /// Owns the shard until a handoff ends that, also where it is not started: others send here by this home and mark
    /// that they have, so what waits here is to become leftovers, in order.
    pub(super) fn own(&mut self, now: Instant, slot: &mut Slot, home: &Home, task: Task) {
        let generation = home.generation;
        self.clear_flushed(slot, home);
        slot.pending_host = None;
        slot.next = None;
        slot.asking.end();
        slot.leftover_marks.retain(|(of, _)| *of >= generation);
        let awaited = home
            .leftovers_from
            .as_ref()
            .is_some_and(|from| *from != self.config.id && self.members.contains(&from.node));
        let awaited = awaited && self.sabotage != Some(Sabotage::LeftoverMark);
        slot.state = State::Hosted(Box::new(Hosting {
            generation,
            previous: home.previous,
            leftovers_from: home.leftovers_from.clone(),
            task,
            has_served: false,
            is_flushing: false,
            leftover_deadline: awaited.then(|| now + self.config.settings.flush_timeout),
            handoff: None,
            ending: None,
            floors: BTreeMap::new(),
            admitted: BTreeSet::new(),
            failures: None,
        }));
        self.registration.hosted_changed();
    }

    /// That the shard is started; or, where it was not, that this region is to be rid of it.
    fn tell_accepted(&self, shard: &ShardId, generation: Generation, task: Task, out: &mut Vec<Effect>) {
        let region = self.config.id.clone();
        if task == Task::Absent(None) {
            return self.tell_coordinator(RegionMessage::GracefulShutdownReq { region }, out);
        }
        self.tell_coordinator(RegionMessage::ShardStarted { region, shards: vec![(shard.clone(), generation)] }, out);
    }

    /// Whether the leftovers that the home spoke of are all here.
    pub(super) fn leftovers_are_in(&self, slot: &Slot, hosting: &Hosting) -> bool {
        let mark = |from: &crate::ids::RegionId| slot.leftover_marks.contains(&(hosting.generation, from.clone()));
        hosting.leftovers_from.as_ref().is_none_or(mark)
    }

    pub(super) fn on_initialized(
        &mut self,
        now: Instant,
        shard: &ShardId,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        self.with_slot(shard, |region, slot| {
            let starting = |hosting: &&mut Hosting| hosting.generation == generation && hosting.task == Task::Starting;
            if let Some(hosting) = slot.hosting_mut().filter(starting) {
                hosting.task = Task::Ready;
                region.try_open(now, shard, slot, out);
            }
        });
    }

    /// Ends a hosted shard without stop messages, or hastens an end that is under way.
    pub(super) fn kill(
        &mut self,
        now: Instant,
        shard: &ShardId,
        slot: &mut Slot,
        ending: Ending,
        out: &mut Vec<Effect>,
    ) {
        let Some(hosting) = slot.hosting_mut() else { return };
        hosting.ending = Some(ending);
        hosting.handoff = None;
        hosting.leftover_deadline = None;
        let (task, generation) = (hosting.task, hosting.generation);
        if matches!(task, Task::Starting | Task::Ready) {
            hosting.task = Task::Ending;
        }
        self.publish(shard, slot, Route::Closed, out);
        match task {
            // A stop under way is hastened.
            Task::Starting | Task::Ready | Task::Ending => {
                out.push(Effect::KillShard { shard: shard.clone(), generation });
            }
            Task::Absent(_) => self.end_hosting(now, shard, slot, Vec::new(), out),
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
        self.counters.submitted += leftovers.len() as u64;
        self.with_slot(shard, |region, slot| {
            let Some(hosting) = slot.hosting_mut().filter(|hosting| hosting.generation == generation) else {
                return region.drop_returned(shard, leftovers, DeadLetterReason::RegionStopped, out);
            };
            if hosting.ending.is_some() {
                return region.end_hosting(now, shard, slot, leftovers, out);
            }
            // Its start was aborted; the marks of the handoff are still awaited. Or it stopped unasked.
            let retry_at = hosting.handoff.is_none().then(|| now + region.config.settings.shard_failure_backoff);
            hosting.task = Task::Absent(retry_at);
            region.publish(shard, slot, Route::Closed, out);
            region.take_back(slot, leftovers, generation, &Rank::Taken { generation });
            region.try_drain(now, shard, slot, out);
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
        self.counters.submitted += unprocessed.len() as u64;
        self.with_slot(shard, |region, slot| {
            let Some(hosting) = slot.hosting_mut().filter(|hosting| hosting.generation == generation) else {
                return region.drop_returned(shard, unprocessed, DeadLetterReason::RegionStopped, out);
            };
            if hosting.ending.is_some() {
                return region.end_hosting(now, shard, slot, unprocessed, out);
            }
            let handed_off = hosting.handoff.is_some();
            let settings = &region.config.settings;
            let backoff = match settings.shard_failure_backoff {
                // Its store may need the time, whatever waits.
                backoff if settings.remember.enabled => {
                    let before = Failures::count(&mut hosting.failures, now, backoff.saturating_mul(FORGIVEN));
                    backoff.saturating_mul(1 << before.min(MOST_DOUBLINGS))
                }
                backoff if unprocessed.is_empty() => backoff,
                backoff => backoff.min(MIN_RESTART),
            };
            hosting.task = Task::Absent((!handed_off).then(|| now + backoff));
            region.publish(shard, slot, Route::Closed, out);
            region.take_back(slot, unprocessed, generation, &Rank::Taken { generation });
            region.try_drain(now, shard, slot, out);
        });
    }

    /// A failed shard that a message waits for does not sleep out its backoff, unless it remembers its entities.
    pub(super) fn hasten_restart(&self, now: Instant, slot: &mut Slot) {
        if self.config.settings.remember.enabled {
            return;
        }
        if let Some(Hosting { task: Task::Absent(Some(retry_at)), .. }) = slot.hosting_mut() {
            *retry_at = (*retry_at).min(now + MIN_RESTART);
        }
    }

    /// Puts the messages that a shard gave back in front of all that wait, in the order given.
    fn take_back(&mut self, slot: &mut Slot, returned: Vec<Returned>, generation: Generation, rank: &Rank) {
        for returned in returned.into_iter().rev() {
            let content = Content::Message(returned.message);
            self.count_in(&content);
            let (origin, first) = match returned.provenance {
                Provenance::Own => (self.config.id.clone(), generation),
                Provenance::Travelled { origin, first } => (origin, first),
            };
            slot.buffer.push_front(Waiting {
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
        self.counters.dead_lettered += returned.len() as u64;
        let dead =
            |returned: Returned| Effect::DeadLetter { shard: shard.clone(), token: returned.message.token, reason };
        out.extend(returned.into_iter().map(dead));
    }

    /// Reports that no entity of the hosted generation lives any more, and goes on with the waiting messages.
    pub(super) fn end_hosting(
        &mut self,
        now: Instant,
        shard: &ShardId,
        slot: &mut Slot,
        returned: Vec<Returned>,
        out: &mut Vec<Effect>,
    ) {
        let State::Hosted(hosting) = std::mem::replace(&mut slot.state, State::NoRoute) else { return };
        let generation = hosting.generation;
        self.publish(shard, slot, Route::Closed, out);
        match hosting.ending {
            Some(Ending::RegionEnds) => self.drop_returned(shard, returned, self.end_reason, out),
            Some(Ending::HandOff) => {
                self.take_back(slot, returned, generation, &Rank::Leftover { ended: generation });
            }
            Some(Ending::Dropped) | None => self.take_back(slot, returned, generation, &Rank::Back),
        }
        slot.end(generation);
        slot.leftover_marks.retain(|(of, _)| *of > generation);
        slot.owes_leftover_mark = slot.buffer.has_leftovers();
        self.registration.hosted_changed();
        let ended = slot.ended.unwrap_or(generation);
        self.tell_stopped(shard, slot, ended, out);
        if ended != generation {
            self.tell_stopped(shard, slot, generation, out);
        }
        if let Some(home) = slot.pending_host.take().filter(|home| Some(home.generation) > slot.ended) {
            self.accept(now, shard, slot, &home, out);
        } else {
            self.prove_old_path(now, shard, slot, out);
            self.ask_home(now, shard, slot);
        }
        self.try_open(now, shard, slot, out);
    }

    pub(super) fn on_hosting_alarm(&mut self, now: Instant, shard: &ShardId, slot: &mut Slot, out: &mut Vec<Effect>) {
        let Some(hosting) = slot.hosting_mut() else { return };
        if hosting.leftover_deadline.is_some_and(|at| at <= now) {
            hosting.leftover_deadline = None;
        }
        if let Some(wait) = &mut hosting.handoff
            && wait.deadline.is_some_and(|at| at <= now)
        {
            // Regions whose marks are late are not waited for: the floor deals with their frames that still come.
            wait.deadline = None;
            wait.waiting_for.clear();
        }
        if matches!(hosting.task, Task::Absent(Some(at)) if at <= now) {
            hosting.task = Task::Starting;
            let generation = hosting.generation;
            out.push(Effect::StartShard { shard: shard.clone(), generation });
        }
        self.try_drain(now, shard, slot, out);
    }

    pub(super) fn on_hosting_nodes_gone(
        &mut self,
        now: Instant,
        shard: &ShardId,
        slot: &mut Slot,
        gone: &BTreeSet<UniqueAddress>,
        out: &mut Vec<Effect>,
    ) {
        let Some(hosting) = slot.hosting_mut() else { return };
        if hosting.leftovers_from.as_ref().is_some_and(|from| gone.contains(&from.node)) {
            hosting.leftover_deadline = None;
        }
        if let Some(wait) = &mut hosting.handoff {
            wait.waiting_for.retain(|region| !gone.contains(&region.node));
        }
        self.try_drain(now, shard, slot, out);
    }
}
