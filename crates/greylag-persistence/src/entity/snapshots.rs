//! Snapshots in the background, and the deletions of retention after them.
//!
//! The state is encoded in the entity's turn and saved in the background; neither commands nor
//! replies wait for it. Events are never deleted before a snapshot that covers them is durable, and a
//! state that lacks some of them is never saved.
//! Source: persistence §2.8.

use std::time::Instant;

use super::{Action, DeletedBy, EntityCore, Signal, StoreCall, Withheld, guard};
use crate::behavior::{DeleteFailure, EventSourced};
use crate::error::{DeleteError, SnapshotError};
use crate::event::{Metadata, SeqNr, Timestamp};
use crate::marks::MARK_NAME;
use crate::snapshot::{NewSnapshot, SnapshotCriteria};

/// A snapshot that is being saved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saving {
    seq_nr: SeqNr,
    /// Whether the snapshot was due by `snapshot_every`; only such a snapshot starts retention.
    by_count: bool,
}

/// Progress of retention; one retention at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retention {
    Idle,
    DeletingEvents { upper: SeqNr },
    DeletingSnapshots,
}

impl<B: EventSourced> EntityCore<B> {
    pub(super) fn take_snapshot(&mut self, now: Instant, by_count: bool, out: &mut Vec<Action<B::Command>>) {
        // Skip it: the next snapshot covers the same events.
        if self.saving.is_some() || self.settings.recovery.read_only || !self.is_whole() {
            return;
        }
        match self.encode_snapshot() {
            Ok(None) => {}
            Ok(Some(snapshot)) => {
                self.saving = Some(Saving { seq_nr: snapshot.seq_nr, by_count });
                self.call(StoreCall::SaveSnapshot(snapshot), out);
            }
            Err(reason) => {
                out.push(Action::Withheld(Withheld::Snapshot));
                self.signal_running(now, Signal::SnapshotFailed(self.seq_nr, reason), out);
            }
        }
    }

    /// Whether the state reflects the whole history. A state with gaps must never become the newest snapshot: later
    /// recoveries would start from it, and retention would delete the events that the state lacks.
    fn is_whole(&self) -> bool {
        !self.settings.recovery.skip_replay && !self.partial && self.skipped_events == 0
    }

    fn encode_snapshot(&mut self) -> Result<Option<NewSnapshot>, String> {
        let Some(codec) = &self.codecs.snapshots else { return Ok(None) };
        let value = guard(|| codec.encode(&self.state))?.map_err(|error| error.to_string())?;
        let (bytes, max) = (value.payload.len(), self.snapshot_caps.max_bytes);
        if bytes > max {
            return Err(SnapshotError::TooLarge { bytes, max }.to_string());
        }
        let replay_from = guard(|| self.behavior.replay_from(&self.state))?;
        self.refills.note(self.seq_nr, replay_from);
        let mut metadata = Metadata::new();
        self.refills.write(&mut metadata);
        if !self.marks.is_empty() {
            // Save the whole map: retention may delete the events that hold its marks next.
            metadata.insert(MARK_NAME.to_owned(), self.marks.encode());
        }
        Ok(Some(NewSnapshot {
            id: self.id.clone(),
            seq_nr: self.seq_nr,
            codec_id: value.codec_id,
            manifest: value.manifest,
            schema_version: value.schema_version,
            payload: value.payload,
            metadata,
        }))
    }

    pub(super) fn on_snapshot_saved(
        &mut self,
        now: Instant,
        seq_nr: SeqNr,
        saved: Result<Timestamp, SnapshotError>,
        out: &mut Vec<Action<B::Command>>,
    ) {
        let by_count = self.saving.take().is_some_and(|saving| saving.seq_nr == seq_nr && saving.by_count);
        match saved {
            Ok(_) => {
                if by_count {
                    self.begin_retention(seq_nr, out);
                }
                self.signal_running(now, Signal::SnapshotCompleted(seq_nr), out);
            }
            Err(error) => self.signal_running(now, Signal::SnapshotFailed(seq_nr, error.to_string()), out),
        }
    }

    fn begin_retention(&mut self, seq_nr: SeqNr, out: &mut Vec<Action<B::Command>>) {
        if self.retention != Retention::Idle {
            return;
        }
        let latest_only = self.snapshot_caps.latest_only;
        let upper = if latest_only { seq_nr } else { self.settings.retention_upper(seq_nr) };
        if upper.is_zero() {
            return;
        }
        self.refills.forget_before(upper);
        // A kept snapshot may need events of before its own number, for a refill.
        let deletable = self.refills.deletable(upper);
        if self.settings.delete_events && !deletable.is_zero() {
            self.retention = Retention::DeletingEvents { upper };
            let (id, epoch, by) = (self.id.clone(), self.epoch, DeletedBy::Retention);
            self.call(StoreCall::DeleteEvents { id, epoch, to: deletable, by }, out);
        } else if !latest_only {
            // If events are deleted too, recovery still needs the snapshot exactly at `upper`.
            let last = if self.settings.delete_events { upper.previous() } else { upper };
            if !last.is_zero() {
                self.delete_snapshots(last, out);
            }
        }
    }

    fn delete_snapshots(&mut self, upper: SeqNr, out: &mut Vec<Action<B::Command>>) {
        self.retention = Retention::DeletingSnapshots;
        let criteria = SnapshotCriteria::up_to(upper);
        self.call(StoreCall::DeleteSnapshots { id: self.id.clone(), criteria }, out);
    }

    pub(super) fn on_events_deleted(
        &mut self,
        now: Instant,
        to: SeqNr,
        by: DeletedBy,
        deleted: Result<SeqNr, DeleteError>,
        out: &mut Vec<Action<B::Command>>,
    ) {
        if let (DeletedBy::Retention, Retention::DeletingEvents { upper }) = (by, self.retention) {
            self.retention = Retention::Idle;
            // Recovery still needs the snapshot exactly at `upper`.
            let below = upper.previous();
            if deleted.is_ok() && !self.snapshot_caps.latest_only && !below.is_zero() {
                self.delete_snapshots(below, out);
            }
        }
        let signal = match deleted {
            Ok(effective) => Signal::DeleteEventsCompleted(effective),
            Err(error) => Signal::DeleteEventsFailed(to, DeleteFailure::Store(error)),
        };
        self.signal_running(now, signal, out);
    }

    pub(super) fn on_snapshots_deleted(
        &mut self,
        now: Instant,
        criteria: SnapshotCriteria,
        deleted: Result<(), SnapshotError>,
        out: &mut Vec<Action<B::Command>>,
    ) {
        self.retention = Retention::Idle;
        let signal = match deleted {
            Ok(()) => Signal::DeleteSnapshotsCompleted(criteria),
            Err(error) => Signal::DeleteSnapshotsFailed(criteria, error),
        };
        self.signal_running(now, signal, out);
    }
}
