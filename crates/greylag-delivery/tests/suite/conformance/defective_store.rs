//! Stores of rows that violate one guarantee each; the kit must detect each violation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use async_trait::async_trait;
use greylag_delivery::queue::{QueueChange, QueueClaim, QueueHead, QueueRows, QueueStoreError};
use greylag_delivery::tck::queue_store;
use greylag_delivery::{Epoch, InMemoryQueues, QueueStore, SeqNr};

/// The defect of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    WritesUnclaimed,
    MakesHeadsTwice,
    ClaimsWithoutLooking,
    CountsBack,
    WritesWithoutLooking,
    ForgetsNothing,
    RemovesStrictly,
    LooksBeforeItClaims,
    CutsNames,
}

use Defect::*;

/// For each defect a case that must fail.
const CASES: [(Defect, &str); 10] = [
    (WritesUnclaimed, "a queue that was never claimed has no rows"),
    (MakesHeadsTwice, "a first claim makes the head row, once"),
    (ClaimsWithoutLooking, "a claim needs the very epoch that it expects"),
    (CountsBack, "a claim leaves the numbers as they are"),
    (WritesWithoutLooking, "a change needs the epoch of the head row, or nothing of it is made"),
    (ForgetsNothing, "a change writes and removes rows of every kind"),
    (RemovesStrictly, "rows that are not there may be removed"),
    (ClaimsWithoutLooking, "of many claims at once one is made"),
    (LooksBeforeItClaims, "a change beside a claim is there before it, or not at all"),
    (CutsNames, "rows of different names know nothing of each other"),
];

/// A conforming store behind a wrapper with a defect.
struct Broken {
    defect: Defect,
    rows: InMemoryQueues,
    /// By queue: the epoch and the numbers written by its last claim.
    seen: Mutex<BTreeMap<String, (Epoch, SeqNr)>>,
}

impl Broken {
    fn name<'a>(&self, queue: &'a str) -> &'a str {
        if self.defect == CutsNames { queue.split('/').next().unwrap() } else { queue }
    }

    fn spoil(&self, queue: &str, mut head: QueueHead) -> QueueHead {
        let seen = self.seen.lock().unwrap().get(queue).copied();
        if let Some((_, current)) = seen.filter(|(epoch, _)| *epoch == head.epoch) {
            head.current = current;
        }
        head
    }
}

#[async_trait]
impl QueueStore for Broken {
    async fn head(&self, queue: &str) -> Result<Option<QueueHead>, QueueStoreError> {
        let head = self.rows.head(self.name(queue)).await?;
        Ok(head.map(|head| self.spoil(queue, head)))
    }

    async fn read(&self, queue: &str) -> Result<Option<QueueRows>, QueueStoreError> {
        let rows = self.rows.read(self.name(queue)).await?;
        Ok(rows.map(|rows| QueueRows { head: self.spoil(queue, rows.head.clone()), ..rows }))
    }

    async fn claim(&self, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError> {
        if matches!(self.defect, CountsBack | LooksBeforeItClaims) && claim.expected.is_some() {
            let before = self.rows.head(queue).await?.ok_or(QueueStoreError::Changed)?;
            let current = if self.defect == CountsBack { SeqNr(1) } else { before.current };
            tokio::task::yield_now().await;
            self.rows.claim(queue, claim).await?;
            self.seen.lock().unwrap().insert(queue.to_owned(), (claim.epoch, current));
            return Ok(());
        }
        match self.rows.claim(self.name(queue), claim).await {
            Err(QueueStoreError::Changed) if self.defect == MakesHeadsTwice && claim.expected.is_none() => Ok(()),
            Err(QueueStoreError::Changed) if self.defect == ClaimsWithoutLooking && claim.expected.is_some() => Ok(()),
            answer => answer,
        }
    }

    async fn write(&self, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError> {
        let mut change = change.clone();
        let stored = self.rows.read(self.name(queue)).await?;
        match (self.defect, stored) {
            (WritesUnclaimed, None) => return Ok(()),
            (WritesWithoutLooking, Some(rows)) => change.epoch = rows.head.epoch,
            (ForgetsNothing, _) => change.forgotten.clear(),
            (RemovesStrictly, Some(rows)) => {
                let is_there = |seq_nr: &SeqNr| rows.messages.iter().any(|sent| sent.seq_nr == *seq_nr);
                if !change.removed.iter().all(is_there) {
                    return Err(QueueStoreError::Rejected("it is not there".into()));
                }
            }
            _ => {}
        }
        self.rows.write(self.name(queue), &change).await
    }

    fn max_message_bytes(&self) -> usize {
        self.rows.max_message_bytes()
    }
}

/// Each case of the kit fails for a store with the corresponding defect, and every case has such a store.
#[tokio::test]
async fn the_kit_of_stores_sees_every_defect() {
    let known: BTreeSet<&str> = CASES.iter().map(|(_, case)| *case).collect();
    for (defect, case) in CASES {
        let broken = Broken { defect, rows: InMemoryQueues::new(), seen: Mutex::default() };
        let report = queue_store(&broken).await;
        assert!(report.failed().any(|failed| failed == case), "{defect:?} is to fail {case:?}:\n{report}");
        let all: BTreeSet<&str> = report.cases.iter().map(|(name, _)| *name).collect();
        assert_eq!(all, known, "a case without a defect proves nothing");
    }
}
