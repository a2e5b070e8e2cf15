//! The result of the node's latest tick, for tasks that are about to run user code.
//!
//! The machine's tick publishes its time and whether this node trusts itself, before anything else. A process that was
//! stopped, or whose machine was suspended, cannot know what the other nodes started meanwhile until that tick has run.
//! So a task that takes messages reads the tick *after* it took them and before it handles any, and waits for the next
//! tick if the last one is too old. A message that is answered after waking then was asked before the sleep, or is
//! asked at a time when no other node can have started anything. A read costs one clock read and one load.
//!
//! Source: cluster F9, sharding §4.1.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::clock::Clock;
use crate::core::Standing;

/// The value of a node that has ended: no user code runs any more.
const ENDED: u64 = 0;
/// The value of a node that does not trust itself: no user code runs until a later tick permits it.
const HELD: u64 = 1;
/// The value before the first tick: nothing that needs a tick runs before this node is a member.
const OPEN: u64 = u64::MAX;

/// Whether user code may run on this node now. Clones read the same tick.
#[derive(Clone)]
pub struct Pulse {
    shared: Arc<PulseState>,
}

struct PulseState {
    /// When the last tick expires, in nanoseconds since `origin` plus 2; or one of the constants above.
    until: AtomicU64,
    ticked: Notify,
    clock: Clock,
    origin: Instant,
}

impl PulseState {
    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_nanos()).unwrap_or(OPEN - 3) + 2
    }
}

impl Pulse {
    /// Whether the last tick is recent, and was that of a node that trusts itself. Messages that were taken
    /// before this call may be handled if it is true.
    pub fn is_fresh(&self) -> bool {
        let until = self.shared.until.load(Ordering::Acquire);
        until == OPEN || self.shared.nanos(self.shared.clock.now()) <= until
    }

    /// Waits until [`Pulse::is_fresh`] is true. Returns `false` if this node has ended, since then it never will be.
    pub async fn fresh(&self) -> bool {
        loop {
            let mut ticked = std::pin::pin!(self.shared.ticked.notified());
            // Register before reading: a tick published from here on is not missed.
            ticked.as_mut().enable();
            if self.is_fresh() {
                return true;
            }
            if self.shared.until.load(Ordering::Acquire) == ENDED {
                return false;
            }
            ticked.await;
        }
    }
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulse").field("is_fresh", &self.is_fresh()).finish_non_exhaustive()
    }
}

/// Publishes ticks. Dropping it tells all readers that this node has ended.
pub(crate) struct PulseSender {
    pulse: Pulse,
    /// How long a tick counts.
    counts_for: Duration,
}

impl PulseSender {
    /// A sender without a tick yet; each tick will count for `counts_for`.
    pub(crate) fn new(clock: Clock, counts_for: Duration) -> Self {
        let origin = clock.now();
        let shared = PulseState { until: AtomicU64::new(OPEN), ticked: Notify::new(), clock, origin };
        Self { pulse: Pulse { shared: Arc::new(shared) }, counts_for }
    }

    pub(crate) fn subscribe(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Publishes a tick that ran at `at`, with the node's standing.
    pub(crate) fn publish(&self, at: Instant, standing: Standing) {
        let shared = &self.pulse.shared;
        let until = match standing {
            Standing::Trusted => shared.nanos(at + self.counts_for),
            Standing::Held => HELD,
            Standing::Ended => ENDED,
        };
        shared.until.store(until, Ordering::Release);
        shared.ticked.notify_waiters();
    }
}

impl Drop for PulseSender {
    fn drop(&mut self) {
        self.publish(self.pulse.shared.origin, Standing::Ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: Duration = Duration::from_secs(3);

    fn sender() -> (Clock, PulseSender) {
        let clock = Clock::for_test();
        (clock.clone(), PulseSender::new(clock, COUNTS))
    }

    /// cluster F9: the check by itself, with the tick as a value.
    #[test]
    fn a_tick_counts_for_the_threshold_and_one_interval_and_not_where_this_node_is_suspect() {
        let (clock, sender) = sender();
        let pulse = sender.subscribe();
        assert!(pulse.is_fresh(), "nothing runs yet that a tick would have to guard");
        sender.publish(clock.now(), Standing::Trusted);
        assert!(pulse.is_fresh());
        clock.jump(COUNTS / 2);
        assert!(pulse.is_fresh());
        clock.jump(COUNTS);
        assert!(!pulse.is_fresh(), "the process slept");
        sender.publish(clock.now(), Standing::Held);
        assert!(!pulse.is_fresh(), "it may have been removed");
        sender.publish(clock.now(), Standing::Trusted);
        assert!(pulse.is_fresh());
        sender.publish(clock.now(), Standing::Ended);
        assert!(!pulse.is_fresh());
    }

    #[tokio::test]
    async fn waiters_go_on_with_the_next_good_tick_or_learn_of_the_end() {
        let (clock, sender) = sender();
        sender.publish(clock.now(), Standing::Trusted);
        clock.jump(2 * COUNTS);
        let waiting = |pulse: Pulse| tokio::spawn(async move { pulse.fresh().await });
        let wait = waiting(sender.subscribe());
        tokio::task::yield_now().await;
        sender.publish(clock.now(), Standing::Held);
        tokio::task::yield_now().await;
        assert!(!wait.is_finished(), "a tick of a suspect node lets no task go on");
        sender.publish(clock.now(), Standing::Trusted);
        assert!(wait.await.expect("no panic"));
        clock.jump(2 * COUNTS);
        let wait = waiting(sender.subscribe());
        drop(sender);
        assert!(!wait.await.expect("no panic"), "the node has ended");
    }
}
