//! The two ends of one link, both of which die and are restarted.
//!
//! The producer keeps unconfirmed messages across its deaths, like a durable one, and uses the next epoch afterwards; a
//! new consumer knows nothing. Every message must be delivered, in order within each consumer (I1, I2); twice only if a
//! consumer died (I3), never to the same consumer (I4); no frame beyond the grant (I6); a lost frame arrives after a
//! resend request (I7, `gaps.rs`), and all frames soon after the faults have stopped (I7); epochs never fall (I11).
//!
//! With flow control only, lost frames are skipped: the others arrive in order and once, and the link goes on (I12).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use greylag_delivery::machine::consumer_link::{self, ConsumerLink, ConsumerLinkSettings, DeliveryKey};
use greylag_delivery::machine::producer_link::{self, LinkMode, ProducerLink, ProducerLinkSettings};
use greylag_delivery::{
    BatchHeader, ControllerRef, Dedupe, DeliverySettings, Epoch, ProducerId, ProducerIdentity, SeqNr, SequencedMessage,
    StreamId, Upstream, Watermarks,
};
use greylag_testkit::deadlines::assert_moved;
use rand::RngExt;

use super::content::Chunks;
use super::draws;
use super::gaps::Gaps;
use super::omission::Without;
use super::world::World;

const FAULTS_END: Duration = Duration::from_secs(8);
const STREAM: StreamId = StreamId(5);
/// Maximum delay of an answer.
const LATE: Duration = Duration::from_secs(2);
/// Flow control only: messages that are sent after the faults have ended.
const LAST_AFTER_FAULTS: u64 = 5;
/// Flow control only: messages that are sent at once when the faults end.
const BURST: u64 = 60;
/// How long a consumer collects processed messages before it confirms them together.
const CONFIRM_PAUSE: Duration = Duration::from_millis(30);

#[derive(Debug, Clone)]
enum Event {
    Send,
    Down { to: u64, header: BatchHeader, message: SequencedMessage<u64> },
    Up { from: u64, epoch: Option<Epoch>, message: Upstream },
    ProducerTick(u64),
    ConsumerTick(u64),
    Processed { consumer: u64, key: DeliveryKey, abandon: bool },
    ConfirmAll(u64),
    KillProducer,
    KillConsumer,
    FaultsEnd,
}

struct Consumer {
    number: u64,
    link: ConsumerLink<u64>,
    watermarks: Watermarks,
    delivered: Vec<u64>,
    /// Processed but unconfirmed.
    done: Vec<DeliveryKey>,
    tick_at: Option<Instant>,
    epoch: Epoch,
    /// The number of a first frame that arrived before its producer became the current one.
    first: Option<((ControllerRef, Epoch), u64)>,
    gaps: Gaps,
    /// The last granted frame, in the producer's current epoch.
    granted: u64,
}

struct Simulation {
    world: World<Event>,
    settings: DeliverySettings,
    without: Without,
    chunks: Chunks,
    producer: ProducerLink<u64>,
    epoch: u64,
    producer_tick: Option<Instant>,
    consumer: Consumer,
    unconfirmed: BTreeSet<u64>,
    /// The last confirmed frame, in the producer's current epoch.
    confirmed_frame: u64,
    sent: u64,
    messages: u64,
    delivered: BTreeSet<u64>,
    twice: bool,
    consumer_died: bool,
    processing: Duration,
    confirms_all: bool,
    faults: bool,
    /// A resend request was just lost, or comes late.
    lost_question: bool,
    /// The producer starts over, and waits for the consumer's answer to the first frame.
    awaits_answer: bool,
}

pub(crate) fn run(seed: u64, without: Without) -> Result<(), String> {
    Simulation::new(seed, without, false).run()
}

/// Flow control only, without deaths.
pub(crate) fn run_flow_control_only(seed: u64, without: Without) -> Result<(), String> {
    Simulation::new(seed, without, true).run()
}

/// One controller whose queue is loaded again: the epoch rises, the reference stays.
fn producer_ref() -> ControllerRef {
    ControllerRef { node: "p:1#1".parse().expect("an address"), path: "delivery/1".into(), instance: 1 }
}

fn consumer_ref(number: u64) -> ControllerRef {
    ControllerRef { node: "c:1#1".parse().expect("an address"), path: "delivery/2".into(), instance: number }
}

fn link(settings: &DeliverySettings, without: Without, epoch: u64, now: Instant) -> ProducerLink<u64> {
    let identity = ProducerIdentity::stable(ProducerId::new("p").expect("a name"), STREAM, Epoch(epoch));
    let settings = settings.producer_link(LinkMode::PointToPoint, &identity);
    ProducerLink::new(ProducerLinkSettings { omissions: without.omissions(), ..settings }, now)
}

fn consumer(settings: &DeliverySettings, without: Without, number: u64) -> Consumer {
    let settings = settings.consumer_link(LinkMode::PointToPoint);
    Consumer {
        number,
        link: ConsumerLink::new(ConsumerLinkSettings { omissions: without.omissions(), ..settings }),
        watermarks: Watermarks::new(10, Duration::from_secs(3600)),
        delivered: Vec::new(),
        done: Vec::new(),
        tick_at: None,
        epoch: Epoch(0),
        first: None,
        gaps: Gaps::default(),
        granted: 0,
    }
}

impl Simulation {
    fn new(seed: u64, without: Without, only_flow_control: bool) -> Self {
        let mut world = World::new(seed);
        let mut settings = draws::of_link(&mut world);
        settings.consumer.only_flow_control = only_flow_control;
        let chunks = Chunks([1, 1, 3, 7][world.pick(4)]);
        let messages = world.rng.random_range(10..=60);
        let processing = Duration::from_millis(world.rng.random_range(0..=40));
        let consumer = consumer(&settings, without, 1);
        let producer = link(&settings, without, 1, world.now);
        let confirms_all = world.chance(0.5);
        let mut simulation = Self {
            world,
            settings,
            without,
            chunks,
            producer,
            epoch: 1,
            producer_tick: None,
            consumer,
            unconfirmed: BTreeSet::new(),
            confirmed_frame: 0,
            sent: 0,
            messages,
            delivered: BTreeSet::new(),
            twice: false,
            consumer_died: false,
            processing,
            confirms_all,
            faults: true,
            lost_question: false,
            awaits_answer: false,
        };
        if !only_flow_control {
            simulation.plan();
        }
        simulation.world.after(FAULTS_END, Event::FaultsEnd);
        simulation.world.after(Duration::ZERO, Event::Send);
        simulation
    }

    /// Schedules random deaths.
    fn plan(&mut self) {
        for _ in 0..self.world.rng.random_range(0..=3) {
            let at = self.world.upto(FAULTS_END);
            self.world.after(at, Event::KillConsumer);
        }
        for _ in 0..self.world.rng.random_range(0..=4) {
            let at = self.world.upto(FAULTS_END);
            self.world.after(at, Event::KillProducer);
        }
    }

    fn run(mut self) -> Result<(), String> {
        self.attach()?;
        while let Some(event) = self.world.next() {
            self.on_event(event)?;
            self.check_gaps()?;
            if !self.faults && self.sent == self.messages && self.unconfirmed.is_empty() {
                self.check()?;
                return if self.is_lossy() { Ok(()) } else { self.full_speed() };
            }
            if self.world.elapsed() > FAULTS_END + Duration::from_secs(60) {
                return Err(format!("I7, I12: {} messages stay unconfirmed", self.unconfirmed.len()));
            }
        }
        Err("I7: nothing is scheduled any more, and not all is done".to_owned())
    }

    fn is_lossy(&self) -> bool {
        self.settings.consumer.only_flow_control
    }

    /// I7: frames missing below a frame that arrived.
    fn check_gaps(&self) -> Result<(), String> {
        if self.is_lossy() {
            return Ok(());
        }
        let consumer = &self.settings.consumer;
        let round_trip = self.world.link.max_delay * 2;
        self.consumer.gaps.overdue(
            self.world.now,
            consumer.resend_interval_min + round_trip,
            consumer.resend_interval_max + round_trip,
        )
    }

    fn check(&self) -> Result<(), String> {
        let first = if self.is_lossy() { self.messages - LAST_AFTER_FAULTS + 1 } else { 1 };
        let missing: Vec<u64> = (first..=self.messages).filter(|total| !self.delivered.contains(total)).collect();
        if !missing.is_empty() {
            return Err(format!("I1, I12: {missing:?} were never delivered"));
        }
        if self.twice && !self.consumer_died {
            return Err("I3: delivered twice although no consumer died".to_owned());
        }
        if self.is_lossy() {
            return Ok(());
        }
        let frames: u64 = (1..=self.messages).map(|content| self.chunks.of(content)).sum();
        let bound = Duration::from_secs(3) + (self.processing * 2 + self.world.link.max_delay * 8) * frames as u32;
        let took = self.world.elapsed().saturating_sub(FAULTS_END);
        if took > bound { Err(format!("I7: it took {took:?} to settle, {bound:?} is the most")) } else { Ok(()) }
    }

    /// I7: without losses, a window takes one round trip and no timer.
    fn full_speed(mut self) -> Result<(), String> {
        // A late registration of a dead consumer holds the link up for two repeats; the first message resolves that.
        self.run_until(FAULTS_END + LATE + Duration::from_secs(1), false)?;
        self.send(1)?;
        self.run_until(self.world.elapsed() + Duration::from_secs(10), true)?;
        let pause = if self.confirms_all { CONFIRM_PAUSE } else { Duration::ZERO };
        let settings = &self.settings.consumer;
        let held = settings.ack_max_delay + settings.delayed_ack_timeout.unwrap_or(settings.resend_interval_max);
        let per_frame = self.processing + self.world.link.max_delay * 2 + pause;
        let frames = self.send(BURST)?;
        self.run_until(self.world.elapsed() + per_frame * frames as u32 + held * 2, true)
    }

    /// Accepts messages at once; returns the number of their frames.
    fn send(&mut self, messages: u64) -> Result<u64, String> {
        let first = self.sent + 1;
        self.sent += messages;
        for total in first..=self.sent {
            self.unconfirmed.insert(total);
            self.accept(total)?;
        }
        Ok((first..=self.sent).map(|total| self.chunks.of(total)).sum())
    }

    /// Advances time, at most to `until` after the start; if `settles`, only until every message is confirmed.
    fn run_until(&mut self, until: Duration, settles: bool) -> Result<(), String> {
        while !(settles && self.unconfirmed.is_empty()) {
            let Some(event) = self.world.next() else { return Err("I7: the link has ended".to_owned()) };
            self.on_event(event)?;
            if self.world.elapsed() >= until {
                break;
            }
        }
        match self.unconfirmed.len() {
            missing if settles && missing > 0 => {
                Err(format!("I7: {missing} messages are unconfirmed at {until:?}, and nothing was lost"))
            }
            _ => Ok(()),
        }
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Send if self.sent < self.messages => {
                self.send(1)?;
                let pause = match self.is_lossy() && !self.faults {
                    true => LATE,
                    false => self.world.upto(Duration::from_millis(60)),
                };
                self.world.after(pause, Event::Send);
            }
            Event::Down { to, header, message } if to == self.consumer.number => self.arrive(header, message)?,
            Event::Up { from, epoch, message } => self.on_upstream(from, epoch, message)?,
            Event::ProducerTick(epoch) if epoch == self.epoch => {
                self.producer_tick = None;
                self.tell_producer(producer_link::Input::Tick)?;
            }
            Event::ConsumerTick(number) if number == self.consumer.number => {
                self.consumer.tick_at = None;
                self.tell_consumer(consumer_link::Input::Tick)?;
                if std::mem::take(&mut self.lost_question) {
                    self.consumer.gaps.lost_question();
                }
            }
            Event::Processed { consumer, key, abandon } if consumer == self.consumer.number => {
                self.processed(key, abandon)?;
            }
            Event::ConfirmAll(number) if number == self.consumer.number => {
                let done = std::mem::take(&mut self.consumer.done);
                self.tell_consumer(consumer_link::Input::ConfirmAll(done))?;
            }
            Event::KillProducer => self.kill_producer()?,
            Event::KillConsumer => {
                self.consumer_died = true;
                self.consumer = consumer(&self.settings, self.without, self.consumer.number + 1);
                self.attach()?;
            }
            Event::FaultsEnd => {
                self.faults = false;
                self.world.link = self.world.link.without_faults();
                if self.is_lossy() {
                    // From here on messages arrive in order, and find an idle consumer: with a full window they could
                    // be lost.
                    self.world.link.reorders = false;
                    self.messages = self.messages.max(self.sent) + LAST_AFTER_FAULTS;
                    self.world.after(LATE, Event::Send);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The queue is loaded again: the epoch rises, unconfirmed messages come first. Both ends keep their references, so
    /// the consumer is registered again.
    fn kill_producer(&mut self) -> Result<(), String> {
        self.epoch += 1;
        self.producer = link(&self.settings, self.without, self.epoch, self.world.now);
        self.producer_tick = None;
        self.confirmed_frame = 0;
        self.consumer.granted = 0;
        self.consumer.gaps = Gaps::default();
        let (from, message) = (consumer_ref(self.consumer.number), Upstream::RegisterConsumer);
        self.tell_producer(producer_link::Input::Received { from, epoch: None, message })?;
        self.unconfirmed.clone().into_iter().try_for_each(|total| self.accept(total))
    }

    fn attach(&mut self) -> Result<(), String> {
        self.tell_consumer(consumer_link::Input::Start(Dedupe::none()))?;
        self.tell_consumer(consumer_link::Input::RegisterTo(producer_ref()))
    }

    fn accept(&mut self, total: u64) -> Result<(), String> {
        let ack = self.world.chance(0.3);
        self.tell_producer(producer_link::Input::Accept { total: SeqNr(total), frames: self.chunks.cut(total), ack })
    }

    fn processed(&mut self, key: DeliveryKey, abandon: bool) -> Result<(), String> {
        if abandon {
            return self.tell_consumer(consumer_link::Input::Abandon(key, None));
        }
        if !self.confirms_all {
            return self.tell_consumer(consumer_link::Input::Confirm(key));
        }
        self.consumer.done.push(key);
        if self.consumer.done.len() == 1 {
            let pause = self.world.upto(CONFIRM_PAUSE);
            self.world.after(pause, Event::ConfirmAll(self.consumer.number));
        }
        Ok(())
    }

    // ---- the producer ---------------------------------------------------------------------------

    fn on_upstream(&mut self, from: u64, epoch: Option<Epoch>, message: Upstream) -> Result<(), String> {
        if let Upstream::Request { confirmed, up_to, .. } | Upstream::Ack { confirmed, up_to } = message
            && epoch == Some(Epoch(self.epoch))
        {
            self.confirmed_frame = self.confirmed_frame.max(confirmed);
            if from == self.consumer.number {
                self.awaits_answer = false;
                self.consumer.granted = self.consumer.granted.max(up_to);
            }
        }
        if from != self.consumer.number {
            // The late message of a dead consumer is taken for one of a living consumer, until repeats or a probe
            // reveal the mistake.
            self.consumer.gaps.lost_question();
        }
        self.tell_producer(producer_link::Input::Received { from: consumer_ref(from), epoch, message })
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
                    self.transmit(SequencedMessage { frame, first }, lowest, ticks)?;
                }
                producer_link::Effect::ConfirmedUpTo(total) => {
                    let early = (1..=total.get()).find(|total| !self.delivered.contains(total));
                    if let Some(early) = early.filter(|_| !self.is_lossy()) {
                        return Err(format!("I1: {early} is confirmed and was never delivered"));
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

    fn transmit(&mut self, message: SequencedMessage<u64>, lowest: u64, repeats: bool) -> Result<(), String> {
        let seq_nr = message.frame.seq_nr;
        let to = self.producer.consumer().map_or(0, |consumer| consumer.instance);
        let is_present = to == self.consumer.number;
        // Without `support_resend`, the producer grants itself the frames that were reported lost.
        let granted = self.consumer.granted.max(self.confirmed_frame + 1);
        if is_present && !message.first && !repeats && !self.is_lossy() && seq_nr > granted {
            return Err(format!("I6: frame {seq_nr} was transmitted, and {granted} is granted"));
        }
        if !is_present || (message.first && !repeats) {
            self.consumer.gaps.start_over(self.world.now);
        }
        let header = BatchHeader {
            producer_id: ProducerId::new("p").expect("a name"),
            stream_id: STREAM,
            epoch: Epoch(self.epoch),
            controller: producer_ref(),
            ordered: true,
            lowest,
        };
        let is_first = message.first;
        self.awaits_answer |= is_first;
        if !self.world.send(&Event::Down { to, header, message }, Duration::ZERO) {
            self.consumer.gaps.lost_frame(seq_nr);
            if is_first {
                // Every missing frame waits for the answer to this frame.
                self.consumer.gaps.lost_question();
            }
        }
        Ok(())
    }

    // ---- the consumer ---------------------------------------------------------------------------

    fn arrive(&mut self, header: BatchHeader, message: SequencedMessage<u64>) -> Result<(), String> {
        let (lowest, seq_nr, is_first) = (header.lowest, message.frame.seq_nr, message.first);
        let sender = (header.controller.clone(), header.epoch);
        let dropped = self.consumer.link.counters().beyond_window;
        let before = self.present();
        self.tell_consumer(consumer_link::Input::Frames { header, frames: vec![message] })?;
        if self.present() != before {
            self.consumer.gaps = Gaps::default();
        }
        let lost_question = std::mem::take(&mut self.lost_question);
        let is_taken = self.consumer.link.counters().beyond_window == dropped;
        if let Some((_, first)) =
            self.consumer.first.take_if(|(of, _)| self.consumer.link.producer() == Some((&of.0, of.1)))
        {
            self.consumer.gaps.begins_at(first);
        }
        if is_first && self.present().as_ref() != Some(&sender) {
            self.consumer.first = Some((sender.clone(), seq_nr));
        }
        if is_taken && self.present() == Some(sender) && self.epoch == self.consumer.epoch.0 {
            self.consumer.gaps.arrived(self.world.now, lowest, seq_nr);
        }
        if lost_question {
            self.consumer.gaps.lost_question();
        }
        Ok(())
    }

    /// The consumer's current producer.
    fn present(&self) -> Option<(ControllerRef, Epoch)> {
        self.consumer.link.producer().map(|(controller, epoch)| (controller.clone(), epoch))
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
                    let content = self.chunks.joined(&parts)?;
                    if content != id.seq_nr.get() {
                        return Err(format!("{} was delivered with the content of {content}", id.seq_nr));
                    }
                    self.deliver(key, content)?;
                }
                consumer_link::Effect::Reply { epoch, message, .. } => {
                    let late = self.faults && self.world.chance(0.03);
                    let extra = if late { self.world.upto(LATE) } else { Duration::ZERO };
                    let from = self.consumer.number;
                    let arrives = self.world.send(&Event::Up { from, epoch, message }, extra);
                    let is_needed = matches!(message, Upstream::Resend { .. }) || self.awaits_answer;
                    self.lost_question |= is_needed && (late || !arrives);
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
                return Err(format!("I4, I12: one consumer was handed {total} twice"));
            }
            if self.consumer.delivered.last().is_some_and(|last| *last >= total) {
                return Err(format!("I2, I12: {total} after {:?}", self.consumer.delivered.last()));
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
