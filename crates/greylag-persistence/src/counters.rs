//! Counts what the entities of a node have done with one journal or state store, for metrics.
//!
//! The machines tell by their actions what only they know, the hosts count it: each entity has an
//! [`EntityTally`], which folds what a turn brought into the [`EntityCounters`] that all entities on
//! those stores share. A turn that brought nothing to count costs no atomic operation. What stores
//! and breakers count themselves is told by them ([`Stores::breakers`](crate::Stores::breakers)).
//!
//! Source: persistence §10.16.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use greylag_core::DeadLetterReason;

use crate::behavior::Failure;
use crate::entity::{Action, EntityCall, Withheld};
use crate::error::{AppendError, SnapshotError, StateWriteError};
use crate::journal::Appended;
use crate::persistence_id::PersistenceId;

/// Turns that encode a snapshot for longer are counted and logged. Source: persistence §2.8.
pub const SLOW_ENCODING: Duration = Duration::from_millis(50);

/// What the entities on one journal, or one state store, have done since the process got hold of it; those of
/// other processes count for themselves. Numbers only rise, but for [`stashed`](Self::stashed). Read it by
/// [`Stores::entity_stats`](crate::Stores::entity_stats). Source: persistence §10.16.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntityStats {
    /// Writes said to be stored: appends, or durable states upserted and deleted.
    pub writes: u64,
    /// Events of those appends.
    pub events: u64,
    /// Writes refused for good, by the store or before they reached it: too large, cannot be encoded, no room.
    pub rejected: u64,
    /// Writes of an entity that is not the writer any more: another one claimed since, or wrote the state.
    pub fenced: u64,
    /// Appends whose first number is not the next one.
    pub conflicts: u64,
    /// Writes that are certainly not stored, because the store was away or its breaker open.
    pub not_stored: u64,
    /// Writes whose outcome is unknown: they may be stored.
    pub unknown: u64,
    /// Recoveries that came to their end: entities that then took commands.
    pub recoveries: u64,
    /// From permit to end, all of those together; waiting for a permit is not in it.
    pub recovery_time: Duration,
    /// The longest of them.
    pub longest_recovery: Duration,
    /// Stored events that they replayed, those of a refill apart.
    pub replayed_events: u64,
    /// Of those, the ones skipped because this code does not know them
    /// ([`OnUnknownEvent::Skip`](crate::OnUnknownEvent::Skip)).
    pub skipped_events: u64,
    /// Recoveries that failed, each try by itself.
    pub failed_recoveries: u64,
    /// Snapshots said to be saved.
    pub snapshots: u64,
    /// Bytes of their payloads, all of them together.
    pub snapshot_bytes: u64,
    /// Bytes of the largest of them.
    pub largest_snapshot_bytes: u64,
    /// From call to answer of the store, all of them together; encoding is not in it.
    pub snapshot_time: Duration,
    /// The longest of them.
    pub longest_snapshot: Duration,
    /// Snapshots that could not be encoded, were too large, or could not be saved.
    pub failed_snapshots: u64,
    /// Turns of an entity in which a snapshot was encoded and that took longer than [`SLOW_ENCODING`], what else
    /// the entity did in that turn included. Each is in the log, with the entity it held up.
    pub slow_encodings: u64,
    /// Commands that wait in entities now, put aside or not yet handled. In a shard, what waits for an entity
    /// that recovers or persists is in its mailbox, and not here.
    pub stashed: u64,
    /// Commands dropped because the stash they were to wait in was full. A full mailbox in a shard is the
    /// transport's dead letter `EntityMailboxFull`.
    pub stash_drops: u64,
    /// Commands that behaviours answered `unhandled`.
    pub unhandled: u64,
}

impl EntityStats {
    /// How long a recovery takes, on average; zero before the first.
    pub fn mean_recovery(&self) -> Duration {
        mean(self.recovery_time, self.recoveries)
    }

    /// How long saving a snapshot takes, on average; zero before the first.
    pub fn mean_snapshot(&self) -> Duration {
        mean(self.snapshot_time, self.snapshots)
    }
}

fn mean(total: Duration, count: u64) -> Duration {
    nanos(total).checked_div(count).map_or(Duration::ZERO, Duration::from_nanos)
}

/// Where the entities on one journal, or one state store, count; clones count together.
#[derive(Debug, Clone, Default)]
pub struct EntityCounters(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    writes: AtomicU64,
    events: AtomicU64,
    rejected: AtomicU64,
    fenced: AtomicU64,
    conflicts: AtomicU64,
    not_stored: AtomicU64,
    unknown: AtomicU64,
    recoveries: AtomicU64,
    recovery_nanos: AtomicU64,
    longest_recovery_nanos: AtomicU64,
    replayed_events: AtomicU64,
    skipped_events: AtomicU64,
    failed_recoveries: AtomicU64,
    snapshots: AtomicU64,
    snapshot_bytes: AtomicU64,
    largest_snapshot_bytes: AtomicU64,
    snapshot_nanos: AtomicU64,
    longest_snapshot_nanos: AtomicU64,
    failed_snapshots: AtomicU64,
    slow_encodings: AtomicU64,
    stashed: AtomicU64,
    stash_drops: AtomicU64,
    unhandled: AtomicU64,
}

impl EntityCounters {
    /// The counters now.
    pub fn stats(&self) -> EntityStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let time = |nanos: &AtomicU64| Duration::from_nanos(read(nanos));
        let counts = &*self.0;
        EntityStats {
            writes: read(&counts.writes),
            events: read(&counts.events),
            rejected: read(&counts.rejected),
            fenced: read(&counts.fenced),
            conflicts: read(&counts.conflicts),
            not_stored: read(&counts.not_stored),
            unknown: read(&counts.unknown),
            recoveries: read(&counts.recoveries),
            recovery_time: time(&counts.recovery_nanos),
            longest_recovery: time(&counts.longest_recovery_nanos),
            replayed_events: read(&counts.replayed_events),
            skipped_events: read(&counts.skipped_events),
            failed_recoveries: read(&counts.failed_recoveries),
            snapshots: read(&counts.snapshots),
            snapshot_bytes: read(&counts.snapshot_bytes),
            largest_snapshot_bytes: read(&counts.largest_snapshot_bytes),
            snapshot_time: time(&counts.snapshot_nanos),
            longest_snapshot: time(&counts.longest_snapshot_nanos),
            failed_snapshots: read(&counts.failed_snapshots),
            slow_encodings: read(&counts.slow_encodings),
            stashed: read(&counts.stashed),
            stash_drops: read(&counts.stash_drops),
            unhandled: read(&counts.unhandled),
        }
    }

    /// An append of so many events was answered.
    pub(crate) fn appended(&self, events: usize, outcome: &Result<Appended, AppendError>) {
        let counts = &*self.0;
        match outcome {
            Ok(_) => {
                add(&counts.writes, 1);
                add(&counts.events, events as u64);
            }
            Err(AppendError::Rejected(_)) => add(&counts.rejected, 1),
            Err(AppendError::Fenced { .. }) => add(&counts.fenced, 1),
            Err(AppendError::Conflict { .. }) => add(&counts.conflicts, 1),
            Err(AppendError::NotStored(_)) => add(&counts.not_stored, 1),
            Err(AppendError::Unknown(_)) => add(&counts.unknown, 1),
        }
    }

    /// A write of a durable state was answered.
    pub(crate) fn written(&self, outcome: &Result<(), StateWriteError>) {
        let counts = &*self.0;
        match outcome {
            Ok(()) => add(&counts.writes, 1),
            Err(StateWriteError::Rejected(_)) => add(&counts.rejected, 1),
            Err(StateWriteError::RevisionMismatch { .. }) => add(&counts.fenced, 1),
            Err(StateWriteError::NotStored(_)) => add(&counts.not_stored, 1),
            Err(StateWriteError::Unknown(_)) => add(&counts.unknown, 1),
        }
    }

    /// A snapshot with a payload of so many bytes was saved within this time, or not.
    pub(crate) fn snapshot_saved<T>(&self, bytes: usize, took: Duration, outcome: &Result<T, SnapshotError>) {
        let counts = &*self.0;
        if outcome.is_err() {
            return add(&counts.failed_snapshots, 1);
        }
        add(&counts.snapshots, 1);
        add(&counts.snapshot_bytes, bytes as u64);
        raise(&counts.largest_snapshot_bytes, bytes as u64);
        add(&counts.snapshot_nanos, nanos(took));
        raise(&counts.longest_snapshot_nanos, nanos(took));
    }

    fn recovered(&self, replayed: u64, skipped: u64, took: Duration) {
        let counts = &*self.0;
        add(&counts.recoveries, 1);
        add(&counts.recovery_nanos, nanos(took));
        raise(&counts.longest_recovery_nanos, nanos(took));
        add(&counts.replayed_events, replayed);
        add(&counts.skipped_events, skipped);
    }

    fn encoded(&self, id: &PersistenceId, took: Duration) {
        if took > SLOW_ENCODING {
            add(&self.0.slow_encodings, 1);
            tracing::warn!(%id, ?took, "a turn that encoded a snapshot took long; commands waited for it");
        }
    }
}

fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

fn raise(greatest: &AtomicU64, to: u64) {
    greatest.fetch_max(to, Ordering::Relaxed);
}

/// Enough for five hundred years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What the host of one entity counts by. Dropping it takes the commands that waited out of
/// [`EntityStats::stashed`].
#[derive(Debug)]
pub struct EntityTally {
    counters: EntityCounters,
    /// The entity's share of `stashed`.
    stashed: usize,
}

impl EntityTally {
    /// For an entity on the stores that these belong to.
    pub fn new(counters: EntityCounters) -> Self {
        Self { counters, stashed: 0 }
    }

    /// Counts what a turn of the machine of `id` asked for, and that `waiting_count` commands wait in it now. How
    /// long the turn took is asked only if a snapshot was encoded in it, which happens only in the answer of a
    /// store.
    pub fn turn<C, Call: EntityCall>(
        &mut self,
        id: &PersistenceId,
        actions: &[Action<C, Call>],
        waiting_count: usize,
        took: impl Fn() -> Duration,
    ) {
        for action in actions {
            self.count(id, action, &took);
        }
        self.set_stashed(waiting_count);
    }

    fn count<C, Call: EntityCall>(&self, id: &PersistenceId, action: &Action<C, Call>, took: &impl Fn() -> Duration) {
        let counts = &*self.counters.0;
        match action {
            Action::Recovered { replayed, skipped, took, .. } => self.counters.recovered(*replayed, *skipped, *took),
            Action::Restarting(Failure::Recovery(_)) | Action::Failed(Failure::Recovery(_)) => {
                add(&counts.failed_recoveries, 1);
            }
            Action::Unhandled => add(&counts.unhandled, 1),
            Action::Withheld(Withheld::Write) => add(&counts.rejected, 1),
            Action::Withheld(Withheld::Snapshot) => {
                add(&counts.failed_snapshots, 1);
                self.counters.encoded(id, took());
            }
            Action::Store { call, .. } if call.saves_snapshot() => self.counters.encoded(id, took()),
            Action::DeadLetter(dropped) if dropped.reason == DeadLetterReason::StashFull => add(&counts.stash_drops, 1),
            _ => {}
        }
    }

    fn set_stashed(&mut self, now: usize) {
        if now != self.stashed {
            // Two's complement: adding the difference is right in both directions.
            add(&self.counters.0.stashed, (now as u64).wrapping_sub(self.stashed as u64));
            self.stashed = now;
        }
    }
}

impl Drop for EntityTally {
    fn drop(&mut self) {
        self.set_stashed(0);
    }
}

#[cfg(test)]
mod tests;
