//! One sharding producer, entities that persist what they process, and everything that can die.
//!
//! The journal is kept apart from the machines: what is in it happened. The producer has a stable
//! identity and runs over the same input again after every kill, under the next epoch. At the end
//! each entity's journal must hold exactly what was sent to it, in order (I1, I2, I5), soon after
//! the faults have stopped (I7).
//!
//! A durable producer keeps its messages in a queue whose store fails, too, and the next one goes on where it ended: each
//! entity's journal must hold exactly what was stored for it (I10), and senders were told the truth, once (I8).

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_consumer::{self, DeliveryHandle, ShardingConsumer, ShardingConsumerSettings};
use greylag_delivery::machine::sharding_producer::{self, Parcel, ShardingProducer, ShardingProducerSettings};
use greylag_delivery::machine::storing::{Call, StoringSettings, StoringState};
use greylag_delivery::{
    ControllerRef, Dedupe, DeliverySettings, Epoch, MessageId, ProducerId, ProducerIdentity, SequencedBatch, StreamId,
    UpstreamMessage,
};
use greylag_testkit::deadlines::assert_moved;
use rand::RngExt;

use super::durable::Durable;
use super::store::{Fate, Writer};
use super::world::World;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    None,
    Marks,
}

const FAULTS_END: Duration = Duration::from_secs(8);
pub(crate) const STREAM: StreamId = StreamId(77);

#[derive(Debug, Clone)]
enum Event {
    Submit(usize),
    Downstream {
        entity: usize,
        batch: SequencedBatch<u64>,
    },
    Upstream(UpstreamMessage),
    ToConsumer {
        instance: u64,
        message: greylag_delivery::ProducerStopped,
    },
    ProducerTick(u64),
    ConsumerTick {
        entity: usize,
        instance: u64,
    },
    Recovered {
        entity: usize,
        instance: u64,
    },
    Processed {
        entity: usize,
        instance: u64,
        handle: DeliveryHandle,
        value: u64,
    },
    KillProducer,
    KillEntity(usize),
    Rebalance(usize),
    Routed(usize),
    FaultsEnd,
    /// The queue of a producer carries a call out.
    Queue {
        producer: u64,
        id: u64,
        call: Call<Parcel<u64>>,
        fate: Fate,
    },
}

/// One incarnation of an entity.
struct Incarnation {
    instance: u64,
    machine: ShardingConsumer<u64>,
    tick_at: Option<Instant>,
    /// In whatever order attempts run, one at a time.
    last_total: u64,
}

struct Entity {
    /// Values applied, with their totals: what an event-sourced entity's journal would say.
    journal: Vec<(u64, u64)>,
    live: Option<Incarnation>,
    unrouted_until: Option<Instant>,
}

pub(crate) struct Simulation {
    world: World<Event>,
    producer: ShardingProducer<u64>,
    producer_number: u64,
    producer_settings: ShardingProducerSettings,
    consumer_settings: ShardingConsumerSettings,
    producer_tick: Option<Instant>,
    entities: Vec<Entity>,
    /// Entity of each message; the value is the index.
    input: Vec<usize>,
    submitted: usize,
    /// Of a producer that keeps its messages.
    durable: Option<Durable>,
    storing_settings: StoringSettings,
    next_instance: u64,
    sabotage: Sabotage,
    faults: bool,
    processing: Duration,
    tally: Tally,
    /// Every event and effect, if that is wanted.
    trace: Option<String>,
}

/// What a run did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) events: u64,
    pub(crate) deaths: u64,
    pub(crate) applied: u64,
}

pub(crate) fn run(seed: u64, sabotage: Sabotage) -> Result<Tally, String> {
    Simulation::new(seed, sabotage, false).run().map(|(tally, _)| tally)
}

pub(crate) fn run_durable(seed: u64, sabotage: Sabotage) -> Result<Tally, String> {
    let mut simulation = Simulation::new(seed, sabotage, false);
    simulation.durable = Some(Durable::new());
    simulation.run().map(|(tally, _)| tally)
}

pub(crate) fn trace(seed: u64) -> String {
    Simulation::new(seed, Sabotage::None, true).run().unwrap().1
}

fn node(port: u16, uid: u64) -> UniqueAddress {
    format!("n:{port}#{uid}").parse().unwrap()
}

impl Simulation {
    fn new(seed: u64, sabotage: Sabotage, traced: bool) -> Self {
        let mut world = World::new(seed);
        let mut settings = DeliverySettings::test();
        settings.consumer.flow_control_window = [1, 2, 3, 4, 5, 20][world.pick(6)];
        settings.consumer.max_outstanding_deliveries =
            [1, 2, 5][world.pick(3)].min(settings.consumer.flow_control_window);
        settings.consumer.ack_max_delay = Duration::from_millis([0, 5][world.pick(2)]);
        settings.consumer.delayed_ack_timeout = [None, Some(Duration::from_millis(50))][world.pick(2)];
        settings.consumer.resend_interval_min = Duration::from_millis(200);
        settings.consumer.resend_interval_max = Duration::from_millis(1000);
        settings.consumer.redelivery_backoff = Duration::from_millis(10);
        settings.producer.resend_first_interval = Duration::from_millis(100);
        settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_millis(1000);
        settings.sharding.buffer_size = [10, 100][world.pick(2)];
        settings.sharding.buffer_size_per_entity = [1, 5, 10][world.pick(3)];
        settings.sharding.max_in_flight_messages = [None, Some(10)][world.pick(2)];
        settings.sharding.max_in_flight_bytes = [500, 100_000][world.pick(2)];
        settings.sharding.max_in_flight_bytes_per_entity = settings.sharding.max_in_flight_bytes;
        settings.sharding.cleanup_unused_after = Duration::from_millis([150, 5_000][world.pick(2)]);
        settings.sharding.consumer_idle_after = settings.sharding.cleanup_unused_after * 2;
        settings.validate().unwrap();
        let entities = world.rng.random_range(1..=5);
        let messages = world.rng.random_range(20..=80);
        let input: Vec<usize> = (0..messages).map(|_| world.pick(entities)).collect();
        let mut consumer_settings = settings.sharding_consumer();
        consumer_settings.sabotage_marks = sabotage == Sabotage::Marks;
        let processing = Duration::from_millis(world.rng.random_range(0..=40));
        let mut simulation = Self {
            producer: producer(&settings.sharding_producer(), 1),
            producer_settings: settings.sharding_producer(),
            consumer_settings,
            producer_number: 1,
            producer_tick: None,
            entities: (0..entities).map(|_| Entity { journal: Vec::new(), live: None, unrouted_until: None }).collect(),
            input,
            submitted: 0,
            durable: None,
            storing_settings: StoringSettings {
                request_timeout: Duration::from_millis(300),
                retry_attempts: 3,
                max_batch: [1, 4, 512][world.pick(3)],
                max_batch_bytes: [150, 4 << 20][world.pick(2)],
                confirm_flush_count: [1, 10][world.pick(2)],
                confirm_flush_interval: Duration::from_millis(100),
                restart_min_backoff: Duration::from_millis(50),
                restart_max_backoff: Duration::from_millis(400),
            },
            next_instance: 1,
            sabotage,
            faults: true,
            processing,
            tally: Tally::default(),
            trace: traced.then(String::new),
            world,
        };
        simulation.plan();
        simulation
    }

    /// Draws when things die.
    fn plan(&mut self) {
        let entities = self.entities.len();
        for _ in 0..self.world.rng.random_range(0..=4) {
            let at = self.world.upto(FAULTS_END);
            self.world.after(at, Event::KillProducer);
        }
        for _ in 0..self.world.rng.random_range(0..=10) {
            let at = self.world.upto(FAULTS_END);
            let entity = self.world.pick(entities);
            self.world.after(at, Event::KillEntity(entity));
        }
        for _ in 0..self.world.rng.random_range(0..=3) {
            let at = self.world.upto(FAULTS_END);
            let entity = self.world.pick(entities);
            self.world.after(at, Event::Rebalance(entity));
        }
        self.world.after(FAULTS_END, Event::FaultsEnd);
        self.world.after(Duration::ZERO, Event::Submit(0));
    }

    fn run(mut self) -> Result<(Tally, String), String> {
        let limit = FAULTS_END + Duration::from_secs(60);
        if self.durable.is_some() {
            self.start_durable()?;
        }
        while let Some(event) = self.world.next() {
            self.tally.events += 1;
            if let Some(trace) = &mut self.trace {
                let _ = writeln!(trace, "{:?} {event:?}", self.world.elapsed());
            }
            self.on_event(event)?;
            if !self.faults && self.is_done() {
                self.check()?;
                self.tally.applied = self.input.len() as u64;
                return Ok((self.tally, self.trace.unwrap_or_default()));
            }
            if self.world.elapsed() > limit {
                let stats = self.producer.stats(self.world.now);
                return Err(format!(
                    "no progress after the faults: {stats:?}, {} of {} submitted",
                    self.submitted,
                    self.input.len()
                ));
            }
        }
        Err("nothing is scheduled any more".to_owned())
    }

    fn is_done(&self) -> bool {
        let stats = self.producer.stats(self.world.now);
        let is_delivered = stats.unconfirmed == 0 && stats.waiting == 0 && stats.storing == 0;
        let is_stored = self
            .durable
            .as_ref()
            .is_none_or(|durable| self.producer.storing_state() == StoringState::Open && durable.is_settled());
        self.submitted == self.input.len() && is_delivered && is_stored && !self.producer.owes_recovered()
    }

    fn check(&self) -> Result<(), String> {
        for (index, entity) in self.entities.iter().enumerate() {
            let sent = match &self.durable {
                Some(durable) => durable.stored(index),
                None => (0..self.input.len()).filter(|i| self.input[*i] == index).map(|i| i as u64).collect(),
            };
            let applied: Vec<u64> = entity.journal.iter().map(|(value, _)| *value).collect();
            if sent != applied {
                return Err(format!("entity {index} was sent {sent:?} and applied {applied:?}"));
            }
        }
        self.durable.as_ref().map_or(Ok(()), Durable::check)?;
        let took = self.world.elapsed().saturating_sub(FAULTS_END);
        let whole_backlog = self.processing * self.input.len() as u32 * 2;
        // A load that gets no answer is waited for as long as sixteen full rounds of attempts.
        let load = self.storing_settings.request_timeout * self.storing_settings.retry_attempts * 16;
        let of_store = if self.durable.is_some() { load + Duration::from_secs(5) } else { Duration::ZERO };
        let of_network = self.world.link.max_delay * 8 * self.input.len() as u32;
        let bound = Duration::from_secs(3) + whole_backlog + of_network + of_store;
        if took > bound {
            return Err(format!("I7: it took {took:?} to settle, {bound:?} is the most"));
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        let now = self.world.now;
        match event {
            Event::Submit(index) => self.submit(index)?,
            Event::Downstream { entity, batch } => self.arrive(entity, batch)?,
            Event::Upstream(message) => {
                // What is meant for a dead controller has no recipient.
                if message.to.path == path(self.producer_number) {
                    self.tell_producer(sharding_producer::Input::Received(message))?;
                }
            }
            Event::ToConsumer { instance, message } => {
                let live = self.entities.iter().position(|e| e.live.as_ref().is_some_and(|l| l.instance == instance));
                if let Some(entity) = live {
                    self.tell_consumer(entity, sharding_consumer::Input::ProducerStopped(message))?;
                }
            }
            Event::ProducerTick(number) if number == self.producer_number => {
                self.producer_tick = None;
                self.tell_producer(sharding_producer::Input::Tick)?;
            }
            Event::ProducerTick(_) => {}
            Event::Queue { producer, id, call, fate } => self.queue(producer, id, call, fate)?,
            Event::ConsumerTick { entity, instance } => {
                if let Some(live) = self.entities[entity].live.as_mut().filter(|live| live.instance == instance) {
                    live.tick_at = None;
                    self.tell_consumer(entity, sharding_consumer::Input::Tick)?;
                }
            }
            Event::Recovered { entity, instance } => {
                if self.is_live(entity, instance) {
                    let marks = self.marks(entity);
                    self.tell_consumer(entity, sharding_consumer::Input::Start(marks))?;
                }
            }
            Event::Processed { entity, instance, handle, value } => self.processed(entity, instance, handle, value)?,
            Event::KillProducer => self.kill_producer()?,
            Event::KillEntity(entity) => {
                self.tally.deaths += 1;
                self.entities[entity].live = None;
            }
            Event::Rebalance(entity) => {
                self.tally.deaths += 1;
                self.entities[entity].live = None;
                let away = self.world.upto(Duration::from_millis(800));
                self.entities[entity].unrouted_until = Some(now + away);
                let shard = shard(entity);
                if self.world.chance(0.8) {
                    self.tell_producer(sharding_producer::Input::RouteChanged { shard: shard.clone(), routed: false })?;
                }
                if self.world.chance(0.7) {
                    self.tell_producer(sharding_producer::Input::ShardMoved(shard))?;
                }
                self.world.after(away, Event::Routed(entity));
            }
            Event::Routed(entity) => {
                let over = self.entities[entity].unrouted_until.is_some_and(|until| until <= now);
                if over {
                    self.entities[entity].unrouted_until = None;
                    let shard = shard(entity);
                    self.tell_producer(sharding_producer::Input::RouteChanged { shard, routed: true })?;
                }
            }
            Event::FaultsEnd => {
                self.faults = false;
                self.world.link = self.world.link.calm();
            }
        }
        Ok(())
    }

    fn submit(&mut self, index: usize) -> Result<(), String> {
        if index != self.submitted || index == self.input.len() {
            return Ok(());
        }
        self.submitted += 1;
        let entity = self.input[index];
        let ack = self.world.chance(0.3);
        if let Some(durable) = &mut self.durable {
            durable.submit(self.producer_number);
        }
        self.tell_producer(sharding_producer::Input::Admit {
            ticket: index as u64 + 1,
            entity: name(entity),
            shard: shard(entity),
            frames: Frames::Whole(index as u64),
            bytes: 100,
            ack,
        })?;
        let pause = self.world.upto(Duration::from_millis(60));
        self.world.after(pause, Event::Submit(index + 1));
        Ok(())
    }

    /// The next producer, as a process that was started again would have it: one with a stable identity runs over the same
    /// input again, a durable one goes on with what its queue has.
    fn kill_producer(&mut self) -> Result<(), String> {
        self.tally.deaths += 1;
        self.producer_number += 1;
        self.producer_tick = None;
        if let Some(durable) = &mut self.durable {
            durable.kill();
            return self.start_durable();
        }
        self.producer = producer(&self.producer_settings, self.producer_number);
        self.submitted = 0;
        self.world.after(Duration::from_millis(1), Event::Submit(0));
        Ok(())
    }

    fn start_durable(&mut self) -> Result<(), String> {
        let number = self.producer_number;
        let (node, path) = (node(1, number), path(number));
        let controller = ControllerRef { node: node.clone(), path: path.clone(), instance: 0 };
        if let Some(durable) = &mut self.durable {
            durable.writers.insert(number, Writer::new(controller));
        }
        let (settings, storing) = (self.producer_settings.clone(), self.storing_settings.clone());
        let id = ProducerId::new("shop").unwrap();
        self.producer = ShardingProducer::durable(settings, storing, id, node, path, (self.world.now, 1_000_000));
        self.tell_producer(sharding_producer::Input::Start)
    }

    /// Makes a call of the producer's queue.
    fn call(&mut self, id: u64, call: Call<Parcel<u64>>) {
        let fate = if self.faults { Fate::drawn(self.world.pick(1 << 20)) } else { Fate::GOOD };
        let takes = self.world.upto(Duration::from_millis(if self.faults { 60 } else { 10 }));
        let Some(durable) = &mut self.durable else { return };
        let at = durable.store.done_at(self.world.now, takes);
        self.world.at(at, Event::Queue { producer: self.producer_number, id, call, fate });
    }

    fn queue(&mut self, producer: u64, id: u64, call: Call<Parcel<u64>>, fate: Fate) -> Result<(), String> {
        let is_alive = producer == self.producer_number;
        let Some(durable) = &mut self.durable else { return Ok(()) };
        if !is_alive && matches!(call, Call::Load) {
            // A dead process takes over from nothing.
            return Ok(());
        }
        let Some(writer) = durable.writers.get_mut(&producer) else { return Ok(()) };
        let answer = durable.store.call(writer, call, fate);
        match answer.filter(|_| is_alive) {
            Some(answer) => self.tell_producer(sharding_producer::Input::Queue { call: id, answer }),
            None => Ok(()),
        }
    }

    fn arrive(&mut self, entity: usize, batch: SequencedBatch<u64>) -> Result<(), String> {
        if let Some(until) = self.entities[entity].unrouted_until {
            // The region keeps it until there is a route; sometimes its buffer is full.
            if self.world.chance(0.8) {
                self.world.at(until, Event::Downstream { entity, batch });
            }
            return Ok(());
        }
        if self.entities[entity].live.is_none() {
            let instance = self.next_instance;
            self.next_instance += 1;
            let machine = ShardingConsumer::new(self.consumer_settings.clone());
            self.entities[entity].live = Some(Incarnation { instance, machine, tick_at: None, last_total: 0 });
            let recovery = self.world.upto(Duration::from_millis(60));
            self.world.after(recovery, Event::Recovered { entity, instance });
        }
        self.tell_consumer(entity, sharding_consumer::Input::Batch(batch))
    }

    /// The end of a handler run: the append, and what may go wrong around it.
    fn processed(&mut self, entity: usize, instance: u64, handle: DeliveryHandle, value: u64) -> Result<(), String> {
        if !self.is_live(entity, instance) {
            // A fenced owner: its append changes nothing, and confirms nothing.
            return Ok(());
        }
        let total = handle.id.seq_nr.get();
        let is_known = self.entities[entity].journal.iter().any(|(_, applied)| *applied >= total);
        let trouble = self.faults && self.world.chance(0.15);
        if is_known && self.sabotage == Sabotage::None {
            // Asked again at the moment the handler would run.
            return self.tell_consumer(entity, sharding_consumer::Input::Confirm(handle));
        }
        if trouble && self.world.chance(0.4) {
            // The usual backoff doubles with every attempt, which is not what is looked at here.
            let pause = (handle.key.attempt > 4).then_some(Duration::from_millis(10));
            return self.tell_consumer(entity, sharding_consumer::Input::Abandon(handle, pause));
        }
        if self.has_earlier_outstanding(entity, total) {
            // `NotInOrder`: an earlier delivery is neither persisted nor confirmed.
            return self
                .tell_consumer(entity, sharding_consumer::Input::Abandon(handle, Some(Duration::from_millis(10))));
        }
        self.entities[entity].journal.push((value, total));
        if trouble {
            // Stored, but the entity dies before it can confirm, or the answer is lost.
            self.entities[entity].live = None;
            return Ok(());
        }
        self.tell_consumer(entity, sharding_consumer::Input::Confirm(handle))
    }

    /// Whether a message below `total` was sent to the entity and is not in its journal.
    fn has_earlier_outstanding(&self, entity: usize, total: u64) -> bool {
        let applied = |value: u64| self.entities[entity].journal.iter().any(|(known, _)| *known == value);
        match &self.durable {
            Some(durable) => {
                let mut earlier = durable.store.ever().range(..total).map(|(_, (of, value))| (*of, *value));
                earlier.any(|(of, value)| of == entity && !applied(value))
            }
            None => (0..total as usize - 1).any(|index| self.input[index] == entity && !applied(index as u64)),
        }
    }

    fn tell_producer(&mut self, input: sharding_producer::Input<u64>) -> Result<(), String> {
        let mut effects = Vec::new();
        let ticks = matches!(input, sharding_producer::Input::Tick);
        self.producer.handle(self.world.now, input, &mut effects);
        if ticks {
            assert_moved("producer", self.world.now, self.producer.next_deadline());
        }
        let mut batches: Vec<(usize, SequencedBatch<u64>)> = Vec::new();
        for effect in effects {
            if let Some(trace) = &mut self.trace {
                let _ = writeln!(trace, "  producer {effect:?}");
            }
            if let Some(durable) = &mut self.durable {
                durable.see(&effect)?;
            }
            match effect {
                sharding_producer::Effect::Queue { id, call } => self.call(id, call),
                sharding_producer::Effect::Transmit { entity, header, message } => {
                    let entity: usize = entity.parse().unwrap();
                    match batches.last_mut() {
                        Some((last, batch)) if *last == entity && batch.header == header => batch.frames.push(message),
                        _ => batches.push((entity, SequencedBatch { header, frames: vec![message] })),
                    }
                }
                sharding_producer::Effect::Stop { to, message } => {
                    self.world.send(&Event::ToConsumer { instance: to.instance, message }, Duration::ZERO);
                }
                _ => {}
            }
        }
        for (entity, batch) in batches {
            self.world.send(&Event::Downstream { entity, batch }, Duration::ZERO);
        }
        let deadline = self.producer.next_deadline();
        if let Some(at) = deadline.filter(|at| self.producer_tick.is_none_or(|armed| *at < armed)) {
            self.producer_tick = Some(at);
            self.world.at(at, Event::ProducerTick(self.producer_number));
        }
        Ok(())
    }

    fn tell_consumer(&mut self, entity: usize, input: sharding_consumer::Input<u64>) -> Result<(), String> {
        let Some(live) = self.entities[entity].live.as_mut() else { return Ok(()) };
        let mut effects = Vec::new();
        let ticks = matches!(input, sharding_consumer::Input::Tick);
        live.machine.handle(self.world.now, input, &mut effects);
        if ticks {
            assert_moved("consumer", self.world.now, live.machine.next_deadline());
        }
        let instance = live.instance;
        let from = ControllerRef { node: node(2, instance), path: "entities".into(), instance };
        for effect in effects {
            if let Some(trace) = &mut self.trace {
                let _ = writeln!(trace, "  entity {entity} {effect:?}");
            }
            match effect {
                sharding_consumer::Effect::Deliver { handle, parts } => {
                    let Frames::Whole(value) = parts else { return Err("a chunk was delivered".to_owned()) };
                    let total = handle.id.seq_nr.get();
                    let live = self.entities[entity].live.as_mut().unwrap();
                    if handle.key.attempt == 1 {
                        if total <= live.last_total {
                            return Err(format!("I2: entity {entity} was handed {total} after {}", live.last_total));
                        }
                        live.last_total = total;
                    }
                    let took = self.world.upto(self.processing);
                    self.world.after(took, Event::Processed { entity, instance, handle, value });
                }
                sharding_consumer::Effect::Reply { to, epoch, message } => {
                    let message = UpstreamMessage { from: from.clone(), to, epoch, message };
                    let late = self.faults && self.world.chance(0.03);
                    let extra = if late { self.world.upto(Duration::from_secs(2)) } else { Duration::ZERO };
                    self.world.send(&Event::Upstream(message), extra);
                }
                sharding_consumer::Effect::Suppressed(MessageId { seq_nr, .. }) => {
                    let known = self.entities[entity].journal.iter().any(|(_, total)| *total >= seq_nr.get());
                    if !known {
                        return Err(format!("entity {entity} suppressed {seq_nr}, which it never applied"));
                    }
                }
                _ => {}
            }
        }
        let Some(live) = self.entities[entity].live.as_mut() else { return Ok(()) };
        let deadline = live.machine.next_deadline();
        if let Some(at) = deadline.filter(|at| live.tick_at.is_none_or(|armed| *at < armed)) {
            live.tick_at = Some(at);
            self.world.at(at, Event::ConsumerTick { entity, instance });
        }
        Ok(())
    }

    fn is_live(&self, entity: usize, instance: u64) -> bool {
        self.entities[entity].live.as_ref().is_some_and(|live| live.instance == instance)
    }

    fn marks(&self, entity: usize) -> Dedupe {
        let highest = self.entities[entity].journal.iter().map(|(_, total)| *total).max();
        highest.map(|total| (STREAM, greylag_delivery::SeqNr(total))).into_iter().collect()
    }
}

fn producer(settings: &ShardingProducerSettings, number: u64) -> ShardingProducer<u64> {
    let identity = ProducerIdentity::stable(ProducerId::new("shop").unwrap(), STREAM, Epoch(number));
    ShardingProducer::new(settings.clone(), identity, node(1, number), path(number))
}

fn path(number: u64) -> Arc<str> {
    format!("delivery/{number}").into()
}

fn name(entity: usize) -> Arc<str> {
    entity.to_string().into()
}

fn shard(entity: usize) -> Arc<str> {
    (entity % 2).to_string().into()
}
