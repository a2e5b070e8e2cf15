//! Durable sharding producers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use greylag_core::Encoded;

use super::region::{Answers, TestRegion};
use super::{PATIENCE, open, until, without_repeats};
use crate::driver::MessageStorage;
use crate::driver::producer::ShardingProducer;
use crate::driver::{DurableProducerQueue, InMemoryQueues, QueueCall, QueueFault};
use crate::error::{ProducerError, SendError};
use crate::ids::{ControllerRef, ProducerId, SeqNr};
use crate::machine::storing::StoringState;
use crate::queue::QueueState;
use crate::settings::DeliverySettings;

fn start(region: &Arc<TestRegion>, disk: &InMemoryQueues, settings: &DeliverySettings) -> ShardingProducer<i64> {
    let id = ProducerId::new("p").unwrap();
    open(region, MessageStorage::Durable(id, Box::new(disk.open("p"))), settings).unwrap()
}

fn values(region: &TestRegion) -> Vec<i64> {
    region.delivered().into_iter().map(|(value, _)| value).collect()
}

/// delivery 35: no message is transmitted before it is stored; `ask` resolves when its message is stored, without a
/// confirmation.
#[tokio::test]
async fn scenario_35_stored_before_it_is_sent() {
    let (region, disk) = (TestRegion::new(Answers::Grant), InMemoryQueues::new());
    let producer = start(&region, &disk, &without_repeats());
    producer.send("a", 1).await.unwrap();
    until("the first one is there", || region.frames() == 1).await;
    disk.delay(Duration::from_millis(300));
    let asker = producer.clone();
    let ask = tokio::spawn(async move { asker.ask("a", 2).await });
    until("it is being stored", || producer.stats().storing == 1).await;
    assert_eq!((region.frames(), ask.is_finished()), (1, false));
    assert_eq!(ask.await.unwrap().unwrap(), SeqNr(2));
    until("and is sent then", || region.frames() == 2).await;
    assert_eq!(producer.stats().confirmed, 0);
}

/// delivery 44, 58 and P14: another producer takes the queue over. Unconfirmed messages are sent again in order and
/// under their numbers, before new ones; the former producer is fenced.
#[tokio::test]
async fn scenario_44_and_58_another_producer_goes_on() {
    let (region, disk) = (TestRegion::new(Answers::Grant), InMemoryQueues::new());
    let former = start(&region, &disk, &without_repeats());
    region.answer("b", Answers::Confirm);
    for (entity, number) in [("a", 1), ("b", 2), ("a", 3), ("b", 4)] {
        former.send(entity, number).await.unwrap();
    }
    until("b has confirmed", || former.stats().confirmed == 2).await;
    until("the frames of a are there", || region.frames_to("a") == 2).await;

    let next = start(&region, &disk, &without_repeats());
    let mut sent = next.send("a", 5).await.unwrap();
    assert_eq!(sent.seq_nr().await.unwrap(), SeqNr(5));
    until("a has everything", || region.frames_to("a") == 5).await;
    assert_eq!(region.delivered_to("a")[2..], [(1, SeqNr(1)), (3, SeqNr(3)), (5, SeqNr(5))]);
    let refused = former.send("a", 6).await.unwrap_err();
    assert!(matches!(refused, SendError::Fenced { message: Some(6), .. }), "{refused:?}");
    let error = former.request_next().await.unwrap_err();
    assert!(matches!(error, ProducerError::Fenced { newer: None, by: Some(_) }), "{error}");

    region.answer_all(Answers::Confirm);
    next.send("a", 7).await.unwrap();
    next.drain(PATIENCE).await.expect("recovered messages count");
    assert_eq!(*next.confirmed().borrow(), SeqNr(6));
}

/// delivery 38: a producer whose predecessor left no unconfirmed message continues the numbers at once.
#[tokio::test]
async fn scenario_38_a_clean_restart() {
    let (region, disk) = (TestRegion::new(Answers::Confirm), InMemoryQueues::new());
    let first = start(&region, &disk, &without_repeats());
    for number in 1..=4 {
        first.send("a", number).await.unwrap();
    }
    first.drain(PATIENCE).await.unwrap();
    first.close().await;
    let second = start(&region, &disk, &without_repeats());
    let next = second.request_next().await.unwrap();
    assert_eq!((next.current_seq_nr(), next.confirmed_seq_nr()), (SeqNr(5), SeqNr(4)));
    assert_eq!(next.ask("a", 5).await.unwrap(), SeqNr(5));
    second.drain(PATIENCE).await.unwrap();
    assert_eq!(values(&region), [1, 2, 3, 4, 5], "closing has stored every confirmation");
}

/// delivery D7: an append whose answer is lost is repeated, and its messages are sent once; no sender gets an error.
#[tokio::test]
async fn lost_store_answer_is_retried() {
    let (region, disk) = (TestRegion::new(Answers::Confirm), InMemoryQueues::new());
    let producer = start(&region, &disk, &without_repeats());
    producer.send("a", 1).await.unwrap();
    for done in [true, false] {
        let failed = AtomicBool::new(false);
        disk.fail_when(move |_, call| match call {
            QueueCall::Write(change) if !change.messages.is_empty() && !failed.swap(true, Ordering::Relaxed) => {
                Some(QueueFault::AnswerLost { done })
            }
            _ => None,
        });
        producer.send("a", if done { 2 } else { 3 }).await.unwrap();
    }
    producer.drain(PATIENCE).await.unwrap();
    let mut values = values(&region);
    values.dedup();
    assert_eq!(values, [1, 2, 3]);
    assert_eq!(*producer.confirmed().borrow(), SeqNr(3));
}

/// delivery D7: after the last attempt senders get their messages back; then the queue is loaded again, without a
/// restart of the producer.
#[tokio::test]
async fn a_store_that_is_away_gives_messages_back_and_is_opened_again() {
    let (region, disk) = (TestRegion::new(Answers::Confirm), InMemoryQueues::new());
    let mut settings = without_repeats();
    settings.producer.durable_queue_retry_attempts = 1;
    let producer = start(&region, &disk, &settings);
    producer.send("a", 1).await.unwrap();
    disk.fail_when(|_, _| Some(QueueFault::Unavailable));
    let refused = producer.send("a", 2).await.unwrap_err();
    assert!(matches!(refused, SendError::Unavailable(Some(2))), "{refused:?}");
    until("it says so", || producer.storing_state() == StoringState::Degraded).await;
    disk.fail_when(|_, call| match call {
        QueueCall::Write(change) if !change.messages.is_empty() => Some(QueueFault::AnswerLost { done: true }),
        _ => None,
    });
    let unknown = producer.send("a", 3).await.unwrap_err();
    assert!(matches!(unknown, SendError::StoreUnknown { seq_nr: SeqNr(2) }), "{unknown:?}");
    disk.fail_never();
    producer.send("a", 4).await.unwrap();
    producer.drain(PATIENCE).await.unwrap();
    let mut values = values(&region);
    values.dedup();
    assert_eq!(values, [1, 3, 4], "what may be stored was stored");
}

/// delivery 79, durable: when the last handle is dropped, the queue keeps the unconfirmed messages.
#[tokio::test]
async fn scenario_79_undelivered_messages_of_a_dropped_producer_stay_in_its_queue() {
    let (region, disk) = (TestRegion::new(Answers::Silent), InMemoryQueues::new());
    let mut settings = without_repeats();
    settings.producer.drain_on_drop = Duration::from_millis(50);
    let producer = start(&region, &disk, &settings);
    producer.send("a", 1).await.unwrap();
    producer.send("a", 2).await.unwrap();
    drop(producer);
    tokio::time::sleep(Duration::from_millis(200)).await;
    region.answer_all(Answers::Confirm);
    let next = start(&region, &disk, &settings);
    next.drain(PATIENCE).await.unwrap();
    assert_eq!(next.stats().recovered, 2);
    assert_eq!(*next.confirmed().borrow(), SeqNr(2));
}

/// A message larger than the queue's limit is refused when it is sent.
#[tokio::test]
async fn a_message_larger_than_the_queue_takes_is_refused() {
    let (region, disk) = (TestRegion::new(Answers::Confirm), InMemoryQueues::new());
    let producer = text_producer(&region, &disk, &without_repeats());
    let refused = producer.send("a", "x".repeat(5 << 20)).await.unwrap_err();
    assert!(matches!(refused, SendError::MessageTooLarge { max: 4_190_208, .. }), "{refused:?}");
    producer.send("a", "x".repeat(100)).await.unwrap();
}

fn text_producer(
    region: &Arc<TestRegion>,
    disk: &InMemoryQueues,
    settings: &DeliverySettings,
) -> ShardingProducer<String> {
    let storage = MessageStorage::Durable(ProducerId::new("p").unwrap(), Box::new(disk.open("p")));
    let codec = Arc::new(greylag_codec::json::<String>("text"));
    ShardingProducer::open(region.remoting.clone(), storage, region.clone(), codec, settings).unwrap()
}

async fn stored(disk: &InMemoryQueues) -> QueueState<Encoded> {
    let other = ControllerRef { node: "n:1#1".parse().unwrap(), path: "looks at it".into(), instance: 0 };
    disk.open("p").load(&other).await.unwrap()
}

/// delivery 36: a message that travels in chunks is stored once and whole, before its first chunk is transmitted.
#[tokio::test]
async fn scenario_36_chunks_are_stored_as_one_message() {
    let (region, disk) = (TestRegion::new(Answers::Grant), InMemoryQueues::new());
    let mut settings = without_repeats();
    settings.producer.chunk_large_messages = 1000;
    settings.producer.max_message_bytes = 1 << 20;
    let producer = text_producer(&region, &disk, &settings);
    producer.send("a", "x".repeat(2998)).await.unwrap();
    until("its three chunks are there", || region.frames() == 3).await;
    producer.close().await;
    let state = stored(&disk).await;
    assert_eq!((state.current_seq_nr, state.unconfirmed.len()), (SeqNr(2), 1));
    assert_eq!(state.unconfirmed[0].message.payload.len(), 3000);
    // The next producer cuts the message into chunks again.
    let next = text_producer(&region, &disk, &settings);
    region.answer_all(Answers::Confirm);
    next.drain(PATIENCE).await.unwrap();
    assert_eq!(region.frames(), 6);
}

/// delivery 34: confirmations are stored after the deliveries, one per entity, within the interval.
#[tokio::test]
async fn scenario_34_confirmations_are_stored_behind() {
    let (region, disk) = (TestRegion::new(Answers::Grant), InMemoryQueues::new());
    region.answer("b", Answers::Confirm);
    let producer = start(&region, &disk, &without_repeats());
    for (entity, number) in [("b", 1), ("a", 2), ("b", 3), ("a", 4)] {
        producer.ask(entity, number).await.unwrap();
    }
    until("b has confirmed", || producer.stats().confirmed == 2).await;
    producer.close().await;
    let state = stored(&disk).await;
    assert_eq!((state.current_seq_nr, state.highest_confirmed_seq_nr), (SeqNr(5), SeqNr(3)));
    let confirmed: Vec<_> = state.confirmed_seq_nr.iter().map(|(entity, (seq_nr, _))| (&**entity, *seq_nr)).collect();
    assert_eq!(confirmed, [("b", SeqNr(3))]);
    let unconfirmed: Vec<_> = state.unconfirmed.iter().map(|sent| (&*sent.qualifier, sent.seq_nr)).collect();
    assert_eq!(unconfirmed, [("a", SeqNr(2)), ("a", SeqNr(4))]);
    assert!(state.unconfirmed.iter().all(|sent| sent.timestamp_ms > 1_700_000_000_000), "by the wall clock");
}
