//! The consumer controller of one sharded entity: one link per producer and stream, and the
//! watermarks that outlive them.
//!
//! Frames that come before the entity has started wait here. From then on each stream has a link of
//! its own, so the entity may have one delivery per producer in hand; there is no order between
//! producers. Links end when their producer does, or when they have been idle for long; how far the
//! entity has processed their streams stays known.
//!
//! Source: delivery §3.2, S11 to S17.

use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::dedupe::{Dedupe, Watermarks};
use crate::ids::{ControllerRef, Epoch, MessageId, ProducerId, StreamId};
use crate::machine::consumer_link::{self, ConsumerLink, ConsumerLinkSettings, DeliveryKey};
use crate::machine::deadlines::{Armed, Deadlines};
use crate::machine::producer_link::Frames;
use crate::message::{Content, ProducerStopped, SequencedBatch, Upstream};

/// What the controller needs to know when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardingConsumerSettings {
    /// Settings of every link.
    pub link: ConsumerLinkSettings,
    /// Frames that may wait for the entity's start.
    pub buffer_size: usize,
    /// A link that was idle for so long is dropped.
    pub consumer_idle_after: Duration,
    /// Links at one time; beyond it the longest idle one is dropped, or the newcomer refused.
    pub max_producers_per_entity: usize,
    /// Streams that are remembered however old they are.
    pub dedupe_streams_max: usize,
    /// How long a stream beyond that number is remembered.
    pub dedupe_retention: Duration,
    /// For simulations: forgets the positions that the entity recovered, to prove that the checkers
    /// notice.
    #[doc(hidden)]
    pub sabotage_marks: bool,
}

/// One attempt at one delivery of one link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryHandle {
    /// The message.
    pub id: MessageId,
    /// The link's number in this controller; a later link of the same stream has another one.
    pub link: u64,
    /// The attempt.
    pub key: DeliveryKey,
}

/// An input to the consumer controller of one entity: frames of producers, what the entity did with deliveries, and
/// that time passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// Frames arrived.
    Batch(SequencedBatch<P>),
    /// The entity is ready, and this is how far it has processed each stream.
    Start(Dedupe),
    /// The entity has processed a delivery.
    Confirm(DeliveryHandle),
    /// The entity gave up on an attempt; again after the pause, or after the usual backoff.
    Abandon(DeliveryHandle, Option<Duration>),
    /// A producer's link has ended.
    ProducerStopped(ProducerStopped),
    /// A node was removed from the cluster.
    NodeRemoved(UniqueAddress),
    /// The entity is asked to stop: nothing new is delivered.
    Finish,
    /// The entity has ended.
    Stop,
    /// The entity has failed and another controller takes over: producers are to start over at once.
    StartOver,
    /// A deadline may have passed.
    Tick,
}

/// What the controller asks for, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// Hand a message to the entity.
    Deliver {
        /// To confirm it with.
        handle: DeliveryHandle,
        /// Its content.
        parts: Frames<P>,
    },
    /// Send to a producer controller.
    Reply {
        /// The link addressed.
        to: ControllerRef,
        /// The epoch that is answered.
        epoch: Option<Epoch>,
        /// What to say.
        message: Upstream,
    },
    /// A message that was processed before came again; it is confirmed and not delivered.
    Suppressed(MessageId),
    /// The attempts at a message are used up.
    Poisoned {
        /// The message.
        id: MessageId,
        /// How many attempts there were.
        attempts: u32,
    },
    /// Whether anything is handed out or could be; passivation is vetoed meanwhile (S15).
    Busy(bool),
    /// Every link has ended after `Finish` or `Stop`.
    Stopped,
}

/// A link, and the facts that the controller keeps about it.
#[derive(Debug, Clone)]
struct Stream<P> {
    key: (StreamId, ProducerId),
    number: u64,
    link: ConsumerLink<P>,
    used_at: Instant,
    busy: bool,
    armed: Armed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Starting,
    Running,
    Finishing,
    Stopped,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct ShardingConsumer<P> {
    settings: ShardingConsumerSettings,
    life: Life,
    before_start: Vec<SequencedBatch<P>>,
    waiting_frames: usize,
    /// Sorted by key. Boxed, because most entities have one.
    streams: Vec<Box<Stream<P>>>,
    watermarks: Watermarks,
    deadlines: Deadlines<(StreamId, ProducerId)>,
    next_number: u64,
    busy_streams: usize,
    refused: u64,
    stop_reported: bool,
    scratch: Vec<consumer_link::Effect<P>>,
}

impl<P: Content> ShardingConsumer<P> {
    /// A controller whose entity has not started.
    pub fn new(settings: ShardingConsumerSettings) -> Self {
        Self {
            watermarks: Watermarks::new(settings.dedupe_streams_max, settings.dedupe_retention),
            settings,
            life: Life::Starting,
            before_start: Vec::new(),
            waiting_frames: 0,
            streams: Vec::new(),
            deadlines: Deadlines::new(),
            next_number: 1,
            busy_streams: 0,
            refused: 0,
            stop_reported: false,
            scratch: Vec::new(),
        }
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        let was_busy = self.is_busy();
        match input {
            Input::Batch(batch) => self.on_batch(now, batch, out),
            Input::Start(dedupe) => self.on_start(now, dedupe, out),
            Input::Confirm(handle) => {
                let input = consumer_link::Input::Confirm(handle.key);
                self.tell_delivery(now, &handle, input, out);
            }
            Input::Abandon(handle, pause) => {
                let input = consumer_link::Input::Abandon(handle.key, pause);
                self.tell_delivery(now, &handle, input, out);
            }
            Input::ProducerStopped(stopped) => {
                let gone =
                    |controller: &ControllerRef, epoch| *controller == stopped.controller && epoch == stopped.epoch;
                self.end_links(now, gone, out);
            }
            Input::NodeRemoved(node) => self.end_links(now, |controller, _| controller.node == node, out),
            Input::Finish => self.end_all(now, Life::Finishing, &consumer_link::Input::Finish, out),
            Input::Stop => self.end_all(now, Life::Stopped, &consumer_link::Input::Stop, out),
            Input::StartOver => self.start_over(now, out),
            Input::Tick => self.on_tick(now, out),
        }
        if self.is_busy() != was_busy {
            out.push(Effect::Busy(!was_busy));
        }
    }

    /// When a tick next has work to do; may be early.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Whether anything is handed out, or could be, or waits for the entity's start.
    pub fn is_busy(&self) -> bool {
        self.busy_streams > 0 || self.waiting_frames > 0
    }

    /// How far each stream is processed.
    pub fn watermarks(&self) -> &Watermarks {
        &self.watermarks
    }

    /// Links at present.
    pub fn link_count(&self) -> usize {
        self.streams.len()
    }

    /// Frames dropped because there were too many producers, or too many frames before the start.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn on_batch(&mut self, now: Instant, batch: SequencedBatch<P>, out: &mut Vec<Effect<P>>) {
        match self.life {
            Life::Running => {}
            Life::Starting if self.waiting_frames + batch.frames.len() <= self.settings.buffer_size => {
                self.waiting_frames += batch.frames.len();
                return self.before_start.push(batch);
            }
            Life::Starting | Life::Finishing | Life::Stopped => {
                self.refused += batch.frames.len() as u64;
                return;
            }
        }
        let key = (batch.header.stream_id, batch.header.producer_id.clone());
        let Some(index) = self.stream_index(now, key, out) else {
            self.refused += batch.frames.len() as u64;
            return;
        };
        self.streams[index].used_at = now;
        self.tell(now, index, consumer_link::Input::Frames { header: batch.header, frames: batch.frames }, out);
    }

    /// The stream's link, made if there is room for one.
    fn stream_index(&mut self, now: Instant, key: (StreamId, ProducerId), out: &mut Vec<Effect<P>>) -> Option<usize> {
        let find = |streams: &[Box<Stream<P>>]| streams.binary_search_by(|stream| stream.key.cmp(&key));
        if let Ok(index) = find(&self.streams) {
            return Some(index);
        }
        if self.streams.len() >= self.settings.max_producers_per_entity {
            let idle = (0..self.streams.len()).filter(|index| !self.streams[*index].busy);
            let oldest = idle.min_by_key(|index| self.streams[*index].used_at)?;
            self.tell(now, oldest, consumer_link::Input::Stop, out);
        }
        let index = find(&self.streams).unwrap_err();
        let link = ConsumerLink::new(self.settings.link.clone());
        let number = self.next_number;
        self.next_number += 1;
        let armed = Armed::default();
        self.streams.insert(index, Box::new(Stream { key, number, link, used_at: now, busy: false, armed }));
        self.tell(now, index, consumer_link::Input::Start(Dedupe::none()), out);
        let streams = &self.streams;
        self.watermarks.prune(now, |stream| streams.iter().any(|alive| alive.key.0 == stream));
        Some(index)
    }

    fn on_start(&mut self, now: Instant, dedupe: Dedupe, out: &mut Vec<Effect<P>>) {
        if !self.settings.sabotage_marks {
            self.watermarks.merge(now, &dedupe);
        }
        match self.life {
            Life::Starting => {
                self.life = Life::Running;
                self.waiting_frames = 0;
                for batch in std::mem::take(&mut self.before_start) {
                    self.on_batch(now, batch, out);
                }
            }
            Life::Running | Life::Finishing => {
                for index in (0..self.streams.len()).rev() {
                    self.tell(now, index, consumer_link::Input::Start(Dedupe::none()), out);
                }
            }
            Life::Stopped => {}
        }
    }

    fn tell_delivery(
        &mut self,
        now: Instant,
        handle: &DeliveryHandle,
        input: consumer_link::Input<P>,
        out: &mut Vec<Effect<P>>,
    ) {
        let key = (handle.id.stream_id, &handle.id.producer_id);
        let found = self.streams.binary_search_by(|stream| (stream.key.0, &stream.key.1).cmp(&key));
        // A delivery of a link that has ended is confirmed too late (C16).
        if let Ok(index) = found
            && self.streams[index].number == handle.link
        {
            self.streams[index].used_at = now;
            self.tell(now, index, input, out);
        }
    }

    fn end_links(&mut self, now: Instant, gone: impl Fn(&ControllerRef, Epoch) -> bool, out: &mut Vec<Effect<P>>) {
        for index in (0..self.streams.len()).rev() {
            if self.streams[index].link.producer().is_some_and(|(controller, epoch)| gone(controller, epoch)) {
                self.tell(now, index, consumer_link::Input::DeliverThenStop, out);
            }
        }
    }

    fn end_all(&mut self, now: Instant, life: Life, input: &consumer_link::Input<P>, out: &mut Vec<Effect<P>>) {
        if self.life == Life::Stopped {
            return;
        }
        self.life = life;
        self.refused += self.waiting_frames as u64;
        self.waiting_frames = 0;
        self.before_start.clear();
        for index in (0..self.streams.len()).rev() {
            self.tell(now, index, input.clone(), out);
        }
        self.report_stopped(out);
    }

    /// Without this, a producer with nothing new to send would find out by its idle probe alone.
    fn start_over(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        let producers = self.streams.iter().filter_map(|stream| stream.link.producer());
        let replies: Vec<Effect<P>> = producers
            .map(|(controller, epoch)| Effect::Reply {
                to: controller.clone(),
                epoch: Some(epoch),
                message: Upstream::Resend { from: 0, to: 0 },
            })
            .collect();
        self.end_all(now, Life::Stopped, &consumer_link::Input::Stop, out);
        out.extend(replies);
    }

    fn report_stopped(&mut self, out: &mut Vec<Effect<P>>) {
        let ending = matches!(self.life, Life::Finishing | Life::Stopped);
        if ending && self.streams.is_empty() {
            self.life = Life::Stopped;
            if !std::mem::replace(&mut self.stop_reported, true) {
                out.push(Effect::Stopped);
            }
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        while let Some((entry, key)) = self.deadlines.pop_due(now) {
            let Ok(index) = self.streams.binary_search_by(|stream| stream.key.cmp(&key)) else { continue };
            let stream = &mut self.streams[index];
            if !stream.armed.fired(entry) {
                continue;
            }
            let idle_for = now.saturating_duration_since(stream.used_at);
            let is_spent = !stream.busy && idle_for >= self.settings.consumer_idle_after;
            let input = if is_spent { consumer_link::Input::Stop } else { consumer_link::Input::Tick };
            self.tell(now, index, input, out);
        }
    }

    /// Tells one link, and carries its effects on. The link may be gone afterwards.
    fn tell(&mut self, now: Instant, index: usize, input: consumer_link::Input<P>, out: &mut Vec<Effect<P>>) {
        let stream = &mut self.streams[index];
        stream.link.handle(now, input, &mut self.watermarks, &mut self.scratch);
        for effect in self.scratch.drain(..) {
            match effect {
                consumer_link::Effect::Deliver { key, id, parts } => {
                    let handle = DeliveryHandle { id, link: stream.number, key };
                    out.push(Effect::Deliver { handle, parts });
                }
                consumer_link::Effect::Reply { to, epoch, message } => out.push(Effect::Reply { to, epoch, message }),
                consumer_link::Effect::Suppressed(id) => out.push(Effect::Suppressed(id)),
                consumer_link::Effect::Poisoned { id, attempts } => out.push(Effect::Poisoned { id, attempts }),
                consumer_link::Effect::Stopped => {}
            }
        }
        let busy = stream.link.is_busy() && !stream.link.is_stopped();
        match (stream.busy, busy) {
            (false, true) => self.busy_streams += 1,
            (true, false) => self.busy_streams -= 1,
            _ => {}
        }
        stream.busy = busy;
        if stream.link.is_stopped() {
            self.streams.remove(index);
            self.report_stopped(out);
            return;
        }
        let idle_at = (!busy).then(|| stream.used_at + self.settings.consumer_idle_after);
        let deadline = [stream.link.next_deadline(), idle_at].into_iter().flatten().min();
        self.deadlines.arm(stream.key.clone(), &mut stream.armed, deadline);
    }
}
