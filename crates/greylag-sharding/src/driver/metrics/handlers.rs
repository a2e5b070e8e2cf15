//! Run times of the handlers of one shard.
//!
//! The clock is read after a group of handlers and not after each, since reading it costs as much as a short handler.
//! While handlers are long enough for that cost not to matter, each handler is a group of its own.
//!
//! Source: sharding §7 (slow_handler_threshold), §6.5 (slow handlers).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::driver::metrics::histogram::{Histogram, Recorder};
use crate::driver::metrics::watchdog::Probe;
use crate::machine::shard::SlotId;

/// Handlers per group while they are short.
const GROUP: usize = 32;
/// From this mean run time on, handlers are measured one by one.
const LONG: Duration = Duration::from_micros(6);
/// Shortest time between two log lines about slow handlers of a shard.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Counters of one type on one node.
#[derive(Debug, Default)]
pub(crate) struct Handled {
    times: Recorder,
    slow: AtomicU64,
    pub(in crate::driver) failed: AtomicU64,
    pub(in crate::driver) late: AtomicU64,
}

impl Handled {
    pub(crate) fn times(&self) -> Histogram {
        self.times.histogram()
    }

    pub(crate) fn counts(&self) -> HandlerCounts {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        HandlerCounts { slow: count(&self.slow), failed: count(&self.failed), late: count(&self.late) }
    }
}

/// Counters of the handlers of one entity type on this node, since its region began. Source: sharding §4.3, §4.6, §6.5.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HandlerCounts {
    /// Handlers that took `slow_handler_threshold` or longer. Short handlers are measured together, so one count may
    /// stand for two slow handlers in close succession.
    pub slow: u64,
    /// Failures of entities: of handlers, starts and suspended work.
    pub failed: u64,
    /// Results of asynchronous work that came after their incarnation had ended and were dropped.
    pub late: u64,
}

/// A handler that took too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::driver) struct Slow {
    pub(in crate::driver) took: Duration,
    /// The entity; `None` if the group had several handlers.
    pub(in crate::driver) slot: Option<SlotId>,
    /// Whether to log the handler.
    pub(in crate::driver) is_logged: bool,
}

/// See the module's description.
pub(in crate::driver) struct Handlers {
    probe: Arc<Probe>,
    threshold: Duration,
    /// Counters of all shards of the type.
    handled: Arc<Handled>,
    /// Number of begins and ends of handlers: odd while one runs.
    turn: u64,
    group_from: u64,
    group_began: Instant,
    group_size: usize,
    last: SlotId,
    logged_at: Option<Instant>,
}

impl Handlers {
    pub(in crate::driver) fn new(probe: Arc<Probe>, threshold: Duration, handled: Arc<Handled>, now: Instant) -> Self {
        Self {
            probe,
            threshold,
            handled,
            turn: 0,
            group_from: 0,
            group_began: now,
            group_size: GROUP,
            last: SlotId(0),
            logged_at: None,
        }
    }

    /// Notes that a handler begins.
    pub(in crate::driver) fn enter(&mut self, slot: SlotId) {
        self.last = slot;
        self.turn += 1;
        self.probe.tell(self.turn);
    }

    /// Notes that the handler has returned.
    pub(in crate::driver) fn leave(&mut self) {
        self.turn += 1;
        self.probe.tell(self.turn);
    }

    /// Begins a new group at `now`.
    pub(in crate::driver) fn begin(&mut self, now: Instant) {
        (self.group_from, self.group_began) = (self.turn, now);
    }

    /// How many messages make a group now.
    pub(in crate::driver) fn group_size(&self) -> usize {
        self.group_size
    }

    /// Whether handlers ran since the group began.
    pub(in crate::driver) fn is_open(&self) -> bool {
        self.turn != self.group_from
    }

    /// Ends the group at `now`, and returns it if it was slow.
    pub(in crate::driver) fn end_group(&mut self, now: Instant) -> Option<Slow> {
        let took = now.saturating_duration_since(self.group_began);
        let handlers = (self.turn - self.group_from).div_ceil(2);
        self.begin(now);
        if handlers == 0 {
            return None;
        }
        let mean = took / u32::try_from(handlers).unwrap_or(u32::MAX);
        self.handled.times.record(mean, handlers);
        self.group_size = if mean >= LONG { 1 } else { GROUP };
        if took < self.threshold {
            return None;
        }
        self.handled.slow.fetch_add(1, Ordering::Relaxed);
        let is_logged = self.logged_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL);
        if is_logged {
            self.logged_at = Some(now);
        }
        Some(Slow { took, slot: (handlers == 1).then_some(self.last), is_logged })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLD: Duration = Duration::from_millis(10);

    fn handlers() -> (Handlers, Arc<Handled>, Instant) {
        let (handled, now) = (Arc::<Handled>::default(), Instant::now());
        (Handlers::new(Arc::default(), THRESHOLD, handled.clone(), now), handled, now)
    }

    fn run(handlers: &mut Handlers, count: u32) {
        for slot in 0..count {
            handlers.enter(SlotId(slot));
            handlers.leave();
        }
    }

    #[test]
    fn short_handlers_are_measured_together_and_long_ones_alone() {
        let (mut handlers, handled, now) = handlers();
        run(&mut handlers, 32);
        assert_eq!(handlers.end_group(now + Duration::from_micros(50)), None);
        assert_eq!(handlers.group_size(), GROUP);
        run(&mut handlers, 32);
        assert_eq!(handlers.end_group(now + Duration::from_millis(5)), None);
        assert_eq!(handlers.group_size(), 1);
        run(&mut handlers, 1);
        assert_eq!(handlers.end_group(now + Duration::from_micros(5_001)), None);
        assert_eq!((handlers.group_size(), handled.counts()), (GROUP, HandlerCounts::default()));
    }

    #[test]
    fn a_slow_handler_is_counted_and_named_where_it_ran_alone() {
        let (mut handlers, handled, now) = handlers();
        let at = |millis| now + Duration::from_millis(millis);
        run(&mut handlers, 20);
        let first = handlers.end_group(at(30)).unwrap();
        assert_eq!((first.slot, first.is_logged), (None, true));
        handlers.enter(SlotId(7));
        handlers.leave();
        let second = handlers.end_group(at(40)).unwrap();
        assert_eq!((second.slot, second.took, second.is_logged), (Some(SlotId(7)), THRESHOLD, false));
        handlers.begin(at(90));
        assert!(!handlers.is_open() && handlers.end_group(at(95)).is_none(), "time without handlers is nobody's");
        assert_eq!(handled.counts().slow, 2);
        let times = handled.times();
        assert_eq!((times.count(), times.total()), (21, Duration::from_millis(40)), "each handler is in the histogram");
    }
}
