//! The recovery permits of one node: first come, first served. Source: persistence §2.5.

use std::collections::{BTreeSet, VecDeque};

use greylag_persistence::Incarnation;

/// The holder of a permit: which machine, in which of its lives.
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

    /// Gives a permit to the holder that waits longest, if one is left.
    pub(super) fn grant(&mut self) -> Option<Holder> {
        if self.held.len() >= self.count {
            return None;
        }
        let holder = self.waiting.pop_front()?;
        self.held.insert(holder);
        Some(holder)
    }

    /// Takes a permit back, or ends the wait for it. A permit that crossed its return on the way is
    /// returned twice.
    pub(super) fn give_back(&mut self, holder: Holder) {
        self.held.remove(&holder);
        self.waiting.retain(|waiting| *waiting != holder);
    }

    /// A machine is gone without a word; its host drops the machine's permits.
    pub(super) fn forget(&mut self, machine: u64) {
        self.held.retain(|(key, _)| *key != machine);
        self.waiting.retain(|(key, _)| *key != machine);
    }

    /// Those that hold one.
    pub(super) fn held(&self) -> impl Iterator<Item = Holder> {
        self.held.iter().copied()
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }
}
