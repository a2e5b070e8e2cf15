//! A strategy of one order with a limit.

use super::order::{Entries, Order};

/// One order, and its limit.
#[derive(Debug)]
pub(super) struct Plain {
    order: Box<dyn Order>,
    limit: usize,
}

impl Plain {
    /// An empty strategy.
    pub(super) fn new(mut order: Box<dyn Order>, entries: &mut Entries, limit: usize) -> Self {
        order.set_limit(entries, limit);
        Self { order, limit }
    }

    /// Number of slots in the order.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Notes a use of a slot. A new slot is inserted after room was made, so that it is never its own victim.
    pub(super) fn touched(&mut self, entries: &mut Entries, slot: u32, out: &mut Vec<u32>) {
        if entries.is_live(slot) {
            return self.order.touch(entries, slot);
        }
        self.evict_to(entries, self.limit - 1, out);
        self.order.insert(entries, slot);
    }

    /// Takes out a slot that has ended.
    pub(super) fn remove(&mut self, entries: &mut Entries, slot: u32) {
        self.order.remove(entries, slot);
    }

    /// Puts a slot back that was parked for its veto.
    pub(super) fn readmit(&mut self, entries: &mut Entries, slot: u32) {
        self.order.readmit(entries, slot);
    }

    /// Changes the limit; the caller must call [`Plain::enforce_limit`] afterwards.
    pub(super) fn set_limit(&mut self, entries: &mut Entries, limit: usize) {
        self.limit = limit;
        self.order.set_limit(entries, limit);
    }

    /// Passivates slots until the limit holds.
    pub(super) fn enforce_limit(&mut self, entries: &mut Entries, out: &mut Vec<u32>) {
        self.evict_to(entries, self.limit, out);
    }

    fn evict_to(&mut self, entries: &mut Entries, most: usize, out: &mut Vec<u32>) {
        while self.order.len() > most {
            let Some(victim) = self.order.victim(entries) else { return };
            self.order.evict(entries, victim);
            out.push(victim);
        }
    }
}
