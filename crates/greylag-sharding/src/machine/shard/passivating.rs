//! Entities that end because they are not used: idle for too long, or beyond a limit.
//!
//! Source: sharding §4.10.

mod idle;
mod uses;

use self::idle::IdleWheel;
pub use self::uses::Uses;
use super::table::{IncarnationPhase, Table};
use super::timers::TOUCH_TICK;
use crate::passivation::{Passivation, Strategy};

/// The strategies that choose entities to passivate.
#[derive(Debug)]
pub(super) struct Passivating {
    idle: IdleWheel,
    active: Strategy,
    /// Slots that the strategy has chosen, to get a stop request when the input has been handled.
    victims: Vec<u32>,
    uses: Uses,
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

    /// The slots chosen since the last call; their entities get a stop request now.
    pub(super) fn take_victims(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.victims)
    }

    /// Counts an entity that gets a stop request because it is not used.
    pub(super) fn count_evicted(&mut self) {
        self.uses.evicted += 1;
    }

    /// Counts a message that found its entity in memory.
    pub(super) fn count_hit(&mut self) {
        self.uses.hits += 1;
    }

    /// Counts a message that had to start its entity.
    pub(super) fn count_miss(&mut self) {
        self.uses.misses += 1;
    }

    /// How the entities were used so far.
    pub(super) fn uses(&self) -> Uses {
        self.uses
    }

    /// Notes that a live slot was touched, for being idle from then on.
    pub(super) fn watch(&mut self, at: u32, tick: u32) {
        self.idle.watch(at, tick);
    }

    pub(super) fn check_invariants(&self) {
        self.idle.check_invariants();
    }

    /// The tick from which slots are checked for being idle.
    pub(super) fn due_at(&self) -> Option<u32> {
        self.idle.due_at()
    }

    /// Whether slots are to be checked now.
    pub(super) fn has_due(&self) -> bool {
        self.idle.has_due()
    }

    /// Advances to the tick `now`.
    pub(super) fn on_tick(&mut self, now: u32) {
        self.idle.on_tick(now);
    }

    /// The next entity that has been idle for too long, counted as evicted: the caller requests its stop. Takes each
    /// visited slot off `left`, and visits none once `left` is 0.
    pub(super) fn next_idle<E, P>(&mut self, table: &Table<E, P>, now: u32, left: &mut u32) -> Option<u32> {
        while *left > 0 {
            *left -= 1;
            let at = self.idle.next_due()?;
            let slot = table.get(at);
            if slot.id.is_none() {
                continue;
            }
            // Queued messages need no check: they are handled before the stop request, whenever that is queued.
            let waits = slot.phase != IncarnationPhase::Active || slot.stop_requested || slot.veto;
            if !self.idle.is_idle(slot.touched, now) {
                self.idle.watch(at, slot.touched);
            } else if waits {
                self.idle.watch_again(at, now);
            } else {
                self.count_evicted();
                return Some(at);
            }
        }
        None
    }
}
