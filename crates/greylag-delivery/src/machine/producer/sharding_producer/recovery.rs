//! Limits how many links of recovered messages begin at the same time.
//!
//! A link whose first frame stays unanswered gives its turn up and joins the queue again, so that entities that never
//! answer do not block the others. Source: delivery S8.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Recovery {
    parallelism: usize,
    patience: Duration,
    waiting: VecDeque<u64>,
    is_waiting: BTreeSet<u64>,
    /// Links released but not answered, with the end of their turn.
    begun: BTreeMap<u64, Instant>,
    by_time: BTreeSet<(Instant, u64)>,
}

impl Recovery {
    pub(super) fn new(parallelism: usize, patience: Duration) -> Self {
        Self {
            parallelism: parallelism.max(1),
            patience,
            waiting: VecDeque::new(),
            is_waiting: BTreeSet::new(),
            begun: BTreeMap::new(),
            by_time: BTreeSet::new(),
        }
    }

    /// Queues a held link for its turn.
    pub(super) fn queue_up(&mut self, instance: u64) {
        self.end_turn(instance);
        if self.is_waiting.insert(instance) {
            self.waiting.push_back(instance);
        }
    }

    /// The next link whose turn begins.
    pub(super) fn begin(&mut self, now: Instant) -> Option<u64> {
        while self.begun.len() < self.parallelism {
            let instance = self.waiting.pop_front()?;
            if self.is_waiting.remove(&instance) {
                let until = now + self.patience;
                self.begun.insert(instance, until);
                self.by_time.insert((until, instance));
                return Some(instance);
            }
        }
        None
    }

    /// A link whose turn is over without an answer.
    pub(super) fn end_overdue(&mut self, now: Instant) -> Option<u64> {
        let (until, instance) = *self.by_time.first()?;
        if until > now {
            return None;
        }
        self.end_turn(instance);
        Some(instance)
    }

    /// Removes a link that was answered, or has ended. Returns whether it was waiting for its turn.
    pub(super) fn forget(&mut self, instance: u64) -> bool {
        self.end_turn(instance);
        self.is_waiting.remove(&instance)
    }

    /// The end of the turn that ends first.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.by_time.first().map(|(until, _)| *until)
    }

    fn end_turn(&mut self, instance: u64) {
        if let Some(until) = self.begun.remove(&instance) {
            self.by_time.remove(&(until, instance));
        }
    }
}
