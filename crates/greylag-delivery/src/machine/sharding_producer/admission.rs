//! Which sender may send next: it needs room at the entity, then room in the whole.
//!
//! Slots are messages in buffers, and return when a message leaves its buffer; bytes return when it
//! is confirmed, as do in-flight messages where they are limited. Senders to one entity are served in their order. The last tenth of the whole is kept
//! for entities with demand, so that stuck entities block their own senders and no others.
//!
//! Source: delivery S3.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::{Accepted, Effect, OutState, ShardingProducer, ShardingProducerSettings};
use crate::ids::SeqNr;
use crate::machine::producer_link::{self, Frames};

/// A sender that waits for room.
#[derive(Debug, Clone)]
pub(super) struct Waiter<P> {
    pub(super) ticket: u64,
    pub(super) total: SeqNr,
    pub(super) frames: Frames<P>,
    pub(super) bytes: usize,
    pub(super) ack: bool,
}

/// Room that is used, and the entities whose first waiter has room at the entity.
#[derive(Debug, Clone, Default)]
pub(super) struct Admission {
    pub(super) buffered: usize,
    pub(super) bytes: usize,
    pub(super) messages: usize,
    /// Ticket of the first waiter to the entity's instance and the message's size.
    with_demand: BTreeMap<u64, (u64, usize)>,
    without_demand: BTreeMap<u64, (u64, usize)>,
}

impl Admission {
    fn fits(&self, settings: &ShardingProducerSettings, has_demand: bool, bytes: usize) -> bool {
        let share = |whole: usize| if has_demand { whole } else { whole - whole / 10 };
        let has_slot = self.buffered < share(settings.buffer_size)
            && settings.max_in_flight_messages.is_none_or(|max| self.messages < share(max));
        // A message that is larger than the whole budget goes when it is alone.
        has_slot && (self.bytes == 0 || self.bytes + bytes <= share(settings.max_in_flight_bytes))
    }

    /// Puts an entity's first waiter into the queue it belongs to, or takes it out.
    pub(super) fn place<P: Clone>(&mut self, settings: &ShardingProducerSettings, instance: u64, state: &OutState<P>) {
        let Some(first) = state.waiters.front() else { return };
        self.forget(first.ticket);
        let has_room = state.buffered.len() < settings.buffer_size_per_entity
            && (state.bytes == 0 || state.bytes + first.bytes <= settings.max_in_flight_bytes_per_entity);
        if has_room {
            let queue = if state.has_demand() { &mut self.with_demand } else { &mut self.without_demand };
            queue.insert(first.ticket, (instance, first.bytes));
        }
    }

    fn forget(&mut self, ticket: u64) {
        self.with_demand.remove(&ticket);
        self.without_demand.remove(&ticket);
    }

    /// The longest waiting sender that there is room for.
    fn next(&mut self, settings: &ShardingProducerSettings) -> Option<u64> {
        let first = |queue: &BTreeMap<u64, (u64, usize)>, has_demand| {
            let (ticket, (instance, bytes)) = queue.first_key_value()?;
            self.fits(settings, has_demand, *bytes).then_some((*ticket, *instance))
        };
        let (ticket, instance) =
            [first(&self.with_demand, true), first(&self.without_demand, false)].into_iter().flatten().min()?;
        self.forget(ticket);
        Some(instance)
    }
}

impl<P: Clone> ShardingProducer<P> {
    pub(super) fn on_admit(&mut self, now: Instant, entity: Arc<str>, shard: Arc<str>, waiter: Waiter<P>) {
        let instance = match self.by_entity.get(&entity) {
            Some(instance) => *instance,
            None => self.open(now, entity, shard),
        };
        if let Some(state) = self.links.get_mut(&instance) {
            state.waiters.push_back(waiter);
            self.stats.waiting += 1;
        }
        self.refresh(instance);
    }

    pub(super) fn on_withdraw(&mut self, now: Instant, ticket: u64, entity: &Arc<str>) {
        let Some(instance) = self.by_entity.get(entity).copied() else { return };
        let Some(state) = self.links.get_mut(&instance) else { return };
        let Some(index) = state.waiters.iter().position(|waiter| waiter.ticket == ticket) else { return };
        if let Some(waiter) = state.waiters.remove(index) {
            // The waiter's number is not given out again, so the numbers of the others stay what they are.
            self.contiguous.insert(waiter.total.get());
        }
        self.stats.waiting -= 1;
        state.used_at = now;
        self.admission.forget(ticket);
        self.refresh(instance);
    }

    /// Accepts senders as long as there is room for one.
    pub(super) fn admit_waiting(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        while let Some(instance) = self.admission.next(&self.settings) {
            let Some(state) = self.links.get_mut(&instance) else { continue };
            let Some(waiter) = state.waiters.pop_front() else { continue };
            let total = waiter.total;
            self.stats.waiting -= 1;
            self.stats.sent += 1;
            self.silent_since.get_or_insert(now);
            self.admission.bytes += waiter.bytes;
            self.admission.messages += 1;
            state.bytes += waiter.bytes;
            // Where confirmations make room they must come at once, and not with the next request:
            // while there is plenty of room for bytes, no sender waits for the bytes of others.
            let is_short = self.admission.bytes > self.settings.max_in_flight_bytes / 2
                || state.bytes > self.settings.max_in_flight_bytes_per_entity / 2;
            let ack = waiter.ack || self.settings.max_in_flight_messages.is_some() || is_short;
            state.used_at = now;
            let accepted = Accepted { total, ticket: waiter.ticket, bytes: waiter.bytes, accepted_at: now };
            state.unconfirmed.push_back(accepted);
            out.push(Effect::Admitted { ticket: waiter.ticket, total });
            if state.has_demand() {
                let input = producer_link::Input::Accept { total, frames: waiter.frames, ack };
                self.tell(now, instance, input, out);
            } else {
                state.buffered.push_back((total, waiter.frames, ack));
                self.admission.buffered += 1;
                self.refresh(instance);
            }
        }
    }
}
