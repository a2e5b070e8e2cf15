//! The entities of one shard: which of them run, wait or have the turn, and how all of them end.
//!
//! Each entity has a slot; its id leads there through an index. A message for an idle entity is
//! handled at once; for any other one it queues, and a ring of ready entities takes turns. Messages
//! are handles that the shell keeps, and handlers run in the shell: this machine only decides what
//! happens next.
//!
//! ```text
//! Deliver --> absent: Start --> Started --> Run          suspended: queue ... Resumed --> Run, Turn*
//! Failed  --> Restart --> GivenBack, Started             stop request, nothing queued: SendStop (stoppable)
//!             idle:   Run                                stop requested: kept for the next incarnation
//! Stop --> queue drained, SendStop, End, for every entity --> Stopped(leftovers)
//! ```
//!
//! Left to others: the content of messages, futures, panics (the shell); where the shard lives (the region).
//!
//! Source: sharding §4, §9.

mod ahead;
mod ending;
mod entity_scan;
mod failures;
mod idle;
mod incarnation;
mod index;
mod lease;
mod messages;
mod passivating;
mod protocol;
mod remember;
mod remembering;
mod repeats;
mod slab;
mod stopping;
mod stuck;
mod table;
#[cfg(test)]
mod tests;
mod timers;
mod turns;
mod uses;
mod wheel;

use std::time::Instant;

pub use ahead::{AHEAD, Guess};
pub(crate) use entity_scan::EntityScan;
pub use lease::{LeaseEffect, LeaseInput, ShardLease};
pub use protocol::{Effect, Ended, Input, Notice, Outcome, Overdue, SlotId, TimerChange, Weigh};
pub use remembering::{InvalidTransition, Remembered, StoreUpdate};
pub(crate) use repeats::{Fired, RepeatSpec, Repeats};
pub(crate) use stuck::{SampleOutcome, StuckHandler};
pub use timers::STOP_WARN_AFTER;
pub use uses::Uses;

use crate::entity::Supervision;
use crate::ids::EntityId;
use crate::passivation::Passivation;
use crate::settings::ShardingSettings;
use passivating::Passivating;
use remembering::Remembering;
use table::Table;
use timers::Timers;
use turns::Turns;

/// Slots visited in one step by sweeps over all entities, so that no step takes long.
const SWEEP_STEP: u32 = 2048;

/// The stage of the shard's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Serving,
    /// Stop requests go out to the slots from `next` on.
    Stopping {
        next: u32,
        deadline: Instant,
        /// When to warn that the stop takes long.
        warn_at: Option<Instant>,
    },
    Stopped,
}

/// The machine. `E` is an entity as the shell keeps it, `P` a message.
pub struct Shard<E, P> {
    settings: ShardingSettings,
    supervision: Supervision,
    table: Table<E, P>,
    turns: Turns,
    timers: Timers,
    passivating: Passivating,
    life: Life,
    /// Messages that were not handled and will not be handled here.
    leftovers: Vec<(EntityId, P)>,
    /// `Some` if the type remembers its entities.
    remembering: Option<Box<Remembering>>,
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
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let sweeps = self.passivating.idle.due_at().filter(|_| self.life == Life::Serving);
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
        let sweeps = self.life == Life::Serving && self.passivating.idle.has_due();
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
        self.passivating.uses
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
}
