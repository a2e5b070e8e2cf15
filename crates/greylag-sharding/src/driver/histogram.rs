//! How long things take, counted by powers of two of a microsecond.
//!
//! Source: sharding §6.5.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets: under 1 µs, under 2 µs, under 4 µs and so on; the last takes whatever is longer than 67 s.
const BUCKETS: usize = 28;

/// How long something took, as often as it happened: counts by powers of two of a microsecond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    total: Duration,
}

impl Histogram {
    /// How often it happened.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// All the time together.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// How long it takes on average; `None` if it never happened.
    pub fn mean(&self) -> Option<Duration> {
        let nanos = self.total.as_nanos().checked_div(u128::from(self.count()))?;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// The time within which this part of all ended, from 0.0 to 1.0, up to a factor of two: the upper bound of the bucket.
    /// `None` if it never happened.
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

    /// How often it took less than each bound and at least the bound before it, the shortest first. The last bound is
    /// [`Duration::MAX`].
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        self.counts.iter().enumerate().map(|(at, count)| (bound(at), *count))
    }
}

/// What the bucket's times are shorter than.
fn bound(bucket: usize) -> Duration {
    if bucket + 1 == BUCKETS { Duration::MAX } else { Duration::from_micros(1 << bucket) }
}

fn bucket_of(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    usize::min((u64::BITS - micros.leading_zeros()) as usize, BUCKETS - 1)
}

/// A [`Histogram`] that many tasks write.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    counts: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl Recorder {
    /// It took so long, so many times.
    pub(crate) fn record(&self, took: Duration, times: u64) {
        self.counts[bucket_of(took)].fetch_add(times, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos.saturating_mul(times), Ordering::Relaxed);
    }

    /// What was written so far.
    pub(crate) fn histogram(&self) -> Histogram {
        let counts = std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed));
        Histogram { counts, total: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)) }
    }
}

/// Writes to a store: how long each took, and how much they wrote together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Writes {
    /// How long a write took, failed ones too.
    pub times: Histogram,
    /// What was written by all of them: events of a coordinator, or ids of remembered entities.
    pub items: u64,
}

impl Writes {
    /// How much one write holds on average; `None` before the first.
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
    /// A write of so many items took so long.
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
