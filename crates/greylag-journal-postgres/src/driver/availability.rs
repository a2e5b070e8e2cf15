//! Whether the database can be reached, as far as the tries to connect tell, and when the next try may be made.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use greylag_persistence::StoreReturns;
use greylag_postgres::DatabaseError;

use super::session::lock;

/// The results of the tries to connect of one journal, and how many of its lanes have a connection.
pub(crate) struct Availability {
    /// Name of the journal for the operator.
    journal: String,
    min_backoff: Duration,
    max_backoff: Duration,
    tries: Mutex<Tries>,
    /// Counts each time the database is reached again after tries to connect have failed.
    store_returns: StoreReturns,
    /// Count of lanes that have a connection.
    lanes_up: AtomicUsize,
}

/// Result of the last tries to connect.
#[derive(Default)]
struct Tries {
    /// Failures since the last success.
    failures: u32,
    last_error: Option<DatabaseError>,
    next_try_at: Option<Instant>,
    closed: bool,
}

impl Availability {
    pub(crate) fn new(journal: String, min_backoff: Duration, max_backoff: Duration) -> Self {
        Self {
            journal,
            min_backoff,
            max_backoff,
            tries: Mutex::default(),
            store_returns: StoreReturns::of_one(),
            lanes_up: AtomicUsize::new(0),
        }
    }

    /// Notes a try that succeeded.
    pub(crate) fn on_connected(&self) {
        let mut tries = lock(&self.tries);
        let failures = tries.failures;
        *tries = Tries { closed: tries.closed, ..Tries::default() };
        drop(tries);
        if failures > 0 {
            tracing::info!(journal = self.journal, failures, "connected to the journal database again");
            self.store_returns.note();
        }
    }

    /// Notes a try that failed at `now`, and puts off the next one.
    pub(crate) fn on_failed(&self, now: Instant, error: &DatabaseError) {
        let mut tries = lock(&self.tries);
        if tries.failures == 0 {
            tracing::warn!(
                journal = self.journal,
                error = error.text(),
                "the journal database cannot be reached; connecting is retried until it answers"
            );
        }
        let wait = self.min_backoff.saturating_mul(1 << tries.failures.min(20)).min(self.max_backoff);
        tries.failures = tries.failures.saturating_add(1);
        tries.last_error = Some(error.clone());
        tries.next_try_at = Some(now + wait);
    }

    /// Notes that a lane has a connection, or has lost it.
    pub(crate) fn on_lane(&self, is_up: bool) {
        if is_up {
            self.lanes_up.fetch_add(1, Ordering::Relaxed);
        } else {
            self.lanes_up.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notes that the journal was closed, for good.
    pub(crate) fn on_closed(&self) {
        lock(&self.tries).closed = true;
    }

    /// Error of the last try to connect, if it failed.
    pub(crate) fn last_error(&self) -> Option<DatabaseError> {
        lock(&self.tries).last_error.clone()
    }

    /// When the next try may be made, if the last one failed.
    pub(crate) fn next_try_at(&self) -> Option<Instant> {
        lock(&self.tries).next_try_at
    }

    /// Whether any lane can write: then the store is only degraded by a connection that cannot be made.
    pub(crate) fn is_any_lane_up(&self) -> bool {
        self.lanes_up.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.tries).closed
    }

    /// Counts each time the database is reached again after tries to connect have failed.
    pub(crate) fn store_returns(&self) -> &StoreReturns {
        &self.store_returns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_a_success_ends_them() {
        let millis = Duration::from_millis;
        let availability = Availability::new("journal".to_owned(), millis(50), millis(150));
        let (now, refused) = (Instant::now(), DatabaseError::from("refused"));
        assert_eq!((availability.next_try_at(), availability.last_error()), (None, None));
        for wait in [50, 100, 150, 150] {
            availability.on_failed(now, &refused);
            assert_eq!(availability.next_try_at(), Some(now + millis(wait)));
        }
        assert_eq!(availability.last_error(), Some(refused.clone()));
        availability.on_connected();
        assert_eq!((availability.next_try_at(), availability.last_error()), (None, None));
        availability.on_failed(now, &refused);
        assert_eq!(availability.next_try_at(), Some(now + millis(50)));
    }

    #[test]
    fn a_closed_journal_stays_closed_and_lanes_are_counted() {
        let availability = Availability::new("journal".to_owned(), Duration::ZERO, Duration::ZERO);
        assert!(!availability.is_closed() && !availability.is_any_lane_up());
        availability.on_closed();
        availability.on_connected();
        assert!(availability.is_closed());
        availability.on_lane(true);
        availability.on_lane(true);
        availability.on_lane(false);
        assert!(availability.is_any_lane_up());
        availability.on_lane(false);
        assert!(!availability.is_any_lane_up());
    }
}
