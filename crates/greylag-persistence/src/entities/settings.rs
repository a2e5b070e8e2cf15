//! All settings of an event-sourced entity, with their defaults.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::time::Duration;

use super::entity::replay_filter::ReplayFilterSettings;
use super::tracker::DeliveryTrackerSettings;
use crate::contract::records::event::SeqNr;
use crate::contract::records::snapshot::SnapshotCriteria;
use crate::contract::settings::{Backoff, SettingsError};

/// How one event-sourced behaviour recovers, stashes, fails and snapshots. Source: persistence §9.
#[derive(Debug, Clone, PartialEq)]
pub struct EventSourcedSettings {
    /// The part of the history to read at the start. Default: the newest snapshot and all events after it.
    pub recovery: Recovery,
    /// Longest wait for the claim, for the snapshot, and for each replay page; every answer restarts
    /// the wait, and waiting for a permit does not count. Default 30 s.
    pub recovery_event_timeout: Duration,
    /// Most records of one replay page. Default 1000.
    pub replay_page_events: NonZeroUsize,
    /// Most bytes of one replay page. Default 1 MiB.
    pub replay_page_bytes: NonZeroUsize,
    /// How to detect records of overlapping writers, and what follows.
    pub replay_filter: ReplayFilterSettings,
    /// Most commands in each of the two stashes: those that wait for the entity, and those that the
    /// behaviour put aside. Default 4096.
    pub stash_capacity: NonZeroUsize,
    /// What happens to a command that finds its stash full. Default: it is dropped.
    pub stash_overflow: StashOverflow,
    /// Stashed commands handled in one go before the entity yields to the executor. Default 64.
    pub unstash_budget: NonZeroUsize,
    /// Saves a snapshot whenever an append crosses a multiple of this number. Default off. A state that may lack
    /// events is never saved, not even if `snapshot_when` asks for it: after [`Recovery::skip_replay`], after an event
    /// was skipped ([`OnUnknownEvent::Skip`]), or when the beginning of the history was missing
    /// ([`EventSourcedSettings::allow_partial_history`]). Without a snapshot there is no retention either.
    pub snapshot_every: Option<NonZeroU64>,
    /// Number of those snapshots that retention keeps. Default 1.
    pub keep_n_snapshots: NonZeroU64,
    /// Whether retention also deletes the events before the oldest snapshot kept. Default no.
    pub delete_events: bool,
    /// Number of snapshots to try, newest first, before all count as damaged. Default 3.
    pub snapshot_load_attempts: NonZeroU32,
    /// What follows when all tried snapshots are damaged. Default: full replay, if nothing is deleted.
    pub snapshot_failure: SnapshotFailurePolicy,
    /// Replays the rest of a history whose beginning was deleted. Default no. An entity whose beginning
    /// was in fact missing saves no snapshots, and so deletes nothing by retention.
    pub allow_partial_history: bool,
    /// What follows on an event that this code does not know. Default: recovery fails.
    pub on_unknown_event: OnUnknownEvent,
    /// What follows a failed recovery or append. Default, in a shard or not: restart with back-off.
    pub on_failure: OnFailure,
    /// Most restarts by rejected appends in one minute; with one more the entity fails, and `on_failure` says what
    /// follows. Default 10.
    pub max_reject_restarts: u32,
    /// Set for entities under reliable delivery: such an entity refuses to start without its whole
    /// history, since marks would be missing. Default no.
    pub under_delivery: bool,
    /// How the deliveries of a [`DeliveryTracker`](crate::DeliveryTracker) are repeated, if the
    /// behaviour has one.
    pub delivery_tracker: DeliveryTrackerSettings,
}

impl Default for EventSourcedSettings {
    fn default() -> Self {
        Self {
            recovery: Recovery::default(),
            recovery_event_timeout: Duration::from_secs(30),
            replay_page_events: NonZeroUsize::new(1000).expect("not zero"),
            replay_page_bytes: NonZeroUsize::new(1 << 20).expect("not zero"),
            replay_filter: ReplayFilterSettings::default(),
            stash_capacity: NonZeroUsize::new(4096).expect("not zero"),
            stash_overflow: StashOverflow::Drop,
            unstash_budget: NonZeroUsize::new(64).expect("not zero"),
            snapshot_every: None,
            keep_n_snapshots: NonZeroU64::MIN,
            delete_events: false,
            snapshot_load_attempts: NonZeroU32::new(3).expect("not zero"),
            snapshot_failure: SnapshotFailurePolicy::ReplayIfComplete,
            allow_partial_history: false,
            on_unknown_event: OnUnknownEvent::Fail,
            on_failure: OnFailure::RestartBackoff(Backoff::default()),
            max_reject_restarts: 10,
            under_delivery: false,
            delivery_tracker: DeliveryTrackerSettings::default(),
        }
    }
}

impl EventSourcedSettings {
    /// Settings with short waits, so that tests of failures end soon.
    pub fn test() -> Self {
        let backoff = Backoff { min: Duration::from_millis(10), max: Duration::from_millis(100), jitter: 0.0 };
        Self {
            recovery_event_timeout: Duration::from_secs(3),
            on_failure: OnFailure::RestartBackoff(backoff),
            ..Self::default()
        }
    }

    /// Checks the values that the types do not rule out.
    ///
    /// # Errors
    /// [`SettingsError`], naming the keys.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.recovery_event_timeout.is_zero() {
            return Err(SettingsError::ZeroDuration { key: "recovery_event_timeout" });
        }
        if let OnFailure::RestartBackoff(backoff) = self.on_failure {
            backoff.validate()?;
        }
        if self.under_delivery && (self.recovery.skip_replay || self.allow_partial_history) {
            return Err(SettingsError::MarksMissing);
        }
        self.delivery_tracker.validate()
    }

    /// Checks the settings that a behaviour with a tracker needs: deliveries of an event that is not applied
    /// would be lost, and their ids given again.
    pub(crate) fn check_tracked(&self) -> Result<(), SettingsError> {
        let skips = self.on_unknown_event == OnUnknownEvent::Skip;
        // A read-only entity delivers nothing.
        if !self.recovery.read_only && (self.recovery.skip_replay || self.allow_partial_history || skips) {
            return Err(SettingsError::DeliveriesMissing);
        }
        Ok(())
    }

    /// The highest number that retention may delete after a snapshot at `seq_nr`; zero: nothing.
    /// Source: persistence §2.8.
    pub(crate) fn retention_upper(&self, seq_nr: SeqNr) -> SeqNr {
        let kept =
            self.snapshot_every.map_or(u64::MAX, |every| every.get().saturating_mul(self.keep_n_snapshots.get()));
        SeqNr::saturating(seq_nr.as_u64().saturating_sub(kept))
    }
}

/// The part of the history that an entity reads at its start. Source: persistence §2.5 (variants).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    pub(crate) snapshots: Option<SnapshotCriteria>,
    pub(crate) skip_replay: bool,
    pub(crate) read_only: bool,
    pub(crate) to_seq_nr: SeqNr,
    pub(crate) max_events: u64,
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            snapshots: Some(SnapshotCriteria::LATEST),
            skip_replay: false,
            read_only: false,
            to_seq_nr: SeqNr::MAX,
            max_events: u64::MAX,
        }
    }
}

impl Recovery {
    /// Reads neither snapshot nor events: the state is empty, but numbers continue after the highest. Such an
    /// entity saves no snapshots, and so deletes nothing by retention.
    #[must_use]
    pub fn skip_replay(self) -> Self {
        Self { skip_replay: true, ..self }
    }

    /// Starts from the newest snapshot that matches.
    #[must_use]
    pub fn snapshots(self, criteria: SnapshotCriteria) -> Self {
        Self { snapshots: Some(criteria), ..self }
    }

    /// Starts from no snapshot: replays all events.
    #[must_use]
    pub fn no_snapshots(self) -> Self {
        Self { snapshots: None, ..self }
    }

    /// Makes no claim: persists are refused, and nothing is deleted or saved.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Recovers the state of event `to`; read-only.
    #[must_use]
    pub fn to_seq_nr(self, to: SeqNr) -> Self {
        Self { to_seq_nr: to, ..self.read_only() }
    }

    /// Replays at most `count` stored records; read-only.
    #[must_use]
    pub fn max_events(self, count: u64) -> Self {
        Self { max_events: count, ..self.read_only() }
    }
}

/// What happens to a command that finds its stash full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StashOverflow {
    /// The command is dropped to dead letters; an ask is answered that the stash is full.
    Drop,
    /// The entity fails.
    Fail,
}

/// What follows when all tried snapshots are damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotFailurePolicy {
    /// Replay everything, if nothing was deleted; else fail.
    ReplayIfComplete,
    /// Fail.
    Fail,
}

/// What follows when a stored event is of a type or version that this code does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnknownEvent {
    /// Recovery fails, naming the record.
    Fail,
    /// A record of an unknown manifest or of a newer schema is skipped; each skip is counted and
    /// logged. A damaged record fails the recovery even so. An entity that skipped a record saves no
    /// snapshots, and so deletes nothing by retention, until code that knows the record has replayed it.
    Skip,
}

/// What follows a failed recovery or a failed append.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OnFailure {
    /// The entity fails with that failure; its host decides what follows.
    Stop,
    /// The entity recovers again after a growing wait.
    RestartBackoff(Backoff),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario persistence 37.
    #[test]
    fn retention_keeps_what_it_says() {
        let settings = EventSourcedSettings {
            snapshot_every: NonZeroU64::new(3),
            keep_n_snapshots: NonZeroU64::new(2).unwrap(),
            ..EventSourcedSettings::default()
        };
        for (seq_nr, upper) in [(1, 0), (6, 0), (7, 1), (9, 3), (13, 7), (20, 14)] {
            assert_eq!(settings.retention_upper(SeqNr::from(seq_nr)), SeqNr::from(upper), "{seq_nr}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        assert_eq!(EventSourcedSettings::default().validate(), Ok(()));
        assert_eq!(EventSourcedSettings::test().validate(), Ok(()));
        let refused = |change: fn(&mut EventSourcedSettings)| {
            let mut settings = EventSourcedSettings { under_delivery: true, ..EventSourcedSettings::default() };
            change(&mut settings);
            settings.validate().expect_err("these settings cannot work").to_string()
        };
        assert!(refused(|s| s.recovery_event_timeout = Duration::ZERO).contains("recovery_event_timeout"));
        assert!(refused(|s| s.recovery = Recovery::default().skip_replay()).contains("skip_replay"));
        assert!(refused(|s| s.allow_partial_history = true).contains("allow_partial_history"));
        let backoff = |min, max, jitter| OnFailure::RestartBackoff(Backoff { min, max, jitter });
        let [zero, second] = [Duration::ZERO, Duration::from_secs(1)];
        for (on_failure, key) in [
            (backoff(zero, second, 0.1), "backoff_min"),
            (backoff(second * 2, second, 0.1), "backoff_max"),
            (backoff(second, second, 1.5), "backoff_jitter"),
        ] {
            let settings = EventSourcedSettings { on_failure, ..EventSourcedSettings::default() };
            assert!(settings.validate().unwrap_err().to_string().contains(key), "{key}");
        }
        assert!(
            refused(|s| s.delivery_tracker.redeliver_interval = Duration::ZERO)
                .contains("delivery_tracker.redeliver_interval")
        );
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let backoff = Backoff { min: Duration::from_secs(1), max: Duration::from_secs(30), jitter: 0.2 };
        let waits: Vec<u64> = (1..8).map(|failures| backoff.wait(failures, 0.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(backoff.wait(100, 1.0), Duration::from_secs(36));
    }
}
