//! Cases of confirmations: by qualifier, by exact numbers, and never twice.

use super::case::{
    Case, Checked, LONG_AGO, confirm, controller, exact, expect, expect_eq, far_ahead, message, numbers, store, up_to,
};
use super::{QueueBench, Report};
use crate::driver::DurableProducerQueue;
use crate::ids::SeqNr;
use crate::queue::QueueError;

pub(super) async fn run<B: QueueBench>(bench: &B, report: &mut Report) {
    report.add("a confirmation takes those before it with it (41)", up_to_a_number(bench).await);
    report.add("a confirmation is of one qualifier (42)", qualifiers(bench).await);
    report.add("a known confirmation changes nothing (41)", known(bench).await);
    report.add("exact numbers confirm themselves only (80)", exact_numbers(bench).await);
    report.add("what was never stored cannot be confirmed", unknown_numbers(bench).await);
    report.add("old qualifiers are forgotten when nothing of theirs waits (43)", cleanup(bench).await);
    report.add("one flush is one write, and known ones are none (D5)", one_write(bench).await);
}

async fn up_to_a_number<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "confirm");
    let (mut queue, _) = case.loaded(1).await?;
    store(&mut queue, 1..=3).await?;
    confirm(&mut queue, up_to("", 2, far_ahead())).await?;
    let state = queue.load(&controller(1)).await?;
    expect_eq(&numbers(&state), &vec![3], "the messages")?;
    expect_eq(&state.highest_confirmed_seq_nr, &SeqNr(2), "the highest confirmed number")?;
    expect_eq(&state.current_seq_nr, &SeqNr(4), "the next number")?;
    let confirmed = [("".into(), (SeqNr(2), far_ahead()))].into();
    expect_eq(&state.confirmed_seq_nr, &confirmed, "the confirmed numbers")?;
    bench.close(queue).await;
    let after = case.stored(2).await?;
    let expected = crate::queue::QueueState { epoch: after.epoch, ..state };
    expect_eq(&after, &expected, "the state that the next controller finds")
}

async fn qualifiers<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "qualifiers");
    let (mut queue, _) = case.loaded(1).await?;
    let batch = [(1, "q1"), (2, "q1"), (3, "q2"), (4, "q2"), (5, "q2")].map(|(seq_nr, q)| message(seq_nr, q, "m"));
    queue.store_message_sent(batch.into()).await?;
    confirm(&mut queue, up_to("q2", 4, far_ahead())).await?;
    bench.close(queue).await;
    let state = case.stored(2).await?;
    expect_eq(&numbers(&state), &vec![1, 2, 5], "the messages")?;
    expect_eq(&state.highest_confirmed_seq_nr, &SeqNr(4), "the highest confirmed number")?;
    expect_eq(&state.confirmed_seq_nr, &[("q2".into(), (SeqNr(4), far_ahead()))].into(), "the confirmed numbers")
}

async fn known<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "known");
    let (mut queue, _) = case.loaded(1).await?;
    store(&mut queue, 1..=4).await?;
    confirm(&mut queue, up_to("", 3, far_ahead())).await?;
    confirm(&mut queue, up_to("", 3, far_ahead() + 1)).await?;
    confirm(&mut queue, up_to("", 1, far_ahead() + 1)).await?;
    confirm(&mut queue, exact([2])).await?;
    bench.close(queue).await;
    let state = case.stored(2).await?;
    expect_eq(&numbers(&state), &vec![4], "the messages")?;
    expect_eq(&state.highest_confirmed_seq_nr, &SeqNr(3), "the highest confirmed number")?;
    let confirmed = [("".into(), (SeqNr(3), far_ahead()))].into();
    expect_eq(&state.confirmed_seq_nr, &confirmed, "the confirmed numbers")
}

async fn exact_numbers<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "exact");
    let (mut queue, _) = case.loaded(1).await?;
    store(&mut queue, 1..=5).await?;
    confirm(&mut queue, exact([3])).await?;
    expect_eq(&numbers(&queue.load(&controller(1)).await?), &vec![1, 2, 4, 5], "after 3 alone was confirmed")?;
    queue.store_message_confirmed(vec![exact([1]), exact([5, 3])]).await?;
    bench.close(queue).await;
    let state = case.stored(2).await?;
    expect_eq(&numbers(&state), &vec![2, 4], "the messages")?;
    expect_eq(&state.highest_confirmed_seq_nr, &SeqNr(5), "the highest confirmed number")
}

async fn unknown_numbers<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "unknown");
    let (mut queue, _) = case.loaded(1).await?;
    store(&mut queue, [1]).await?;
    for confirmation in [up_to("", 2, far_ahead()), exact([1, 2])] {
        let answer = confirm(&mut queue, confirmation).await;
        expect_eq(&answer, &Err(QueueError::OutOfOrder { expected: SeqNr(2) }), "a confirmation of number 2")?;
    }
    expect_eq(&store(&mut queue, [2]).await?, &2, "number 2 itself")?;
    bench.close(queue).await;
    expect_eq(&numbers(&case.stored(2).await?), &vec![1, 2], "both wait")
}

async fn cleanup<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "cleanup");
    let (mut queue, _) = case.loaded(1).await?;
    let batch = [(1, "waits"), (2, "waits"), (3, "fresh"), (4, "done")].map(|(seq_nr, q)| message(seq_nr, q, "m"));
    queue.store_message_sent(batch.into()).await?;
    let flush = vec![up_to("waits", 1, LONG_AGO), up_to("fresh", 3, far_ahead()), up_to("done", 4, LONG_AGO)];
    queue.store_message_confirmed(flush).await?;
    bench.close(queue).await;
    let (mut queue, state) = case.loaded(2).await?;
    let left = |state: &crate::queue::QueueState<_>| {
        state.confirmed_seq_nr.keys().map(ToString::to_string).collect::<Vec<_>>()
    };
    expect_eq(&left(&state), &vec!["fresh".to_owned(), "waits".to_owned()], "the qualifiers in use")?;
    confirm(&mut queue, up_to("waits", 2, LONG_AGO)).await?;
    bench.close(queue).await;
    let state = case.stored(3).await?;
    expect_eq(&left(&state), &vec!["fresh".to_owned()], "the qualifiers in use")?;
    expect_eq(&state.current_seq_nr, &SeqNr(5), "numbers go on")?;
    expect_eq(&state.highest_confirmed_seq_nr, &SeqNr(4), "the highest confirmed number")
}

async fn one_write<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "flush");
    case.counts_writes().await?;
    let (mut queue, _) = case.loaded(1).await?;
    let batch = (1..=40).map(|seq_nr| message(seq_nr, &format!("q{seq_nr}"), "m")).collect();
    queue.store_message_sent(batch).await?;
    let before = case.writes().await;
    let flush = || (1..=40).map(|seq_nr| up_to(&format!("q{seq_nr}"), seq_nr, far_ahead())).collect();
    queue.store_message_confirmed(flush()).await?;
    expect_eq(&case.writes().await, &(before + 1), "the number of writes, one for the flush")?;
    queue.store_message_confirmed(flush()).await?;
    queue.store_message_confirmed(vec![exact([1, 40])]).await?;
    queue.store_message_confirmed(vec![]).await?;
    expect_eq(&case.writes().await, &(before + 1), "the number of writes, none for what is known")?;
    bench.close(queue).await;
    expect(numbers(&case.stored(2).await?).is_empty(), "all are confirmed")
}
