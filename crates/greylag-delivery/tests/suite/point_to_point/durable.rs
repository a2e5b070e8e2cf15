//! Durable producers: the state after a crash of either side, and a failing store.

use std::sync::Arc;
use std::time::Duration;

use greylag_codec::json;
use greylag_delivery::{
    Dedupe, InMemoryQueues, ProducerController, ProducerError, ProducerId, QueueCall, QueueFault, SendError, SeqNr,
    StartError,
};
use greylag_transport::Remoting;

use crate::point_to_point::support::{PATIENCE, consumer, consumer_with, nodes, read, run, settings, take, within};

fn durable(node: &Arc<dyn Remoting>, disk: &InMemoryQueues) -> ProducerController<u64> {
    let id = ProducerId::new("orders").unwrap();
    let builder = ProducerController::builder(id, json("number")).settings(settings());
    builder.durable(disk.open("orders")).spawn(node).unwrap()
}

/// An outbox's messages would wait for ever at a producer that does not poll, so the producer is not started.
#[tokio::test]
async fn an_outbox_is_refused() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let builder = ProducerController::builder(ProducerId::new("orders").unwrap(), json::<u64>("number"));
    let refused = builder.settings(settings()).durable(disk.open_outbox("orders")).spawn(&nodes.a).unwrap_err();
    assert_eq!(refused, StartError::Outbox);
}

/// delivery 44: both sides are lost, and the stored messages are sent again in order, before new ones.
#[tokio::test]
async fn stored_messages_outlive_both_sides() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let first = durable(&nodes.a, &disk);
    let silent = consumer(&nodes.b);
    first.register_consumer(silent.reference());
    let deliveries = silent.start(Dedupe::none());
    let handle = first.start();
    for number in 1..=3 {
        // An ask is answered once its message is stored: the consumer confirms nothing.
        assert_eq!(within(handle.ask(number)).await.unwrap(), SeqNr(number));
    }
    nodes.network.crash(nodes.a.self_address());
    nodes.network.crash(nodes.b.self_address());
    drop((deliveries, silent, handle, first));

    let second = durable(&nodes.c, &disk);
    let handle = second.start();
    let consumer = consumer(&nodes.c);
    consumer.register_to(second.reference());
    let mut numbers = run(consumer);
    let permit = within(handle.request_next()).await.unwrap();
    assert_eq!(permit.current_seq_nr(), SeqNr(4));
    let sent = permit.send(4).unwrap();
    assert_eq!(read(&mut numbers, 4).await, [1, 2, 3, 4]);
    assert_eq!(within(sent.confirmed()).await, Ok(SeqNr(4)));
    handle.drain(PATIENCE).await.unwrap();
    handle.close().await;

    // Every message is confirmed, and that is stored: the next producer starts without messages.
    let third = durable(&nodes.c, &disk);
    let permit_of = third.start();
    let consumer = consumer_with(&nodes.c, settings());
    third.register_consumer(consumer.reference());
    let mut numbers = run(consumer);
    let permit = within(permit_of.request_next()).await.unwrap();
    assert_eq!((permit.current_seq_nr(), permit.confirmed_seq_nr()), (SeqNr(5), SeqNr(4)));
    within(permit.ask(5)).await.unwrap();
    assert_eq!(read(&mut numbers, 1).await, [5]);
}

/// `drain`, and the background drain of a dropped producer, also wait for messages loaded from the queue.
#[tokio::test]
async fn recovered_messages_are_drained_too() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let first = durable(&nodes.a, &disk);
    let silent = consumer(&nodes.b);
    first.register_consumer(silent.reference());
    let (handle, deliveries) = (first.start(), silent.start(Dedupe::none()));
    for number in 1..=3 {
        within(handle.ask(number)).await.unwrap();
    }
    nodes.network.crash(nodes.a.self_address());
    drop((deliveries, silent, handle, first));

    let second = durable(&nodes.b, &disk);
    let handle = second.start();
    let left = handle.drain(Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(left.unconfirmed, 3);
    let consumer = consumer(&nodes.c);
    second.register_consumer(consumer.reference());
    drop((handle, second));
    let mut deliveries = consumer.start(Dedupe::none());
    assert_eq!(take(&mut deliveries, 3, Duration::from_millis(20)).await, [1, 2, 3]);
}

/// delivery 45: the consumer survives its producer, and gets no message twice; the former controller is fenced.
#[tokio::test]
async fn a_surviving_consumer_sees_nothing_twice() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let consumer = consumer(&nodes.b);
    let mut deliveries = consumer.start(Dedupe::none());
    let first = durable(&nodes.a, &disk);
    consumer.register_to(first.reference());
    let former = first.start();
    for number in 1..=3 {
        within(former.send(number)).await.unwrap();
    }
    let in_hand = within(deliveries.next()).await.unwrap();
    let second = durable(&nodes.c, &disk);
    consumer.register_to(second.reference());
    let handle = second.start();
    let sending = tokio::spawn(async move {
        for number in 4..=5 {
            handle.send(number).await.unwrap();
        }
        handle.drain(PATIENCE).await.unwrap();
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(*in_hand, 1);
    in_hand.confirm();
    assert_eq!(take(&mut deliveries, 4, Duration::ZERO).await, [2, 3, 4, 5]);
    within(sending).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(100), deliveries.next()).await.is_err(), "nothing comes twice");

    // The former controller is fenced at its next store, at the latest.
    let refused = loop {
        match tokio::time::timeout(Duration::from_millis(200), former.send(9)).await {
            Ok(Err(error)) => break error,
            Ok(Ok(sent)) => panic!("stored by a fenced controller: {sent:?}"),
            Err(_) if first.failure().is_some() => {}
            Err(_) => consumer.register_to(first.reference()),
        }
    };
    assert!(matches!(refused, SendError::Fenced { message: Some(9), .. }), "{refused}");
    assert!(matches!(first.failure(), Some(ProducerError::Fenced { .. })));
}

/// The store has the message, but its answer is lost: the producer repeats the call.
#[tokio::test]
async fn a_message_whose_store_gave_no_answer_is_stored_and_delivered_once() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let producer = durable(&nodes.a, &disk);
    let consumer = consumer(&nodes.b);
    consumer.register_to(producer.reference());
    let mut numbers = run(consumer);
    let handle = producer.start();
    within(handle.send(1)).await.unwrap();
    disk.fail_when(|_, call| match call {
        QueueCall::Write(change) if !change.messages.is_empty() => Some(QueueFault::AnswerLost { done: true }),
        _ => None,
    });
    let sending = tokio::spawn({
        let handle = handle.clone();
        async move { handle.send(2).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    disk.fail_never();
    // The store had the message, though its answer was lost; the message is stored once and delivered once.
    within(sending).await.unwrap().unwrap();
    within(handle.send(3)).await.unwrap();
    assert_eq!(read(&mut numbers, 3).await, [1, 2, 3]);
    handle.drain(PATIENCE).await.unwrap();
    assert!(numbers.try_recv().is_err());
}

/// A consumer without resend requests breaks the guarantee of a durable producer (§1.6).
#[tokio::test]
async fn a_durable_producer_refuses_a_consumer_that_asks_for_no_repeats() {
    let (nodes, disk) = (nodes(), InMemoryQueues::new());
    let producer = durable(&nodes.a, &disk);
    let mut settings = settings();
    settings.consumer.only_flow_control = true;
    let consumer = consumer_with(&nodes.b, settings);
    producer.register_consumer(consumer.reference());
    let _deliveries = consumer.start(Dedupe::none());
    let handle = producer.start();
    within(handle.send(1)).await.unwrap();
    within(async {
        while producer.failure() != Some(ProducerError::IncompatibleConsumer) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(within(handle.request_next()).await.unwrap_err(), ProducerError::IncompatibleConsumer);
}
