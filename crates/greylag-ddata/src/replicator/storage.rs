//! Durable entries: loaded before anything is served, and stored before anything is acknowledged. The gate decides
//! whether loaded entries are exchanged with others ([`crate::gate`]).
//!
//! ```text
//! Loading   --Load-->  Loaded*  LoadDone(meta)        then Syncing, and the gate is closed
//! ```
//!
//! This machine decides when the store is loaded, what follows when that fails, and when the replicator's own record is
//! written. Source: ddata §6, Z9.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::api::error::StopReason;
use crate::api::key::KeyId;
use crate::api::settings::ReplicatorSettings;
use crate::api::settings::durable::{DurableSettings, StaleStore};
use crate::storage::store::StoreError;

/// How often the replicator's own record is written if pruning is off.
const META_INTERVAL: Duration = Duration::from_secs(120);

/// What follows when the store could not be read to its end.
#[derive(Debug)]
pub(super) enum LoadFailure {
    /// The replicator stops.
    Stop(StopReason),
    /// The stored data are renamed, and loading begins anew.
    LoadAnew(StoreError),
    /// Loading is tried again later.
    Retry(StoreError),
}

/// The state of the store, beside the entries.
#[derive(Debug)]
pub(super) struct Storage {
    /// When to try to load next; `None` while loading, and afterwards.
    load_at: Option<Instant>,
    retries: u32,
    /// The loaded entries, as long as they may have to be dropped again.
    loaded: BTreeSet<KeyId>,
    /// When to write the replicator's own record next.
    meta_at: Option<Instant>,
    meta_interval: Duration,
    /// Whether a round was completed since the store was loaded.
    has_completed_a_round: bool,
}

impl Storage {
    pub(super) fn new(settings: &ReplicatorSettings, now: Instant) -> Self {
        Self {
            load_at: settings.durable.is_used().then_some(now),
            retries: 0,
            loaded: BTreeSet::new(),
            meta_at: None,
            meta_interval: settings.pruning_interval.unwrap_or(META_INTERVAL),
            has_completed_a_round: false,
        }
    }

    /// When to try to load.
    pub(super) fn load_deadline(&self) -> Option<Instant> {
        self.load_at
    }

    /// When the replicator's own record is due.
    pub(super) fn meta_deadline(&self) -> Option<Instant> {
        self.meta_at
    }

    /// Begins to load, if that is due.
    pub(super) fn begin_load(&mut self, now: Instant) -> bool {
        self.load_at.take_if(|at| *at <= now).is_some()
    }

    /// Decides what follows when the store could not be read to its end.
    pub(super) fn on_load_failed(
        &mut self,
        now: Instant,
        settings: &DurableSettings,
        error: StoreError,
    ) -> LoadFailure {
        let is_cut = matches!(error, StoreError::TailLost { .. });
        if let StoreError::TailLost { place, expected, found } = &error
            && settings.stale_store != StaleStore::Discard
        {
            // Do not retry: nothing brings the lost commits back.
            let (place, expected, found) = (place.clone(), *expected, *found);
            return LoadFailure::Stop(StopReason::StoreTailLost { place, expected, found });
        }
        if self.retries >= settings.load_retries {
            return LoadFailure::Stop(StopReason::StoreLoadFailed(error));
        }
        self.retries += 1;
        if is_cut {
            return LoadFailure::LoadAnew(error);
        }
        self.load_at = Some(now + settings.load_backoff(self.retries));
        LoadFailure::Retry(error)
    }

    /// Notes that the store is loaded. `loaded` are the entries that may have to be dropped again.
    pub(super) fn on_loaded(&mut self, now: Instant, loaded: BTreeSet<KeyId>) {
        self.loaded = loaded;
        self.meta_at = Some(now + self.meta_interval);
    }

    /// Keeps the loaded entries for good: nothing drops them any more.
    pub(super) fn keep_loaded(&mut self) {
        self.loaded.clear();
    }

    /// Takes the loaded entries that are dropped again.
    pub(super) fn take_loaded(&mut self) -> BTreeSet<KeyId> {
        std::mem::take(&mut self.loaded)
    }

    /// Whether the replicator's own record is due; plans the next one.
    pub(super) fn is_meta_due(&mut self, now: Instant) -> bool {
        let is_due = self.meta_at.is_some_and(|at| at <= now);
        if is_due {
            self.meta_at = Some(now + self.meta_interval);
        }
        is_due
    }

    /// Notes that a round was completed. Returns whether it was the first one since the store was loaded.
    pub(super) fn on_complete_round(&mut self) -> bool {
        !std::mem::replace(&mut self.has_completed_a_round, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> StoreError {
        StoreError::Failed { place: "here".into(), why: "no disk".into() }
    }

    fn cut() -> StoreError {
        StoreError::TailLost { place: "here".into(), expected: 7, found: 5 }
    }

    /// ddata U5: loading is tried again after growing pauses, and a store that keeps failing stops the replicator.
    #[test]
    fn a_store_that_cannot_be_read_is_tried_again_some_times() {
        let (now, durable) = (Instant::now(), DurableSettings::of(["*"]));
        let settings = ReplicatorSettings { durable: durable.clone(), ..ReplicatorSettings::default() };
        let mut storage = Storage::new(&settings, now);
        assert!(storage.begin_load(now) && !storage.begin_load(now), "one attempt at a time");
        for retry in 1..=durable.load_retries {
            assert!(matches!(storage.on_load_failed(now, &durable, failed()), LoadFailure::Retry(_)), "{retry}");
            assert_eq!(storage.load_deadline(), Some(now + durable.load_backoff(retry)));
        }
        let last = storage.on_load_failed(now, &durable, failed());
        assert!(matches!(last, LoadFailure::Stop(StopReason::StoreLoadFailed(_))), "{last:?}");
    }

    /// ddata U2, Z11: a store that has lost acknowledged commits stops the replicator, or is renamed where stale data
    /// are discarded.
    #[test]
    fn a_store_that_lost_commits_is_renamed_only_if_stale_data_are_discarded() {
        let now = Instant::now();
        let refuses = DurableSettings::of(["*"]);
        let discards = DurableSettings { stale_store: StaleStore::Discard, ..refuses.clone() };
        let mut storage = Storage::new(&ReplicatorSettings::default(), now);
        assert_eq!(storage.load_deadline(), None, "no entry is durable");
        let stopped = storage.on_load_failed(now, &refuses, cut());
        assert!(matches!(stopped, LoadFailure::Stop(StopReason::StoreTailLost { .. })), "{stopped:?}");
        assert!(matches!(storage.on_load_failed(now, &discards, cut()), LoadFailure::LoadAnew(_)));
        assert_eq!(storage.load_deadline(), None, "the renamed store is loaded at once");
    }

    /// ddata Z9: the own record is due once an interval after the store was loaded.
    #[test]
    fn the_own_record_is_due_once_an_interval() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let settings = ReplicatorSettings { pruning_interval: Some(second), ..ReplicatorSettings::default() };
        let mut storage = Storage::new(&settings, now);
        assert!(!storage.is_meta_due(now + second), "nothing is loaded");
        storage.on_loaded(now, ["k".into()].into());
        assert_eq!([now, now + second, now + second].map(|at| storage.is_meta_due(at)), [false, true, false]);
        assert_eq!(storage.meta_deadline(), Some(now + second * 2));
        assert_eq!([storage.on_complete_round(), storage.on_complete_round()], [true, false]);
        assert_eq!((storage.take_loaded().len(), storage.take_loaded().len()), (1, 0));
    }
}
