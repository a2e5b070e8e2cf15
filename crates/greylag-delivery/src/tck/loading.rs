//! Cases of loads: the answer, and the state that outlives the loading process.

use super::case::{Case, Checked, Failure, controller, exact, expect, expect_eq, message, numbers, sent, store, up_to};
use super::case::{confirm, far_ahead};
use super::{QueueBench, Report};
use crate::driver::DurableProducerQueue;
use crate::ids::{Epoch, SeqNr};
use crate::queue::QueueError;

pub(super) async fn run<B: QueueBench>(bench: &B, report: &mut Report) {
    report.add("an empty queue begins at 1", begins_at_one(bench).await);
    report.add("its numbering space is given once", one_stream(bench).await);
    report.add("every load raises the epoch", rising_epochs(bench).await);
    report.add("a queue is loaded before it is written", loaded_first(bench).await);
    report.add("messages come back as they were stored (39)", as_stored(bench).await);
    report.add("a queue that was emptied goes on at its number (72)", emptied(bench).await);
    report.add("queues of different names know nothing of each other", names(bench).await);
    report.add("everything is there after a restart of the store", restart(bench).await);
}

async fn begins_at_one<B: QueueBench>(bench: &B) -> Checked {
    let state = Case::new(bench, "empty").stored(1).await?;
    expect_eq(&state.epoch, &Epoch(1), "the first epoch")?;
    expect_eq(&state.current_seq_nr, &SeqNr(1), "the next number")?;
    expect_eq(&state.highest_confirmed_seq_nr, &SeqNr::NONE, "the highest confirmed number")?;
    expect(state.confirmed_seq_nr.is_empty(), "nothing is confirmed")?;
    expect(state.unconfirmed.is_empty(), "no message is there")
}

async fn one_stream<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "stream");
    let (mut queue, first) = case.loaded(1).await?;
    let again = queue.load(&controller(1)).await?;
    expect_eq(&again.stream_id, &first.stream_id, "the stream of the second load")?;
    bench.close(queue).await;
    expect_eq(&case.stored(2).await?.stream_id, &first.stream_id, "the stream after a restart")?;
    let other = Case::new(bench, "stream").stored(1).await?;
    expect(other.stream_id != first.stream_id, "two queues have two streams")
}

async fn rising_epochs<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "epoch");
    let (mut queue, first) = case.loaded(1).await?;
    let second = queue.load(&controller(1)).await?;
    expect(second.epoch > first.epoch, "the second load of a controller raises the epoch")?;
    bench.close(queue).await;
    let third = case.stored(2).await?;
    expect(third.epoch > second.epoch, "the raised epoch was stored, and the next controller raises it again")
}

async fn loaded_first<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "unloaded");
    let mut queue = case.open().await;
    let stored = queue.store_message_sent(sent([1])).await;
    expect_eq(&stored, &Err(QueueError::NotLoaded), "a store without a load")?;
    let confirmed = confirm(&mut queue, exact([1])).await;
    expect_eq(&confirmed, &Err(QueueError::NotLoaded), "a confirmation without a load")?;
    bench.close(queue).await;
    expect(numbers(&case.stored(1).await?).is_empty(), "nothing was stored")
}

async fn as_stored<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "whole");
    let (mut queue, _) = case.loaded(1).await?;
    let long = "entity/\u{1f9a2} %'\"; ".repeat(10);
    let mut batch = vec![message(1, "", ""), message(2, &long, vec![0, 255, 10, 13]), message(3, "b", vec![7; 70_000])];
    batch[1].ack = true;
    batch[2].timestamp_ms = 1_700_000_000_123;
    batch[2].message.manifest = "\u{fc}nder:v2".into();
    batch[2].message.codec = greylag_core::CodecId::from_u32(4_000_000_000);
    queue.store_message_sent(batch[..1].to_vec()).await?;
    queue.store_message_sent(batch[1..].to_vec()).await?;
    expect_eq(&queue.load(&controller(1)).await?.unconfirmed, &batch, "the same controller's next load")?;
    bench.close(queue).await;
    let state = case.stored(2).await?;
    expect_eq(&state.unconfirmed, &batch, "the next controller's load")?;
    expect_eq(&state.current_seq_nr, &SeqNr(4), "the next number")
}

async fn emptied<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "emptied");
    let (mut old, first) = case.loaded(1).await?;
    store(&mut old, 1..=5).await?;
    confirm(&mut old, up_to("", 5, far_ahead())).await?;
    let (mut queue, state) = case.loaded(2).await?;
    expect(state.unconfirmed.is_empty(), "every message was confirmed")?;
    expect_eq(&state.current_seq_nr, &SeqNr(6), "the next number")?;
    expect_eq(&state.highest_confirmed_seq_nr, &SeqNr(5), "the highest confirmed number")?;
    expect_eq(&state.stream_id, &first.stream_id, "the stream")?;
    expect_eq(&state.confirmed_seq_nr, &[("".into(), (SeqNr(5), far_ahead()))].into(), "the confirmed numbers")?;
    super::case::expect_fenced(&store(&mut old, [6]).await, "a store by the older instance")?;
    expect_eq(&store(&mut queue, [6]).await?, &6, "a store by the newer one")
}

async fn names<B: QueueBench>(bench: &B) -> Checked {
    let (one, two) = (Case::new(bench, "names"), Case::new(bench, "names"));
    let longer = Case { bench, name: format!("{}/2", one.name) };
    let (mut first, _) = one.loaded(1).await?;
    store(&mut first, [1, 2]).await?;
    for other in [&two, &longer] {
        let (mut queue, state) = other.loaded(1).await?;
        expect_eq(&state.current_seq_nr, &SeqNr(1), "the next number of another queue")?;
        store(&mut queue, [1]).await?;
        confirm(&mut queue, up_to("", 1, far_ahead())).await?;
    }
    expect_eq(&store(&mut first, [3]).await?, &3, "a store after other queues were loaded and written")?;
    bench.close(first).await;
    expect_eq(&numbers(&one.stored(2).await?), &vec![1, 2, 3], "the messages of the first")
}

async fn restart<B: QueueBench>(bench: &B) -> Checked {
    let case = Case::new(bench, "restart");
    let (mut queue, _) = case.loaded(1).await?;
    queue.store_message_sent(vec![message(1, "a", "1"), message(2, "b", "2"), message(3, "a", "3")]).await?;
    confirm(&mut queue, up_to("a", 1, far_ahead())).await?;
    bench.close(queue).await;
    let before = case.stored(2).await?;
    if !bench.restart().await {
        return Err(Failure::Skipped("no hook that starts the store anew"));
    }
    let (mut queue, after) = case.loaded(3).await?;
    expect(after.epoch > before.epoch, "the epoch goes on rising")?;
    let expected = crate::queue::QueueState { epoch: after.epoch, ..before };
    expect_eq(&after, &expected, "the state after a restart")?;
    expect_eq(&store(&mut queue, [4]).await?, &4, "it goes on")
}
