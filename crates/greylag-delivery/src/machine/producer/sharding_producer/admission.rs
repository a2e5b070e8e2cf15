//! Decides which sender may send next: it needs room at the entity, then room in the whole.
//!
//! A slot is held by a message that is being stored or is in a buffer, and is released when the message leaves its
//! buffer; bytes (and in-flight messages, where limited) are released when the message is confirmed. Senders to one
//! entity are served in order. The last tenth of the slots is reserved for entities with demand, so that stuck entities
//! block only their own senders. The last tenth of bytes and of in-flight messages is reserved for entities with demand
//! that hold little, since both stay in use until they are confirmed, and a stuck entity may have demand. Recovered
//! messages take room from entities without demand alone, since a queue may hold more messages than there is room for.
//!
//! A permit is a reserved slot; the sender that uses it needs no other room.
//!
//! Source: delivery S3, S4, D8.

use std::collections::{BTreeMap, BTreeSet};

use super::entity_state::EntityState;

/// Limits of the room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) buffer_size: usize,
    pub(super) buffer_size_per_entity: usize,
    pub(super) max_in_flight_messages: Option<usize>,
    pub(super) max_in_flight_bytes: usize,
    pub(super) max_in_flight_bytes_per_entity: usize,
}

/// Room in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) slots: usize,
    pub(super) bytes: usize,
    pub(super) messages: usize,
}

/// The next sender or permit for which there is room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The first waiting sender of this link's entity.
    Sender(u64),
    /// This permit.
    Permit(u64),
}

/// Room in use, and the entities whose first waiter has room at the entity.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    limits: Limits,
    all: Used,
    /// The part used by messages from the loaded queue.
    recovered: Used,
    /// The first waiter of each entity, by its share and its ticket: the link's instance, and the message's size.
    waiting: BTreeMap<Share, BTreeMap<u64, (u64, usize)>>,
    /// First waiters that hold a permit: the link's instance by ticket.
    permitted: BTreeMap<u64, u64>,
    permits: Permits,
}

/// The share of the whole that a message may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Share {
    /// Everything: the entity has demand, and few unconfirmed bytes and messages.
    Whole,
    /// All slots, and nine tenths of bytes and in-flight messages: the entity has demand, but much is unconfirmed.
    Slots,
    /// Nine tenths of everything: the entity has no demand.
    NineTenths,
}

impl Share {
    fn has_demand(self) -> bool {
        self != Self::NineTenths
    }
}

fn nine_tenths(whole: usize) -> usize {
    whole - whole / 10
}

/// Permits, each of them a reserved slot.
#[derive(Debug, Clone, Default)]
struct Permits {
    wanted: BTreeSet<u64>,
    granted: BTreeSet<u64>,
    /// Tickets of senders that use a permit and are not served yet.
    used: BTreeSet<u64>,
}

impl Permits {
    fn slots(&self) -> usize {
        self.granted.len() + self.used.len()
    }
}

impl Admission {
    pub(super) fn new(limits: Limits) -> Self {
        let (waiting, permitted) = Default::default();
        let (all, recovered, permits) = Default::default();
        Self { limits, all, recovered, waiting, permitted, permits }
    }

    fn fits(&self, share: Share, bytes: usize) -> bool {
        let of_slots = |whole| if share.has_demand() { whole } else { nine_tenths(whole) };
        let of_flight = |whole| if share == Share::Whole { whole } else { nine_tenths(whole) };
        let hidden = if share.has_demand() { self.recovered } else { Used::default() };
        let used = |of: fn(&Used) -> usize| of(&self.all) - of(&hidden);
        let slots = used(|used| used.slots) + self.permits.slots();
        let (in_flight, messages) = (used(|used| used.bytes), used(|used| used.messages));
        let has_slot = slots < of_slots(self.limits.buffer_size)
            && self.limits.max_in_flight_messages.is_none_or(|max| messages < of_flight(max));
        // A message larger than the whole budget is sent when nothing else is in flight.
        let has_bytes = in_flight == 0 || in_flight.saturating_add(bytes) <= of_flight(self.limits.max_in_flight_bytes);
        has_slot && has_bytes
    }

    /// Puts an entity's first waiter into the right queue, or removes it if the entity has no room.
    pub(super) fn place<P: Clone>(&mut self, instance: u64, state: &EntityState<P>) {
        let Some(first) = state.waiters.front() else { return };
        self.unplace(first.ticket);
        if self.permits.used.contains(&first.ticket) {
            self.permitted.insert(first.ticket, instance);
            return;
        }
        let slots = state.buffered.len() + state.being_stored.len();
        let most = self.limits.max_in_flight_bytes_per_entity;
        let in_use = state.bytes.saturating_add(first.bytes);
        let has_room = slots < self.limits.buffer_size_per_entity && (state.bytes == 0 || in_use <= most);
        if has_room {
            let is_empty = state.unconfirmed.is_empty() && state.being_stored.is_empty();
            let holds_few_messages = is_empty || self.limits.max_in_flight_messages.is_none();
            let share = match state.has_demand() {
                true if holds_few_messages && (state.bytes == 0 || in_use <= most / 10) => Share::Whole,
                true => Share::Slots,
                false => Share::NineTenths,
            };
            self.waiting.entry(share).or_default().insert(first.ticket, (instance, first.bytes));
        }
    }

    fn unplace(&mut self, ticket: u64) {
        for waiting in self.waiting.values_mut() {
            waiting.remove(&ticket);
        }
        self.permitted.remove(&ticket);
    }

    /// Removes a sender that waits no more.
    pub(super) fn forget(&mut self, ticket: u64) {
        self.unplace(ticket);
        self.permits.used.remove(&ticket);
    }

    /// Removes and returns the sender or permit that has waited longest among those for which there is room.
    pub(super) fn next(&mut self) -> Option<Next> {
        if let Some((ticket, instance)) = self.permitted.pop_first() {
            self.permits.used.remove(&ticket);
            return Some(Next::Sender(instance));
        }
        let senders = self.waiting.iter().filter_map(|(share, waiting)| {
            let (ticket, (instance, bytes)) = waiting.first_key_value()?;
            self.fits(*share, *bytes).then_some((*ticket, Next::Sender(*instance)))
        });
        let permit = self.permits.wanted.first().filter(|_| self.fits(Share::NineTenths, 1));
        let permit = permit.map(|permit| (*permit, Next::Permit(*permit)));
        let (ticket, next) = senders.chain(permit).min_by_key(|(ticket, _)| *ticket)?;
        match next {
            Next::Sender(_) => self.unplace(ticket),
            Next::Permit(permit) => {
                self.permits.wanted.remove(&permit);
                self.permits.granted.insert(permit);
            }
        }
        Some(next)
    }

    // ---- permits --------------------------------------------------------------------------------

    pub(super) fn request_permit(&mut self, permit: u64) {
        self.permits.wanted.insert(permit);
    }

    /// Marks that the sender with this ticket, which asks next, uses a permit.
    pub(super) fn use_permit(&mut self, permit: u64, ticket: u64) {
        if self.permits.granted.remove(&permit) {
            self.permits.used.insert(ticket);
        }
    }

    pub(super) fn release(&mut self, permit: u64) {
        self.permits.wanted.remove(&permit);
        self.permits.granted.remove(&permit);
    }

    // ---- room -----------------------------------------------------------------------------------

    /// Takes room for a message.
    pub(super) fn take(&mut self, bytes: usize, is_recovered: bool) {
        for used in self.parts(is_recovered) {
            used.slots += 1;
            used.bytes += bytes;
            used.messages += 1;
        }
    }

    /// Releases the slot of a message that has left its buffer.
    pub(super) fn leave_buffer(&mut self, is_recovered: bool) {
        for used in self.parts(is_recovered) {
            used.slots -= 1;
        }
    }

    /// Releases bytes and in-flight count of a message that is confirmed, or given up.
    pub(super) fn give_back(&mut self, bytes: usize, is_recovered: bool) {
        for used in self.parts(is_recovered) {
            used.bytes -= bytes;
            used.messages -= 1;
        }
    }

    fn parts(&mut self, is_recovered: bool) -> impl Iterator<Item = &mut Used> {
        [Some(&mut self.all), is_recovered.then_some(&mut self.recovered)].into_iter().flatten()
    }

    /// Whether bytes in flight, in all or at one entity, are so many that confirmations should be requested at once,
    /// since only confirmations make room.
    pub(super) fn is_short(&self, bytes_of_entity: usize) -> bool {
        self.limits.max_in_flight_messages.is_some()
            || self.all.bytes > self.limits.max_in_flight_bytes / 2
            || bytes_of_entity > self.limits.max_in_flight_bytes_per_entity / 2
    }

    /// Number of outbox messages for which there is room.
    pub(super) fn room(&self) -> usize {
        let is_full = self.all.bytes >= self.limits.max_in_flight_bytes
            || self.limits.max_in_flight_messages.is_some_and(|max| self.all.messages >= max);
        let used = self.all.slots + self.permits.slots();
        if is_full { 0 } else { self.limits.buffer_size.saturating_sub(used) }
    }

    /// Messages that are being stored, or are in buffers.
    pub(super) fn slots(&self) -> usize {
        self.all.slots
    }

    /// Whether messages from the loaded queue are unconfirmed.
    pub(super) fn has_unconfirmed_recovered(&self) -> bool {
        self.recovered.messages > 0
    }

    /// Checks that the room in use is `used`. Source: delivery S3, S4.
    pub(super) fn check_invariants(&self, used: Used) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert_eq!(self.all, used, "the room in use is counted");
        let Used { slots, bytes, messages } = self.recovered;
        let is_part = slots <= used.slots && bytes <= used.bytes && messages <= used.messages;
        assert!(is_part, "recovered messages take a part of the room");
        assert!(self.permits.wanted.is_disjoint(&self.permits.granted), "a permit is granted once");
        let served = |ticket: &u64| self.permits.used.contains(ticket);
        assert!(self.permitted.keys().all(served), "only a sender with a permit needs no room");
    }
}
