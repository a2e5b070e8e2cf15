//! Scenarios with large numbers, at full size: the producers' machines with a virtual clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_producer::{
    Effect, Input, RoutedMessage, ShardingProducer, ShardingProducerSettings,
};
use greylag_delivery::machine::storing::{Answer, Call};
use greylag_delivery::queue::{MessageSent, QueueState};
use greylag_delivery::{
    ControllerRef, DeliverySettings, Epoch, ProducerId, ProducerIdentity, SeqNr, StreamId, Upstream, UpstreamMessage,
};

const MIB: usize = 1 << 20;

/// A producer, its effects, and a queue that stores at once.
struct World {
    start: Instant,
    now: Instant,
    machine: ShardingProducer<u64>,
    next_ticket: u64,
    admitted: BTreeSet<u64>,
    /// Time, link number and link of each transmitted frame, by entity.
    transmitted: BTreeMap<Arc<str>, Vec<(Duration, u64, ControllerRef)>>,
}

fn settings() -> DeliverySettings {
    DeliverySettings { sharding: Default::default(), ..DeliverySettings::test() }
}

impl World {
    fn new(machine: ShardingProducer<u64>) -> Self {
        let now = Instant::now();
        let (admitted, transmitted) = (BTreeSet::new(), BTreeMap::new());
        let mut world = Self { start: now, now, machine, next_ticket: 1, admitted, transmitted };
        world.handle_input(Input::Start);
        world
    }

    fn in_memory(settings: &ShardingProducerSettings) -> Self {
        let identity = ProducerIdentity::stable(ProducerId::new("p").unwrap(), StreamId(1), Epoch(1));
        Self::new(ShardingProducer::new(settings.clone(), identity, "n:1#1".parse().unwrap(), "delivery/1".into()))
    }

    /// A world whose queue has one message for each of these entities.
    fn durable(settings: &DeliverySettings, unconfirmed: impl IntoIterator<Item = Arc<str>>) -> Self {
        let now = Instant::now();
        let id = ProducerId::new("p").unwrap();
        let (node, path) = ("n:1#1".parse().unwrap(), "delivery/1".into());
        let storing = settings.storing();
        let producer = settings.sharding_producer();
        let machine = ShardingProducer::durable(producer, storing, id, node, path, (now, 1_000_000));
        let mut world = Self::new(machine);
        let unconfirmed: Vec<_> = unconfirmed.into_iter().zip(1..).map(|(entity, total)| sent(entity, total)).collect();
        let state = QueueState {
            stream_id: StreamId(1),
            epoch: Epoch(2),
            current_seq_nr: SeqNr(unconfirmed.len() as u64 + 1),
            highest_confirmed_seq_nr: SeqNr::NONE,
            confirmed_seq_nr: BTreeMap::new(),
            unconfirmed,
        };
        world.handle_input(Input::Queue { call: 1, answer: Answer::Loaded(Ok(state)) });
        world
    }

    fn handle_input(&mut self, input: Input<u64>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut effects = Vec::new();
            self.machine.handle(self.now, input, &mut effects);
            for effect in effects {
                match effect {
                    Effect::Admitted { ticket, .. } => {
                        self.admitted.insert(ticket);
                    }
                    Effect::Transmit { entity, header, message } => {
                        let frame = (self.now - self.start, message.frame.seq_nr, header.controller);
                        self.transmitted.entry(entity).or_default().push(frame);
                    }
                    Effect::Queue { id, call: Call::Store(batch) } => {
                        let last = batch.last().expect("an append stores something").seq_nr;
                        inputs.push_back(Input::Queue { call: id, answer: Answer::Stored(Ok(last)) });
                    }
                    Effect::Queue { id, call: Call::Confirm(_) } => {
                        inputs.push_back(Input::Queue { call: id, answer: Answer::Confirmed(Ok(())) });
                    }
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, entity: &str, bytes: usize) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let (frames, entity) = (Frames::Whole(ticket), Arc::from(entity));
        let shard = shard_of(&entity);
        self.handle_input(Input::Admit { ticket, entity, shard, frames, bytes, ack: false });
        ticket
    }

    /// Sends messages until one waits; returns how many were admitted.
    fn send_until_one_waits(&mut self, entity: &str, bytes: usize) -> usize {
        (0..)
            .take_while(|_| {
                let ticket = self.send(entity, bytes);
                self.admitted.contains(&ticket)
            })
            .count()
    }

    fn frames_to(&self, entity: &str) -> usize {
        self.transmitted.get(entity).map_or(0, Vec::len)
    }

    /// The entity confirms and grants frames of the link of its last frame.
    fn answer(&mut self, entity: &str, confirmed: u64, up_to: u64) {
        let (.., link) = self.transmitted[entity].last().unwrap();
        let from = ControllerRef { node: "e:1#1".parse().unwrap(), path: entity.into(), instance: 1 };
        let message = Upstream::Request { confirmed, up_to, support_resend: true, via_timeout: false };
        let epoch = Some(Epoch(if self.machine.has_unconfirmed_recovered() || self.is_durable() { 2 } else { 1 }));
        let message = UpstreamMessage { from, to: link.clone(), epoch, message };
        self.handle_input(Input::Received(message));
    }

    fn is_durable(&self) -> bool {
        self.machine.storing_state() != greylag_delivery::machine::storing::StoringState::InMemory
    }

    /// Confirms every frame that the entity got, and grants a window beyond them.
    fn confirm_all(&mut self, entity: &str) {
        let last = self.transmitted[entity].iter().map(|(_, seq_nr, _)| *seq_nr).max().unwrap();
        self.answer(entity, last, last + 20);
    }

    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(deadline) = self.machine.next_deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.handle_input(Input::Tick);
        }
        self.now = end;
    }
}

fn sent(entity: Arc<str>, total: u64) -> MessageSent<RoutedMessage<u64>> {
    let message = RoutedMessage { shard: shard_of(&entity), bytes: 100, frames: Frames::Whole(total) };
    MessageSent { seq_nr: SeqNr(total), message, ack: false, qualifier: entity, timestamp_ms: 1_000_000 }
}

/// Distributes entities over a hundred shards.
fn shard_of(entity: &str) -> Arc<str> {
    let hash = entity.bytes().fold(7_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    format!("{}", hash % 100).into()
}

/// delivery 74: 150 recovered entities, of which the first 100 never answer; at most 100 may be unanswered at a time.
/// The other 50 get their first frame after `resend_first_unconfirmed_idle_timeout`; then the 100 are tried again in
/// turn.
#[test]
fn scenario_74_slots_of_a_recovery() {
    let settings = settings();
    let patience = settings.producer.resend_first_unconfirmed_idle_timeout;
    assert_eq!(settings.sharding.recovery_parallelism, 100);
    let name = |number: usize| Arc::<str>::from(format!("e{number:03}"));
    let mut world = World::durable(&settings, (0..150).map(name));
    let begun = |world: &World| (0..150).filter(|number| world.frames_to(&name(*number)) > 0).collect::<Vec<_>>();
    assert_eq!(begun(&world), (0..100).collect::<Vec<_>>(), "as many as may be unanswered");
    world.advance(patience - Duration::from_millis(1));
    assert_eq!(begun(&world), (0..100).collect::<Vec<_>>());
    world.advance(Duration::from_millis(1));
    assert_eq!(begun(&world), (0..150).collect::<Vec<_>>(), "the other 50 have got their first frame");

    // These 50 answer, and the silent entities get the free turns: each of them within one more timeout.
    let before: Vec<usize> = (0..150).map(|number| world.frames_to(&name(number))).collect();
    for number in 100..150 {
        world.confirm_all(&name(number));
    }
    world.advance(patience);
    for (number, before) in before.into_iter().enumerate() {
        let after = world.frames_to(&name(number));
        match number {
            ..100 => assert!(after > before, "{number} is tried again"),
            _ => assert_eq!(after, before, "{number} is done"),
        }
    }
    // First frames are repeated every second, so the frames of each second show the links whose turn it is. Turns
    // change after ten seconds.
    for second in (0..8).chain(10..18) {
        let from = Duration::from_millis(second * 1000 + 500);
        let during = from..from + Duration::from_secs(1);
        let in_turn = world.transmitted.values().filter(|frames| frames.iter().any(|(at, ..)| during.contains(at)));
        let links = in_turn.count();
        assert!((50..=100).contains(&links), "{links} links at once in second {second}");
    }
}

/// delivery 77: four entities never confirm, and hold all the slots available to them: nine tenths of a thousand.
/// Messages to another entity ("ninth"), known or new, are accepted as its demand comes.
#[test]
fn scenario_77_stuck_entities_hold_every_slot_that_they_are_given() {
    for (granted, is_known) in [(0, false), (0, true), (20, false), (20, true)] {
        let mut world = World::in_memory(&settings().sharding_producer());
        if is_known {
            world.send("ninth", 100);
            world.confirm_all("ninth");
        }
        let mut admitted = 0;
        for stuck in ["a", "b", "c", "d"] {
            admitted += world.send_until_one_waits(stuck, 100);
            if granted > 0 {
                world.answer(stuck, 0, granted);
                admitted += world.send_until_one_waits(stuck, 100);
            }
        }
        let stats = world.machine.stats(world.now);
        assert_eq!(stats.buffered, 900, "nine tenths, after {admitted} messages");
        assert_ninth_is_served(&mut world, 100);
    }
}

/// Sends fifty messages to "ninth", which confirms them; each is accepted.
fn assert_ninth_is_served(world: &mut World, bytes: usize) {
    let first = world.send("ninth", bytes);
    assert!(world.admitted.contains(&first), "an entity that has demand, or is new, is served at once");
    let tickets: Vec<u64> = (0..50).map(|_| world.send("ninth", bytes)).collect();
    for _ in 0..50 {
        world.confirm_all("ninth");
    }
    let waiting = tickets.iter().filter(|ticket| !world.admitted.contains(ticket)).count();
    assert_eq!(waiting, 0, "messages that wait although their entity confirms all that it gets");
}

/// delivery 77: eight entities never confirm, and hold all the bytes available to them.
#[test]
fn scenario_77_stuck_entities_hold_every_byte_that_they_are_given() {
    for (granted, is_known) in [(0, false), (0, true), (20, false), (20, true)] {
        let mut world = World::in_memory(&settings().sharding_producer());
        if is_known {
            world.send("ninth", 100);
            world.confirm_all("ninth");
        }
        let mut admitted = 0;
        for stuck in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            admitted += world.send_until_one_waits(stuck, MIB);
            if granted > 0 {
                world.answer(stuck, 0, granted);
                admitted += world.send_until_one_waits(stuck, MIB);
            }
        }
        assert!(admitted >= 57, "they hold {admitted} MiB of 64");
        assert_ninth_is_served(&mut world, MIB);
    }
}

/// delivery 77: a queue with 1500 messages for one entity does not block other entities.
#[test]
fn scenario_77_large_recovery_delays_no_other_entity() {
    let mut world = World::durable(&settings(), (0..1500).map(|_| "A".into()));
    assert_eq!(world.frames_to("A"), 1);
    let first = world.send("B", 100);
    assert!(world.admitted.contains(&first), "it is stored at once");
    assert_eq!(world.frames_to("B"), 1);
    let to_a = world.send("A", 100);
    assert!(!world.admitted.contains(&to_a), "A itself has no room");
    assert_ninth_is_served(&mut world, 100);
}

/// delivery 93: 100,000 entities with one unconfirmed message each, without a route: the region's buffer has one copy
/// of each, and the producer sends at most one more for each copy that the region dropped.
#[test]
fn scenario_93_coordinator_away() {
    const ENTITIES: usize = 100_000;
    let settings = settings();
    let mut world = World::in_memory(&settings.sharding_producer());
    let shards = || (0..100).map(|shard| Arc::<str>::from(shard.to_string()));
    for shard in shards() {
        world.handle_input(Input::RouteChanged { shard, routed: false });
    }
    for number in 0..ENTITIES {
        let ticket = world.send(&format!("{number}"), 100);
        assert!(world.admitted.contains(&ticket), "a first message needs no room in the buffer");
    }
    let copies = |world: &World| -> (usize, usize) {
        let counts = world.transmitted.values().map(Vec::len);
        (counts.clone().min().unwrap(), counts.max().unwrap())
    };
    world.advance(Duration::from_secs(290));
    assert_eq!(copies(&world), (1, 1), "repeats pause");
    for shard in shards() {
        world.handle_input(Input::NotBuffered(shard));
    }
    world.advance(Duration::from_secs(1));
    assert_eq!(copies(&world), (2, 2), "one copy in the place of one that was dropped");
    world.advance(Duration::from_secs(100));
    assert_eq!(copies(&world), (2, 2));
    for shard in shards() {
        world.handle_input(Input::RouteChanged { shard, routed: true });
    }
    assert_eq!(copies(&world), (2, 2), "what waited leaves now");
    world.advance(settings.producer.resend_first_interval);
    assert_eq!(copies(&world), (3, 3), "and the pace is the quick one again");
}

/// A lane of the transport with this capacity in frames, and a consumer that takes one frame at a time.
struct SlowConsumer {
    lane: VecDeque<u64>,
    capacity: usize,
    pace: Duration,
    received: u64,
}

/// delivery 94: a consumer is slower than its producer, and its lane is always full. The consumer gets frames at four
/// fifths of its own pace at least, for any capacity of the lane, without timers of the protocol.
#[test]
fn scenario_94_a_slow_consumer_behind_a_full_lane() {
    for capacity in [1, 8, 40] {
        for pace in [1, 5, 20].map(Duration::from_millis) {
            let (took, least) = (drained(capacity, pace), pace * MESSAGES as u32);
            assert!(took <= least * 5 / 4, "lane of {capacity}, {pace:?} a message: {took:?} in place of {least:?}");
        }
    }
}

const MESSAGES: u64 = 1000;

/// The time that the consumer needs for all messages.
fn drained(capacity: usize, pace: Duration) -> Duration {
    let mut settings = settings();
    settings.producer.resend_first_interval = Duration::from_secs(3600);
    settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_secs(3600);
    let mut world = World::in_memory(&settings.sharding_producer());
    for _ in 0..MESSAGES {
        world.send("slow", 100);
    }
    let mut consumer = SlowConsumer { lane: VecDeque::new(), capacity, pace, received: 0 };
    let mut next_take = world.now + consumer.pace;
    let window = 100;
    let mut granted = 0;
    while consumer.received < MESSAGES {
        // Refuse each frame for which the lane has no room.
        let frames = world.transmitted.insert("slow".into(), Vec::new()).unwrap_or_default();
        let mut refused: Option<(u64, u64)> = None;
        let mut link = None;
        for (_, seq_nr, to) in frames {
            if consumer.lane.len() < consumer.capacity && refused.is_none() {
                consumer.lane.push_back(seq_nr);
            } else {
                let (from, _) = refused.unwrap_or((seq_nr, seq_nr));
                refused = Some((from, seq_nr));
            }
            link = Some(to);
        }
        let instance = link.as_ref().map_or(1, |link| link.instance);
        if let Some((from, to)) = refused {
            world.handle_input(Input::Refused { instance, from, to });
        }
        let due = world.machine.next_deadline().filter(|deadline| *deadline < next_take);
        world.now = world.now.max(due.unwrap_or(next_take));
        if due.is_some() {
            world.handle_input(Input::Tick);
            continue;
        }
        next_take += consumer.pace;
        let Some(seq_nr) = consumer.lane.pop_front() else { continue };
        if seq_nr != consumer.received + 1 {
            continue;
        }
        consumer.received = seq_nr;
        // Grant a new window once more than half of the last one is used; the consumer sends nothing else.
        if granted < consumer.received + window / 2 {
            granted = consumer.received + window;
            let to = ControllerRef { node: "n:1#1".parse().unwrap(), path: "delivery/1".into(), instance };
            let from = ControllerRef { node: "e:1#1".parse().unwrap(), path: "slow".into(), instance: 1 };
            let message = Upstream::Request {
                confirmed: consumer.received,
                up_to: granted,
                support_resend: true,
                via_timeout: false,
            };
            world.handle_input(Input::Received(UpstreamMessage { from, to, epoch: Some(Epoch(1)), message }));
        }
    }
    world.now - world.start
}
