//! Counts the activity of a node's entities on one journal or state store, for metrics.
//!
//! A machine reports by its actions what only it knows, and the host counts: each entity has an
//! [`EntityTally`], which adds the counts of a turn to the [`EntityCounters`] that all entities on
//! those stores share. A turn with nothing to count costs no atomic operation. Stores
//! and breakers count their own activity ([`Stores::breakers`](crate::Stores::breakers)).
//!
//! Source: persistence §10.16.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use greylag_core::DeadLetterReason;

use super::behavior::failure::Failure;
use super::lifecycle::input::{Action, EntityCall, Withheld};
use crate::contract::error::{AppendError, SnapshotError, StateWriteError};
use crate::contract::journal::Appended;
use crate::contract::records::persistence_id::PersistenceId;

/// Turns that take longer to encode a snapshot are counted and logged. Source: persistence §2.8.
pub const SLOW_ENCODING: Duration = Duration::from_millis(50);

/// The activity of the entities on one journal, or one state store, since this process opened it; other
/// processes count their own. Numbers only rise, except [`stashed`](Self::stashed). Returned by
/// [`Stores::entity_stats`](crate::Stores::entity_stats). Source: persistence §10.16.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntityStats {
    /// Acknowledged writes: appends, or durable states upserted and deleted.
    pub writes: u64,
    /// Events of the acknowledged appends.
    pub events: u64,
    /// Writes refused for good, by the store or before they reached it: too large, cannot be encoded, no room.
    pub rejected: u64,
    /// Writes of an entity that is no longer the writer: another writer claimed since, or wrote the state.
    pub fenced: u64,
    /// Appends whose first number is not the next one.
    pub conflicts: u64,
    /// Writes that are certainly not stored, because the store was away or its breaker open.
    pub not_stored: u64,
    /// Writes whose outcome is unknown: they may be stored.
    pub unknown: u64,
    /// Completed recoveries: the entity then took commands.
    pub recoveries: u64,
    /// Sum of the times from permit to completion of those recoveries, without the wait for the permit.
    pub recovery_time: Duration,
    /// Longest of those recoveries.
    pub longest_recovery: Duration,
    /// Stored events that those recoveries replayed, without those of a refill.
    pub replayed_events: u64,
    /// Events that those recoveries skipped because this code does not know them
    /// ([`OnUnknownEvent::Skip`](crate::OnUnknownEvent::Skip)).
    pub skipped_events: u64,
    /// Failed recoveries; each try counts.
    pub failed_recoveries: u64,
    /// Saved snapshots.
    pub snapshots: u64,
    /// Sum of the payload bytes of the saved snapshots.
    pub snapshot_bytes: u64,
    /// Payload bytes of the largest saved snapshot.
    pub largest_snapshot_bytes: u64,
    /// Sum of the times from call to answer of the store, without encoding.
    pub snapshot_time: Duration,
    /// Longest of those times.
    pub longest_snapshot: Duration,
    /// Snapshots that could not be encoded, were too large, or could not be saved.
    pub failed_snapshots: u64,
    /// Turns of an entity in which a snapshot was encoded and that took longer than [`SLOW_ENCODING`], the turn's other
    /// work included. Each is logged, with its entity.
    pub slow_encodings: u64,
    /// Commands that wait in entities now, put aside or not yet handled. In a shard, commands for an entity
    /// that recovers or persists wait in its mailbox, and are not counted here.
    pub stashed: u64,
    /// Commands dropped because their stash was full. A full mailbox in a shard is the
    /// transport's dead letter `EntityMailboxFull`.
    pub stash_drops: u64,
    /// Commands that behaviours answered `unhandled`.
    pub unhandled: u64,
}

impl EntityStats {
    /// Mean time of a recovery; zero before the first.
    pub fn mean_recovery(&self) -> Duration {
        mean(self.recovery_time, self.recoveries)
    }

    /// Mean time of saving a snapshot; zero before the first.
    pub fn mean_snapshot(&self) -> Duration {
        mean(self.snapshot_time, self.snapshots)
    }
}

fn mean(total: Duration, count: u64) -> Duration {
    nanos(total).checked_div(count).map_or(Duration::ZERO, Duration::from_nanos)
}

/// The shared counters of the entities on one journal, or one state store; clones count together.
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
    /// The present values.
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

    /// Counts the outcome of an append of `events` events.
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

    /// Counts the outcome of a write of a durable state.
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

    /// Counts the outcome of saving a snapshot with a payload of `bytes`, after `took`.
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
            tracing::warn!(%id, ?took, "turn with snapshot encoding took long; commands waited");
        }
    }
}

fn add(count: &AtomicU64, by: u64) {
    count.fetch_add(by, Ordering::Relaxed);
}

fn raise(greatest: &AtomicU64, to: u64) {
    greatest.fetch_max(to, Ordering::Relaxed);
}

/// Nanoseconds; a `u64` suffices for five hundred years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The counter of one entity's host. Dropping it takes the entity's waiting commands out of
/// [`EntityStats::stashed`].
#[derive(Debug)]
pub struct EntityTally {
    counters: EntityCounters,
    /// The entity's share of `stashed`.
    stashed: usize,
}

impl EntityTally {
    /// A tally for an entity on the stores of these counters.
    pub fn new(counters: EntityCounters) -> Self {
        Self { counters, stashed: 0 }
    }

    /// Counts the actions of one turn of the machine of `id`, in which `waiting_count` commands wait now. Asks how
    /// long the turn took only if a snapshot was encoded in it, which happens only in the turn of a
    /// store's answer.
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
