//! Entities that end because they are not used: idle for too long, or beyond a limit.
//!
//! Source: sharding §4.10.

use std::time::Instant;

use super::idle::IdleWheel;
use super::protocol::{Effect, Weigh};
use super::slab::Phase;
use super::timers::TOUCH_TICK;
use super::uses::Uses;
use super::{Life, SWEEP_STEP, Shard};
use crate::passivation::{Passivation, Strategy};

/// The strategies that choose entities to passivate.
#[derive(Debug)]
pub(super) struct Passivating {
    pub(super) idle: IdleWheel,
    active: Strategy,
    /// Slots that the strategy has chosen, to get a stop request when the input has been handled.
    victims: Vec<u32>,
    pub(super) uses: Uses,
}

impl Passivating {
    pub(super) fn new(passivation: &Passivation) -> Self {
        Self {
            idle: IdleWheel::new(passivation, TOUCH_TICK),
            active: Strategy::new(passivation, passivation.active_entity_limit().unwrap_or(usize::MAX)),
            victims: Vec::new(),
            uses: Uses::default(),
        }
    }

    /// Notes a use of the entity: other entities may have to end for it.
    pub(super) fn touched(&mut self, at: u32, hash: u64) {
        self.active.touched(at, hash, &mut self.victims);
    }

    /// Notes that the entity has ended, or got a stop request.
    pub(super) fn terminated(&mut self, at: u32) {
        self.active.terminated(at);
    }

    /// Notes that the entity forbids or allows its automatic passivation.
    pub(super) fn set_veto(&mut self, at: u32, veto: bool) {
        self.active.set_veto(at, veto, &mut self.victims);
    }

    /// Sets how many entities may be active.
    pub(super) fn set_limit(&mut self, entities: usize) {
        self.active.set_limit(entities, &mut self.victims);
    }

    pub(super) fn has_victims(&self) -> bool {
        !self.victims.is_empty()
    }

    /// The slots chosen since the last call.
    pub(super) fn take_victims(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.victims)
    }
}

impl<E, P: Weigh> Shard<E, P> {
    /// Asks the entities that the strategy has chosen to stop.
    pub(super) fn passivate_victims(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        for at in self.passivating.take_victims() {
            self.passivating.uses.evicted += 1;
            self.request_stop(now, at, out);
        }
    }

    /// Sends a stop request to entities that have been idle for too long: at most `SWEEP_STEP` slots at a time.
    pub(super) fn sweep(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        if self.life != Life::Serving {
            return;
        }
        for _ in 0..SWEEP_STEP {
            let Some(at) = self.passivating.idle.next_due() else { return };
            let slot = self.table.get(at);
            if slot.id.is_none() {
                continue;
            }
            // Queued messages need no check: they are handled before the stop request, whenever that is queued.
            let waits = slot.phase != Phase::Active || slot.stop_requested || slot.veto;
            if !self.passivating.idle.is_idle(slot.touched, self.timers.tick()) {
                self.passivating.idle.watch(at, slot.touched);
            } else if waits {
                self.passivating.idle.watch_again(at, self.timers.tick());
            } else {
                self.passivating.uses.evicted += 1;
                self.request_stop(now, at, out);
            }
        }
    }
}
