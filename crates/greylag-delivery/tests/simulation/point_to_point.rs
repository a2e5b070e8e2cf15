//! One producer, one consumer at a time, both of which die and come back.
//!
//! The producer keeps what is unconfirmed across its deaths, as a durable one does, and speaks under
//! the next epoch afterwards; a new consumer knows nothing. Everything must be delivered, in order
//! within each consumer (I1, I2); twice only if a consumer died (I3), never to the same consumer
//! (I4); epochs never fall (I11); and all of it soon after the faults have stopped (I7).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_delivery::machine::consumer_link::{self, ConsumerLink, ConsumerLinkSettings, DeliveryKey};
use greylag_delivery::machine::producer_link::{self, Frames, LinkMode, ProducerLink};
use greylag_delivery::{
    BatchHeader, ControllerRef, Dedupe, DeliverySettings, Epoch, ProducerId, ProducerIdentity, SeqNr, SequencedMessage,
    StreamId, Upstream, Watermarks,
};
use greylag_testkit::deadlines::assert_moved;
use rand::RngExt;

use super::world::World;

const FAULTS_END: Duration = Duration::from_secs(8);
const STREAM: StreamId = StreamId(5);

#[derive(Debug, Clone)]
enum Event {
    Send,
    Down { to: u64, header: BatchHeader, message: SequencedMessage<u64> },
    Up { from: u64, epoch: Option<Epoch>, message: Upstream },
    ProducerTick(u64),
    ConsumerTick(u64),
    Processed { consumer: u64, key: DeliveryKey, abandon: bool },
    KillProducer,
    KillConsumer,
    FaultsEnd,
}

struct Consumer {
    number: u64,
    link: ConsumerLink<u64>,
    watermarks: Watermarks,
    delivered: Vec<u64>,
    tick_at: Option<Instant>,
    epoch: Epoch,
}

struct Simulation {
    world: World<Event>,
    settings: DeliverySettings,
    chunks: usize,
    producer: ProducerLink<u64>,
    epoch: u64,
    producer_tick: Option<Instant>,
    consumer: Consumer,
    unconfirmed: BTreeSet<u64>,
    sent: u64,
    messages: u64,
    delivered: BTreeSet<u64>,
    twice: bool,
    consumer_died: bool,
    processing: Duration,
    faults: bool,
}

pub(crate) fn run(seed: u64) -> Result<(), String> {
    Simulation::new(seed).run()
}

/// One controller, whose queue reopens: the epoch rises, the reference stays.
fn producer_ref() -> ControllerRef {
    ControllerRef { node: "p:1#1".parse().unwrap(), path: "delivery/1".into(), instance: 1 }
}

fn consumer_ref(number: u64) -> ControllerRef {
    ControllerRef { node: "c:1#1".parse().unwrap(), path: "delivery/2".into(), instance: number }
}

fn link(settings: &DeliverySettings, epoch: u64, now: Instant) -> ProducerLink<u64> {
    let identity = ProducerIdentity::stable(ProducerId::new("p").unwrap(), STREAM, Epoch(epoch));
    ProducerLink::new(settings.producer_link(LinkMode::PointToPoint, &identity), now)
}

fn consumer(settings: &ConsumerLinkSettings, number: u64, epoch: Epoch) -> Consumer {
    Consumer {
        number,
        link: ConsumerLink::new(settings.clone()),
        watermarks: Watermarks::new(10, Duration::from_secs(3600)),
        delivered: Vec::new(),
        tick_at: None,
        epoch,
    }
}

impl Simulation {
    fn new(seed: u64) -> Self {
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
        let chunks = [1, 1, 3, 7][world.pick(4)];
        let messages = world.rng.random_range(10..=60);
        let processing = Duration::from_millis(world.rng.random_range(0..=40));
        let consumer = consumer(&settings.consumer_link(LinkMode::PointToPoint), 1, Epoch(0));
        let producer = link(&settings, 1, world.now);
        let mut simulation = Self {
            world,
            settings,
            chunks,
            producer,
            epoch: 1,
            producer_tick: None,
            consumer,
            unconfirmed: BTreeSet::new(),
            sent: 0,
            messages,
            delivered: BTreeSet::new(),
            twice: false,
            consumer_died: false,
            processing,
            faults: true,
        };
        for _ in 0..simulation.world.rng.random_range(0..=3) {
            let at = simulation.world.upto(FAULTS_END);
            simulation.world.after(at, Event::KillConsumer);
        }
        for _ in 0..simulation.world.rng.random_range(0..=4) {
            let at = simulation.world.upto(FAULTS_END);
            simulation.world.after(at, Event::KillProducer);
        }
        simulation.world.after(FAULTS_END, Event::FaultsEnd);
        simulation.world.after(Duration::ZERO, Event::Send);
        simulation
    }

    fn run(mut self) -> Result<(), String> {
        self.attach()?;
        while let Some(event) = self.world.next() {
            self.on_event(event)?;
            if !self.faults && self.sent == self.messages && self.unconfirmed.is_empty() {
                return self.check();
            }
            if self.world.elapsed() > FAULTS_END + Duration::from_secs(60) {
                return Err(format!("I7: {} messages stay unconfirmed", self.unconfirmed.len()));
            }
        }
        Err("nothing is scheduled any more".to_owned())
    }

    fn check(&self) -> Result<(), String> {
        let missing: Vec<u64> = (1..=self.messages).filter(|total| !self.delivered.contains(total)).collect();
        if !missing.is_empty() {
            return Err(format!("I1: {missing:?} were never delivered"));
        }
        if self.twice && !self.consumer_died {
            return Err("I3: delivered twice although no consumer died".to_owned());
        }
        let frames = self.messages as u32 * self.chunks as u32;
        let bound = Duration::from_secs(3) + (self.processing * 2 + self.world.link.max_delay * 8) * frames;
        let took = self.world.elapsed().saturating_sub(FAULTS_END);
        if took > bound { Err(format!("I7: it took {took:?} to settle, {bound:?} is the most")) } else { Ok(()) }
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Send if self.sent < self.messages => {
                self.sent += 1;
                self.unconfirmed.insert(self.sent);
                self.accept(self.sent)?;
                let pause = self.world.upto(Duration::from_millis(60));
                self.world.after(pause, Event::Send);
            }
            Event::Down { to, header, message } if to == self.consumer.number => {
                self.tell_consumer(consumer_link::Input::Frames { header, frames: vec![message] })?;
            }
            Event::Up { from, epoch, message } => {
                let from = consumer_ref(from);
                self.tell_producer(producer_link::Input::Received { from, epoch, message })?;
            }
            Event::ProducerTick(epoch) if epoch == self.epoch => {
                self.producer_tick = None;
                self.tell_producer(producer_link::Input::Tick)?;
            }
            Event::ConsumerTick(number) if number == self.consumer.number => {
                self.consumer.tick_at = None;
                self.tell_consumer(consumer_link::Input::Tick)?;
            }
            Event::Processed { consumer, key, abandon } if consumer == self.consumer.number => {
                self.tell_consumer(match abandon {
                    true => consumer_link::Input::Abandon(key, None),
                    false => consumer_link::Input::Confirm(key),
                })?;
            }
            Event::KillProducer => {
                // The queue reopens: the epoch rises, what is unconfirmed comes first. Both ends go on
                // naming the same controllers, so the consumer is registered anew.
                self.epoch += 1;
                self.producer = link(&self.settings, self.epoch, self.world.now);
                self.producer_tick = None;
                let from = consumer_ref(self.consumer.number);
                self.tell_producer(producer_link::Input::Received {
                    from,
                    epoch: None,
                    message: Upstream::RegisterConsumer,
                })?;
                for total in self.unconfirmed.clone() {
                    self.accept(total)?;
                }
            }
            Event::KillConsumer => {
                self.consumer_died = true;
                let number = self.consumer.number + 1;
                self.consumer = consumer(&self.settings.consumer_link(LinkMode::PointToPoint), number, Epoch(0));
                self.attach()?;
            }
            Event::FaultsEnd => {
                self.faults = false;
                self.world.link = self.world.link.calm();
            }
            _ => {}
        }
        Ok(())
    }

    fn attach(&mut self) -> Result<(), String> {
        self.tell_consumer(consumer_link::Input::Start(Dedupe::none()))?;
        self.tell_consumer(consumer_link::Input::RegisterTo(producer_ref()))
    }

    fn accept(&mut self, total: u64) -> Result<(), String> {
        let frames = match self.chunks {
            1 => Frames::Whole(total),
            count => Frames::Chunks(vec![total; count]),
        };
        let ack = self.world.chance(0.3);
        self.tell_producer(producer_link::Input::Accept { total: SeqNr(total), frames, ack })
    }

    fn tell_producer(&mut self, input: producer_link::Input<u64>) -> Result<(), String> {
        let mut effects = Vec::new();
        let ticks = matches!(input, producer_link::Input::Tick);
        self.producer.handle(self.world.now, input, &mut effects);
        if ticks {
            assert_moved("producer", self.world.now, self.producer.next_deadline());
        }
        for effect in effects {
            match effect {
                producer_link::Effect::Transmit { frame, first, lowest, .. } => {
                    let header = BatchHeader {
                        producer_id: ProducerId::new("p").unwrap(),
                        stream_id: STREAM,
                        epoch: Epoch(self.epoch),
                        controller: producer_ref(),
                        ordered: true,
                        lowest,
                    };
                    let to = self.producer.consumer().map_or(0, |consumer| consumer.instance);
                    let message = SequencedMessage { frame, first };
                    self.world.send(&Event::Down { to, header, message }, Duration::ZERO);
                }
                producer_link::Effect::ConfirmedUpTo(total) => {
                    if let Some(early) = (1..=total.get()).find(|total| !self.delivered.contains(total)) {
                        return Err(format!("{early} is confirmed and was never delivered"));
                    }
                    self.unconfirmed.retain(|other| *other > total.get());
                }
                producer_link::Effect::DemandChanged(_) => {}
                producer_link::Effect::Fenced { newer } => return Err(format!("fenced by {newer}")),
            }
        }
        if let Some(at) = self.producer.next_deadline().filter(|at| self.producer_tick.is_none_or(|tick| *at < tick)) {
            self.producer_tick = Some(at);
            self.world.at(at, Event::ProducerTick(self.epoch));
        }
        Ok(())
    }

    fn tell_consumer(&mut self, input: consumer_link::Input<u64>) -> Result<(), String> {
        let consumer = &mut self.consumer;
        let mut effects = Vec::new();
        let ticks = matches!(input, consumer_link::Input::Tick);
        consumer.link.handle(self.world.now, input, &mut consumer.watermarks, &mut effects);
        if ticks {
            assert_moved("consumer", self.world.now, consumer.link.next_deadline());
        }
        if let Some((_, epoch)) = consumer.link.producer() {
            if epoch < consumer.epoch {
                return Err(format!("I11: epoch {epoch} after {}", consumer.epoch));
            }
            consumer.epoch = epoch;
        }
        for effect in effects {
            match effect {
                consumer_link::Effect::Deliver { key, id, parts } => {
                    let total = id.seq_nr;
                    let chunks = match parts {
                        Frames::Whole(_) => 1,
                        Frames::Chunks(parts) => parts.len(),
                    };
                    if chunks != self.chunks {
                        return Err(format!("{total} was delivered in {chunks} chunks"));
                    }
                    self.deliver(key, total.get())?;
                }
                consumer_link::Effect::Reply { epoch, message, .. } => {
                    let late = self.faults && self.world.chance(0.03);
                    let extra = if late { self.world.upto(Duration::from_secs(2)) } else { Duration::ZERO };
                    let from = self.consumer.number;
                    self.world.send(&Event::Up { from, epoch, message }, extra);
                }
                _ => {}
            }
        }
        let consumer = &mut self.consumer;
        if let Some(at) = consumer.link.next_deadline().filter(|at| consumer.tick_at.is_none_or(|tick| *at < tick)) {
            consumer.tick_at = Some(at);
            self.world.at(at, Event::ConsumerTick(self.consumer.number));
        }
        Ok(())
    }

    fn deliver(&mut self, key: DeliveryKey, total: u64) -> Result<(), String> {
        if key.attempt == 1 {
            if self.consumer.delivered.contains(&total) {
                return Err(format!("I4: one consumer was handed {total} twice"));
            }
            if self.consumer.delivered.last().is_some_and(|last| *last >= total) {
                return Err(format!("I2: {total} after {:?}", self.consumer.delivered.last()));
            }
            self.consumer.delivered.push(total);
            self.twice |= !self.delivered.insert(total);
        }
        let took = self.world.upto(self.processing);
        let abandon = self.faults && self.world.chance(0.05);
        self.world.after(took, Event::Processed { consumer: self.consumer.number, key, abandon });
        Ok(())
    }
}
