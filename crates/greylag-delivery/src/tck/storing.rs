//! Cases of storing messages: all or none, each once, in the order of their numbers.

use futures::FutureExt;

use super::case::{Case, Checked, controller, expect, expect_eq, message, numbers, sent, store};
use super::{QueueBench, Report};
use crate::driver::DurableProducerQueue;
use crate::ids::SeqNr;
use crate::queue::QueueError;

/// Messages larger than this are not tried, even if a queue accepts them.
const LARGEST_TRIED: usize = 64 << 20;

pub(super) async fn run<B: QueueBench>(bench: &B, report: &mut Report) {
    report.add("a batch is stored whole and answered with its end (D1)", batches(bench).await);
    report.add("a stored batch may be repeated, however old (40)", repeated(bench).await);
    report.add("of a batch that overlaps, the missing end is stored (D4)", overlapping(bench).await);
    report.add("a batch above the end is out of order, and not stored (40)", above(bench).await);
    report.add("a batch with a gap is out of order, and not stored", gaps(bench).await);
    report.add("what is stored already writes nothing (40)", writes_nothing(bench).await);
    report.add("a call that was given up may be repeated (D7)", given_up(bench).await);
    report.add("the largest message is stored, a larger one refused", large(bench).await);
}

async fn batches<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "batches");
    let (mut queue, _) = case.loaded(1).await?;
    expect_eq(&store(&mut queue, []).await?, &0, "the answer to an empty batch")?;
    expect_eq(&store(&mut queue, [1]).await?, &1, "the answer to one message")?;
    expect_eq(&store(&mut queue, 2..=200).await?, &200, "the answer to many")?;
    expect_eq(&store(&mut queue, []).await?, &200, "the answer to an empty batch")?;
    bench.close(queue).await;
    let state = case.stored(2).await?;
    expect_eq(&state.unconfirmed, &sent(1..=200), "the messages, by rising numbers")?;
    expect_eq(&state.current_seq_nr, &SeqNr(201), "the next number")
}

async fn repeated<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "repeated");
    let (mut queue, _) = case.loaded(1).await?;
    store(&mut queue, 1..=3).await?;
    expect_eq(&store(&mut queue, [3]).await?, &3, "the newest again")?;
    expect_eq(&store(&mut queue, [1]).await?, &3, "the oldest again")?;
    expect_eq(&store(&mut queue, [1, 2]).await?, &3, "in another grouping")?;
    queue.load(&controller(1)).await?;
    expect_eq(&store(&mut queue, 1..=3).await?, &3, "after the controller loaded again")?;
    bench.close(queue).await;
    let (mut queue, _) = case.loaded(2).await?;
    expect_eq(&store(&mut queue, [2]).await?, &3, "by a controller that loaded it")?;
    bench.close(queue).await;
    expect_eq(&numbers(&case.stored(3).await?), &vec![1, 2, 3], "each is stored once")
}

async fn overlapping<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "overlapping");
    let (mut queue, _) = case.loaded(1).await?;
    store(&mut queue, [1, 2]).await?;
    expect_eq(&store(&mut queue, 1..=4).await?, &4, "two are known, two are new")?;
    bench.close(queue).await;
    expect_eq(&case.stored(2).await?.unconfirmed, &sent(1..=4), "the messages")
}

async fn above<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "above");
    let (mut queue, _) = case.loaded(1).await?;
    let expected = |seq_nr| Err(QueueError::OutOfOrder { expected: SeqNr(seq_nr) });
    expect_eq(&store(&mut queue, [2]).await, &expected(1), "a store above the end of an empty queue")?;
    store(&mut queue, [1, 2]).await?;
    expect_eq(&store(&mut queue, [4, 5]).await, &expected(3), "a store above the end")?;
    expect_eq(&store(&mut queue, [3]).await?, &3, "the queue goes on")?;
    bench.close(queue).await;
    let state = case.stored(2).await?;
    expect_eq(&numbers(&state), &vec![1, 2, 3], "the messages")?;
    expect_eq(&state.current_seq_nr, &SeqNr(4), "the next number")
}

async fn gaps<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "gaps");
    let (mut queue, _) = case.loaded(1).await?;
    store(&mut queue, [1]).await?;
    for batch in [vec![2, 4], vec![2, 2], vec![2, 3, 3], vec![3, 2], vec![0, 1], vec![1, 3]] {
        let answer = store(&mut queue, batch.clone()).await;
        let is_refused = matches!(answer, Err(QueueError::OutOfOrder { .. }));
        expect(is_refused, format!("a batch of {batch:?}: expected OutOfOrder, found {answer:?}"))?;
    }
    expect_eq(&store(&mut queue, [2]).await?, &2, "the queue goes on")?;
    bench.close(queue).await;
    expect_eq(&numbers(&case.stored(2).await?), &vec![1, 2], "the messages")
}

async fn writes_nothing<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "idle");
    case.counts_writes().await?;
    let (mut queue, _) = case.loaded(1).await?;
    store(&mut queue, 1..=3).await?;
    let before = case.writes().await;
    store(&mut queue, [3]).await?;
    store(&mut queue, [1, 2]).await?;
    store(&mut queue, []).await?;
    let _out_of_order = store(&mut queue, [9]).await;
    expect_eq(&case.writes().await, &before, "the number of writes")?;
    store(&mut queue, 4..=50).await?;
    expect(case.writes().await > before, "news are written")
}

async fn given_up<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "given-up");
    let (mut queue, _) = case.loaded(1).await?;
    for end in 2..=9 {
        // The caller drops the call before it is answered, as after a timeout.
        let _given_up = queue.store_message_sent(sent(1..=end)).now_or_never();
        expect_eq(&store(&mut queue, 1..=end).await?, &end, "the same call again")?;
    }
    let confirmations = || vec![super::case::up_to("", 3, super::case::far_ahead())];
    let _given_up = queue.store_message_confirmed(confirmations()).now_or_never();
    queue.store_message_confirmed(confirmations()).await?;
    let _given_up = queue.load(&controller(1)).now_or_never();
    let state = queue.load(&controller(1)).await?;
    expect_eq(&numbers(&state), &(4..=9).collect(), "the messages")?;
    expect_eq(&store(&mut queue, [10]).await?, &10, "the queue goes on")?;
    bench.close(queue).await;
    expect_eq(&case.stored(2).await?.unconfirmed, &sent(4..=10), "each is stored once")
}

async fn large<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "large");
    let (mut queue, _) = case.loaded(1).await?;
    let max = queue.max_message_bytes();
    let filled = |bytes: usize| (0..bytes).map(|at| (at % 251) as u8).collect::<Vec<u8>>();
    let largest = message(1, "", filled(max.min(LARGEST_TRIED)));
    expect_eq(&queue.store_message_sent(vec![largest.clone()]).await?, &SeqNr(1), "the largest message")?;
    if max < LARGEST_TRIED {
        let batch = vec![message(2, "", "small"), message(3, "", filled(max * 2 + (1 << 20)))];
        let answer = queue.store_message_sent(batch).await;
        let is_refused = matches!(answer, Err(QueueError::Rejected(_)));
        expect(is_refused, format!("a message above twice the limit: expected Rejected, found {answer:?}"))?;
    }
    queue.load(&controller(1)).await?;
    expect_eq(&store(&mut queue, [2]).await?, &2, "the queue goes on")?;
    bench.close(queue).await;
    let state = case.stored(2).await?;
    expect_eq(&numbers(&state), &vec![1, 2], "nothing of a refused batch is stored")?;
    expect(state.unconfirmed.first() == Some(&largest), "the largest message comes back as it was")
}
