//! A writer that works until its store is killed, and records the answers.

use greylag_core::CodecId;

use super::answers::RecordedAnswers;
use super::content::{Content, fill, is_deletion};
use super::round::{CrashStores, Load, Round};
use crate::contract::driver::offset_store::OffsetStore;
use crate::contract::error::{AppendError, ClaimError, DeleteError, OffsetError, SnapshotError, StateWriteError};
use crate::contract::head::{Claim, Under};
use crate::contract::journal::Append;
use crate::contract::offset::{OffsetKind, OwnedSlices, Position, Processed};
use crate::contract::records::codec::EncodedValue;
use crate::contract::records::event::{Metadata, SeqNr, Timestamp, WriterUuid};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::{NewSnapshot, SnapshotCriteria};
use crate::contract::records::state::StateWrite;
use crate::contract::tck::harness::{Checked, Stop};
use crate::contract::tck::writer::event;

pub(super) struct Worker {
    pub(super) number: u32,
    pub(super) id: PersistenceId,
    /// An id of another slice.
    pub(super) second_id: PersistenceId,
    pub(super) answers: RecordedAnswers,
    attempts: u64,
    uuids: u128,
}

/// The claims that the worker holds while it works.
struct Held {
    claim: Claim,
    uuid: WriterUuid,
    highest: SeqNr,
    owned: Option<OwnedSlices>,
}

/// Whether to go on; the worker stops after a missing answer.
enum After {
    GoOn,
    Stop,
}

impl Worker {
    pub(super) fn new(number: u32) -> Self {
        let id = |name: String| PersistenceId::of("tck-crash", &name).expect("names of cases are valid ids");
        let own = id(number.to_string());
        let mut others = (0..).map(|other: u32| id(format!("{number}-{other}")));
        let second_id = others.find(|other| other.slice() != own.slice()).expect("ids fall into every slice");
        Self { number, id: own, second_id, answers: RecordedAnswers::default(), attempts: 0, uuids: 0 }
    }

    fn failed<T>(&self, what: &str, error: impl std::fmt::Display) -> Checked<T> {
        Err(Stop::Failed(format!("{what} of {}, which no other worker writes: {error}", self.id)))
    }

    pub(super) fn projection(&self) -> String {
        format!("tck-crash-{}", self.number)
    }

    /// Claims and writes until the round is over, or an answer is missing.
    pub(super) async fn work(&mut self, stores: &CrashStores, round: &Round) -> Checked {
        let Some(mut held) = self.claim(stores).await? else { return Ok(()) };
        while !round.is_over() {
            if let After::Stop = self.append(stores, round, &mut held).await? {
                return Ok(());
            }
            if round.load == Load::Everything
                && let After::Stop = self.other_writes(stores, &mut held).await?
            {
                return Ok(());
            }
            // Yield: with a store that never waits, the killing task would not run.
            yield_once().await;
        }
        Ok(())
    }

    async fn claim(&mut self, stores: &CrashStores) -> Checked<Option<Held>> {
        let Ok(head) = stores.journal.head(&self.id).await else { return Ok(None) };
        self.uuids += 1;
        let uuid = WriterUuid::from_u128(u128::from(self.number) << 64 | self.uuids);
        match stores.journal.claim(&self.id, uuid, Under::Seen(head.epoch)).await {
            Ok(claim) => {
                self.answers.claimed(&self.id, claim)?;
                Ok(Some(Held { claim, uuid, highest: claim.highest, owned: None }))
            }
            // A claim of the store's last life, whose answer was lost, came in between.
            Err(ClaimError::Fenced { .. } | ClaimError::Unavailable(_)) => Ok(None),
            Err(error @ ClaimError::Corrupt(_)) => self.failed("claim", error),
        }
    }

    async fn append(&mut self, stores: &CrashStores, round: &Round, held: &mut Held) -> Checked<After> {
        self.attempts += 1;
        let (attempt, count) = (self.attempts, self.attempts % 4 + 1);
        let contents = (0..count).map(|place| Content { attempt, place, count }.text(self.number));
        let contents: Vec<String> = contents.collect();
        let Some(first) = held.highest.next() else { return Ok(After::Stop) };
        let (id, events) = (self.id.clone(), contents.iter().cloned().map(event).collect());
        let append = Append { id, epoch: held.claim.epoch, writer_uuid: held.uuid, first, events };
        match stores.journal.append(append).await {
            Ok(appended) => {
                self.answers.appended(&self.id, first, contents, appended.timestamp)?;
                held.highest = SeqNr::saturating(first.as_u64() + count - 1);
                round.acknowledge();
                Ok(After::GoOn)
            }
            Err(AppendError::Unknown(_)) => Ok(After::Stop),
            Err(AppendError::NotStored(_)) => {
                self.answers.refused.extend(contents);
                Ok(After::Stop)
            }
            Err(error) => self.failed("append", error),
        }
    }

    /// Writes other than appends, from time to time.
    async fn other_writes(&mut self, stores: &CrashStores, held: &mut Held) -> Checked<After> {
        let turn = self.attempts;
        let mut after = After::GoOn;
        if turn.is_multiple_of(5) {
            after = self.delete(stores, held).await?;
        }
        if let (After::GoOn, true) = (&after, turn.is_multiple_of(7)) {
            after = self.snapshot(stores, held).await?;
        }
        if let (After::GoOn, true) = (&after, turn.is_multiple_of(3)) {
            after = self.write_state(stores, held).await?;
        }
        if let (After::GoOn, true) = (&after, turn.is_multiple_of(4)) {
            after = self.save_offsets(stores, held).await?;
        }
        if let (After::GoOn, true) = (&after, turn.is_multiple_of(13)) {
            match self.claim(stores).await? {
                Some(claimed) => *held = Held { owned: held.owned.take(), ..claimed },
                None => after = After::Stop,
            }
        }
        Ok(after)
    }

    async fn delete(&mut self, stores: &CrashStores, held: &Held) -> Checked<After> {
        let to = SeqNr::saturating(held.highest.as_u64().saturating_sub(20));
        self.answers.deleting = self.answers.deleting.max(to);
        match stores.journal.delete_to(&self.id, held.claim.epoch, to).await {
            Ok(effective) => {
                self.answers.deleted(effective);
                Ok(After::GoOn)
            }
            Err(DeleteError::Unavailable(_)) => Ok(After::Stop),
            Err(error @ DeleteError::Fenced { .. }) => self.failed("delete", error),
        }
    }

    async fn snapshot(&mut self, stores: &CrashStores, held: &Held) -> Checked<After> {
        let snapshot = NewSnapshot {
            id: self.id.clone(),
            seq_nr: held.highest,
            codec_id: CodecId::JSON,
            manifest: "tck.snapshot".to_owned(),
            schema_version: 1,
            payload: vec![fill(held.highest); SNAPSHOT_BYTES].into(),
            metadata: Metadata::new(),
        };
        let saved = stores.snapshots.save(snapshot).await.map(|_| self.answers.snapshot = held.highest);
        let older = SeqNr::saturating(held.highest.as_u64().saturating_sub(30));
        let forgotten = match saved {
            Ok(()) => stores.snapshots.delete_matching(&self.id, SnapshotCriteria::up_to(older)).await,
            Err(error) => Err(error),
        };
        match forgotten {
            Ok(()) => {
                self.answers.snapshots_deleted_to = self.answers.snapshots_deleted_to.max(older);
                Ok(After::GoOn)
            }
            Err(SnapshotError::Unavailable(_)) => Ok(After::Stop),
            Err(error) => self.failed("snapshot", error),
        }
    }

    async fn write_state(&mut self, stores: &CrashStores, held: &Held) -> Checked<After> {
        let Some(states) = &stores.states else { return Ok(After::GoOn) };
        let Ok(row) = states.get(&self.id).await else { return Ok(After::Stop) };
        self.answers.check_state(&row)?;
        let Some(revision) = row.revision.next() else { return Ok(After::Stop) };
        let write = StateWrite { id: self.id.clone(), revision, generation: None, writer_uuid: held.uuid };
        let content = format!("{revision}:{}", self.attempts);
        self.answers.writing = self.answers.writing.max(revision);
        let written = if is_deletion(revision) {
            states.delete(write).await
        } else {
            let (manifest, payload) = ("tck.state".to_owned(), content.clone().into());
            let value = EncodedValue { codec_id: CodecId::JSON, manifest, schema_version: 1, payload };
            states.upsert(write, value, Some(self.projection())).await
        };
        match written {
            Ok(()) => {
                self.answers.revision = revision;
                Ok(After::GoOn)
            }
            Err(StateWriteError::NotStored(_)) => {
                self.answers.refused_states.insert(content);
                Ok(After::Stop)
            }
            // A mismatch: a write of the store's last life, whose answer was lost, came in between.
            Err(StateWriteError::Unknown(_) | StateWriteError::RevisionMismatch { .. }) => Ok(After::Stop),
            Err(error @ StateWriteError::Rejected(_)) => self.failed("state", error),
        }
    }

    async fn save_offsets(&mut self, stores: &CrashStores, held: &mut Held) -> Checked<After> {
        let Some(offsets) = &stores.offsets else { return Ok(After::GoOn) };
        if held.owned.is_none() {
            held.owned = match self.own(&**offsets).await? {
                Some(owned) => Some(owned),
                None => return Ok(After::Stop),
            };
        }
        let Some(owned) = &held.owned else { return Ok(After::Stop) };
        let number = self.answers.saving + 1;
        self.answers.saving = number;
        let position = match offsets.caps().kind {
            OffsetKind::Ordinal => Position::Ordinal(number),
            OffsetKind::Timestamp => Position::Timestamp(Timestamp::from_micros(number)),
        };
        // Two slices in one save: both must be saved, or neither.
        let ids = [self.id.clone(), self.second_id.clone()];
        let processed = ids.map(|id| Processed { id, seq_nr: SeqNr::saturating(number), position });
        match offsets.save(owned, &processed).await {
            Ok(()) => {
                self.answers.saved = number;
                Ok(After::GoOn)
            }
            // Stale: a claim of the store's last life, whose answer was lost, came in between.
            Err(OffsetError::Unavailable(_) | OffsetError::StaleOwner { .. }) => Ok(After::Stop),
            Err(error) => self.failed("offsets", error),
        }
    }

    /// Claims both slices, one after the other.
    async fn own(&mut self, offsets: &dyn OffsetStore) -> Checked<Option<OwnedSlices>> {
        let mut both = OwnedSlices { projection: self.projection(), epochs: Default::default() };
        for slice in [self.id.slice(), self.second_id.slice()] {
            match offsets.claim(&both.projection, slice..=slice).await {
                Ok(owned) => both.epochs.extend(owned.epochs),
                Err(OffsetError::Unavailable(_)) => return Ok(None),
                Err(error) => return self.failed("slices", error),
            }
        }
        self.answers.owned(&both)?;
        Ok(Some(both))
    }
}

const SNAPSHOT_BYTES: usize = 100_000;

/// Yields once, so that other tasks run.
async fn yield_once() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}
