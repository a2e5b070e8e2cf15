//! The life of one incarnation: its start, and what its handlers leave behind.
//!
//! Source: sharding §4.1, §4.3, §4.11 (`direct_ref`).

use std::time::Instant;

use greylag_core::DeadLetterReason;

use super::protocol::{Effect, Ended, Outcome, SlotId, Weigh};
use super::slab::{Extra, Item, Phase};
use super::{Life, Shard};

impl<E, P: Weigh> Shard<E, P> {
    pub(super) fn begin_start(&mut self, now: Instant, at: u32, payload: Option<P>, out: &mut Vec<Effect<E, P>>) {
        let Some(payload) = self.note_start(now, at, payload, out) else { return };
        self.table.begin_incarnation(at);
        let tick = self.timers.tick();
        let slot = self.table.get_mut(at);
        slot.phase = Phase::Starting;
        slot.touched = tick;
        self.passivating.idle.watch(at, tick);
        self.touch(at);
        out.push(Effect::Start { slot: SlotId(at), payload });
    }

    pub(super) fn start_from_queue(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let slot = self.table.get_mut(at);
        let first = slot.existing().and_then(Extra::pop);
        match first {
            Some(Item::User { payload, .. }) if self.life == Life::Serving => {
                self.begin_start(now, at, Some(payload), out);
            }
            Some(item) => self.table.get_mut(at).extra().push_front(item),
            None => self.free(at),
        }
    }

    pub(super) fn on_started(
        &mut self,
        now: Instant,
        at: u32,
        outcome: Outcome<P>,
        payload: Option<P>,
        out: &mut Vec<Effect<E, P>>,
    ) {
        let slot = self.table.get_mut(at);
        if slot.phase != Phase::Starting {
            return;
        }
        slot.phase = Phase::Active;
        if let Some(extra) = slot.existing() {
            extra.failed_starts = 0;
        }
        let at_once = outcome.is_empty() && !slot.has_queue();
        match payload {
            Some(payload) if at_once => out.push(Effect::Run { slot: SlotId(at), payload }),
            Some(payload) if outcome.stop => {
                // Drop the message: starting the entity again for it would go on for ever.
                let id = slot.id.clone().expect("a starting slot has an id");
                out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::EntityStopped });
                self.on_done(now, at, outcome, out);
            }
            payload => {
                if let Some(payload) = payload {
                    slot.extra().push_front(Item::User { payload, activity: true });
                }
                self.on_done(now, at, outcome, out);
            }
        }
    }

    pub(super) fn on_done(&mut self, now: Instant, at: u32, outcome: Outcome<P>, out: &mut Vec<Effect<E, P>>) {
        let tick = self.timers.tick();
        let slot = self.table.get_mut(at);
        // An entity may be suspended here after it was handed its stop request.
        if !matches!(slot.phase, Phase::Active | Phase::Suspended(_)) {
            return;
        }
        if let Some(veto) = outcome.veto {
            slot.veto = veto;
            self.passivating.set_veto(at, veto);
        }
        if outcome.touch {
            slot.touched = tick;
            slot.restart_receive_timeout(now);
            if !slot.stop_requested {
                self.touch(at);
            }
        }
        if outcome.direct {
            self.table.give_address(at);
        }
        self.on_given_back(at, outcome.give_back);
        if outcome.fenced {
            return self.on_fenced(now, at, out);
        }
        if outcome.passivate {
            self.note_passivation(now, at, out);
        }
        if outcome.stop {
            return self.end(now, at, Ended::Stopped, out);
        }
        for change in outcome.timers {
            self.change_timer(at, change);
        }
        if let Some(after) = outcome.receive_timeout {
            self.set_receive_timeout(now, at, after);
        }
        for payload in outcome.to_self {
            self.enqueue_internal(at, Item::Internal(payload));
        }
        if let Some(suspension) = outcome.suspend {
            self.begin_suspension(now, at, suspension);
        }
        if outcome.passivate {
            self.request_stop(now, at, out);
        }
        self.stop_suspended(now, at, out);
        self.make_ready(at);
    }

    /// Puts messages that the entity took and did not handle in front of its queue, since they are the oldest.
    pub(super) fn on_given_back(&mut self, at: u32, payloads: Vec<P>) {
        let slot = self.table.get_mut(at);
        for payload in payloads.into_iter().rev() {
            slot.extra().push_front(Item::User { payload, activity: true });
        }
    }

    pub(super) fn on_resumed(
        &mut self,
        now: Instant,
        (at, incarnation): (u32, u64),
        payload: P,
        suspension: bool,
        out: &mut Vec<Effect<E, P>>,
    ) {
        let current = self.table.is_current(at, incarnation);
        let slot = current.then(|| self.table.get_mut(at));
        match slot {
            Some(slot) if suspension && matches!(slot.phase, Phase::Suspended(_)) => {
                self.end_suspension(now, at);
                out.push(Effect::Run { slot: SlotId(at), payload });
                self.make_ready(at);
            }
            Some(slot) if !suspension && matches!(slot.phase, Phase::Active | Phase::Suspended(_)) => {
                self.enqueue_internal(at, Item::Result(payload));
            }
            _ => out.push(Effect::Late(payload)),
        }
    }

    pub(super) fn on_direct(&mut self, incarnation: u64, payload: P, out: &mut Vec<Effect<E, P>>) {
        match self.table.addressed(incarnation) {
            Some(at) => {
                let room = self.room();
                if self.table.get_mut(at).extra().has_room(&payload, room) {
                    return self.enqueue_internal(at, Item::Direct(payload));
                }
                let reason = DeadLetterReason::EntityMailboxFull;
                out.push(Effect::DropDirect { payload, reason });
            }
            None => out.push(Effect::DropDirect { payload, reason: DeadLetterReason::StaleRecipient }),
        }
    }
}
