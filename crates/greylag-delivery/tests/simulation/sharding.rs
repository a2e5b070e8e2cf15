//! Sharding producers, entities that persist processed messages, and deaths of every part.
//!
//! The journal is kept apart from the machines, as the record of what happened. The producer has a stable identity and
//! runs over the same input again after every kill, under the next epoch. At the end each entity's journal must have
//! exactly the messages sent to it, in order (I1, I5), soon after the faults have stopped (I7); no incarnation gets a
//! lower number after a higher one (I2), or a number twice (I3).
//!
//! A durable producer keeps its messages in a queue whose store fails, too, and its successor continues the queue: each
//! entity's journal must have exactly the messages stored for it (I10), and senders got one true answer (I8).
//!
//! A replaced producer may live on, and goes on sending until it is fenced. Messages are cut into chunks, of which
//! entities lose some when they move. Permits are taken, too, and returned. Some messages fail at every attempt and are
//! given up. Afterwards no state is left, and all room is free (I9).
//!
//! Shards move between the producer's node and another one. An in-memory producer hands messages to entities of its own
//! node without bytes, and gets the news of a move late; no message without bytes may arrive on another node (K7).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;
use greylag_delivery::machine::portable::Portable;
use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_consumer::{self, DeliveryHandle, ShardingConsumer, ShardingConsumerSettings};
use greylag_delivery::machine::sharding_producer::{self, RoutedMessage, ShardingProducer, ShardingProducerSettings};
use greylag_delivery::machine::storing::{Call, End, StoringSettings, StoringState};
use greylag_delivery::{
    Clause, ControllerRef, Dedupe, DeliverySettings, Epoch, MessageId, ProducerId, ProducerIdentity, SeqNr,
    SequencedBatch, StreamId, UpstreamMessage,
};
use greylag_testkit::deadlines::assert_moved;
use rand::RngExt;

use super::content::{Chunks, TestPayload};
use super::draws;
use super::durable::{Durable, SenderOutcome};
use super::omission::Without;
use super::store::{CallOutcome, Store, Writer};
use super::world::World;

const FAULTS_END: Duration = Duration::from_secs(8);
pub(crate) const STREAM: StreamId = StreamId(77);

#[derive(Debug, Clone)]
enum Event {
    /// The sender of a message of the input comes to this producer.
    Submit {
        producer: u64,
        index: usize,
    },
    /// The sender of a message has its permit, and uses it or returns it.
    Permitted {
        permit: u64,
        index: usize,
    },
    /// The sender gives up waiting.
    GiveUp {
        producer: u64,
        ticket: u64,
    },
    /// A permit whose sender has gone away is returned.
    Release {
        producer: u64,
        permit: u64,
    },
    Downstream {
        entity: usize,
        batch: SequencedBatch<TestPayload>,
    },
    Upstream(UpstreamMessage),
    /// Frames of a link found no room on their lane.
    Refused {
        controller: ControllerRef,
        from: u64,
        to: u64,
    },
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
        content: u64,
    },
    /// The entity confirms its processed deliveries, all at once.
    ConfirmAll {
        entity: usize,
        instance: u64,
    },
    KillProducer,
    KillEntity(usize),
    /// The entity ends in order: deliveries in hand are finished first.
    Passivate(usize),
    Rebalance(usize),
    Routed(usize),
    /// The producers get the home of a shard.
    Homed(Arc<str>),
    FaultsEnd,
    /// The queue of a producer carries out a call.
    Queue {
        producer: u64,
        id: u64,
        call: Call<RoutedMessage<TestPayload>>,
        outcome: CallOutcome,
    },
}

/// A producer controller: the current one, or a former one that does not know of its replacement.
struct Producer {
    machine: ShardingProducer<TestPayload>,
    tick_at: Option<Instant>,
    has_ended: bool,
    permits: u64,
    /// Shards whose home it has looked up.
    met: BTreeSet<Arc<str>>,
}

/// One incarnation of an entity.
struct Incarnation {
    instance: u64,
    machine: ShardingConsumer<TestPayload>,
    tick_at: Option<Instant>,
    /// The last total of a first attempt; later attempts may run in any order.
    last_total: u64,
    /// Deliveries handed out, by link number and delivery number.
    handed: BTreeSet<(u64, u64)>,
    /// Processed but unconfirmed.
    done: Vec<DeliveryHandle>,
}

struct Entity {
    /// Messages applied, with their totals: the journal of an event-sourced entity.
    journal: Vec<(u64, u64)>,
    /// Messages given up.
    poisoned: BTreeSet<u64>,
    live: Option<Incarnation>,
    unrouted_until: Option<Instant>,
}

impl Entity {
    fn applied(&self, content: u64) -> bool {
        self.journal.iter().any(|(known, _)| *known == content)
    }
}

pub(crate) struct Simulation {
    world: World<Event>,
    producers: BTreeMap<u64, Producer>,
    /// The number of the current producer; lower ones were left behind.
    current: u64,
    producer_settings: ShardingProducerSettings,
    consumer_settings: ShardingConsumerSettings,
    entities: Vec<Entity>,
    /// Shards hosted on another node than the producer's.
    away: BTreeSet<Arc<str>>,
    /// The entity of each message; the content is the index plus one.
    input: Vec<usize>,
    chunks: Chunks,
    submitted: usize,
    /// Contents by ticket: a producer that runs again uses new tickets.
    tickets: BTreeMap<u64, u64>,
    next_ticket: u64,
    /// Requested permits, with the messages that wait for them.
    wanted: BTreeMap<u64, usize>,
    /// Accepted and confirmed tickets of the current producer.
    accepted: BTreeSet<u64>,
    confirmed: BTreeSet<u64>,
    /// Set for a durable producer.
    durable: Option<Durable<RoutedMessage<TestPayload>>>,
    storing_settings: StoringSettings,
    next_instance: u64,
    without: Without,
    confirms_all: bool,
    faults: bool,
    processing: Duration,
    counters: RunCounters,
    /// Every event and effect, if requested.
    trace: Option<String>,
}

/// Counts of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RunCounters {
    pub(crate) events: u64,
    pub(crate) deaths: u64,
    pub(crate) applied: u64,
    /// Messages delivered without bytes.
    pub(crate) handed_over: u64,
    /// Batches from which messages without bytes were left out.
    pub(crate) left_behind: u64,
}

pub(crate) fn run(seed: u64, without: Without) -> Result<RunCounters, String> {
    Simulation::new(seed, without, false).run().map(|(counters, _)| counters)
}

pub(crate) fn run_durable(seed: u64, without: Without) -> Result<RunCounters, String> {
    let mut simulation = Simulation::new(seed, without, false);
    simulation.durable = Some(Durable::new(Store::new(STREAM, without.claims)));
    simulation.run().map(|(counters, _)| counters)
}

pub(crate) fn trace(seed: u64) -> String {
    Simulation::new(seed, Without::NOTHING, true).run().expect("no promise is broken").1
}

fn node(port: u16, uid: u64) -> UniqueAddress {
    format!("n:{port}#{uid}").parse().expect("an address")
}

impl Simulation {
    fn new(seed: u64, without: Without, traced: bool) -> Self {
        let mut world = World::new(seed);
        let mut settings = DeliverySettings::test();
        settings.consumer.flow_control_window = [1, 2, 3, 4, 5, 20][world.pick(6)];
        settings.consumer.max_outstanding_deliveries =
            [1, 2, 5][world.pick(3)].min(settings.consumer.flow_control_window);
        settings.consumer.ack_max_delay = Duration::from_millis([0, 5][world.pick(2)]);
        draws::timers(&mut world, &mut settings);
        settings.consumer.max_delivery_attempts = [0, 3][world.pick(2)];
        settings.sharding.buffer_size = [10, 100][world.pick(2)];
        settings.sharding.buffer_size_per_entity = [1, 5, 10][world.pick(3)];
        settings.sharding.max_in_flight_messages = [None, Some(10)][world.pick(2)];
        settings.sharding.max_in_flight_bytes = [500, 100_000][world.pick(2)];
        settings.sharding.max_in_flight_bytes_per_entity = settings.sharding.max_in_flight_bytes;
        settings.sharding.cleanup_unused_after = Duration::from_millis([150, 5_000][world.pick(2)]);
        settings.sharding.consumer_idle_after = settings.sharding.cleanup_unused_after * 2;
        settings.validate().expect("every value that is drawn is valid");
        let entities = world.rng.random_range(1..=5);
        let messages = world.rng.random_range(20..=80);
        let input: Vec<usize> = (0..messages).map(|_| world.pick(entities)).collect();
        let mut consumer_settings = settings.sharding_consumer();
        Arc::make_mut(&mut consumer_settings.link).omissions = without.omissions();
        let processing = Duration::from_millis(world.rng.random_range(0..=40));
        let entity = || Entity { journal: Vec::new(), poisoned: BTreeSet::new(), live: None, unrouted_until: None };
        let mut simulation = Self {
            producers: BTreeMap::new(),
            current: 0,
            producer_settings: ShardingProducerSettings {
                omissions: without.omissions(),
                ..settings.sharding_producer()
            },
            consumer_settings,
            entities: (0..entities).map(|_| entity()).collect(),
            input,
            away: BTreeSet::new(),
            chunks: Chunks([1, 1, 3, 7][world.pick(4)]),
            submitted: 0,
            tickets: BTreeMap::new(),
            next_ticket: 1,
            wanted: BTreeMap::new(),
            accepted: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            durable: None,
            storing_settings: draws::storing(&mut world),
            next_instance: 1,
            without,
            confirms_all: world.chance(0.5),
            faults: true,
            processing,
            counters: RunCounters::default(),
            trace: traced.then(String::new),
            world,
        };
        simulation.plan();
        simulation
    }

    /// Schedules random deaths.
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
        for kind in [Event::Rebalance as fn(usize) -> Event, Event::Passivate] {
            for _ in 0..self.world.rng.random_range(0..=3) {
                let at = self.world.upto(FAULTS_END);
                let entity = self.world.pick(entities);
                self.world.after(at, kind(entity));
            }
        }
        self.world.after(FAULTS_END, Event::FaultsEnd);
        self.world.after(Duration::ZERO, Event::Submit { producer: 1, index: 0 });
    }

    fn run(mut self) -> Result<(RunCounters, String), String> {
        let limit = FAULTS_END + Duration::from_secs(60);
        self.start_producer()?;
        while let Some(event) = self.world.next() {
            self.counters.events += 1;
            if let Some(trace) = &mut self.trace {
                let _ = writeln!(trace, "{:?} {event:?}", self.world.elapsed());
            }
            self.on_event(event)?;
            if !self.faults && self.is_done() {
                self.check()?;
                self.counters.applied = self.input.len() as u64;
                self.rest()?;
                return Ok((self.counters, self.trace.unwrap_or_default()));
            }
            if self.world.elapsed() > limit {
                let stats: Vec<_> = self.producers.values().map(|of| of.machine.stats(self.world.now)).collect();
                return Err(format!(
                    "I7: no progress after the faults: {stats:?}, {} of {} submitted",
                    self.submitted,
                    self.input.len()
                ));
            }
        }
        Err("I7: nothing is scheduled any more, and not all is done".to_owned())
    }

    fn is_done(&self) -> bool {
        let now = self.world.now;
        let is_idle = |producer: &Producer| {
            let stats = producer.machine.stats(now);
            let is_delivered = stats.unconfirmed == 0 && stats.waiting == 0 && stats.storing == 0;
            let is_open = matches!(producer.machine.storing_state(), StoringState::Open | StoringState::InMemory);
            producer.has_ended || (is_delivered && is_open && !producer.machine.has_unconfirmed_recovered())
        };
        let is_stored = self.durable.as_ref().is_none_or(Durable::is_settled);
        self.submitted == self.input.len()
            && self.wanted.is_empty()
            && self.producers.values().all(is_idle)
            && is_stored
    }

    fn check(&self) -> Result<(), String> {
        for (index, entity) in self.entities.iter().enumerate() {
            let mut sent = match &self.durable {
                Some(durable) => durable.stored(&name(index)),
                None => (0..self.input.len()).filter(|i| self.input[*i] == index).map(|i| i as u64 + 1).collect(),
            };
            if let Some(content) = sent.iter().find(|content| self.is_poison(**content) && entity.applied(**content)) {
                return Err(format!("entity {index} applied {content}, which fails at every attempt"));
            }
            sent.retain(|content| !entity.poisoned.contains(content));
            let applied: Vec<u64> = entity.journal.iter().map(|(content, _)| *content).collect();
            if sent != applied {
                return Err(format!("I1, I5: entity {index} was sent {sent:?} and applied {applied:?}"));
            }
        }
        self.durable.as_ref().map_or(Ok(()), Durable::check)?;
        if let Some(ticket) = self.accepted.difference(&self.confirmed).next() {
            return Err(format!("I8: ticket {ticket} was accepted, and nobody says that it is confirmed"));
        }
        let took = self.world.elapsed().saturating_sub(FAULTS_END);
        let whole_backlog = self.processing * self.input.len() as u32 * 2;
        // The timeout of a load grows up to sixteen full rounds of attempts.
        let load = self.storing_settings.request_timeout * self.storing_settings.retry_attempts * 16;
        let of_store = if self.durable.is_some() { load + Duration::from_secs(5) } else { Duration::ZERO };
        let frames: u64 = (1..=self.input.len() as u64).map(|content| self.chunks.of(content)).sum();
        let of_network = self.world.link.max_delay * 8 * frames as u32;
        let bound = Duration::from_secs(3) + whole_backlog + of_network + of_store;
        if took > bound {
            return Err(format!("I7: it took {took:?} to settle, {bound:?} is the most"));
        }
        Ok(())
    }

    /// I9: after a while of rest no state of an entity is left, and all room is free.
    fn rest(&mut self) -> Result<(), String> {
        let until = self.world.now + self.producer_settings.cleanup_unused_after * 2 + Duration::from_secs(3);
        while self.world.now < until {
            let Some(event) = self.world.next() else { break };
            self.on_event(event)?;
        }
        let capacity = self.producer_settings.buffer_size - self.producer_settings.buffer_size / 10;
        if let Some(producer) = self.producers.get_mut(&self.current) {
            producer.permits = 0;
        }
        for _ in 0..=capacity {
            let permit = self.ticket(0);
            self.tell_producer(self.current, sharding_producer::Input::RequestPermit { permit })?;
        }
        let producer = &self.producers[&self.current];
        let stats = producer.machine.stats(self.world.now);
        if (stats.entities, stats.unconfirmed, stats.buffered, stats.waiting) != (0, 0, 0, 0) {
            return Err(format!("I9: {stats:?} after the rest"));
        }
        if producer.permits != capacity as u64 {
            return Err(format!("I9: {} permits are given where there is room for {capacity}", producer.permits));
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        let now = self.world.now;
        match event {
            Event::Submit { producer, index } if producer == self.current => self.submit(index)?,
            Event::Submit { .. } => {}
            Event::Permitted { permit, index } => self.use_permit(permit, index)?,
            Event::GiveUp { producer, ticket } => {
                let content = self.tickets.get(&ticket).copied().unwrap_or(0);
                if self.durable.as_mut().is_some_and(|durable| durable.withdraw(content)) {
                    let entity = name(self.input[content as usize - 1]);
                    self.tell_producer(producer, sharding_producer::Input::Withdraw { ticket, entity })?;
                }
            }
            Event::Release { producer, permit } => {
                self.tell_producer(producer, sharding_producer::Input::ReleasePermit { permit })?;
            }
            Event::Downstream { entity, batch } => self.arrive(entity, batch)?,
            Event::Upstream(message) => {
                // A message to a dead controller has no recipient.
                let number = self.producers.keys().copied().find(|number| message.to.path == path(*number));
                if let Some(number) = number {
                    self.tell_producer(number, sharding_producer::Input::Received(message))?;
                }
            }
            Event::Refused { controller, from, to } => {
                let number = self.producers.keys().copied().find(|number| controller.path == path(*number));
                if let Some(number) = number {
                    let instance = controller.instance;
                    self.tell_producer(number, sharding_producer::Input::Refused { instance, from, to })?;
                }
            }
            Event::ToConsumer { instance, message } => {
                let live = self.entities.iter().position(|e| e.live.as_ref().is_some_and(|l| l.instance == instance));
                if let Some(entity) = live {
                    self.tell_consumer(entity, sharding_consumer::Input::ProducerStopped(message))?;
                }
            }
            Event::ProducerTick(number) => {
                if let Some(producer) = self.producers.get_mut(&number) {
                    producer.tick_at = None;
                    self.tell_producer(number, sharding_producer::Input::Tick)?;
                }
            }
            Event::Queue { producer, id, call, outcome } => self.queue(producer, id, call, outcome)?,
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
            Event::Processed { entity, instance, handle, content } => {
                self.processed(entity, instance, handle, content)?;
            }
            Event::ConfirmAll { entity, instance } => {
                if let Some(live) = self.entities[entity].live.as_mut().filter(|live| live.instance == instance) {
                    let done = std::mem::take(&mut live.done);
                    self.tell_consumer(entity, sharding_consumer::Input::ConfirmAll(done))?;
                }
            }
            Event::KillProducer => self.kill_producer()?,
            Event::KillEntity(entity) => {
                self.counters.deaths += 1;
                self.entities[entity].live = None;
            }
            Event::Passivate(entity) => self.tell_consumer(entity, sharding_consumer::Input::Finish)?,
            Event::Rebalance(entity) => {
                self.counters.deaths += 1;
                let shard = shard(entity);
                let took = self.world.upto(Duration::from_millis(800));
                let moves = self.world.chance(0.5);
                let together = (0..self.entities.len()).filter(|other| moves && self::shard(*other) == shard);
                for moved in together.chain([entity]) {
                    self.entities[moved].live = None;
                    self.entities[moved].unrouted_until = Some(now + took);
                    self.world.after(took, Event::Routed(moved));
                }
                if moves && !self.away.remove(&shard) {
                    self.away.insert(shard.clone());
                }
                if self.world.chance(0.8) {
                    let (shard, routed) = (shard.clone(), false);
                    self.tell_producers(&sharding_producer::Input::RouteChanged { shard, routed })?;
                }
                if self.world.chance(0.7) {
                    self.tell_producers(&sharding_producer::Input::ShardMoved(shard))?;
                }
            }
            Event::Homed(shard) => {
                let is_here = !self.away.contains(&shard);
                self.tell_producers(&sharding_producer::Input::Homed { shard, is_here })?;
            }
            Event::Routed(entity) => {
                let over = self.entities[entity].unrouted_until.is_some_and(|until| until <= now);
                if over {
                    self.entities[entity].unrouted_until = None;
                    let (shard, routed) = (shard(entity), true);
                    let late = if self.world.chance(0.5) { 500 } else { 0 };
                    let delay = self.world.upto(Duration::from_millis(late));
                    self.world.after(delay, Event::Homed(shard.clone()));
                    self.tell_producers(&sharding_producer::Input::RouteChanged { shard, routed })?;
                }
            }
            Event::FaultsEnd => {
                self.faults = false;
                self.world.link = self.world.link.without_faults();
            }
        }
        Ok(())
    }

    // ---- senders --------------------------------------------------------------------------------

    fn ticket(&mut self, content: u64) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.tickets.insert(ticket, content);
        ticket
    }

    fn submit(&mut self, index: usize) -> Result<(), String> {
        if index != self.submitted || index == self.input.len() {
            return Ok(());
        }
        if self.world.chance(0.1) {
            // A sender takes a permit, or requests one, and sends no message after all.
            let (producer, permit) = (self.current, self.ticket(0));
            self.tell_producer(producer, sharding_producer::Input::RequestPermit { permit })?;
            let pause = self.world.upto(Duration::from_millis(100));
            self.world.after(pause, Event::Release { producer, permit });
        }
        self.submitted += 1;
        if self.world.chance(0.25) {
            let permit = self.ticket(0);
            self.wanted.insert(permit, index);
            return self.tell_producer(self.current, sharding_producer::Input::RequestPermit { permit });
        }
        self.admit(index, None)
    }

    /// A sender has its permit, and uses it or returns it.
    fn use_permit(&mut self, permit: u64, index: usize) -> Result<(), String> {
        if self.wanted.remove(&permit).is_none() {
            return Ok(());
        }
        if self.world.chance(0.25) {
            self.tell_producer(self.current, sharding_producer::Input::ReleasePermit { permit })?;
            return self.admit(index, None);
        }
        self.admit(index, Some(permit))
    }

    /// Sends the message; without a permit sometimes by a former producer that is still alive.
    fn admit(&mut self, index: usize, permit: Option<u64>) -> Result<(), String> {
        let (entity, content) = (self.input[index], index as u64 + 1);
        let mut left_behind = self.producers.iter().filter(|(number, of)| **number != self.current && !of.has_ended);
        let left_behind = left_behind.next_back().map(|(number, _)| *number);
        let goes_there = self.durable.is_some() && permit.is_none() && self.world.chance(0.3);
        let number = left_behind.filter(|_| goes_there).unwrap_or(self.current);
        let ticket = self.ticket(content);
        if let Some(durable) = &mut self.durable {
            durable.submit(content, number);
            if self.world.chance(0.1) {
                let patience = self.world.upto(Duration::from_millis(100));
                self.world.after(patience, Event::GiveUp { producer: number, ticket });
            }
        }
        if let Some(permit) = permit {
            self.tell_producer(number, sharding_producer::Input::UsePermit { permit, ticket })?;
        }
        let ack = self.world.chance(0.3);
        let (name, shard) = (name(entity), shard(entity));
        if self.producers.get_mut(&number).is_some_and(|producer| producer.met.insert(shard.clone())) {
            let is_here = !self.away.contains(&shard);
            self.tell_producer(number, sharding_producer::Input::Homed { shard: shard.clone(), is_here })?;
        }
        let frames = self.payload(content, &shard);
        self.tell_producer(
            number,
            sharding_producer::Input::Admit { ticket, entity: name, shard, frames, bytes: 100, ack },
        )?;
        let pause = self.world.upto(Duration::from_millis(60));
        self.world.after(pause, Event::Submit { producer: self.current, index: index + 1 });
        Ok(())
    }

    /// The payload as its sender makes it, by the known home of the shard: with bytes for other nodes, and for a
    /// durable producer.
    fn payload(&mut self, content: u64, shard: &str) -> Frames<TestPayload> {
        let is_wrong = self.world.chance(0.1);
        if self.durable.is_some() || self.away.contains(shard) != is_wrong {
            TestPayload::cut(content, self.chunks)
        } else {
            Frames::Whole(TestPayload::Unencoded(content, self.chunks))
        }
    }

    /// The next producer, as after a restart of its process: with a stable identity it runs over the same input again,
    /// a durable one continues its queue. The former producer may live on.
    fn kill_producer(&mut self) -> Result<(), String> {
        self.counters.deaths += 1;
        let is_open = |producer: &Producer| {
            matches!(producer.machine.storing_state(), StoringState::Open | StoringState::InMemory)
        };
        let lives_on = self.world.chance(0.4) && self.producers.get(&self.current).is_some_and(is_open);
        // A message that waits for its permit is sent by the next producer.
        let waiting = std::mem::take(&mut self.wanted);
        if !lives_on {
            self.producers.remove(&self.current);
        }
        match &mut self.durable {
            Some(durable) => {
                if !lives_on {
                    durable.kill(self.current);
                }
                self.submitted = waiting.into_values().next().unwrap_or(self.submitted);
            }
            None => self.submitted = 0,
        }
        let next = Event::Submit { producer: self.current + 1, index: self.submitted };
        self.world.after(Duration::from_millis(1), next);
        self.accepted.clear();
        self.confirmed.clear();
        self.start_producer()
    }

    fn start_producer(&mut self) -> Result<(), String> {
        self.current += 1;
        let number = self.current;
        let (node, path) = (node(1, number), path(number));
        let id = ProducerId::new("shop").expect("a name");
        let settings = self.producer_settings.clone();
        let machine = match &mut self.durable {
            Some(durable) => {
                let controller = ControllerRef { node: node.clone(), path: path.clone(), instance: 0 };
                durable.writers.insert(number, Writer::new(controller));
                let storing = self.storing_settings.clone();
                ShardingProducer::durable(settings, storing, id, node, path, (self.world.now, 1_000_000))
            }
            None => ShardingProducer::new(settings, ProducerIdentity::stable(id, STREAM, Epoch(number)), node, path),
        };
        let met = BTreeSet::new();
        self.producers.insert(number, Producer { machine, tick_at: None, has_ended: false, permits: 0, met });
        self.tell_producer(number, sharding_producer::Input::Start)
    }

    // ---- the queue ------------------------------------------------------------------------------

    /// Makes a call of a producer's queue.
    fn call(&mut self, producer: u64, id: u64, call: Call<RoutedMessage<TestPayload>>) {
        let Some(durable) = &mut self.durable else { return };
        let (at, outcome) = durable.call(&mut self.world, self.faults);
        self.world.at(at, Event::Queue { producer, id, call, outcome });
    }

    fn queue(
        &mut self,
        producer: u64,
        id: u64,
        call: Call<RoutedMessage<TestPayload>>,
        outcome: CallOutcome,
    ) -> Result<(), String> {
        let is_alive = self.producers.contains_key(&producer);
        let Some(durable) = &mut self.durable else { return Ok(()) };
        match durable.run_call(producer, is_alive, call, outcome) {
            Some(answer) => self.tell_producer(producer, sharding_producer::Input::Queue { call: id, answer }),
            None => Ok(()),
        }
    }

    // ---- entities -------------------------------------------------------------------------------

    /// Whether the handler of this message always fails.
    fn is_poison(&self, content: u64) -> bool {
        self.consumer_settings.link.max_delivery_attempts > 0 && content.is_multiple_of(11)
    }

    fn arrive(&mut self, entity: usize, mut batch: SequencedBatch<TestPayload>) -> Result<(), String> {
        if let Some(until) = self.entities[entity].unrouted_until {
            // The region buffers the batch until there is a route; sometimes its buffer is full.
            if self.world.chance(0.8) {
                self.world.at(until, Event::Downstream { entity, batch });
            } else {
                self.tell_producers(&sharding_producer::Input::NotKept(name(entity)))?;
            }
            return Ok(());
        }
        if self.away.contains(&shard(entity)) {
            let leave = batch.frames.iter().take_while(|message| message.frame.payload.is_portable()).count();
            if leave < batch.frames.len() {
                batch.frames.truncate(leave);
                self.counters.left_behind += 1;
            }
        }
        if self.entities[entity].live.is_none() {
            let instance = self.next_instance;
            self.next_instance += 1;
            let machine = ShardingConsumer::new(self.consumer_settings.clone());
            let live = Incarnation {
                instance,
                machine,
                tick_at: None,
                last_total: 0,
                handed: BTreeSet::new(),
                done: Vec::new(),
            };
            self.entities[entity].live = Some(live);
            let recovery = self.world.upto(Duration::from_millis(60));
            self.world.after(recovery, Event::Recovered { entity, instance });
        }
        self.tell_consumer(entity, sharding_consumer::Input::Batch(batch))
    }

    /// The end of a handler run: the append, with possible failures before and after it.
    fn processed(&mut self, entity: usize, instance: u64, handle: DeliveryHandle, content: u64) -> Result<(), String> {
        if !self.is_live(entity, instance) {
            // The append of a fenced owner changes nothing, and confirms nothing.
            return Ok(());
        }
        let total = handle.id.seq_nr.get();
        let is_known = self.entities[entity].journal.iter().any(|(_, applied)| *applied >= total);
        let trouble = self.faults && self.world.chance(0.15);
        if is_known && !self.without.machine.contains(&Clause::Marks) {
            // The mark is checked again at the moment the handler would run.
            return self.confirm(entity, handle);
        }
        if self.is_poison(content) || (trouble && self.world.chance(0.4)) {
            // Limit the pause: the usual back-off doubles with every attempt, and is not tested here.
            let pause = (handle.key.attempt > 4).then_some(Duration::from_millis(10));
            return self.tell_consumer(entity, sharding_consumer::Input::Abandon(handle, pause));
        }
        if self.has_earlier_outstanding(entity, total) {
            // `NotInOrder`: an earlier delivery is neither persisted nor confirmed.
            return self.tell_consumer(entity, sharding_consumer::Input::Return(handle, Duration::from_millis(10)));
        }
        self.entities[entity].journal.push((content, total));
        // An entity that died before it could report that it gave the message up gets the message again.
        self.entities[entity].poisoned.remove(&content);
        if trouble {
            // Stored, but the entity dies before it can confirm, or the answer is lost.
            self.entities[entity].live = None;
            return Ok(());
        }
        self.confirm(entity, handle)
    }

    /// Confirms a delivery, at once or with others.
    fn confirm(&mut self, entity: usize, handle: DeliveryHandle) -> Result<(), String> {
        if !self.confirms_all {
            return self.tell_consumer(entity, sharding_consumer::Input::Confirm(handle));
        }
        let Some(live) = &mut self.entities[entity].live else { return Ok(()) };
        live.done.push(handle);
        if live.done.len() == 1 {
            let instance = live.instance;
            let pause = self.world.upto(Duration::from_millis(30));
            self.world.after(pause, Event::ConfirmAll { entity, instance });
        }
        Ok(())
    }

    /// Whether a message below `total` was sent to the entity, and is neither in its journal nor given up.
    fn has_earlier_outstanding(&self, entity: usize, total: u64) -> bool {
        let of = &self.entities[entity];
        let is_open = |content: u64| !of.applied(content) && !of.poisoned.contains(&content);
        match &self.durable {
            Some(durable) => {
                let name = name(entity);
                let mut earlier = durable.store.ever().range(..total);
                earlier.any(|(_, (qualifier, content))| *qualifier == name && is_open(*content))
            }
            None => (0..total as usize - 1).any(|index| self.input[index] == entity && is_open(index as u64 + 1)),
        }
    }

    // ---- machines -------------------------------------------------------------------------------

    fn tell_producers(&mut self, input: &sharding_producer::Input<TestPayload>) -> Result<(), String> {
        let numbers: Vec<u64> = self.producers.keys().copied().collect();
        numbers.into_iter().try_for_each(|number| self.tell_producer(number, input.clone()))
    }

    fn tell_producer(&mut self, number: u64, input: sharding_producer::Input<TestPayload>) -> Result<(), String> {
        let Some(producer) = self.producers.get_mut(&number) else { return Ok(()) };
        let mut effects = Vec::new();
        let ticks = matches!(input, sharding_producer::Input::Tick);
        producer.machine.handle(self.world.now, input, &mut effects);
        if ticks {
            assert_moved("producer", self.world.now, producer.machine.next_deadline());
        }
        let mut batches: Vec<(usize, SequencedBatch<TestPayload>)> = Vec::new();
        for effect in effects {
            if let Some(trace) = &mut self.trace {
                let _ = writeln!(trace, "  producer {number} {effect:?}");
            }
            match effect {
                sharding_producer::Effect::Queue { id, call } => self.call(number, id, call),
                sharding_producer::Effect::Transmit { entity, header, message } => {
                    if let Some(durable) = &self.durable {
                        durable.transmitted(message.frame.total)?;
                    }
                    let entity: usize = entity.parse().expect("entities are named by numbers");
                    match batches.last_mut() {
                        Some((last, batch)) if *last == entity && batch.header == header => batch.frames.push(message),
                        _ => batches.push((entity, SequencedBatch { header, frames: vec![message] })),
                    }
                }
                sharding_producer::Effect::Stop { to, message } => {
                    self.world.send(&Event::ToConsumer { instance: to.instance, message }, Duration::ZERO);
                }
                sharding_producer::Effect::Permit { permit } => self.on_permit(number, permit),
                other => self.on_producer_effect(number, other)?,
            }
        }
        for (entity, batch) in batches {
            if self.faults && self.world.chance(0.03) {
                // The lane has no room.
                let frames = batch.frames.iter().map(|message| message.frame.seq_nr);
                let (from, to) = (frames.clone().min().unwrap_or(0), frames.max().unwrap_or(0));
                self.world.after(Duration::ZERO, Event::Refused { controller: batch.header.controller, from, to });
                continue;
            }
            self.world.send(&Event::Downstream { entity, batch }, Duration::ZERO);
        }
        let Some(producer) = self.producers.get_mut(&number) else { return Ok(()) };
        let deadline = producer.machine.next_deadline();
        if let Some(at) = deadline.filter(|at| producer.tick_at.is_none_or(|armed| *at < armed)) {
            producer.tick_at = Some(at);
            self.world.at(at, Event::ProducerTick(number));
        }
        Ok(())
    }

    fn on_permit(&mut self, number: u64, permit: u64) {
        if let Some(producer) = self.producers.get_mut(&number) {
            producer.permits += 1;
        }
        if let Some(index) = self.wanted.get(&permit).copied().filter(|_| number == self.current) {
            let pause = self.world.upto(Duration::from_millis(40));
            self.world.after(pause, Event::Permitted { permit, index });
        }
    }

    /// Handles an answer to a sender, or the end of the producer.
    fn on_producer_effect(
        &mut self,
        number: u64,
        effect: sharding_producer::Effect<TestPayload>,
    ) -> Result<(), String> {
        use sharding_producer::Effect;
        let content = |ticket: u64| self.tickets.get(&ticket).copied().unwrap_or(0);
        let is_current = number == self.current;
        match effect {
            Effect::Admitted { ticket, total } => {
                let content = content(ticket);
                if is_current && !self.accepted.insert(ticket) {
                    return Err(format!("I8: ticket {ticket} was accepted twice"));
                }
                match &mut self.durable {
                    Some(durable) => durable.accepted(content, total)?,
                    None if total.get() != content => {
                        return Err(format!("message {content} has the number {total} this time"));
                    }
                    None => {}
                }
            }
            Effect::Confirmed { ticket, total } => self.on_confirmed(is_current, ticket, total)?,
            Effect::StoreUnknown { ticket, .. } => self.record_outcome(content(ticket), SenderOutcome::Unknown)?,
            Effect::Unavailable { ticket, .. } | Effect::Refused { ticket, .. } => {
                self.record_outcome(content(ticket), SenderOutcome::NotStored)?;
            }
            Effect::Fenced { .. } | Effect::QueueEnded(End::Fenced { .. }) if !is_current => {
                if let Some(producer) = self.producers.get_mut(&number) {
                    producer.has_ended = true;
                }
            }
            Effect::Fenced { .. } | Effect::QueueEnded(_) => {
                return Err(format!("the newest producer ended: {effect:?}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn record_outcome(&mut self, content: u64, outcome: SenderOutcome) -> Result<(), String> {
        self.durable.as_mut().map_or(Ok(()), |durable| durable.record(content, outcome))
    }

    /// I8: a message is confirmed once, after it was processed.
    fn on_confirmed(&mut self, is_current: bool, ticket: u64, total: SeqNr) -> Result<(), String> {
        let content = match (&self.durable, self.tickets.get(&ticket)) {
            (Some(durable), _) => durable.store.ever().get(&total.get()).map_or(0, |(_, content)| *content),
            (None, content) => content.copied().unwrap_or(0),
        };
        let of =
            (content as usize).checked_sub(1).and_then(|index| self.input.get(index)).map(|of| &self.entities[*of]);
        if !of.is_some_and(|of| of.applied(content) || of.poisoned.contains(&content)) {
            return Err(format!("I8: message {content} is confirmed as {total}, and was not processed"));
        }
        if is_current && ticket > 0 && !self.confirmed.insert(ticket) {
            return Err(format!("I8: ticket {ticket} was told twice that it is confirmed"));
        }
        Ok(())
    }

    fn tell_consumer(&mut self, entity: usize, input: sharding_consumer::Input<TestPayload>) -> Result<(), String> {
        let Some(live) = self.entities[entity].live.as_mut() else { return Ok(()) };
        let mut effects = Vec::new();
        let ticks = matches!(input, sharding_consumer::Input::Tick);
        live.machine.handle(self.world.now, input, &mut effects);
        if ticks {
            assert_moved("consumer", self.world.now, live.machine.next_deadline());
        }
        let (instance, mut has_stopped) = (live.instance, false);
        let is_away = self.away.contains(&shard(entity));
        for effect in effects {
            if let Some(trace) = &mut self.trace {
                let _ = writeln!(trace, "  entity {entity} {effect:?}");
            }
            match effect {
                sharding_consumer::Effect::Deliver { handle, parts } => self.deliver(entity, handle, &parts)?,
                sharding_consumer::Effect::Reply { to, epoch, message } => {
                    let node = if is_away { node(2, instance) } else { to.node.clone() };
                    let from = ControllerRef { node, path: "entities".into(), instance };
                    let message = UpstreamMessage { from, to, epoch, message };
                    let late = self.faults && self.world.chance(0.03);
                    let extra = if late { self.world.upto(Duration::from_secs(2)) } else { Duration::ZERO };
                    self.world.send(&Event::Upstream(message), extra);
                }
                sharding_consumer::Effect::Suppressed(MessageId { seq_nr, .. }) => {
                    let known = self.entities[entity].journal.iter().any(|(_, total)| *total >= seq_nr.get());
                    let poisoned =
                        self.content_of(seq_nr).is_some_and(|of| self.entities[entity].poisoned.contains(&of));
                    if !known && !poisoned {
                        return Err(format!("I1: entity {entity} suppressed {seq_nr}, which it never applied"));
                    }
                }
                sharding_consumer::Effect::Poisoned { id, attempts } => {
                    if attempts != self.consumer_settings.link.max_delivery_attempts {
                        return Err(format!("{} was given up after {attempts} attempts", id.seq_nr));
                    }
                    let content = self.content_of(id.seq_nr).unwrap_or(0);
                    if self.entities[entity].applied(content) {
                        return Err(format!("{content} was given up, though it was applied"));
                    }
                    self.entities[entity].poisoned.insert(content);
                }
                sharding_consumer::Effect::Stopped => has_stopped = true,
                _ => {}
            }
        }
        if has_stopped {
            self.entities[entity].live = None;
        }
        let Some(live) = self.entities[entity].live.as_mut() else { return Ok(()) };
        let deadline = live.machine.next_deadline();
        if let Some(at) = deadline.filter(|at| live.tick_at.is_none_or(|armed| *at < armed)) {
            live.tick_at = Some(at);
            self.world.at(at, Event::ConsumerTick { entity, instance });
        }
        Ok(())
    }

    fn deliver(&mut self, entity: usize, handle: DeliveryHandle, parts: &Frames<TestPayload>) -> Result<(), String> {
        let content = TestPayload::joined(parts, self.chunks)?;
        let is_unencoded = matches!(parts, Frames::Whole(payload) if !payload.is_portable());
        if is_unencoded && (self.durable.is_some() || self.away.contains(&shard(entity))) {
            return Err(format!("K7: message {content} was delivered without bytes"));
        }
        self.counters.handed_over += u64::from(is_unencoded);
        let total = handle.id.seq_nr;
        if self.content_of(total) != Some(content) {
            return Err(format!("{total} was delivered with the content of {content}"));
        }
        let Some(live) = self.entities[entity].live.as_mut() else { return Ok(()) };
        if live.handed.insert((handle.link, handle.key.number)) {
            if total.get() <= live.last_total {
                return Err(format!("I2, I3: entity {entity} was handed {total} after {}", live.last_total));
            }
            live.last_total = total.get();
        }
        let instance = live.instance;
        let took = self.world.upto(self.processing);
        self.world.after(took, Event::Processed { entity, instance, handle, content });
        Ok(())
    }

    /// The content of a number.
    fn content_of(&self, total: SeqNr) -> Option<u64> {
        match &self.durable {
            Some(durable) => durable.store.ever().get(&total.get()).map(|(_, content)| *content),
            None => Some(total.get()),
        }
    }

    fn is_live(&self, entity: usize, instance: u64) -> bool {
        self.entities[entity].live.as_ref().is_some_and(|live| live.instance == instance)
    }

    fn marks(&self, entity: usize) -> Dedupe {
        let highest = self.entities[entity].journal.iter().map(|(_, total)| *total).max();
        highest.map(|total| (STREAM, SeqNr(total))).into_iter().collect()
    }
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
