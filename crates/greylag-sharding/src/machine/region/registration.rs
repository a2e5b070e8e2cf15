//! Finding the coordinator, and registering with it.
//!
//! ```text
//! Unregistered --Register--> candidates ... --RegisterAck(epoch)--> Registered
//! Registered --coordinator's node lost, oldest candidate changed--> tries again; homes are kept
//! ```
//! Source: sharding §2.1, §2.3, §2.12.

use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use super::config::{RegionConfig, RegionState};
use crate::fingerprint::Mismatch;
use crate::machine::membership::Members;
use crate::machine::message::{Claim, CoordinatorId, Epoch, Register};

/// How often a refused region tries again: a rollback can heal it.
const REFUSED_RETRY: Duration = Duration::from_secs(30);
/// Shortest time between two adoptions of an epoch from a journal.
const BETWEEN_ADOPTIONS: Duration = Duration::from_secs(60);
/// Retries with messages waiting before a report.
const RETRIES_BEFORE_WARNING: u32 = 5;

/// The region's relation to coordinators.
#[derive(Debug)]
pub(super) struct Registration {
    coordinator: Option<CoordinatorId>,
    /// The coordinator last reported to subscribers.
    reported: Option<CoordinatorId>,
    highest_epoch: Epoch,
    /// When an epoch was last adopted from a journal.
    adopted_at: Option<Instant>,
    /// The coordinator that brought the highest epoch: another coordinator with the same epoch is not believed.
    highest_by: Option<CoordinatorId>,
    serial: u64,
    /// Whether the set of hosted shards has changed since the last `Register` was sent.
    changed: bool,
    /// When to try again; `None` while registered.
    try_at: Option<Instant>,
    delay: Duration,
    tries: u32,
    /// The oldest candidate at the last look, and whether it was `Up`.
    oldest: Option<(UniqueAddress, bool)>,
    /// Why sends are refused, while they are.
    refused_for: Option<Mismatch>,
    /// The conflict with a side that stays instead of this one, as long as the members have not agreed since.
    conflict: Option<Mismatch>,
}

impl Registration {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            coordinator: None,
            reported: None,
            highest_epoch: 0,
            adopted_at: None,
            highest_by: None,
            serial: 0,
            changed: false,
            try_at: Some(now),
            delay: Duration::ZERO,
            tries: 0,
            oldest: None,
            refused_for: None,
            conflict: None,
        }
    }

    /// The coordinator that has taken this region, if its node is not lost.
    pub(super) fn coordinator(&self) -> Option<&CoordinatorId> {
        self.coordinator.as_ref()
    }

    pub(super) fn highest_epoch(&self) -> Epoch {
        self.highest_epoch
    }

    /// The mismatch of the last refusal.
    pub(super) fn refused_for(&self) -> Option<&Mismatch> {
        self.refused_for.as_ref()
    }

    /// Learns of an epoch above the highest from the journal instead of a coordinator: the journal has passed the
    /// coordinators' numbers. Returns whether the epoch is adopted: once a minute at most, so that a journal that names
    /// ever higher epochs does not make coordinators restart without an end. Source: sharding §4.6.
    pub(super) fn adopt_epoch(&mut self, now: Instant, epoch: Epoch) -> bool {
        if self.adopted_at.is_some_and(|at| now.saturating_duration_since(at) < BETWEEN_ADOPTIONS) {
            return false;
        }
        self.adopted_at = Some(now);
        self.highest_epoch = epoch.max(self.highest_epoch);
        self.highest_by = None;
        true
    }

    /// Learns which candidate is the oldest, and whether it is `Up`. Returns whether the candidate has changed, or the
    /// coordinator's node is no member any more.
    pub(super) fn observe(&mut self, oldest: Option<(UniqueAddress, bool)>, members: &Members) -> bool {
        let is_lost = self.coordinator.take_if(|coordinator| !members.contains(&coordinator.node)).is_some();
        let has_changed = oldest != self.oldest;
        self.oldest = oldest;
        is_lost || has_changed
    }

    /// The coordinator has acked that this region ended: nothing is repeated any more.
    pub(super) fn end(&mut self) {
        self.try_at = None;
    }

    /// A shard was accepted or has stopped: a `Register` under way is out of date.
    pub(super) fn hosted_changed(&mut self) {
        self.changed = true;
    }

    /// Source: sharding §2.3.
    pub(super) fn check_invariants(&self, state: RegionState) {
        let is_obeyed = match (&self.coordinator, &self.highest_by) {
            (Some(coordinator), Some(highest_by)) => coordinator == highest_by,
            _ => true,
        };
        debug_assert!(is_obeyed, "the coordinator obeyed is the one that brought the highest epoch");
        let seeks = matches!(state, RegionState::Unregistered | RegionState::Refused);
        debug_assert!(!seeks || self.try_at.is_some(), "{state:?}: the region tries again");
    }

    /// When to try again.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.try_at
    }

    /// Whether it is time to try again.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.try_at.is_some_and(|at| at <= now)
    }

    /// Resets the backoff.
    pub(super) fn reset(&mut self) {
        self.delay = Duration::ZERO;
        self.tries = 0;
    }

    /// Schedules the next attempt, as a region in this state repeats it.
    pub(super) fn schedule(&mut self, now: Instant, state: RegionState, retry: Duration) {
        self.try_at = match state {
            RegionState::Unregistered => {
                let first = (retry / 8).max(Duration::from_millis(100));
                let doubled = self.delay * 2;
                self.delay = doubled.clamp(first.min(retry), retry);
                Some(now + self.delay)
            }
            RegionState::Registered => None,
            RegionState::Refused => Some(now + REFUSED_RETRY),
            RegionState::ShuttingDown | RegionState::Stopping | RegionState::Stopped => Some(now + retry),
        };
    }

    /// Counts an attempt. Returns whether it is the one after which waiting messages are reported.
    pub(super) fn count_try(&mut self) -> bool {
        self.tries += 1;
        self.tries == RETRIES_BEFORE_WARNING
    }

    /// The next `Register`, which contains all changes so far.
    pub(super) fn next_register(&mut self, config: &RegionConfig, hosted: Vec<Claim>) -> Register {
        self.serial += 1;
        self.changed = false;
        Register {
            region: config.id.clone(),
            proxy: config.proxy,
            serial: self.serial,
            fingerprint: config.fingerprint.clone(),
            highest_epoch: self.highest_epoch,
            hosted,
        }
    }

    /// Whether the last `Register` is out of date.
    pub(super) fn is_out_of_date(&self) -> bool {
        self.changed
    }

    /// Takes `coordinator` as the coordinator to obey, unless another one holds the same epoch.
    pub(super) fn accept(&mut self, coordinator: &CoordinatorId, epoch: Epoch) -> bool {
        let raised = epoch > self.highest_epoch;
        if !raised && self.highest_by.as_ref() != Some(coordinator) {
            return false;
        }
        // A raised epoch makes everything sent under the old epoch out of date.
        self.changed |= raised;
        self.highest_epoch = epoch;
        self.highest_by = Some(coordinator.clone());
        self.coordinator = Some(coordinator.clone());
        true
    }

    /// The coordinator has taken the region: nothing is tried any more.
    pub(super) fn on_taken(&mut self) {
        self.try_at = None;
        self.delay = Duration::ZERO;
    }

    /// Whether the coordinator is another one than subscribers heard of last.
    pub(super) fn is_unreported(&self) -> bool {
        self.reported != self.coordinator
    }

    /// Notes that subscribers hear of the coordinator now.
    pub(super) fn report(&mut self) {
        self.reported.clone_from(&self.coordinator);
    }

    /// Sends are refused from now on; registration is tried again later, since a rollback can heal the mismatch.
    pub(super) fn on_refused(&mut self, now: Instant, mismatch: Mismatch) {
        self.try_at = Some(now + REFUSED_RETRY);
        self.refused_for = Some(mismatch);
    }

    /// Notes a conflict with a side that stays. Returns whether it was not known.
    pub(super) fn on_conflict(&mut self, mismatch: &Mismatch) -> bool {
        let is_new = self.conflict.as_ref() != Some(mismatch);
        self.conflict = Some(mismatch.clone());
        is_new
    }

    /// Notes that the members agree. Returns whether that ends a conflict.
    pub(super) fn on_agreed(&mut self) -> bool {
        self.conflict.take().is_some()
    }
}
