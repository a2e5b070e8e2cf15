//! Least frequently used first; among equals, least recently used first.
//!
//! A slot's priority is the number of its uses since its insertion. With dynamic aging the age of the order is added at
//! each use; the age is the priority of the last victim, so that slots popular long ago fall behind slots in use now.
//!
//! Source: "Evaluating Content Management Techniques for Web Proxy Caches", Arlitt et al. 2000, on dynamic aging.

use std::collections::BTreeSet;

use super::entries::{Entries, SlotState};
use super::ranking::Order;

#[derive(Debug, Clone, Copy, Default)]
struct Use {
    count: u64,
    /// The priority as of the last use.
    priority: u64,
}

/// The least-frequently-used order.
#[derive(Debug)]
pub(in crate::passivation) struct Frequency {
    dynamic_aging: bool,
    age: u64,
    /// Use counts by slot.
    uses: Vec<Use>,
    /// Priority, serial and slot of all slots that are not parked.
    ranked: BTreeSet<(u64, u64, u32)>,
    parked: usize,
}

impl Frequency {
    /// An empty order.
    pub(in crate::passivation) fn new(dynamic_aging: bool) -> Self {
        Self { dynamic_aging, age: 0, uses: Vec::new(), ranked: BTreeSet::new(), parked: 0 }
    }

    /// Puts a slot in its place after its use number `count`.
    fn rank(&mut self, entries: &mut Entries, slot: u32, count: u64) {
        let at = slot as usize;
        if at >= self.uses.len() {
            self.uses.resize(at + 1, Use::default());
        }
        let priority = if self.dynamic_aging { count.saturating_add(self.age) } else { count };
        self.uses[at] = Use { count, priority };
        let entry = entries.renew(slot);
        entry.state = SlotState::Listed;
        self.ranked.insert((priority, entry.serial, slot));
    }

    fn detach(&mut self, entries: &Entries, slot: u32) {
        let entry = entries.get(slot);
        match entry.state {
            SlotState::Parked => self.parked -= 1,
            _ => {
                self.ranked.remove(&(self.uses[slot as usize].priority, entry.serial, slot));
            }
        }
    }
}

impl Order for Frequency {
    fn len(&self) -> usize {
        self.ranked.len() + self.parked
    }

    fn insert(&mut self, entries: &mut Entries, slot: u32) {
        self.rank(entries, slot, 1);
    }

    fn touch(&mut self, entries: &mut Entries, slot: u32) {
        self.detach(entries, slot);
        let count = self.uses[slot as usize].count.saturating_add(1);
        self.rank(entries, slot, count);
    }

    fn remove(&mut self, entries: &mut Entries, slot: u32) {
        self.detach(entries, slot);
        entries.get_mut(slot).state = SlotState::Out;
    }

    fn evict(&mut self, entries: &mut Entries, slot: u32) {
        self.age = self.uses[slot as usize].priority;
        self.remove(entries, slot);
    }

    fn victim(&mut self, entries: &mut Entries) -> Option<u32> {
        while let Some(&(_, _, slot)) = self.ranked.first() {
            let entry = entries.get_mut(slot);
            if !entry.veto {
                return Some(slot);
            }
            entry.state = SlotState::Parked;
            self.ranked.pop_first();
            self.parked += 1;
        }
        None
    }

    fn readmit(&mut self, entries: &mut Entries, slot: u32) {
        let entry = entries.get_mut(slot);
        entry.state = SlotState::Listed;
        self.ranked.insert((self.uses[slot as usize].priority, entry.serial, slot));
        self.parked -= 1;
    }
}
