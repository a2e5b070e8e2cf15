//! The end of one incarnation: its stop request, and the fate of its waiting messages.
//!
//! Source: sharding §4.5; persistence §2.7.

use std::time::{Duration, Instant};

use greylag_core::DeadLetterReason;

use super::protocol::{Effect, Ended, SlotId, Weigh};
use super::slab::{Item, Phase};
use super::{Life, Shard};
use crate::host::Suspension;

impl<E, P: Weigh> Shard<E, P> {
    /// Queues the stop request behind the messages that wait by now.
    pub(super) fn request_stop(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let slot = self.table.get_mut(at);
        let lives = slot.entity.is_some() || slot.phase == Phase::Starting;
        if slot.stop_requested || !lives {
            return;
        }
        slot.stop_requested = true;
        self.passivating.terminated(at);
        self.enqueue_internal(at, Item::Stop);
        self.stop_suspended(now, at, out);
    }

    /// Hands the stop request to a stoppable suspended entity (a recovery, which needs no completion if the entity
    /// ends), once no message waits before the request. Source: persistence §2.7.
    pub(super) fn stop_suspended(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let slot = self.table.get_mut(at);
        if !slot.stop_requested || slot.phase != Phase::Suspended(Suspension::Stoppable) {
            return;
        }
        let Some(extra) = slot.existing() else { return };
        // The stop request overtakes results, timers and silences: only messages from outside are waited for.
        let own = |item: &Item<P>| matches!(item, Item::Result(_) | Item::Timer(_) | Item::ReceiveTimeout);
        let first = extra.queue.iter().position(|item| !own(item));
        if let Some(first) = first.filter(|first| matches!(extra.queue[*first], Item::Stop)) {
            extra.queue.remove(first);
            self.begin_stop(now, at, out);
        }
    }

    pub(super) fn begin_stop(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let timeout = match self.life {
            // The shard's own deadline covers all its entities.
            Life::Stopping { .. } => Duration::ZERO,
            _ => self.settings.passivation_stop_timeout,
        };
        let slot = self.table.get_mut(at);
        if !timeout.is_zero() {
            slot.extra().stop_deadline = Some(now + timeout);
            self.timers.set_deadline(now + timeout, at);
        }
        if self.life == Life::Serving {
            self.warn_of_stop(now, at);
        }
        out.push(Effect::SendStop { slot: SlotId(at) });
    }

    /// Ends an incarnation; waiting user messages start the next incarnation, or become leftovers if the shard stops.
    pub(super) fn end(&mut self, now: Instant, at: u32, why: Ended, out: &mut Vec<Effect<E, P>>) {
        self.end_incarnation(at, why, out);
        if self.life != Life::Serving {
            self.note_end_of_passivation(now, at, out);
            self.make_leftovers(at);
            self.check_stopped(now, out);
        } else if self.remembering.is_some() {
            self.end_remembered(now, at, why, out);
        } else if self.table.get(at).has_queue() {
            self.make_ready(at);
        } else {
            self.free(at);
        }
    }

    /// Ends an incarnation and keeps waiting messages for the next one.
    pub(super) fn end_incarnation(&mut self, at: u32, why: Ended, out: &mut Vec<Effect<E, P>>) {
        self.passivating.terminated(at);
        let incarnation = self.table.number(at);
        self.table.end_address(at);
        let slot = self.table.get_mut(at);
        let id = slot.id.clone().expect("a live slot has an id");
        let entity = slot.entity.take();
        out.push(Effect::End { slot: SlotId(at), id, incarnation, entity, why });
        slot.phase = Phase::Absent;
        slot.veto = false;
        slot.stop_requested = false;
        let mut deadlines = [None, None];
        self.forget_times(at);
        let slot = self.table.get_mut(at);
        if let Some(extra) = slot.existing() {
            deadlines = [extra.stop_deadline.take(), extra.held.take().map(|(until, _)| until)];
            out.extend(extra.end_incarnation().into_iter().map(stale));
            self.turns.later -= extra.keep_later();
        }
        for at_time in deadlines.into_iter().flatten() {
            self.timers.end_deadline(at_time, at);
        }
        if self.turns.end_of(at) {
            self.table.get_mut(at).ready = false;
        }
    }

    /// Turns waiting messages into leftovers, since no entity starts here any more.
    pub(super) fn make_leftovers(&mut self, at: u32) {
        self.cancel_storing(at);
        let slot = self.table.get_mut(at);
        let Some(id) = slot.id.clone() else { return };
        if let Some(extra) = slot.existing() {
            self.turns.later -= extra.later_count();
            let users = extra.take_users();
            self.leftovers.extend(users.into_iter().map(|payload| (id.clone(), payload)));
        }
        self.free(at);
    }

    /// Frees the slot of an entity of which nothing is left.
    pub(super) fn free(&mut self, at: u32) {
        let slot = self.table.get(at);
        if slot.id.is_some() {
            self.turns.forget(at, slot.ready);
            self.table.remove(at);
        }
    }
}

/// Drops a direct message whose incarnation ends.
pub(super) fn stale<E, P>(payload: P) -> Effect<E, P> {
    Effect::DropDirect { payload, reason: DeadLetterReason::StaleRecipient }
}
