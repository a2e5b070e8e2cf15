//! Queues that violate one guarantee each; the kit must detect each violation.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use greylag_core::Encoded;
use greylag_delivery::queue::{Confirmation, MessageSent, Qualifier, QueueError, QueueState};
use greylag_delivery::tck::{QueueBench, durable_queue};
use greylag_delivery::{
    ControllerRef, DurableProducerQueue, Epoch, InMemoryProducerQueue, InMemoryQueues, QueueFault, SeqNr, StreamId,
};

/// The defect of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    BeginsAtZero,
    FreshStreamAtEachLoad,
    OneEpochForAll,
    WritesUnloaded,
    ForgetsAcks,
    StartsOverWhenEmptied,
    CutsNames,
    ForgottenByARestart,
    AnswersTheFirst,
    RepeatIsOutOfOrder,
    DropsTheMissingEnd,
    SilentAboveTheEnd,
    SilentAtGaps,
    WritesAgain,
    StuckWhenGivenUp,
    PromisesTooMuch,
    ConfirmsOneNumber,
    IgnoresQualifiers,
    LastConfirmationWins,
    ExactIsUpTo,
    ConfirmsAhead,
    ForgetsQualifiersInUse,
    ConfirmsOneByOne,
    HidesFailedStores,
    HidesFailedConfirmations,
    RetriesLoads,
    TakesTheQueueBack,
    AcknowledgesStaleNumbers,
    ClaimsAlways,
    KeptOutByAFailedLoad,
}

use Defect::*;

/// For each defect the case that must fail.
const CASES: [(Defect, &str); 31] = [
    (BeginsAtZero, "an empty queue begins at 1"),
    (FreshStreamAtEachLoad, "its numbering space is given once"),
    (OneEpochForAll, "every load raises the epoch"),
    (WritesUnloaded, "a queue is loaded before it is written"),
    (ForgetsAcks, "messages come back as they were stored (39)"),
    (StartsOverWhenEmptied, "a queue that was emptied goes on at its number (72)"),
    (CutsNames, "queues of different names know nothing of each other"),
    (ForgottenByARestart, "everything is there after a restart of the store"),
    (AnswersTheFirst, "a batch is stored whole and answered with its end (D1)"),
    (RepeatIsOutOfOrder, "a stored batch may be repeated, however old (40)"),
    (DropsTheMissingEnd, "of a batch that overlaps, the missing end is stored (D4)"),
    (SilentAboveTheEnd, "a batch above the end is out of order, and not stored (40)"),
    (SilentAtGaps, "a batch with a gap is out of order, and not stored"),
    (WritesAgain, "what is stored already writes nothing (40)"),
    (StuckWhenGivenUp, "a call that was given up may be repeated (D7)"),
    (PromisesTooMuch, "the largest message is stored, a larger one refused"),
    (ConfirmsOneNumber, "a confirmation takes those before it with it (41)"),
    (IgnoresQualifiers, "a confirmation is of one qualifier (42)"),
    (LastConfirmationWins, "a known confirmation changes nothing (41)"),
    (ExactIsUpTo, "exact numbers confirm themselves only (80)"),
    (ConfirmsAhead, "what was never stored cannot be confirmed"),
    (ForgetsQualifiersInUse, "old qualifiers are forgotten when nothing of theirs waits (43)"),
    (ConfirmsOneByOne, "one flush is one write, and known ones are none (D5)"),
    (HidesFailedStores, "a failed store is told, and its repeat stores once (§4.2)"),
    (HidesFailedConfirmations, "a failed confirmation is told, and its repeat counts"),
    (RetriesLoads, "a failed load is told, and its epoch is not used again"),
    (TakesTheQueueBack, "a second controller fences the first, for good"),
    (AcknowledgesStaleNumbers, "a number of another controller is fenced, not stored already (64)"),
    (ClaimsAlways, "a stale controller whose store failed claims nothing (64)"),
    (KeptOutByAFailedLoad, "the start of a dead predecessor keeps nobody out (87)"),
    (TakesTheQueueBack, "of two controllers exactly one goes on, in every order (87)"),
];

/// Cases tested elsewhere: one that fails as soon as any failure is hidden, and one that needs a queue of pieces.
const ELSEWHERE: [&str; 2] =
    ["the same with every single failure of a write (87)", "an incomplete message at the end was never stored (37)"];

/// Conforming queues behind a wrapper with a defect.
struct Broken {
    defect: Defect,
    disk: Mutex<InMemoryQueues>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    calls: AtomicU64,
    last: Mutex<BTreeMap<(String, Qualifier), (SeqNr, u64)>>,
}

struct BrokenQueue {
    defect: Defect,
    disk: InMemoryQueues,
    queue: InMemoryProducerQueue,
    shared: Arc<Shared>,
    controller: Option<ControllerRef>,
    current: SeqNr,
    failed: bool,
    busy: bool,
}

impl Broken {
    fn new(defect: Defect) -> Self {
        Self { defect, disk: Mutex::new(InMemoryQueues::new()), shared: Arc::default() }
    }

    fn disk(&self) -> InMemoryQueues {
        self.disk.lock().unwrap().clone()
    }
}

#[async_trait]
impl QueueBench for Broken {
    type Queue = BrokenQueue;

    async fn open(&self, queue: &str) -> BrokenQueue {
        let queue = if self.defect == CutsNames { queue.split('/').next().unwrap() } else { queue };
        BrokenQueue {
            defect: self.defect,
            disk: self.disk(),
            queue: self.disk().open(queue),
            shared: self.shared.clone(),
            controller: None,
            current: SeqNr(1),
            failed: false,
            busy: false,
        }
    }

    async fn plan(&self, queue: &str, passing: u32, fault: QueueFault) -> bool {
        self.disk().fail_write(queue, passing, fault);
        true
    }

    async fn writes(&self, queue: &str) -> Option<u64> {
        let again = if self.defect == WritesAgain { self.shared.calls.load(Ordering::Relaxed) } else { 0 };
        Some(self.disk().writes(queue) + again)
    }

    async fn restart(&self) -> bool {
        if self.defect == ForgottenByARestart {
            *self.disk.lock().unwrap() = InMemoryQueues::new();
        }
        true
    }
}

impl BrokenQueue {
    fn spoil(&self, state: &mut QueueState<Encoded>) {
        match self.defect {
            BeginsAtZero if state.current_seq_nr == SeqNr(1) => state.current_seq_nr = SeqNr(0),
            FreshStreamAtEachLoad => state.stream_id = StreamId(state.stream_id.0 ^ u128::from(state.epoch.0)),
            OneEpochForAll => state.epoch = Epoch(1),
            ForgetsAcks => state.unconfirmed.iter_mut().for_each(|sent| sent.ack = false),
            StartsOverWhenEmptied if state.unconfirmed.is_empty() => state.current_seq_nr = SeqNr(1),
            ForgetsQualifiersInUse => state.confirmed_seq_nr.retain(|_, (_, at)| *at > 1),
            LastConfirmationWins => {
                let last = self.shared.last.lock().unwrap();
                for (qualifier, confirmed) in &mut state.confirmed_seq_nr {
                    let key = (self.queue.name().to_owned(), qualifier.clone());
                    *confirmed = last.get(&key).copied().unwrap_or(*confirmed);
                }
            }
            _ => {}
        }
    }

    /// Replaces confirmations by the wrong ones of the defect.
    fn respell(&self, confirmations: Vec<Confirmation>) -> Vec<Confirmation> {
        let respell = |confirmation: Confirmation| match (self.defect, confirmation) {
            (ConfirmsOneNumber, Confirmation::UpTo { seq_nr, timestamp_ms, .. }) => {
                vec![Confirmation::Exact { seq_nrs: vec![seq_nr], timestamp_ms }]
            }
            (IgnoresQualifiers, Confirmation::UpTo { qualifier, seq_nr, timestamp_ms }) => {
                let seq_nrs = (1..=seq_nr.get()).map(SeqNr).collect();
                let all = Confirmation::Exact { seq_nrs, timestamp_ms };
                vec![Confirmation::UpTo { qualifier, seq_nr, timestamp_ms }, all]
            }
            (ExactIsUpTo, Confirmation::Exact { seq_nrs, timestamp_ms }) => {
                let seq_nr = seq_nrs.into_iter().max().unwrap_or_default();
                vec![Confirmation::UpTo { qualifier: "".into(), seq_nr, timestamp_ms }]
            }
            (LastConfirmationWins, Confirmation::UpTo { qualifier, seq_nr, timestamp_ms }) => {
                let key = (self.queue.name().to_owned(), qualifier.clone());
                self.shared.last.lock().unwrap().insert(key, (seq_nr, timestamp_ms));
                vec![Confirmation::UpTo { qualifier, seq_nr, timestamp_ms }]
            }
            (_, confirmation) => vec![confirmation],
        };
        confirmations.into_iter().flat_map(respell).collect()
    }

    async fn take_back(&mut self) -> Result<(), QueueError> {
        self.queue = self.disk.open(self.queue.name());
        let controller = self.controller.clone().ok_or(QueueError::NotLoaded)?;
        self.queue.load(&controller).await.map(drop)
    }
}

#[async_trait]
impl DurableProducerQueue<Encoded> for BrokenQueue {
    async fn load(&mut self, controller: &ControllerRef) -> Result<QueueState<Encoded>, QueueError> {
        self.controller = Some(controller.clone());
        if self.defect == ClaimsAlways {
            self.queue = self.disk.open(self.queue.name());
        }
        if self.defect == KeptOutByAFailedLoad && self.failed {
            return Err(QueueError::Fenced { by: None });
        }
        let mut loaded = self.queue.load(controller).await;
        if self.defect == RetriesLoads && matches!(loaded, Err(QueueError::OutcomeUnknown | QueueError::NotStored(_))) {
            loaded = self.queue.load(controller).await;
        }
        self.failed |= loaded.is_err();
        let mut state = loaded?;
        self.current = state.current_seq_nr;
        self.spoil(&mut state);
        Ok(state)
    }

    async fn store_message_sent(&mut self, batch: Vec<MessageSent<Encoded>>) -> Result<SeqNr, QueueError> {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        let first = batch.first().map(|sent| sent.seq_nr).unwrap_or(self.current);
        let last = batch.last().map(|sent| sent.seq_nr).unwrap_or_default();
        if self.defect == RepeatIsOutOfOrder && first < self.current {
            return Err(QueueError::OutOfOrder { expected: self.current });
        }
        if self.defect == DropsTheMissingEnd && first < self.current {
            return Ok(SeqNr(self.current.get() - 1));
        }
        if self.defect == StuckWhenGivenUp && std::mem::replace(&mut self.busy, true) {
            return Err(QueueError::Closed("a call was given up".into()));
        }
        let answer = self.queue.store_message_sent(batch.clone()).await;
        self.busy = false;
        let answer = match (self.defect, answer) {
            (AnswersTheFirst, Ok(_)) => Ok(first),
            (WritesUnloaded, Err(QueueError::NotLoaded)) => Ok(last),
            (SilentAboveTheEnd, Err(QueueError::OutOfOrder { .. })) if first > self.current => Ok(last),
            (SilentAtGaps, Err(QueueError::OutOfOrder { .. })) if first <= self.current => Ok(last),
            (HidesFailedStores, Err(QueueError::OutcomeUnknown | QueueError::NotStored(_))) => Ok(last),
            (AcknowledgesStaleNumbers, Err(QueueError::Fenced { .. })) => Ok(last),
            (TakesTheQueueBack, Err(QueueError::Fenced { .. })) => {
                self.take_back().await?;
                self.queue.store_message_sent(batch).await
            }
            (_, answer) => answer,
        };
        if let Ok(stored) = answer {
            self.current = self.current.max(SeqNr(stored.get() + 1));
        }
        answer
    }

    async fn store_message_confirmed(&mut self, confirmations: Vec<Confirmation>) -> Result<(), QueueError> {
        let confirmations = self.respell(confirmations);
        if self.defect == ConfirmsOneByOne {
            for confirmation in confirmations {
                self.queue.store_message_confirmed(vec![confirmation]).await?;
            }
            return Ok(());
        }
        let answer = self.queue.store_message_confirmed(confirmations).await;
        match (self.defect, answer) {
            (ConfirmsAhead, Err(QueueError::OutOfOrder { .. })) => Ok(()),
            (HidesFailedConfirmations, Err(QueueError::OutcomeUnknown | QueueError::NotStored(_))) => Ok(()),
            (TakesTheQueueBack, Err(QueueError::Fenced { .. })) => self.take_back().await,
            (_, answer) => answer,
        }
    }

    fn max_message_bytes(&self) -> usize {
        self.queue.max_message_bytes() + usize::from(self.defect == PromisesTooMuch)
    }
}

/// Each case of the kit fails for a queue with the corresponding defect, and every case has such a queue.
#[tokio::test]
async fn the_kit_sees_every_defect() {
    let mut seen = BTreeSet::from(ELSEWHERE);
    for (defect, case) in CASES {
        let report = durable_queue(&Broken::new(defect)).await;
        assert!(report.failed().any(|failed| failed == case), "{defect:?} is to fail {case:?}:\n{report}");
        seen.insert(case);
        let all: BTreeSet<&str> = report.cases.iter().map(|(name, _)| *name).collect();
        assert!(all.is_superset(&seen), "no such case: {:?}", seen.difference(&all));
        if defect == CASES[CASES.len() - 1].0 {
            let known: BTreeSet<&str> = CASES.iter().map(|(_, case)| *case).chain(ELSEWHERE).collect();
            assert_eq!(all, known, "a case without a defect proves nothing");
        }
    }
}

/// A hidden write failure is also detected by the interleavings with every failure, not only by the case about
/// failures.
#[tokio::test]
async fn the_kit_sees_hidden_failures_in_interleavings() {
    let report = durable_queue(&Broken::new(HidesFailedStores)).await;
    assert!(report.failed().any(|failed| failed == ELSEWHERE[0]), "{report}");
}
