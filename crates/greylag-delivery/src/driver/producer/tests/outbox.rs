//! Sharding producers over an outbox.

use std::time::Duration;

use greylag_core::{Codec, CodecId, Encoded};

use super::region::{Answers, TestRegion};
use super::{PATIENCE, open, until, without_repeats};
use crate::driver::MessageStorage;
use crate::driver::producer::ShardingProducer;
use crate::driver::{InMemoryQueues, QueueCall, QueueFault};
use crate::error::SendError;
use crate::ids::{ProducerId, SeqNr};

fn start(region: &std::sync::Arc<TestRegion>, disk: &InMemoryQueues) -> ShardingProducer<i64> {
    let id = ProducerId::new("p").unwrap();
    open(region, MessageStorage::Durable(id, Box::new(disk.open_outbox("p"))), &without_repeats()).unwrap()
}

fn write(disk: &InMemoryQueues, entity: &str, number: i64) {
    let codec = greylag_codec::json::<i64>("n");
    let mut payload = bytes::BytesMut::new();
    codec.encode(&number, &mut payload).unwrap();
    let message = Encoded { codec: CodecId::JSON, manifest: codec.manifest(&number), payload: payload.freeze() };
    disk.write_to_outbox("p", entity, message);
}

fn values(region: &TestRegion) -> Vec<(i64, SeqNr)> {
    region.delivered()
}

/// delivery §4.4 and 72: messages written by applications are sent in the order in which the outbox first sees them,
/// are confirmed, and then removed; another producer of the outbox continues with the rest.
#[tokio::test]
async fn scenario_72_messages_written_by_applications_are_sent() {
    let (region, disk) = (TestRegion::new(Answers::Confirm), InMemoryQueues::new());
    write(&disk, "a", 1);
    let producer = start(&region, &disk);
    until("what was there is sent", || values(&region).len() == 1).await;
    write(&disk, "b", 2);
    write(&disk, "a", 3);
    until("what comes is sent", || values(&region).len() == 3).await;
    until("all is confirmed", || producer.stats().confirmed == 3).await;
    assert_eq!(*producer.confirmed().borrow(), SeqNr(3));
    producer.drain(PATIENCE).await.unwrap();
    producer.close().await;

    write(&disk, "a", 4);
    let next = start(&region, &disk);
    until("the next one goes on", || next.stats().confirmed == 1).await;
    let mut sent = values(&region);
    sent.sort();
    assert_eq!(sent, [(1, SeqNr(1)), (2, SeqNr(2)), (3, SeqNr(3)), (4, SeqNr(4))]);
}

/// A poll whose answer is lost loses no message, and no message is sent under two numbers.
#[tokio::test]
async fn a_lost_poll_loses_nothing() {
    let (region, disk) = (TestRegion::new(Answers::Confirm), InMemoryQueues::new());
    let failed = std::sync::atomic::AtomicU32::new(0);
    disk.fail_when(move |_, call| {
        let is_poll = matches!(call, QueueCall::Number);
        let nth = if is_poll { failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed) } else { 0 };
        (is_poll && nth < 2).then_some(QueueFault::AnswerLost { done: nth == 1 })
    });
    for number in 1..=5 {
        write(&disk, "a", number);
    }
    let producer = start(&region, &disk);
    until("all is confirmed", || producer.stats().confirmed == 5).await;
    let mut sent = values(&region);
    sent.dedup();
    assert_eq!(sent, (1..=5).map(|number| (number, SeqNr(number as u64))).collect::<Vec<_>>());
}

/// A message sent through the producer itself is given back, since only applications write an outbox. The outbox goes
/// on.
#[tokio::test]
async fn nothing_is_sent_through_a_producer_over_an_outbox() {
    let (region, disk) = (TestRegion::new(Answers::Confirm), InMemoryQueues::new());
    let producer = start(&region, &disk);
    let refused = producer.send("a", 7).await.unwrap_err();
    assert!(matches!(refused, SendError::Unavailable(Some(7))), "{refused:?}");
    write(&disk, "a", 8);
    until("the outbox goes on", || producer.stats().confirmed == 1).await;
    assert_eq!(values(&region), [(8, SeqNr(1))]);
    tokio::time::timeout(Duration::from_secs(10), producer.close()).await.unwrap();
}
