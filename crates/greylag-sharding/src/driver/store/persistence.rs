//! The coordinator's state in a journal that every node reaches.
//!
//! An incarnation claims the history of its type, which fences all before it, and reads it: the newest snapshot and the
//! events behind it. From then on each batch is one append that continues what it read, so a batch is stored only if no
//! other incarnation has claimed or written since.
//!
//! ```text
//! read:   head, claim --> snapshot --> pages of events --> Replay --> StoredState
//! commit: append(epoch, first = last + 1) --> Ok | NotStored: again | anything else: read anew
//! ```
//! Source: sharding §2.14; persistence §2.5, §2.6, §4.1.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_core::CodecId;
use greylag_persistence::{
    AdvanceError, Append, AppendError, Claim, ClaimError, EventKind, Journal, Metadata, NewEvent, Page, PersistenceId,
    ReadError, ReadRange, SeqNr, Snapshot, SnapshotCriteria, SnapshotError, StoreFailure, StoredEvent, Stores, Tags,
    Under, WriterEpoch, WriterUuid,
};
use tokio::sync::Mutex;

use super::failures::Failures;
use super::snapshots::Snapshots;
use super::{NotCommitted, StateStore, Unreadable};
use crate::coordinator::replay::{HistoryEvent, Replay};
use crate::coordinator::{StateEvent, StoredState};
use crate::driver::node::horizon;
use crate::fingerprint::Fingerprint;
use crate::ids::EntityTypeName;
use crate::settings::ShardingSettings;
use crate::wire::history::{self, EVENT_MANIFEST, SCHEMA_VERSION, SNAPSHOT_MANIFEST};

/// What an operator may look for when the journal does not answer.
const HINT: &str = "does this node reach the journal?";
/// Advice to the operator about a history that cannot be read.
const ADVICE: &str = "restore it from a copy, or stop all nodes and remove it with remove_internal_sharding_data; \
                      entities keep their own events";
/// Advice to the operator about a history that contradicts itself.
const ADVICE_STRICT: &str = "with sharding.strict_recovery = false it is repaired";
/// Snapshots that are tried before the events alone have to do. Source: persistence §2.5.
const SNAPSHOT_ATTEMPTS: usize = 3;

/// Under which id the coordinator of a type keeps its history.
pub(crate) fn persistence_id(name: &EntityTypeName) -> PersistenceId {
    PersistenceId::unique(&format!("/sharding/{}Coordinator", name.encoded())).expect("type names are short")
}

/// See the module's description.
pub(super) struct PersistenceStore {
    name: EntityTypeName,
    fingerprint: Fingerprint,
    journal: Arc<dyn Journal>,
    snapshots: Arc<Snapshots>,
    id: PersistenceId,
    writer_uuid: WriterUuid,
    strict: bool,
    /// How long one call may take that reads, and one that writes.
    patience: (Duration, Duration),
    /// What this incarnation may append to; `None` before it has read, and once it may append no more.
    history: Mutex<Option<History>>,
}

/// A history that was claimed and read.
struct History {
    epoch: WriterEpoch,
    /// Its last event.
    last: SeqNr,
    replay: Replay,
    failures: Failures,
}

/// Why a history was not read.
enum Trouble {
    /// The store does not answer: to be tried again.
    Unavailable(StoreFailure),
    /// Trying again would not help.
    Unreadable(Unreadable),
}

impl PersistenceStore {
    pub(super) fn new(
        name: &EntityTypeName,
        stores: &Stores,
        fingerprint: &Fingerprint,
        settings: &ShardingSettings,
    ) -> Self {
        let id = persistence_id(name);
        Self {
            name: name.clone(),
            fingerprint: fingerprint.clone(),
            journal: stores.journal.clone(),
            snapshots: Arc::new(Snapshots::new(name, &id, stores, &settings.journal)),
            id,
            writer_uuid: WriterUuid::from_u128(rand::random()),
            strict: settings.journal.strict_recovery,
            patience: (settings.waiting_for_state_timeout, settings.updating_state_timeout),
            history: Mutex::new(None),
        }
    }

    /// Claims the history and reads it whole.
    async fn recover(&self) -> Result<(History, StoredState), Trouble> {
        let claim = self.claim().await?;
        let (mut replay, covered) = self.load_snapshot(&claim).await?;
        if covered > claim.highest {
            self.advance(&claim, covered).await?;
        }
        let last = claim.highest.max(covered);
        self.replay(&mut replay, covered, last).await?;
        let strict = |contradiction| Trouble::Unreadable(self.unreadable(&contradiction, ADVICE_STRICT));
        let state = replay.state(&self.fingerprint).map_err(strict)?;
        if let Some(first) = replay.first_repair() {
            let (name, recovery_repairs) = (&self.name, replay.repairs());
            tracing::warn!(entity_type = %name, recovery_repairs, %first, "the coordinator's history was repaired");
        }
        tracing::debug!(entity_type = %self.name, %last, epoch = %claim.epoch, %replay, "coordinator state was read");
        // A repaired history is not repaired again, and a long one not read again, once a snapshot stands for it.
        let read = last.as_u64() - covered.as_u64();
        if replay.repairs() > 0 || read >= self.snapshots.every() {
            self.snapshots.begin(claim.epoch, last, state.clone(), false);
        }
        let failures = Failures::new(&self.name, self.patience.1, HINT);
        let replay = Replay::from_snapshot(state.clone(), false);
        Ok((History { epoch: claim.epoch, last, replay, failures }, state))
    }

    async fn claim(&self) -> Result<Claim, Trouble> {
        let head = self.call(self.journal.head(&self.id)).await?;
        self.call(self.journal.claim(&self.id, self.writer_uuid, Under::Seen(head.epoch))).await
    }

    /// The newest snapshot that can be read, and the last event that it reflects.
    async fn load_snapshot(&self, claim: &Claim) -> Result<(Replay, SeqNr), Trouble> {
        let mut criteria = SnapshotCriteria::LATEST;
        let mut cause = "there is none".to_owned();
        for _ in 0..SNAPSHOT_ATTEMPTS {
            let Some((seq_nr, read)) = self.newest(criteria).await? else {
                // Retention leaves the last event, so a history without any, and without a snapshot, was removed.
                let was_removed = criteria == SnapshotCriteria::LATEST && claim.deleted_to == claim.highest;
                if was_removed {
                    return Ok((Replay::new(self.strict), claim.highest));
                }
                break;
            };
            match read {
                Ok(_) if seq_nr < claim.deleted_to => {
                    cause = format!("the newest reflects event {seq_nr}");
                    break;
                }
                Ok(state) => return Ok((Replay::from_snapshot(state, self.strict), seq_nr)),
                Err(damage) => {
                    tracing::warn!(entity_type = %self.name, %seq_nr, damage, "a snapshot could not be read");
                    (cause, criteria) = (damage, SnapshotCriteria::up_to(seq_nr.previous()));
                }
            }
        }
        if claim.deleted_to.is_zero() {
            return Ok((Replay::new(self.strict), SeqNr::ZERO));
        }
        let deleted_to = claim.deleted_to;
        Err(self.refuse(&format!("events up to {deleted_to} are deleted, and of the snapshots: {cause}")))
    }

    /// The newest snapshot that matches: its number, and what it says or in what way it is damaged.
    async fn newest(
        &self,
        criteria: SnapshotCriteria,
    ) -> Result<Option<(SeqNr, Result<StoredState, String>)>, Trouble> {
        match tokio::time::timeout(self.patience.0, self.snapshots.load(criteria)).await {
            Ok(Ok(found)) => Ok(found.map(|snapshot| (snapshot.seq_nr, read_snapshot(&snapshot)))),
            Ok(Err(SnapshotError::Corrupt(corrupt))) => Ok(Some((corrupt.seq_nr, Err(corrupt.to_string())))),
            Ok(Err(SnapshotError::Unavailable(failure))) => Err(Trouble::Unavailable(failure)),
            Ok(Err(error @ SnapshotError::TooLarge { .. })) => Err(self.refuse(&error)),
            Err(_) => Err(Trouble::Unavailable(self.late())),
        }
    }

    /// A snapshot without its journal: numbers go on behind it, if nothing was ever written. Source: persistence §2.5.
    async fn advance(&self, claim: &Claim, covered: SeqNr) -> Result<(), Trouble> {
        if !claim.highest.is_zero() {
            let highest = claim.highest;
            return Err(
                self.refuse(&format!("the newest snapshot reflects event {covered}, and the last is {highest}"))
            );
        }
        self.call(self.journal.advance(&self.id, claim.epoch, covered)).await
    }

    /// Takes the events behind `covered`, page by page.
    async fn replay(&self, replay: &mut Replay, covered: SeqNr, last: SeqNr) -> Result<(), Trouble> {
        let mut next = Some(covered).filter(|covered| *covered < last).and_then(SeqNr::next);
        let mut expected = next;
        while let Some(from) = next {
            let page: Page = self.call(self.journal.read(&self.id, ReadRange::new(from, last))).await?;
            for record in &page.records {
                if Some(record.seq_nr) != expected {
                    break;
                }
                self.take(replay, record)?;
                expected = record.seq_nr.next();
            }
            next = page.next.filter(|next| Some(*next) == expected);
        }
        match expected.filter(|expected| *expected <= last) {
            Some(missing) => Err(self.refuse(&format!("event {missing} of {last} is missing"))),
            None => Ok(()),
        }
    }

    fn take(&self, replay: &mut Replay, record: &StoredEvent) -> Result<(), Trouble> {
        let seq_nr = record.seq_nr;
        if record.kind == EventKind::Filtered {
            return Ok(());
        }
        if record.manifest != EVENT_MANIFEST || record.schema_version > SCHEMA_VERSION {
            let (manifest, version) = (&record.manifest, record.schema_version);
            return Err(self.refuse(&format!("event {seq_nr} is a {manifest:?} of version {version}")));
        }
        let event = history::decode_event(&record.payload, horizon());
        let event = event.map_err(|error| self.refuse(&format!("event {seq_nr}: {error}")))?;
        replay.apply(event).map_err(|contradiction| {
            Trouble::Unreadable(self.unreadable(&format!("event {seq_nr}: {contradiction}"), ADVICE_STRICT))
        })
    }

    fn unreadable(&self, cause: &dyn std::fmt::Display, advice: &'static str) -> Unreadable {
        Unreadable { id: self.id.to_string(), cause: cause.to_string(), advice }
    }

    fn refuse(&self, cause: &dyn std::fmt::Display) -> Trouble {
        Trouble::Unreadable(self.unreadable(cause, ADVICE))
    }

    fn late(&self) -> StoreFailure {
        StoreFailure::new("journal", format!("no answer within {:?}", self.patience.0))
    }

    /// A call that reads, or claims.
    async fn call<T, E: Refusal>(&self, call: impl Future<Output = Result<T, E>> + Send) -> Result<T, Trouble> {
        match tokio::time::timeout(self.patience.0, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(match error.is_final() {
                true => self.refuse(&error),
                false => Trouble::Unavailable(StoreFailure::new("journal", error)),
            }),
            Err(_) => Err(Trouble::Unavailable(self.late())),
        }
    }

    fn append_of(&self, history: &History, events: &[HistoryEvent]) -> Option<Append> {
        let event = |event: &HistoryEvent| NewEvent {
            codec_id: CodecId::PROST,
            manifest: EVENT_MANIFEST.to_owned(),
            schema_version: SCHEMA_VERSION,
            kind: EventKind::Event,
            payload: history::encode_event(event).into(),
            metadata: Metadata::new(),
            tags: Tags::new(),
        };
        Some(Append {
            id: self.id.clone(),
            epoch: history.epoch,
            writer_uuid: self.writer_uuid,
            first: history.last.next()?,
            events: events.iter().map(event).collect(),
        })
    }

    /// The events are durable.
    fn committed(&self, history: &mut History, append_last: SeqNr, events: Vec<HistoryEvent>) {
        for event in events {
            // What an incarnation writes itself contradicts nothing, as the simulation checks.
            drop(history.replay.apply(event));
        }
        let before = std::mem::replace(&mut history.last, append_last);
        if self.snapshots.is_due(before, append_last)
            && let Ok(state) = history.replay.state(&self.fingerprint)
        {
            self.snapshots.begin(history.epoch, append_last, state, true);
        }
    }
}

#[async_trait]
impl StateStore for PersistenceStore {
    fn max_batch(&self) -> usize {
        self.journal.caps().max_atomic_events
    }

    async fn read(&self) -> Result<StoredState, Unreadable> {
        let mut failures = Failures::new(&self.name, self.patience.0, HINT);
        let mut history = self.history.lock().await;
        loop {
            match self.recover().await {
                Ok((read, state)) => {
                    *history = Some(read);
                    return Ok(state);
                }
                Err(Trouble::Unavailable(failure)) => failures.report("read", &failure).await,
                Err(Trouble::Unreadable(unreadable)) => return Err(unreadable),
            }
        }
    }

    async fn commit(&self, events: Vec<StateEvent>) -> Result<(), NotCommitted> {
        let mut guard = self.history.lock().await;
        let mut history = guard.take().ok_or(NotCommitted::Lost)?;
        let events: Vec<_> = events.into_iter().map(HistoryEvent::from).collect();
        let append = self.append_of(&history, &events).ok_or(NotCommitted::Lost)?;
        let last = append.last().ok_or(NotCommitted::Lost)?;
        let error = match tokio::time::timeout(self.patience.1, self.journal.append(append)).await {
            Ok(Ok(_)) => {
                history.failures.end();
                self.committed(&mut history, last, events);
                *guard = Some(history);
                return Ok(());
            }
            Ok(Err(error @ AppendError::NotStored(_))) => {
                history.failures.report("write", &error).await;
                *guard = Some(history);
                return Err(NotCommitted::NotStored);
            }
            Ok(Err(error)) => error,
            // The write goes on without its caller.
            Err(_) => {
                AppendError::Unknown(StoreFailure::new("journal", format!("no answer within {:?}", self.patience.1)))
            }
        };
        tracing::warn!(entity_type = %self.name, %error, "coordinator state: a write failed, it is read anew");
        Err(NotCommitted::Lost)
    }
}

/// An error of a call, and whether trying again would not help.
trait Refusal: std::fmt::Display {
    fn is_final(&self) -> bool;
}

impl Refusal for ReadError {
    fn is_final(&self) -> bool {
        matches!(self, Self::Corrupt(_))
    }
}

impl Refusal for ClaimError {
    fn is_final(&self) -> bool {
        matches!(self, Self::Corrupt(_))
    }
}

impl Refusal for AdvanceError {
    fn is_final(&self) -> bool {
        matches!(self, Self::NotEmpty { .. })
    }
}

fn read_snapshot(snapshot: &Snapshot) -> Result<StoredState, String> {
    if snapshot.manifest != SNAPSHOT_MANIFEST || snapshot.schema_version > SCHEMA_VERSION {
        return Err(format!("it is a {:?} of version {}", snapshot.manifest, snapshot.schema_version));
    }
    history::decode_snapshot(&snapshot.payload, horizon()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
