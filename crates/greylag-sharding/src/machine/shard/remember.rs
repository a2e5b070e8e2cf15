//! Remembered entities of a shard: their starts and ends are written to the store, and the store's answers start and
//! end them.
//!
//! The states are those of `remembering.rs`; this module applies them to the slots. A type that does not remember its
//! entities skips all of this module.
//!
//! Source: sharding §2.9 (point 3), §4.7 to §4.9.

use std::time::Instant;

use greylag_core::DeadLetterReason;

use super::passivating::Passivating;
use super::protocol::{Effect, Ended, Notice, Weigh};
use super::remembering::{Remembered, Remembering};
use super::slab::{Extra, Item, Phase, StartDelay};
use super::{Life, Shard};
use crate::entity::Backoff;
use crate::ids::EntityId;
use crate::parcel::FAR;
use crate::passivation::Passivation;
use crate::settings::OnPermanentFailure;

impl<E, P: Weigh> Shard<E, P> {
    /// Makes the shard remember its entities, so that it passivates none by itself. Must be called before the first
    /// input.
    #[must_use]
    pub fn remember(mut self) -> Self {
        self.passivating = Passivating::new(&Passivation::none());
        let (load, write) = (self.settings.waiting_for_state_timeout, self.settings.updating_state_timeout);
        self.remembering = Some(Box::new(Remembering::new(load, write)));
        self
    }

    /// Whether the type remembers its entities.
    pub(super) fn remembers(&self) -> bool {
        self.remembering.is_some()
    }

    /// How many remembered entities are in a state.
    pub fn remembered(&self, state: Remembered) -> usize {
        self.remembering.as_ref().map_or(0, |remembering| remembering.count(state))
    }

    /// How many entities are remembered.
    pub fn all_remembered(&self) -> usize {
        self.remembering.as_ref().map_or(0, |remembering| remembering.len())
    }

    // --- the store ---

    pub(super) fn on_begin(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        match &mut self.remembering {
            None => out.push(Effect::Initialized { remembered: Vec::new() }),
            Some(remembering) => out.extend(remembering.asks_to_load(now).then_some(Effect::Load)),
        }
    }

    pub(super) fn on_loaded(&mut self, ids: Vec<EntityId>, out: &mut Vec<Effect<E, P>>) {
        if let Some(remembering) = self.remembering.as_mut().filter(|_| self.life == Life::Serving)
            && remembering.loaded(ids.iter().cloned())
        {
            out.push(Effect::Initialized { remembered: ids });
        }
    }

    pub(super) fn on_load_failed(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        if self.life == Life::Serving && self.remembering.as_ref().is_some_and(|remembering| remembering.is_loading()) {
            self.fail_shard(now, out);
        }
    }

    pub(super) fn on_stored(&mut self, now: Instant, number: u64, out: &mut Vec<Effect<E, P>>) {
        let Some(update) = self.remembering.as_mut().and_then(|remembering| remembering.stored(number)) else { return };
        if self.life == Life::Serving {
            update.starts.iter().for_each(|id| self.on_start_stored(id));
        }
        for id in &update.stops {
            if self.life == Life::Serving {
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
        if self.life == Life::Serving {
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
        if self.life == Life::Serving && remembering.is_load_late(now) && remembering.asks_to_load(now) {
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

    /// The shard fails: its region gets the messages back, and starts it again.
    pub(super) fn fail_shard(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        out.push(Effect::Escalate);
        self.on_kill(now, out);
    }

    // --- states ---

    fn state_of(&self, id: &EntityId) -> Option<Remembered> {
        self.remembering.as_ref()?.state(id)
    }

    fn state_at(&self, at: u32) -> Option<Remembered> {
        self.state_of(self.table.get(at).id.as_ref()?)
    }

    /// Changes the state of an entity. A forbidden change is a bug, and fails the shard if the settings say so.
    fn transition(&mut self, now: Instant, id: &EntityId, to: Option<Remembered>, out: &mut Vec<Effect<E, P>>) {
        let Some(remembering) = &mut self.remembering else { return };
        if let Err(invalid) = remembering.change(id, to) {
            out.push(Effect::Notice(Notice::InvalidTransition(invalid)));
            if self.settings.remember.fail_on_invalid_transition {
                self.fail_shard(now, out);
            }
        }
    }

    fn transition_at(&mut self, now: Instant, at: u32, to: Remembered, out: &mut Vec<Effect<E, P>>) {
        if let Some(id) = self.table.get(at).id.clone() {
            self.transition(now, &id, Some(to), out);
        }
    }

    /// Whether an entity without a slot may start without being stored first.
    pub(super) fn may_start(&self, id: &EntityId) -> bool {
        self.remembering.is_none() || self.state_of(id) == Some(Remembered::NotStarted)
    }

    /// Stores that the entity of a new slot is remembered. The entity's message waits for the write.
    pub(super) fn remember_first(&mut self, now: Instant, at: u32, payload: P, out: &mut Vec<Effect<E, P>>) {
        if !self.may_wait_for_store() {
            let id = self.table.get(at).id.clone().expect("a new slot has an id");
            self.free(at);
            return out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::BufferFull });
        }
        let slot = self.table.get_mut(at);
        slot.phase = Phase::Storing;
        slot.extra().push(Item::User { payload, activity: true });
        self.note_waiting(at);
        // If the entity's end is being stored, its new start is written after that.
        if self.state_at(at) != Some(Remembered::RememberingStop) {
            self.transition_at(now, at, Remembered::RememberingStart, out);
        }
    }

    /// Notes that an incarnation begins; returns the message that it begins for. `None` if the shard failed meanwhile:
    /// then the message is among those that the region gets back.
    #[allow(clippy::option_option)]
    pub(super) fn note_start(
        &mut self,
        now: Instant,
        at: u32,
        payload: Option<P>,
        out: &mut Vec<Effect<E, P>>,
    ) -> Option<Option<P>> {
        // An entity that is replaced, held after a failure, or fenced has stayed `Active`.
        if self.remembering.is_none() || self.state_at(at) == Some(Remembered::Active) {
            return Some(payload);
        }
        if let Some(payload) = payload {
            self.table.get_mut(at).extra().push_front(Item::User { payload, activity: true });
        }
        self.transition_at(now, at, Remembered::Active, out);
        if self.life != Life::Serving {
            return None;
        }
        match self.table.get_mut(at).existing().and_then(Extra::pop) {
            Some(Item::User { payload, .. }) => Some(Some(payload)),
            Some(item) => {
                self.table.get_mut(at).extra().push_front(item);
                Some(None)
            }
            None => Some(None),
        }
    }

    /// Notes that a passivating entity is to be forgotten. Nothing but passivation forgets an entity.
    pub(super) fn note_passivation(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let serving = self.life == Life::Serving && !self.table.get(at).stop_requested;
        if serving && self.remembering.is_some() {
            self.transition_at(now, at, Remembered::Passivating, out);
        }
    }

    pub(super) fn is_passivating(&self, at: u32) -> bool {
        self.state_at(at) == Some(Remembered::Passivating)
    }

    /// Forgets an entity that was passivating and has ended in a stopping shard.
    pub(super) fn note_end_of_passivation(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        if self.is_passivating(at) && self.life != Life::Stopped {
            self.transition_at(now, at, Remembered::RememberingStop, out);
        }
    }

    /// Notes that an incarnation has ended while the shard serves.
    pub(super) fn end_remembered(&mut self, now: Instant, at: u32, why: Ended, out: &mut Vec<Effect<E, P>>) {
        if self.is_passivating(at) {
            self.begin_storing(at);
            return self.transition_at(now, at, Remembered::RememberingStop, out);
        }
        self.transition_at(now, at, Remembered::WaitingForRestart, out);
        if self.life != Life::Serving {
            return;
        }
        match why {
            Ended::Failed => self.wait_after_failure(now, at, out),
            _ if self.table.get(at).has_queue() => self.make_ready(at),
            _ => self.hold(at, now + self.settings.remember.entity_restart_backoff, StartDelay::Stopped),
        }
    }

    /// Holds a remembered entity that has failed for good, or could not start: its wait grows with each failure, and
    /// the entity is given up in the end if the settings say so.
    fn wait_after_failure(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let settings = &self.settings.remember;
        let (most, on_permanent_failure) = (settings.max_start_failures, settings.on_permanent_failure);
        let max = settings.entity_restart_backoff_max;
        let reset_after = max.saturating_mul(2);
        let min = settings.entity_restart_backoff;
        let backoff = Backoff { min, max, reset_after, jitter: 0.0, ..Backoff::default() };
        let failures = self.table.get_mut(at).extra().failed_starts;
        let is_given_up = most > 0 && failures >= most;
        if is_given_up && let Some(id) = self.table.get(at).id.clone() {
            let forgotten = on_permanent_failure == OnPermanentFailure::Forget;
            out.push(Effect::Notice(Notice::GivenUp { id: id.clone(), failures, forgotten }));
            if forgotten {
                let waiting = self.table.get_mut(at).extra().take_users();
                let reason = DeadLetterReason::EntityStartFailed;
                out.extend(waiting.into_iter().map(|payload| Effect::DeadLetter { id: id.clone(), payload, reason }));
                self.begin_storing(at);
                return self.transition(now, &id, Some(Remembered::RememberingStop), out);
            }
        }
        let wait = self.next_wait(now, at, &backoff);
        let until = now.checked_add(wait).unwrap_or(now + FAR);
        self.hold(at, until, if is_given_up { StartDelay::GivenUp } else { StartDelay::Backoff });
    }

    /// Starts a held entity for a message, if the hold allows it.
    pub(super) fn wake_held(&mut self, at: u32) {
        let slot = self.table.get_mut(at);
        if slot.phase != Phase::Held {
            return;
        }
        let held = slot.existing().and_then(|extra| extra.held);
        if matches!(held, Some((_, StartDelay::Stopped)) | None) {
            slot.phase = Phase::Absent;
            if let Some((until, _)) = slot.existing().and_then(|extra| extra.held.take()) {
                self.timers.end_deadline(until, at);
            }
        }
    }

    // --- slots whose messages wait for the store ---

    fn begin_storing(&mut self, at: u32) {
        let slot = self.table.get_mut(at);
        slot.phase = Phase::Storing;
        let waiting = slot.queue_len();
        self.count_waiting(|known| known.saturating_add(waiting));
    }

    fn end_storing(&mut self, at: u32) {
        let slot = self.table.get_mut(at);
        slot.phase = Phase::Absent;
        let waiting = slot.queue_len();
        self.count_waiting(|known| known.saturating_sub(waiting));
    }

    /// Cancels the entity's start, unless it is on its way to the store: the shard stops, and need not store it.
    pub(super) fn cancel_storing(&mut self, at: u32) {
        if self.table.get(at).phase == Phase::Storing {
            self.end_storing(at);
            if let (Some(id), Some(remembering)) = (&self.table.get(at).id, &mut self.remembering) {
                remembering.cancel_start(id);
            }
        }
    }

    /// Whether one message more may wait for the store.
    pub(super) fn may_wait_for_store(&self) -> bool {
        self.remembering.as_ref().is_none_or(|remembering| remembering.waiting < self.settings.buffer_size)
    }

    /// Counts one more message that waits in the slot for the store.
    pub(super) fn note_waiting(&mut self, at: u32) {
        if self.table.get(at).phase == Phase::Storing {
            self.count_waiting(|known| known.saturating_add(1));
        }
    }

    fn count_waiting(&mut self, count: impl FnOnce(usize) -> usize) {
        if let Some(remembering) = &mut self.remembering {
            remembering.waiting = count(remembering.waiting);
        }
    }
}
