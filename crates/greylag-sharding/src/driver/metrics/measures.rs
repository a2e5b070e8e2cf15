//! What the task of a shard measures: its handlers, and how many entities it has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::driver::metrics::handlers::{Handlers, Slow};
use crate::driver::metrics::region::{Counts, ShardTally};
use crate::driver::metrics::watchdog::Probe;
use crate::machine::shard::{SlotId, Uses};

/// See the module's description.
pub(in crate::driver) struct Measures {
    handlers: Handlers,
    tally: ShardTally,
}

impl Measures {
    /// Nothing has run yet; `threshold` is the time from which a handler is slow.
    pub(in crate::driver) fn new(probe: &Arc<Probe>, threshold: Duration, counts: &Counts, now: Instant) -> Self {
        let handlers = Handlers::new(probe.clone(), threshold, counts.handled.clone(), now);
        Self { handlers, tally: ShardTally::new(counts.tally.clone()) }
    }

    /// A handler begins.
    pub(in crate::driver) fn enter(&mut self, slot: SlotId) {
        self.handlers.enter(slot);
    }

    /// The handler has returned.
    pub(in crate::driver) fn leave(&mut self) {
        self.handlers.leave();
    }

    /// A run of messages begins.
    pub(in crate::driver) fn begin_group(&mut self, now: Instant) {
        self.handlers.begin(now);
    }

    /// How many messages are measured together.
    pub(in crate::driver) fn group_size(&self) -> usize {
        self.handlers.group_size()
    }

    /// Whether handlers ran since the group began.
    pub(in crate::driver) fn is_group_open(&self) -> bool {
        self.handlers.is_open()
    }

    /// Ends the group, and returns it if it was slow.
    pub(in crate::driver) fn end_group(&mut self, now: Instant) -> Option<Slow> {
        self.handlers.end_group(now)
    }

    /// Reports the number of entities, and how they were used since the shard began.
    pub(in crate::driver) fn count(&mut self, entities: usize, uses: Uses) {
        self.tally.tell(entities, uses);
    }
}
