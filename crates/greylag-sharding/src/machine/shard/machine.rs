//! The shard itself: hands each input to the part that it is for, takes the answers of its store, and ends.
//!
//! The end of the shard: stop requests to all entities, force after a deadline, or a kill. A shard that remembers its
//! entities loads them first, and writes their starts and ends; the states are those of `remembering.rs`.
//!
//! Source: sharding §2.9 (point 3), §2.11, §4.3 to §4.5, §4.7 to §4.9.

use std::time::{Duration, Instant};

use super::life::{Life, SWEEP_STEP};
use super::messages::Turns;
use super::passivating::{Passivating, Uses};
use super::protocol::{Effect, Ended, Input, Notice, Overdue, SlotId, Weigh};
use super::remembering::{Remembered, Remembering};
use super::table::{AHEAD, EntityScan, Guess, IncarnationPhase, Item, Slot, StartDelay, Table};
use super::timers::{Due, STOP_WARN_AFTER, Timers, note_due};
use crate::entity::Supervision;
use crate::ids::EntityId;
use crate::parcel::FAR;
use crate::passivation::Passivation;
use crate::settings::ShardingSettings;

/// Limit of slots up to which a debug build checks each of them after each input.
const CHECKED_SLOTS: u32 = 16;

/// How many of a stopping shard's entities are named in a warning. Source: sharding §2.9.
const NAMED_OVERDUE: usize = 5;

/// The machine. `E` is an entity as the shell keeps it, `P` a message.
pub struct Shard<E, P> {
    pub(super) settings: ShardingSettings,
    pub(super) supervision: Supervision,
    pub(super) table: Table<E, P>,
    pub(super) turns: Turns,
    pub(super) timers: Timers,
    pub(super) passivating: Passivating,
    pub(super) life: Life,
    /// Messages that were not handled and will not be handled here.
    pub(super) leftovers: Vec<(EntityId, P)>,
    /// `Some` if the type remembers its entities.
    pub(super) remembering: Option<Box<Remembering>>,
}

impl<E, P: Weigh> Shard<E, P> {
    /// An empty shard. `hash_seed` is drawn once per process; `serial` tells the shards that ever
    /// ran in this process apart, so that no incarnation number is used twice.
    pub fn new(
        settings: ShardingSettings,
        supervision: Supervision,
        passivation: &Passivation,
        hash_seed: u64,
        serial: u32,
        now: Instant,
    ) -> Self {
        let supervision =
            Supervision { max_restarts: settings.max_restarts, restart_window: settings.restart_window, ..supervision };
        Self {
            supervision,
            table: Table::new(hash_seed, serial),
            turns: Turns::default(),
            timers: Timers::new(settings.runtime.timer_tick, now),
            // The shard's part of the limit follows once the region has counted its shards.
            passivating: Passivating::new(passivation),
            life: Life::Serving,
            leftovers: Vec::new(),
            settings,
            remembering: None,
        }
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<E, P>>) {
        match input {
            Input::Deliver { id, payload, activity } => self.on_deliver(now, id, payload, activity, out),
            Input::Turn => self.on_turn(now, out),
            Input::Done { slot, outcome } => self.on_done(now, slot.0, outcome, out),
            Input::Started { slot, outcome, payload } => self.on_started(now, slot.0, outcome, payload, out),
            Input::Resumed { slot, incarnation, payload, suspension } => {
                self.on_resumed(now, (slot.0, incarnation), payload, suspension, out);
            }
            Input::Direct { incarnation, payload } => self.on_direct(incarnation, payload, out),
            Input::GivenBack { slot, payloads } => self.on_given_back(slot.0, payloads),
            Input::Failed { slot, cause, payload } => self.on_failed(now, slot.0, &cause, payload, out),
            Input::Stop { deadline } => self.on_stop(now, deadline, out),
            Input::Limit { entities } => self.passivating.set_limit(entities),
            Input::Begin => self.on_begin(now, out),
            Input::Loaded { ids } => self.on_loaded(ids, out),
            Input::LoadFailed => self.on_load_failed(now, out),
            Input::Stored { number } => self.on_stored(now, number, out),
            Input::StoreFailed { number } => self.on_store_failed(now, number, out),
            Input::Moved { ids } => self.on_moved(now, &ids, out),
            Input::Kill => self.on_kill(now, out),
            Input::Tick => self.on_tick(now, out),
        }
        if self.passivating.has_victims() {
            self.passivate_victims(now, out);
        }
        self.store_next(now, out);
        self.check_invariants();
    }

    /// Checks what holds between two inputs; a large shard checks its sums only. Source: sharding §2.9, §4.1 to §4.8.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let is_serving = self.life.is_serving();
        assert!(!is_serving || self.leftovers.is_empty(), "a serving shard hands every message to its entity");
        assert!(!self.is_stopped() || self.table.live() == 0, "a shard that has stopped has no entity");
        let is_small = self.table.bound() <= CHECKED_SLOTS;
        if let Some(remembering) = &self.remembering {
            remembering.check_invariants(is_small.then(|| self.waiting_for_store()));
        }
        if !is_small {
            return;
        }
        self.timers.check_invariants();
        self.passivating.check_invariants();
        self.table.check_invariants();
        let slots = || (0..self.table.bound()).map(|at| (at, self.table.get(at)));
        let mut ready: Vec<u32> = self.turns.pending().collect();
        ready.sort_unstable();
        let marked: Vec<u32> = slots().filter(|(_, slot)| slot.ready).map(|(at, _)| at).collect();
        assert_eq!(ready, marked, "an entity that is ready waits for one turn");
        let later: usize = slots().map(|(_, slot)| slot.later_len()).sum();
        assert_eq!(later, self.turns.later, "messages behind stop requests are counted");
        for (at, slot) in slots() {
            slot.check_invariants();
            assert!(slot.deadlines().all(|due| self.timers.has_deadline(due, at)), "a deadline of an entity is set");
            let is_stored = slot.phase == IncarnationPhase::Storing && is_serving;
            let has_write = || self.remembering.as_ref().is_some_and(|remembering| remembering.has_unstored());
            assert!(!is_stored || has_write(), "messages wait for a write that is under way");
        }
    }

    /// The messages in slots that wait for the store.
    fn waiting_for_store(&self) -> usize {
        let slots = (0..self.table.bound()).map(|at| self.table.get(at));
        slots.filter(|slot| slot.phase == IncarnationPhase::Storing).map(Slot::queue_len).sum()
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let sweeps = self.passivating.due_at().filter(|_| self.life.is_serving());
        let sweep = sweeps.and_then(|tick| self.timers.instant_of(tick));
        let (stop, warning) = match self.life {
            // A stopping shard without entities waits for its store only.
            Life::Stopping { deadline, warn_at, .. } if self.table.live() > 0 => (Some(deadline), warn_at),
            _ => (None, None),
        };
        let store = self.remembering.as_ref().and_then(|remembering| remembering.next_deadline());
        [self.timers.next_deadline(), sweep, stop, warning, store].into_iter().flatten().min()
    }

    /// Whether a `Turn` would do something.
    pub fn has_work(&self) -> bool {
        let stopping = matches!(self.life, Life::Stopping { next, .. } if next < self.table.bound());
        let sweeps = self.life.is_serving() && self.passivating.has_due();
        self.turns.is_pending() || stopping || sweeps
    }

    /// Tells the shard the time; cheap, once per batch of messages is enough.
    pub fn observe(&mut self, now: Instant) {
        self.timers.observe(now);
    }

    /// Entities that live or have messages waiting.
    pub fn entity_count(&self) -> usize {
        self.table.live()
    }

    /// How the entities were used so far.
    pub fn uses(&self) -> Uses {
        self.passivating.uses()
    }

    /// Whether [`Effect::Stopped`] was given.
    pub fn is_stopped(&self) -> bool {
        self.life == Life::Stopped
    }

    /// The entity of a slot, with its id and incarnation. `None` once it has ended.
    pub fn entity(&mut self, slot: SlotId) -> Option<(&mut E, &EntityId, u64)> {
        let incarnation = self.table.number(slot.0);
        let slot = self.table.get_mut(slot.0);
        Some((slot.entity.as_mut()?, slot.id.as_ref()?, incarnation))
    }

    /// The id of the entity in a slot, and the incarnation that lives in it or is being started.
    pub fn identity(&self, slot: SlotId) -> Option<(&EntityId, u64)> {
        Some((self.table.get(slot.0).id.as_ref()?, self.table.number(slot.0)))
    }

    /// Puts a new entity into its slot and returns the previous one.
    pub fn place(&mut self, slot: SlotId, entity: E) -> Option<E> {
        self.table.get_mut(slot.0).entity.replace(entity)
    }

    /// Looks up the slots of the first [`AHEAD`] of these entities; unused guesses are meaningless.
    pub fn look_ahead<'a>(&self, ids: impl Iterator<Item = &'a EntityId> + Clone) -> [Guess; AHEAD] {
        self.table.look_ahead(ids)
    }

    /// Counts some more slots. Returns whether all have been counted.
    pub(crate) fn count_some(&self, scan: &mut EntityScan) -> bool {
        let is_all = scan.count_some(&self.table);
        if is_all {
            scan.note_not_started(self.remembered(Remembered::NotStarted));
        }
        is_all
    }

    /// Makes the shard remember its entities, so that it passivates none by itself. Must be called before the first
    /// input.
    #[must_use]
    pub fn remember(mut self) -> Self {
        self.passivating = Passivating::new(&Passivation::none());
        let (load, write) = (self.settings.waiting_for_state_timeout, self.settings.updating_state_timeout);
        self.remembering = Some(Box::new(Remembering::new(load, write)));
        self
    }

    /// How many remembered entities are in a state.
    pub fn remembered(&self, state: Remembered) -> usize {
        self.remembering.as_ref().map_or(0, |remembering| remembering.count(state))
    }

    /// How many entities are remembered.
    pub fn all_remembered(&self) -> usize {
        self.remembering.as_ref().map_or(0, |remembering| remembering.len())
    }

    pub(super) fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        self.observe(now);
        for due in self.timers.take_due(now) {
            self.on_due(now, due, out);
        }
        while let Some((due, at)) = self.timers.take_deadline(now) {
            self.on_deadline(now, at, due, out);
        }
        self.on_stopping_tick(now, out);
        self.on_store_tick(now, out);
        self.passivating.on_tick(self.timers.tick());
    }

    fn on_due(&mut self, now: Instant, due: Due, out: &mut Vec<Effect<E, P>>) {
        let (at, what) = match due {
            Due::Timer { slot, serial } => return self.on_timer(slot, serial),
            Due::ReceiveTimeout(slot) => return self.on_receive_timeout(now, slot),
            Due::Suspension(slot) => {
                self.table.get_mut(slot).suspended = None;
                (slot, Overdue::Suspension)
            }
            Due::StopWarning(slot) => {
                if let Some(extra) = self.table.get_mut(slot).existing() {
                    extra.stop_warning = None;
                }
                (slot, Overdue::Stop)
            }
        };
        out.extend(self.table.get(at).id.clone().map(|id| Effect::Overdue { id, what }));
    }

    fn on_timer(&mut self, at: u32, serial: u64) {
        if note_due(self.table.get_mut(at), serial) {
            self.enqueue_internal(at, Item::Timer(serial));
        }
    }

    fn on_receive_timeout(&mut self, now: Instant, at: u32) {
        if self.timers.on_receive_timeout(now, at, self.table.get_mut(at)) {
            self.enqueue_internal(at, Item::ReceiveTimeout);
        }
    }

    fn on_deadline(&mut self, now: Instant, at: u32, due: Instant, out: &mut Vec<Effect<E, P>>) {
        let slot = self.table.get_mut(at);
        let Some(extra) = slot.existing() else { return };
        if extra.stop_deadline == Some(due) {
            extra.stop_deadline = None;
            self.end(now, at, Ended::Forced, out);
        } else if let Some((_, why)) = extra.held.take_if(|(until, _)| *until == due) {
            slot.phase = IncarnationPhase::Absent;
            if slot.has_queue() {
                self.make_ready(at);
            } else if !self.life.is_serving() {
                self.free(at);
            } else if why == StartDelay::GivenUp {
                self.table.get_mut(at).phase = IncarnationPhase::Held;
            } else if why == StartDelay::Backoff || self.remembering.is_some() {
                self.begin_start(now, at, None, out);
            } else {
                self.free(at);
            }
        }
    }

    pub(super) fn on_stop(&mut self, now: Instant, deadline: Duration, out: &mut Vec<Effect<E, P>>) {
        if !self.life.is_serving() {
            return;
        }
        let deadline = now.checked_add(deadline).unwrap_or(now + FAR);
        self.life = Life::Stopping { next: 0, deadline, warn_at: Some(now + STOP_WARN_AFTER) };
        self.send_stops(now, out);
        self.check_stopped(now, out);
    }

    /// Requests the stop of some more entities.
    pub(super) fn send_stops(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        let Life::Stopping { next, deadline, warn_at } = self.life else { return };
        let end = next.saturating_add(SWEEP_STEP).min(self.table.bound());
        self.life = Life::Stopping { next: end, deadline, warn_at };
        for at in next..end {
            let slot = self.table.get(at);
            match slot.phase {
                _ if slot.id.is_none() => {}
                IncarnationPhase::Absent | IncarnationPhase::Held | IncarnationPhase::Storing => {
                    self.make_leftovers(at);
                }
                IncarnationPhase::Active if !slot.stop_requested && !slot.has_queue() => {
                    self.table.get_mut(at).stop_requested = true;
                    self.begin_stop(now, at, out);
                }
                _ => self.request_stop(now, at, out),
            }
        }
        self.check_stopped(now, out);
    }

    pub(super) fn end_all(&mut self, now: Instant, why: Ended, out: &mut Vec<Effect<E, P>>) {
        self.turns.clear();
        for at in 0..self.table.bound() {
            let slot = self.table.get_mut(at);
            slot.ready = false;
            match slot.phase {
                _ if slot.id.is_none() => {}
                IncarnationPhase::Absent | IncarnationPhase::Held | IncarnationPhase::Storing => {
                    self.make_leftovers(at);
                }
                _ => {
                    self.end_incarnation(at, why, out);
                    if why != Ended::Killed {
                        self.note_end_of_passivation(now, at, out);
                    }
                    self.make_leftovers(at);
                }
            }
        }
        self.check_stopped(now, out);
    }

    pub(super) fn on_kill(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        if self.life == Life::Stopped {
            return;
        }
        let next = self.table.bound();
        self.life = Life::Stopping { next, deadline: self.timers.started_at(), warn_at: None };
        self.abandon_store();
        self.end_all(now, Ended::Killed, out);
    }

    pub(super) fn check_stopped(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        let Life::Stopping { next, .. } = self.life else { return };
        if next >= self.table.bound() && self.table.live() == 0 && !self.waits_for_store(now) {
            self.life = Life::Stopped;
            out.push(Effect::Stopped(std::mem::take(&mut self.leftovers)));
        }
    }

    fn on_stopping_tick(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        let Life::Stopping { next, deadline, warn_at } = self.life else { return };
        if deadline <= now {
            let next = self.table.bound();
            self.life = Life::Stopping { next, deadline, warn_at: None };
            self.end_all(now, Ended::Forced, out);
        } else if warn_at.is_some_and(|warn_at| warn_at <= now) {
            self.life = Life::Stopping { next, deadline, warn_at: None };
            let left = (0..self.table.bound()).filter_map(|at| self.table.get(at).id.clone());
            let ids: Vec<EntityId> = left.take(NAMED_OVERDUE).collect();
            if !ids.is_empty() {
                out.push(Effect::StopOverdue { entities: self.table.live(), ids });
            }
        }
    }

    /// The shard fails: its region gets the messages back, and starts it again.
    pub(super) fn fail_shard(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        out.push(Effect::Escalate);
        self.on_kill(now, out);
    }

    pub(super) fn on_begin(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        match &mut self.remembering {
            None => out.push(Effect::Initialized { remembered: Vec::new() }),
            Some(remembering) => out.extend(remembering.asks_to_load(now).then_some(Effect::Load)),
        }
    }

    pub(super) fn on_loaded(&mut self, ids: Vec<EntityId>, out: &mut Vec<Effect<E, P>>) {
        if let Some(remembering) = self.remembering.as_mut().filter(|_| self.life.is_serving())
            && remembering.loaded(ids.iter().cloned())
        {
            out.push(Effect::Initialized { remembered: ids });
        }
    }

    pub(super) fn on_load_failed(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        if self.life.is_serving() && self.remembering.as_ref().is_some_and(|remembering| remembering.is_loading()) {
            self.fail_shard(now, out);
        }
    }

    pub(super) fn on_stored(&mut self, now: Instant, number: u64, out: &mut Vec<Effect<E, P>>) {
        let Some(update) = self.remembering.as_mut().and_then(|remembering| remembering.stored(number)) else { return };
        if self.life.is_serving() {
            update.starts.iter().for_each(|id| self.on_start_stored(id));
        }
        for id in &update.stops {
            if self.life.is_serving() {
                self.on_stop_stored(now, id, out);
            }
        }
        self.check_stopped(now, out);
    }

    /// Lets the first message start the entity once its start is stored; in the entity's turn, since one write may
    /// cover thousands.
    fn on_start_stored(&mut self, id: &EntityId) {
        let Some(at) = self.table.find(id) else { return };
        self.end_storing(at);
        self.make_ready(at);
    }

    /// Forgets the entity, unless a message has come for it meanwhile.
    fn on_stop_stored(&mut self, now: Instant, id: &EntityId, out: &mut Vec<Effect<E, P>>) {
        let slot = self.table.find(id);
        match slot {
            Some(at) if self.table.get(at).has_queue() => {
                self.transition(now, id, Some(Remembered::RememberingStart), out);
            }
            Some(at) => {
                self.end_storing(at);
                self.free(at);
                self.transition(now, id, None, out);
            }
            None => self.transition(now, id, None, out),
        }
    }

    pub(super) fn on_store_failed(&mut self, now: Instant, number: u64, out: &mut Vec<Effect<E, P>>) {
        if self.remembering.as_ref().is_some_and(|remembering| remembering.is_under_way(number)) {
            self.lose_store(now, out);
        }
    }

    /// Handles a write whose outcome is unknown. A serving shard fails, as only a new load can tell; a stopping shard
    /// goes on.
    fn lose_store(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        if self.life.is_serving() {
            return self.fail_shard(now, out);
        }
        self.abandon_store();
        self.check_stopped(now, out);
    }

    pub(super) fn on_store_tick(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        let Some(remembering) = &mut self.remembering else { return };
        if remembering.is_late(now) || remembering.has_given_up(now) {
            out.push(Effect::Notice(Notice::StoreIsLate));
            return self.lose_store(now, out);
        }
        if self.life.is_serving() && remembering.is_load_late(now) && remembering.asks_to_load(now) {
            out.extend([Effect::Notice(Notice::LoadIsSlow), Effect::Load]);
        }
    }

    /// Removes entities that live in other shards by now from this shard's store.
    pub(super) fn on_moved(&mut self, now: Instant, ids: &[EntityId], out: &mut Vec<Effect<E, P>>) {
        for id in ids {
            if self.state_of(id) == Some(Remembered::NotStarted) {
                self.transition(now, id, Some(Remembered::RememberingStop), out);
            }
        }
    }

    /// Begins the next write, unless one is under way. All changes of one input go into one write.
    pub(super) fn store_next(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        let write = self.remembering.as_mut().and_then(|remembering| remembering.next_write(now));
        out.extend(write.map(|(number, update)| Effect::Store { number, update }));
    }

    /// Gives up all changes that are not stored yet.
    pub(super) fn abandon_store(&mut self) {
        if let Some(remembering) = &mut self.remembering {
            remembering.drop_unstored();
        }
    }

    /// Whether a shard without entities still waits for its writes.
    pub(super) fn waits_for_store(&mut self, now: Instant) -> bool {
        match &mut self.remembering {
            Some(remembering) if remembering.has_unstored() => {
                remembering.give_up_later(now);
                true
            }
            _ => false,
        }
    }
}
