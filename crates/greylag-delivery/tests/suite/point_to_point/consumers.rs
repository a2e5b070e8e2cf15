//! Consumers: confirmations, batches, restarts, and their end.

use std::time::Duration;

use futures::StreamExt;
use greylag_codec::json;
use greylag_delivery::{Dedupe, DeliveryEvent, DeliveryHealth, ProducerController, ProducerId, SeqNr};

use crate::point_to_point::support::{consumer, consumer_with, nodes, producer, settings, take, within};

#[tokio::test]
async fn a_delivery_that_is_dropped_comes_again() {
    let nodes = nodes();
    let (controller, consumer) = (producer(&nodes.a), consumer(&nodes.b));
    consumer.register_to(controller.reference());
    let handle = controller.start();
    let mut deliveries = consumer.start(Dedupe::none());
    for number in 1..=2 {
        within(handle.send(number)).await.unwrap();
    }
    let first = within(deliveries.next()).await.unwrap();
    assert_eq!((*first, first.attempt()), (1, 1));
    drop(first);
    let again = within(StreamExt::next(&mut deliveries)).await.unwrap();
    assert_eq!((*again, again.attempt(), again.seq_nr()), (1, 2, SeqNr(1)));
    again.nack(Duration::from_millis(1));
    let third = within(deliveries.next()).await.unwrap();
    assert_eq!((*third, third.attempt()), (1, 3));
    third.confirm();
    assert_eq!(take(&mut deliveries, 1, Duration::ZERO).await, [2]);
    assert_eq!(consumer.counters().snapshot().abandoned, 2);
}

/// delivery 19: the new consumer gets the deliveries of the former one, and then the rest.
#[tokio::test]
async fn a_consumer_that_starts_again_takes_over() {
    let nodes = nodes();
    let (controller, consumer) = (producer(&nodes.a), consumer(&nodes.b));
    consumer.register_to(controller.reference());
    let handle = controller.start();
    let mut first = consumer.start(Dedupe::none());
    for number in 1..=4 {
        within(handle.send(number)).await.unwrap();
    }
    assert_eq!(take(&mut first, 2, Duration::ZERO).await, [1, 2]);
    let in_hand = within(first.next()).await.unwrap();
    let mut second = consumer.start(Dedupe::none());
    assert!(within(first.next()).await.is_none(), "the former stream ends");
    drop((first, in_hand));
    let again = within(second.next()).await.unwrap();
    assert_eq!((*again, again.attempt()), (3, 2));
    again.confirm();
    assert_eq!(take(&mut second, 1, Duration::ZERO).await, [4]);
    handle.drain(Duration::from_secs(10)).await.unwrap();
}

/// delivery 20: the end of a consumer ends its controller, whose last message reports the confirmed prefix.
#[tokio::test]
async fn the_end_of_a_consumer_ends_its_controller() {
    let nodes = nodes();
    let path = |consumer: &greylag_delivery::ConsumerController<u64>| consumer.reference().path.clone();
    let gone = async |path: &str| {
        while nodes.b.instance(path).is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let never_started = consumer(&nodes.b);
    let its_path = path(&never_started);
    drop(never_started);
    within(gone(&its_path)).await;

    let idle = consumer(&nodes.b);
    drop(idle.start(Dedupe::none()));
    within(gone(&path(&idle))).await;
    assert!(within(idle.start(Dedupe::none()).next()).await.is_none(), "nothing comes to a controller that has ended");

    let (controller, consumer) = (producer(&nodes.a), consumer(&nodes.b));
    controller.register_consumer(consumer.reference());
    let handle = controller.start();
    let mut deliveries = consumer.start(Dedupe::none());
    for number in 1..=3 {
        within(handle.send(number)).await.unwrap();
    }
    // Neither of the two messages requests its confirmation, so the controller's last message must report it.
    let mut confirmed = handle.confirmed();
    assert_eq!(take(&mut deliveries, 2, Duration::ZERO).await, [1, 2]);
    drop(deliveries);
    within(confirmed.wait_for(|confirmed| *confirmed == SeqNr(2))).await.unwrap();
    within(gone(&path(&consumer))).await;
}

/// delivery 25, with a stream: messages already here are handed out, and the stream ends when they are confirmed.
#[tokio::test]
async fn a_consumer_that_stops_in_order_gets_what_is_there() {
    let nodes = nodes();
    let mut settings = settings();
    settings.consumer.max_outstanding_deliveries = 2;
    let (controller, consumer) = (producer(&nodes.a), consumer_with(&nodes.b, settings));
    controller.register_consumer(consumer.reference());
    let handle = controller.start();
    let mut deliveries = consumer.start(Dedupe::none());
    within(handle.send(1)).await.unwrap();
    let first = within(deliveries.next()).await.unwrap();
    consumer.deliver_then_stop();
    // While one delivery is in hand, messages that still arrive are handed out.
    for number in 2..=3 {
        within(handle.send(number)).await.unwrap();
        let delivery = within(deliveries.next()).await.unwrap();
        assert_eq!(*delivery, number);
        delivery.confirm();
    }
    first.confirm();
    assert!(within(deliveries.next()).await.is_none());
    let mut confirmed = handle.confirmed();
    within(confirmed.wait_for(|confirmed| *confirmed == SeqNr(3))).await.unwrap();
}

#[tokio::test]
async fn a_batch_is_of_one_producer_and_is_confirmed_as_one() {
    let nodes = nodes();
    let mut settings = settings();
    settings.consumer.max_outstanding_deliveries = 20;
    let (one, other) = (producer(&nodes.a), producer(&nodes.c));
    let consumer = consumer_with(&nodes.b, settings);
    consumer.register_to(one.reference());
    let mut deliveries = consumer.start(Dedupe::none());
    let handle = one.start();
    for number in 1..=10 {
        within(handle.send(number)).await.unwrap();
    }
    let ms = Duration::from_millis;
    let mut seen = Vec::new();
    while seen.len() < 10 {
        let mut batch = within(deliveries.next_batch(4, ms(200))).await.unwrap();
        assert!(batch.len() <= 4 && batch.len() == batch.ids().count());
        assert_eq!(batch[0], seen.len() as u64 + 1);
        assert!(batch.ids().map(|id| id.seq_nr.get()).eq(batch.iter().copied()));
        seen.extend(batch.iter().copied());
        batch.confirm_through(0);
        batch.confirm_all();
    }
    assert_eq!(seen, (1..=10).collect::<Vec<_>>());
    handle.drain(Duration::from_secs(10)).await.unwrap();

    // Dropped deliveries are handed out again, before messages of the consumer's next producer.
    within(handle.send(11)).await.unwrap();
    let batch = within(deliveries.next_batch(10, ms(1))).await.unwrap();
    consumer.register_to(other.reference());
    within(other.start().send(100)).await.unwrap();
    drop(batch);
    let again = within(deliveries.next_batch(10, ms(1))).await.unwrap();
    assert_eq!(again.iter().copied().collect::<Vec<_>>(), [11]);
    again.confirm_all();
    let last = within(deliveries.next_batch(10, ms(1))).await.unwrap();
    assert_eq!(last.iter().copied().collect::<Vec<_>>(), [100]);
}

/// Messages that the consumer knows to be processed are not handed out (C8).
#[tokio::test]
async fn known_messages_are_not_handed_out() {
    let nodes = nodes();
    let (controller, consumer) = (producer(&nodes.a), consumer(&nodes.b));
    let handle = controller.start();
    let mut deliveries = consumer.start(Dedupe::none());
    consumer.register_to(controller.reference());
    within(handle.send(1)).await.unwrap();
    let first = within(deliveries.next()).await.unwrap();
    let stream = first.id().stream_id;
    // A restarted consumer with a record of its own.
    let mut restarted = consumer.start([(stream, SeqNr(1))].into_iter().collect());
    drop(first);
    within(handle.send(2)).await.unwrap();
    assert_eq!(take(&mut restarted, 1, Duration::ZERO).await, [2]);
    assert_eq!(consumer.counters().snapshot().suppressed, 1);
}

/// Delivery §9, §6: a consumer controller reports events like an entity, and an undecodable message degrades its health
/// until it is confirmed, that is skipped.
#[tokio::test]
async fn consumer_reports_events_and_health() {
    let nodes = nodes();
    let mut settings = settings();
    settings.consumer.max_delivery_attempts = 2;
    settings.consumer.confirm_warn_after = Duration::from_millis(20);
    let (controller, consumer) = (producer(&nodes.a), consumer_with(&nodes.b, settings));
    let me = consumer.reference().to_string();
    let mut events = consumer.events();
    consumer.register_to(controller.reference());
    let mut deliveries = consumer.start(Dedupe::none());
    let handle = controller.start();
    within(handle.send(1)).await.unwrap();
    for attempt in 1..=2 {
        let delivery = within(deliveries.next()).await.unwrap();
        assert_eq!(delivery.attempt(), attempt);
    }
    let Some(DeliveryEvent::Poisoned { entity, id, attempts }) = within(events.next()).await else { panic!() };
    assert_eq!((&*entity, id.seq_nr, attempts), (&*me, SeqNr(1), 2));
    within(handle.send(2)).await.unwrap();
    let late = within(deliveries.next()).await.unwrap();
    let Some(DeliveryEvent::Overdue { entity, id }) = within(events.next()).await else { panic!() };
    assert_eq!((&*entity, id.seq_nr), (&*me, SeqNr(2)));
    assert_eq!((consumer.counters().snapshot().overdue, consumer.counters().snapshot().links), (1, 1));
    late.confirm();
    within(handle.drain(Duration::from_secs(20))).await.unwrap();
    assert_eq!(consumer.health(), DeliveryHealth::Healthy);

    let words = ProducerController::builder(ProducerId::new("words").unwrap(), json::<String>("word"));
    let words = words.settings(crate::point_to_point::support::settings()).spawn(&nodes.a).unwrap();
    consumer.register_to(words.reference());
    within(words.start().send("seven".to_owned())).await.unwrap();
    let undecodable = loop {
        match within(events.next()).await.unwrap() {
            DeliveryEvent::Undecodable { entity, id, .. } => break (entity, id),
            DeliveryEvent::ProducerReplaced { producer, .. } => assert_eq!(producer.as_str(), "words"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((&*undecodable.0, undecodable.1.producer_id.as_str()), (&*me, "words"));
    let mut waiting = consumer.undecodable();
    let message = within(waiting.next()).await.unwrap();
    assert_eq!((message.id(), message.entity()), (&undecodable.1, &*me));
    assert_eq!(consumer.health(), DeliveryHealth::Degraded { undecodable: 1 });
    message.confirm();
    within(async {
        while consumer.health() != DeliveryHealth::Healthy {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    drop((deliveries, consumer));
    while within(events.next()).await.is_some() {}
}
