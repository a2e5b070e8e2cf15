//! One durable sharding producer, its queue on a disk that is slow, loses answers and is away at times, and entities that
//! persist what they process. The producer, its calls and the entities die; the disk stays.
//!
//! What a sender was told is kept apart from the machines. At the end every message whose send was accepted is applied
//! exactly once and in the order of its number, one with an unknown outcome at most once, and nothing is left on the disk
//! (I1, I2, I5, I8 to I11), soon after the faults have stopped (I7).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_consumer::{self, DeliveryHandle, ShardingConsumer, ShardingConsumerSettings};
use greylag_delivery::machine::sharding_producer::{self, Parcel, ShardingProducer, ShardingProducerSettings};
use greylag_delivery::machine::storing::{Answer, Call, StoringSettings};
use greylag_delivery::queue::{QueueError, Started, StoredQueue};
use greylag_delivery::{
    ControllerRef, Dedupe, DeliverySettings, Epoch, ProducerId, SeqNr, SequencedBatch, StreamId, UpstreamMessage,
};
use greylag_testkit::deadlines::assert_moved;
use rand::RngExt;

use super::world::World;

const FAULTS_END: Duration = Duration::from_secs(8);
const STREAM: StreamId = StreamId(77);

#[derive(Debug, Clone)]
enum Event {
    Submit(usize),
    Downstream {
        entity: usize,
        batch: SequencedBatch<u64>,
    },
    Upstream(UpstreamMessage),
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
    /// A call reaches the disk.
    Called {
        number: u64,
        id: u64,
        call: Call<Parcel<u64>>,
    },
    Answered {
        number: u64,
        id: u64,
        answer: Answer<Parcel<u64>>,
    },
    KillProducer,
    KillEntity(usize),
    FaultsEnd,
}

/// What a sender knows of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Waiting,
    Accepted,
    /// Stored perhaps, or the producer died before it said anything.
    Unknown,
}

struct Incarnation {
    instance: u64,
    machine: ShardingConsumer<u64>,
    tick_at: Option<Instant>,
}

#[derive(Default)]
struct Entity {
    /// Values applied, with their totals.
    journal: Vec<(u64, u64)>,
    live: Option<Incarnation>,
}

struct Simulation {
    world: World<Event>,
    settings: (ShardingProducerSettings, StoringSettings),
    consumer_settings: ShardingConsumerSettings,
    producer: ShardingProducer<u64>,
    number: u64,
    tick_at: Option<Instant>,
    disk: StoredQueue<Parcel<u64>>,
    /// Every message that was ever on the disk: entity and value, by total.
    history: BTreeMap<u64, (usize, u64)>,
    /// The producer that started the queue last.
    writer: u64,
    entities: Vec<Entity>,
    /// Entity of each message; the value is the index.
    input: Vec<usize>,
    told: Vec<Option<Told>>,
    /// Which message each ticket of the present producer is of.
    tickets: Vec<usize>,
    faults: bool,
    next_instance: u64,
    last_epoch: Epoch,
}

pub(crate) fn run(seed: u64) -> Result<u64, String> {
    Simulation::new(seed).run()
}

fn node(port: u16, uid: u64) -> UniqueAddress {
    format!("n:{port}#{uid}").parse().unwrap()
}

fn path(number: u64) -> Arc<str> {
    format!("delivery/{number}").into()
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut world: World<Event> = World::new(seed);
        let mut settings = DeliverySettings::test();
        settings.consumer.flow_control_window = [1, 3, 20][world.pick(3)];
        settings.consumer.max_outstanding_deliveries =
            [1, 2, 5][world.pick(3)].min(settings.consumer.flow_control_window);
        settings.consumer.resend_interval_min = Duration::from_millis(200);
        settings.consumer.resend_interval_max = Duration::from_millis(1000);
        settings.producer.resend_first_interval = Duration::from_millis(100);
        settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_millis(1000);
        settings.producer.durable_queue_request_timeout = Duration::from_millis(100);
        settings.producer.durable_queue_retry_attempts = [1, 2, 5][world.pick(3)];
        settings.producer.durable_queue_max_batch = [1, 3, 512][world.pick(3)];
        settings.producer.confirm_flush_count = [1, 5, 100][world.pick(3)];
        settings.sharding.buffer_size = [10, 100][world.pick(2)];
        settings.sharding.buffer_size_per_entity = [1, 5, 10][world.pick(3)];
        settings.sharding.recovery_parallelism = [1, 2, 100][world.pick(3)];
        settings.sharding.cleanup_unused_after = Duration::from_millis([150, 5_000][world.pick(2)]);
        settings.sharding.consumer_idle_after = settings.sharding.cleanup_unused_after * 2;
        settings.validate().unwrap();
        let mut storing = settings.storing();
        storing.restart_min_backoff = Duration::from_millis(10);
        storing.restart_max_backoff = Duration::from_millis(100);
        let entities = world.rng.random_range(1..=5);
        let input: Vec<usize> = (0..world.rng.random_range(20..=80)).map(|_| world.pick(entities)).collect();
        let machines = (settings.sharding_producer(), storing);
        let mut simulation = Self {
            producer: producer(&machines, 1, world.now),
            settings: machines,
            consumer_settings: settings.sharding_consumer(),
            number: 1,
            tick_at: None,
            disk: StoredQueue::default(),
            history: BTreeMap::new(),
            writer: 0,
            entities: (0..entities).map(|_| Entity::default()).collect(),
            told: vec![None; input.len()],
            input,
            tickets: Vec::new(),
            faults: true,
            next_instance: 1,
            last_epoch: Epoch(0),
            world,
        };
        for _ in 0..simulation.world.rng.random_range(0..=4) {
            let at = simulation.world.upto(FAULTS_END);
            simulation.world.after(at, Event::KillProducer);
        }
        for _ in 0..simulation.world.rng.random_range(0..=6) {
            let at = simulation.world.upto(FAULTS_END);
            let entity = simulation.world.pick(entities);
            simulation.world.after(at, Event::KillEntity(entity));
        }
        simulation.world.after(FAULTS_END, Event::FaultsEnd);
        for index in 0..simulation.input.len() {
            let at = simulation.world.upto(FAULTS_END);
            simulation.world.after(at, Event::Submit(index));
        }
        simulation
    }

    fn run(mut self) -> Result<u64, String> {
        self.tell_producer(sharding_producer::Input::Start)?;
        while let Some(event) = self.world.next() {
            self.on_event(event)?;
            if !self.faults && self.is_done() {
                self.check()?;
                return Ok(self.input.len() as u64);
            }
            if self.world.elapsed() > FAULTS_END + Duration::from_secs(60) {
                let stats = self.producer.stats(self.world.now);
                let left: Vec<_> = self.disk.unconfirmed().map(|message| message.seq_nr).collect();
                return Err(format!("no progress after the faults: {stats:?}, {left:?} on the disk, {:?}", self.told));
            }
        }
        Err("nothing is scheduled any more".to_owned())
    }

    fn is_done(&self) -> bool {
        let stats = self.producer.stats(self.world.now);
        self.told.iter().all(|told| !matches!(told, None | Some(Told::Waiting)))
            && stats.unconfirmed + stats.waiting + stats.storing == 0
            && self.disk.unconfirmed().next().is_none()
    }

    fn check(&self) -> Result<(), String> {
        for (index, told) in self.told.iter().enumerate() {
            let journal = &self.entities[self.input[index]].journal;
            let times = journal.iter().filter(|(value, _)| *value == index as u64).count();
            let stored = self.history.values().filter(|(_, value)| *value == index as u64).count();
            let right = match told {
                Some(Told::Accepted) => times == 1,
                // Stored, it is delivered; otherwise not.
                Some(Told::Unknown) => times == stored && times <= 1,
                _ => false,
            };
            if !right {
                return Err(format!("message {index} was told {told:?}, stored {stored} and applied {times} times"));
            }
        }
        for entity in &self.entities {
            if !entity.journal.is_sorted_by(|one, next| one.1 < next.1) {
                return Err(format!("I2: {:?}", entity.journal));
            }
        }
        let took = self.world.elapsed().saturating_sub(FAULTS_END);
        if took > Duration::from_secs(20) {
            return Err(format!("I7: it took {took:?} to settle"));
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Submit(index) => {
                self.tickets.push(index);
                self.told[index] = Some(Told::Waiting);
                let entity = self.input[index];
                self.tell_producer(sharding_producer::Input::Admit {
                    ticket: self.tickets.len() as u64,
                    entity: entity.to_string().into(),
                    shard: (entity % 2).to_string().into(),
                    frames: Frames::Whole(index as u64),
                    bytes: 100,
                    ack: false,
                })
            }
            Event::Downstream { entity, batch } => self.arrive(entity, batch),
            Event::Upstream(message) if message.to.path == path(self.number) => {
                self.tell_producer(sharding_producer::Input::Received(message))
            }
            Event::ProducerTick(number) if number == self.number => {
                self.tick_at = None;
                self.tell_producer(sharding_producer::Input::Tick)
            }
            Event::ConsumerTick { entity, instance } if self.is_live(entity, instance) => {
                if let Some(live) = &mut self.entities[entity].live {
                    live.tick_at = None;
                }
                self.tell_consumer(entity, sharding_consumer::Input::Tick);
                Ok(())
            }
            Event::Recovered { entity, instance } if self.is_live(entity, instance) => {
                let highest = self.entities[entity].journal.last().map(|(_, total)| (STREAM, SeqNr(*total)));
                let marks: Dedupe = highest.into_iter().collect();
                self.tell_consumer(entity, sharding_consumer::Input::Start(marks));
                Ok(())
            }
            Event::Processed { entity, instance, handle, value } if self.is_live(entity, instance) => {
                self.processed(entity, handle, value);
                Ok(())
            }
            Event::Called { number, id, call } => {
                self.called(number, id, call);
                Ok(())
            }
            Event::Answered { number, id, answer } if number == self.number => {
                self.tell_producer(sharding_producer::Input::Queue { call: id, answer })
            }
            Event::KillProducer => self.kill_producer(),
            Event::KillEntity(entity) => {
                self.entities[entity].live = None;
                Ok(())
            }
            Event::FaultsEnd => {
                self.faults = false;
                self.world.link = self.world.link.calm();
                Ok(())
            }
            _ => Ok(()), // meant for one that is gone
        }
    }

    /// Senders of a producer that dies never learn what became of their messages; they give up.
    fn kill_producer(&mut self) -> Result<(), String> {
        for index in std::mem::take(&mut self.tickets) {
            if self.told[index] == Some(Told::Waiting) {
                self.told[index] = Some(Told::Unknown);
            }
        }
        self.number += 1;
        self.producer = producer(&self.settings, self.number, self.world.now);
        self.tick_at = None;
        self.tell_producer(sharding_producer::Input::Start)
    }

    // ---- the disk -------------------------------------------------------------------------------

    /// A call does what it does, or does not, and its answer arrives, or does not.
    fn called(&mut self, number: u64, id: u64, call: Call<Parcel<u64>>) {
        let trouble = self.faults && self.world.chance(0.2);
        let (happens, answers) = if trouble { (self.world.chance(0.5), self.world.chance(0.6)) } else { (true, true) };
        let answer = if happens {
            self.carry_out(number, call)
        } else {
            let error = QueueError::NotStored("away".to_owned());
            match call {
                Call::Load => Answer::Loaded(Err(error)),
                Call::Store(_) => Answer::Stored(Err(error)),
                Call::Confirm(_) => Answer::Confirmed(Err(error)),
                Call::Poll(_) => Answer::Polled(Err(error)),
            }
        };
        let unknown = trouble && self.world.chance(0.3);
        let answer = match answer {
            Answer::Stored(_) if unknown => Answer::Stored(Err(QueueError::OutcomeUnknown)),
            Answer::Confirmed(_) if unknown => Answer::Confirmed(Err(QueueError::OutcomeUnknown)),
            answer => answer,
        };
        if answers {
            let delay = self.world.upto(Duration::from_millis(30));
            self.world.after(delay, Event::Answered { number, id, answer });
        }
    }

    fn carry_out(&mut self, number: u64, call: Call<Parcel<u64>>) -> Answer<Parcel<u64>> {
        let fenced = || QueueError::Fenced { by: None };
        match call {
            Call::Load if number < self.writer => Answer::Loaded(Err(fenced())),
            Call::Load => {
                self.writer = number;
                let epoch = Epoch(self.disk.started().map_or(1, |started| started.epoch.0 + 1));
                let controller = ControllerRef { node: node(1, number), path: path(number), instance: 0 };
                self.disk.start(Started { stream_id: STREAM, epoch, controller });
                let loaded = self.disk.loaded(|parcel| Ok::<_, QueueError>(parcel.clone()));
                Answer::Loaded(loaded.map(|state| state.expect("it was started")))
            }
            Call::Store(_) if number != self.writer => Answer::Stored(Err(fenced())),
            Call::Store(batch) => Answer::Stored(self.disk.judge_batch(batch, SeqNr(u64::MAX)).map(|missing| {
                for message in missing {
                    let Frames::Whole(value) = message.message.frames else { unreachable!("nothing is cut") };
                    let entity = message.qualifier.parse().unwrap();
                    self.history.insert(message.seq_nr.get(), (entity, value));
                    self.disk.add(message);
                }
                SeqNr(self.disk.current().get() - 1)
            })),
            Call::Poll(_) => Answer::Polled(Ok(Vec::new())),
            Call::Confirm(_) if number != self.writer => Answer::Confirmed(Err(fenced())),
            Call::Confirm(confirmations) => {
                Answer::Confirmed(self.disk.judge_confirmations(confirmations).map(|news| {
                    news.iter().for_each(|confirmation| self.disk.confirm(confirmation));
                }))
            }
        }
    }

    // ---- entities -------------------------------------------------------------------------------

    fn arrive(&mut self, entity: usize, batch: SequencedBatch<u64>) -> Result<(), String> {
        if batch.header.epoch < self.last_epoch && self.world.link.max_delay.is_zero() {
            return Err(format!("I11: {} after {}", batch.header.epoch, self.last_epoch));
        }
        if self.entities[entity].live.is_none() {
            let instance = self.next_instance;
            self.next_instance += 1;
            let machine = ShardingConsumer::new(self.consumer_settings.clone());
            self.entities[entity].live = Some(Incarnation { instance, machine, tick_at: None });
            let recovery = self.world.upto(Duration::from_millis(60));
            self.world.after(recovery, Event::Recovered { entity, instance });
        }
        self.tell_consumer(entity, sharding_consumer::Input::Batch(batch));
        Ok(())
    }

    /// The end of a handler run. A message is applied when all earlier ones are, and once.
    fn processed(&mut self, entity: usize, handle: DeliveryHandle, value: u64) {
        let total = handle.id.seq_nr.get();
        let applied = |total: u64, journal: &[(u64, u64)]| journal.iter().any(|(_, known)| *known == total);
        let journal = &self.entities[entity].journal;
        let mut earlier = self.history.range(..total).filter(|(_, (to, _))| *to == entity);
        if !applied(total, journal) && earlier.any(|(earlier, _)| !applied(*earlier, journal)) {
            let pause = Some(Duration::from_millis(10));
            return self.tell_consumer(entity, sharding_consumer::Input::Abandon(handle, pause));
        }
        if !applied(total, journal) {
            self.entities[entity].journal.push((value, total));
        }
        if self.faults && self.world.chance(0.05) {
            self.entities[entity].live = None; // after the append, before the confirmation
        } else {
            self.tell_consumer(entity, sharding_consumer::Input::Confirm(handle));
        }
    }

    fn is_live(&self, entity: usize, instance: u64) -> bool {
        self.entities[entity].live.as_ref().is_some_and(|live| live.instance == instance)
    }

    // ---- machines -------------------------------------------------------------------------------

    fn tell_producer(&mut self, input: sharding_producer::Input<u64>) -> Result<(), String> {
        let mut effects = Vec::new();
        let ticks = matches!(input, sharding_producer::Input::Tick);
        self.producer.handle(self.world.now, input, &mut effects);
        if ticks {
            assert_moved("producer", self.world.now, self.producer.next_deadline());
        }
        for effect in effects {
            self.carry_on(effect)?;
        }
        let deadline = self.producer.next_deadline();
        if let Some(at) = deadline.filter(|at| self.tick_at.is_none_or(|armed| *at < armed)) {
            self.tick_at = Some(at);
            self.world.at(at, Event::ProducerTick(self.number));
        }
        Ok(())
    }

    fn carry_on(&mut self, effect: sharding_producer::Effect<u64>) -> Result<(), String> {
        match effect {
            sharding_producer::Effect::Transmit { entity, header, message } => {
                let total = message.frame.total.get();
                if self.history.get(&total) != Some(&(entity.parse().unwrap(), message.frame.payload)) {
                    return Err(format!("I10: {total} is transmitted and not stored"));
                }
                if header.epoch < self.last_epoch {
                    return Err(format!("I11: epoch {} after {}", header.epoch, self.last_epoch));
                }
                self.last_epoch = header.epoch;
                let batch = SequencedBatch { header, frames: vec![message] };
                self.world.send(&Event::Downstream { entity: entity.parse().unwrap(), batch }, Duration::ZERO);
            }
            sharding_producer::Effect::Admitted { ticket, total } => {
                let index = self.tickets[ticket as usize - 1];
                if !self.history.contains_key(&total.get()) {
                    return Err(format!("I8: {total} is accepted and not stored"));
                }
                self.tell_sender(index, Told::Accepted)?;
            }
            sharding_producer::Effect::StoreUnknown { ticket, .. } => {
                self.tell_sender(self.tickets[ticket as usize - 1], Told::Unknown)?;
            }
            sharding_producer::Effect::Unavailable { ticket, .. } => {
                // Its sender has the message back, and tries again.
                let index = self.tickets[ticket as usize - 1];
                if self.told[index] != Some(Told::Waiting) {
                    return Err(format!("I8: message {index} is given back, and was {:?}", self.told[index]));
                }
                self.told[index] = None;
                let pause = self.world.upto(Duration::from_millis(200));
                self.world.after(pause, Event::Submit(index));
            }
            sharding_producer::Effect::Queue { id, call } => {
                let delay = self.world.upto(Duration::from_millis(30));
                self.world.after(delay, Event::Called { number: self.number, id, call });
            }
            sharding_producer::Effect::Fenced { .. } | sharding_producer::Effect::QueueEnded(_) => {
                return Err(format!("the newest producer ends: {effect:?}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn tell_sender(&mut self, index: usize, told: Told) -> Result<(), String> {
        match self.told[index].replace(told) {
            Some(Told::Waiting) => Ok(()),
            before => Err(format!("I8: message {index} is {told:?}, and was {before:?}")),
        }
    }

    fn tell_consumer(&mut self, entity: usize, input: sharding_consumer::Input<u64>) {
        let Some(live) = self.entities[entity].live.as_mut() else { return };
        let mut effects = Vec::new();
        live.machine.handle(self.world.now, input, &mut effects);
        let instance = live.instance;
        let from = ControllerRef { node: node(2, instance), path: "entities".into(), instance };
        for effect in effects {
            match effect {
                sharding_consumer::Effect::Deliver { handle, parts: Frames::Whole(value) } => {
                    let took = self.world.upto(Duration::from_millis(20));
                    self.world.after(took, Event::Processed { entity, instance, handle, value });
                }
                sharding_consumer::Effect::Reply { to, epoch, message } => {
                    let message = UpstreamMessage { from: from.clone(), to, epoch, message };
                    self.world.send(&Event::Upstream(message), Duration::ZERO);
                }
                _ => {}
            }
        }
        let Some(live) = self.entities[entity].live.as_mut() else { return };
        let deadline = live.machine.next_deadline();
        if let Some(at) = deadline.filter(|at| live.tick_at.is_none_or(|armed| *at < armed)) {
            live.tick_at = Some(at);
            self.world.at(at, Event::ConsumerTick { entity, instance });
        }
    }
}

fn producer(
    settings: &(ShardingProducerSettings, StoringSettings),
    number: u64,
    now: Instant,
) -> ShardingProducer<u64> {
    let (sharding, storing) = settings.clone();
    let id = ProducerId::new("shop").unwrap();
    ShardingProducer::durable(sharding, storing, id, node(1, number), path(number), (now, 0))
}
