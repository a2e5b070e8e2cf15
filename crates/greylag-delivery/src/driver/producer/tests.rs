//! A sharding producer over a scripted region.

mod durable;
mod local;
mod outbox;
mod region;

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, SinkExt, poll};
use greylag_codec::json;

use super::ShardingProducer;
use crate::driver::region::RouteEvent;
use crate::driver::sending::MessageStorage;
use crate::error::{ProducerError, SendError, StartError, TrySendError};
use crate::ids::{Epoch, ProducerId, ProducerIdentity, SeqNr, StreamId};
use crate::settings::DeliverySettings;
use region::{Answers, TestRegion};

const PATIENCE: Duration = Duration::from_secs(20);

/// Settings whose timers do not expire during a test, so that no frame is repeated by a timer.
fn without_repeats() -> DeliverySettings {
    let mut settings = DeliverySettings::test();
    settings.producer.resend_first_interval = Duration::from_secs(3600);
    settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_secs(3600);
    settings
}

/// Settings whose timers expire many times during a test.
fn with_quick_repeats() -> DeliverySettings {
    let mut settings = DeliverySettings::test();
    settings.producer.resend_first_interval = Duration::from_millis(5);
    settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_millis(10);
    settings
}

fn identity() -> ProducerIdentity {
    ProducerIdentity::stable(ProducerId::new("p").unwrap(), StreamId(1), Epoch(1))
}

fn start(region: &Arc<TestRegion>, settings: &DeliverySettings) -> ShardingProducer<i64> {
    open(region, MessageStorage::InMemory(identity()), settings).unwrap()
}

fn open(
    region: &Arc<TestRegion>,
    storage: MessageStorage,
    settings: &DeliverySettings,
) -> Result<ShardingProducer<i64>, StartError> {
    ShardingProducer::open(region.remoting.clone(), storage, region.clone(), Arc::new(json::<i64>("n")), settings)
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

/// delivery 96: a send cancelled at any of its steps does not change the numbers of the other messages.
#[tokio::test]
async fn scenario_96_withdrawn_sends_keep_their_numbers() {
    for steps in 0..6 {
        let region = TestRegion::new(Answers::Confirm);
        // Room for the first message to `stuck` only, so that further sends to `stuck` wait until they are cancelled.
        region.answer("stuck", Answers::Silent);
        let mut settings = without_repeats();
        settings.sharding.buffer_size_per_entity = 1;
        let producer = start(&region, &settings);
        for number in 1..=30_i64 {
            let entity = if number % 5 == 0 { "stuck" } else { "free" };
            let mut send = Box::pin(producer.send(entity, number));
            if number % 3 == 0 || number > 10 && entity == "stuck" {
                assert!(poll!(&mut send).is_pending());
                for _ in 0..steps {
                    tokio::task::yield_now().await;
                }
                drop(send);
            } else {
                let seq_nr = send.await.unwrap().seq_nr().await.unwrap();
                assert_eq!(seq_nr, SeqNr(number.unsigned_abs()), "cancelled after {steps} steps");
            }
        }
        producer.send_confirmed("free", 31).await.unwrap();
        for (value, total) in region.delivered() {
            assert_eq!(total, SeqNr(value.unsigned_abs()), "cancelled after {steps} steps");
        }
    }
}

/// delivery 102: `drain` ends once the messages sent before it are confirmed, though other handles go on sending.
#[tokio::test]
async fn scenario_102_drain_ends_under_traffic() {
    let region = TestRegion::new(Answers::Confirm);
    let producer = start(&region, &without_repeats());
    let sender = producer.clone();
    let traffic = tokio::spawn(async move {
        for number in 1.. {
            sender.send(format!("e{}", number % 10), number).await.unwrap();
        }
    });
    until("traffic flows", || producer.stats().sent > 50).await;
    // The messages of `late` stay unconfirmed from here on, so there is always an unconfirmed message.
    region.answer("late", Answers::Silent);
    let before = producer.send("early", 1).await.unwrap().seq_nr().await.unwrap();
    let drain = producer.drain(PATIENCE);
    let mut drain = std::pin::pin!(drain);
    assert!(poll!(&mut drain).is_pending() || *producer.confirmed().borrow() >= before);
    producer.send("late", 2).await.unwrap();
    drain.await.expect("what was sent before is confirmed");
    assert!(*producer.confirmed().borrow() >= before);
    let refused = producer.drain(Duration::from_millis(30)).await.unwrap_err();
    assert!(refused.unconfirmed >= 1, "the message to `late` is not confirmed");
    traffic.abort();
}

/// delivery 97: after lost events only the links of moved shards start over.
#[tokio::test]
async fn scenario_97_lagging_events_start_nothing_over_that_has_not_moved() {
    let region = TestRegion::new(Answers::Grant);
    let producer = start(&region, &without_repeats());
    for number in 0..100 {
        producer.send(format!("{number}"), number).await.unwrap();
        producer.send(format!("{number}"), number + 1000).await.unwrap();
    }
    until("everything is there", || region.frames() == 200).await;
    for _ in 0..1000 {
        region.tell(RouteEvent::RefreshAll);
    }
    region.tell(RouteEvent::Moved("7".into()));
    until("the link of a shard that moved starts over", || region.frames_to("7") == 4).await;
    assert_eq!(region.frames(), 202, "and no other");
    region.moves("42");
    region.tell(RouteEvent::RefreshAll);
    until("a move that was missed is noticed", || region.frames_to("42") == 4).await;
    assert_eq!(region.frames(), 204);
}

/// delivery 93: without a route, the region's buffer holds each message once, however long the wait.
#[tokio::test]
async fn scenario_93_one_copy_waits_for_a_route() {
    let region = TestRegion::new(Answers::Silent);
    region.has_routes(false);
    let producer = start(&region, &with_quick_repeats());
    for number in 0..200 {
        producer.send(format!("{number}"), number).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(region.frames(), 200, "ten times the pace of repeats have passed");
    // A copy that the region has dropped is sent again, since the copy makes the region ask for the home.
    region.tell(RouteEvent::Dropped("3".into()));
    until("a copy that was dropped is replaced", || region.frames_to("3") == 2).await;
    region.answer_all(Answers::Confirm);
    region.has_routes(true);
    for number in 0..200 {
        region.tell(RouteEvent::Routed(format!("{number}").into(), true));
    }
    producer.drain(PATIENCE).await.unwrap();
}

/// delivery 69: a copy that the region did not take is sent again at the interval of the probe.
#[tokio::test]
async fn scenario_69_refused_frames_are_sent_again() {
    let region = TestRegion::new(Answers::Silent);
    region.has_routes(false);
    region.takes(crate::driver::region::SendRefusal::NotBuffered, 3);
    let producer = start(&region, &with_quick_repeats());
    producer.send("a", 1).await.unwrap();
    until("the copy is taken in the end", || region.frames() == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(region.frames(), 1);
}

/// delivery 94: frames wait while a lane has no room, and leave soon after. No timer of the protocol fires meanwhile.
#[tokio::test]
async fn scenario_94_a_full_lane_is_tried_again_soon() {
    let region = TestRegion::new(Answers::Confirm);
    let producer = start(&region, &without_repeats());
    for number in 1..=300 {
        if number % 10 == 0 {
            region.takes(crate::driver::region::SendRefusal::NoRoom, 2);
        }
        producer.send(format!("e{}", number % 7), number).await.unwrap();
    }
    producer.drain(PATIENCE).await.expect("everything has found room");
    let mut values: Vec<i64> = region.delivered().into_iter().map(|(value, _)| value).collect();
    values.sort_unstable();
    assert_eq!(values, (1..=300).collect::<Vec<_>>(), "and none came twice");
}

/// delivery 88: messages sent while the producer's task does not run leave in batches within the limits, each message
/// once.
#[tokio::test]
async fn scenario_88_concurrent_sends_share_batches() {
    let region = TestRegion::new(Answers::Grant);
    let codec = Arc::new(json::<String>("text"));
    let mut settings = without_repeats();
    settings.sharding.buffer_size_per_entity = 100;
    settings.producer.chunk_large_messages = 0;
    let storage = MessageStorage::InMemory(identity());
    let producer = ShardingProducer::open(region.remoting.clone(), storage, region.clone(), codec, &settings).unwrap();
    producer.send("a", "first".to_owned()).await.unwrap();
    while !producer.request_next().await.unwrap().entities_with_demand().contains("a") {
        tokio::task::yield_now().await;
    }
    (0..50).for_each(|_| producer.try_send("a", "x".repeat(6 << 10)).map(drop).unwrap());
    until("all is there", || region.frames() == 51).await;
    let batches = region.batches();
    assert!(batches.len() <= 10, "{batches:?}");
    assert!(batches.iter().all(|bytes| *bytes <= 64 << 10), "{batches:?}");
}

/// delivery 88: a message that fits into no frame of the lane is refused when it is sent, with its size and the limit.
#[tokio::test]
async fn scenario_88_too_large_for_the_lane_without_chunks() {
    let region = TestRegion::new(Answers::Confirm);
    region.network.limit_ordinary_lanes(64 << 10);
    let mut settings = without_repeats();
    settings.producer.chunk_large_messages = 0;
    let codec = Arc::new(json::<String>("text"));
    let storage = MessageStorage::InMemory(identity());
    let producer = ShardingProducer::open(region.remoting.clone(), storage, region.clone(), codec, &settings).unwrap();
    let refused = producer.send("a", "x".repeat(100_000)).await.unwrap_err();
    let SendError::MessageTooLarge { message, size: 100_002, max: 61_440 } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(message.len(), 100_000);
    producer.send("a", "x".repeat(50_000)).await.unwrap();
}

/// delivery 7, 54: a producer that is started again continues its numbers; former handles and permits are superseded.
#[tokio::test]
async fn scenario_7_and_54_started_again() {
    let region = TestRegion::new(Answers::Grant);
    let old = start(&region, &without_repeats());
    old.send("a", 1).await.unwrap();
    old.send("a", 2).await.unwrap();
    let permit = old.request_next().await.unwrap();
    assert_eq!(permit.current_seq_nr(), SeqNr(3));
    let new = old.start_again();
    assert!(matches!(permit.send("a", 10).unwrap_err(), SendError::Superseded(Some(10))));
    assert!(matches!(old.send("a", 11).await.unwrap_err(), SendError::Superseded(Some(11))));
    assert!(matches!(old.try_send("a", 12).unwrap_err(), TrySendError::Refused(SendError::Superseded(Some(12)))));
    assert_eq!(old.request_next().await.unwrap_err(), ProducerError::Superseded);
    let next = new.request_next().await.unwrap();
    assert_eq!(next.current_seq_nr(), SeqNr(3));
    assert_eq!(next.send("a", 3).unwrap().seq_nr().await.unwrap(), SeqNr(3));
    assert_eq!(new.send("a", 4).await.unwrap().seq_nr().await.unwrap(), SeqNr(4));
    until("all four are there", || region.frames() == 4).await;
    let totals: Vec<_> = region.delivered();
    assert_eq!(totals, [(1, SeqNr(1)), (2, SeqNr(2)), (3, SeqNr(3)), (4, SeqNr(4))]);
}

/// Of delivery S4: permits are reserved room, given back when dropped; their numbers are those of the reservation.
#[tokio::test]
async fn permits_reserve_room() {
    let region = TestRegion::new(Answers::Grant);
    region.answer("stuck", Answers::Silent);
    let mut settings = without_repeats();
    settings.sharding.buffer_size = 10;
    settings.sharding.buffer_size_per_entity = 5;
    let producer = start(&region, &settings);
    for number in 1..=4 {
        producer.send("stuck", number).await.unwrap();
    }
    producer.send("free", 5).await.unwrap();
    let next = loop {
        let next = producer.request_next().await.unwrap();
        if !next.entities_with_demand().is_empty() {
            break next; // the entity's answer has arrived
        }
    };
    assert_eq!(next.entities_with_demand(), ["free".into()].into());
    assert_eq!(next.buffered_for_entities_without_demand(), [("stuck".into(), 3)].into());
    assert!(next.has_demand("free") && next.has_demand("unknown") && !next.has_demand("stuck"));
    // Room: nine tenths of the limit, less three messages, less this permit.
    let mut permits = vec![next];
    for _ in 0..5 {
        permits.push(producer.request_next().await.unwrap());
    }
    let mut further = Box::pin(producer.request_next());
    for _ in 0..20 {
        assert!(poll!(&mut further).is_pending(), "there is no room");
        tokio::task::yield_now().await;
    }
    drop(further); // without taking anything with it
    permits.pop();
    let permit = producer.request_next().await.unwrap();
    assert_eq!(permit.ask("free", 6).now_or_never().map(Result::ok), None, "it waits for the confirmation");
    producer.close().await;
    assert_eq!(producer.request_next().await.unwrap_err(), ProducerError::Closed);
    assert!(matches!(permits.remove(0).send("free", 7).unwrap_err(), SendError::Closed(Some(7))));
}

#[tokio::test]
async fn try_send_takes_what_there_is_room_for() {
    let region = TestRegion::new(Answers::Silent);
    let mut settings = without_repeats();
    settings.sharding.buffer_size = 10;
    settings.sharding.buffer_size_per_entity = 4;
    let producer = start(&region, &settings);
    let mut sent = Vec::new();
    let full = loop {
        match producer.try_send("a", i64::try_from(sent.len()).unwrap()) {
            Ok(next) => sent.push(next),
            Err(error) => break error,
        }
        tokio::task::yield_now().await;
    };
    assert!(matches!(full, TrySendError::Full(_)), "{full:?}");
    assert!((5..=10).contains(&sent.len()), "one on its way, four in the buffer: {}", sent.len());
    assert!(producer.try_send("b", 1).is_ok(), "a full buffer of one entity holds up no other");
    producer.close().await;
    assert!(matches!(producer.try_send("a", 7), Err(TrySendError::Closed(7))));
}

#[tokio::test]
async fn a_sink_is_closed_when_everything_is_confirmed() {
    let region = TestRegion::new(Answers::Confirm);
    let producer = start(&region, &without_repeats());
    let observer = producer.clone();
    let mut sink = producer.into_sink();
    let mut items = futures::stream::iter((0..500).map(|number| Ok((Arc::from(format!("e{}", number % 3)), number))));
    sink.send_all(&mut items).await.unwrap();
    assert_eq!(observer.stats().sent, 500, "flushed, everything is accepted");
    sink.close().await.unwrap();
    assert_eq!(region.delivered().len(), 500);
    assert_eq!(*observer.confirmed().borrow(), SeqNr(500));
    assert!(matches!(observer.send("a", 1).await.unwrap_err(), SendError::Closed(Some(1))));
}

#[tokio::test]
async fn asked_in_memory_means_confirmed() {
    let region = TestRegion::new(Answers::Grant);
    let producer = start(&region, &without_repeats());
    assert!(tokio::time::timeout(Duration::from_millis(30), producer.ask("a", 1)).await.is_err());
    region.answer_all(Answers::Confirm);
    assert_eq!(producer.ask("b", 2).await.unwrap(), SeqNr(2));
    let mut sent = producer.send("a", 3).await.unwrap();
    assert_eq!(sent.seq_nr().await.unwrap(), SeqNr(3));
    assert_eq!(sent.confirmed().await.unwrap(), SeqNr(3));
}
