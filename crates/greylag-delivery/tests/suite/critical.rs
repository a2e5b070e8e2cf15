//! Scenarios found by model checking, with more than one machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_consumer::{self, ShardingConsumer};
use greylag_delivery::machine::sharding_producer::{self, ShardingProducer as ProducerMachine};
use greylag_delivery::{
    ConsumerDelivery, ControllerRef, Dedupe, DeliveryCommand, DeliveryEffects, DeliverySettings, Epoch,
    EventSourcedDelivery, NodeDelivery, ProducerId, ProducerIdentity, SendError, SequencedBatch, ShardingProducer,
    StreamId, Upstream, UpstreamMessage, WithDelivery,
};
use greylag_persistence::{
    Ctx, Effect, EventKind, EventSeq, EventSourced, EventSourcedSettings, InMemoryJournal, InMemorySnapshots,
    MARK_NAME, Marks, OnUnknownEvent, PersistenceId, Recovery, SettingsError, StoredCodec, Stores,
};
use greylag_sharding::settings::ShardingSettings;
use greylag_sharding::{EntityKey, EntityType, Region, Sharding};
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(60);

fn identity(epoch: u64) -> ProducerIdentity {
    ProducerIdentity::stable(ProducerId::new("till").unwrap(), StreamId(1), Epoch(epoch))
}

/// The machines of both sides; the test delivers the messages between them.
struct Pair {
    now: Instant,
    producer: ProducerMachine<u64>,
    transmitted: Vec<SequencedBatch<u64>>,
    confirmed: Vec<u64>,
}

struct Entity {
    controller: ControllerRef,
    machine: ShardingConsumer<u64>,
    delivered: Vec<(u64, sharding_consumer::DeliveryHandle)>,
    said: Vec<UpstreamMessage>,
    suppressed: Vec<u64>,
}

impl Pair {
    fn new(epoch: u64) -> Self {
        let settings = DeliverySettings::test().sharding_producer();
        let path = format!("delivery/{epoch}").into();
        let producer = ProducerMachine::new(settings, identity(epoch), "p:1#1".parse().unwrap(), path);
        Self { now: Instant::now(), producer, transmitted: Vec::new(), confirmed: Vec::new() }
    }

    fn handle_input(&mut self, input: sharding_producer::Input<u64>) {
        let mut effects = Vec::new();
        self.producer.handle(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                sharding_producer::Effect::Transmit { header, message, .. } => {
                    self.transmitted.push(SequencedBatch { header, frames: vec![message] });
                }
                sharding_producer::Effect::Confirmed { total, .. } => self.confirmed.push(total.get()),
                _ => {}
            }
        }
    }

    fn send(&mut self, count: u64) {
        for _ in 0..count {
            let ticket = self.producer.current_seq_nr().get();
            self.handle_input(sharding_producer::Input::Admit {
                ticket,
                entity: "e".into(),
                shard: "s".into(),
                frames: Frames::Whole(ticket),
                bytes: 1,
                ack: false,
            });
        }
    }

    /// Delivers all frames to the entity, and its answers to the producer.
    fn exchange(&mut self, entity: &mut Entity) {
        while !self.transmitted.is_empty() || !entity.said.is_empty() {
            for batch in std::mem::take(&mut self.transmitted) {
                entity.handle_input(self.now, sharding_consumer::Input::Batch(batch));
            }
            for message in std::mem::take(&mut entity.said) {
                self.handle_input(sharding_producer::Input::Received(message));
            }
        }
    }
}

impl Entity {
    fn start(now: Instant, name: &str, dedupe: Dedupe) -> Self {
        let controller = ControllerRef { node: "e:1#1".parse().unwrap(), path: name.into(), instance: 1 };
        let machine = ShardingConsumer::new(DeliverySettings::test().sharding_consumer());
        let mut entity = Self { controller, machine, delivered: Vec::new(), said: Vec::new(), suppressed: Vec::new() };
        entity.handle_input(now, sharding_consumer::Input::Start(dedupe));
        entity
    }

    fn handle_input(&mut self, now: Instant, input: sharding_consumer::Input<u64>) {
        let mut effects = Vec::new();
        self.machine.handle(now, input, &mut effects);
        for effect in effects {
            match effect {
                sharding_consumer::Effect::Deliver { handle, parts: Frames::Whole(value) } => {
                    self.delivered.push((value, handle));
                }
                sharding_consumer::Effect::Reply { to, epoch, message } => {
                    self.said.push(UpstreamMessage { from: self.controller.clone(), to, epoch, message });
                }
                sharding_consumer::Effect::Suppressed(id) => self.suppressed.push(id.seq_nr.get()),
                _ => {}
            }
        }
    }

    fn confirm(&mut self, now: Instant, value: u64) {
        let (_, handle) = self.delivered.iter().find(|(known, _)| *known == value).cloned().unwrap();
        self.handle_input(now, sharding_consumer::Input::Confirm(handle));
    }

    fn values(&self) -> Vec<u64> {
        self.delivered.iter().map(|(value, _)| *value).collect()
    }
}

/// delivery 61: messages whose late confirmation came from the former consumer are not missing at the new one, which
/// goes on without a timer.
#[test]
fn confirmed_by_the_former_consumer() {
    let mut pair = Pair::new(1);
    let now = pair.now;
    let mut a = Entity::start(now, "a", Dedupe::none());
    pair.send(5);
    pair.exchange(&mut a);
    for value in [1, 2] {
        a.confirm(now, value);
        pair.exchange(&mut a);
    }
    // Only the entity knows that 2 is confirmed; tell the producer, like a C11 tick.
    let link = a.machine.watermarks().confirmed(StreamId(1));
    assert_eq!(link.get(), 2);
    let to = ControllerRef { node: "p:1#1".parse().unwrap(), path: "delivery/1".into(), instance: 1 };
    let ack = |confirmed| UpstreamMessage {
        from: a.controller.clone(),
        to: to.clone(),
        epoch: Some(Epoch(1)),
        message: Upstream::Ack { confirmed, up_to: 20 },
    };
    pair.handle_input(sharding_producer::Input::Received(ack(2)));

    let mut b = Entity::start(now, "b", Dedupe::none());
    pair.handle_input(sharding_producer::Input::ShardMoved("s".into()));
    assert_eq!(pair.transmitted.len(), 1, "the first frame alone");
    for batch in std::mem::take(&mut pair.transmitted) {
        b.handle_input(now, sharding_consumer::Input::Batch(batch));
    }
    assert_eq!(b.values(), [3]);
    // A's last message arrives before B's first.
    pair.handle_input(sharding_producer::Input::Received(ack(4)));
    assert_eq!(pair.transmitted[0].header.lowest, 5);
    pair.exchange(&mut b);
    b.confirm(now, 3);
    assert_eq!(b.said, [], "nothing that is not known already");
    assert_eq!(b.values(), [3, 5]);
    b.confirm(now, 5);
    pair.send(3);
    pair.exchange(&mut b);
    for value in [6, 7, 8] {
        b.confirm(now, value);
        pair.exchange(&mut b);
    }
    assert_eq!(b.values(), [3, 5, 6, 7, 8]);
}

/// delivery 62, for a stable identity: the stream continues under a higher epoch, with link numbers from 1; processed
/// messages are suppressed, and late messages to the old epoch confirm nothing.
#[test]
fn a_stream_goes_on_under_a_higher_epoch() {
    let mut old = Pair::new(1);
    let now = old.now;
    let mut entity = Entity::start(now, "e", Dedupe::none());
    old.send(3);
    old.exchange(&mut entity);
    for value in 1..=3 {
        entity.confirm(now, value);
        old.exchange(&mut entity);
    }
    let mut new = Pair::new(2);
    new.send(5);
    // An answer to the old epoch must not affect the new one.
    let late = UpstreamMessage {
        from: entity.controller.clone(),
        to: new.transmitted[0].header.controller.clone(),
        epoch: Some(Epoch(1)),
        message: Upstream::Ack { confirmed: 1, up_to: 20 },
    };
    new.handle_input(sharding_producer::Input::Received(late));
    assert_eq!(new.confirmed, [0_u64; 0]);
    new.exchange(&mut entity);
    for value in [4, 5] {
        entity.confirm(now, value);
        new.exchange(&mut entity);
    }
    assert_eq!((entity.values(), entity.suppressed.clone()), (vec![1, 2, 3, 4, 5], vec![1, 2, 3]));
    // The old controller is fenced, and ends.
    old.send(1);
    old.exchange(&mut entity);
    assert_eq!(entity.values(), [1, 2, 3, 4, 5]);
    old.send(1);
    assert!(old.transmitted.is_empty(), "a fenced producer is silent");
}

/// Adds messages up; zero has no effect, but leaves a mark if `mark_empty` is set.
struct Sum {
    evaluated: Arc<AtomicUsize>,
    snapshots: bool,
    settings: EventSourcedSettings,
    mark_empty: bool,
    events: StoredCodec<i64>,
}

type Command = DeliveryCommand<i64, ReplyTo<i64>>;

const SUM: EntityKey<i64> = EntityKey::new("Sum");

impl Default for Sum {
    fn default() -> Self {
        let (evaluated, settings) = (Arc::default(), EventSourcedSettings::default());
        Self { evaluated, snapshots: false, settings, mark_empty: false, events: added() }
    }
}

impl EventSourced for Sum {
    type Command = Command;
    type Event = i64;
    type State = i64;

    fn settings(&self, _: &EventSourcedSettings) -> EventSourcedSettings {
        self.settings.clone()
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, state: &i64, command: Command) -> Effect<Self> {
        match command {
            DeliveryCommand::Delivered(delivery) => {
                self.evaluated.fetch_add(1, Ordering::Relaxed);
                let by = *delivery;
                let events = if by == 0 { Vec::new() } else { vec![by] };
                Effect::persist_delivery(delivery, events).mark_empty(self.mark_empty)
            }
            DeliveryCommand::Bypass(reply_to) => Effect::reply(reply_to, *state),
        }
    }

    fn apply(state: &mut i64, by: &i64) {
        *state += by;
    }

    fn snapshot_when(&self, _: &i64, _: &i64, _: greylag_persistence::SeqNr) -> bool {
        self.snapshots
    }
}

struct Node {
    sharding: Sharding,
    region: Region<WithDelivery<i64, ReplyTo<i64>>>,
    delivery: ConsumerDelivery,
    evaluated: Arc<AtomicUsize>,
}

struct InMemoryStores {
    journal: InMemoryJournal,
    snapshots: InMemorySnapshots,
}

impl Node {
    async fn start(stores: &InMemoryStores, change: impl Fn(&mut Sum) + Send + Sync + 'static) -> Self {
        Self::start_with(stores, change, DeliverySettings::test()).await
    }

    async fn start_with(
        stores: &InMemoryStores,
        change: impl Fn(&mut Sum) + Send + Sync + 'static,
        settings: DeliverySettings,
    ) -> Self {
        let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
        let stores = Stores::new(Arc::new(stores.journal.clone()), Arc::new(stores.snapshots.clone()));
        let sharding = Sharding::alone(remoting, Some(stores), ShardingSettings::test()).await.unwrap();
        let node = NodeDelivery::of(&sharding, settings).unwrap();
        let evaluated = Arc::new(AtomicUsize::new(0));
        let count = evaluated.clone();
        let make = move || {
            let mut sum = Sum { evaluated: count.clone(), ..Sum::default() };
            change(&mut sum);
            sum
        };
        let Sum { events, snapshots, .. } = make();
        let mut sums = EntityType::event_sourced(SUM, move |_| Ok(make())).commands(json("add")).events(events);
        if snapshots {
            sums = sums.snapshots(json::<i64>("sum"));
        }
        let region = sharding.init(sums.with_delivery_and(json("sum.get"))).unwrap();
        let delivery = node.consumers(&SUM).unwrap();
        Self { sharding, region, delivery, evaluated }
    }

    fn producer(&self, epoch: u64) -> ShardingProducer<i64> {
        self.producer_of(identity(epoch))
    }

    fn producer_of(&self, identity: ProducerIdentity) -> ShardingProducer<i64> {
        let mut settings = DeliverySettings::test();
        settings.producer.resend_first_interval = Duration::from_millis(100);
        settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_millis(300);
        ShardingProducer::start(&self.sharding, identity, self.region.clone(), json::<i64>("n"), settings).unwrap()
    }

    async fn sum(&self, id: &str) -> i64 {
        self.region.entity_ref(id).ask(WithDelivery::Bypass).timeout(PATIENCE).await.unwrap()
    }
}

fn added() -> StoredCodec<i64> {
    StoredCodec::new(json::<i64>("added"))
}

/// Writes events that older programs cannot decode, and decodes theirs.
fn added_later() -> StoredCodec<i64> {
    StoredCodec::new(json::<i64>("added later")).reads(json::<i64>("added"), 1)
}

/// Cannot decode 1, has an adapter that drops 2, and skips events of a later program; stores a mark alone if there are
/// no events.
fn blind(sum: &mut Sum) {
    let adapted = added().from_journal(|by| if by == 2 { EventSeq::Filtered } else { EventSeq::One(by) });
    sum.events = adapted.filtered_when(|stored| &stored.payload[..] == b"1");
    sum.settings.on_unknown_event = OnUnknownEvent::Skip;
    sum.mark_empty = true;
}

fn sum_id() -> PersistenceId {
    PersistenceId::of("Sum", "x").unwrap()
}

fn in_memory_stores() -> InMemoryStores {
    InMemoryStores { journal: InMemoryJournal::default(), snapshots: InMemorySnapshots::default() }
}

/// delivery 71: an owner that lost its history without knowing decides "nothing to do". The read of the journal's head
/// reveals the newer owner; the decision is not confirmed, and a true owner makes it again.
#[tokio::test]
async fn a_stale_owner_confirms_nothing() {
    let stores = in_memory_stores();
    let stale = Node::start(&stores, |_| {}).await;
    let producer = stale.producer(1);
    producer.send_confirmed("x", 5).await.unwrap();
    let owner = Node::start(&stores, |_| {}).await;
    assert_eq!(owner.sum("x").await, 5, "it has claimed the history");
    producer.send_confirmed("x", 0).await.unwrap();
    assert_eq!(stale.evaluated.load(Ordering::Relaxed), 3, "5, then 0 twice: by the stale owner, and again");
    let counters = stale.delivery.counters().snapshot();
    assert_eq!(counters.confirmed, 2, "each message once");
}

/// delivery 75: marks count even if their events are filtered or unreadable, and a snapshot alone has them.
#[tokio::test]
async fn marks_outlive_snapshots_and_unreadable_events() {
    let stores = in_memory_stores();
    let node = Node::start(&stores, |sum| sum.snapshots = true).await;
    let producer = node.producer(1);
    for by in 1..=3 {
        producer.send_confirmed("x", by).await.unwrap();
    }
    producer.close().await;
    // From here on an adapter filters every event; without snapshots only marks are left.
    let forgetful = Node::start(&stores, |sum| sum.events = added().from_journal(|_| EventSeq::Filtered)).await;
    let again = forgetful.producer(2);
    for by in 1..=4 {
        again.send_confirmed("x", by).await.unwrap();
    }
    assert_eq!(forgetful.delivery.counters().snapshot().suppressed, 3);
    assert_eq!(forgetful.sum("x").await, 4);
    again.close().await;
    // From the snapshot alone, without events to replay.
    let from_snapshot = Node::start(&stores, |sum| sum.snapshots = true).await;
    let third = from_snapshot.producer(3);
    for by in 1..=4 {
        third.send_confirmed("x", by).await.unwrap();
    }
    assert_eq!(from_snapshot.delivery.counters().snapshot().suppressed, 4);
    assert_eq!(from_snapshot.sum("x").await, 10);
}

/// delivery 98, 75: producers with ever new streams leave a bounded number of streams in the state and in its
/// snapshots. A stream with a link keeps its mark, however long the producer is silent.
#[tokio::test]
async fn marks_of_streams_that_ended_leave_state_and_snapshots() {
    let stores = in_memory_stores();
    let mut settings = DeliverySettings::test();
    settings.sharding.max_producers_per_entity = 2;
    settings.dedupe_streams_max = 2;
    settings.dedupe_retention = Duration::from_millis(1);
    let node = Node::start_with(&stores, |sum| sum.snapshots = true, settings).await;
    let silent = node.producer(1);
    silent.send_confirmed("x", 1).await.unwrap();
    let mut last = StreamId(0);
    for by in 0..20 {
        // Longer than the retention of marks, by the clock of the journal.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let identity = ProducerIdentity::in_memory(ProducerId::new("orders").unwrap());
        last = identity.stream_id;
        let producer = node.producer_of(identity);
        producer.send_confirmed("x", 10 + by).await.unwrap();
        producer.close().await;
    }
    let newest = stores.journal.events(&sum_id()).last().map(|event| event.seq_nr);
    let snapshot = tokio::time::timeout(PATIENCE, async {
        loop {
            let snapshots = stores.snapshots.snapshots(&sum_id());
            match snapshots.into_iter().find(|snapshot| Some(snapshot.seq_nr) == newest) {
                Some(snapshot) => return snapshot,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    });
    let snapshot = snapshot.await.expect("it is written");
    let marks = Marks::decode(snapshot.metadata[MARK_NAME].clone()).unwrap();
    let streams: Vec<u128> = marks.iter().map(|(stream, _)| stream.as_u128()).collect();
    assert!(streams.len() <= 3, "{streams:?}");
    assert!(streams.contains(&last.0) && streams.contains(&1), "{streams:?}");
}

/// delivery 75: an event whose payload decodes to nothing, an event that an adapter filters, an event that is skipped
/// because no codec reads it, and a mark that was stored alone. After a restart the four deliveries are suppressed;
/// also from a snapshot alone.
#[tokio::test]
async fn marks_outlive_events_that_come_to_nothing() {
    let stores = in_memory_stores();
    let write = async |by: &[i64], epoch, change: fn(&mut Sum)| {
        let node = Node::start(&stores, change).await;
        let producer = node.producer(epoch);
        for by in by {
            producer.send_confirmed("x", *by).await.unwrap();
        }
        producer.close().await;
        let suppressed = node.delivery.counters().snapshot().suppressed;
        // Snapshots are written in the background.
        let newest = || stores.journal.events(&sum_id()).last().map(|event| event.seq_nr);
        let has_snapshot =
            || stores.snapshots.snapshots(&sum_id()).iter().any(|snapshot| Some(snapshot.seq_nr) == newest());
        let mut sum = Sum::default();
        change(&mut sum);
        while sum.snapshots && !has_snapshot() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (suppressed, node.evaluated.load(Ordering::Relaxed), node.sum("x").await)
    };
    assert_eq!(write(&[1, 2], 1, |_| {}).await, (0, 2, 3));
    assert_eq!(write(&[1, 2, 3], 2, |sum| sum.events = added_later()).await, (2, 1, 6));
    // From here on the first three events yield nothing.
    assert_eq!(write(&[1, 2, 3, 0], 3, blind).await, (3, 1, 0));
    assert_eq!(write(&[1, 2, 3, 0], 4, blind).await, (4, 0, 0));
    // A snapshot is written by a program that can decode every event; events before the snapshot are not read again.
    let whole = |sum: &mut Sum| {
        sum.events = added_later();
        sum.snapshots = true;
    };
    assert_eq!(write(&[1, 2, 3, 0, 5], 5, whole).await, (4, 1, 11));
    let from_snapshot = |sum: &mut Sum| {
        blind(sum);
        sum.snapshots = true;
    };
    assert_eq!(write(&[1, 2, 3, 0, 5, 6], 6, from_snapshot).await, (5, 1, 17));
}

/// delivery §7, `mark_empty`: a delivery without an effect is not evaluated again if `mark_empty` is set, and its mark
/// is a record without an event.
#[tokio::test]
async fn a_delivery_that_led_to_nothing_is_marked_where_that_is_asked_for() {
    let evaluations = async |mark_empty| {
        let stores = in_memory_stores();
        let mut evaluated = Vec::new();
        for epoch in 1..=2 {
            let node = Node::start(&stores, move |sum| sum.mark_empty = mark_empty).await;
            let producer = node.producer(epoch);
            for by in [5, 0] {
                producer.send_confirmed("x", by).await.unwrap();
            }
            producer.close().await;
            assert_eq!(node.sum("x").await, 5);
            evaluated.push(node.evaluated.load(Ordering::Relaxed));
        }
        let kinds: Vec<_> = stores.journal.events(&sum_id()).iter().map(|event| event.kind).collect();
        (evaluated, kinds)
    };
    assert_eq!(evaluations(false).await, (vec![2, 1], vec![EventKind::Event]));
    assert_eq!(evaluations(true).await, (vec![2, 0], vec![EventKind::Event, EventKind::Filtered]));
}

/// delivery 75, end: an entity under delivery must read its whole history.
#[tokio::test]
async fn settings_that_lose_marks_are_refused() {
    let partial: fn(&mut Sum) = |sum| sum.settings.allow_partial_history = true;
    let skipping: fn(&mut Sum) = |sum| sum.settings.recovery = Recovery::default().skip_replay();
    for change in [partial, skipping] {
        let node = Node::start(&in_memory_stores(), change).await;
        let answer = node.region.entity_ref("x").ask(WithDelivery::Bypass).timeout(Duration::from_secs(2)).await;
        let refused = answer.unwrap_err().to_string();
        assert!(refused.contains(&SettingsError::MarksMissing.to_string()), "{refused}");
    }
}

/// delivery 65, C8: a message sent again by a producer of the next epoch reaches the entity that has stored its effect;
/// it is confirmed without running the handler.
#[tokio::test]
async fn a_message_that_comes_again_under_a_higher_epoch_does_not_run() {
    let stores = in_memory_stores();
    let node = Node::start(&stores, |_| {}).await;
    let first = node.producer(1);
    first.send_confirmed("x", 5).await.unwrap();
    first.close().await;
    let second = node.producer(2);
    second.send_confirmed("x", 5).await.unwrap();
    assert_eq!(node.sum("x").await, 5);
    assert_eq!(node.evaluated.load(Ordering::Relaxed), 1);
    let refused: Result<_, SendError<i64>> = first.send("x", 6).await;
    assert!(matches!(refused, Err(SendError::Closed(Some(6)))));
}
