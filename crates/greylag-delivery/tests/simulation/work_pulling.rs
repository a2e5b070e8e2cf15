//! One producer of work, and workers that come, die silently or in order, and are listed late.
//!
//! Every accepted message is processed by some worker (I1), under one number; senders get one true answer, and not
//! before their message was stored, or processed without storing (I8, I10); afterwards no state is left, and all room
//! is free (I9). A durable producer dies, too, and its successor continues its queue, whose store fails. Permits are
//! taken, too, and returned; senders give up waiting, or are replaced. Some messages fail at every attempt and are
//! given up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_delivery::machine::consumer_controller::{self, ConsumerController, ConsumerKind};
use greylag_delivery::machine::controller::{Controller, Effect, Input, Message};
use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_consumer::{self, DeliveryHandle, ShardingConsumerSettings};
use greylag_delivery::machine::storing::{Call, Storing, StoringSettings};
use greylag_delivery::machine::work_pulling::{ListedWorker, WorkPulling, WorkPullingSettings, WorkerSelection};
use greylag_delivery::{
    ControllerRef, Dedupe, DeliverySettings, Epoch, Omissions, ProducerId, SeqNr, SequencedBatch, StreamId,
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
const STREAM: StreamId = StreamId(5);

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
    Up(UpstreamMessage),
    ProducerTick(u64),
    WorkerTick(u64),
    Processed {
        worker: u64,
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
    /// The producer gets the present listing of workers.
    List,
    NewWorker,
    KillWorker,
    /// A dead worker is taken off the listing.
    Delist(u64),
    KillProducer,
    FaultsEnd,
}

struct Worker {
    machine: ConsumerController<u64>,
    tick_at: Option<Instant>,
    alive: bool,
    /// Processed but unconfirmed.
    done: Vec<DeliveryHandle>,
}

struct Simulation {
    world: World<Event>,
    settings: DeliverySettings,
    worker_settings: ShardingConsumerSettings,
    storing_settings: StoringSettings,
    selection: WorkerSelection,
    without: Without,
    chunks: Chunks,
    durable: Option<Durable<Frames<u64>>>,
    producer: WorkPulling<u64>,
    number: u64,
    session: u64,
    producer_tick: Option<Instant>,
    workers: BTreeMap<u64, Worker>,
    listed: BTreeSet<u64>,
    next_worker: u64,
    senders: Senders,
    /// The content of each stored or accepted number.
    contents: BTreeMap<u64, u64>,
    processed: BTreeSet<u64>,
    poisoned: BTreeSet<u64>,
    sent: u64,
    messages: u64,
    processing: Duration,
    confirms_all: bool,
    faults: bool,
}

pub(crate) fn run(seed: u64, without: Without) -> Result<(), String> {
    Simulation::new(seed, without).run()
}

fn worker_ref(number: u64) -> ControllerRef {
    ControllerRef { node: "w:1#1".parse().expect("an address"), path: "delivery/w".into(), instance: number }
}

impl Simulation {
    fn new(seed: u64, without: Without) -> Self {
        let mut world = World::new(seed);
        let mut settings = DeliverySettings::test();
        settings.work_pulling.worker_window = [1, 2, 3, 8][world.pick(4)];
        settings.work_pulling.buffer_size = [1, 3, 100][world.pick(3)];
        settings.work_pulling.worker_first_timeout = Duration::from_millis(1500);
        settings.work_pulling.work_timeout = [None, Some(Duration::from_millis(700))][world.pick(2)];
        settings.consumer.max_outstanding_deliveries = [1, 2, 5][world.pick(3)];
        draws::timers(&mut world, &mut settings);
        settings.consumer.max_delivery_attempts = [0, 3][world.pick(2)];
        let selection = [WorkerSelection::LeastInFlight, WorkerSelection::Random][world.pick(2)];
        let (durable, messages) = (world.chance(0.5), world.rng.random_range(10..=60));
        let processing = Duration::from_millis(world.rng.random_range(0..=40));
        let mut worker_settings = settings.worker();
        Arc::make_mut(&mut worker_settings.link).omissions = without.omissions();
        let storing_settings = draws::storing(&mut world);
        let unused = producer_settings(&settings, selection, 0, world.now);
        let producer = WorkPulling::new(unused, Storing::in_memory(), world.now, &mut Vec::new());
        let mut simulation = Self {
            settings,
            worker_settings,
            storing_settings,
            selection,
            without,
            chunks: Chunks([1, 1, 3, 7][world.pick(4)]),
            durable: durable.then(|| Durable::new(Store::new(STREAM, without.claims))),
            producer,
            number: 0,
            session: 1,
            producer_tick: None,
            workers: BTreeMap::new(),
            listed: BTreeSet::new(),
            next_worker: 1,
            senders: Senders::default(),
            contents: BTreeMap::new(),
            processed: BTreeSet::new(),
            poisoned: BTreeSet::new(),
            sent: 0,
            messages,
            processing,
            confirms_all: world.chance(0.5),
            faults: true,
            world,
        };
        simulation.plan();
        simulation
    }

    fn plan(&mut self) {
        for _ in 0..self.world.rng.random_range(1..=3) {
            self.world.after(Duration::ZERO, Event::NewWorker);
        }
        for event in [Event::NewWorker, Event::KillWorker, Event::KillWorker, Event::StartAgain] {
            for _ in 0..self.world.rng.random_range(0..=2) {
                let at = self.world.upto(FAULTS_END);
                self.world.after(at, event.clone());
            }
        }
        if self.durable.is_some() {
            for _ in 0..self.world.rng.random_range(0..=3) {
                let at = self.world.upto(FAULTS_END);
                self.world.after(at, Event::KillProducer);
            }
        }
        self.world.after(FAULTS_END, Event::FaultsEnd);
        self.world.after(Duration::ZERO, Event::Send);
    }

    fn run(mut self) -> Result<(), String> {
        self.start_producer()?;
        while let Some(event) = self.world.next() {
            self.on_event(event)?;
            let stats = self.producer.stats();
            let is_quiet = stats.unconfirmed == 0 && stats.waiting == 0 && !self.senders.are_waiting();
            // A producer that was just started still loads its queue.
            let is_quiet = is_quiet && self.producer.room() > 0;
            let is_stored = self.durable.as_ref().is_none_or(Durable::is_settled);
            if !self.faults && self.sent == self.messages && is_quiet && is_stored {
                return self.check();
            }
            if self.world.elapsed() > FAULTS_END + Duration::from_secs(60) {
                return Err(format!("I7: {stats:?}, {:?}", self.producer.workers()));
            }
        }
        Err("I7: nothing is scheduled any more, and not all is done".to_owned())
    }

    fn check(mut self) -> Result<(), String> {
        let stored: Vec<u64> = match &self.durable {
            Some(durable) => durable.stored(""),
            None => self.senders.accepted(),
        };
        let is_done = |content: &u64| self.processed.contains(content) || self.poisoned.contains(content);
        if let Some(content) = stored.iter().find(|content| !is_done(content)) {
            return Err(format!("I1: message {content} was accepted, or stored, and never processed"));
        }
        self.durable.as_ref().map_or(Ok(()), Durable::check)?;
        self.senders.check()?;
        let workers = self.producer.workers();
        if (workers.in_flight, workers.pending) != (0, 0) {
            return Err(format!("I9: {workers:?}"));
        }
        let capacity = self.settings.work_pulling.buffer_size as u64;
        if self.producer.room() != capacity {
            return Err(format!("I9: there is room for {} of {capacity}", self.producer.room()));
        }
        let before = self.senders.permits();
        for _ in 0..=capacity {
            let ticket = self.senders.ticket(self.number, SenderRequest::Room);
            self.tell_producer(Input::Reserve { session: self.session, ticket })?;
        }
        match self.senders.permits() - before {
            permits if permits == capacity => Ok(()),
            permits => Err(format!("I9: {permits} permits are given where there is room for {capacity}")),
        }
    }

    fn start_producer(&mut self) -> Result<(), String> {
        self.number += 1;
        let settings = producer_settings(&self.settings, self.selection, self.number, self.world.now);
        let settings = WorkPullingSettings { omissions: self.without.omissions(), ..settings };
        let storing = match &mut self.durable {
            Some(durable) => {
                let controller =
                    ControllerRef { node: settings.node.clone(), path: settings.path.clone(), instance: 0 };
                durable.writers.insert(self.number, Writer::new(controller));
                Storing::durable(self.storing_settings.clone())
            }
            None => Storing::in_memory(),
        };
        let mut effects = Vec::new();
        self.producer = WorkPulling::new(settings, storing, self.world.now, &mut effects);
        self.producer_tick = None;
        self.session = 1;
        self.apply_effects(effects)?;
        self.tell_producer(Input::Start { session: 1 })?;
        self.world.after(Duration::ZERO, Event::List);
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Send if self.sent < self.messages => self.send()?,
            Event::Permitted(ticket) => self.use_permit(ticket)?,
            Event::GiveUp(ticket) => {
                if let Some((_, content)) = self.senders.give_up(ticket) {
                    if let Some(durable) = &mut self.durable {
                        durable.withdraw(content);
                    }
                    self.tell_producer(Input::Withdraw { ticket })?;
                }
            }
            Event::StartAgain => {
                self.session += 1;
                self.tell_producer(Input::Start { session: self.session })?;
            }
            Event::Down { to, batch } => self.tell_worker(to, consumer_controller::Input::Batch(batch))?,
            Event::Up(message) => self.tell_producer(Input::Received(message))?,
            Event::ProducerTick(number) if number == self.number => {
                self.producer_tick = None;
                self.tell_producer(Input::Tick)?;
                assert_moved("producer", self.world.now, self.producer.next_deadline());
            }
            Event::WorkerTick(number) => {
                if let Some(worker) = self.workers.get_mut(&number) {
                    worker.tick_at = None;
                }
                self.tell_worker(number, consumer_controller::Input::Tick)?;
            }
            Event::Processed { worker, handle, content } => self.processed(worker, handle, content)?,
            Event::ConfirmAll(number) => {
                if let Some(worker) = self.workers.get_mut(&number) {
                    let done = std::mem::take(&mut worker.done);
                    self.tell_worker(number, consumer_controller::Input::ConfirmAll(done))?;
                }
            }
            Event::Queue { producer, id, call, outcome } => self.queue(producer, id, call, outcome)?,
            Event::List => {
                let listed = self.listed.iter();
                let listed = listed.map(|number| ListedWorker { worker: worker_ref(*number), selectable: true });
                self.tell_producer(Input::Workers(listed.collect()))?;
            }
            Event::NewWorker => self.new_worker()?,
            Event::KillWorker => self.kill_worker()?,
            Event::Delist(number) => {
                self.listed.remove(&number);
                self.list();
            }
            Event::KillProducer => {
                if let Some(durable) = &mut self.durable {
                    durable.kill(self.number);
                }
                self.senders.producer_died(self.number);
                self.start_producer()?;
            }
            Event::FaultsEnd => {
                self.faults = false;
                self.world.link = self.world.link.without_faults();
                if !self.workers.values().any(|worker| worker.alive) {
                    self.new_worker()?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    // ---- senders --------------------------------------------------------------------------------

    fn send(&mut self) -> Result<(), String> {
        self.sent += 1;
        let (content, session) = (self.sent, self.session);
        let pause = self.world.upto(Duration::from_millis(60));
        self.world.after(pause, Event::Send);
        if self.world.chance(0.25) {
            let ticket = self.senders.ticket(self.number, SenderRequest::Permit(content));
            return self.tell_producer(Input::Reserve { session, ticket });
        }
        let waits = self.world.chance(0.9);
        self.admit(content, waits)
    }

    fn admit(&mut self, content: u64, waits: bool) -> Result<(), String> {
        let ticket = self.senders.ticket(self.number, SenderRequest::Message(content));
        if let Some(durable) = &mut self.durable {
            durable.submit(content, self.number);
        }
        if self.world.chance(0.1) {
            let patience = self.world.upto(Duration::from_millis(100));
            self.world.after(patience, Event::GiveUp(ticket));
        }
        let message = self.message(content);
        self.tell_producer(Input::Admit { session: self.session, ticket, message, waits })
    }

    /// A sender uses its permit, or returns it and sends its message without it.
    fn use_permit(&mut self, ticket: u64) -> Result<(), String> {
        let Some((_, content)) = self.senders.take_permit(ticket) else { return Ok(()) };
        if self.world.chance(0.25) {
            self.tell_producer(Input::Withdraw { ticket })?;
            return self.admit(content, true);
        }
        self.senders.uses_permit(ticket, content);
        if let Some(durable) = &mut self.durable {
            durable.submit(content, self.number);
        }
        let message = self.message(content);
        self.tell_producer(Input::Use { permit: ticket, ticket, message })
    }

    fn message(&mut self, content: u64) -> Message<u64> {
        Message { frames: self.chunks.cut(content), bytes: 100, ack: self.world.chance(0.3) }
    }

    // ---- workers --------------------------------------------------------------------------------

    /// The listing reaches the producer some time after it changed.
    fn list(&mut self) {
        let delay = self.world.upto(Duration::from_millis(300));
        self.world.after(delay, Event::List);
    }

    fn new_worker(&mut self) -> Result<(), String> {
        let number = self.next_worker;
        self.next_worker += 1;
        let machine = ConsumerController::new(ConsumerKind::Worker, self.worker_settings.clone());
        self.workers.insert(number, Worker { machine, tick_at: None, alive: true, done: Vec::new() });
        self.tell_worker(number, consumer_controller::Input::Start(Dedupe::none()))?;
        self.listed.insert(number);
        self.list();
        Ok(())
    }

    /// A worker dies silently, or stops; it stays listed for a while.
    fn kill_worker(&mut self) -> Result<(), String> {
        let alive: Vec<u64> =
            self.workers.iter().filter(|(_, worker)| worker.alive).map(|(number, _)| *number).collect();
        if alive.is_empty() {
            return Ok(());
        }
        let number = alive[self.world.pick(alive.len())];
        if self.world.chance(0.3) {
            self.tell_worker(number, consumer_controller::Input::Stop)?;
        }
        if let Some(worker) = self.workers.get_mut(&number) {
            worker.alive = false;
        }
        // Some workers are never taken off the listing.
        if self.world.chance(0.7) {
            let delay = self.world.upto(Duration::from_secs(3));
            self.world.after(delay, Event::Delist(number));
        }
        Ok(())
    }

    fn is_poison(&self, content: u64) -> bool {
        self.worker_settings.link.max_delivery_attempts > 0 && content.is_multiple_of(11)
    }

    fn processed(&mut self, number: u64, handle: DeliveryHandle, content: u64) -> Result<(), String> {
        let fails = self.faults && self.world.chance(0.05) || self.is_poison(content);
        let Some(worker) = self.workers.get_mut(&number).filter(|worker| worker.alive) else { return Ok(()) };
        if fails {
            return self.tell_worker(number, consumer_controller::Input::Abandon(handle, None));
        }
        self.processed.insert(content);
        if !self.confirms_all {
            return self.tell_worker(number, consumer_controller::Input::Confirm(handle));
        }
        worker.done.push(handle);
        if worker.done.len() == 1 {
            let pause = self.world.upto(Duration::from_millis(30));
            self.world.after(pause, Event::ConfirmAll(number));
        }
        Ok(())
    }

    fn tell_worker(&mut self, number: u64, input: consumer_controller::Input<u64>) -> Result<(), String> {
        let Some(worker) = self.workers.get_mut(&number).filter(|worker| worker.alive) else { return Ok(()) };
        let mut effects = Vec::new();
        worker.machine.handle(self.world.now, input, &mut effects);
        for effect in effects {
            match effect {
                sharding_consumer::Effect::Deliver { handle, parts } => {
                    let content = self.chunks.joined(&parts)?;
                    if self.content(handle.id.seq_nr)? != content {
                        return Err(format!("{} was delivered with the content of {content}", handle.id.seq_nr));
                    }
                    let took = self.world.upto(self.processing);
                    self.world.after(took, Event::Processed { worker: number, handle, content });
                }
                sharding_consumer::Effect::Reply { to, epoch, message } => {
                    let message = UpstreamMessage { from: worker_ref(number), to, epoch, message };
                    let late = self.faults && self.world.chance(0.03);
                    let extra = if late { self.world.upto(Duration::from_secs(2)) } else { Duration::ZERO };
                    self.world.send(&Event::Up(message), extra);
                }
                sharding_consumer::Effect::Suppressed(id) => return Err(format!("{} was suppressed", id.seq_nr)),
                sharding_consumer::Effect::Poisoned { id, .. } => {
                    let content = self.content(id.seq_nr)?;
                    self.poisoned.insert(content);
                }
                _ => {}
            }
        }
        let Some(worker) = self.workers.get_mut(&number) else { return Ok(()) };
        let next = worker.machine.next_deadline();
        if let Some(at) = next.filter(|at| worker.tick_at.is_none_or(|tick| *at < tick)) {
            worker.tick_at = Some(at);
            self.world.at(at, Event::WorkerTick(number));
        }
        Ok(())
    }

    /// The content of a number.
    fn content(&self, total: SeqNr) -> Result<u64, String> {
        let content = match &self.durable {
            Some(durable) => durable.store.ever().get(&total.get()).map(|(_, content)| *content),
            None => self.contents.get(&total.get()).copied(),
        };
        content.ok_or_else(|| format!("{total} was never accepted"))
    }

    // ---- the producer ---------------------------------------------------------------------------

    fn tell_producer(&mut self, input: Input<u64>) -> Result<(), String> {
        let mut effects = Vec::new();
        self.producer.handle(self.world.now, input, &mut effects);
        self.apply_effects(effects)
    }

    fn apply_effects(&mut self, effects: Vec<Effect<u64>>) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::Transmit { to, header, message } => {
                    if header.ordered {
                        return Err("workers are told of an order".to_owned());
                    }
                    if let Some(durable) = &self.durable {
                        durable.transmitted(message.frame.total)?;
                    }
                    let batch = SequencedBatch { header, frames: vec![message] };
                    self.world.send(&Event::Down { to: to.instance, batch }, Duration::ZERO);
                }
                Effect::Call { id, call } => self.call(id, call),
                Effect::Permitted { ticket, .. } => {
                    self.senders.permitted(ticket);
                    let pause = self.world.upto(Duration::from_millis(40));
                    self.world.after(pause, Event::Permitted(ticket));
                }
                Effect::Accepted { ticket, total } => {
                    let content = self.senders.accepted_as(ticket)?;
                    if self.contents.insert(total.get(), content).is_some_and(|other| other != content) {
                        return Err(format!("{total} is the number of two messages"));
                    }
                    if let Some(durable) = &mut self.durable {
                        durable.accepted(content, total)?;
                    }
                }
                Effect::Confirmed { ticket, total } => {
                    let content = self.content(total)?;
                    if !self.processed.contains(&content) && !self.poisoned.contains(&content) {
                        return Err(format!("I8: {total} is confirmed and no worker has processed it"));
                    }
                    self.senders.confirmed_as(ticket, content)?;
                }
                Effect::Refused { ticket, .. } => self.refused(ticket, SenderOutcome::NotStored)?,
                Effect::Unknown { ticket, .. } => self.refused(ticket, SenderOutcome::Unknown)?,
                Effect::Undelivered { .. } | Effect::Failed(_) => return Err(format!("{effect:?}")),
                Effect::Stop { .. } | Effect::Closed => {}
            }
        }
        let next = self.producer.next_deadline();
        if let Some(at) = next.filter(|at| self.producer_tick.is_none_or(|tick| *at < tick)) {
            self.producer_tick = Some(at);
            self.world.at(at, Event::ProducerTick(self.number));
        }
        Ok(())
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

    /// Makes a call of the producer's queue.
    fn call(&mut self, id: u64, call: Call<Frames<u64>>) {
        let Some(durable) = &mut self.durable else { return };
        let (at, outcome) = durable.call(&mut self.world, self.faults);
        self.world.at(at, Event::Queue { producer: self.number, id, call, outcome });
    }

    fn queue(&mut self, producer: u64, id: u64, call: Call<Frames<u64>>, outcome: CallOutcome) -> Result<(), String> {
        let is_alive = producer == self.number;
        let Some(durable) = &mut self.durable else { return Ok(()) };
        match durable.run_call(producer, is_alive, call, outcome) {
            Some(answer) => self.tell_producer(Input::Answered { call: id, answer }),
            None => Ok(()),
        }
    }
}

/// Every incarnation of the producer has a path of its own.
fn producer_settings(
    settings: &DeliverySettings,
    selection: WorkerSelection,
    number: u64,
    now: Instant,
) -> WorkPullingSettings {
    WorkPullingSettings {
        producer_id: ProducerId::new("p").expect("a name"),
        node: "p:1#1".parse().expect("an address"),
        path: format!("delivery/p{number}").into(),
        stream: Some((STREAM, Epoch::FIRST)),
        resend_first_interval: settings.producer.resend_first_interval,
        resend_first_unconfirmed_idle_timeout: settings.producer.resend_first_unconfirmed_idle_timeout,
        buffer_size: settings.work_pulling.buffer_size,
        selection,
        worker_first_timeout: settings.work_pulling.worker_first_timeout,
        work_timeout: settings.work_pulling.work_timeout,
        seed: number,
        clock: (1_000_000, now),
        omissions: Omissions::default(),
    }
}
