//! Snapshots in the background, and the deletions of retention after them.
//!
//! The state is encoded in the entity's turn and saved in the background; neither commands nor
//! replies wait for it. Events are never deleted before a snapshot that covers them is durable, and a
//! state that lacks some of them is never saved.
//! Source: persistence §2.8.

use super::history::History;
use super::refills::Refills;
use crate::contract::error::{DeleteError, SnapshotError};
use crate::contract::records::codec::StoredCodec;
use crate::contract::records::event::{Metadata, SeqNr, Timestamp, WriterEpoch};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::{NewSnapshot, SnapshotCaps, SnapshotCriteria};
use crate::entities::behavior::chain::guard;
use crate::entities::behavior::event_sourced::EventSourced;
use crate::entities::behavior::failure::DeleteFailure;
use crate::entities::behavior::signal::Signal;
use crate::entities::lifecycle::input::{DeletedBy, StoreCall};
use crate::entities::marks::MARK_NAME;
use crate::entities::settings::EventSourcedSettings;

/// A snapshot that is being saved.
#[derive(Debug, Clone, Copy)]
struct Saving {
    seq_nr: SeqNr,
    /// Whether the snapshot was due by `snapshot_every`; only such a snapshot starts retention.
    by_count: bool,
}

/// Progress of retention; one retention at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retention {
    Idle,
    DeletingEvents { upper: SeqNr },
    DeletingSnapshots,
}

/// What follows a store's answer: a call, if any, and then the signal.
pub(super) type Follows = (Option<StoreCall>, Signal);

/// The snapshots of one entity, and what they still need of its events.
pub(super) struct Snapshots {
    caps: SnapshotCaps,
    saving: Option<Saving>,
    retention: Retention,
    refills: Refills,
}

impl Snapshots {
    pub(super) fn new(caps: SnapshotCaps) -> Self {
        Self { caps, saving: None, retention: Retention::Idle, refills: Refills::default() }
    }

    /// Begins an incarnation, which knows of no snapshot yet.
    pub(super) fn begin(&mut self) {
        self.refills = Refills::default();
    }

    /// Recovery used a snapshot that carries this.
    pub(super) fn on_recovered(&mut self, refills: Refills) {
        self.refills = refills;
    }

    /// Ends with the incarnation: answers to its calls are ignored.
    pub(super) fn end(&mut self) {
        self.saving = None;
        self.retention = Retention::Idle;
    }

    /// Saves the state, unless a snapshot is being saved: the next one covers the same events. A state that lacks
    /// events must never become the newest snapshot: later recoveries would start from it, and retention would delete
    /// the events that the state lacks.
    ///
    /// # Errors
    /// The state cannot be saved.
    pub(super) fn save<B: EventSourced>(
        &mut self,
        by_count: bool,
        id: &PersistenceId,
        settings: &EventSourcedSettings,
        (behavior, codec): (&B, Option<&StoredCodec<B::State>>),
        history: &History<B::State>,
    ) -> Result<Option<StoreCall>, String> {
        let is_whole = !settings.recovery.skip_replay && history.is_whole();
        if self.saving.is_some() || settings.recovery.read_only || !is_whole {
            return Ok(None);
        }
        let Some(codec) = codec else { return Ok(None) };
        let snapshot = self.encode(id, behavior, codec, history)?;
        self.saving = Some(Saving { seq_nr: snapshot.seq_nr, by_count });
        Ok(Some(StoreCall::SaveSnapshot(snapshot)))
    }

    fn encode<B: EventSourced>(
        &mut self,
        id: &PersistenceId,
        behavior: &B,
        codec: &StoredCodec<B::State>,
        history: &History<B::State>,
    ) -> Result<NewSnapshot, String> {
        let (state, seq_nr, marks) = (history.state(), history.seq_nr(), history.marks());
        let value = guard(|| codec.encode(state))?.map_err(|error| error.to_string())?;
        let (bytes, max) = (value.payload.len(), self.caps.max_bytes);
        if bytes > max {
            return Err(SnapshotError::TooLarge { bytes, max }.to_string());
        }
        let replay_from = guard(|| behavior.replay_from(state))?;
        self.refills.note(seq_nr, replay_from);
        let mut metadata = Metadata::new();
        self.refills.write(&mut metadata);
        if !marks.is_empty() {
            // Save the whole map: retention may delete the events that hold its marks next.
            metadata.insert(MARK_NAME.to_owned(), marks.encode());
        }
        Ok(NewSnapshot {
            id: id.clone(),
            seq_nr,
            codec_id: value.codec_id,
            manifest: value.manifest,
            schema_version: value.schema_version,
            payload: value.payload,
            metadata,
        })
    }

    pub(super) fn on_saved(
        &mut self,
        id: &PersistenceId,
        settings: &EventSourcedSettings,
        epoch: WriterEpoch,
        seq_nr: SeqNr,
        saved: Result<Timestamp, SnapshotError>,
    ) -> Follows {
        let by_count = self.saving.take().is_some_and(|saving| saving.seq_nr == seq_nr && saving.by_count);
        match saved {
            Ok(_) => {
                let call = if by_count { self.begin_retention(id, settings, epoch, seq_nr) } else { None };
                (call, Signal::SnapshotCompleted(seq_nr))
            }
            Err(error) => (None, Signal::SnapshotFailed(seq_nr, error.to_string())),
        }
    }

    fn begin_retention(
        &mut self,
        id: &PersistenceId,
        settings: &EventSourcedSettings,
        epoch: WriterEpoch,
        seq_nr: SeqNr,
    ) -> Option<StoreCall> {
        if self.retention != Retention::Idle {
            return None;
        }
        let latest_only = self.caps.latest_only;
        let upper = if latest_only { seq_nr } else { settings.retention_upper(seq_nr) };
        if upper.is_zero() {
            return None;
        }
        self.refills.forget_before(upper);
        // A kept snapshot may need events of before its own number, for a refill.
        let deletable = self.refills.deletable(upper);
        if settings.delete_events && !deletable.is_zero() {
            self.retention = Retention::DeletingEvents { upper };
            let by = DeletedBy::Retention;
            return Some(StoreCall::DeleteEvents { id: id.clone(), epoch, to: deletable, by });
        }
        if latest_only {
            return None;
        }
        // If events are deleted too, recovery still needs the snapshot exactly at `upper`.
        let last = if settings.delete_events { upper.previous() } else { upper };
        (!last.is_zero()).then(|| self.delete_snapshots(id, last))
    }

    fn delete_snapshots(&mut self, id: &PersistenceId, upper: SeqNr) -> StoreCall {
        self.retention = Retention::DeletingSnapshots;
        StoreCall::DeleteSnapshots { id: id.clone(), criteria: SnapshotCriteria::up_to(upper) }
    }

    pub(super) fn on_events_deleted(
        &mut self,
        id: &PersistenceId,
        to: SeqNr,
        by: DeletedBy,
        deleted: Result<SeqNr, DeleteError>,
    ) -> Follows {
        let mut call = None;
        if let (DeletedBy::Retention, Retention::DeletingEvents { upper }) = (by, self.retention) {
            self.retention = Retention::Idle;
            // Recovery still needs the snapshot exactly at `upper`.
            let below = upper.previous();
            if deleted.is_ok() && !self.caps.latest_only && !below.is_zero() {
                call = Some(self.delete_snapshots(id, below));
            }
        }
        let signal = match deleted {
            Ok(effective) => Signal::DeleteEventsCompleted(effective),
            Err(error) => Signal::DeleteEventsFailed(to, DeleteFailure::Store(error)),
        };
        (call, signal)
    }

    pub(super) fn on_snapshots_deleted(
        &mut self,
        criteria: SnapshotCriteria,
        deleted: Result<(), SnapshotError>,
    ) -> Follows {
        self.retention = Retention::Idle;
        let signal = match deleted {
            Ok(()) => Signal::DeleteSnapshotsCompleted(criteria),
            Err(error) => Signal::DeleteSnapshotsFailed(criteria, error),
        };
        (None, signal)
    }
}
