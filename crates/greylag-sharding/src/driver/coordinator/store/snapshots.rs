//! Snapshots of a history, saved beside its writer's work, and the deletion of data that they replace.
//!
//! A snapshot is due each time the history has grown by `snapshot_every` events. It is saved while commits go on, one
//! at a time; once it is durable, older events and snapshots are deleted. A failure is only a warning, as the next
//! snapshot makes up for it.
//!
//! Source: sharding §2.14; persistence §2.8.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use greylag_core::CodecId;
use greylag_persistence::{
    Journal, Metadata, NewSnapshot, PersistenceId, SeqNr, Snapshot, SnapshotCriteria, SnapshotError, SnapshotStore,
    Stores, WriterEpoch,
};

use super::format::Format;
use crate::ids::EntityTypeName;
use crate::settings::StateJournalSettings;

/// See the module's description.
pub(crate) struct Snapshots {
    name: EntityTypeName,
    format: Format,
    id: PersistenceId,
    journal: Arc<dyn Journal>,
    store: Arc<dyn SnapshotStore>,
    settings: StateJournalSettings,
    is_saving: AtomicBool,
}

/// The events and snapshots to delete once a snapshot is durable.
#[derive(Debug, PartialEq, Eq)]
struct Retention {
    /// The last event to delete.
    events_to: SeqNr,
    /// The last snapshot to delete, if any.
    snapshots_to: Option<SeqNr>,
}

impl Retention {
    /// For a snapshot at `seq_nr`. In a store that keeps one snapshot, all events but the last one are deleted, and no
    /// snapshot; the last event stays, since a history without events counts as removed.
    fn behind(seq_nr: SeqNr, settings: &StateJournalSettings, latest_only: bool) -> Option<Self> {
        if latest_only {
            return Some(Self { events_to: seq_nr.previous(), snapshots_to: None });
        }
        let kept = settings.snapshot_every.get().saturating_mul(settings.keep_n_snapshots.get().into());
        let events_to = SeqNr::saturating(seq_nr.as_u64().saturating_sub(kept));
        // Keep the snapshot at `events_to` itself: the kept events continue from it.
        (!events_to.is_zero()).then(|| Self { events_to, snapshots_to: Some(events_to.previous()) })
    }
}

impl Snapshots {
    pub(crate) fn new(
        name: &EntityTypeName,
        id: &PersistenceId,
        format: &Format,
        stores: &Stores,
        settings: &StateJournalSettings,
    ) -> Self {
        Self {
            name: name.clone(),
            format: *format,
            id: id.clone(),
            journal: stores.journal.clone(),
            store: stores.snapshots.clone(),
            settings: settings.clone(),
            is_saving: AtomicBool::new(false),
        }
    }

    /// Events between two snapshots.
    pub(crate) fn every(&self) -> u64 {
        self.settings.snapshot_every.get()
    }

    /// Whether an append that made `last` the last event, in place of `before`, makes a snapshot due.
    pub(crate) fn is_due(&self, before: SeqNr, last: SeqNr) -> bool {
        last.as_u64() / self.every() > before.as_u64() / self.every()
    }

    #[cfg(test)]
    pub(crate) fn is_saving(&self) -> bool {
        self.is_saving.load(Ordering::Acquire)
    }

    /// The newest snapshot that matches.
    pub(crate) async fn load(&self, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        self.store.load(&self.id, criteria).await
    }

    /// Saves the state of the history at `at`, in the background, unless a save is under way. `retain`: then delete the
    /// events and snapshots that it replaces.
    pub(crate) fn begin(self: &Arc<Self>, epoch: WriterEpoch, at: SeqNr, payload: Vec<u8>, retain: bool) {
        if self.is_saving.swap(true, Ordering::AcqRel) {
            return;
        }
        let saving = Saving(self.clone());
        tokio::spawn(async move {
            let snapshots = &saving.0;
            match snapshots.save(at, payload).await {
                Ok(()) if retain => snapshots.delete_needless(epoch, at).await,
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(entity_type = %snapshots.name, %at, %error, "{}: no snapshot was saved", snapshots.format.what);
                }
            }
        });
    }

    /// Saves the state of the history at an event.
    pub(crate) async fn save(&self, seq_nr: SeqNr, payload: Vec<u8>) -> Result<(), SnapshotError> {
        let snapshot = NewSnapshot {
            id: self.id.clone(),
            seq_nr,
            codec_id: CodecId::PROST,
            manifest: self.format.snapshot.to_owned(),
            schema_version: self.format.version,
            payload: payload.into(),
            metadata: Metadata::new(),
        };
        self.store.save(snapshot).await.map(drop)
    }

    async fn delete_needless(&self, epoch: WriterEpoch, at: SeqNr) {
        let Some(needless) = Retention::behind(at, &self.settings, self.store.caps().latest_only) else { return };
        if let Err(error) = self.journal.delete_to(&self.id, epoch, needless.events_to).await {
            tracing::warn!(entity_type = %self.name, %error, "{}: old events are not deleted", self.format.what);
            return;
        }
        let Some(to) = needless.snapshots_to else { return };
        if let Err(error) = self.store.delete_matching(&self.id, SnapshotCriteria::up_to(to)).await {
            tracing::warn!(entity_type = %self.name, %error, "{}: old snapshots are not deleted", self.format.what);
        }
    }
}

/// A save under way; on drop the next save may begin, whatever the outcome.
struct Saving(Arc<Snapshots>);

impl Drop for Saving {
    fn drop(&mut self) {
        self.0.is_saving.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use super::*;

    fn settings() -> StateJournalSettings {
        StateJournalSettings {
            snapshot_every: NonZeroU64::new(10).unwrap(),
            keep_n_snapshots: NonZeroU32::new(2).unwrap(),
            ..StateJournalSettings::default()
        }
    }

    #[test]
    fn events_needed_by_kept_snapshots_are_retained() {
        let behind = |at: u32| Retention::behind(SeqNr::from(at), &settings(), false);
        let goes = |events: u32, snapshots: u32| {
            Some(Retention { events_to: events.into(), snapshots_to: Some(snapshots.into()) })
        };
        assert_eq!(behind(10), None);
        assert_eq!(behind(20), None);
        assert_eq!(behind(21), goes(1, 0));
        assert_eq!(behind(43), goes(23, 22));
    }

    #[test]
    fn a_store_of_one_snapshot_needs_no_event_that_it_reflects_but_the_last() {
        let goes = Some(Retention { events_to: 42.into(), snapshots_to: None });
        assert_eq!(Retention::behind(43.into(), &settings(), true), goes);
    }

    #[test]
    fn one_is_due_whenever_a_multiple_is_passed() {
        let id = PersistenceId::unique("x").unwrap();
        let name = EntityTypeName::new("x").unwrap();
        let format = Format { what: "a history", event: "e", snapshot: "s", version: 1, advice: "none" };
        let snapshots = Snapshots::new(&name, &id, &format, &Stores::in_memory(), &settings());
        let due = |before: u32, last: u32| snapshots.is_due(before.into(), last.into());
        assert!(!due(0, 9) && due(9, 10) && !due(10, 19) && due(8, 31) && due(19, 20));
    }
}
