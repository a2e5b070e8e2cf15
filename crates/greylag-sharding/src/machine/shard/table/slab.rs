//! Slots of entities, in segments that never move.
//!
//! A slot costs a fixed few dozen bytes; data that only busy entities need is in a box that is made on first use and
//! dropped when it is empty again. Source: sharding §10.

use std::collections::VecDeque;
use std::time::Instant;

use greylag_persistence::IdleTimer;

use crate::entity::{Failures, TimerKey};
use crate::host::Suspension;
use crate::ids::EntityId;
use crate::machine::shard::protocol::Weigh;
use crate::machine::shard::timers::TimerPlace;

const SEGMENT: usize = 1024;

/// The state of an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::machine::shard) enum IncarnationPhase {
    /// Nothing runs; messages may wait for a start.
    Absent,
    /// The shell makes the entity.
    Starting,
    /// The entity takes messages.
    Active,
    /// The entity waits for asynchronous work; messages wait behind it.
    Suspended(Suspension),
    /// No start before a time, or before a message: see [`StartDelay`].
    Held,
    /// A write under way stores that the entity is remembered, or forgotten; messages wait for the write.
    Storing,
}

/// An entry of an entity's queue.
#[derive(Debug)]
pub(in crate::machine::shard) enum Item<P> {
    /// Sent through sharding; survives the incarnation.
    User {
        payload: P,
        /// Whether the message ends a silence of the entity.
        activity: bool,
    },
    /// A message of the incarnation to itself.
    Internal(P),
    /// A message to this incarnation only; its sender learns the outcome.
    Direct(P),
    /// A result of the incarnation's work. A stop request that ends the incarnation need not wait for results.
    Result(P),
    /// A timer fell due; its message stays with the timer until it is handled.
    Timer(u64),
    /// The entity has handled no message for its receive timeout.
    ReceiveTimeout,
    /// The stop request.
    Stop,
}

/// A timer that runs, or whose message is queued.
#[derive(Debug)]
pub(in crate::machine::shard) struct Timer<P> {
    pub(in crate::machine::shard) key: TimerKey,
    pub(in crate::machine::shard) serial: u64,
    /// Its place in the wheel until the timer falls due.
    pub(in crate::machine::shard) place: Option<TimerPlace>,
    pub(in crate::machine::shard) payload: P,
    /// Whether the timer's message ends a silence of the entity.
    pub(in crate::machine::shard) influences: bool,
}

/// The receive timeout of one entity.
#[derive(Debug)]
pub(in crate::machine::shard) struct ReceiveTimeout {
    pub(in crate::machine::shard) idle: IdleTimer,
    /// When the silence is checked. Messages put the silence off but leave the place as it is, so that they cost
    /// nothing here; `None` while the silence is paused, or queued to be reported.
    pub(in crate::machine::shard) place: Option<TimerPlace>,
}

/// Why no incarnation starts for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::machine::shard) enum StartDelay {
    /// The journal knows a newer owner; the region asks who owns the shard. Once the wait is over, a message starts the
    /// entity; a remembered entity starts without one.
    Fenced,
    /// The entity failed, and starts again when its wait is over, whether or not a message waits.
    Backoff,
    /// The remembered entity stopped by itself: it starts again when its wait is over, or at once for a message.
    Stopped,
    /// The remembered entity was given up after its last failure: once its wait is over, a message starts it.
    GivenUp,
}

/// Data of busy entities only.
#[derive(Debug)]
pub(in crate::machine::shard) struct Extra<P> {
    /// Items for this incarnation, or for the start of the next one if none runs.
    pub(in crate::machine::shard) queue: VecDeque<Item<P>>,
    /// User messages behind a stop request: for the next incarnation.
    later: VecDeque<P>,
    /// Bytes of `queue` and `later`, which count towards the entity's limit.
    bytes: usize,
    pub(in crate::machine::shard) timers: Vec<Timer<P>>,
    pub(in crate::machine::shard) receive_timeout: Option<ReceiveTimeout>,
    pub(in crate::machine::shard) stop_deadline: Option<Instant>,
    /// When to warn that the entity takes long to stop.
    pub(in crate::machine::shard) stop_warning: Option<TimerPlace>,
    /// Until when no incarnation starts, and why.
    pub(in crate::machine::shard) held: Option<(Instant, StartDelay)>,
    /// Recent failures, which determine the wait after the next one.
    pub(in crate::machine::shard) failures: Option<Failures>,
    /// Times of the latest restarts.
    pub(in crate::machine::shard) restarts: VecDeque<Instant>,
    /// Starts in a row that failed.
    pub(in crate::machine::shard) failed_starts: u32,
}

impl<P> Default for Extra<P> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            later: VecDeque::new(),
            bytes: 0,
            timers: Vec::new(),
            receive_timeout: None,
            stop_deadline: None,
            stop_warning: None,
            held: None,
            failures: None,
            restarts: VecDeque::new(),
            failed_starts: 0,
        }
    }
}

impl<P> Item<P> {
    fn payload(&self) -> Option<&P> {
        match self {
            Self::User { payload, .. } | Self::Internal(payload) | Self::Direct(payload) | Self::Result(payload) => {
                Some(payload)
            }
            Self::Timer(_) | Self::ReceiveTimeout | Self::Stop => None,
        }
    }
}

impl<P: Weigh> Extra<P> {
    /// Whether one more message may wait, by number and by bytes. A message larger than the whole limit waits alone.
    pub(in crate::machine::shard) fn has_room(&self, payload: &P, (messages, bytes): (usize, usize)) -> bool {
        let waiting = self.queue.len() + self.later.len();
        let is_beyond = self.bytes.saturating_add(payload.weight()) > bytes;
        waiting < messages && (!is_beyond || waiting == 0)
    }

    /// Appends an item to the queue.
    pub(in crate::machine::shard) fn push(&mut self, item: Item<P>) {
        self.bytes += item.payload().map_or(0, Weigh::weight);
        self.queue.push_back(item);
    }

    /// Puts an item in front of the queue.
    pub(in crate::machine::shard) fn push_front(&mut self, item: Item<P>) {
        self.bytes += item.payload().map_or(0, Weigh::weight);
        self.queue.push_front(item);
    }

    /// Queues a user message behind the stop request.
    pub(in crate::machine::shard) fn push_later(&mut self, payload: P) {
        self.bytes += payload.weight();
        self.later.push_back(payload);
    }

    /// Takes the first item out of the queue.
    pub(in crate::machine::shard) fn pop(&mut self) -> Option<Item<P>> {
        let item = self.queue.pop_front()?;
        self.bytes -= item.payload().map_or(0, Weigh::weight);
        Some(item)
    }

    /// Removes the items that belong to the incarnation, and returns the direct messages among them.
    pub(in crate::machine::shard) fn end_incarnation(&mut self) -> Vec<P> {
        let mut direct = Vec::new();
        for item in std::mem::take(&mut self.queue) {
            match item {
                item @ Item::User { .. } => {
                    self.queue.push_back(item);
                    continue;
                }
                Item::Direct(payload) => {
                    self.bytes -= payload.weight();
                    direct.push(payload);
                }
                item => self.bytes -= item.payload().map_or(0, Weigh::weight),
            }
        }
        direct
    }

    /// Checks that the bytes of a short queue are counted.
    fn check_bytes(&self) {
        if self.queue.len() + self.later.len() <= 64 {
            let queued = self.queue.iter().filter_map(Item::payload).chain(&self.later);
            assert_eq!(self.bytes, queued.map(Weigh::weight).sum::<usize>(), "the bytes that wait are counted");
        }
    }

    /// Number of messages behind the stop request.
    pub(in crate::machine::shard) fn later_count(&self) -> usize {
        self.later.len()
    }

    /// Queues the messages behind the stop request for the next incarnation. Returns how many there were.
    pub(in crate::machine::shard) fn keep_later(&mut self) -> usize {
        let later = std::mem::take(&mut self.later);
        let count = later.len();
        self.queue.extend(later.into_iter().map(|payload| Item::User { payload, activity: true }));
        count
    }

    /// Takes out all user messages; the queue is empty afterwards.
    pub(in crate::machine::shard) fn take_users(&mut self) -> Vec<P> {
        self.bytes = 0;
        let users = std::mem::take(&mut self.queue).into_iter().filter_map(|item| match item {
            Item::User { payload, .. } => Some(payload),
            _ => None,
        });
        users.chain(std::mem::take(&mut self.later)).collect()
    }
}

impl<P> Extra<P> {
    fn is_empty(&self) -> bool {
        let queues = self.queue.is_empty() && self.later.is_empty() && self.timers.is_empty();
        let history = self.restarts.is_empty() && self.failures.is_none() && self.failed_starts == 0;
        let waits = self.stop_deadline.is_none() && self.stop_warning.is_none() && self.held.is_none();
        queues && waits && self.receive_timeout.is_none() && history
    }
}

/// One entity.
#[derive(Debug)]
pub(in crate::machine::shard) struct Slot<E, P> {
    /// `None` if the slot is free.
    pub(in crate::machine::shard) id: Option<EntityId>,
    pub(in crate::machine::shard) entity: Option<E>,
    extra: Option<Box<Extra<P>>>,
    pub(in crate::machine::shard) incarnation: u32,
    /// When the entity was last active, in ticks of the shard.
    pub(in crate::machine::shard) touched: u32,
    pub(in crate::machine::shard) phase: IncarnationPhase,
    /// When to warn that the entity has been suspended for long.
    pub(in crate::machine::shard) suspended: Option<TimerPlace>,
    /// Whether the slot is in the ring of ready entities.
    pub(in crate::machine::shard) ready: bool,
    /// Whether the entity forbids automatic passivation.
    pub(in crate::machine::shard) veto: bool,
    /// Whether a stop request is queued, or was handed to the entity.
    pub(in crate::machine::shard) stop_requested: bool,
}

impl<E, P> Default for Slot<E, P> {
    fn default() -> Self {
        Self {
            id: None,
            entity: None,
            extra: None,
            incarnation: 0,
            touched: 0,
            phase: IncarnationPhase::Absent,
            suspended: None,
            ready: false,
            veto: false,
            stop_requested: false,
        }
    }
}

impl<E, P> Slot<E, P> {
    pub(in crate::machine::shard) fn extra(&mut self) -> &mut Extra<P> {
        self.extra.get_or_insert_with(Box::default)
    }

    pub(in crate::machine::shard) fn existing(&mut self) -> Option<&mut Extra<P>> {
        self.extra.as_deref_mut()
    }

    /// Notes a message that ends a silence, if the entity has a receive timeout.
    pub(in crate::machine::shard) fn restart_receive_timeout(&mut self, now: Instant) {
        if let Some(receive) = self.extra.as_mut().and_then(|extra| extra.receive_timeout.as_mut()) {
            receive.idle.restart(now);
        }
    }

    /// Whether the entity can handle a message at once.
    pub(in crate::machine::shard) fn is_idle(&self) -> bool {
        self.phase == IncarnationPhase::Active && !self.stop_requested && !self.has_queue()
    }

    pub(in crate::machine::shard) fn has_queue(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| !extra.queue.is_empty())
    }

    /// Items in the queue.
    pub(in crate::machine::shard) fn queue_len(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| extra.queue.len())
    }

    /// Drops the box once it is empty.
    pub(in crate::machine::shard) fn drop_empty_extra(&mut self) {
        if self.extra.as_ref().is_some_and(|extra| extra.is_empty()) {
            self.extra = None;
        }
    }
}

impl<E, P: Weigh> Slot<E, P> {
    /// Checks one slot, for debug builds. Source: sharding §4.1, §4.5.
    pub(in crate::machine::shard) fn check_invariants(&self) {
        let lives = matches!(
            self.phase,
            IncarnationPhase::Starting | IncarnationPhase::Active | IncarnationPhase::Suspended(_)
        );
        assert!(lives || self.entity.is_none(), "an entity exists in {:?}", self.phase);
        assert!(lives || !self.stop_requested, "only an incarnation is asked to stop");
        assert!(
            self.suspended.is_none() || matches!(self.phase, IncarnationPhase::Suspended(_)),
            "only a suspension is warned of"
        );
        if let Some(extra) = &self.extra {
            extra.check_bytes();
            assert!(extra.later.is_empty() || self.stop_requested, "messages wait behind a stop request");
            assert!(extra.held.is_none() || self.phase == IncarnationPhase::Held, "{:?} is held", self.phase);
            let is_ended = extra.timers.is_empty() && extra.receive_timeout.is_none() && extra.stop_deadline.is_none();
            assert!(lives || is_ended, "the times of an incarnation end with it");
        }
        assert!(self.id.is_some() || (self.extra.is_none() && !self.ready), "a free slot is empty");
    }

    /// The deadlines of the slot that are kept beside the wheel.
    pub(in crate::machine::shard) fn deadlines(&self) -> impl Iterator<Item = Instant> {
        let extra = self.extra.iter();
        extra.flat_map(|extra| [extra.stop_deadline, extra.held.map(|(until, _)| until)]).flatten()
    }

    /// Number of messages behind the stop request.
    pub(in crate::machine::shard) fn later_len(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| extra.later.len())
    }
}

/// All slots of a shard.
pub(in crate::machine::shard) struct Slab<E, P> {
    segments: Vec<Vec<Slot<E, P>>>,
    free: Vec<u32>,
    len: u32,
}

impl<E, P> Default for Slab<E, P> {
    fn default() -> Self {
        Self { segments: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<E, P> Slab<E, P> {
    /// Takes a free slot for `id`.
    pub(in crate::machine::shard) fn insert(&mut self, id: EntityId) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            if self.segments.last().is_none_or(|segment| segment.len() == SEGMENT) {
                // The first segment grows by doubling, so that a small shard stays small.
                let capacity = if self.segments.is_empty() { 0 } else { SEGMENT };
                self.segments.push(Vec::with_capacity(capacity));
            }
            let segment = self.segments.last_mut().expect("just pushed if there was none");
            segment.push(Slot::default());
            self.len += 1;
            self.len - 1
        });
        self.get_mut(at).id = Some(id);
        at
    }

    /// Frees a slot.
    pub(in crate::machine::shard) fn remove(&mut self, at: u32) {
        *self.get_mut(at) = Slot::default();
        self.free.push(at);
    }

    pub(in crate::machine::shard) fn get(&self, at: u32) -> &Slot<E, P> {
        &self.segments[at as usize / SEGMENT][at as usize % SEGMENT]
    }

    pub(in crate::machine::shard) fn get_mut(&mut self, at: u32) -> &mut Slot<E, P> {
        &mut self.segments[at as usize / SEGMENT][at as usize % SEGMENT]
    }

    /// Number of slots ever used: all live slots lie below.
    pub(in crate::machine::shard) fn bound(&self) -> u32 {
        self.len
    }

    /// Slots in use.
    pub(in crate::machine::shard) fn live(&self) -> usize {
        self.len as usize - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_stays_small() {
        assert!(size_of::<Slot<Box<dyn std::any::Any>, u64>>() <= 64, "sharding §10 allows 100 bytes in all");
    }

    #[test]
    fn slots_are_used_again_and_bounds_cover_them() {
        let mut slab = Slab::<(), ()>::default();
        let id = |n: u32| EntityId::new(n.to_string()).unwrap();
        for n in 0..3000 {
            assert_eq!(slab.insert(id(n)), n);
        }
        slab.remove(7);
        assert_eq!((slab.live(), slab.insert(id(9)), slab.bound()), (2999, 7, 3000));
    }
}
