//! The in-memory stores pass the kit, and the kit finds planted bugs.
//!
//! A kit that never failed proves nothing: each broken journal below lacks one rule of the
//! contract, and the cases named must fail. A small version of scenario persistence 68.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use greylag_persistence::tck::{self, Flags, JournalFactory, Report, SnapshotFactory};
use greylag_persistence::{
    AdvanceError, Append, AppendError, AppendFault, Appended, Caps, Claim, ClaimError, CloseError, DeleteError, Head,
    Health, InMemoryJournal, InMemorySnapshots, Journal, NewEvent, NewSnapshot, Page, PersistenceId, ReadError,
    ReadRange, Scope, SeqNr, Snapshot, SnapshotCaps, SnapshotCriteria, SnapshotError, SnapshotStore, Timestamp, Under,
    WriterEpoch, WriterUuid,
};

/// Memory never waits, so no runtime is needed.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("memory never waits")
}

/// Opens in-memory journals with every hook of the kit.
#[derive(Default)]
struct Memory {
    clock: Arc<AtomicU64>,
    opened: Mutex<Vec<InMemoryJournal>>,
}

#[async_trait]
impl JournalFactory for Memory {
    async fn open(&self) -> Arc<dyn Journal> {
        let clock = self.clock.clone();
        clock.store(1 << 40, Ordering::Relaxed);
        let tick = move || Timestamp::from_micros(clock.fetch_add(1, Ordering::Relaxed));
        let journal = InMemoryJournal::new(Scope::Process, tick);
        self.opened.lock().unwrap().push(journal.clone());
        Arc::new(journal)
    }

    async fn corrupt(&self, _: &Arc<dyn Journal>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.opened.lock().unwrap().iter().any(|journal| journal.corrupt(id, seq_nr))
    }

    async fn turn_clock_back(&self, _: &Arc<dyn Journal>, by: Duration) -> bool {
        self.clock.fetch_sub(by.as_micros() as u64, Ordering::Relaxed);
        true
    }

    async fn script_append(&self, _: &Arc<dyn Journal>, id: &PersistenceId, faults: &[AppendFault]) -> bool {
        self.opened.lock().unwrap()[0].script_append(id, faults.iter().copied());
        true
    }
}

#[test]
fn the_in_memory_journal_conforms() {
    let report = now(tck::journal(&Memory::default(), Flags::default()));
    report.assert_conforms();
    assert_eq!((report.cases.len(), report.skipped().count()), (46, 0), "{report}");
}

struct Snapshots(Mutex<Option<InMemorySnapshots>>);

#[async_trait]
impl SnapshotFactory for Snapshots {
    async fn open(&self) -> Arc<dyn SnapshotStore> {
        let store = InMemorySnapshots::default();
        self.0.lock().unwrap().get_or_insert_with(|| store.clone());
        Arc::new(store)
    }

    async fn corrupt(&self, _: &Arc<dyn SnapshotStore>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.0.lock().unwrap().as_ref().is_some_and(|store| store.damage(id, seq_nr, false))
    }
}

#[test]
fn the_in_memory_snapshots_conform() {
    let report = now(tck::snapshots(&Snapshots(Mutex::default()), Flags::default()));
    report.assert_conforms();
    assert_eq!(report.skipped().count(), 0, "{report}");
}

/// A rule of the contract that is left out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bug {
    NoEpochCheck,
    NoNumberCheck,
    NoGenerationCheck,
    SeenNotCompared,
    EveryClaimRaises,
    RetryNotRecognised,
    AnyRetryIsOk,
    HighestForgottenOnDelete,
    DeletedStillRead,
    LimitIgnored,
    NextLost,
    ClockUnchecked,
    TagsLost,
    AppendTorn,
    ChecksumUnchecked,
    RefusalAfterUnanswered,
    DropCancels,
    UnfencedDelete,
}

/// A journal with one bug, around one without.
struct Broken {
    inner: InMemoryJournal,
    bug: Bug,
}

impl Broken {
    async fn current(&self, append: Append) -> Append {
        let head = self.inner.head(&append.id).await.unwrap();
        Append { epoch: head.epoch, writer_uuid: head.writer_uuid, ..append }
    }

    /// Appends as the writer that holds the claim, even if `append` is another writer's.
    async fn forced(&self, append: Append) -> Result<Appended, AppendError> {
        let append = self.current(append).await;
        self.inner.append(append).await
    }
}

#[async_trait]
impl Journal for Broken {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn claim(&self, id: &PersistenceId, uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        let head = self.inner.head(id).await.unwrap();
        let (uuid, under) = match (self.bug, under) {
            (Bug::NoGenerationCheck, Under::Generation(_)) | (Bug::SeenNotCompared, Under::Seen(_)) => {
                (uuid, Under::Seen(head.epoch))
            }
            (Bug::EveryClaimRaises, _) if head.writer_uuid == uuid => {
                self.inner.claim(id, WriterUuid::from_u128(u128::MAX), Under::Seen(head.epoch)).await?;
                (uuid, Under::Seen(head.epoch.raised()))
            }
            (_, under) => (uuid, under),
        };
        self.inner.claim(id, uuid, under).await
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        self.inner.advance(id, epoch, to).await
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let answer = match self.bug {
            Bug::NoEpochCheck => return self.forced(append).await,
            Bug::NoNumberCheck => {
                let first = self.inner.head(&append.id).await.unwrap().highest.next().unwrap();
                return self.inner.append(Append { first, ..append }).await;
            }
            Bug::RetryNotRecognised => {
                let head = self.inner.head(&append.id).await.unwrap();
                if append.first <= head.highest {
                    return Err(if append.epoch == head.epoch {
                        AppendError::Conflict { highest: head.highest }
                    } else {
                        AppendError::Fenced { current: head }
                    });
                }
                self.inner.append(append).await
            }
            Bug::TagsLost => {
                let events = append.events.into_iter().map(|event| NewEvent { tags: Default::default(), ..event });
                return self.inner.append(Append { events: events.collect(), ..append }).await;
            }
            Bug::AppendTorn if append.events.len() > self.caps().max_atomic_events => {
                let events = append.events[..1].to_vec();
                self.inner.append(Append { events, ..append.clone() }).await.ok();
                self.inner.append(append).await
            }
            Bug::DropCancels => {
                // Append only at the second poll, so that a dropped future loses the append.
                let mut polled = false;
                std::future::poll_fn(|cx| {
                    if std::mem::replace(&mut polled, true) {
                        return std::task::Poll::Ready(());
                    }
                    cx.waker().wake_by_ref();
                    std::task::Poll::Pending
                })
                .await;
                self.inner.append(append).await
            }
            _ => self.inner.append(append).await,
        };
        match answer {
            Err(AppendError::Conflict { .. }) if self.bug == Bug::AnyRetryIsOk => {
                Ok(Appended { timestamp: Timestamp::default() })
            }
            Err(AppendError::Unknown(failure)) if self.bug == Bug::RefusalAfterUnanswered => {
                Err(AppendError::NotStored(failure))
            }
            Ok(_) if self.bug == Bug::ClockUnchecked => Ok(Appended { timestamp: Timestamp::from_micros(7) }),
            answer => answer,
        }
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        match self.bug {
            Bug::LimitIgnored => self.inner.read(id, ReadRange { max_events: 1000, ..range }).await,
            Bug::NextLost => self.inner.read(id, range).await.map(|page| Page { next: None, ..page }),
            Bug::ChecksumUnchecked => match self.inner.read(id, range).await {
                Err(ReadError::Corrupt(_)) => Ok(Page { records: self.inner.events(id), next: None }),
                answer => answer,
            },
            _ => self.inner.read(id, range).await,
        }
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        let head = self.inner.head(id).await?;
        Ok(match self.bug {
            Bug::HighestForgottenOnDelete if head.deleted_to == head.highest => {
                Head { highest: SeqNr::ZERO, deleted_to: SeqNr::ZERO, ..head }
            }
            _ => head,
        })
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        let head = self.inner.head(id).await.unwrap();
        match self.bug {
            Bug::UnfencedDelete => self.inner.delete_to(id, head.epoch, to).await,
            Bug::DeletedStillRead => Ok(to.min(head.highest)),
            _ => self.inner.delete_to(id, epoch, to).await,
        }
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

struct BrokenFactory(Bug, Memory);

#[async_trait]
impl JournalFactory for BrokenFactory {
    async fn open(&self) -> Arc<dyn Journal> {
        self.1.open().await;
        let inner = self.1.opened.lock().unwrap().last().unwrap().clone();
        Arc::new(Broken { inner, bug: self.0 })
    }

    async fn corrupt(&self, journal: &Arc<dyn Journal>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.1.corrupt(journal, id, seq_nr).await
    }

    async fn script_append(&self, journal: &Arc<dyn Journal>, id: &PersistenceId, faults: &[AppendFault]) -> bool {
        self.1.script_append(journal, id, faults).await
    }
}

/// Polls until done; the only journal here that waits wakes its task itself.
fn run(future: impl Future<Output = Report>) -> Report {
    let mut future = Box::pin(future);
    loop {
        if let Some(report) = future.as_mut().now_or_never() {
            return report;
        }
    }
}

#[test]
fn every_planted_bug_is_found() {
    for (bug, case) in [
        (Bug::NoEpochCheck, "23"),
        (Bug::NoEpochCheck, "25"),
        (Bug::NoEpochCheck, "27"),
        (Bug::NoNumberCheck, "21"),
        (Bug::NoNumberCheck, "22"),
        (Bug::NoGenerationCheck, "42"),
        (Bug::SeenNotCompared, "46"),
        (Bug::EveryClaimRaises, "44"),
        (Bug::RetryNotRecognised, "26"),
        (Bug::AnyRetryIsOk, "45"),
        (Bug::HighestForgottenOnDelete, "40"),
        (Bug::DeletedStillRead, "12"),
        (Bug::LimitIgnored, "04"),
        (Bug::NextLost, "33"),
        (Bug::ClockUnchecked, "32"),
        (Bug::TagsLost, "29"),
        (Bug::AppendTorn, "20"),
        (Bug::ChecksumUnchecked, "37"),
        (Bug::RefusalAfterUnanswered, "43"),
        (Bug::DropCancels, "36"),
        (Bug::UnfencedDelete, "23"),
    ] {
        let flags = Flags { concurrent_ids: 10, largest: false, ..Flags::default() };
        let report = run(tck::journal(&BrokenFactory(bug, Memory::default()), flags));
        assert!(report.failed().any(|name| name.starts_with(case)), "{bug:?} must fail case {case}:\n{report}");
    }
}

/// A snapshot store that returns the latest save as the newest snapshot.
struct LatestSave(InMemorySnapshots, Mutex<Vec<Snapshot>>);

#[async_trait]
impl SnapshotStore for LatestSave {
    fn caps(&self) -> SnapshotCaps {
        self.0.caps()
    }

    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        let saved = self.1.lock().unwrap();
        Ok(saved.iter().rev().find(|found| found.id == *id && criteria.matches(found.seq_nr, found.timestamp)).cloned())
    }

    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError> {
        let timestamp = self.0.save(snapshot.clone()).await?;
        self.1.lock().unwrap().push(snapshot.stored(timestamp));
        Ok(timestamp)
    }

    async fn delete(&self, id: &PersistenceId, _: SeqNr) -> Result<(), SnapshotError> {
        self.1.lock().unwrap().retain(|saved| saved.id != *id);
        Ok(())
    }

    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError> {
        let all_times =
            SnapshotCriteria { min_seq_nr: criteria.min_seq_nr, ..SnapshotCriteria::up_to(criteria.max_seq_nr) };
        self.1.lock().unwrap().retain(|saved| saved.id != *id || !all_times.matches(saved.seq_nr, saved.timestamp));
        Ok(())
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.0.close().await
    }
}

#[test]
fn planted_bugs_of_a_snapshot_store_are_found() {
    let open =
        || async { Arc::new(LatestSave(InMemorySnapshots::default(), Mutex::default())) as Arc<dyn SnapshotStore> };
    let report = now(tck::snapshots(&open, Flags { largest: false, ..Flags::default() }));
    let failed: Vec<&str> = report.failed().map(|name| &name[..2]).collect();
    assert_eq!(failed, ["04", "07", "08", "09", "17"], "{report}");
}

/// A snapshot store that writes the first half of a snapshot at the first poll, and the rest at the second.
struct InHalves(InMemorySnapshots);

#[async_trait]
impl SnapshotStore for InHalves {
    fn caps(&self) -> SnapshotCaps {
        self.0.caps()
    }

    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        self.0.load(id, criteria).await
    }

    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError> {
        let half = snapshot.payload.slice(..snapshot.payload.len() / 2);
        self.0.save(NewSnapshot { payload: half, ..snapshot.clone() }).await?;
        tokio::task::yield_now().await;
        self.0.save(snapshot).await
    }

    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError> {
        self.0.delete(id, seq_nr).await
    }

    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError> {
        self.0.delete_matching(id, criteria).await
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.0.close().await
    }
}

#[tokio::test]
async fn a_half_written_snapshot_is_found() {
    let open = || async { Arc::new(InHalves(InMemorySnapshots::default())) as Arc<dyn SnapshotStore> };
    let report = tck::snapshots(&open, Flags { largest: false, ..Flags::default() }).await;
    let failed: Vec<&str> = report.failed().map(|name| &name[..2]).collect();
    assert_eq!(failed, ["14"], "{report}");
}
