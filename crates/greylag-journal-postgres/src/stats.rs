//! Counters of a journal since its opening, for metrics.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use greylag_persistence::{AppendError, Appended};

use crate::clock::ClockWatch;

/// Counters of one journal since it was opened, over all its handles; other processes count for themselves. All rise
/// only, except [`pending_bytes`](Self::pending_bytes) and [`clock_behind`](Self::clock_behind). Source: persistence
/// §10.16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PostgresStats {
    /// Appends answered as stored.
    pub appends: u64,
    /// Events of the stored appends.
    pub events: u64,
    /// Bytes of the stored appends, roughly: payloads, metadata, tags, and an overhead for each event.
    pub bytes: u64,
    /// Appends that were refused for good: too large, or the server has no room.
    pub rejected: u64,
    /// Appends of a writer that was fenced.
    pub fenced: u64,
    /// Appends whose first number is not the next one.
    pub conflicts: u64,
    /// Appends that are certainly not stored, because the server could not be reached in time, or refused.
    pub not_stored: u64,
    /// Appends whose outcome is unknown: they may be stored.
    pub unknown: u64,
    /// Bytes of appends that wait or are under way now, in whole KiB; at most `max_pending_bytes`.
    pub pending_bytes: u64,
    /// Statements of appends that the server answered, each one commit.
    pub statements: u64,
    /// Appends carried by those statements; a repeated try counts again.
    pub carried: u64,
    /// The most appends of one statement.
    pub largest_batch: u64,
    /// Sum of the times from sending those statements to their answers.
    pub commit_time: Duration,
    /// The longest of those times.
    pub longest_commit: Duration,
    /// Statements of appends that failed or stayed without an answer.
    pub failed_statements: u64,
    /// Lag of the server's clock behind the latest stored event at the last append; zero while there is none. May fall.
    pub clock_behind: Duration,
    /// How often that lag rose above `behind_current_time`.
    pub clock_set_back: u64,
    /// Snapshots answered as saved.
    pub snapshots: u64,
    /// Bytes of their payloads.
    pub snapshot_bytes: u64,
    /// Sum of the times from calls to answers.
    pub snapshot_time: Duration,
    /// Snapshots that could not be saved.
    pub failed_snapshots: u64,
}

impl PostgresStats {
    /// Mean number of appends per commit; 0 before the first.
    pub fn appends_per_statement(&self) -> f64 {
        if self.statements == 0 { 0.0 } else { self.carried as f64 / self.statements as f64 }
    }

    /// Mean time of a commit; zero before the first.
    pub fn mean_commit(&self) -> Duration {
        u32::try_from(self.statements).ok().and_then(|count| self.commit_time.checked_div(count)).unwrap_or_default()
    }
}

/// The counters that the lanes and handles of one journal share.
#[derive(Debug)]
pub(crate) struct Counters {
    stats: Mutex<PostgresStats>,
    pub(crate) clock: ClockWatch,
}

impl Counters {
    pub(crate) fn new(clock: ClockWatch) -> Self {
        Self { stats: Mutex::default(), clock }
    }

    pub(crate) fn read(&self) -> PostgresStats {
        let clock = self.clock.seen();
        let stats = *self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        PostgresStats { clock_behind: clock.behind, clock_set_back: clock.times, ..stats }
    }

    fn count(&self, change: impl FnOnce(&mut PostgresStats)) {
        change(&mut self.stats.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts the answer to an append of `events` events and `bytes` bytes.
    pub(crate) fn answered(&self, outcome: &Result<Appended, AppendError>, events: usize, bytes: usize) {
        self.count(|stats| match outcome {
            Ok(_) => {
                stats.appends += 1;
                stats.events += events as u64;
                stats.bytes += bytes as u64;
            }
            Err(AppendError::Rejected(_)) => stats.rejected += 1,
            Err(AppendError::Fenced { .. }) => stats.fenced += 1,
            Err(AppendError::Conflict { .. }) => stats.conflicts += 1,
            Err(AppendError::NotStored(_)) => stats.not_stored += 1,
            Err(AppendError::Unknown(_)) => stats.unknown += 1,
        });
    }

    /// Counts the end of a statement of appends.
    pub(crate) fn executed(&self, carried: usize, took: Duration, is_done: bool) {
        self.count(|stats| {
            if !is_done {
                stats.failed_statements += 1;
                return;
            }
            stats.statements += 1;
            stats.carried += carried as u64;
            stats.largest_batch = stats.largest_batch.max(carried as u64);
            stats.commit_time += took;
            stats.longest_commit = stats.longest_commit.max(took);
        });
    }

    /// Counts a snapshot of `bytes` bytes that was saved, or not.
    pub(crate) fn saved(&self, bytes: usize, took: Duration, is_saved: bool) {
        self.count(|stats| {
            if !is_saved {
                stats.failed_snapshots += 1;
                return;
            }
            stats.snapshots += 1;
            stats.snapshot_bytes += bytes as u64;
            stats.snapshot_time += took;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_count_successful_statements_only() {
        let counters = Counters::new(ClockWatch::new("journal".to_owned(), Duration::ZERO));
        assert_eq!((counters.read().appends_per_statement(), counters.read().mean_commit()), (0.0, Duration::ZERO));
        let millis = Duration::from_millis;
        counters.executed(3, millis(2), true);
        counters.executed(5, millis(4), true);
        counters.executed(500, millis(90), false);
        let stats = counters.read();
        assert_eq!((stats.appends_per_statement(), stats.mean_commit()), (4.0, millis(3)));
        assert_eq!((stats.largest_batch, stats.longest_commit, stats.failed_statements), (5, millis(4), 1));
    }
}
