//! One history in a journal: claimed, read whole, and continued by the claiming writer alone.
//!
//! A claim fences all earlier claims. The newest readable snapshot is read, and the events behind it; from then on each
//! append continues the events read, so nothing is stored once another writer has claimed or appended.
//!
//! ```text
//! recover: head, claim --> snapshot --> pages of events --> Fold
//! append(epoch, first = last + 1) --> Ok | NotStored: again | anything else: recover
//! ```
//! Source: sharding §2.14; persistence §2.5, §2.6, §4.1.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::{CodecId, Generation};
use greylag_persistence::{
    AdvanceError, Append, AppendError, Claim, ClaimError, EventKind, Head, Journal, Metadata, NewEvent, Page,
    PersistenceId, ReadError, ReadRange, SeqNr, Snapshot, SnapshotCriteria, SnapshotError, StoreFailure, StoredEvent,
    Stores, Tags, Under, WriterEpoch, WriterUuid,
};

use super::format::Format;
use super::snapshots::Snapshots;
use super::state_store::Unreadable;
use crate::ids::EntityTypeName;
use crate::settings::ShardingSettings;

/// Snapshots tried before the events alone are read. Source: persistence §2.5.
const SNAPSHOT_ATTEMPTS: usize = 3;

/// The state that the records of a history yield.
pub(crate) trait Fold: Send {
    /// Begins behind the events that a snapshot contains.
    ///
    /// # Errors
    /// The damage of the snapshot; the fold is unchanged.
    fn begin_with(&mut self, snapshot: &[u8]) -> Result<(), String>;

    /// The payload of a snapshot of the fold.
    fn snapshot(&self) -> Vec<u8>;

    /// Takes the next event.
    ///
    /// # Errors
    /// The fault of the event, and advice for an operator if not that of the format.
    fn take(&mut self, event: &[u8]) -> Result<(), (String, Option<&'static str>)>;
}

/// A history that was claimed and read: the base of the next append.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claimed {
    pub(crate) epoch: WriterEpoch,
    /// Number of its last event.
    pub(crate) last: SeqNr,
    /// Number of events read behind a snapshot.
    pub(crate) read: u64,
}

/// Why a history was not read.
pub(crate) enum RecoverError {
    /// The store does not answer; to be repeated.
    Unavailable(StoreFailure),
    /// The claimed generation, or the known head, is older than the journal's.
    Fenced(Head),
    /// Another attempt would not help.
    Unreadable(Unreadable),
}

/// See the module's description.
pub(crate) struct Log {
    name: EntityTypeName,
    format: Format,
    journal: Arc<dyn Journal>,
    snapshots: Arc<Snapshots>,
    id: PersistenceId,
    writer_uuid: WriterUuid,
    /// Timeouts of one read call, and of one write call.
    patience: (Duration, Duration),
}

impl Log {
    pub(crate) fn new(
        name: &EntityTypeName,
        id: PersistenceId,
        format: Format,
        stores: &Stores,
        settings: &ShardingSettings,
    ) -> Self {
        Self {
            name: name.clone(),
            format,
            journal: stores.journal.clone(),
            snapshots: Arc::new(Snapshots::new(name, &id, &format, stores, &settings.journal)),
            id,
            writer_uuid: WriterUuid::from_u128(rand::random()),
            patience: (settings.waiting_for_state_timeout, settings.updating_state_timeout),
        }
    }

    /// Most events that are written atomically.
    pub(crate) fn max_batch(&self) -> usize {
        self.journal.caps().max_atomic_events
    }

    pub(crate) fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    /// Timeouts of one read call, and of one write call.
    pub(crate) fn patience(&self) -> (Duration, Duration) {
        self.patience
    }

    /// Claims the history, under a generation or as its next writer, and reads it whole.
    pub(crate) async fn recover(
        &self,
        under: Option<Generation>,
        fold: &mut dyn Fold,
    ) -> Result<Claimed, RecoverError> {
        let claim = self.claim(under).await?;
        let covered = self.load_snapshot(&claim, fold).await?;
        if covered > claim.highest {
            self.advance(&claim, covered).await?;
        }
        let last = claim.highest.max(covered);
        self.replay(fold, covered, last).await?;
        Ok(Claimed { epoch: claim.epoch, last, read: last.as_u64() - covered.as_u64() })
    }

    async fn claim(&self, under: Option<Generation>) -> Result<Claim, RecoverError> {
        let under = match under {
            Some(generation) => Under::Generation(generation),
            None => Under::Seen(self.call(self.journal.head(&self.id)).await?.epoch),
        };
        self.call(self.journal.claim(&self.id, self.writer_uuid, under)).await
    }

    /// Begins with the newest readable snapshot. Returns the number of the last event that it contains.
    async fn load_snapshot(&self, claim: &Claim, fold: &mut dyn Fold) -> Result<SeqNr, RecoverError> {
        let mut criteria = SnapshotCriteria::LATEST;
        let mut cause = "there is none".to_owned();
        for _ in 0..SNAPSHOT_ATTEMPTS {
            let Some((seq_nr, read)) = self.newest(criteria).await? else {
                // Retention keeps the last event, so a history without events and snapshots was removed.
                let was_removed = criteria == SnapshotCriteria::LATEST && claim.deleted_to == claim.highest;
                if was_removed {
                    self.begin_anew(claim, fold.snapshot()).await?;
                    return Ok(claim.highest);
                }
                break;
            };
            let begun = match read {
                Ok(_) if seq_nr < claim.deleted_to => {
                    cause = format!("the newest reflects event {seq_nr}");
                    break;
                }
                Ok(snapshot) => self.check_snapshot(&snapshot).and_then(|()| fold.begin_with(&snapshot.payload)),
                Err(damage) => Err(damage),
            };
            match begun {
                Ok(()) => return Ok(seq_nr),
                Err(damage) => {
                    tracing::warn!(entity_type = %self.name, %seq_nr, damage, "a snapshot could not be read");
                    (cause, criteria) = (damage, SnapshotCriteria::up_to(seq_nr.previous()));
                }
            }
        }
        if claim.deleted_to.is_zero() {
            return Ok(SeqNr::ZERO);
        }
        let deleted_to = claim.deleted_to;
        Err(self.refuse(&format!("events up to {deleted_to} are deleted, and of the snapshots: {cause}")))
    }

    /// Continues a removed history behind its numbers. A snapshot must record that the history is empty there, since
    /// later events do not prove it.
    async fn begin_anew(&self, claim: &Claim, empty: Vec<u8>) -> Result<(), RecoverError> {
        if claim.highest.is_zero() {
            return Ok(());
        }
        match tokio::time::timeout(self.patience.1, self.snapshots.save(claim.highest, empty)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(RecoverError::Unavailable(StoreFailure::new("snapshot store", error))),
            Err(_) => Err(RecoverError::Unavailable(self.late(self.patience.1))),
        }
    }

    /// The newest snapshot that matches: its number, and its content or damage.
    async fn newest(
        &self,
        criteria: SnapshotCriteria,
    ) -> Result<Option<(SeqNr, Result<Snapshot, String>)>, RecoverError> {
        match tokio::time::timeout(self.patience.0, self.snapshots.load(criteria)).await {
            Ok(Ok(found)) => Ok(found.map(|snapshot| (snapshot.seq_nr, Ok(snapshot)))),
            Ok(Err(SnapshotError::Corrupt(corrupt))) => Ok(Some((corrupt.seq_nr, Err(corrupt.to_string())))),
            Ok(Err(SnapshotError::Unavailable(failure))) => Err(RecoverError::Unavailable(failure)),
            Ok(Err(error @ SnapshotError::TooLarge { .. })) => Err(self.refuse(&error)),
            Err(_) => Err(RecoverError::Unavailable(self.late(self.patience.0))),
        }
    }

    fn check_snapshot(&self, snapshot: &Snapshot) -> Result<(), String> {
        if snapshot.manifest != self.format.snapshot || snapshot.schema_version > self.format.version {
            return Err(format!("it is a {:?} of version {}", snapshot.manifest, snapshot.schema_version));
        }
        Ok(())
    }

    /// Continues the numbers behind a snapshot without its journal, if nothing was ever written. Source: persistence
    /// §2.5.
    async fn advance(&self, claim: &Claim, covered: SeqNr) -> Result<(), RecoverError> {
        if !claim.highest.is_zero() {
            let highest = claim.highest;
            return Err(
                self.refuse(&format!("the newest snapshot reflects event {covered}, and the last is {highest}"))
            );
        }
        self.call(self.journal.advance(&self.id, claim.epoch, covered)).await
    }

    /// Takes the events behind `covered`, page by page.
    async fn replay(&self, fold: &mut dyn Fold, covered: SeqNr, last: SeqNr) -> Result<(), RecoverError> {
        let mut next = Some(covered).filter(|covered| *covered < last).and_then(SeqNr::next);
        let mut expected = next;
        while let Some(from) = next {
            let page: Page = self.call(self.journal.read(&self.id, ReadRange::new(from, last))).await?;
            for record in &page.records {
                if Some(record.seq_nr) != expected {
                    break;
                }
                self.take(fold, record)?;
                expected = record.seq_nr.next();
            }
            next = page.next.filter(|next| Some(*next) == expected);
        }
        match expected.filter(|expected| *expected <= last) {
            Some(missing) => Err(self.refuse(&format!("event {missing} of {last} is missing"))),
            None => Ok(()),
        }
    }

    fn take(&self, fold: &mut dyn Fold, record: &StoredEvent) -> Result<(), RecoverError> {
        let seq_nr = record.seq_nr;
        if record.kind == EventKind::Filtered {
            return Ok(());
        }
        if record.manifest != self.format.event || record.schema_version > self.format.version {
            let (manifest, version) = (&record.manifest, record.schema_version);
            return Err(self.refuse(&format!("event {seq_nr} is a {manifest:?} of version {version}")));
        }
        fold.take(&record.payload).map_err(|(cause, advice)| {
            let advice = advice.unwrap_or(self.format.advice);
            RecoverError::Unreadable(self.unreadable(&format!("event {seq_nr}: {cause}"), advice))
        })
    }

    pub(crate) fn unreadable(&self, cause: &dyn std::fmt::Display, advice: &'static str) -> Unreadable {
        Unreadable { what: self.format.what, id: self.id.to_string(), cause: cause.to_string(), advice }
    }

    fn refuse(&self, cause: &dyn std::fmt::Display) -> RecoverError {
        RecoverError::Unreadable(self.unreadable(cause, self.format.advice))
    }

    fn late(&self, patience: Duration) -> StoreFailure {
        StoreFailure::new("journal", format!("no answer within {patience:?}"))
    }

    /// Runs a call that reads or claims, with its timeout.
    async fn call<T, E: Refusal>(&self, call: impl Future<Output = Result<T, E>> + Send) -> Result<T, RecoverError> {
        match tokio::time::timeout(self.patience.0, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(match error.kind() {
                RefusalKind::Final => self.refuse(&error),
                RefusalKind::Fenced(current) => RecoverError::Fenced(current),
                RefusalKind::ForNow => RecoverError::Unavailable(StoreFailure::new("journal", error)),
            }),
            Err(_) => Err(RecoverError::Unavailable(self.late(self.patience.0))),
        }
    }

    /// Appends events behind the last one, all or none, and returns the number of the last event.
    pub(crate) async fn append(&self, claimed: &Claimed, payloads: Vec<Vec<u8>>) -> Result<SeqNr, AppendError> {
        let event = |payload: Vec<u8>| NewEvent {
            codec_id: CodecId::PROST,
            manifest: self.format.event.to_owned(),
            schema_version: self.format.version,
            kind: EventKind::Event,
            payload: payload.into(),
            metadata: Metadata::new(),
            tags: Tags::new(),
        };
        let used_up = || AppendError::Unknown(StoreFailure::new("journal", "its numbers are used up"));
        let append = Append {
            id: self.id.clone(),
            epoch: claimed.epoch,
            writer_uuid: self.writer_uuid,
            first: claimed.last.next().ok_or_else(used_up)?,
            events: payloads.into_iter().map(event).collect(),
        };
        let last = append.last().ok_or_else(used_up)?;
        match tokio::time::timeout(self.patience.1, self.journal.append(append)).await {
            Ok(appended) => appended.map(|_| last),
            // The write goes on without its caller, so the outcome is unknown.
            Err(_) => Err(AppendError::Unknown(self.late(self.patience.1))),
        }
    }
}

/// How a caller must treat an error of a call.
enum RefusalKind {
    /// Another attempt would not help.
    Final,
    /// Another writer has claimed.
    Fenced(Head),
    /// Another attempt may help.
    ForNow,
}

trait Refusal: std::error::Error + Send + Sync + 'static {
    fn kind(&self) -> RefusalKind;
}

impl Refusal for ReadError {
    fn kind(&self) -> RefusalKind {
        if matches!(self, Self::Corrupt(_)) { RefusalKind::Final } else { RefusalKind::ForNow }
    }
}

impl Refusal for ClaimError {
    fn kind(&self) -> RefusalKind {
        match self {
            Self::Corrupt(_) => RefusalKind::Final,
            Self::Fenced { current } => RefusalKind::Fenced(*current),
            Self::Unavailable(_) => RefusalKind::ForNow,
        }
    }
}

impl Refusal for AdvanceError {
    fn kind(&self) -> RefusalKind {
        if matches!(self, Self::NotEmpty { .. }) { RefusalKind::Final } else { RefusalKind::ForNow }
    }
}
