//! Journal data besides homes: the regions that have registered, and when the epoch is recorded again.
//!
//! JournalState regions of predecessors are waited for before anything is decided, but not for long: unlike replicated
//! data, a journal loses nothing, so every running region is recorded. With replicated data none of this module is
//! used. Source: sharding §2.13, §2.14.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::fingerprint::StateStoreMode;
use crate::ids::RegionId;
use crate::machine::coordinator::protocol::StoredState;

/// Between two records of an active coordinator's epoch, which show tools that it runs. Source: sharding §2.14, §6.3.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// See the module's description.
#[derive(Debug)]
pub(in crate::machine::coordinator) struct JournalState {
    is_kept: bool,
    regions: BTreeSet<RegionId>,
    /// The state read, until the epoch is durable: the fence of a journal makes a second read needless.
    read: Option<StoredState>,
    /// Until when recorded regions are waited for; `None` if they are not.
    wait_until: Option<Instant>,
    refresh_at: Option<Instant>,
}

impl JournalState {
    pub(in crate::machine::coordinator) fn new(mode: StateStoreMode) -> Self {
        let is_kept = mode == StateStoreMode::Persistence;
        Self { is_kept, regions: BTreeSet::new(), read: None, wait_until: None, refresh_at: None }
    }

    /// Whether the state is in a journal.
    pub(in crate::machine::coordinator) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Keeps the state read until the epoch is durable.
    pub(in crate::machine::coordinator) fn keep(&mut self, state: StoredState) {
        self.read = Some(state).filter(|_| self.is_kept);
    }

    /// Returns the kept state once the epoch is durable. `None` if the state must be read again.
    pub(in crate::machine::coordinator) fn take(&mut self) -> Option<StoredState> {
        self.read.take()
    }

    /// Takes the regions recorded by predecessors, which are waited for.
    pub(in crate::machine::coordinator) fn load(&mut self, regions: BTreeSet<RegionId>, wait_until: Instant) {
        if self.is_kept {
            (self.regions, self.wait_until) = (regions, Some(wait_until));
        }
    }

    pub(in crate::machine::coordinator) fn regions(&self) -> impl Iterator<Item = &RegionId> {
        self.regions.iter()
    }

    /// Adds a hosting region that has registered. Returns whether to record it.
    pub(in crate::machine::coordinator) fn add(&mut self, region: &RegionId) -> bool {
        self.is_kept && self.regions.insert(region.clone())
    }

    /// Removes a region that is gone. Returns whether to record that.
    pub(in crate::machine::coordinator) fn remove(&mut self, region: &RegionId) -> bool {
        self.regions.remove(region)
    }

    /// Whether recovered regions have been waited for long enough.
    pub(in crate::machine::coordinator) fn is_overdue(&self) -> bool {
        self.wait_until.is_none()
    }

    /// Source: sharding §2.13.
    pub(in crate::machine::coordinator) fn check_invariants(&self) {
        let is_empty = self.regions.is_empty() && self.read.is_none() && self.next().is_none();
        debug_assert!(self.is_kept || is_empty, "replicated data needs no state of a journal");
    }

    /// Whether the state read is kept until the epoch is durable.
    pub(in crate::machine::coordinator) fn has_read(&self) -> bool {
        self.read.is_some()
    }

    /// When a tick next has work to do.
    pub(in crate::machine::coordinator) fn next(&self) -> Option<Instant> {
        [self.wait_until, self.refresh_at].into_iter().flatten().min()
    }

    /// Schedules the next record of the epoch: the coordinator is active now, or has recorded its epoch again.
    pub(in crate::machine::coordinator) fn refreshed(&mut self, now: Instant) {
        if self.is_kept {
            (self.wait_until, self.refresh_at) = (None, Some(now + REFRESH_INTERVAL));
        }
    }

    /// Handles the passing of time. Returns whether to record the epoch again; the next record is scheduled when that
    /// is durable.
    pub(in crate::machine::coordinator) fn tick(&mut self, now: Instant) -> bool {
        self.wait_until.take_if(|at| *at <= now);
        self.refresh_at.take_if(|at| *at <= now).is_some()
    }
}
