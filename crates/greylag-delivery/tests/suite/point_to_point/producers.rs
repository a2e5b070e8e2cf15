//! Producers: order and back-pressure, asks, permits, sinks, and their end.

use std::time::Duration;

use futures::SinkExt;
use greylag_core::DeadLetterReason;
use greylag_delivery::{Dedupe, ProducerError, SendError, SeqNr, TrySendError};

use crate::point_to_point::support::{
    PATIENCE, consumer, nodes, producer, producer_with, read, run, settings, take, within,
};

/// delivery 30: the slower side sets the pace, and no message is lost or out of order.
#[tokio::test]
async fn every_pace_keeps_the_order() {
    let default = settings().producer.chunk_large_messages;
    let paces = [(30, 0, default), (0, 30, default), (0, 0, default), (30, 0, 1), (0, 30, 1), (0, 0, 1)];
    for (producing, consuming, chunk_bytes) in paces {
        let nodes = nodes();
        let mut settings = settings();
        settings.producer.chunk_large_messages = chunk_bytes;
        settings.producer.max_message_bytes = 1 << 16;
        let (producer, consumer) = (producer_with(&nodes.a, settings), consumer(&nodes.b));
        consumer.register_to(producer.reference());
        let handle = producer.start();
        let sending = tokio::spawn(async move {
            for number in 1..=42 {
                tokio::time::sleep(Duration::from_millis(producing)).await;
                let mut sent = handle.send(number).await.unwrap();
                assert_eq!(sent.seq_nr().await, Ok(SeqNr(number)));
            }
            handle.drain(PATIENCE).await.unwrap();
            assert_eq!(*handle.confirmed().borrow(), SeqNr(42));
        });
        let mut deliveries = consumer.start(Dedupe::none());
        let seen = take(&mut deliveries, 42, Duration::from_millis(consuming)).await;
        assert_eq!(seen, (1..=42).collect::<Vec<_>>());
        within(sending).await.unwrap();
    }
}

#[tokio::test]
async fn a_producer_waits_for_its_consumer_and_for_its_room() {
    let nodes = nodes();
    let producer = producer(&nodes.a);
    let handle = producer.start();
    assert!(matches!(handle.try_send(7), Err(TrySendError::Full(7))), "nobody is registered");
    let consumer = consumer(&nodes.b);
    producer.register_consumer(consumer.reference());
    let mut deliveries = consumer.start(Dedupe::none());
    within(handle.send(0)).await.unwrap();
    // The window is 20 beyond the confirmed prefix: with nothing confirmed, 20 messages are accepted.
    for number in 1..20 {
        within(handle.send(number)).await.unwrap();
    }
    assert!(tokio::time::timeout(Duration::from_millis(200), handle.send(20)).await.is_err());
    assert!(matches!(handle.try_send(7), Err(TrySendError::Full(7))));
    // The abandoned send sends nothing.
    assert_eq!(take(&mut deliveries, 20, Duration::ZERO).await, (0..20).collect::<Vec<_>>());
    let mut sent = loop {
        match handle.try_send(20) {
            Ok(sent) => break sent,
            Err(TrySendError::Full(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(within(sent.seq_nr()).await, Ok(SeqNr(21)), "numbers of messages that were given up are not used");
    assert_eq!(take(&mut deliveries, 1, Duration::ZERO).await, [20]);
    assert_eq!(within(sent.confirmed()).await, Ok(SeqNr(21)));
}

#[tokio::test]
async fn an_ask_is_answered_when_the_consumer_has_confirmed() {
    let nodes = nodes();
    let (producer, consumer) = (producer(&nodes.a), consumer(&nodes.b));
    producer.register_consumer(consumer.reference());
    let handle = producer.start();
    let mut deliveries = consumer.start(Dedupe::none());
    let asks = tokio::spawn({
        let handle = handle.clone();
        async move { (handle.ask(1).await.unwrap(), handle.send_confirmed(2).await.unwrap()) }
    });
    let first = within(deliveries.next()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(*handle.confirmed().borrow(), SeqNr(0));
    assert!(!asks.is_finished(), "received is not processed");
    first.confirm();
    assert_eq!(take(&mut deliveries, 1, Duration::ZERO).await, [2]);
    assert_eq!(within(asks).await.unwrap(), (SeqNr(1), SeqNr(2)));
}

/// delivery 7, with the handles of a producer.
#[tokio::test]
async fn a_new_start_supersedes_handles_and_permits() {
    let nodes = nodes();
    let (controller, consumer) = (producer(&nodes.a), consumer(&nodes.b));
    controller.register_consumer(consumer.reference());
    let mut numbers = run(consumer);
    let first = controller.start();
    for number in 1..=2 {
        within(first.send(number)).await.unwrap();
    }
    let permit = within(first.request_next()).await.unwrap();
    assert_eq!(permit.current_seq_nr(), SeqNr(3));
    let second = controller.start();
    let next = within(second.request_next()).await.unwrap();
    assert_eq!(next.current_seq_nr(), SeqNr(3));
    assert!(matches!(permit.send(33), Err(SendError::Superseded(Some(33)))));
    assert!(matches!(within(first.send(33)).await, Err(SendError::Superseded(Some(33)))));
    assert_eq!(within(first.request_next()).await.unwrap_err(), ProducerError::Superseded);
    let mut sent = next.send(3).unwrap();
    assert_eq!(within(sent.seq_nr()).await, Ok(SeqNr(3)));
    assert_eq!(within(second.ask(4)).await.unwrap(), SeqNr(4));
    assert_eq!(read(&mut numbers, 4).await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn permits_reserve_room() {
    let nodes = nodes();
    let mut settings = settings();
    settings.consumer.flow_control_window = 2;
    let controller = producer(&nodes.a);
    let consumer = crate::point_to_point::support::consumer_with(&nodes.b, settings);
    controller.register_consumer(consumer.reference());
    let mut numbers = run(consumer);
    let handle = controller.start();
    within(handle.send_confirmed(1)).await.unwrap();
    let one = within(handle.request_next()).await.unwrap();
    let mut other = Some(within(handle.request_next()).await.unwrap());
    assert!(matches!(handle.try_send(9), Err(TrySendError::Full(9))), "both are kept");
    assert_eq!(one.confirmed_seq_nr(), SeqNr(1));
    let ask = one.ask(2);
    // The next sender gets the room of a dropped permit.
    let waiting = handle.send(3);
    other.take();
    within(waiting).await.unwrap();
    assert_eq!(within(ask).await.unwrap(), SeqNr(2));
    assert_eq!(read(&mut numbers, 3).await, [1, 2, 3]);
}

#[tokio::test]
async fn a_sink_is_ready_with_room_and_closed_when_all_is_confirmed() {
    let nodes = nodes();
    let (controller, consumer) = (producer(&nodes.a), consumer(&nodes.b));
    controller.register_consumer(consumer.reference());
    let mut numbers = run(consumer);
    let handle = controller.start();
    let confirmed = handle.confirmed();
    let mut sink = handle.into_sink();
    let mut input = futures::stream::iter((1..=200).map(Ok));
    within(sink.send_all(&mut input)).await.unwrap();
    within(sink.close()).await.unwrap();
    assert_eq!(*confirmed.borrow(), SeqNr(200));
    assert_eq!(read(&mut numbers, 200).await, (1..=200).collect::<Vec<_>>());
    assert!(matches!(within(sink.send(1)).await, Err(SendError::Closed(None))));
    assert!(matches!(within(controller.start().send(1)).await, Err(SendError::Closed(Some(1)))));
}

/// delivery 79: accepted messages are delivered although no handle of the producer is left.
#[tokio::test]
async fn a_dropped_producer_delivers_what_it_has() {
    let nodes = nodes();
    let (controller, consumer) = (producer(&nodes.a), consumer(&nodes.b));
    controller.register_consumer(consumer.reference());
    let mut deliveries = consumer.start(Dedupe::none());
    let handle = controller.start();
    for number in 1..=10 {
        within(handle.send(number)).await.unwrap();
    }
    drop((handle, controller));
    assert_eq!(take(&mut deliveries, 10, Duration::from_millis(5)).await, (1..=10).collect::<Vec<_>>());
}

/// delivery 79: a consumer that never answers keeps the producer for `drain_on_drop`; then each message becomes a dead
/// letter.
#[tokio::test]
async fn undelivered_messages_of_a_dropped_producer_are_dead_letters() {
    let nodes = nodes();
    let mut settings = settings();
    settings.producer.drain_on_drop = Duration::from_millis(300);
    let (controller, consumer) = (producer_with(&nodes.a, settings), consumer(&nodes.b));
    controller.register_consumer(consumer.reference());
    let deliveries = consumer.start(Dedupe::none());
    let mut letters = nodes.a.dead_letters(100);
    let handle = controller.start();
    for number in 1..=10 {
        within(handle.send(number)).await.unwrap();
    }
    let (path, at) = (controller.reference().path.clone(), tokio::time::Instant::now());
    drop((handle, controller));
    let mut closed = 0;
    while closed < 10 {
        let letter = within(letters.next()).await;
        closed += u32::from(letter.reason == DeadLetterReason::ProducerClosed);
    }
    assert!(at.elapsed() >= Duration::from_millis(300));
    while nodes.a.instance(&path).is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let totals = nodes.a.dead_letter_totals();
    assert_eq!(totals.get(&DeadLetterReason::ProducerClosed), Some(&10), "one each");
    drop(deliveries);
}

/// delivery 102: other handles go on sending during a drain.
#[tokio::test]
async fn a_drain_ends_under_traffic() {
    let nodes = nodes();
    let (controller, consumer) = (producer(&nodes.a), consumer(&nodes.b));
    controller.register_consumer(consumer.reference());
    let mut numbers = run(consumer);
    let handle = controller.start();
    let traffic = tokio::spawn({
        let handle = handle.clone();
        async move {
            for number in 0.. {
                if handle.send(number).await.is_err() {
                    return;
                }
            }
        }
    });
    read(&mut numbers, 10).await;
    let before = *handle.confirmed().borrow();
    for _ in 0..3 {
        handle.drain(PATIENCE).await.unwrap();
    }
    assert!(*handle.confirmed().borrow() > before);
    assert!(!traffic.is_finished());
    handle.close().await;
    within(traffic).await.unwrap();
}

#[tokio::test]
async fn a_message_that_cannot_be_sent_comes_back() {
    let nodes = nodes();
    let mut settings = settings();
    settings.producer.max_message_bytes = 4;
    let controller = producer_with(&nodes.a, settings);
    let handle = controller.start();
    let refused = within(handle.send(12_345)).await.unwrap_err();
    assert!(matches!(refused, SendError::MessageTooLarge { message: 12_345, size: 5, max: 4 }), "{refused}");
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { handle.send(7).await }
    });
    tokio::task::yield_now().await;
    handle.close().await;
    assert!(matches!(within(waiting).await.unwrap(), Err(SendError::Closed(Some(7)))));
    assert!(matches!(handle.try_send(8), Err(TrySendError::Closed(8))));
    assert_eq!(within(handle.request_next()).await.unwrap_err(), ProducerError::Closed);
}
