//! A strategy of one order with a limit.

use super::entries::Entries;
use super::order::Order;

/// One order, and the limit it is kept to.
#[derive(Debug)]
pub(super) struct Plain {
    order: Box<dyn Order>,
    limit: usize,
}

impl Plain {
    /// An empty one.
    pub(super) fn new(mut order: Box<dyn Order>, entries: &mut Entries, limit: usize) -> Self {
        order.set_limit(entries, limit);
        Self { order, limit }
    }

    /// Slots in it.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// A new slot comes in once there is room for it, so that it is never its own victim.
    pub(super) fn touched(&mut self, entries: &mut Entries, slot: u32, out: &mut Vec<u32>) {
        if entries.is_live(slot) {
            return self.order.touch(entries, slot);
        }
        self.shed(entries, self.limit - 1, out);
        self.order.insert(entries, slot);
    }

    /// Takes out a slot that has ended.
    pub(super) fn remove(&mut self, entries: &mut Entries, slot: u32) {
        self.order.remove(entries, slot);
    }

    /// Puts a slot back that was set aside for its veto.
    pub(super) fn readmit(&mut self, entries: &mut Entries, slot: u32) {
        self.order.readmit(entries, slot);
    }

    /// Changes the limit; [`Plain::settle`] is to follow.
    pub(super) fn set_limit(&mut self, entries: &mut Entries, limit: usize) {
        self.limit = limit;
        self.order.set_limit(entries, limit);
    }

    /// Passivates whatever is beyond the limit.
    pub(super) fn settle(&mut self, entries: &mut Entries, out: &mut Vec<u32>) {
        self.shed(entries, self.limit, out);
    }

    fn shed(&mut self, entries: &mut Entries, most: usize, out: &mut Vec<u32>) {
        while self.order.len() > most {
            let Some(victim) = self.order.victim(entries) else { return };
            self.order.evict(entries, victim);
            out.push(victim);
        }
    }
}
