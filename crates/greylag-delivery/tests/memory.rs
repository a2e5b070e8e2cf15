//! The memory of producers and consumers, counted by the allocator. Only one test, since the allocator counts the whole
//! process.

use std::alloc::System;
use std::sync::Arc;
use std::time::Instant;

use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_consumer::{self, DeliveryHandle, ShardingConsumer};
use greylag_delivery::machine::sharding_producer::{self, RoutedMessage, ShardingProducer};
use greylag_delivery::machine::storing::{Answer, Call};
use greylag_delivery::queue::QueueState;
use greylag_delivery::{
    ControllerRef, Dedupe, DeliverySettings, Epoch, ProducerId, ProducerIdentity, SeqNr, SequencedBatch, StreamId,
    UpstreamMessage,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that are allocated and not freed.
fn live_bytes() -> isize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.cast_signed() - stats.bytes_deallocated.cast_signed()
}

/// An entity, and its deliveries in hand.
struct Entity {
    controller: ControllerRef,
    machine: ShardingConsumer<u64>,
    in_hand: Vec<DeliveryHandle>,
}

/// A producer, its entities, and a queue that stores at once.
struct World {
    now: Instant,
    producer: ShardingProducer<u64>,
    next_ticket: u64,
    /// The entities `waits` and `goes on`.
    entities: [Entity; 2],
    to_entities: Vec<(Arc<str>, SequencedBatch<u64>)>,
    to_producer: Vec<sharding_producer::Input<u64>>,
}

const NAMES: [&str; 2] = ["waits", "goes on"];

impl World {
    fn new(is_durable: bool) -> Self {
        let now = Instant::now();
        let mut settings = DeliverySettings::test();
        settings.consumer.max_outstanding_deliveries = 20;
        let id = ProducerId::new("p").unwrap();
        let (node, path) = ("n:1#1".parse().unwrap(), Arc::<str>::from("delivery/1"));
        let producer = if is_durable {
            let clock = (now, 1_000_000);
            ShardingProducer::durable(settings.sharding_producer(), settings.storing(), id, node, path, clock)
        } else {
            let identity = ProducerIdentity::stable(id, StreamId(1), Epoch(1));
            ShardingProducer::new(settings.sharding_producer(), identity, node, path)
        };
        let entities = NAMES.map(|name| Entity {
            controller: ControllerRef { node: "e:1#1".parse().unwrap(), path: name.into(), instance: 1 },
            machine: ShardingConsumer::new(settings.sharding_consumer()),
            in_hand: Vec::new(),
        });
        let (to_entities, to_producer) = (Vec::new(), vec![sharding_producer::Input::Start]);
        let mut world = Self { now, producer, next_ticket: 1, entities, to_entities, to_producer };
        for index in 0..2 {
            world.tell_entity(index, sharding_consumer::Input::Start(Dedupe::none()));
        }
        world.settle();
        world
    }

    /// Sends a message, and delivers every resulting message.
    fn send(&mut self, entity: &str) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let (frames, entity) = (Frames::Whole(ticket), Arc::<str>::from(entity));
        let shard = entity.clone();
        self.to_producer.push(sharding_producer::Input::Admit {
            ticket,
            entity,
            shard,
            frames,
            bytes: 100,
            ack: false,
        });
        self.settle();
    }

    fn settle(&mut self) {
        while !self.to_producer.is_empty() || !self.to_entities.is_empty() {
            for input in std::mem::take(&mut self.to_producer) {
                self.tell_producer(input);
            }
            for (entity, batch) in std::mem::take(&mut self.to_entities) {
                let index = NAMES.iter().position(|name| **name == *entity).unwrap();
                self.tell_entity(index, sharding_consumer::Input::Batch(batch));
            }
        }
    }

    fn tell_producer(&mut self, input: sharding_producer::Input<u64>) {
        let mut effects = Vec::new();
        self.producer.handle(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                sharding_producer::Effect::Transmit { entity, header, message } => {
                    self.to_entities.push((entity, SequencedBatch { header, frames: vec![message] }));
                }
                sharding_producer::Effect::Queue { id, call } => {
                    let answer = answer(call);
                    self.to_producer.push(sharding_producer::Input::Queue { call: id, answer });
                }
                _ => {}
            }
        }
    }

    fn tell_entity(&mut self, index: usize, input: sharding_consumer::Input<u64>) {
        let mut effects = Vec::new();
        let entity = &mut self.entities[index];
        entity.machine.handle(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                sharding_consumer::Effect::Deliver { handle, .. } => entity.in_hand.push(handle),
                sharding_consumer::Effect::Reply { to, epoch, message } => {
                    let message = UpstreamMessage { from: entity.controller.clone(), to, epoch, message };
                    self.to_producer.push(sharding_producer::Input::Received(message));
                }
                _ => {}
            }
        }
    }

    fn confirm_in_hand(&mut self, index: usize) {
        for handle in std::mem::take(&mut self.entities[index].in_hand) {
            self.tell_entity(index, sharding_consumer::Input::Confirm(handle));
        }
        self.settle();
    }
}

fn answer(call: Call<RoutedMessage<u64>>) -> Answer<RoutedMessage<u64>> {
    match call {
        Call::Load => Answer::Loaded(Ok(QueueState {
            stream_id: StreamId(1),
            epoch: Epoch(1),
            current_seq_nr: SeqNr(1),
            highest_confirmed_seq_nr: SeqNr::NONE,
            confirmed_seq_nr: Default::default(),
            unconfirmed: Vec::new(),
        })),
        Call::Store(batch) => Answer::Stored(Ok(batch.last().unwrap().seq_nr)),
        Call::Confirm(_) => Answer::Confirmed(Ok(())),
        Call::Poll(_) => Answer::Polled(Ok(Vec::new())),
    }
}

/// delivery 90: one undecodable message blocks its entity, and any number of later ones pass through the same producer
/// to another entity: neither side keeps memory for them. `GREYLAG_MESSAGES=10000000` sends as many as the scenario
/// names.
#[test]
fn scenario_90_waiting_entity_costs_no_memory_per_message() {
    let messages = std::env::var("GREYLAG_MESSAGES").ok().and_then(|text| text.parse().ok()).unwrap_or(200_000_u64);
    for is_durable in [false, true] {
        let mut world = World::new(is_durable);
        world.send("waits");
        let unreadable = world.entities[0].in_hand.pop().unwrap();
        world.tell_entity(0, sharding_consumer::Input::Unreadable(unreadable.clone()));
        let send = |world: &mut World, count| {
            for _ in 0..count {
                world.send("goes on");
                world.confirm_in_hand(1);
            }
        };
        send(&mut world, 1000);
        let before = live_bytes();
        send(&mut world, messages);
        let grown = live_bytes() - before;
        assert!(grown.abs() < 4096, "{grown} bytes more after {messages} messages, durable: {is_durable}");

        // The message did block its entity, and the totals are right once it is skipped.
        let stats = world.producer.stats(world.now);
        assert_eq!(stats.confirmed + stats.unconfirmed, messages + 1001);
        assert_eq!(world.producer.confirmed(), SeqNr::NONE);
        world.tell_entity(0, sharding_consumer::Input::Confirm(unreadable));
        world.settle();
        assert!(world.producer.confirmed() >= SeqNr(messages));
    }
}
