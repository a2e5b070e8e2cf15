//! One producer of work, and workers that come, die silently or in order, and are listed late.
//!
//! Every message that was accepted is processed by some worker (I1), under one number; asks are answered once, and not before
//! their message was stored, or processed where nothing is stored (I8); afterwards nothing is left anywhere, and all room is
//! free again (I9). A durable producer dies, too, and goes on from its queue.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greylag_delivery::machine::consumer_controller::{self, ConsumerController, ConsumerKind};
use greylag_delivery::machine::controller::{Controller, Effect, Input, Message};
use greylag_delivery::machine::producer_link::Frames;
use greylag_delivery::machine::sharding_consumer::{self, DeliveryHandle};
use greylag_delivery::machine::storing::{Answer, Call, Storing};
use greylag_delivery::machine::work_pulling::{ListedWorker, WorkPulling, WorkPullingSettings, WorkerSelection};
use greylag_delivery::queue::{Confirmation, MessageSent, QueueState};
use greylag_delivery::{
    ControllerRef, Dedupe, DeliverySettings, Epoch, ProducerId, SeqNr, SequencedBatch, StreamId, UpstreamMessage,
};
use greylag_testkit::deadlines::assert_moved;
use rand::RngExt;

use super::world::World;

const FAULTS_END: Duration = Duration::from_secs(8);
const STREAM: StreamId = StreamId(5);

#[derive(Debug, Clone)]
enum Event {
    Send,
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
        abandon: bool,
    },
    Answered {
        producer: u64,
        call: u64,
        answer: Answer<Frames<u64>>,
    },
    /// The producer hears of the workers that are listed now.
    List,
    NewWorker,
    KillWorker,
    /// A dead worker is listed no more.
    Delist(u64),
    KillProducer,
    FaultsEnd,
}

struct Worker {
    machine: ConsumerController<u64>,
    tick_at: Option<Instant>,
    alive: bool,
}

/// What a queue keeps; it is as good as its answers.
#[derive(Default)]
struct Queue {
    messages: BTreeMap<u64, MessageSent<Frames<u64>>>,
    current: u64,
    highest: u64,
    epoch: u64,
}

struct Simulation {
    world: World<Event>,
    settings: DeliverySettings,
    selection: WorkerSelection,
    durable: bool,
    producer: WorkPulling<u64>,
    number: u64,
    producer_tick: Option<Instant>,
    queue: Queue,
    workers: BTreeMap<u64, Worker>,
    listed: BTreeSet<u64>,
    next_worker: u64,
    /// The content of each number that was stored or accepted.
    contents: BTreeMap<u64, u64>,
    /// By content, which is the ticket.
    accepted: BTreeMap<u64, SeqNr>,
    processed: BTreeSet<u64>,
    confirmed: BTreeSet<u64>,
    sent: u64,
    messages: u64,
    processing: Duration,
    faults: bool,
}

pub(crate) fn run(seed: u64) -> Result<(), String> {
    Simulation::new(seed).run()
}

fn worker_ref(number: u64) -> ControllerRef {
    ControllerRef { node: "w:1#1".parse().unwrap(), path: "delivery/w".into(), instance: number }
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        let mut settings = DeliverySettings::test();
        settings.work_pulling.worker_window = [1, 2, 3, 8][world.pick(4)];
        settings.work_pulling.buffer_size = [1, 3, 100][world.pick(3)];
        settings.work_pulling.worker_first_timeout = Duration::from_millis(1500);
        settings.work_pulling.work_timeout = [None, Some(Duration::from_millis(700))][world.pick(2)];
        settings.consumer.max_outstanding_deliveries = [1, 2][world.pick(2)];
        settings.consumer.resend_interval_min = Duration::from_millis(200);
        settings.consumer.resend_interval_max = Duration::from_millis(1000);
        settings.consumer.redelivery_backoff = Duration::from_millis(10);
        settings.producer.resend_first_interval = Duration::from_millis(100);
        settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_millis(1000);
        let selection = [WorkerSelection::LeastInFlight, WorkerSelection::Random][world.pick(2)];
        let (durable, messages) = (world.chance(0.5), world.rng.random_range(10..=60));
        let processing = Duration::from_millis(world.rng.random_range(0..=40));
        let storing = Storing::in_memory();
        let producer = WorkPulling::new(
            producer_settings(&settings, selection, 0, world.now),
            storing,
            world.now,
            &mut Vec::new(),
        );
        let mut simulation = Self {
            world,
            settings,
            selection,
            durable,
            producer,
            number: 0,
            producer_tick: None,
            queue: Queue { current: 1, ..Queue::default() },
            workers: BTreeMap::new(),
            listed: BTreeSet::new(),
            next_worker: 1,
            contents: BTreeMap::new(),
            accepted: BTreeMap::new(),
            processed: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            sent: 0,
            messages,
            processing,
            faults: true,
        };
        for _ in 0..simulation.world.rng.random_range(1..=3) {
            simulation.world.after(Duration::ZERO, Event::NewWorker);
        }
        for event in [Event::NewWorker, Event::KillWorker, Event::KillWorker] {
            for _ in 0..simulation.world.rng.random_range(0..=2) {
                let at = simulation.world.upto(FAULTS_END);
                simulation.world.after(at, event.clone());
            }
        }
        if durable {
            for _ in 0..simulation.world.rng.random_range(0..=3) {
                let at = simulation.world.upto(FAULTS_END);
                simulation.world.after(at, Event::KillProducer);
            }
        }
        simulation.world.after(FAULTS_END, Event::FaultsEnd);
        simulation.world.after(Duration::ZERO, Event::Send);
        simulation
    }

    fn run(mut self) -> Result<(), String> {
        self.start_producer()?;
        while let Some(event) = self.world.next() {
            self.on_event(event)?;
            let stats = self.producer.stats();
            let is_quiet = stats.unconfirmed == 0 && stats.waiting == 0 && self.queue.messages.is_empty();
            // A producer that was started just now loads its queue.
            let is_quiet = is_quiet && self.producer.room() > 0;
            if !self.faults && self.sent == self.messages && is_quiet {
                return self.check();
            }
            if self.world.elapsed() > FAULTS_END + Duration::from_secs(60) {
                return Err(format!("I7: {stats:?}, {:?}", self.producer.workers()));
            }
        }
        Err("nothing is scheduled any more".to_owned())
    }

    fn check(&self) -> Result<(), String> {
        let missing: Vec<_> = self.accepted.keys().filter(|message| !self.processed.contains(message)).collect();
        if !missing.is_empty() {
            return Err(format!("I1: {missing:?} were accepted and never processed"));
        }
        let workers = self.producer.workers();
        if (workers.in_flight, workers.pending) != (0, 0) {
            return Err(format!("I9: {workers:?}"));
        }
        if self.producer.room() != self.settings.work_pulling.buffer_size as u64 {
            return Err(format!("I9: there is room for {} of all", self.producer.room()));
        }
        if !self.durable && self.confirmed.len() as u64 != self.messages {
            return Err(format!("I8: {} of {} asks were answered", self.confirmed.len(), self.messages));
        }
        Ok(())
    }

    fn start_producer(&mut self) -> Result<(), String> {
        self.number += 1;
        let storing = if self.durable { Storing::durable(self.settings.storing()) } else { Storing::in_memory() };
        let settings = producer_settings(&self.settings, self.selection, self.number, self.world.now);
        let mut effects = Vec::new();
        self.producer = WorkPulling::new(settings, storing, self.world.now, &mut effects);
        self.producer_tick = None;
        self.carry_out(effects)?;
        self.tell_producer(Input::Start { session: 1 })?;
        self.world.after(Duration::ZERO, Event::List);
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Send if self.sent < self.messages => {
                self.sent += 1;
                let message = Message { frames: Frames::Whole(self.sent), bytes: 8, ack: self.world.chance(0.3) };
                self.tell_producer(Input::Admit { session: 1, ticket: self.sent, message, waits: true })?;
                let pause = self.world.upto(Duration::from_millis(60));
                self.world.after(pause, Event::Send);
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
            Event::Processed { worker, handle, abandon } => {
                let alive = self.workers.get(&worker).is_some_and(|worker| worker.alive);
                if alive && !abandon {
                    self.processed.insert(self.content(handle.id.seq_nr)?);
                }
                self.tell_worker(
                    worker,
                    match abandon {
                        true => consumer_controller::Input::Abandon(handle, None),
                        false => consumer_controller::Input::Confirm(handle),
                    },
                )?;
            }
            Event::Answered { producer, call, answer } if producer == self.number => {
                self.tell_producer(Input::Answered { call, answer })?;
            }
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
            Event::KillProducer => self.start_producer()?,
            Event::FaultsEnd => {
                self.faults = false;
                self.world.link = self.world.link.calm();
                if !self.workers.values().any(|worker| worker.alive) {
                    self.new_worker()?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The listing reaches the producer some time after it changed.
    fn list(&mut self) {
        let delay = self.world.upto(Duration::from_millis(300));
        self.world.after(delay, Event::List);
    }

    fn new_worker(&mut self) -> Result<(), String> {
        let number = self.next_worker;
        self.next_worker += 1;
        let machine = ConsumerController::new(ConsumerKind::Worker, self.settings.worker());
        self.workers.insert(number, Worker { machine, tick_at: None, alive: true });
        self.tell_worker(number, consumer_controller::Input::Start(Dedupe::none()))?;
        self.listed.insert(number);
        self.list();
        Ok(())
    }

    /// One of the workers dies without a word, or stops; it stays listed for a while.
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
        // Some are never taken out of the listing.
        if self.world.chance(0.7) {
            let delay = self.world.upto(Duration::from_secs(3));
            self.world.after(delay, Event::Delist(number));
        }
        Ok(())
    }

    fn content(&self, total: SeqNr) -> Result<u64, String> {
        self.contents.get(&total.get()).copied().ok_or_else(|| format!("{total} was never accepted"))
    }

    fn tell_producer(&mut self, input: Input<u64>) -> Result<(), String> {
        let mut effects = Vec::new();
        self.producer.handle(self.world.now, input, &mut effects);
        self.carry_out(effects)
    }

    fn carry_out(&mut self, effects: Vec<Effect<u64>>) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::Accepted { ticket, total } => {
                    if self.durable && !self.queue.messages.contains_key(&total.get()) {
                        return Err(format!("I10: {total} was accepted and is not stored"));
                    }
                    if self.contents.insert(total.get(), ticket).is_some_and(|content| content != ticket) {
                        return Err(format!("{total} is the number of two messages"));
                    }
                    if self.accepted.insert(ticket, total).is_some() {
                        return Err(format!("I8: {ticket} was accepted twice"));
                    }
                }
                Effect::Confirmed { ticket, total } => {
                    if !self.processed.contains(&ticket) {
                        return Err(format!("I8: {total} is confirmed and no worker has processed it"));
                    }
                    if !self.confirmed.insert(ticket) {
                        return Err(format!("I8: {total} is confirmed twice"));
                    }
                }
                Effect::Transmit { to, header, message } => {
                    if header.ordered {
                        return Err("workers are told of an order".to_owned());
                    }
                    let batch = SequencedBatch { header, frames: vec![message] };
                    self.world.send(&Event::Down { to: to.instance, batch }, Duration::ZERO);
                }
                Effect::Call { id, call } => self.call(id, call),
                Effect::Refused { .. } | Effect::Unknown { .. } | Effect::Undelivered { .. } | Effect::Failed(_) => {
                    return Err(format!("{effect:?}"));
                }
                Effect::Permitted { .. } | Effect::Stop { .. } | Effect::Closed => {}
            }
        }
        let next = self.producer.next_deadline();
        if let Some(at) = next.filter(|at| self.producer_tick.is_none_or(|tick| *at < tick)) {
            self.producer_tick = Some(at);
            self.world.at(at, Event::ProducerTick(self.number));
        }
        Ok(())
    }

    /// What the queue is asked is done at once, and its answer comes later.
    fn call(&mut self, id: u64, call: Call<Frames<u64>>) {
        let queue = &mut self.queue;
        let answer = match call {
            Call::Load => {
                queue.epoch += 1;
                Answer::Loaded(Ok(QueueState {
                    stream_id: STREAM,
                    epoch: Epoch(queue.epoch),
                    current_seq_nr: SeqNr(queue.current),
                    highest_confirmed_seq_nr: SeqNr(queue.highest),
                    confirmed_seq_nr: BTreeMap::new(),
                    unconfirmed: queue.messages.values().cloned().collect(),
                }))
            }
            Call::Store(batch) => {
                for sent in batch {
                    queue.current = sent.seq_nr.get() + 1;
                    self.contents.insert(sent.seq_nr.get(), content_of(&sent.message));
                    queue.messages.insert(sent.seq_nr.get(), sent);
                }
                Answer::Stored(Ok(SeqNr(queue.current - 1)))
            }
            Call::Confirm(confirmations) => {
                for confirmation in confirmations {
                    let Confirmation::Exact { seq_nrs, .. } = confirmation else { continue };
                    for seq_nr in seq_nrs {
                        queue.messages.remove(&seq_nr.get());
                        queue.highest = queue.highest.max(seq_nr.get());
                    }
                }
                Answer::Confirmed(Ok(()))
            }
            Call::Poll(_) => Answer::Polled(Ok(Vec::new())),
        };
        let delay = self.world.upto(Duration::from_millis(30));
        self.world.after(delay, Event::Answered { producer: self.number, call: id, answer });
    }

    fn tell_worker(&mut self, number: u64, input: consumer_controller::Input<u64>) -> Result<(), String> {
        let Some(worker) = self.workers.get_mut(&number).filter(|worker| worker.alive) else { return Ok(()) };
        let mut effects = Vec::new();
        worker.machine.handle(self.world.now, input, &mut effects);
        for effect in effects {
            match effect {
                sharding_consumer::Effect::Deliver { handle, parts } => {
                    if self.content(handle.id.seq_nr)? != content_of(&parts) {
                        return Err(format!("{} has another content", handle.id.seq_nr));
                    }
                    let took = self.world.upto(self.processing);
                    let abandon = self.faults && self.world.chance(0.05);
                    self.world.after(took, Event::Processed { worker: number, handle, abandon });
                }
                sharding_consumer::Effect::Reply { to, epoch, message } => {
                    let message = UpstreamMessage { from: worker_ref(number), to, epoch, message };
                    self.world.send(&Event::Up(message), Duration::ZERO);
                }
                sharding_consumer::Effect::Suppressed(id) => return Err(format!("{} was suppressed", id.seq_nr)),
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
}

fn content_of(frames: &Frames<u64>) -> u64 {
    match frames {
        Frames::Whole(content) => *content,
        Frames::Chunks(chunks) => chunks[0],
    }
}

/// Every start of the producer has a path of its own.
fn producer_settings(
    settings: &DeliverySettings,
    selection: WorkerSelection,
    number: u64,
    now: Instant,
) -> WorkPullingSettings {
    WorkPullingSettings {
        producer_id: ProducerId::new("p").unwrap(),
        node: "p:1#1".parse().unwrap(),
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
    }
}
