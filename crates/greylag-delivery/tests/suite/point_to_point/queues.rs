//! The state of a durable producer's queue after each step, the controllers that may write it, and messages of every
//! size.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use greylag_codec::{json, prost};
use greylag_delivery::{
    ConsumerController, Dedupe, DeliverySettings, InMemoryQueues, ProducerController, ProducerId, QueueCall,
    QueueFault, QueueStore, SendError, SeqNr,
};
use greylag_transport::Remoting;

use crate::point_to_point::support::{PATIENCE, consumer, nodes, read, run, settings, take, within};

const QUEUE: &str = "orders";

fn durable(node: &Arc<dyn Remoting>, disk: &InMemoryQueues, settings: DeliverySettings) -> ProducerController<u64> {
    let id = ProducerId::new("orders").unwrap();
    ProducerController::builder(id, json("number")).settings(settings).durable(disk.open(QUEUE)).spawn(node).unwrap()
}

/// State of a queue: next number, highest confirmed number, last confirmed number of each qualifier, and unconfirmed
/// numbers.
type Stored = (u64, u64, Vec<(String, u64)>, Vec<u64>);

async fn stored(disk: &InMemoryQueues) -> Stored {
    let rows = disk.read(QUEUE).await.unwrap().expect("it was opened");
    let confirmed = rows.confirmed.iter().map(|(qualifier, seq_nr, _)| (qualifier.to_string(), seq_nr.get()));
    let unconfirmed = rows.messages.iter().map(|sent| sent.seq_nr.get());
    (rows.head.current.get(), rows.head.highest_confirmed.get(), confirmed.collect(), unconfirmed.collect())
}

/// Polls the queue until it has this state.
async fn until_stored(disk: &InMemoryQueues, expected: Stored) {
    let looking = async {
        while stored(disk).await != expected {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, looking).await.is_err() {
        assert_eq!(stored(disk).await, expected);
    }
}

/// delivery 34: the queue's state after each step of the scenario.
#[tokio::test]
async fn scenario_34_queue_state_after_each_step() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let (producer, consumer) = (durable(&nodes.a, &disk, settings()), consumer(&nodes.b));
    producer.register_consumer(consumer.reference());
    let handle = producer.start();
    let mut deliveries = consumer.start(Dedupe::none());
    within(handle.send(1)).await.unwrap();
    assert_eq!(stored(&disk).await, (2, 0, vec![], vec![1]));
    take(&mut deliveries, 1, Duration::ZERO).await;
    until_stored(&disk, (2, 1, vec![(String::new(), 1)], vec![])).await;
    for number in 2..=4 {
        assert_eq!(within(handle.ask(number)).await.unwrap(), SeqNr(number));
    }
    take(&mut deliveries, 2, Duration::ZERO).await;
    until_stored(&disk, (5, 3, vec![(String::new(), 3)], vec![4])).await;
}

/// delivery 36: a message that is cut into chunks of one byte is stored as one whole message.
#[tokio::test]
async fn scenario_36_chunks_of_a_byte_are_one_stored_message() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let producer = durable(&nodes.a, &disk, chunks_of_a_byte());
    let consumer = consumer(&nodes.b);
    producer.register_consumer(consumer.reference());
    let mut deliveries = consumer.start(Dedupe::none());
    within(producer.start().send(123)).await.unwrap();
    assert_eq!(stored(&disk).await, (2, 0, vec![], vec![1]));
    let rows = disk.read(QUEUE).await.unwrap().unwrap();
    assert_eq!(rows.messages[0].message.payload, "123");
    assert_eq!(take(&mut deliveries, 1, Duration::ZERO).await, [123]);
}

fn chunks_of_a_byte() -> DeliverySettings {
    let mut settings = settings();
    settings.producer.chunk_large_messages = 1;
    settings.producer.max_message_bytes = 1 << 16;
    settings
}

/// delivery 44, with chunking: both sides are lost with nothing confirmed, and are restarted.
#[tokio::test]
async fn scenario_44_chunked_messages_outlive_both_sides() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let first = durable(&nodes.a, &disk, chunks_of_a_byte());
    let silent = consumer(&nodes.b);
    first.register_consumer(silent.reference());
    let mut deliveries = silent.start(Dedupe::none());
    let handle = first.start();
    for number in [101, 102, 103] {
        within(handle.send(number)).await.unwrap();
    }
    let in_hand = within(deliveries.next()).await.unwrap();
    nodes.network.crash(nodes.a.self_address());
    nodes.network.crash(nodes.b.self_address());
    drop((in_hand, deliveries, silent, handle, first));

    let second = durable(&nodes.c, &disk, chunks_of_a_byte());
    let consumer = consumer(&nodes.c);
    consumer.register_to(second.reference());
    let mut numbers = run(consumer);
    let handle = second.start();
    let permit = within(handle.request_next()).await.unwrap();
    assert_eq!(permit.current_seq_nr(), SeqNr(4));
    permit.send(104).unwrap();
    assert_eq!(read(&mut numbers, 4).await, [101, 102, 103, 104]);
    handle.drain(PATIENCE).await.unwrap();
}

/// delivery 64: K0's store of its first message gets no answer, and stored nothing. K1 starts and stores another first
/// message. K0's queue is loaded again and finds that; it makes no claim, `send` answers `Fenced` with its message, and
/// K1 goes on. The outcome of the first `send` is unknown: had it been stored, K1 would have the message.
#[tokio::test]
async fn scenario_64_a_stale_controller_gives_its_message_back() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let stale = durable(&nodes.a, &disk, settings());
    let own = consumer(&nodes.b);
    stale.register_consumer(own.reference());
    let _deliveries = own.start(Dedupe::none());
    let handle = stale.start();
    let permit = within(handle.request_next()).await.unwrap();
    let failed = Arc::new(AtomicBool::new(false));
    let noted = failed.clone();
    disk.fail_when(move |_, call| match call {
        QueueCall::Write(change) if !change.messages.is_empty() => {
            noted.store(true, Ordering::Relaxed);
            Some(QueueFault::AnswerLost { done: false })
        }
        _ => None,
    });
    drop(permit);
    let sender = handle.clone();
    let sending = tokio::spawn(async move { sender.send(7).await });
    within(async {
        while !failed.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    disk.fail_never();
    let owner = durable(&nodes.c, &disk, settings());
    let consumer = consumer(&nodes.c);
    consumer.register_to(owner.reference());
    let mut numbers = run(consumer);
    let of_owner = owner.start();
    assert_eq!(within(of_owner.ask(8)).await.unwrap(), SeqNr(1));
    let epoch = disk.head(QUEUE).await.unwrap().unwrap().epoch;
    let unknown = within(sending).await.unwrap().unwrap_err();
    assert!(matches!(unknown, SendError::StoreUnknown { seq_nr: SeqNr(1) }), "{unknown}");
    let refused = within(handle.send(7)).await.unwrap_err();
    assert!(matches!(refused, SendError::Fenced { message: Some(7), .. }), "{refused}");
    assert_eq!(within(of_owner.ask(9)).await.unwrap(), SeqNr(2));
    assert_eq!(disk.head(QUEUE).await.unwrap().unwrap().epoch, epoch, "no claim was made");
    assert_eq!(read(&mut numbers, 2).await, [8, 9]);
}

/// delivery 28: an empty message is delivered, with chunking on.
#[tokio::test]
async fn scenario_28_a_message_of_no_bytes_is_delivered() {
    let nodes = nodes();
    // A protobuf message without fields has no bytes.
    let nothing = || prost::<()>("nothing");
    let id = ProducerId::new("p").unwrap();
    let producer = ProducerController::builder(id, nothing()).settings(chunks_of_a_byte()).spawn(&nodes.a).unwrap();
    let consumer = ConsumerController::builder(nothing()).settings(settings()).spawn(&nodes.b).unwrap();
    producer.register_consumer(consumer.reference());
    let handle = producer.start();
    let mut deliveries = consumer.start(Dedupe::none());
    for total in 1..=3 {
        within(handle.send(())).await.unwrap();
        let delivery = within(deliveries.next()).await.unwrap();
        assert_eq!(delivery.seq_nr(), SeqNr(total));
        delivery.confirm();
    }
    handle.drain(PATIENCE).await.unwrap();
    assert_eq!(*handle.confirmed().borrow(), SeqNr(3));
}
