//! Messages to entities of the producer's own node, before and after these entities move.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use greylag_codec::json;
use greylag_core::{Codec, CodecId, DeadLetterReason, DecodeError, EncodeError, Manifest};

use super::region::{Answers, TestRegion};
use super::{PATIENCE, identity, until, without_repeats};
use crate::driver::InMemoryQueues;
use crate::driver::producer::ShardingProducer;
use crate::driver::region::RouteEvent;
use crate::driver::sending::MessageStorage;
use crate::error::{SendError, SentError};
use crate::ids::{ProducerId, SeqNr};
use crate::machine::portable::UnsendableError;
use crate::settings::DeliverySettings;

/// Encodes numbers as JSON and counts the calls. Refuses one number, panics at another.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

const REFUSED: i64 = 666;
const PANICS: i64 = 667;

impl Counting {
    fn encoded(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Codec<i64> for Counting {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &i64) -> Manifest {
        Manifest::from_static("n")
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![Manifest::from_static("n")]
    }

    fn encode(&self, number: &i64, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        match *number {
            REFUSED => Err(EncodeError::Unrepresentable { manifest: "n".to_owned(), reason: "on purpose".to_owned() }),
            PANICS => panic!("on purpose"),
            _ => json::<i64>("n").encode(number, buffer),
        }
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<i64, DecodeError> {
        json::<i64>("n").decode(manifest, bytes)
    }

    fn size_hint(&self, _: &i64) -> usize {
        8
    }
}

fn start(
    region: &Arc<TestRegion>,
    storage: MessageStorage,
    settings: &DeliverySettings,
) -> (ShardingProducer<i64>, Counting) {
    let codec = Counting::default();
    let (remoting, counting) = (region.remoting.clone(), Arc::new(codec.clone()));
    (ShardingProducer::open(remoting, storage, region.clone(), counting, settings).unwrap(), codec)
}

fn in_memory(region: &Arc<TestRegion>, settings: &DeliverySettings) -> (ShardingProducer<i64>, Counting) {
    start(region, MessageStorage::InMemory(identity()), settings)
}

/// From here on the entities of a region that handed messages over are on other nodes.
fn all_leave(region: &TestRegion, shards: &[&str]) {
    region.hands_over(false);
    for shard in shards {
        region.moves(shard);
        region.tell(RouteEvent::Routed((*shard).into(), true));
        region.tell(RouteEvent::Moved((*shard).into()));
    }
}

/// delivery K7: a message to an entity of the same node is neither encoded nor cut, whatever its size. A durable
/// producer's message is encoded.
#[tokio::test]
async fn messages_of_the_same_node_are_not_encoded() {
    let mut settings = without_repeats();
    (settings.producer.chunk_large_messages, settings.producer.max_message_bytes) = (2, 1000);
    let region = TestRegion::new(Answers::Confirm);
    region.hands_over(true);
    let (producer, codec) = in_memory(&region, &settings);
    for number in 1..=1000 {
        producer.send(format!("e{}", number % 7), 1_000_000 + number).await.unwrap();
    }
    let permit = producer.request_next().await.unwrap();
    permit.ask("e1", 5).await.unwrap();
    producer.try_send("e2", 6).unwrap().confirmed().await.unwrap();
    producer.drain(PATIENCE).await.unwrap();
    assert_eq!((codec.encoded(), region.without_bytes(), region.frames()), (0, 1002, 1002));

    let (disk, region) = (InMemoryQueues::new(), TestRegion::new(Answers::Confirm));
    region.hands_over(true);
    let storage = MessageStorage::Durable(ProducerId::new("p").unwrap(), Box::new(disk.open("p")));
    let (producer, codec) = start(&region, storage, &settings);
    for number in 1..=10 {
        producer.send_confirmed("a", number).await.unwrap();
    }
    assert_eq!((codec.encoded(), region.without_bytes()), (10, 0), "each once, for its store");
}

/// delivery K7: before a shard has a route, its entities are assumed to be on this node; if they are not, no message is
/// lost.
#[tokio::test]
async fn a_route_may_lead_to_another_node() {
    let region = TestRegion::new(Answers::Silent);
    region.has_routes(false);
    let (producer, codec) = in_memory(&region, &without_repeats());
    for number in 1..=3 {
        producer.send("here", number).await.unwrap();
        producer.send("there", 10 + number).await.unwrap();
    }
    until("a copy of each waits for a route", || region.frames() == 2).await;
    assert_eq!(codec.encoded(), 0);
    region.answer_all(Answers::Confirm);
    region.has_routes(true);
    region.hands_over(true);
    region.tell(RouteEvent::Routed("here".into(), true));
    region.tell(RouteEvent::Moved("here".into()));
    until("those to this node are confirmed", || producer.stats().confirmed == 3).await;
    assert_eq!(codec.encoded(), 0);
    region.hands_over(false);
    region.tell(RouteEvent::Routed("there".into(), true));
    producer.drain(PATIENCE).await.unwrap();
    let numbers: Vec<i64> = region.delivered_to("there").into_iter().map(|(number, _)| number).collect();
    assert_eq!((codec.encoded(), numbers), (3, vec![11, 11, 12, 13]), "the first copy was without bytes");
}

/// delivery K7, of 70: when an entity moves, its unconfirmed messages are encoded once, and sent to the new home in
/// order under their numbers. Confirmed messages stay confirmed.
#[tokio::test]
async fn scenario_70_unconfirmed_messages_follow_their_entity() {
    let region = TestRegion::new(Answers::Grant);
    region.hands_over(true);
    region.answer("done", Answers::Confirm);
    let (producer, codec) = in_memory(&region, &without_repeats());
    for number in 1..=5 {
        producer.send("moves", number).await.unwrap();
        producer.send("done", 100 + number).await.unwrap();
        producer.send("stays", 200 + number).await.unwrap();
    }
    until("everything has arrived", || region.frames() == 15 && producer.stats().confirmed == 5).await;
    region.answer("moves", Answers::Confirm);
    all_leave(&region, &["moves", "done"]);
    until("what moved is confirmed", || producer.stats().confirmed == 10).await;
    let moved = |number: i64| (number, SeqNr(number.unsigned_abs() * 3 - 2));
    let twice: Vec<_> = (1..=5).chain(1..=5).map(moved).collect();
    assert_eq!(
        region.delivered_to("moves"),
        twice,
        "on the old node and on the new one, the first frame no third time"
    );
    assert_eq!((region.frames_to("done"), region.frames_to("stays")), (5, 5));
    assert_eq!((codec.encoded(), region.without_bytes()), (5, 15));

    // Senders encode later messages; once the shard is back on this node, messages are not encoded.
    assert_eq!(producer.send_confirmed("moves", 6).await.unwrap(), SeqNr(16));
    assert_eq!(codec.encoded(), 6);
    region.hands_over(true);
    region.moves("moves");
    region.tell(RouteEvent::RefreshAll);
    while region.without_bytes() == 15 {
        // The producer handles the move between two sends.
        producer.send_confirmed("moves", 7).await.unwrap();
    }
    let encoded = codec.encoded();
    for number in 8..=12 {
        producer.send_confirmed("moves", number).await.unwrap();
    }
    assert_eq!((codec.encoded(), region.without_bytes()), (encoded, 21));
}

/// delivery 59: messages that an entity confirmed before it moved are not sent to its new home, although the link
/// starts over: the producer finds confirmation and move at the same time, and handles the confirmation first.
#[tokio::test]
async fn messages_confirmed_before_a_move_do_not_follow() {
    let region = TestRegion::new(Answers::Grant);
    region.hands_over(true);
    let (producer, codec) = in_memory(&region, &without_repeats());
    let entities: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    for (entity, number) in entities.iter().zip(0..) {
        producer.send(entity.as_str(), number).await.unwrap();
    }
    until("everything has arrived", || region.frames() == 20).await;
    region.hands_over(false);
    for entity in &entities {
        region.moves(entity);
        let shard: Arc<str> = entity.as_str().into();
        region.confirm_before(entity, &[RouteEvent::Routed(shard.clone(), true), RouteEvent::Moved(shard)]);
        // Let the producer's task run.
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    until("everything is confirmed", || producer.stats().confirmed == 20).await;
    assert_eq!((region.frames(), codec.encoded()), (20, 0));
}

/// delivery K7: a message that cannot be sent to another node fails only when its entity moves there. Its sender and
/// the operator get the reason, and no other message is lost.
#[tokio::test]
async fn unsendable_message_is_reported_and_skipped() {
    let region = TestRegion::new(Answers::Grant);
    region.hands_over(true);
    let mut settings = without_repeats();
    settings.producer.max_message_bytes = 10;
    let (producer, codec) = in_memory(&region, &settings);
    const LONG: i64 = 12_345_678_901;
    let mut sent = Vec::new();
    for number in [1, REFUSED, 2, PANICS, LONG, 3] {
        sent.push(producer.send("a", number).await.unwrap());
    }
    until("everything has arrived", || region.frames() == 6).await;
    assert_eq!(codec.encoded(), 0);
    region.answer_all(Answers::Confirm);
    all_leave(&region, &["a"]);
    let mut outcomes = Vec::new();
    for sent in sent {
        outcomes.push(tokio::time::timeout(PATIENCE, sent.confirmed()).await.expect("each is settled"));
    }
    let unsendable = |outcome: &Result<SeqNr, SentError>, number: u64| match outcome {
        Err(SentError::Unsendable { seq_nr, error }) if *seq_nr == SeqNr(number) => error.clone(),
        other => panic!("{other:?}"),
    };
    for (index, number) in [(0, 1), (2, 3), (5, 6)] {
        assert_eq!(outcomes[index], Ok(SeqNr(number)));
    }
    let refused = unsendable(&outcomes[1], 2).to_string();
    assert!(refused.contains("on purpose"), "{refused}");
    let panicked = unsendable(&outcomes[3], 4).to_string();
    assert!(panicked.contains("panicked"), "{panicked}");
    assert_eq!(unsendable(&outcomes[4], 5), UnsendableError::TooLarge { size: 11, max: 10 });
    producer.drain(PATIENCE).await.unwrap();
    assert_eq!((producer.stats().unconfirmed, *producer.confirmed().borrow()), (0, SeqNr(6)));
    let dead = region.remoting.dead_letter_totals();
    assert_eq!(dead.get(&DeadLetterReason::SerializeFailed), Some(&2));
    assert_eq!(dead.get(&DeadLetterReason::TooLarge), Some(&1));

    // If the entity is known to be on another node, the sender gets the error before anything is sent.
    assert!(matches!(producer.send("a", REFUSED).await.unwrap_err(), SendError::Encode(REFUSED, _)));
    assert!(matches!(
        producer.send("a", LONG).await.unwrap_err(),
        SendError::MessageTooLarge { message: LONG, size: 11, max: 10 }
    ));
}

/// delivery K7: the message size limit and the byte budgets use the codec's size estimate. If the estimate is above the
/// limit, the message is encoded, and its true size counts.
#[tokio::test]
async fn sizes_of_messages_without_bytes_are_what_the_codec_expects() {
    let region = TestRegion::new(Answers::Silent);
    region.hands_over(true);
    let mut settings = without_repeats();
    settings.producer.max_message_bytes = 7;
    let (producer, codec) = in_memory(&region, &settings);
    producer.send("a", 1).await.unwrap();
    assert_eq!(codec.encoded(), 1);
    let refused = producer.send("a", 12_345_678).await.unwrap_err();
    assert!(matches!(refused, SendError::MessageTooLarge { message: 12_345_678, size: 8, max: 7 }), "{refused}");

    settings.producer.max_message_bytes = 8;
    settings.sharding.max_in_flight_bytes = 100;
    settings.sharding.max_in_flight_bytes_per_entity = 20;
    let (producer, codec) = in_memory(&region, &settings);
    for number in 1..=2 {
        producer.send("a", number).await.unwrap();
    }
    assert!(producer.try_send("a", 3).is_ok());
    until("the third one of eight bytes waits for room", || producer.stats().waiting == 1).await;
    producer.send("b", 4).await.unwrap();
    assert_eq!(codec.encoded(), 0);
}
