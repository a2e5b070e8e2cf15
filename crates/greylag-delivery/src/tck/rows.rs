//! Cases of stores of rows.

use futures::future::join_all;
use greylag_core::Encoded;

use super::Report;
use super::case::{Checked, Failure, LONG_AGO, controller, expect, expect_eq, message, sent};
use crate::driver::QueueStore;
use crate::ids::{Epoch, SeqNr, StreamId};
use crate::queue::{MessageSent, QueueChange, QueueClaim, QueueHead, QueueRows, QueueStoreError};

/// How often concurrent calls are tried.
const ROUNDS: u64 = 20;

/// Tests a store of rows against every guarantee of [`QueueStore`], case by case;
/// [`durable_queue`](super::durable_queue) tests the queues over the store.
pub async fn queue_store<S: QueueStore>(store: &S) -> Report {
    let mut report = Report::default();
    report.add("a queue that was never claimed has no rows", unclaimed(store).await);
    report.add("a first claim makes the head row, once", first_claim(store).await);
    report.add("a claim needs the very epoch that it expects", expected_epoch(store).await);
    report.add("a claim leaves the numbers as they are", left_numbers(store).await);
    report.add("a change needs the epoch of the head row, or nothing of it is made", stale_change(store).await);
    report.add("a change writes and removes rows of every kind", every_kind(store).await);
    report.add("rows that are not there may be removed", removed_twice(store).await);
    report.add("of many claims at once one is made", many_claims(store).await);
    report.add("a change beside a claim is there before it, or not at all", beside_a_claim(store).await);
    report.add("rows of different names know nothing of each other", names(store).await);
    report
}

impl From<QueueStoreError> for Failure {
    fn from(error: QueueStoreError) -> Self {
        Self::Wrong(format!("a call failed: {error}"))
    }
}

/// A queue with a name that no other case and no other run uses.
struct Queue<'a, S> {
    store: &'a S,
    name: String,
}

fn claim(expected: Option<u64>, epoch: u64, instance: u64) -> QueueClaim {
    let (expected, epoch, stream_id) = (expected.map(Epoch), Epoch(epoch), StreamId(instance.into()));
    QueueClaim { expected, epoch, controller: controller(instance), stream_id }
}

fn change(epoch: u64, current: u64, messages: Vec<MessageSent<Encoded>>) -> QueueChange {
    let (removed, confirmed, forgotten) = Default::default();
    let (epoch, current, highest_confirmed) = (Epoch(epoch), SeqNr(current), SeqNr::NONE);
    QueueChange { epoch, current, highest_confirmed, messages, removed, confirmed, forgotten }
}

impl<'a, S: QueueStore> Queue<'a, S> {
    fn new(store: &'a S, name: &str) -> Self {
        Self { store, name: format!("conformance-{name}-{}", uuid::Uuid::new_v4().simple()) }
    }

    /// A queue that controller 1 has claimed under epoch 1.
    async fn claimed(store: &'a S, name: &str) -> Result<Self, QueueStoreError> {
        let queue = Self::new(store, name);
        queue.claim(&claim(None, 1, 1)).await?;
        Ok(queue)
    }

    async fn claim(&self, claim: &QueueClaim) -> Result<(), QueueStoreError> {
        self.store.claim(&self.name, claim).await
    }

    async fn write(&self, change: &QueueChange) -> Result<(), QueueStoreError> {
        self.store.write(&self.name, change).await
    }

    async fn head(&self) -> Result<Option<QueueHead>, QueueStoreError> {
        self.store.head(&self.name).await
    }

    /// All rows, sorted by qualifier.
    async fn rows(&self) -> Result<QueueRows, Failure> {
        let rows = self.store.read(&self.name).await?;
        let mut rows = rows.ok_or_else(|| Failure::Wrong("there is no head row".to_owned()))?;
        rows.confirmed.sort();
        Ok(rows)
    }
}

async fn unclaimed<S: QueueStore>(store: &S) -> Checked {
    let queue = Queue::new(store, "unclaimed");
    expect_eq(&queue.head().await?, &None, "the head row")?;
    expect_eq(&store.read(&queue.name).await?, &None, "all rows")?;
    let written = queue.write(&change(1, 2, sent([1]))).await;
    expect_eq(&written, &Err(QueueStoreError::Changed), "a change of it")?;
    let claimed = queue.claim(&claim(Some(1), 2, 1)).await;
    expect_eq(&claimed, &Err(QueueStoreError::Changed), "a claim that expects a head row")?;
    expect_eq(&store.read(&queue.name).await?, &None, "all rows after that")
}

async fn first_claim<S: QueueStore>(store: &S) -> Checked {
    let queue = Queue::claimed(store, "first").await?;
    let expected = QueueHead::claimed(None, &claim(None, 1, 1));
    expect_eq(&queue.head().await?, &expected, "the head row")?;
    let rows = queue.rows().await?;
    expect(Some(&rows.head) == expected.as_ref() && rows.messages.is_empty(), "the same, and no message")?;
    let again = queue.claim(&claim(None, 1, 2)).await;
    expect_eq(&again, &Err(QueueStoreError::Changed), "a second first claim")?;
    expect_eq(&queue.head().await?, &expected, "the head row after that")
}

async fn expected_epoch<S: QueueStore>(store: &S) -> Checked {
    let queue = Queue::claimed(store, "expected").await?;
    queue.claim(&claim(Some(1), 2, 2)).await?;
    for refused in [claim(Some(1), 2, 3), claim(Some(1), 3, 3), claim(Some(3), 4, 3), claim(None, 1, 3)] {
        let answer = queue.claim(&refused).await;
        expect_eq(&answer, &Err(QueueStoreError::Changed), "a claim that expects another epoch than 2")?;
    }
    let head = queue.head().await?;
    let found = head.as_ref().map(|head| (head.epoch, head.controller.clone(), head.stream_id));
    expect_eq(&found, &Some((Epoch(2), controller(2), StreamId(1))), "epoch, controller and stream")
}

async fn left_numbers<S: QueueStore>(store: &S) -> Checked {
    let queue = Queue::claimed(store, "numbers").await?;
    let written = QueueChange { highest_confirmed: SeqNr(2), removed: vec![SeqNr(2)], ..change(1, 4, sent(1..=3)) };
    queue.write(&QueueChange { removed: Vec::new(), ..written.clone() }).await?;
    queue.write(&QueueChange { messages: Vec::new(), ..written }).await?;
    let before = queue.rows().await?;
    queue.claim(&claim(Some(1), 2, 9)).await?;
    let after = queue.rows().await?;
    let head = QueueHead { epoch: Epoch(2), controller: controller(9), ..before.head.clone() };
    expect_eq(&after, &QueueRows { head, ..before }, "all rows after the claim")?;
    expect_eq(&(after.head.current, after.head.highest_confirmed), &(SeqNr(4), SeqNr(2)), "the numbers")
}

async fn stale_change<S: QueueStore>(store: &S) -> Checked {
    let queue = Queue::claimed(store, "stale").await?;
    let first = QueueChange { confirmed: vec![("q".into(), SeqNr(1), 7)], ..change(1, 3, sent([1, 2])) };
    queue.write(&first).await?;
    queue.claim(&claim(Some(1), 2, 2)).await?;
    let before = queue.rows().await?;
    for epoch in [1, 3] {
        let stale = QueueChange {
            highest_confirmed: SeqNr(2),
            removed: vec![SeqNr(1)],
            confirmed: vec![("q".into(), SeqNr(2), 8), ("r".into(), SeqNr(2), 8)],
            forgotten: vec!["q".into()],
            ..change(epoch, 9, sent([3]))
        };
        let answer = queue.write(&stale).await;
        expect_eq(&answer, &Err(QueueStoreError::Changed), "a change of another epoch")?;
        expect_eq(&queue.rows().await?, &before, "all rows after that")?;
    }
    Ok(())
}

async fn every_kind<S: QueueStore>(store: &S) -> Checked {
    let queue = Queue::claimed(store, "kinds").await?;
    let mut messages =
        vec![message(1, "a", ""), message(2, "\u{1f9a2}/'\"", vec![0, 255]), message(3, "", vec![7; 200_000])];
    messages[1].ack = true;
    messages[2].timestamp_ms = 1_700_000_000_123;
    let confirmed = vec![("a".into(), SeqNr(1), LONG_AGO), ("b".into(), SeqNr(2), 5), ("c".into(), SeqNr(3), 5)];
    queue.write(&QueueChange { confirmed, ..change(1, 4, messages.clone()) }).await?;
    let change = QueueChange {
        highest_confirmed: SeqNr(3),
        removed: vec![SeqNr(1), SeqNr(3)],
        confirmed: vec![("b".into(), SeqNr(3), 9), ("d".into(), SeqNr(1), 9)],
        forgotten: vec!["a".into()],
        ..change(1, 5, vec![message(4, "d", "four")])
    };
    queue.write(&change).await?;
    let rows = queue.rows().await?;
    expect_eq(&rows.messages, &vec![messages[1].clone(), message(4, "d", "four")], "the messages")?;
    let left = vec![("b".into(), SeqNr(3), 9), ("c".into(), SeqNr(3), 5), ("d".into(), SeqNr(1), 9)];
    expect_eq(&rows.confirmed, &left, "the qualifiers")?;
    expect_eq(&(rows.head.current, rows.head.highest_confirmed), &(SeqNr(5), SeqNr(3)), "the numbers")
}

async fn removed_twice<S: QueueStore>(store: &S) -> Checked {
    let queue = Queue::claimed(store, "removed").await?;
    queue.write(&change(1, 3, sent([1, 2]))).await?;
    let removal = || QueueChange {
        removed: vec![SeqNr(1), SeqNr(77)],
        forgotten: vec!["nobody".into()],
        ..change(1, 3, Vec::new())
    };
    queue.write(&removal()).await?;
    queue.write(&removal()).await?;
    expect_eq(&queue.rows().await?.messages, &sent([2]), "the messages")
}

async fn many_claims<S: QueueStore>(store: &S) -> Checked {
    let queue = Queue::new(store, "many");
    for round in 0..ROUNDS {
        let expected = (round > 0).then_some(round);
        let claims: Vec<_> = (1..=8).map(|instance| claim(expected, round + 1, instance)).collect();
        let answers = join_all(claims.iter().map(|claim| queue.claim(claim))).await;
        let made: Vec<_> = answers.iter().zip(&claims).filter(|(answer, _)| answer.is_ok()).collect();
        expect(made.len() == 1, format!("round {round}: {} claims of one epoch were made", made.len()))?;
        let refused = answers.iter().all(|answer| matches!(answer, Ok(()) | Err(QueueStoreError::Changed)));
        expect(refused, format!("round {round}: the others are told that it changed: {answers:?}"))?;
        let head = queue.head().await?;
        let found = head.map(|head| (head.epoch, head.controller));
        let winner = made.first().map(|(_, claim)| (claim.epoch, claim.controller.clone()));
        expect_eq(&found, &winner, "epoch and controller of the head row")?;
    }
    Ok(())
}

async fn beside_a_claim<S: QueueStore>(store: &S) -> Checked {
    let queue = Queue::claimed(store, "beside").await?;
    let mut current = 1;
    for epoch in 1..=ROUNDS {
        let (change, claim) = (change(epoch, current + 1, sent([current])), claim(Some(epoch), epoch + 1, epoch));
        let (claimed, written) = futures::join!(queue.claim(&claim), queue.write(&change));
        claimed?;
        match written {
            Ok(()) => current += 1,
            Err(QueueStoreError::Changed) => {}
            Err(error) => return Err(error.into()),
        }
        let rows = queue.rows().await?;
        let found = (rows.head.current, rows.messages.len() as u64);
        expect_eq(&found, &(SeqNr(current), current - 1), &format!("next number and messages after {written:?}"))?;
        expect_eq(&rows.head.epoch, &Epoch(epoch + 1), "the epoch")?;
    }
    Ok(())
}

async fn names<S: QueueStore>(store: &S) -> Checked {
    let queue = Queue::claimed(store, "names").await?;
    let longer = Queue { store, name: format!("{}/2", queue.name) };
    expect_eq(&longer.head().await?, &None, "the head row of a name that goes on")?;
    longer.claim(&claim(None, 1, 2)).await?;
    longer.write(&QueueChange { confirmed: vec![("q".into(), SeqNr(1), 5)], ..change(1, 3, sent([1, 2])) }).await?;
    let rows = queue.rows().await?;
    expect(rows.messages.is_empty() && rows.confirmed.is_empty(), "nothing is in the other one")?;
    expect_eq(&rows.head.controller, &controller(1), "its controller")
}
