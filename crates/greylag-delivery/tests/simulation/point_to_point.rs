//! Point-to-point producer and consumer controllers, with everything around a link: senders, permits, a queue,
//! registrations.
//!
//! Producers die and are replaced (a durable one may live on after that); their stores fail; consumers die, stop in
//! order and start again; registrations come late. Every message accepted by a producer that did not die, or stored, is
//! processed (I1); each consumer gets rising numbers of each stream (I2), no message twice without a death (I3), and no
//! number twice (I4); senders get one true answer (I8); afterwards no state is left, and the room is free (I9); no
//! message is sent before it is stored (I10); all of that soon after the faults have stopped (I7).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_delivery::machine::consumer_controller::{self, ConsumerController, ConsumerKind};
use greylag_delivery::machine::controller::{Controller, Effect, Failure, Input, Message};
use greylag_delivery::machine::point_to_point::{PointToPoint, PointToPointSettings};
use greylag_delivery::machine::producer_link::{Frames, LinkMode};
use greylag_delivery::machine::sharding_consumer::{self, DeliveryHandle, ShardingConsumerSettings};
use greylag_delivery::machine::storing::{Call, Storing, StoringSettings, StoringState};
use greylag_delivery::{
    ControllerRef, Dedupe, DeliverySettings, Epoch, ProducerId, ProducerStopped, SeqNr, SequencedBatch, StreamId,
    UpstreamMessage,
};
use greylag_testkit::deadlines::assert_moved;
use rand::RngExt;

use super::content::Chunks;
use super::draws;
use super::durable::{Durable, SenderOutcome};
use super::omission::Without;
use super::senders::{SenderRequest, Senders};
use super::store::{CallOutcome, Store, Writer};
use super::world::World;

const FAULTS_END: Duration = Duration::from_secs(8);
const STREAM: StreamId = StreamId(9);

#[derive(Debug, Clone)]
enum Event {
    Send,
    /// The sender has had its permit for a while.
    Permitted(u64),
    /// The sender gives up waiting.
    GiveUp(u64),
    /// Another producer handle takes over (P13).
    StartAgain,
    Down {
        to: u64,
        batch: SequencedBatch<u64>,
    },
    Stopped {
        to: u64,
        message: ProducerStopped,
    },
    Up(UpstreamMessage),
    ProducerTick(u64),
    ConsumerTick(u64),
    Processed {
        consumer: u64,
        handle: DeliveryHandle,
        content: u64,
    },
    ConfirmAll(u64),
    /// The queue of a producer carries out a call.
    Queue {
        producer: u64,
        id: u64,
        call: Call<Frames<u64>>,
        outcome: CallOutcome,
    },
    KillProducer,
    /// The producer is closed; the next one starts when it has ended.
    CloseProducer,
    KillConsumer,
    /// The consumer ends in order.
    StopConsumer,
    /// Another value of the consumer is attached to its controller.
    RestartConsumer,
    /// Producers left behind together with a consumer that is gone are ended, since no consumer would ever fence them.
    EndOrphans,
    FaultsEnd,
}

/// A producer controller: the current one, or a former one that does not know of its replacement.
struct Producer {
    machine: PointToPoint<u64>,
    session: u64,
    tick_at: Option<Instant>,
    has_ended: bool,
}

struct Consumer {
    number: u64,
    machine: ConsumerController<u64>,
    tick_at: Option<Instant>,
    /// The last number of each stream that was handed out, and the numbers of the deliveries handed out.
    last: BTreeMap<StreamId, SeqNr>,
    handed: BTreeSet<u64>,
    /// Processed but unconfirmed.
    done: Vec<DeliveryHandle>,
}

struct Simulation {
    world: World<Event>,
    consumer_settings: ShardingConsumerSettings,
    storing_settings: StoringSettings,
    settings: DeliverySettings,
    without: Without,
    chunks: Chunks,
    durable: Option<Durable<Frames<u64>>>,
    producers: BTreeMap<u64, Producer>,
    /// The number of the current producer; lower ones were left behind.
    current: u64,
    consumer: Consumer,
    senders: Senders,
    /// The content of each accepted number of each stream.
    contents: BTreeMap<(StreamId, SeqNr), u64>,
    /// How often each message was handed to a consumer for the first time.
    handed: BTreeMap<u64, u32>,
    processed: BTreeSet<u64>,
    poisoned: BTreeSet<u64>,
    sent: u64,
    messages: u64,
    deaths: u64,
    processing: Duration,
    confirms_all: bool,
    faults: bool,
}

pub(crate) fn run(seed: u64, without: Without) -> Result<(), String> {
    Simulation::new(seed, without).run()
}

fn producer_ref(number: u64) -> ControllerRef {
    ControllerRef {
        node: "p:1#1".parse().expect("an address"),
        path: format!("delivery/p{number}").into(),
        instance: number,
    }
}

fn consumer_ref(number: u64) -> ControllerRef {
    ControllerRef { node: "c:1#1".parse().expect("an address"), path: "delivery/c".into(), instance: number }
}

fn consumer(settings: &ShardingConsumerSettings, number: u64) -> Consumer {
    let machine = ConsumerController::new(ConsumerKind::PointToPoint, settings.clone());
    let (last, handed, done) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    Consumer { number, machine, tick_at: None, last, handed, done }
}

impl Simulation {
    fn new(seed: u64, without: Without) -> Self {
        let mut world = World::new(seed);
        let mut settings = draws::of_link(&mut world);
        settings.consumer.max_delivery_attempts = [0, 3][world.pick(2)];
        let mut consumer_settings = settings.consumer(LinkMode::PointToPoint);
        Arc::make_mut(&mut consumer_settings.link).omissions = without.omissions();
        let storing_settings = draws::storing(&mut world);
        let mut simulation = Self {
            consumer: consumer(&consumer_settings, 1),
            consumer_settings,
            storing_settings,
            settings,
            without,
            chunks: Chunks([1, 1, 3, 7][world.pick(4)]),
            durable: world.chance(0.6).then(|| Durable::new(Store::new(STREAM, without.claims))),
            producers: BTreeMap::new(),
            current: 0,
            senders: Senders::default(),
            contents: BTreeMap::new(),
            handed: BTreeMap::new(),
            processed: BTreeSet::new(),
            poisoned: BTreeSet::new(),
            sent: 0,
            messages: world.rng.random_range(10..=60),
            deaths: 0,
            processing: Duration::from_millis(world.rng.random_range(0..=40)),
            confirms_all: world.chance(0.5),
            faults: true,
            world,
        };
        simulation.plan();
        simulation
    }

    /// Schedules random deaths, stops and restarts; none in a quarter of the runs.
    fn plan(&mut self) {
        let most = if self.world.chance(0.25) { 0 } else { 2 };
        for event in [
            Event::KillProducer,
            Event::CloseProducer,
            Event::KillConsumer,
            Event::StopConsumer,
            Event::RestartConsumer,
            Event::StartAgain,
        ] {
            for _ in 0..self.world.rng.random_range(0..=most) {
                let at = self.world.upto(FAULTS_END);
                self.world.after(at, event.clone());
            }
        }
        self.world.after(FAULTS_END, Event::FaultsEnd);
        self.world.after(FAULTS_END + Duration::from_secs(3), Event::EndOrphans);
        self.world.after(Duration::ZERO, Event::Send);
    }

    fn run(mut self) -> Result<(), String> {
        self.start_producer()?;
        self.start_consumer()?;
        while let Some(event) = self.world.next() {
            self.on_event(event)?;
            if !self.faults && self.is_done() {
                return self.check();
            }
            if self.world.elapsed() > FAULTS_END + Duration::from_secs(60) {
                let stats: Vec<_> = self.producers.values().map(|of| of.machine.stats()).collect();
                return Err(format!("I7: no progress after the faults: {stats:?}, {} sent", self.sent));
            }
        }
        Err("I7: nothing is scheduled any more, and not all is done".to_owned())
    }

    fn is_done(&self) -> bool {
        let is_idle = |producer: &Producer| {
            let stats = producer.machine.stats();
            let is_open = matches!(producer.machine.storing_state(), StoringState::Open | StoringState::InMemory);
            producer.has_ended || (stats.unconfirmed == 0 && stats.waiting == 0 && is_open)
        };
        self.sent == self.messages
            && !self.senders.are_waiting()
            && self.producers.values().all(is_idle)
            && self.durable.as_ref().is_none_or(Durable::is_settled)
    }

    fn check(mut self) -> Result<(), String> {
        let due: Vec<u64> = match &self.durable {
            Some(durable) => durable.stored(""),
            None => self.senders.accepted(),
        };
        let is_done = |content: &u64| self.processed.contains(content) || self.poisoned.contains(content);
        if let Some(content) = due.iter().find(|content| !is_done(content)) {
            return Err(format!("I1: message {content} was accepted, or stored, and never processed"));
        }
        if let Some((content, _)) = self.handed.iter().find(|(_, times)| **times > 1 && self.deaths == 0) {
            return Err(format!("I3: message {content} was handed out twice, and nothing died"));
        }
        self.durable.as_ref().map_or(Ok(()), Durable::check)?;
        self.senders.check()?;
        let took = self.world.elapsed().saturating_sub(FAULTS_END);
        // The timeout of a load grows up to sixteen full rounds of attempts.
        let load = self.storing_settings.request_timeout * self.storing_settings.retry_attempts * 16;
        let of_store = if self.durable.is_some() { load + Duration::from_secs(5) } else { Duration::ZERO };
        let frames: u64 = (1..=self.messages).map(|content| self.chunks.of(content)).sum();
        let per_frame = self.processing * 2 + self.world.link.max_delay * 8;
        let bound = Duration::from_secs(5) + per_frame * frames as u32 + of_store;
        if took > bound {
            return Err(format!("I7: it took {took:?} to settle, {bound:?} is the most"));
        }
        self.rest()
    }

    /// I9: requests for room get as many permits as there is room, and returned permits free the room.
    fn rest(&mut self) -> Result<(), String> {
        // A consumer that was lost at the end is registered again by then.
        let until = self.world.now + Duration::from_secs(5);
        while self.world.now < until {
            let Some(event) = self.world.next() else { break };
            self.on_event(event)?;
        }
        let (session, room) = (self.present().session, self.present().machine.room());
        let before = self.senders.permits();
        let tickets: Vec<u64> = (0..=room).map(|_| self.senders.ticket(self.current, SenderRequest::Room)).collect();
        for ticket in &tickets {
            self.tell_producer(self.current, Input::Reserve { session, ticket: *ticket })?;
        }
        let given = self.senders.permits() - before;
        for ticket in tickets.into_iter().rev() {
            self.tell_producer(self.current, Input::Withdraw { ticket })?;
        }
        let after = self.present().machine.room();
        if room == 0 || (given, after) != (room, room) {
            return Err(format!("I9: of room for {room}, {given} permits were given, and {after} are free again"));
        }
        Ok(())
    }

    fn present(&self) -> &Producer {
        &self.producers[&self.current]
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Send if self.sent < self.messages => self.send()?,
            Event::Permitted(ticket) => self.use_permit(ticket)?,
            Event::GiveUp(ticket) => {
                if let Some((producer, content)) = self.senders.give_up(ticket) {
                    if let Some(durable) = &mut self.durable {
                        durable.withdraw(content);
                    }
                    self.tell_producer(producer, Input::Withdraw { ticket })?;
                }
            }
            Event::StartAgain => {
                let number = self.current;
                if let Some(producer) = self.producers.get_mut(&number) {
                    producer.session += 1;
                    let session = producer.session;
                    self.tell_producer(number, Input::Start { session })?;
                }
            }
            Event::Down { to, batch } if to == self.consumer.number => {
                self.tell_consumer(consumer_controller::Input::Batch(batch))?;
            }
            Event::Stopped { to, message } if to == self.consumer.number => {
                self.tell_consumer(consumer_controller::Input::ProducerStopped(message))?;
            }
            // A message to a dead controller has no recipient.
            Event::Up(message) => self.tell_producer(message.to.instance, Input::Received(message))?,
            Event::ProducerTick(number) => {
                if let Some(producer) = self.producers.get_mut(&number) {
                    producer.tick_at = None;
                    self.tell_producer(number, Input::Tick)?;
                }
            }
            Event::ConsumerTick(number) if number == self.consumer.number => {
                self.consumer.tick_at = None;
                self.tell_consumer(consumer_controller::Input::Tick)?;
            }
            Event::Processed { consumer, handle, content } if consumer == self.consumer.number => {
                self.processed(handle, content)?;
            }
            Event::ConfirmAll(number) if number == self.consumer.number => {
                let done = std::mem::take(&mut self.consumer.done);
                self.tell_consumer(consumer_controller::Input::ConfirmAll(done))?;
            }
            Event::Queue { producer, id, call, outcome } => self.queue(producer, id, call, outcome)?,
            Event::KillProducer => self.kill_producer()?,
            Event::CloseProducer => {
                self.deaths += 1;
                self.tell_producer(self.current, Input::Close)?;
            }
            Event::KillConsumer => self.replace_consumer()?,
            Event::StopConsumer => self.tell_consumer(consumer_controller::Input::DeliverThenStop)?,
            Event::RestartConsumer => {
                self.deaths += 1;
                self.tell_consumer(consumer_controller::Input::Start(Dedupe::none()))?;
            }
            Event::EndOrphans => {
                let present = consumer_ref(self.consumer.number);
                let is_orphan = |of: &Producer| of.machine.consumer() != Some(&present) && !of.has_ended;
                let orphans = self.producers.iter().filter(|(number, of)| **number != self.current && is_orphan(of));
                for number in orphans.map(|(number, _)| *number).collect::<Vec<_>>() {
                    self.end(number);
                }
            }
            Event::FaultsEnd => {
                self.faults = false;
                self.world.link = self.world.link.without_faults();
            }
            _ => {}
        }
        Ok(())
    }

    // ---- senders --------------------------------------------------------------------------------

    fn send(&mut self) -> Result<(), String> {
        self.sent += 1;
        let content = self.sent;
        let pause = self.world.upto(Duration::from_millis(60));
        self.world.after(pause, Event::Send);
        if self.world.chance(0.25) {
            let (ticket, session) =
                (self.senders.ticket(self.current, SenderRequest::Permit(content)), self.present().session);
            return self.tell_producer(self.current, Input::Reserve { session, ticket });
        }
        let waits = self.world.chance(0.9);
        self.admit(content, waits)
    }

    /// Sends a message by the current producer, or sometimes by a former one that is still alive.
    fn admit(&mut self, content: u64, waits: bool) -> Result<(), String> {
        let mut left_behind = self.producers.iter().filter(|(number, of)| **number != self.current && !of.has_ended);
        let left_behind = left_behind.next_back().map(|(number, _)| *number);
        let number = left_behind.filter(|_| self.world.chance(0.3)).unwrap_or(self.current);
        let ticket = self.senders.ticket(number, SenderRequest::Message(content));
        if let Some(durable) = &mut self.durable {
            durable.submit(content, number);
        }
        if self.world.chance(0.1) {
            let patience = self.world.upto(Duration::from_millis(100));
            self.world.after(patience, Event::GiveUp(ticket));
        }
        let (message, session) = (self.message(content), self.producers[&number].session);
        self.tell_producer(number, Input::Admit { session, ticket, message, waits })
    }

    /// A sender uses its permit, or returns it and sends its message without it.
    fn use_permit(&mut self, ticket: u64) -> Result<(), String> {
        let Some((producer, content)) = self.senders.take_permit(ticket) else { return Ok(()) };
        if self.world.chance(0.25) {
            self.tell_producer(producer, Input::Withdraw { ticket })?;
            return self.admit(content, true);
        }
        self.senders.uses_permit(ticket, content);
        if let Some(durable) = &mut self.durable {
            durable.submit(content, producer);
        }
        let message = self.message(content);
        self.tell_producer(producer, Input::Use { permit: ticket, ticket, message })
    }

    fn message(&mut self, content: u64) -> Message<u64> {
        Message { frames: self.chunks.cut(content), bytes: 100, ack: self.world.chance(0.3) }
    }

    fn refused(&mut self, ticket: u64, outcome: SenderOutcome) -> Result<(), String> {
        match self.senders.refused(ticket)? {
            SenderRequest::Message(content) => {
                self.durable.as_mut().map_or(Ok(()), |durable| durable.record(content, outcome))
            }
            SenderRequest::Permit(content) => self.admit(content, true),
            SenderRequest::Room => Ok(()),
        }
    }

    // ---- the consumer ---------------------------------------------------------------------------

    fn start_consumer(&mut self) -> Result<(), String> {
        self.tell_consumer(consumer_controller::Input::Start(Dedupe::none()))?;
        self.register()
    }

    /// The consumer dies, or has ended: another one replaces it.
    fn replace_consumer(&mut self) -> Result<(), String> {
        self.deaths += 1;
        self.consumer = consumer(&self.consumer_settings, self.consumer.number + 1);
        self.start_consumer()
    }

    /// The application connects the two: from the consumer's side, and sometimes also from the producer's.
    fn register(&mut self) -> Result<(), String> {
        self.tell_consumer(consumer_controller::Input::RegisterTo(producer_ref(self.current)))?;
        if self.world.chance(0.3) {
            self.tell_producer(self.current, Input::RegisterConsumer(consumer_ref(self.consumer.number)))?;
        }
        Ok(())
    }

    fn is_poison(&self, content: u64) -> bool {
        self.consumer_settings.link.max_delivery_attempts > 0 && content.is_multiple_of(11)
    }

    fn processed(&mut self, handle: DeliveryHandle, content: u64) -> Result<(), String> {
        if self.faults && self.world.chance(0.05) || self.is_poison(content) {
            return self.tell_consumer(consumer_controller::Input::Abandon(handle, None));
        }
        self.processed.insert(content);
        if !self.confirms_all {
            return self.tell_consumer(consumer_controller::Input::Confirm(handle));
        }
        self.consumer.done.push(handle);
        if self.consumer.done.len() == 1 {
            let pause = self.world.upto(Duration::from_millis(30));
            self.world.after(pause, Event::ConfirmAll(self.consumer.number));
        }
        Ok(())
    }

    fn tell_consumer(&mut self, input: consumer_controller::Input<u64>) -> Result<(), String> {
        let mut effects = Vec::new();
        let ticks = matches!(input, consumer_controller::Input::Tick);
        self.consumer.machine.handle(self.world.now, input, &mut effects);
        if ticks {
            assert_moved("consumer", self.world.now, self.consumer.machine.next_deadline());
        }
        let mut has_stopped = false;
        for effect in effects {
            match effect {
                sharding_consumer::Effect::Deliver { handle, parts } => self.deliver(handle, &parts)?,
                sharding_consumer::Effect::Reply { to, epoch, message } => {
                    let message = UpstreamMessage { from: consumer_ref(self.consumer.number), to, epoch, message };
                    let late = self.faults && self.world.chance(0.03);
                    let extra = if late { self.world.upto(Duration::from_secs(2)) } else { Duration::ZERO };
                    self.world.send(&Event::Up(message), extra);
                }
                sharding_consumer::Effect::Suppressed(id) => {
                    let content = self.content(id.stream_id, id.seq_nr)?;
                    if !self.processed.contains(&content) && !self.poisoned.contains(&content) {
                        return Err(format!("I1: {content} was suppressed, and never processed"));
                    }
                }
                sharding_consumer::Effect::Poisoned { id, attempts } => {
                    // Each new value of the consumer adds one attempt.
                    if attempts < self.consumer_settings.link.max_delivery_attempts {
                        return Err(format!("{} was given up after {attempts} attempts", id.seq_nr));
                    }
                    let content = self.content(id.stream_id, id.seq_nr)?;
                    self.poisoned.insert(content);
                }
                sharding_consumer::Effect::Stopped => has_stopped = true,
                _ => {}
            }
        }
        if has_stopped {
            return self.replace_consumer();
        }
        let consumer = &mut self.consumer;
        let next = consumer.machine.next_deadline();
        if let Some(at) = next.filter(|at| consumer.tick_at.is_none_or(|tick| *at < tick)) {
            consumer.tick_at = Some(at);
            self.world.at(at, Event::ConsumerTick(consumer.number));
        }
        Ok(())
    }

    fn deliver(&mut self, handle: DeliveryHandle, parts: &Frames<u64>) -> Result<(), String> {
        let content = self.chunks.joined(parts)?;
        let (stream, total) = (handle.id.stream_id, handle.id.seq_nr);
        if self.content(stream, total)? != content {
            return Err(format!("{total} was delivered with the content of {content}"));
        }
        if self.consumer.handed.insert(handle.key.number) {
            match self.consumer.last.insert(stream, total) {
                Some(last) if last >= total => return Err(format!("I2, I4: {total} was handed out after {last}")),
                _ => *self.handed.entry(content).or_default() += 1,
            }
        }
        let took = self.world.upto(self.processing);
        self.world.after(took, Event::Processed { consumer: self.consumer.number, handle, content });
        Ok(())
    }

    /// The content of a number.
    fn content(&self, stream: StreamId, total: SeqNr) -> Result<u64, String> {
        let content = match &self.durable {
            Some(durable) => durable.store.ever().get(&total.get()).map(|(_, content)| *content),
            None => self.contents.get(&(stream, total)).copied(),
        };
        content.ok_or_else(|| format!("{total} of {stream} was never accepted"))
    }

    // ---- producers ------------------------------------------------------------------------------

    /// Every in-memory producer has a stream of its own.
    fn stream(&self, number: u64) -> StreamId {
        if self.durable.is_some() { STREAM } else { StreamId(u128::from(100 + number)) }
    }

    fn start_producer(&mut self) -> Result<(), String> {
        self.current += 1;
        let number = self.current;
        let settings = PointToPointSettings {
            producer_id: ProducerId::new("p").expect("a name"),
            controller: producer_ref(number),
            stream: Some((self.stream(number), Epoch::FIRST)),
            resend_first_interval: self.settings.producer.resend_first_interval,
            resend_first_unconfirmed_idle_timeout: self.settings.producer.resend_first_unconfirmed_idle_timeout,
            clock: (1_000_000, self.world.now),
            omissions: self.without.omissions(),
        };
        let storing = match &mut self.durable {
            Some(durable) => {
                durable.writers.insert(number, Writer::new(producer_ref(number)));
                Storing::durable(self.storing_settings.clone())
            }
            None => Storing::in_memory(),
        };
        let mut effects = Vec::new();
        let machine = PointToPoint::new(settings, storing, self.world.now, &mut effects);
        self.producers.insert(number, Producer { machine, session: 1, tick_at: None, has_ended: false });
        self.apply_effects(number, effects)?;
        self.tell_producer(number, Input::Start { session: 1 })
    }

    /// The next producer takes over. The former one may live on.
    fn kill_producer(&mut self) -> Result<(), String> {
        self.deaths += 1;
        let is_open = self.present().machine.storing_state() == StoringState::Open;
        let lives_on = is_open && self.world.chance(0.4);
        if !lives_on {
            self.end(self.current);
        }
        self.start_producer()?;
        self.register()
    }

    /// The process of a producer dies.
    fn end(&mut self, number: u64) {
        self.producers.remove(&number);
        if let Some(durable) = &mut self.durable {
            durable.kill(number);
        }
        self.senders.producer_died(number);
    }

    fn tell_producer(&mut self, number: u64, input: Input<u64>) -> Result<(), String> {
        let Some(producer) = self.producers.get_mut(&number) else { return Ok(()) };
        let mut effects = Vec::new();
        let ticks = matches!(input, Input::Tick);
        producer.machine.handle(self.world.now, input, &mut effects);
        if ticks {
            assert_moved("producer", self.world.now, producer.machine.next_deadline());
        }
        self.apply_effects(number, effects)
    }

    fn apply_effects(&mut self, number: u64, effects: Vec<Effect<u64>>) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::Transmit { to, header, message } => {
                    if let Some(durable) = &self.durable {
                        durable.transmitted(message.frame.total)?;
                    }
                    let batch = SequencedBatch { header, frames: vec![message] };
                    self.world.send(&Event::Down { to: to.instance, batch }, Duration::ZERO);
                }
                Effect::Stop { to, message } => {
                    self.world.send(&Event::Stopped { to: to.instance, message }, Duration::ZERO);
                }
                Effect::Call { id, call } => self.call(number, id, call),
                Effect::Permitted { ticket, .. } => {
                    self.senders.permitted(ticket);
                    let pause = self.world.upto(Duration::from_millis(40));
                    self.world.after(pause, Event::Permitted(ticket));
                }
                Effect::Accepted { ticket, total } => self.accepted(number, ticket, total)?,
                Effect::Confirmed { ticket, total } => {
                    let content = self.content(self.stream(number), total)?;
                    if !self.processed.contains(&content) && !self.poisoned.contains(&content) {
                        return Err(format!("I8: {total} is confirmed and was not processed"));
                    }
                    self.senders.confirmed_as(ticket, content)?;
                }
                Effect::Refused { ticket, .. } => self.refused(ticket, SenderOutcome::NotStored)?,
                Effect::Unknown { ticket, .. } => self.refused(ticket, SenderOutcome::Unknown)?,
                Effect::Failed(Failure::Fenced { .. }) if number != self.current => {}
                Effect::Undelivered { ticket: Some(ticket), .. } if self.durable.is_none() => {
                    self.senders.undelivered(ticket)?;
                }
                Effect::Closed if number == self.current => {
                    self.end(number);
                    self.start_producer()?;
                    return self.register();
                }
                Effect::Undelivered { .. } | Effect::Failed(_) => return Err(format!("producer {number}: {effect:?}")),
                // A former producer that lived on was fenced, or was being closed when it was left behind.
                Effect::Closed => {
                    if let Some(producer) = self.producers.get_mut(&number) {
                        producer.has_ended = true;
                    }
                    self.senders.producer_ended(number);
                }
            }
        }
        let Some(producer) = self.producers.get_mut(&number) else { return Ok(()) };
        let next = producer.machine.next_deadline();
        if let Some(at) = next.filter(|at| producer.tick_at.is_none_or(|tick| *at < tick)) {
            producer.tick_at = Some(at);
            self.world.at(at, Event::ProducerTick(number));
        }
        Ok(())
    }

    fn accepted(&mut self, number: u64, ticket: u64, total: SeqNr) -> Result<(), String> {
        let content = self.senders.accepted_as(ticket)?;
        let number_of = (self.stream(number), total);
        if self.contents.insert(number_of, content).is_some_and(|other| other != content) {
            return Err(format!("{total} is the number of two messages"));
        }
        self.durable.as_mut().map_or(Ok(()), |durable| durable.accepted(content, total))
    }

    /// Makes a call of a producer's queue.
    fn call(&mut self, producer: u64, id: u64, call: Call<Frames<u64>>) {
        let Some(durable) = &mut self.durable else { return };
        let (at, outcome) = durable.call(&mut self.world, self.faults);
        self.world.at(at, Event::Queue { producer, id, call, outcome });
    }

    fn queue(&mut self, producer: u64, id: u64, call: Call<Frames<u64>>, outcome: CallOutcome) -> Result<(), String> {
        let is_alive = self.producers.contains_key(&producer);
        let Some(durable) = &mut self.durable else { return Ok(()) };
        match durable.run_call(producer, is_alive, call, outcome) {
            Some(answer) => self.tell_producer(producer, Input::Answered { call: id, answer }),
            None => Ok(()),
        }
    }
}
