//! Durations, counted by powers of two of a microsecond.
//!
//! Source: sharding §6.5.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of buckets: under 1 µs, under 2 µs, under 4 µs and so on; the last takes everything longer than 67 s.
const BUCKETS: usize = 28;

/// Durations of a repeated operation, counted by powers of two of a microsecond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    total: Duration,
}

impl Histogram {
    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The sum of all durations.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// The mean duration; `None` without any.
    pub fn mean(&self) -> Option<Duration> {
        let nanos = self.total.as_nanos().checked_div(u128::from(self.count()))?;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// The duration that this part of all (0.0 to 1.0) did not exceed, up to a factor of two: the upper bound of the
    /// bucket. `None` without any.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((part.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut seen = 0_u64;
        self.buckets().find_map(|(bound, count)| {
            seen = seen.saturating_add(count);
            (seen >= rank).then_some(bound)
        })
    }

    /// The number of durations below each bound and at least the bound before it, the shortest first. The last bound is
    /// [`Duration::MAX`].
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        self.counts.iter().enumerate().map(|(at, count)| (bound(at), *count))
    }
}

/// The upper bound of a bucket's durations.
fn bound(bucket: usize) -> Duration {
    if bucket + 1 == BUCKETS { Duration::MAX } else { Duration::from_micros(1 << bucket) }
}

fn bucket_of(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    usize::min((u64::BITS - micros.leading_zeros()) as usize, BUCKETS - 1)
}

/// A [`Histogram`] that many tasks write to.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    counts: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl Recorder {
    /// Counts a duration, `times` times.
    pub(crate) fn record(&self, took: Duration, times: u64) {
        self.counts[bucket_of(took)].fetch_add(times, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos.saturating_mul(times), Ordering::Relaxed);
    }

    /// The durations recorded so far.
    pub(crate) fn histogram(&self) -> Histogram {
        let counts = std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed));
        Histogram { counts, total: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)) }
    }
}

/// Writes to a store: their durations, and the number of items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Writes {
    /// Durations of the writes, including failed ones.
    pub times: Histogram,
    /// Items of all writes: events of a coordinator, or ids of remembered entities.
    pub items: u64,
}

impl Writes {
    /// Items of one write on average; `None` before the first.
    pub fn mean_batch(&self) -> Option<f64> {
        let count = self.times.count();
        (count > 0).then(|| self.items as f64 / count as f64)
    }
}

/// [`Writes`] that many tasks count.
#[derive(Debug, Default)]
pub(crate) struct WriteRecorder {
    times: Recorder,
    items: AtomicU64,
}

impl WriteRecorder {
    /// Counts a write with its duration and number of items.
    pub(crate) fn record(&self, took: Duration, items: usize) {
        self.times.record(took, 1);
        self.items.fetch_add(items as u64, Ordering::Relaxed);
    }

    pub(crate) fn writes(&self) -> Writes {
        Writes { times: self.times.histogram(), items: self.items.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stand_in_buckets_of_powers_of_two() {
        for (micros, bucket) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1 << 26, 27), (u64::MAX, 27)] {
            assert_eq!(bucket_of(Duration::from_micros(micros)), bucket, "{micros} µs");
        }
        for bucket in 0..BUCKETS - 1 {
            assert_eq!(bucket_of(bound(bucket)), bucket + 1, "a bound belongs to the next bucket");
            assert_eq!(bucket_of(bound(bucket) - Duration::from_nanos(1)), bucket);
        }
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_histogram_tells_count_mean_and_quantiles() {
        let recorder = Recorder::default();
        assert_eq!((recorder.histogram().mean(), recorder.histogram().quantile(0.5)), (None, None));
        recorder.record(Duration::from_micros(3), 98);
        recorder.record(Duration::from_millis(1), 2);
        let times = recorder.histogram();
        assert_eq!((times.count(), times.total()), (100, Duration::from_micros(3 * 98 + 2_000)));
        assert_eq!(times.mean(), Some(Duration::from_nanos(22_940)));
        let quantiles = [0.0, 0.5, 0.98, 0.99, 1.0].map(|part| times.quantile(part).unwrap().as_micros());
        assert_eq!(quantiles, [4, 4, 4, 1_024, 1_024]);
        recorder.record(Duration::from_secs(100), 1);
        assert_eq!(recorder.histogram().quantile(1.0), Some(Duration::MAX));
    }

    #[test]
    fn writes_tell_their_mean_batch() {
        let recorder = WriteRecorder::default();
        assert_eq!(recorder.writes().mean_batch(), None);
        recorder.record(Duration::from_millis(2), 10);
        recorder.record(Duration::from_millis(2), 5);
        assert_eq!(recorder.writes().mean_batch(), Some(7.5));
        assert_eq!(recorder.writes().times.count(), 2);
    }
}
