//! Cases, their outcomes, and what a backend gives the kit.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use greylag_core::CodecId;

use crate::driver::AppendFault;
use crate::driver::stores::{Journal, SnapshotStore};
use crate::event::{EventKind, Metadata, NewEvent, SeqNr, StoredEvent, Tags, WriterEpoch, WriterUuid};
use crate::journal::{Append, Claim, ReadRange, Under};
use crate::persistence_id::PersistenceId;

/// How much of the kit runs. Only what the contract leaves open can be switched off.
#[derive(Debug, Clone)]
pub struct Flags {
    /// Ids of the concurrency case; each gets 20 appends. Default 1000.
    pub concurrent_ids: u32,
    /// Whether events of the size limit, and snapshots of theirs, are written. Default yes; slow
    /// disks may leave them to a nightly run.
    pub largest: bool,
    /// Run only cases whose name contains this. Default all.
    pub only: Option<String>,
}

impl Default for Flags {
    fn default() -> Self {
        Self { concurrent_ids: 1000, largest: true, only: None }
    }
}

/// Opens journals for the kit. Any `Fn() -> Future<Output = Arc<dyn Journal>>` is one without hooks.
#[async_trait]
pub trait JournalFactory: Send + Sync {
    /// A journal that is empty, or at least holds no id of an earlier run.
    async fn open(&self) -> Arc<dyn Journal>;

    /// Breaks a byte of a stored event; answers whether it did.
    async fn corrupt(&self, _journal: &Arc<dyn Journal>, _id: &PersistenceId, _seq_nr: SeqNr) -> bool {
        false
    }

    /// Turns the clock of the journal back; answers whether it did.
    async fn turn_clock_back(&self, _journal: &Arc<dyn Journal>, _by: Duration) -> bool {
        false
    }

    /// Lets the next tries of an append to `id` meet these faults, one each; answers whether it can.
    async fn script_append(&self, _journal: &Arc<dyn Journal>, _id: &PersistenceId, _faults: &[AppendFault]) -> bool {
        false
    }
}

#[async_trait]
impl<F, O> JournalFactory for F
where
    F: Fn() -> O + Send + Sync,
    O: Future<Output = Arc<dyn Journal>> + Send,
{
    async fn open(&self) -> Arc<dyn Journal> {
        self().await
    }
}

/// Opens snapshot stores for the kit. Any `Fn() -> Future<Output = Arc<dyn SnapshotStore>>` is one
/// without hooks.
#[async_trait]
pub trait SnapshotFactory: Send + Sync {
    /// A store that is empty, or at least holds no id of an earlier run.
    async fn open(&self) -> Arc<dyn SnapshotStore>;

    /// Breaks a byte of a stored snapshot; answers whether it did.
    async fn corrupt(&self, _store: &Arc<dyn SnapshotStore>, _id: &PersistenceId, _seq_nr: SeqNr) -> bool {
        false
    }
}

#[async_trait]
impl<F, O> SnapshotFactory for F
where
    F: Fn() -> O + Send + Sync,
    O: Future<Output = Arc<dyn SnapshotStore>> + Send,
{
    async fn open(&self) -> Arc<dyn SnapshotStore> {
        self().await
    }
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The backend does what it must.
    Passed,
    /// Not tried: why.
    Skipped(String),
    /// The backend does something else: what was expected, and what came.
    Failed(String),
}

/// What became of all cases, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Number and name of each case, and its outcome.
    pub cases: Vec<(String, Outcome)>,
}

impl Report {
    /// Those that failed.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        self.cases.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).map(|(name, _)| name.as_str())
    }

    /// Those that were not tried.
    pub fn skipped(&self) -> impl Iterator<Item = &str> {
        self.cases.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_))).map(|(name, _)| name.as_str())
    }

    /// # Panics
    /// If a case failed, with all of them; or if none ran.
    pub fn assert_conforms(&self) {
        assert!(!self.cases.is_empty(), "no case ran; check the filter");
        assert!(self.failed().next().is_none(), "the backend breaks its contract:\n{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.cases {
            match outcome {
                Outcome::Passed => writeln!(f, "ok       {name}")?,
                Outcome::Skipped(why) => writeln!(f, "skipped  {name}: {why}")?,
                Outcome::Failed(what) => writeln!(f, "FAILED   {name}: {what}")?,
            }
        }
        Ok(())
    }
}

/// Why a case ended early.
pub(super) enum Stop {
    Failed(String),
    Skipped(String),
}

pub(super) type Checked<T = ()> = Result<T, Stop>;

/// Fails the case unless it holds.
pub(super) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Stop::Failed(what())) }
}

/// Fails the case unless both are equal.
pub(super) fn equal<T: PartialEq + fmt::Debug>(what: &str, found: T, expected: T) -> Checked {
    ensure(found == expected, || format!("{what}: expected {expected:?}, found {found:?}"))
}

pub(super) fn skip<T>(why: &str) -> Checked<T> {
    Err(Stop::Skipped(why.to_owned()))
}

/// The answer of an operation that must succeed.
pub(super) fn must<T, E: fmt::Display>(what: &str, answer: Result<T, E>) -> Checked<T> {
    answer.map_err(|error| Stop::Failed(format!("{what} must succeed, but: {error}")))
}

impl Report {
    /// Runs one case, unless the filter leaves it out. A panic inside is a failure of the case.
    pub(super) async fn run(&mut self, flags: &Flags, name: &str, case: impl Future<Output = Checked>) {
        if flags.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return;
        }
        let outcome = match AssertUnwindSafe(case).catch_unwind().await {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(Stop::Failed(what))) => Outcome::Failed(what),
            Ok(Err(Stop::Skipped(why))) => Outcome::Skipped(why),
            Err(_) => Outcome::Failed("panicked".to_owned()),
        };
        self.cases.push((name.to_owned(), outcome));
    }
}

// ---- What journal cases are made of -----------------------------------------------------------

/// An event whose payload is `text`.
pub(super) fn event(text: impl Into<String>) -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "tck.event".to_owned(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: Bytes::from(text.into()),
        metadata: Metadata::new(),
        tags: Tags::new(),
    }
}

pub(super) fn seq(number: u32) -> SeqNr {
    SeqNr::from(number)
}

/// The numbers of records, for comparing.
pub(super) fn numbers(records: &[StoredEvent]) -> Vec<u64> {
    records.iter().map(|record| record.seq_nr.as_u64()).collect()
}

/// One writer of one id, with the claim that it holds.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) journal: Arc<dyn Journal>,
    pub(super) id: PersistenceId,
    pub(super) uuid: WriterUuid,
    pub(super) claim: Claim,
}

impl Writer {
    /// Claims `id` under whatever epoch is stored.
    pub(super) async fn claim(journal: &Arc<dyn Journal>, id: &PersistenceId, uuid: u128) -> Checked<Self> {
        let seen = must("head", journal.head(id).await)?.epoch;
        let uuid = WriterUuid::from_u128(uuid);
        let claim = must("claim under the epoch just read", journal.claim(id, uuid, Under::Seen(seen)).await)?;
        Ok(Self { journal: journal.clone(), id: id.clone(), uuid, claim })
    }

    /// A writer of an id with the events 1 to `count`, whose payloads are their numbers.
    pub(super) async fn with_events(journal: &Arc<dyn Journal>, name: &str, count: u32) -> Checked<Self> {
        let writer = Self::claim(journal, &id(name), 1).await?;
        for number in 1..=count {
            must("append", writer.append(number, vec![event(number.to_string())]).await)?;
        }
        Ok(writer)
    }

    pub(super) fn build(&self, first: u32, events: Vec<NewEvent>) -> Append {
        Append { id: self.id.clone(), epoch: self.claim.epoch, writer_uuid: self.uuid, first: seq(first), events }
    }

    pub(super) async fn append(
        &self,
        first: u32,
        events: Vec<NewEvent>,
    ) -> Result<crate::Appended, crate::AppendError> {
        self.journal.append(self.build(first, events)).await
    }

    pub(super) async fn delete_to(&self, to: SeqNr) -> Result<SeqNr, crate::DeleteError> {
        self.journal.delete_to(&self.id, self.epoch(), to).await
    }

    pub(super) fn epoch(&self) -> WriterEpoch {
        self.claim.epoch
    }

    /// The records of `from..=to`, read page by page.
    pub(super) async fn read(&self, from: u32, to: SeqNr) -> Checked<Vec<StoredEvent>> {
        read_all(&self.journal, &self.id, ReadRange::new(seq(from), to)).await
    }

    /// Compares the numbers that are stored.
    pub(super) async fn expect(&self, what: &str, expected: &[u64]) -> Checked {
        let records = self.read(1, SeqNr::MAX).await?;
        equal(what, numbers(&records), expected.to_vec())
    }
}

/// All records of a range, whatever the size of the pages.
pub(super) async fn read_all(
    journal: &Arc<dyn Journal>,
    id: &PersistenceId,
    mut range: ReadRange,
) -> Checked<Vec<StoredEvent>> {
    let mut records = Vec::new();
    loop {
        let page = must("read", journal.read(id, range).await)?;
        records.extend(page.records);
        match page.next {
            None => return Ok(records),
            Some(next) if next > range.from => range.from = next,
            Some(next) => return Err(Stop::Failed(format!("a page from {} goes on at {next}", range.from))),
        }
    }
}

/// An id of the kit.
pub(super) fn id(name: &str) -> PersistenceId {
    PersistenceId::of("tck", name).expect("names of cases are valid ids")
}
