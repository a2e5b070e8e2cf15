//! Messages on their way to entities: handled at once, or queued until their entity has a turn.
//!
//! Also here: stop requests to entities that are not used, or are more than the limit, which a message can exceed.
//!
//! Source: sharding §4.1, §4.2, §4.4, §4.10.

mod turns;

use std::time::Instant;

use greylag_core::DeadLetterReason;

pub(super) use self::turns::Turns;
use super::life::{Life, SWEEP_STEP};
use super::machine::Shard;
use super::protocol::{Effect, SlotId, Weigh};
use super::remembering::Remembered;
use super::table::{Extra, Guess, IncarnationPhase, Item};
use super::timers::take_timer;
use crate::ids::EntityId;

impl<E, P: Weigh> Shard<E, P> {
    pub(super) fn on_deliver(
        &mut self,
        now: Instant,
        id: EntityId,
        payload: P,
        activity: bool,
        out: &mut Vec<Effect<E, P>>,
    ) {
        if self.life == Life::Stopped {
            self.leftovers.push((id, payload));
            return;
        }
        let hash = self.table.hash(&id);
        let Some(at) = self.table.find_hashed(&id, hash) else {
            return self.on_first_message(now, id, hash, payload, out);
        };
        self.timers.wake_held(at, self.table.get_mut(at));
        let idle = self.table.get(at).is_idle();
        if activity {
            self.note_use(now, (at, hash), idle);
        }
        if idle && self.turns.may_run_at_once(at, self.settings.entity_throughput) {
            out.push(Effect::Run { slot: SlotId(at), payload });
        } else {
            self.enqueue_user(now, at, (payload, activity), out);
        }
    }

    /// Delivers a message to an entity that handles it at once, and returns the slot. `None`: nothing was done, and the
    /// caller must pass the message as an [`Input::Deliver`](super::Input::Deliver).
    ///
    /// Most messages are for an idle entity. Delivered here, such a message need not be moved into an input and an
    /// effect. No effect follows: the use of an entity that is active already ends no other entity.
    pub fn deliver_at_once(&mut self, now: Instant, (id, guess): (&EntityId, Guess), activity: bool) -> Option<SlotId> {
        let at = self.table.find_guessed(id, guess)?;
        if !self.table.get(at).is_idle() || !self.turns.may_run_at_once(at, self.settings.entity_throughput) {
            return None;
        }
        if activity {
            self.note_use(now, (at, guess.hash()), true);
        }
        Some(SlotId(at))
    }

    /// Notes a message that counts as activity. It ends the silence now if the entity is `idle`, and handles it at
    /// once.
    pub(super) fn note_use(&mut self, now: Instant, (at, hash): (u32, u64), idle: bool) {
        let tick = self.timers.tick();
        let slot = self.table.get_mut(at);
        slot.touched = tick;
        if idle {
            slot.restart_receive_timeout(now);
        }
        // Messages behind a stop request are for the next incarnation, whose use counts when it starts.
        if !slot.stop_requested {
            self.passivating.count_hit();
            self.passivating.touched(at, hash);
        }
    }

    pub(super) fn on_first_message(
        &mut self,
        now: Instant,
        id: EntityId,
        hash: u64,
        payload: P,
        out: &mut Vec<Effect<E, P>>,
    ) {
        if !self.life.is_serving() {
            self.leftovers.push((id, payload));
            return;
        }
        self.passivating.count_miss();
        let may_start = self.may_start(&id);
        let at = self.table.add(id, hash);
        if may_start {
            self.begin_start(now, at, Some(payload), out);
        } else {
            self.remember_first(now, at, payload, out);
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
        slot.phase = IncarnationPhase::Storing;
        slot.extra().push(Item::User { payload, activity: true });
        self.note_waiting(at);
        // If the entity's end is being stored, its new start is written after that.
        if self.state_at(at) != Some(Remembered::RememberingStop) {
            self.transition_at(now, at, Remembered::RememberingStart, out);
        }
    }

    pub(super) fn enqueue_user(
        &mut self,
        now: Instant,
        at: u32,
        (payload, activity): (P, bool),
        out: &mut Vec<Effect<E, P>>,
    ) {
        if self.table.get(at).phase == IncarnationPhase::Storing && !self.may_wait_for_store() {
            let id = self.table.get(at).id.clone().expect("a slot found by its id has one");
            return out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::BufferFull });
        }
        let (room, flood_room) = (self.room(), self.flood_room());
        let is_full = self.turns.later >= self.settings.buffer_size;
        let slot = self.table.get_mut(at);
        let (runs, stopping) = (slot.phase == IncarnationPhase::Active, slot.stop_requested);
        if stopping && is_full {
            let id = slot.id.clone().expect("a slot found by its id has one");
            return out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::BufferFull });
        }
        let extra = slot.extra();
        // An entity that only waits for its turn may queue more: the excess comes from the shard's inbox, where
        // messages for other entities may stand behind it, which must not wait until a flood is handled.
        let is_flooded = runs && !stopping && !extra.has_room(&payload, room);
        if is_flooded && !extra.has_room(&payload, flood_room) {
            // Run the entity out of turn: that costs others little, while a drop is final.
            extra.push(Item::User { payload, activity });
            return self.run_next(now, at, out);
        }
        if !is_flooded && !extra.has_room(&payload, room) {
            let id = slot.id.clone().expect("a slot found by its id has one");
            return out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::EntityMailboxFull });
        }
        if stopping {
            extra.push_later(payload);
            self.turns.later += 1;
        } else {
            extra.push(Item::User { payload, activity });
            self.note_waiting(at);
            self.make_ready(at);
        }
    }

    /// Whether one message more may wait for the store.
    pub(super) fn may_wait_for_store(&self) -> bool {
        self.remembering.as_ref().is_none_or(|remembering| remembering.has_room(self.settings.buffer_size))
    }

    /// Counts one more message that waits in the slot for the store.
    pub(super) fn note_waiting(&mut self, at: u32) {
        if let Some(remembering) = &mut self.remembering {
            remembering.note_waiting(self.table.get(at));
        }
    }

    /// How much may wait for one entity: messages, and bytes.
    pub(super) fn room(&self) -> (usize, usize) {
        (self.settings.entity_mailbox_capacity, self.settings.entity_mailbox_bytes)
    }

    /// How much may wait for a runnable entity without a turn: as much more as the shard's inbox holds.
    fn flood_room(&self) -> (usize, usize) {
        let ((messages, bytes), settings) = (self.room(), &self.settings);
        (messages.saturating_add(settings.shard_inbox_capacity), bytes.saturating_add(settings.shard_inbox_bytes))
    }

    pub(super) fn enqueue_internal(&mut self, at: u32, item: Item<P>) {
        self.table.get_mut(at).extra().push(item);
        self.make_ready(at);
    }

    /// Puts a runnable entity with a queue into the ring.
    pub(super) fn make_ready(&mut self, at: u32) {
        let serving = self.life.is_serving();
        let slot = self.table.get_mut(at);
        let runnable = slot.phase == IncarnationPhase::Active || (slot.phase == IncarnationPhase::Absent && serving);
        if runnable && slot.has_queue() && !slot.ready {
            slot.ready = true;
            self.turns.push(at);
        }
    }

    pub(super) fn on_turn(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        self.send_stops(now, out);
        self.sweep(now, out);
        let Some((at, left)) = self.turns.next(self.settings.entity_throughput) else { return };
        self.run_next(now, at, out);
        let slot = self.table.get_mut(at);
        if left > 1 && slot.phase == IncarnationPhase::Active && slot.has_queue() {
            self.turns.go_on(at, left - 1);
        } else {
            slot.ready = false;
            self.make_ready(at);
        }
    }

    /// Handles the next item of a queue.
    pub(super) fn run_next(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let slot = self.table.get_mut(at);
        match slot.phase {
            IncarnationPhase::Absent => return self.start_from_queue(now, at, out),
            IncarnationPhase::Active => {}
            IncarnationPhase::Starting
            | IncarnationPhase::Suspended(_)
            | IncarnationPhase::Held
            | IncarnationPhase::Storing => return,
        }
        loop {
            let slot = self.table.get_mut(at);
            let Some(item) = slot.existing().and_then(Extra::pop) else { break };
            match item {
                Item::User { payload, activity } => {
                    if activity {
                        slot.restart_receive_timeout(now);
                    }
                    out.push(Effect::Run { slot: SlotId(at), payload });
                    break;
                }
                Item::Direct(payload) => {
                    slot.restart_receive_timeout(now);
                    out.push(Effect::Run { slot: SlotId(at), payload });
                    break;
                }
                Item::Internal(payload) | Item::Result(payload) => {
                    out.push(Effect::Run { slot: SlotId(at), payload });
                    break;
                }
                Item::Timer(serial) => {
                    if self.run_timer(now, at, serial, out) {
                        break;
                    }
                }
                Item::ReceiveTimeout => {
                    if self.notify_receive_timeout(now, at, out) {
                        break;
                    }
                }
                Item::Stop => {
                    self.begin_stop(now, at, out);
                    break;
                }
            }
        }
        self.table.get_mut(at).drop_empty_extra();
    }

    /// Hands an entity the message of a timer whose turn has come. False if the timer was cancelled or replaced
    /// meanwhile.
    fn run_timer(&mut self, now: Instant, at: u32, serial: u64, out: &mut Vec<Effect<E, P>>) -> bool {
        let slot = self.table.get_mut(at);
        let Some(timer) = take_timer(slot, serial) else { return false };
        if timer.influences {
            slot.restart_receive_timeout(now);
        }
        out.push(Effect::Run { slot: SlotId(at), payload: timer.payload });
        self.count_internal(at);
        true
    }

    /// Tells an entity of a silence whose turn has come, and begins the next silence. False if the receive timeout was
    /// cancelled, or a message was handled meanwhile.
    fn notify_receive_timeout(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) -> bool {
        let is_due = self.timers.end_silence(now, at, self.table.get_mut(at));
        if is_due {
            out.push(Effect::NotifyReceiveTimeout { slot: SlotId(at) });
            self.count_internal(at);
        }
        is_due
    }

    /// Counts a timer or silence of the entity as activity, if the settings say so.
    fn count_internal(&mut self, at: u32) {
        if self.settings.passivation.count_internal {
            let tick = self.timers.tick();
            let slot = self.table.get_mut(at);
            slot.touched = tick;
            if !slot.stop_requested {
                self.touch(at);
            }
        }
    }

    /// Notes a use of the entity: other entities may have to end for it.
    pub(super) fn touch(&mut self, at: u32) {
        if let Some(id) = &self.table.get(at).id {
            let hash = self.table.hash(id);
            self.passivating.touched(at, hash);
        }
    }

    /// Asks the entities that the strategy has chosen to stop.
    pub(super) fn passivate_victims(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        for at in self.passivating.take_victims() {
            self.passivating.count_evicted();
            self.request_stop(now, at, out);
        }
    }

    /// Sends a stop request to entities that have been idle for too long: at most `SWEEP_STEP` slots at a time.
    pub(super) fn sweep(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        if !self.life.is_serving() {
            return;
        }
        let (mut left, tick) = (SWEEP_STEP, self.timers.tick());
        while let Some(at) = self.passivating.next_idle(&self.table, tick, &mut left) {
            self.request_stop(now, at, out);
        }
    }
}
