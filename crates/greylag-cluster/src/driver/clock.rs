//! The clock of a node, which counts time while the machine sleeps.
//!
//! `CLOCK_MONOTONIC` stands still while a virtual machine is suspended, or a laptop's lid is closed, and other nodes
//! act meanwhile. So deadlines here count by `CLOCK_BOOTTIME` where the system has it (Linux, Android) and by the
//! monotonic clock elsewhere. Such an instant is compared only with others of the same clock, never with
//! [`Instant::now`].
//!
//! Timers of the runtime do not see suspensions, so a long wait is divided into short ones.
//!
//! Source: cluster, vocabulary (*Now*), scenario 81.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest single wait on a timer, and so the most by which a wait ends late after a suspension.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The clock by which a node counts time. Clones are the same clock. Default [`Clock::system`].
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// How far a test set this clock ahead of the system's, and how often the clock was read; `None` outside tests.
    test: Option<Arc<Tested>>,
}

/// The clock of a test.
#[derive(Debug, Default)]
struct Tested {
    /// How far the clock was set ahead, in nanoseconds.
    ahead: AtomicU64,
    /// How often the clock was read.
    reads: AtomicU64,
}

impl Clock {
    /// The clock of this machine.
    pub fn system() -> Self {
        Self::default()
    }

    /// The clock of this machine for tests: [`Clock::jump`] moves it as a suspension would, which the monotonic clock
    /// does not see.
    pub fn for_test() -> Self {
        Self { test: Some(Arc::default()) }
    }

    /// Moves the clock on by `suspended` at once.
    ///
    /// # Panics
    /// On the system's clock, which this program cannot set.
    pub fn jump(&self, suspended: Duration) {
        let test = self.test.as_ref().expect("only a clock made by `for_test` jumps");
        test.ahead.fetch_add(u64::try_from(suspended.as_nanos()).unwrap_or(u64::MAX / 2), Ordering::SeqCst);
    }

    /// How often this clock was read, through any of its clones: the cost of checks that read it.
    ///
    /// # Panics
    /// On the system's clock, which counts nothing.
    pub fn reads(&self) -> u64 {
        self.test.as_ref().expect("only a clock made by `for_test` counts").reads.load(Ordering::Relaxed)
    }

    /// The present time. Never goes back.
    pub fn now(&self) -> Instant {
        let now = system_now();
        match &self.test {
            None => now,
            Some(test) => {
                test.reads.fetch_add(1, Ordering::Relaxed);
                now + Duration::from_nanos(test.ahead.load(Ordering::SeqCst))
            }
        }
    }

    /// Completes once `deadline`, an instant of this clock, has come; after a suspension at most one second late.
    pub async fn sleep_until(&self, deadline: Instant) {
        loop {
            let left = deadline.saturating_duration_since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
    }
}

/// Two clocks are equal if they are the same clock.
impl PartialEq for Clock {
    fn eq(&self, other: &Self) -> bool {
        match (&self.test, &other.test) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            _ => false,
        }
    }
}

impl Eq for Clock {}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn system_now() -> Instant {
    use std::sync::OnceLock;

    use rustix::time::{ClockId, clock_gettime};

    fn since_boot() -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
        Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
    }
    // Map to an `Instant`, which only the monotonic clock can make: this one stands for the same moment.
    static ORIGIN: OnceLock<(Instant, Duration)> = OnceLock::new();
    let (instant, origin) = *ORIGIN.get_or_init(|| (Instant::now(), since_boot()));
    instant + since_boot().saturating_sub(origin)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn system_now() -> Instant {
    Instant::now()
}

/// Milliseconds since 1970, by the clock of this host.
pub(crate) fn wall_clock() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

/// Completes at the deadline; without one, never.
pub(crate) async fn sleep_until(clock: &Clock, deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => clock.sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_on_and_jumps_only_where_a_test_says_so() {
        let system = Clock::system();
        let before = system.now();
        let clock = Clock::for_test();
        assert!(clock.now() >= before);
        clock.jump(Duration::from_secs(600));
        assert!(clock.clone().now() >= before + Duration::from_secs(600));
        assert!(system.now() < before + Duration::from_secs(600), "clones jump together, others do not");
        assert_ne!(clock, system);
        assert_eq!(system, Clock::default());
    }

    /// cluster, vocabulary: a deadline that passes during a suspension has come on waking.
    #[tokio::test]
    async fn a_wait_ends_after_a_suspension_that_the_timers_do_not_see() {
        let clock = Clock::for_test();
        let deadline = clock.now() + Duration::from_secs(600);
        let waiting = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(deadline).await }
        });
        tokio::task::yield_now().await;
        clock.jump(Duration::from_secs(601));
        tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("not by the timer").expect("no panic");
    }
}
