//! Two writers of one id in every interleaving, over the journal in memory; and over journals that lack a
//! rule, which the kit must find.

use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;
use greylag_persistence::tck::{self, Flags, Outcome, Report};
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, Claim, ClaimError, CloseError, DeleteError, Head, Health,
    InMemoryJournal, InMemorySnapshots, Journal, Page, PersistenceId, ReadError, ReadRange, SeqNr, SnapshotStore,
    Under, WriterEpoch, WriterUuid,
};

/// Memory never waits, so no runtime is needed.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("memory never waits")
}

fn play(bug: Option<Bug>, flags: Flags) -> Report {
    let journals = move || async move {
        let journal = InMemoryJournal::default();
        match bug {
            None => Arc::new(journal) as Arc<dyn Journal>,
            Some(bug) => Arc::new(Broken(bug, journal)),
        }
    };
    let snapshots = || async { Arc::new(InMemorySnapshots::default()) as Arc<dyn SnapshotStore> };
    now(tck::writers(&journals, &snapshots, flags))
}

/// Scenarios persistence 63, 65 and 69, exhaustively: rules J3, J4, J9 and J10.
#[test]
fn two_writers_have_one_history_in_every_interleaving() {
    let report = play(None, Flags { interleavings: usize::MAX, ..Flags::default() });
    report.assert_conforms();
    assert_eq!((report.cases.len(), report.skipped().count()), (6, 0), "{report}");
}

/// A rule of the fence that is left out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bug {
    /// Appends under any epoch.
    EpochCheck,
    /// Appends at any number.
    NumberCheck,
    GenerationCheck,
    SeenCheck,
    /// A repeated claim raises the epoch.
    SameWriter,
    /// A repeated append is another append.
    Repeat,
    /// The fence is checked before the search for an earlier try.
    RepeatAfterFence,
    /// Deletes under any epoch.
    DeleteFence,
    /// The highest number is that of the last event that is not deleted.
    HighestForgotten,
}

struct Broken(Bug, InMemoryJournal);

impl Broken {
    fn head_now(&self, id: &PersistenceId) -> Head {
        now(self.1.head(id)).unwrap()
    }
}

#[async_trait]
impl Journal for Broken {
    fn caps(&self) -> Caps {
        self.1.caps()
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        let head = self.head_now(id);
        let under = match (self.0, under) {
            (Bug::GenerationCheck, Under::Generation(_)) | (Bug::SeenCheck, Under::Seen(_)) => Under::Seen(head.epoch),
            (_, under) => under,
        };
        if self.0 == Bug::SameWriter && head.writer_uuid == writer_uuid && head.epoch != WriterEpoch::NONE {
            // Another writer claims in between, which is no step of the script.
            self.1.claim(id, WriterUuid::from_u128(u128::MAX), Under::Seen(head.epoch)).await?;
            let under = if let Under::Seen(_) = under { Under::Seen(head.epoch.raised()) } else { under };
            return self.1.claim(id, writer_uuid, under).await;
        }
        self.1.claim(id, writer_uuid, under).await
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        self.1.advance(id, epoch, to).await
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let head = self.head_now(&append.id);
        let repeats = self
            .1
            .events(&append.id)
            .iter()
            .any(|event| event.writer_uuid == append.writer_uuid && Some(event.seq_nr) == append.last());
        let append = match self.0 {
            Bug::EpochCheck if !repeats => Append { epoch: head.epoch, writer_uuid: head.writer_uuid, ..append },
            Bug::NumberCheck if !repeats => Append { first: head.highest.next().unwrap(), ..append },
            Bug::Repeat if repeats => Append { first: head.highest.next().unwrap(), ..append },
            Bug::RepeatAfterFence if append.epoch != head.epoch => {
                return Err(AppendError::Fenced { current: head });
            }
            _ => append,
        };
        self.1.append(append).await
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        self.1.read(id, range).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        let head = self.head_now(id);
        let is_empty = self.1.events(id).is_empty();
        let highest = if self.0 == Bug::HighestForgotten && is_empty { SeqNr::ZERO } else { head.highest };
        Ok(Head { highest, ..head })
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        let epoch = if self.0 == Bug::DeleteFence { self.head_now(id).epoch } else { epoch };
        self.1.delete_to(id, epoch, to).await
    }

    fn health(&self) -> Health {
        self.1.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.1.close().await
    }
}

/// Scenario persistence 68: a missing rule is found, even by the share of interleavings that every backend plays.
#[test]
fn scenario_68_every_clause_left_out_is_found() {
    for (bug, cases) in [
        (Bug::EpochCheck, &["01", "02", "03"][..]),
        (Bug::NumberCheck, &["05"]),
        (Bug::GenerationCheck, &["01", "02"]),
        (Bug::SeenCheck, &["01", "02"]),
        (Bug::SameWriter, &["04"]),
        (Bug::Repeat, &["02"]),
        (Bug::RepeatAfterFence, &["02"]),
        (Bug::DeleteFence, &["05", "06"]),
        (Bug::HighestForgotten, &["05"]),
    ] {
        let report = play(Some(bug), Flags::default());
        for case in cases {
            let outcome = report.cases.iter().find(|(name, _)| name.starts_with(case)).map(|(_, outcome)| outcome);
            assert!(matches!(outcome, Some(Outcome::Failed(_))), "{bug:?} must fail case {case}:\n{report}");
        }
    }
}
