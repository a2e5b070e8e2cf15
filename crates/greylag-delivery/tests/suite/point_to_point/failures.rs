//! Lost frames, lost nodes, and ends that are replaced.

use std::collections::BTreeMap;
use std::time::Duration;

use greylag_codec::json;
use greylag_delivery::{Dedupe, Epoch, ProducerController, ProducerId, ProducerIdentity, SendError, SeqNr, StreamId};

use crate::point_to_point::support::{PATIENCE, address, consumer, nodes, producer, read, run, settings, take, within};

/// Frames and answers are lost for a while, in either direction.
#[tokio::test]
async fn lost_messages_come_again_in_order_and_once() {
    let nodes = nodes();
    let (controller, consumer) = (producer(&nodes.a), consumer(&nodes.b));
    consumer.register_to(controller.reference());
    let mut numbers = run(consumer);
    let handle = controller.start();
    let sending = tokio::spawn(async move {
        for number in 1..=300 {
            handle.send(number).await.unwrap();
        }
        handle.drain(PATIENCE).await.unwrap();
    });
    let (a, b) = (address(&nodes.a), address(&nodes.b));
    for round in 0..8 {
        let (from, to) = if round % 2 == 0 { (a, b) } else { (b, a) };
        nodes.network.cut_one_way(from, to);
        tokio::time::sleep(Duration::from_millis(20)).await;
        nodes.network.heal_all();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(read(&mut numbers, 300).await, (1..=300).collect::<Vec<_>>());
    within(sending).await.unwrap();
    assert!(numbers.try_recv().is_err(), "nothing comes twice");
}

/// delivery 31: the second consumer continues; only messages that the first had not confirmed are seen twice.
#[tokio::test]
async fn a_consumer_is_replaced() {
    let nodes = nodes();
    let (controller, first) = (producer(&nodes.a), consumer(&nodes.b));
    controller.register_consumer(first.reference());
    let handle = controller.start();
    let mut confirmed = handle.confirmed();
    let sending = tokio::spawn(async move {
        for number in 1..=100 {
            handle.send(number).await.unwrap();
        }
        handle.drain(PATIENCE).await.unwrap();
    });
    let mut deliveries = first.start(Dedupe::none());
    let mut times = BTreeMap::<u64, u32>::new();
    for number in take(&mut deliveries, 42, Duration::ZERO).await {
        *times.entry(number).or_default() += 1;
    }
    let unconfirmed = within(deliveries.next()).await.unwrap();
    *times.entry(*unconfirmed).or_default() += 1;
    drop((deliveries, unconfirmed, first));
    // The last message of the first consumer reports its confirmed prefix.
    within(confirmed.wait_for(|confirmed| *confirmed == SeqNr(42))).await.unwrap();
    let second = consumer(&nodes.c);
    controller.register_consumer(second.reference());
    let mut deliveries = second.start(Dedupe::none());
    for number in take(&mut deliveries, 58, Duration::ZERO).await {
        *times.entry(number).or_default() += 1;
    }
    within(sending).await.unwrap();
    assert_eq!(times.keys().copied().collect::<Vec<_>>(), (1..=100).collect::<Vec<_>>());
    let twice: Vec<u64> = times.iter().filter(|(_, times)| **times > 1).map(|(number, _)| *number).collect();
    assert_eq!(twice, [43]);
}

/// The node of a consumer is lost with deliveries in hand; a consumer on a third node is registered in its place.
#[tokio::test]
async fn a_consumer_on_another_node_takes_over_from_a_lost_node() {
    let nodes = nodes();
    let (controller, first) = (producer(&nodes.a), consumer(&nodes.b));
    first.register_to(controller.reference());
    let handle = controller.start();
    let mut deliveries = first.start(Dedupe::none());
    for number in 1..=5 {
        within(handle.send(number)).await.unwrap();
    }
    assert_eq!(take(&mut deliveries, 1, Duration::ZERO).await, [1]);
    let mut confirmed = handle.confirmed();
    within(confirmed.wait_for(|confirmed| *confirmed == SeqNr(1))).await.unwrap();
    nodes.network.crash(nodes.b.self_address());
    let second = consumer(&nodes.c);
    second.register_to(controller.reference());
    let mut deliveries = second.start(Dedupe::none());
    assert_eq!(take(&mut deliveries, 4, Duration::ZERO).await, [2, 3, 4, 5]);
    handle.drain(PATIENCE).await.unwrap();
}

/// delivery 32: an in-memory producer starts a new stream with numbers from 1, which are not taken for known ones.
#[tokio::test]
async fn a_producer_is_replaced() {
    let nodes = nodes();
    let consumer = consumer(&nodes.b);
    let mut deliveries = consumer.start(Dedupe::none());
    let first = producer(&nodes.a);
    consumer.register_to(first.reference());
    let handle = first.start();
    for number in 1..=2 {
        within(handle.send(number)).await.unwrap();
    }
    assert_eq!(take(&mut deliveries, 2, Duration::ZERO).await, [1, 2]);
    handle.drain(PATIENCE).await.unwrap();
    handle.close().await;
    let second = producer(&nodes.c);
    consumer.register_to(second.reference());
    let handle = second.start();
    for number in 3..=4 {
        within(handle.send(number)).await.unwrap();
    }
    let third = within(deliveries.next()).await.unwrap();
    assert_eq!((*third, third.seq_nr()), (3, SeqNr(1)));
    third.confirm();
    assert_eq!(take(&mut deliveries, 1, Duration::ZERO).await, [4]);
}

/// A producer with stable numbers is replaced: messages that the surviving consumer has processed are not handed out
/// again, and the former producer is fenced.
#[tokio::test]
async fn a_surviving_consumer_sees_no_message_of_a_stream_twice() {
    let nodes = nodes();
    let start = |node, epoch| {
        let id = ProducerId::new("p").unwrap();
        let identity = ProducerIdentity::stable(id.clone(), StreamId(7), Epoch(epoch));
        ProducerController::builder(id, json("number")).identity(identity).settings(settings()).spawn(node).unwrap()
    };
    let consumer = consumer(&nodes.b);
    let mut deliveries = consumer.start(Dedupe::none());
    let first: ProducerController<u64> = start(&nodes.a, 1);
    first.register_consumer(consumer.reference());
    let former = first.start();
    for number in 1..=3 {
        within(former.send(number)).await.unwrap();
    }
    assert_eq!(take(&mut deliveries, 2, Duration::ZERO).await, [1, 2]);
    let in_hand = within(deliveries.next()).await.unwrap();
    // The successor sends all messages again, and then new ones.
    let second: ProducerController<u64> = start(&nodes.c, 2);
    second.register_consumer(consumer.reference());
    let handle = second.start();
    let sending = tokio::spawn(async move {
        for number in 1..=5 {
            handle.send(number).await.unwrap();
        }
        handle.drain(PATIENCE).await.unwrap();
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    in_hand.confirm();
    assert_eq!(take(&mut deliveries, 2, Duration::ZERO).await, [4, 5]);
    within(sending).await.unwrap();
    within(async {
        while first.failure().is_none() {
            former.try_send(9).ok();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let refused = within(former.send(9)).await.unwrap_err();
    assert!(matches!(refused, SendError::Fenced { newer: Some(Epoch(2)), message: Some(9) }), "{refused}");
}
