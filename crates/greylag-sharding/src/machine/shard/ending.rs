//! The end of the shard: stop requests to all entities, force after a deadline, or a kill.
//!
//! Source: sharding §2.9 (point 3), §2.11.

use std::time::{Duration, Instant};

use super::protocol::{Effect, Ended, Weigh};
use super::slab::Phase;
use super::timers::STOP_WARN_AFTER;
use super::{Life, SWEEP_STEP, Shard};
use crate::parcel::FAR;

impl<E, P: Weigh> Shard<E, P> {
    pub(super) fn on_stop(&mut self, now: Instant, deadline: Duration, out: &mut Vec<Effect<E, P>>) {
        if self.life != Life::Serving {
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
                Phase::Absent | Phase::Held | Phase::Storing => self.make_leftovers(at),
                Phase::Active if !slot.stop_requested && !slot.has_queue() => {
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
                Phase::Absent | Phase::Held | Phase::Storing => self.make_leftovers(at),
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
}
