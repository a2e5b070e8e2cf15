//! Messages on their way to entities: handled at once, or queued until their entity has a turn.
//!
//! Source: sharding §4.1, §4.2.

use std::time::Instant;

use greylag_core::DeadLetterReason;

use super::protocol::{Effect, SlotId, Weigh};
use super::slab::{Extra, Item, Phase};
use super::{Life, Shard};
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
        self.wake_held(at);
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
            self.passivating.uses.hits += 1;
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
        if self.life != Life::Serving {
            self.leftovers.push((id, payload));
            return;
        }
        self.passivating.uses.misses += 1;
        let may_start = self.may_start(&id);
        let at = self.table.add(id, hash);
        if may_start {
            self.begin_start(now, at, Some(payload), out);
        } else {
            self.remember_first(now, at, payload, out);
        }
    }

    pub(super) fn enqueue_user(
        &mut self,
        now: Instant,
        at: u32,
        (payload, activity): (P, bool),
        out: &mut Vec<Effect<E, P>>,
    ) {
        if self.table.get(at).phase == Phase::Storing && !self.may_wait_for_store() {
            let id = self.table.get(at).id.clone().expect("a slot found by its id has one");
            return out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::BufferFull });
        }
        let (room, flood_room) = (self.room(), self.flood_room());
        let is_full = self.turns.later >= self.settings.buffer_size;
        let slot = self.table.get_mut(at);
        let (runs, stopping) = (slot.phase == Phase::Active, slot.stop_requested);
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
        let serving = self.life == Life::Serving;
        let slot = self.table.get_mut(at);
        let runnable = slot.phase == Phase::Active || (slot.phase == Phase::Absent && serving);
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
        if left > 1 && slot.phase == Phase::Active && slot.has_queue() {
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
            Phase::Absent => return self.start_from_queue(now, at, out),
            Phase::Active => {}
            Phase::Starting | Phase::Suspended(_) | Phase::Held | Phase::Storing => return,
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

    /// Notes a use of the entity: other entities may have to end for it.
    pub(super) fn touch(&mut self, at: u32) {
        if let Some(id) = &self.table.get(at).id {
            let hash = self.table.hash(id);
            self.passivating.touched(at, hash);
        }
    }
}
