//! Homes of one shard, and its hosting: where the shard lives, accepting it here, starting it, restarting it, and its end.
//!
//! Source: sharding §2.4, §2.6, §2.8, §4.12.

use std::collections::BTreeSet;
use std::time::Instant;

use greylag_core::{DeadLetterReason, Generation, UniqueAddress};

use super::buffer::{Content, Rank, Waiting};
use super::slot::{AfterDrain, Ending, LeftRoute, Next, Remote, Slot, Task};
use super::{MIN_RESTART, ShardPlace};
use crate::entity::Failures;
use crate::ids::{RegionId, ShardId};
use crate::machine::message::Home;
use crate::machine::omissions::Clause;
use crate::machine::region::config::RegionState;
use crate::machine::region::protocol::{Effect, Provenance, Returned};
use crate::machine::region::report::RegionEvent;
use crate::machine::region::routing::Router;

/// How often the restart backoff of a failed shard doubles at most, where the shard remembers its entities.
const MOST_DOUBLINGS: u32 = 3;
/// A shard whose last failure lies more than this many shortest backoffs back begins with the shortest again.
const FORGIVEN: u32 = 20;

impl ShardPlace {
    /// A home from the coordinator: an answer, a push, or an order to host.
    pub(in crate::machine::region) fn on_home(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        home: Home,
        out: &mut Vec<Effect>,
    ) {
        let checked = !router.omits(Clause::GenerationCheck);
        if home.region == router.config.id {
            return self.on_host(now, shard, router, home, out);
        }
        if checked && Some(home.generation) < self.heard || router.state == RegionState::Refused {
            return;
        }
        if self.is_from_before_ack(router, &home) {
            return;
        }
        self.note_generation(home.generation);
        self.slot.unplan_host();
        if router.is_gone(&home.region.node) {
            return;
        }
        let reachable = !router.dead_ends.contains(&home.region.node);
        let next = reachable.then(|| Next { region: home.region.clone(), generation: home.generation });
        let is_known = |remote: &Remote| remote.region == home.region && remote.generation == home.generation;
        if self.slot.remote().is_some_and(is_known) {
            return;
        }
        self.follow_home(now, shard, router, &home, next, out);
        if !reachable && self.wants_home() {
            self.asking.later(now, router.config.settings.retry_interval);
        }
        router.probe_old_path(now, shard, self, out);
        router.try_open(now, shard, self, out);
    }

    /// Leaves a route or hosting older than `home`, and plans `next`, which is `None` if the home's node is
    /// unreachable.
    fn follow_home(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        home: &Home,
        next: Option<Next>,
        out: &mut Vec<Effect>,
    ) {
        let checked = !router.omits(Clause::GenerationCheck);
        match &self.slot {
            Slot::Remote(remote) => {
                if remote.generation < home.generation || !checked {
                    router.leave_remote(now, shard, self, true, out);
                    self.slot.plan(next);
                }
            }
            Slot::LocalStarting(_) | Slot::Local(_) => {
                if let Some(generation) = self.slot.hosted().filter(|hosted| *hosted < home.generation) {
                    out.push(Effect::Event(RegionEvent::OwnershipConflict { shard: shard.clone(), generation }));
                    let after_drain = next.map_or(AfterDrain::Ask, AfterDrain::Route);
                    self.kill(now, shard, router, Ending::Dropped, after_drain, out);
                }
            }
            Slot::Draining(_) => self.slot.plan(next),
            Slot::Unknown | Slot::Resolving(_) | Slot::Buffering(_) => {
                router.clear_flushed(self, home);
                self.slot.plan(next);
            }
        }
    }

    /// Whether a home was sent before this region closed its route to it for a handoff that may still be under way.
    /// Messages sent to the home now would reach the owner behind the flush mark, too late.
    fn is_from_before_ack(&self, router: &Router, home: &Home) -> bool {
        self.acked.is_some_and(|acked| {
            acked.generation == home.generation
                && acked.attempt.epoch() == router.registration.highest_epoch()
                && home.given_up < Some(acked.attempt)
        })
    }

    /// A region says that the home known here is older than `generation`.
    pub(in crate::machine::region) fn on_stale_route(
        &mut self,
        now: Instant,
        node: &UniqueAddress,
        shard: &ShardId,
        router: &mut Router,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        self.note_generation(generation);
        match &self.slot {
            Slot::Remote(remote) => {
                // Only the owner reports its own generation as stale: the owner has stopped.
                let has_stopped = remote.generation == generation && remote.region.node == *node;
                if remote.generation < generation || has_stopped {
                    router.leave_remote(now, shard, self, true, out);
                }
            }
            slot if slot.hosting().is_some_and(|hosting| hosting.generation < generation) => {
                router.ask_for(shard);
            }
            _ => {}
        }
        router.ask_home(now, shard, self);
    }

    /// Takes `HostShard`, or a `ShardHome` that names this region.
    pub(in crate::machine::region) fn on_host(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        home: Home,
        out: &mut Vec<Effect>,
    ) {
        let generation = home.generation;
        if router.config.proxy {
            out.push(Effect::Event(RegionEvent::HostShardOnProxy { shard: shard.clone() }));
            return;
        }
        match router.state {
            RegionState::Unregistered | RegionState::Registered | RegionState::ShuttingDown => {}
            RegionState::Refused | RegionState::Stopping | RegionState::Stopped => return,
        }
        if self.slot.hosted() == Some(generation) {
            if let Some(task) = self.slot.task().filter(|_| self.slot.handoff().is_none()) {
                router.report_accepted(shard, generation, task, out);
            }
            return;
        }
        // A generation that ended here, or that is older than one heard of, must not start: saying so makes the
        // coordinator allocate anew, whether this order is a late duplicate or comes from a lost state.
        let checked = !router.omits(Clause::GenerationCheck);
        if checked && (Some(generation) <= self.ended || Some(generation) < self.heard) {
            self.end(generation);
            return self.report_stopped(shard, router, generation, out);
        }
        self.note_generation(generation);
        match &self.slot {
            Slot::Draining(_) => self.slot.plan_host(home),
            Slot::LocalStarting(_) | Slot::Local(_) => {
                self.kill(now, shard, router, Ending::Dropped, AfterDrain::Host(home), out);
            }
            Slot::Remote(_) => {
                router.leave_remote(now, shard, self, false, out);
                self.accept(now, shard, router, &home, out);
            }
            Slot::Unknown | Slot::Resolving(_) | Slot::Buffering(_) => self.accept(now, shard, router, &home, out),
        }
    }

    /// Takes the shard and starts it. A region that shuts down does not start it, and asks for its handoff again.
    fn accept(&mut self, now: Instant, shard: &ShardId, router: &mut Router, home: &Home, out: &mut Vec<Effect>) {
        let is_leaving = router.state == RegionState::ShuttingDown;
        let task = if is_leaving { Task::Absent } else { Task::Starting };
        self.own(now, router, home, task);
        if !is_leaving {
            out.push(Effect::StartShard { shard: shard.clone(), generation: home.generation });
        }
        router.report_accepted(shard, home.generation, task, out);
        router.probe_old_path(now, shard, self, out);
    }

    /// Owns the shard until a handoff ends the hosting, even if it is not started: other regions send messages to this
    /// home, and marks behind them, so the messages that wait here must become leftovers, in order.
    pub(in crate::machine::region) fn own(&mut self, now: Instant, router: &mut Router, home: &Home, task: Task) {
        router.clear_flushed(self, home);
        self.asking.end();
        self.leftover_marks.retain(|(of, _)| *of >= home.generation);
        let awaited = home
            .leftovers_from
            .as_ref()
            .is_some_and(|from| *from != router.config.id && router.members.contains(&from.node));
        let awaited = awaited && !router.omits(Clause::LeftoverMark);
        let leftover_deadline = awaited.then(|| now + router.config.settings.flush_timeout);
        self.slot.become_starting(home, task, leftover_deadline);
        router.registration.hosted_changed();
    }

    /// The shard is ready to serve.
    pub(in crate::machine::region) fn on_initialized(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        generation: Generation,
        out: &mut Vec<Effect>,
    ) {
        if let Slot::LocalStarting(starting) = &mut self.slot
            && starting.hosting.generation == generation
            && starting.task == Task::Starting
        {
            starting.task = Task::Ready;
            router.try_open(now, shard, self, out);
        }
    }

    /// Ends a hosted shard without stop messages, or hastens an end under way, whose next step stays as planned.
    pub(in crate::machine::region) fn kill(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        ending: Ending,
        after_drain: AfterDrain,
        out: &mut Vec<Effect>,
    ) {
        let Some(generation) = self.slot.hosted() else { return };
        let is_absent = matches!(self.slot.task(), Some(Task::Failed(_) | Task::Absent));
        router.close(shard, self, out);
        self.slot.become_draining(ending, after_drain);
        if is_absent {
            self.end_hosting(now, shard, router, Vec::new(), out);
        } else {
            out.push(Effect::KillShard { shard: shard.clone(), generation });
        }
    }

    /// The task of the shard has ended without a failure: as it was told to, or without a request.
    pub(in crate::machine::region) fn on_shard_stopped(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        generation: Generation,
        leftovers: Vec<Returned>,
        out: &mut Vec<Effect>,
    ) {
        router.messages.on_submitted(leftovers.len());
        if self.slot.hosted() != Some(generation) {
            return router.messages.drop_returned(shard, leftovers, DeadLetterReason::RegionStopped, out);
        }
        if matches!(self.slot, Slot::Draining(_)) {
            return self.end_hosting(now, shard, router, leftovers, out);
        }
        // The start was aborted while the marks of the handoff are still awaited, or the shard stopped without a
        // request.
        let backoff = router.config.settings.shard_failure_backoff;
        self.lose_task(now + backoff, shard, router, leftovers, out);
        self.try_drain(now, shard, router, out);
    }

    /// The task of the shard has failed: the shard starts again after a backoff, unless it ends anyway.
    pub(in crate::machine::region) fn on_shard_failed(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        generation: Generation,
        unprocessed: Vec<Returned>,
        out: &mut Vec<Effect>,
    ) {
        router.messages.on_submitted(unprocessed.len());
        if self.slot.hosted() != Some(generation) {
            return router.messages.drop_returned(shard, unprocessed, DeadLetterReason::RegionStopped, out);
        }
        let Some(hosting) = self.slot.hosting_mut() else {
            return self.end_hosting(now, shard, router, unprocessed, out);
        };
        let settings = &router.config.settings;
        let backoff = match settings.shard_failure_backoff {
            // The store of remembered entities may need the whole backoff, even if messages wait.
            backoff if settings.remember.enabled => {
                let before = Failures::count(&mut hosting.failures, now, backoff.saturating_mul(FORGIVEN));
                backoff.saturating_mul(1 << before.min(MOST_DOUBLINGS))
            }
            backoff if unprocessed.is_empty() => backoff,
            backoff => backoff.min(MIN_RESTART),
        };
        self.lose_task(now + backoff, shard, router, unprocessed, out);
        self.try_drain(now, shard, router, out);
    }

    /// Notes that the task of a shard that does not end is gone. The shard restarts at `retry_at`, unless it is handed
    /// off.
    fn lose_task(
        &mut self,
        retry_at: Instant,
        shard: &ShardId,
        router: &mut Router,
        returned: Vec<Returned>,
        out: &mut Vec<Effect>,
    ) {
        let Some(generation) = self.slot.hosted() else { return };
        let task = if self.slot.handoff().is_some() { Task::Absent } else { Task::Failed(retry_at) };
        router.close(shard, self, out);
        self.slot.become_waiting(task);
        self.take_back(router, returned, generation, &Rank::Taken { generation });
    }

    /// Puts the messages that a shard gave back in front of all that wait, in the order given.
    fn take_back(&mut self, router: &mut Router, returned: Vec<Returned>, generation: Generation, rank: &Rank) {
        for returned in returned.into_iter().rev() {
            let content = Content::Message(returned.message);
            router.messages.count_in(&content);
            let (origin, first) = match returned.provenance {
                Provenance::Own => (router.config.id.clone(), generation),
                Provenance::Received { origin, first } => (origin, first),
            };
            self.buffer.push_front(Waiting {
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

    /// Reports that no entity of the hosted generation lives any more, and routes the waiting messages on.
    pub(in crate::machine::region) fn end_hosting(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        returned: Vec<Returned>,
        out: &mut Vec<Effect>,
    ) {
        let Some((generation, ending, home)) = self.slot.end() else { return };
        match ending {
            Ending::RegionEnds => router.messages.drop_returned(shard, returned, router.end_reason, out),
            Ending::HandOff | Ending::Fenced => {
                self.take_back(router, returned, generation, &Rank::Leftover { ended: generation });
            }
            Ending::Dropped => self.take_back(router, returned, generation, &Rank::Back),
        }
        self.end(generation);
        self.leftover_marks.retain(|(of, _)| *of > generation);
        self.owes_leftover_mark = self.buffer.has_leftovers();
        router.registration.hosted_changed();
        let ended = self.ended.unwrap_or(generation);
        self.report_stopped(shard, router, ended, out);
        if ended != generation {
            self.report_stopped(shard, router, generation, out);
        }
        if let Some(home) = home.filter(|home| Some(home.generation) > self.ended) {
            self.accept(now, shard, router, &home, out);
        } else {
            router.probe_old_path(now, shard, self, out);
            router.ask_home(now, shard, self);
        }
        router.try_open(now, shard, self, out);
    }

    /// Does everything that is due for one shard.
    pub(in crate::machine::region) fn on_alarm(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        out: &mut Vec<Effect>,
    ) {
        if self.asking.at.is_some_and(|at| at <= now) {
            self.asking.at = None;
            router.ask_home(now, shard, self);
        }
        let is_over = |left: &LeftRoute| match left {
            LeftRoute::Path(path) => path.deadline.is_some_and(|at| at <= now),
            LeftRoute::HandBack(_, until) => *until <= now,
        };
        if self.slot.left().is_some_and(is_over) {
            self.slot.forget_left();
        }
        self.on_hosting_alarm(now, shard, router, out);
        router.try_open(now, shard, self, out);
    }

    fn on_hosting_alarm(&mut self, now: Instant, shard: &ShardId, router: &mut Router, out: &mut Vec<Effect>) {
        if let Some(wait) = self.slot.handoff_mut()
            && wait.deadline.is_some_and(|at| at <= now)
        {
            // Do not wait for regions whose marks are late: the floor rejects their frames that still come.
            wait.deadline = None;
            wait.waiting_for.clear();
        }
        if let Slot::LocalStarting(starting) = &mut self.slot {
            starting.leftover_deadline.take_if(|at| *at <= now);
            if matches!(starting.task, Task::Failed(at) if at <= now) {
                starting.task = Task::Starting;
                let generation = starting.hosting.generation;
                out.push(Effect::StartShard { shard: shard.clone(), generation });
            }
        }
        self.try_drain(now, shard, router, out);
    }

    /// Nodes were removed: their homes, marks, echoes and leftovers will not come. Returns the region that the route led
    /// to, if it is among them.
    pub(in crate::machine::region) fn on_nodes_gone(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        gone: &BTreeSet<UniqueAddress>,
        out: &mut Vec<Effect>,
    ) -> Option<RegionId> {
        let hold = now + router.config.settings.flush_timeout;
        let home = self.slot.remote().map(|remote| remote.region.clone());
        let lost = home.filter(|owner| gone.contains(&owner.node));
        if let Some(owner) = &lost {
            router.close(shard, self, out);
            self.slot.leave_remote(|_| router.awaited_hand_back(&owner.node, hold));
        }
        self.slot.unplan_if(|next| gone.contains(&next.region.node));
        if let Some(path) = self.slot.old_path().filter(|path| gone.contains(&path.region.node)) {
            let awaited = router.awaited_hand_back(&path.region.node, hold);
            self.slot.replace_left(awaited);
        }
        self.marks.retain(|from, _| !gone.contains(&from.node));
        self.leftover_marks.retain(|(_, from)| !gone.contains(&from.node));
        self.on_hosting_nodes_gone(now, shard, router, gone, out);
        router.ask_home(now, shard, self);
        router.try_open(now, shard, self, out);
        lost
    }

    fn on_hosting_nodes_gone(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        gone: &BTreeSet<UniqueAddress>,
        out: &mut Vec<Effect>,
    ) {
        if let Slot::LocalStarting(starting) = &mut self.slot
            && starting.hosting.leftovers_from.as_ref().is_some_and(|from| gone.contains(&from.node))
        {
            starting.leftover_deadline = None;
        }
        if let Some(wait) = self.slot.handoff_mut() {
            wait.waiting_for.retain(|region| !gone.contains(&region.node));
        }
        self.try_drain(now, shard, router, out);
    }

    /// The journal knows a newer owner: asks the coordinator where the shard lives now.
    pub(in crate::machine::region) fn on_fenced(
        &mut self,
        now: Instant,
        shard: &ShardId,
        router: &mut Router,
        generation: Generation,
        stored: Option<Generation>,
        out: &mut Vec<Effect>,
    ) {
        if self.slot.hosting().is_none_or(|hosting| hosting.generation != generation) {
            return;
        }
        if stored.is_none_or(|stored| stored <= generation) {
            return router.ask_for(shard);
        }
        // End the shard, so that the coordinator allocates it anew: under this generation no owner can claim again.
        // The coordinator may know this very generation, since a claim after numbering was lost keeps it through
        // later epochs.
        if let Some(stored) = stored.filter(|stored| stored.epoch() > router.registration.highest_epoch()) {
            out.push(Effect::Event(RegionEvent::GenerationBehind { stored, own: generation }));
            if !router.registration.adopt_epoch(now, stored.epoch()) {
                return router.ask_for(shard);
            }
        }
        self.kill(now, shard, router, Ending::Fenced, AfterDrain::Ask, out);
    }
}
