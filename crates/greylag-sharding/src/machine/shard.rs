//! The entities of one shard: which run, which wait, which has the turn, and how all of them end.
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

mod census;
mod idle;
mod index;
mod lease;
mod protocol;
mod remember;
mod remembering;
mod repeats;
mod slab;
mod stuck;
#[cfg(test)]
mod tests;
mod timers;
mod uses;
mod wheel;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use greylag_core::DeadLetterReason;
use twox_hash::XxHash3_64;

pub(crate) use census::Census;
pub use lease::{LeaseEffect, LeaseInput, ShardLease};
pub use protocol::{Effect, Ended, Input, Notice, Outcome, Overdue, SlotId, TimerChange, Weigh};
pub use remembering::{InvalidTransition, Remembered, StoreUpdate};
pub(crate) use repeats::{Beat, Fired, Repeats};
pub(crate) use stuck::{Look, StuckHandler};
pub use timers::STOP_WARN_AFTER;
pub use uses::Uses;

use crate::entity::{Backoff, Directive, FailureCause, Failures, Supervision, Verdict};
use crate::host::Suspension;
use crate::ids::EntityId;
use crate::parcel::FAR;
use crate::passivation::{Passivation, Strategy};
use crate::settings::ShardingSettings;
use idle::IdleWheel;
use index::Index;
use remembering::Remembering;
use slab::{Extra, Hold, Item, Phase, Slab, Slot};
use timers::Due;
use wheel::Wheel;

/// Slots looked at in one step by sweeps over all entities, so that no step takes long.
const SWEEP_STEP: u32 = 2048;
/// Resolution of "last active".
const TOUCH_TICK: Duration = Duration::from_millis(10);

/// Where the shard is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Serving,
    /// Stop requests go out to the slots from `next` on.
    Stopping {
        next: u32,
        deadline: Instant,
        /// When it is told that this takes long.
        warn_at: Option<Instant>,
    },
    Stopped,
}

/// The machine. `E` is an entity as the shell keeps it, `P` a message.
pub struct Shard<E, P> {
    settings: ShardingSettings,
    supervision: Supervision,
    slots: Slab<E, P>,
    index: Index,
    hash_seed: u64,
    /// Upper half of every incarnation number of this shard; the lower half counts.
    incarnations: u64,
    last_incarnation: u32,
    ready: VecDeque<u32>,
    /// Messages behind stop requests, of all entities.
    later: usize,
    /// The slot that has the turn, and how many more messages it may handle.
    turn: Option<(u32, usize)>,
    /// The slot that handled the latest message straight from the inbox, and how many in a row.
    direct_run: (u32, usize),
    timers: Wheel<Due>,
    timer_serial: u64,
    /// Deadlines of stopping and held entities.
    deadlines: BTreeSet<(Instant, u32)>,
    /// Incarnations with a direct address.
    direct: BTreeMap<u32, u32>,
    started_at: Instant,
    /// Now, in ticks since the start.
    tick: u32,
    idle: IdleWheel,
    active: Strategy,
    /// Slots that the strategy has chosen, to be asked to stop when the input has been handled.
    victims: Vec<u32>,
    uses: Uses,
    life: Life,
    leftovers: Vec<(EntityId, P)>,
    /// Of a type that remembers its entities.
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
            idle: IdleWheel::new(passivation, TOUCH_TICK),
            // Its part of the limit follows once the region has counted its shards.
            active: Strategy::new(passivation, passivation.active_entity_limit().unwrap_or(usize::MAX)),
            victims: Vec::new(),
            uses: Uses::default(),
            supervision,
            slots: Slab::default(),
            index: Index::default(),
            hash_seed,
            incarnations: u64::from(serial) << 32,
            last_incarnation: 0,
            ready: VecDeque::new(),
            later: 0,
            turn: None,
            direct_run: (u32::MAX, 0),
            timers: Wheel::new(settings.runtime.timer_tick, now),
            timer_serial: 0,
            deadlines: BTreeSet::new(),
            direct: BTreeMap::new(),
            started_at: now,
            tick: 0,
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
            Input::Limit { entities } => self.active.set_limit(entities, &mut self.victims),
            Input::Begin => self.on_begin(now, out),
            Input::Loaded { ids } => self.on_loaded(ids, out),
            Input::LoadFailed => self.on_load_failed(now, out),
            Input::Stored { number } => self.on_stored(now, number, out),
            Input::StoreFailed { number } => self.on_store_failed(now, number, out),
            Input::Moved { ids } => self.on_moved(now, &ids, out),
            Input::Kill => self.on_kill(now, out),
            Input::Tick => self.on_tick(now, out),
        }
        if !self.victims.is_empty() {
            self.passivate_victims(now, out);
        }
        self.store_next(now, out);
    }

    /// Asks the entities that the strategy has chosen to stop.
    fn passivate_victims(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        for at in std::mem::take(&mut self.victims) {
            self.uses.evicted += 1;
            self.request_stop(now, at, out);
        }
    }

    /// When a `Tick` next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.next_deadline();
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let sweeps = self.idle.due_at().filter(|_| self.life == Life::Serving);
        let sweep = sweeps.and_then(|tick| self.started_at.checked_add(TOUCH_TICK.saturating_mul(tick)));
        let (stop, warning) = match self.life {
            // Without entities it only waits for its store.
            Life::Stopping { deadline, warn_at, .. } if self.slots.live() > 0 => (Some(deadline), warn_at),
            _ => (None, None),
        };
        let store = self.remembering.as_ref().and_then(|remembering| remembering.next_deadline());
        [timer, deadline, sweep, stop, warning, store].into_iter().flatten().min()
    }

    /// Whether a `Turn` would do something.
    pub fn has_work(&self) -> bool {
        let stopping = matches!(self.life, Life::Stopping { next, .. } if next < self.slots.bound());
        let sweeps = self.life == Life::Serving && self.idle.has_due();
        self.turn.is_some() || !self.ready.is_empty() || stopping || sweeps
    }

    /// Tells the shard the time; cheap, once per batch of messages is enough.
    pub fn observe(&mut self, now: Instant) {
        let ticks = now.saturating_duration_since(self.started_at).as_millis() / TOUCH_TICK.as_millis();
        self.tick = u32::try_from(ticks).unwrap_or(u32::MAX);
    }

    /// Entities that live or have messages waiting.
    pub fn entity_count(&self) -> usize {
        self.slots.live()
    }

    /// How its entities were used so far.
    pub fn uses(&self) -> Uses {
        self.uses
    }

    /// Whether [`Effect::Stopped`] was given.
    pub fn is_stopped(&self) -> bool {
        self.life == Life::Stopped
    }

    /// The entity of a slot, with its id and incarnation. `None` once it has ended.
    pub fn entity(&mut self, slot: SlotId) -> Option<(&mut E, &EntityId, u64)> {
        let incarnations = self.incarnations;
        let slot = self.slots.get_mut(slot.0);
        let incarnation = incarnations | u64::from(slot.incarnation);
        Some((slot.entity.as_mut()?, slot.id.as_ref()?, incarnation))
    }

    /// The entity that a slot belongs to, and which incarnation is to be made for it or lives in it.
    pub fn identity(&self, slot: SlotId) -> Option<(&EntityId, u64)> {
        let slot = self.slots.get(slot.0);
        Some((slot.id.as_ref()?, self.incarnations | u64::from(slot.incarnation)))
    }

    /// Puts a new entity into its slot and gives the one before it back.
    pub fn place(&mut self, slot: SlotId, entity: E) -> Option<E> {
        self.slots.get_mut(slot.0).entity.replace(entity)
    }

    fn hash(&self, id: &EntityId) -> u64 {
        XxHash3_64::oneshot_with_seed(self.hash_seed, id.as_str().as_bytes())
    }

    // --- messages ---

    fn on_deliver(&mut self, now: Instant, id: EntityId, payload: P, activity: bool, out: &mut Vec<Effect<E, P>>) {
        if self.life == Life::Stopped {
            self.leftovers.push((id, payload));
            return;
        }
        let hash = self.hash(&id);
        let Some(at) = self.index.find(hash, |slot| self.slots.get(slot).id.as_ref() == Some(&id)) else {
            return self.on_first_message(now, id, hash, payload, out);
        };
        self.wake_held(at);
        let tick = self.tick;
        let slot = self.slots.get_mut(at);
        if activity {
            slot.touched = tick;
            // What waits behind a stop request is for the next incarnation, which counts when it starts.
            if !slot.stop_requested {
                self.uses.hits += 1;
                self.active.touched(at, hash, &mut self.victims);
            }
        }
        let idle = slot.phase == Phase::Active && !slot.stop_requested && !slot.has_queue();
        if idle && activity {
            slot.hear(now);
        }
        if idle && self.may_run_at_once(at) {
            out.push(Effect::Run { slot: SlotId(at), payload });
        } else {
            self.enqueue_user(now, at, (payload, activity), out);
        }
    }

    fn on_first_message(&mut self, now: Instant, id: EntityId, hash: u64, payload: P, out: &mut Vec<Effect<E, P>>) {
        if self.life != Life::Serving {
            self.leftovers.push((id, payload));
            return;
        }
        self.uses.misses += 1;
        let may_start = self.may_start(&id);
        let at = self.slots.insert(id);
        self.index.insert(hash, at);
        if may_start {
            self.begin_start(now, at, Some(payload), out);
        } else {
            self.remember_first(now, at, payload, out);
        }
    }

    /// Whether an entity may run straight from the inbox. One that has handled its share while others wait must queue
    /// up like them.
    fn may_run_at_once(&mut self, at: u32) -> bool {
        if self.direct_run.0 != at {
            self.direct_run = (at, 1);
            return true;
        }
        self.direct_run.1 += 1;
        self.direct_run.1 <= self.settings.entity_throughput
    }

    fn enqueue_user(&mut self, now: Instant, at: u32, (payload, activity): (P, bool), out: &mut Vec<Effect<E, P>>) {
        if self.slots.get(at).phase == Phase::Storing && !self.may_wait_for_store() {
            let id = self.slots.get(at).id.clone().expect("a slot found by its id has one");
            return out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::BufferFull });
        }
        let room = self.room();
        let is_full = self.later >= self.settings.buffer_size;
        let slot = self.slots.get_mut(at);
        let (runs, stopping) = (slot.phase == Phase::Active, slot.stop_requested);
        if stopping && is_full {
            let id = slot.id.clone().expect("a slot found by its id has one");
            return out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::BufferFull });
        }
        let extra = slot.extra();
        if !extra.has_room(&payload, room) {
            if runs && !stopping {
                // The entity only waits for its turn: a turn now costs the others little, a drop is final.
                extra.push(Item::User { payload, activity });
                return self.run_next(now, at, out);
            }
            let id = slot.id.clone().expect("a slot found by its id has one");
            return out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::EntityMailboxFull });
        }
        if stopping {
            extra.push_later(payload);
            self.later += 1;
        } else {
            extra.push(Item::User { payload, activity });
            self.note_waiting(at);
            self.make_ready(at);
        }
    }

    /// What may wait for one entity: messages, and bytes.
    fn room(&self) -> (usize, usize) {
        (self.settings.entity_mailbox_capacity, self.settings.entity_mailbox_bytes)
    }

    fn enqueue_internal(&mut self, at: u32, item: Item<P>) {
        self.slots.get_mut(at).extra().push(item);
        self.make_ready(at);
    }

    /// Puts an entity that could go on into the ring.
    fn make_ready(&mut self, at: u32) {
        let serving = self.life == Life::Serving;
        let slot = self.slots.get_mut(at);
        let runnable = slot.phase == Phase::Active || (slot.phase == Phase::Absent && serving);
        if runnable && slot.has_queue() && !slot.ready {
            slot.ready = true;
            self.ready.push_back(at);
        }
    }

    fn on_turn(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        self.send_stops(now, out);
        self.sweep(now, out);
        let (at, left) = match self.turn.take() {
            Some(turn) => turn,
            None => match self.ready.pop_front() {
                Some(at) => (at, self.settings.entity_throughput),
                None => return,
            },
        };
        // The entity that had the turn may run straight from the inbox again.
        self.direct_run = (u32::MAX, 0);
        self.run_next(now, at, out);
        let slot = self.slots.get_mut(at);
        if left > 1 && slot.phase == Phase::Active && slot.has_queue() {
            self.turn = Some((at, left - 1));
        } else {
            slot.ready = false;
            self.make_ready(at);
        }
    }

    /// Handles the next item of a queue.
    fn run_next(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let slot = self.slots.get_mut(at);
        match slot.phase {
            Phase::Absent => return self.start_from_queue(now, at, out),
            Phase::Active => {}
            Phase::Starting | Phase::Suspended(_) | Phase::Held | Phase::Storing => return,
        }
        loop {
            let slot = self.slots.get_mut(at);
            let Some(item) = slot.existing().and_then(Extra::pop) else { break };
            match item {
                Item::User { payload, activity } => {
                    if activity {
                        slot.hear(now);
                    }
                    out.push(Effect::Run { slot: SlotId(at), payload });
                    break;
                }
                Item::Direct(payload) => {
                    slot.hear(now);
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
                Item::Silence => {
                    if self.tell_silence(now, at, out) {
                        break;
                    }
                }
                Item::Stop => {
                    self.begin_stop(now, at, out);
                    break;
                }
            }
        }
        self.slots.get_mut(at).tidy();
    }

    /// The entity is used: others may have to end for it.
    fn touch(&mut self, at: u32) {
        if let Some(id) = &self.slots.get(at).id {
            let hash = self.hash(id);
            self.active.touched(at, hash, &mut self.victims);
        }
    }

    // --- starting ---

    fn begin_start(&mut self, now: Instant, at: u32, payload: Option<P>, out: &mut Vec<Effect<E, P>>) {
        let Some(payload) = self.note_start(now, at, payload, out) else { return };
        self.last_incarnation += 1;
        let (incarnation, tick) = (self.last_incarnation, self.tick);
        let slot = self.slots.get_mut(at);
        slot.incarnation = incarnation;
        slot.phase = Phase::Starting;
        slot.touched = tick;
        self.idle.watch(at, tick);
        self.touch(at);
        out.push(Effect::Start { slot: SlotId(at), payload });
    }

    fn start_from_queue(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let slot = self.slots.get_mut(at);
        let first = slot.existing().and_then(Extra::pop);
        match first {
            Some(Item::User { payload, .. }) if self.life == Life::Serving => {
                self.begin_start(now, at, Some(payload), out);
            }
            Some(item) => self.slots.get_mut(at).extra().push_front(item),
            None => self.free(at),
        }
    }

    fn on_started(
        &mut self,
        now: Instant,
        at: u32,
        outcome: Outcome<P>,
        payload: Option<P>,
        out: &mut Vec<Effect<E, P>>,
    ) {
        let slot = self.slots.get_mut(at);
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
                // Starting it again for the same message would go on for ever.
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

    // --- after a handler ---

    fn on_done(&mut self, now: Instant, at: u32, outcome: Outcome<P>, out: &mut Vec<Effect<E, P>>) {
        let tick = self.tick;
        let slot = self.slots.get_mut(at);
        // Suspended if it was handed its stop request.
        if !matches!(slot.phase, Phase::Active | Phase::Suspended(_)) {
            return;
        }
        if let Some(veto) = outcome.veto {
            slot.veto = veto;
            self.active.set_veto(at, veto, &mut self.victims);
        }
        if outcome.touch {
            slot.touched = tick;
            slot.hear(now);
            if !slot.stop_requested {
                self.touch(at);
            }
        }
        let slot = self.slots.get_mut(at);
        if outcome.direct && !slot.direct {
            slot.direct = true;
            self.direct.insert(slot.incarnation, at);
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

    /// What was taken and not handled is the oldest there is.
    fn on_given_back(&mut self, at: u32, payloads: Vec<P>) {
        let slot = self.slots.get_mut(at);
        for payload in payloads.into_iter().rev() {
            slot.extra().push_front(Item::User { payload, activity: true });
        }
    }

    fn on_resumed(
        &mut self,
        now: Instant,
        (at, incarnation): (u32, u64),
        payload: P,
        suspension: bool,
        out: &mut Vec<Effect<E, P>>,
    ) {
        let current = at < self.slots.bound() && {
            let slot = self.slots.get(at);
            slot.id.is_some() && self.incarnations | u64::from(slot.incarnation) == incarnation
        };
        let slot = current.then(|| self.slots.get_mut(at));
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

    fn on_direct(&mut self, incarnation: u64, payload: P, out: &mut Vec<Effect<E, P>>) {
        let own = incarnation & !u64::from(u32::MAX) == self.incarnations;
        let found = own.then(|| self.direct.get(&((incarnation & u64::from(u32::MAX)) as u32))).flatten();
        match found.copied() {
            Some(at) => {
                let room = self.room();
                if self.slots.get_mut(at).extra().has_room(&payload, room) {
                    return self.enqueue_internal(at, Item::Direct(payload));
                }
                let reason = DeadLetterReason::EntityMailboxFull;
                out.push(Effect::DropDirect { payload, reason });
            }
            None => out.push(Effect::DropDirect { payload, reason: DeadLetterReason::StaleRecipient }),
        }
    }

    // --- stopping one entity ---

    /// Queues the stop request behind the messages that wait by now.
    fn request_stop(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let slot = self.slots.get_mut(at);
        let lives = slot.entity.is_some() || slot.phase == Phase::Starting;
        if slot.stop_requested || !lives {
            return;
        }
        slot.stop_requested = true;
        self.active.terminated(at);
        self.enqueue_internal(at, Item::Stop);
        self.stop_suspended(now, at, out);
    }

    /// Hands the stop request to an entity that waits for what it needs only if it lives on, as a
    /// recovery, once no message waits before it. Source: persistence §2.7.
    fn stop_suspended(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let slot = self.slots.get_mut(at);
        if !slot.stop_requested || slot.phase != Phase::Suspended(Suspension::Stoppable) {
            return;
        }
        let Some(extra) = slot.existing() else { return };
        // Nothing of its own work or time is waited for.
        let own = |item: &Item<P>| matches!(item, Item::Result(_) | Item::Timer(_) | Item::Silence);
        let first = extra.queue.iter().position(|item| !own(item));
        if let Some(first) = first.filter(|first| matches!(extra.queue[*first], Item::Stop)) {
            extra.queue.remove(first);
            self.begin_stop(now, at, out);
        }
    }

    fn begin_stop(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        let timeout = match self.life {
            // The shard's own deadline covers all its entities.
            Life::Stopping { .. } => Duration::ZERO,
            _ => self.settings.passivation_stop_timeout,
        };
        let slot = self.slots.get_mut(at);
        if !timeout.is_zero() {
            slot.extra().stop_deadline = Some(now + timeout);
            self.deadlines.insert((now + timeout, at));
        }
        if self.life == Life::Serving {
            self.warn_of_stop(now, at);
        }
        out.push(Effect::SendStop { slot: SlotId(at) });
    }

    /// Ends an incarnation; user messages that wait start the next one, or are leftovers.
    fn end(&mut self, now: Instant, at: u32, why: Ended, out: &mut Vec<Effect<E, P>>) {
        self.bury(at, why, out);
        if self.life != Life::Serving {
            self.note_end_of_passivation(now, at, out);
            self.abandon(at);
            self.check_stopped(now, out);
        } else if self.remembering.is_some() {
            self.end_remembered(now, at, why, out);
        } else if self.slots.get(at).has_queue() {
            self.make_ready(at);
        } else {
            self.free(at);
        }
    }

    /// Ends an incarnation and keeps waiting messages for the next one.
    fn bury(&mut self, at: u32, why: Ended, out: &mut Vec<Effect<E, P>>) {
        let incarnations = self.incarnations;
        self.active.terminated(at);
        let slot = self.slots.get_mut(at);
        let id = slot.id.clone().expect("a live slot has an id");
        let incarnation = slot.incarnation;
        let entity = slot.entity.take();
        let number = incarnations | u64::from(incarnation);
        out.push(Effect::End { slot: SlotId(at), id: id.clone(), incarnation: number, entity, why });
        let direct = std::mem::take(&mut slot.direct);
        slot.phase = Phase::Absent;
        slot.veto = false;
        slot.stop_requested = false;
        let mut deadlines = [None, None];
        self.forget_times(at);
        let slot = self.slots.get_mut(at);
        if let Some(extra) = slot.existing() {
            deadlines = [extra.stop_deadline.take(), extra.held.take().map(|(until, _)| until)];
            out.extend(extra.end_incarnation().into_iter().map(stale));
            self.later -= extra.keep_later();
        }
        for at_time in deadlines.into_iter().flatten() {
            self.deadlines.remove(&(at_time, at));
        }
        if direct {
            self.direct.remove(&incarnation);
        }
        if self.turn.is_some_and(|(turn, _)| turn == at) {
            self.turn = None;
            slot.ready = false;
        }
    }

    /// Makes waiting messages leftovers, since no entity starts here any more.
    fn abandon(&mut self, at: u32) {
        self.cancel_storing(at);
        let slot = self.slots.get_mut(at);
        let Some(id) = slot.id.clone() else { return };
        if let Some(extra) = slot.existing() {
            self.later -= extra.later_count();
            let users = extra.take_users();
            self.leftovers.extend(users.into_iter().map(|payload| (id.clone(), payload)));
        }
        self.free(at);
    }

    /// Forgets an entity of which nothing is left.
    fn free(&mut self, at: u32) {
        let slot = self.slots.get(at);
        let Some(id) = slot.id.clone() else { return };
        if slot.ready {
            self.ready.retain(|ready| *ready != at);
        }
        self.index.remove(self.hash(&id), at);
        self.slots.remove(at);
        if self.direct_run.0 == at {
            self.direct_run = (u32::MAX, 0);
        }
    }

    // --- failures ---

    fn on_failed(
        &mut self,
        now: Instant,
        at: u32,
        cause: &FailureCause,
        payload: Option<P>,
        out: &mut Vec<Effect<E, P>>,
    ) {
        let slot = self.slots.get_mut(at);
        if slot.id.is_none() || matches!(slot.phase, Phase::Absent | Phase::Held | Phase::Storing) {
            return;
        }
        if matches!(cause, FailureCause::Start(_)) && self.remembering.is_some() {
            let failed = &mut slot.extra().failed_starts;
            *failed = failed.saturating_add(1);
        }
        if let Some(payload) = payload {
            let id = slot.id.clone().expect("checked above");
            out.push(Effect::DeadLetter { id, payload, reason: DeadLetterReason::EntityStartFailed });
        }
        let directive = self.supervision.decide(cause);
        let slot = self.slots.get_mut(at);
        let goes_on = !slot.stop_requested;
        match directive {
            Directive::Resume => {
                out.extend(verdict(slot, cause, Verdict::Resumed));
                // What fails on its stop request may be suspended, and waits on.
                if !matches!(slot.phase, Phase::Suspended(_)) {
                    slot.phase = Phase::Active;
                }
                self.make_ready(at);
            }
            Directive::Restart if goes_on && self.may_restart(now, at) => {
                out.extend(verdict(self.slots.get(at), cause, Verdict::Restarted));
                self.restart(at, out);
            }
            Directive::Backoff(backoff) if goes_on && self.life == Life::Serving => {
                let wait = self.next_wait(now, at, &backoff);
                out.extend(verdict(self.slots.get(at), cause, Verdict::BacksOff(wait)));
                self.bury(at, Ended::Failed, out);
                let until = now.checked_add(wait).unwrap_or(now + FAR);
                self.hold(at, until, Hold::Backoff);
            }
            Directive::Escalate if self.life == Life::Serving => {
                out.extend(verdict(self.slots.get(at), cause, Verdict::Escalated));
                self.fail_shard(now, out);
            }
            _ => {
                out.extend(verdict(self.slots.get(at), cause, Verdict::Stopped));
                self.end(now, at, Ended::Failed, out);
            }
        }
    }

    fn may_restart(&mut self, now: Instant, at: u32) -> bool {
        let (window, most) = (self.supervision.restart_window, self.supervision.max_restarts as usize);
        let restarts = &mut self.slots.get_mut(at).extra().restarts;
        while restarts.front().is_some_and(|at| now.saturating_duration_since(*at) > window) {
            restarts.pop_front();
        }
        restarts.push_back(now);
        restarts.len() <= most
    }

    /// A new value takes the slot; user messages are kept, what belonged to the old one is not.
    fn restart(&mut self, at: u32, out: &mut Vec<Effect<E, P>>) {
        self.last_incarnation += 1;
        let incarnation = self.last_incarnation;
        let slot = self.slots.get_mut(at);
        let former = std::mem::replace(&mut slot.incarnation, incarnation);
        slot.phase = Phase::Starting;
        slot.veto = false;
        self.active.set_veto(at, false, &mut self.victims);
        let slot = self.slots.get_mut(at);
        if std::mem::take(&mut slot.direct) {
            self.direct.remove(&former);
        }
        self.forget_times(at);
        if let Some(extra) = self.slots.get_mut(at).existing() {
            out.extend(extra.end_incarnation().into_iter().map(stale));
        }
        out.push(Effect::Restart { slot: SlotId(at) });
    }

    /// The incarnation ends; its messages wait until the region has had time to learn who owns the
    /// shard. If that is another region, the shard is killed and the messages travel there.
    fn on_fenced(&mut self, now: Instant, at: u32, out: &mut Vec<Effect<E, P>>) {
        if self.life != Life::Serving || self.is_passivating(at) {
            return self.end(now, at, Ended::Fenced, out);
        }
        self.bury(at, Ended::Fenced, out);
        let until = now + self.settings.retry_interval;
        self.hold(at, until, Hold::Fenced);
    }

    /// Starts no incarnation until then.
    fn hold(&mut self, at: u32, until: Instant, why: Hold) {
        let slot = self.slots.get_mut(at);
        slot.phase = Phase::Held;
        slot.extra().held = Some((until, why));
        self.deadlines.insert((until, at));
    }

    /// How long an entity that failed waits for its next incarnation.
    fn next_wait(&mut self, now: Instant, at: u32, backoff: &Backoff) -> Duration {
        let before = Failures::count(&mut self.slots.get_mut(at).extra().failures, now, backoff.reset_after);
        // Drawn from the number of the incarnation, so that a run of the machine can be repeated.
        let drawn = XxHash3_64::oneshot_with_seed(self.hash_seed, &self.slots.get(at).incarnation.to_be_bytes());
        backoff.wait(before, (drawn >> 11) as f64 / (1_u64 << 53) as f64)
    }

    /// Asks entities that have been idle for too long to stop: a part of them at a time.
    fn sweep(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        if self.life != Life::Serving {
            return;
        }
        for _ in 0..SWEEP_STEP {
            let Some(at) = self.idle.next_due() else { return };
            let slot = self.slots.get(at);
            if slot.id.is_none() {
                continue;
            }
            // What waits in its queue is no activity, and is handled before the stop request.
            let waits = slot.phase != Phase::Active || slot.stop_requested || slot.veto;
            if !self.idle.is_idle(slot.touched, self.tick) {
                self.idle.watch(at, slot.touched);
            } else if waits {
                self.idle.watch_again(at, self.tick);
            } else {
                self.uses.evicted += 1;
                self.request_stop(now, at, out);
            }
        }
    }

    // --- the end of the shard ---

    fn on_stop(&mut self, now: Instant, deadline: Duration, out: &mut Vec<Effect<E, P>>) {
        if self.life != Life::Serving {
            return;
        }
        let deadline = now.checked_add(deadline).unwrap_or(now + FAR);
        self.life = Life::Stopping { next: 0, deadline, warn_at: Some(now + STOP_WARN_AFTER) };
        self.send_stops(now, out);
        self.check_stopped(now, out);
    }

    /// Requests the stop of some more entities.
    fn send_stops(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        let Life::Stopping { next, deadline, warn_at } = self.life else { return };
        let end = next.saturating_add(SWEEP_STEP).min(self.slots.bound());
        self.life = Life::Stopping { next: end, deadline, warn_at };
        for at in next..end {
            let slot = self.slots.get(at);
            match slot.phase {
                _ if slot.id.is_none() => {}
                Phase::Absent | Phase::Held | Phase::Storing => self.abandon(at),
                Phase::Active if !slot.stop_requested && !slot.has_queue() => {
                    self.slots.get_mut(at).stop_requested = true;
                    self.begin_stop(now, at, out);
                }
                _ => self.request_stop(now, at, out),
            }
        }
        self.check_stopped(now, out);
    }

    fn end_all(&mut self, now: Instant, why: Ended, out: &mut Vec<Effect<E, P>>) {
        self.ready.clear();
        for at in 0..self.slots.bound() {
            let slot = self.slots.get_mut(at);
            slot.ready = false;
            match slot.phase {
                _ if slot.id.is_none() => {}
                Phase::Absent | Phase::Held | Phase::Storing => self.abandon(at),
                _ => {
                    self.bury(at, why, out);
                    if why != Ended::Killed {
                        self.note_end_of_passivation(now, at, out);
                    }
                    self.abandon(at);
                }
            }
        }
        self.check_stopped(now, out);
    }

    fn on_kill(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        if self.life == Life::Stopped {
            return;
        }
        let next = self.slots.bound();
        self.life = Life::Stopping { next, deadline: self.started_at, warn_at: None };
        self.abandon_store();
        self.end_all(now, Ended::Killed, out);
    }

    fn check_stopped(&mut self, now: Instant, out: &mut Vec<Effect<E, P>>) {
        let Life::Stopping { next, .. } = self.life else { return };
        if next >= self.slots.bound() && self.slots.live() == 0 && !self.waits_for_store(now) {
            self.life = Life::Stopped;
            out.push(Effect::Stopped(std::mem::take(&mut self.leftovers)));
        }
    }
}

/// What becomes of an entity that failed.
fn verdict<E, P>(slot: &Slot<E, P>, cause: &FailureCause, verdict: Verdict) -> Option<Effect<E, P>> {
    Some(Effect::Failed { id: slot.id.clone()?, cause: cause.clone(), verdict })
}

/// A direct message whose incarnation ends.
fn stale<E, P>(payload: P) -> Effect<E, P> {
    Effect::DropDirect { payload, reason: DeadLetterReason::StaleRecipient }
}
