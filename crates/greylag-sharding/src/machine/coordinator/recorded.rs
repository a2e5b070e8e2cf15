//! What a journal keeps beside homes: the regions that have registered, and when the epoch is said again.
//!
//! Regions that predecessors recorded are waited for before anything is decided, but not for long: unlike replicated data,
//! a journal loses nothing, so whatever runs anywhere is recorded. With replicated data nothing here is used.
//! Source: sharding §2.13, §2.14.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::protocol::StoredState;
use crate::fingerprint::StateStoreMode;
use crate::ids::RegionId;

/// Between two records of the epoch of an active coordinator, by which tools see that it runs. Source: sharding §2.14, §6.3.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);

/// See the module's description.
#[derive(Debug)]
pub(super) struct Recorded {
    is_kept: bool,
    regions: BTreeSet<RegionId>,
    /// What was read, until the epoch is durable: the fence of a journal makes a second read needless.
    read: Option<StoredState>,
    /// While recovered regions are waited for: the end of that.
    wait_until: Option<Instant>,
    refresh_at: Option<Instant>,
}

impl Recorded {
    pub(super) fn new(mode: StateStoreMode) -> Self {
        let is_kept = mode == StateStoreMode::Persistence;
        Self { is_kept, regions: BTreeSet::new(), read: None, wait_until: None, refresh_at: None }
    }

    /// Whether the state is in a journal.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Keeps what was read until the epoch is durable.
    pub(super) fn keep(&mut self, state: StoredState) {
        self.read = Some(state).filter(|_| self.is_kept);
    }

    /// The epoch is durable: what was read before, unless it has to be read again.
    pub(super) fn take(&mut self) -> Option<StoredState> {
        self.read.take()
    }

    /// Predecessors recorded these regions, which are waited for.
    pub(super) fn load(&mut self, regions: BTreeSet<RegionId>, wait_until: Instant) {
        if self.is_kept {
            (self.regions, self.wait_until) = (regions, Some(wait_until));
        }
    }

    pub(super) fn regions(&self) -> impl Iterator<Item = &RegionId> {
        self.regions.iter()
    }

    /// A hosting region has registered. Answers whether that is to be recorded.
    pub(super) fn add(&mut self, region: &RegionId) -> bool {
        self.is_kept && self.regions.insert(region.clone())
    }

    /// The region is gone. Answers whether that is to be recorded.
    pub(super) fn remove(&mut self, region: &RegionId) -> bool {
        self.regions.remove(region)
    }

    /// Whether recovered regions have been waited for long enough.
    pub(super) fn is_overdue(&self) -> bool {
        self.wait_until.is_none()
    }

    /// When something is due by itself.
    pub(super) fn next(&self) -> Option<Instant> {
        [self.wait_until, self.refresh_at].into_iter().flatten().min()
    }

    /// The coordinator is active now, or its epoch was recorded once more.
    pub(super) fn refreshed(&mut self, now: Instant) {
        if self.is_kept {
            (self.wait_until, self.refresh_at) = (None, Some(now + REFRESH_INTERVAL));
        }
    }

    /// Time has passed. Answers whether the epoch is to be recorded once more; it is due again when that is durable.
    pub(super) fn tick(&mut self, now: Instant) -> bool {
        self.wait_until.take_if(|at| *at <= now);
        self.refresh_at.take_if(|at| *at <= now).is_some()
    }
}
