//! The recovery permits of one node: first come, first served. Source: persistence §2.5.

use std::collections::{BTreeSet, VecDeque};

use greylag_persistence::Incarnation;

/// The holder of a permit: a machine, and its incarnation.
pub(super) type Holder = (u64, Incarnation);

#[derive(Debug)]
pub(super) struct Permits {
    count: usize,
    waiting: VecDeque<Holder>,
    held: BTreeSet<Holder>,
}

impl Permits {
    pub(super) fn new(count: usize) -> Self {
        Self { count, waiting: VecDeque::new(), held: BTreeSet::new() }
    }

    pub(super) fn ask(&mut self, holder: Holder) {
        self.waiting.push_back(holder);
    }

    /// Gives a free permit to the holder that has waited longest.
    pub(super) fn grant(&mut self) -> Option<Holder> {
        if self.held.len() >= self.count {
            return None;
        }
        let holder = self.waiting.pop_front()?;
        self.held.insert(holder);
        Some(holder)
    }

    /// Takes a permit back, or ends the wait for it. If a grant and a return have crossed, the permit is returned
    /// twice.
    pub(super) fn give_back(&mut self, holder: Holder) {
        self.held.remove(&holder);
        self.waiting.retain(|waiting| *waiting != holder);
    }

    /// Drops all permits of a machine that is gone.
    pub(super) fn forget(&mut self, machine: u64) {
        self.held.retain(|(key, _)| *key != machine);
        self.waiting.retain(|(key, _)| *key != machine);
    }

    /// The holders of permits.
    pub(super) fn held(&self) -> impl Iterator<Item = Holder> {
        self.held.iter().copied()
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }
}
