//! The consumer controller of one sharded entity: one link per producer and stream, and watermarks that outlive the
//! links.
//!
//! Frames that arrive before the entity has started wait here. Afterwards each stream has a link of its own, so the
//! entity may have deliveries of several producers in hand; messages of different producers are not ordered. A link
//! ends with its producer, or after a long idle time; the watermark of its stream is kept.
//!
//! Source: delivery §3.2, S11 to S17.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::dedupe::{Attempts, Dedupe, Watermarks};
use crate::ids::{ControllerRef, Epoch, MessageId, ProducerId, SeqNr, StreamId};
use crate::machine::consumer_link::{
    self, ConsumerCounters, ConsumerLink, ConsumerLinkSettings, DeliveryKey, PoisonPolicy,
};
use crate::machine::deadlines::{ArmedTimer, Deadlines};
use crate::machine::producer_link::Frames;
use crate::message::{Content, ProducerStopped, SequencedBatch, Upstream};
use crate::sabotage::Sabotage;

/// Two streams of one producer id, both with frames within this time, may have two living producers.
const SAME_TIME: Duration = Duration::from_secs(10);

/// Settings of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardingConsumerSettings {
    /// Settings of every link.
    pub link: Arc<ConsumerLinkSettings>,
    /// Limit of frames that wait for the entity's start.
    pub buffer_size: usize,
    /// Idle time after which a link is dropped.
    pub consumer_idle_after: Duration,
    /// Limit of links; for one more, the link idle for longest is dropped, or the new producer is refused.
    pub max_producers_per_entity: usize,
    /// Number of streams that are remembered for ever.
    pub dedupe_streams_max: usize,
    /// Retention of streams beyond that number.
    pub dedupe_retention: Duration,
}

/// One attempt at one delivery of one link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryHandle {
    /// The id of the message.
    pub id: MessageId,
    /// The number of the link in this controller; a later link of the same stream has another number.
    pub link: u64,
    /// Delivery number and attempt within the link.
    pub key: DeliveryKey,
}

/// An input to the consumer controller of one entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// Frames arrived.
    Batch(SequencedBatch<P>),
    /// The entity has started; carries how far it has processed each stream.
    Start(Dedupe),
    /// The entity has processed a delivery.
    Confirm(DeliveryHandle),
    /// The entity has processed several deliveries at once; each producer gets one message about them.
    ConfirmAll(Vec<DeliveryHandle>),
    /// The entity gave an attempt up; the next one follows after the pause, or after the usual back-off.
    Abandon(DeliveryHandle, Option<Duration>),
    /// The entity has not looked at an attempt, or could not process it yet. The attempt is not counted, and is
    /// repeated after the pause.
    Return(DeliveryHandle, Duration),
    /// The message cannot be decoded; it waits until it is confirmed.
    Unreadable(DeliveryHandle),
    /// End the link of this delivery's producer; its frames are refused until the entity starts again.
    GiveUp(DeliveryHandle),
    /// A producer's link has ended.
    ProducerStopped(ProducerStopped),
    /// A node was removed from the cluster.
    NodeRemoved(UniqueAddress),
    /// The entity is asked to stop: hand out nothing more.
    Finish,
    /// The entity has ended.
    Stop,
    /// The entity has failed and another controller takes over: tell the producers to start over at once.
    StartOver,
    /// A deadline may have passed.
    Tick,
}

/// An effect of the controller; effects must be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// Hand a message to the entity.
    Deliver {
        /// The handle with which to confirm the message.
        handle: DeliveryHandle,
        /// The content of the message.
        parts: Frames<P>,
    },
    /// Send a message to a producer controller.
    Reply {
        /// The receiving link.
        to: ControllerRef,
        /// The epoch of the answered frames.
        epoch: Option<Epoch>,
        /// The message.
        message: Upstream,
    },
    /// A duplicate of a processed message; it is confirmed and not delivered.
    Suppressed(MessageId),
    /// The last permitted attempt at a message failed.
    Poisoned {
        /// The id of the message.
        id: MessageId,
        /// Number of attempts.
        attempts: u32,
    },
    /// A message waits for its next attempt and was not handed out here; an earlier controller had handed it out.
    Held(MessageId),
    /// A message is unconfirmed for `confirm_warn_after`.
    Overdue(MessageId),
    /// A link switched to another controller of its stream; the former one may still be alive.
    Replaced {
        /// The id of the producer.
        producer: ProducerId,
        /// The former controller.
        former: ControllerRef,
        /// The current controller.
        by: ControllerRef,
    },
    /// Two streams of one producer id are active at the same time, so two producers may use the same id (S10).
    SameProducer(ProducerId),
    /// Frames of another stream were dropped: the limit of producers is reached, and none is idle (S13).
    Refused(ProducerId),
    /// Whether a delivery is in hand or could be handed out; if so, passivation is vetoed (S15).
    Busy(bool),
    /// Every link has ended after `Finish` or `Stop`.
    Stopped,
}

impl<P> Effect<P> {
    /// Converts an effect of the link number `link`. `producer` is the link's current producer.
    pub(crate) fn of_link(effect: consumer_link::Effect<P>, link: u64, producer: Option<&ProducerId>) -> Option<Self> {
        Some(match effect {
            consumer_link::Effect::Deliver { key, id, parts } => {
                Self::Deliver { handle: DeliveryHandle { id, link, key }, parts }
            }
            consumer_link::Effect::Reply { to, epoch, message } => Self::Reply { to, epoch, message },
            consumer_link::Effect::Suppressed(id) => Self::Suppressed(id),
            consumer_link::Effect::Poisoned { id, attempts } => Self::Poisoned { id, attempts },
            consumer_link::Effect::Held(id) => Self::Held(id),
            consumer_link::Effect::Overdue(id) => Self::Overdue(id),
            consumer_link::Effect::Replaced { former, by } => {
                Self::Replaced { producer: producer?.clone(), former, by }
            }
            consumer_link::Effect::Stopped => Self::Stopped,
        })
    }
}

/// A link, and the controller's data about it.
#[derive(Debug, Clone)]
struct Stream<P> {
    key: (StreamId, ProducerId),
    number: u64,
    link: ConsumerLink<P>,
    used_at: Instant,
    busy: bool,
    awake: bool,
    overdue: u32,
    armed: ArmedTimer,
}

/// State that a controller leaves to its successor after the entity failed.
#[derive(Debug, Clone)]
pub(crate) struct HandoverState {
    left_at: Instant,
    attempts: Vec<(StreamId, SeqNr, Attempts)>,
    given_up: BTreeSet<(StreamId, ProducerId)>,
    /// The confirmed total of each stream. The entity keeps no trace of messages that were given up, and copies of them
    /// may be on their way, sent before their producer got the confirmation.
    confirmed: Dedupe,
}

impl HandoverState {
    pub(crate) fn is_empty(&self) -> bool {
        self.attempts.is_empty() && self.given_up.is_empty() && self.confirmed.iter().next().is_none()
    }
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
    settings: Arc<ShardingConsumerSettings>,
    life: Life,
    before_start: Vec<SequencedBatch<P>>,
    waiting_frames: usize,
    /// Sorted by key.
    streams: Vec<Stream<P>>,
    /// Links that ended because a message could not be processed ([`PoisonPolicy::StopConsumer`]).
    given_up: BTreeSet<(StreamId, ProducerId)>,
    watermarks: Watermarks,
    deadlines: Deadlines<(StreamId, ProducerId)>,
    next_number: u64,
    awake_streams: usize,
    overdue: u64,
    counters: ConsumerCounters,
    /// Changes when a link begins, ends, or gets a producer on another node.
    links_version: u64,
    refused: u64,
    stop_reported: bool,
    scratch: Vec<consumer_link::Effect<P>>,
}

impl<P: Content> ShardingConsumer<P> {
    /// A controller whose entity has not started. The entities of one type share their settings.
    pub fn new(settings: impl Into<Arc<ShardingConsumerSettings>>) -> Self {
        let settings = settings.into();
        Self {
            watermarks: Watermarks::new(settings.dedupe_streams_max, settings.dedupe_retention),
            settings,
            life: Life::Starting,
            before_start: Vec::new(),
            waiting_frames: 0,
            streams: Vec::new(),
            given_up: BTreeSet::new(),
            deadlines: Deadlines::new(),
            next_number: 1,
            awake_streams: 0,
            overdue: 0,
            counters: ConsumerCounters::default(),
            links_version: 0,
            refused: 0,
            stop_reported: false,
            scratch: Vec::new(),
        }
    }

    /// Handles one input.
    pub fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        let was_busy = self.is_busy();
        match input {
            Input::Batch(batch) => self.on_batch(now, batch, out),
            Input::Start(dedupe) => self.on_start(now, dedupe, out),
            Input::Confirm(handle) => {
                let input = consumer_link::Input::Confirm(handle.key);
                self.tell_delivery(now, &handle, input, out);
            }
            Input::ConfirmAll(handles) => self.on_confirm_all(now, handles, out),
            Input::Abandon(handle, pause) => {
                let input = consumer_link::Input::Abandon(handle.key, pause);
                self.tell_delivery(now, &handle, input, out);
            }
            Input::Return(handle, pause) => {
                let input = consumer_link::Input::Return(handle.key, pause);
                self.tell_delivery(now, &handle, input, out);
            }
            Input::Unreadable(handle) => {
                let input = consumer_link::Input::Unreadable(handle.key);
                self.tell_delivery(now, &handle, input, out);
            }
            Input::GiveUp(handle) => {
                self.given_up.insert((handle.id.stream_id, handle.id.producer_id.clone()));
                self.tell_delivery(now, &handle, consumer_link::Input::Stop, out);
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

    /// The next time at which a tick may have an effect; may be early.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Whether a delivery is in hand, or will be without further input, or frames wait for the entity's start.
    pub fn is_busy(&self) -> bool {
        self.awake_streams > 0 || self.waiting_frames > 0
    }

    /// Whether a message of any producer is undelivered or unconfirmed.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.waiting_frames > 0 || self.streams.iter().any(|stream| stream.busy)
    }

    /// Deliveries that were reported as overdue.
    pub fn overdue(&self) -> u64 {
        self.overdue
    }

    /// Counts of all links since the start, including ended links.
    pub fn counters(&self) -> ConsumerCounters {
        self.counters
    }

    /// Changes when a link begins, ends, or gets a producer on another node.
    pub(crate) fn links_version(&self) -> u64 {
        self.links_version
    }

    /// The streams that have a link, ascending.
    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.streams.iter().map(|stream| stream.key.0)
    }

    /// The nodes of the links' producers.
    pub(crate) fn producer_nodes(&self) -> impl Iterator<Item = &UniqueAddress> {
        self.streams.iter().filter_map(|stream| stream.link.producer()).map(|(controller, _)| &controller.node)
    }

    /// The state for this controller's successor.
    pub(crate) fn handover_state(&self, now: Instant) -> HandoverState {
        let of_links = self.streams.iter().flat_map(|stream| stream.link.attempts());
        let links = self.streams.iter().map(|stream| stream.key.0);
        HandoverState {
            left_at: now,
            attempts: of_links.chain(self.watermarks.attempts_not_taken()).collect(),
            given_up: self.given_up.clone(),
            confirmed: links.map(|stream| (stream, self.watermarks.confirmed(stream))).collect(),
        }
    }

    /// Takes over the state of a controller whose entity failed. Call it before the start.
    pub(crate) fn take_over(&mut self, handover: HandoverState) {
        self.given_up = handover.given_up;
        for (stream, total, attempts) in handover.attempts {
            self.watermarks.remember_attempts(stream, total, attempts);
        }
        if self.settings.link.sabotage != Some(Sabotage::Marks) {
            self.watermarks.merge(handover.left_at, &handover.confirmed);
        }
    }

    /// The watermarks of all streams.
    pub fn watermarks(&self) -> &Watermarks {
        &self.watermarks
    }

    /// Number of links.
    pub fn link_count(&self) -> usize {
        self.streams.len()
    }

    /// Frames dropped because of too many producers, or too many frames before the start.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn on_batch(&mut self, now: Instant, batch: SequencedBatch<P>, out: &mut Vec<Effect<P>>) {
        // A batch without frames takes no room: its frames had no bytes and were left out on the way, or a peer made it
        // up.
        if batch.frames.is_empty() {
            return;
        }
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
        if self.given_up.contains(&key) {
            self.refused += batch.frames.len() as u64;
            return;
        }
        let Some(index) = self.stream_index(now, key, out) else {
            self.refused += batch.frames.len() as u64;
            out.push(Effect::Refused(batch.header.producer_id));
            return;
        };
        self.streams[index].used_at = now;
        self.handle_input(now, index, consumer_link::Input::Frames { header: batch.header, frames: batch.frames }, out);
    }

    /// The index of the stream's link; makes the link if there is room for one.
    fn stream_index(&mut self, now: Instant, key: (StreamId, ProducerId), out: &mut Vec<Effect<P>>) -> Option<usize> {
        let find = |streams: &[Stream<P>]| streams.binary_search_by(|stream| stream.key.cmp(&key));
        if let Ok(index) = find(&self.streams) {
            return Some(index);
        }
        if self.streams.len() + self.given_up.len() >= self.settings.max_producers_per_entity {
            let idle = (0..self.streams.len()).filter(|index| !self.streams[*index].busy);
            let oldest = idle.min_by_key(|index| self.streams[*index].used_at)?;
            self.handle_input(now, oldest, consumer_link::Input::Stop, out);
        }
        let index = find(&self.streams).unwrap_err();
        let link = ConsumerLink::new(Arc::clone(&self.settings.link));
        let number = self.next_number;
        self.next_number += 1;
        let armed = ArmedTimer::default();
        if self.streams.iter().any(|stream| stream.key.1 == key.1 && now < stream.used_at + SAME_TIME) {
            out.push(Effect::SameProducer(key.1.clone()));
        }
        let (busy, awake, overdue) = (false, false, 0);
        let stream = Stream { key, number, link, used_at: now, busy, awake, overdue, armed };
        // Reserve exactly one: most entities have one producer, and spare capacity would be most of their memory.
        self.streams.reserve_exact(1);
        self.streams.insert(index, stream);
        self.handle_input(now, index, consumer_link::Input::Start(Dedupe::none()), out);
        let streams = &self.streams;
        self.watermarks.prune(now, |stream| streams.iter().any(|alive| alive.key.0 == stream));
        Some(index)
    }

    fn on_start(&mut self, now: Instant, dedupe: Dedupe, out: &mut Vec<Effect<P>>) {
        if self.settings.link.sabotage != Some(Sabotage::Marks) {
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
                    self.handle_input(now, index, consumer_link::Input::Start(Dedupe::none()), out);
                }
            }
            Life::Stopped => {}
        }
    }

    fn on_confirm_all(&mut self, now: Instant, mut handles: Vec<DeliveryHandle>, out: &mut Vec<Effect<P>>) {
        while let Some(first) = handles.pop() {
            let of_link = |handle: &DeliveryHandle| {
                handle.link == first.link
                    && (handle.id.stream_id, &handle.id.producer_id) == (first.id.stream_id, &first.id.producer_id)
            };
            let mut keys = vec![first.key];
            keys.extend(handles.extract_if(.., |handle| of_link(handle)).map(|handle| handle.key));
            self.tell_delivery(now, &first, consumer_link::Input::ConfirmAll(keys), out);
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
        // Too late for a link that has ended (C16).
        if let Ok(index) = found
            && self.streams[index].number == handle.link
        {
            self.streams[index].used_at = now;
            self.handle_input(now, index, input, out);
        }
    }

    fn end_links(&mut self, now: Instant, gone: impl Fn(&ControllerRef, Epoch) -> bool, out: &mut Vec<Effect<P>>) {
        for index in (0..self.streams.len()).rev() {
            if self.streams[index].link.producer().is_some_and(|(controller, epoch)| gone(controller, epoch)) {
                self.handle_input(now, index, consumer_link::Input::DeliverThenStop, out);
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
            self.handle_input(now, index, input.clone(), out);
        }
        self.report_stopped(out);
    }

    /// Ends all links and tells their producers to start over; otherwise a producer with nothing to send would only
    /// find out by its idle probe.
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
            self.handle_input(now, index, input, out);
        }
    }

    /// Gives one link an input, and carries out its effects. The link may have ended afterwards.
    fn handle_input(&mut self, now: Instant, index: usize, input: consumer_link::Input<P>, out: &mut Vec<Effect<P>>) {
        let stream = &mut self.streams[index];
        let (counted, node) =
            (stream.link.counters(), stream.link.producer().map(|(producer, _)| producer.node.clone()));
        stream.link.handle(now, input, &mut self.watermarks, &mut self.scratch);
        self.counters.add_since(&counted, &stream.link.counters());
        if stream.link.is_stopped() || stream.link.producer().map(|(producer, _)| &producer.node) != node.as_ref() {
            self.links_version += 1;
        }
        for effect in self.scratch.drain(..) {
            match &effect {
                consumer_link::Effect::Poisoned { .. }
                    if self.settings.link.on_poison == PoisonPolicy::StopConsumer =>
                {
                    self.given_up.insert(stream.key.clone());
                }
                // Not passed on: the controller reports its own end after its last link.
                consumer_link::Effect::Stopped => continue,
                _ => {}
            }
            out.extend(Effect::of_link(effect, stream.number, Some(&stream.key.1)));
        }
        let lives = !stream.link.is_stopped();
        stream.busy = lives && stream.link.is_busy();
        let awake = lives && stream.link.keeps_awake();
        match (std::mem::replace(&mut stream.awake, awake), awake) {
            (false, true) => self.awake_streams += 1,
            (true, false) => self.awake_streams -= 1,
            _ => {}
        }
        let overdue = stream.link.overdue();
        self.overdue = self.overdue + u64::from(overdue) - u64::from(std::mem::replace(&mut stream.overdue, overdue));
        if stream.link.is_stopped() {
            self.streams.remove(index);
            self.report_stopped(out);
            return;
        }
        let idle_at = (!stream.busy).then(|| stream.used_at + self.settings.consumer_idle_after);
        let deadline = [stream.link.next_deadline(), idle_at].into_iter().flatten().min();
        self.deadlines.arm(stream.key.clone(), &mut stream.armed, deadline);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::DeliverySettings;
    use crate::message::{BatchHeader, Frame, SequencedMessage};

    const STREAM: StreamId = StreamId(1);

    fn controller(handover: Option<HandoverState>) -> ShardingConsumer<u64> {
        let mut settings = DeliverySettings::test();
        settings.consumer.max_delivery_attempts = 2;
        settings.consumer.redelivery_backoff = Duration::ZERO;
        let mut controller = ShardingConsumer::new(settings.sharding_consumer());
        if let Some(handover) = handover {
            controller.take_over(handover);
        }
        controller
    }

    /// The first frame of a link to this controller.
    fn first_frame() -> Input<u64> {
        let node = "n:1#1".parse().unwrap();
        let header = BatchHeader {
            producer_id: ProducerId::new("p").unwrap(),
            stream_id: STREAM,
            epoch: Epoch::FIRST,
            controller: ControllerRef { node, path: "delivery/1".into(), instance: 1 },
            ordered: true,
            lowest: 1,
        };
        let frame = Frame { seq_nr: 1, total: SeqNr(1), ack: true, first_chunk: true, last_chunk: true, payload: 7 };
        Input::Batch(SequencedBatch { header, frames: vec![SequencedMessage { frame, first: true }] })
    }

    /// Runs the inputs, and returns the resulting deliveries.
    fn delivered(controller: &mut ShardingConsumer<u64>, now: Instant, inputs: Vec<Input<u64>>) -> Vec<DeliveryHandle> {
        let mut effects = Vec::new();
        inputs.into_iter().for_each(|input| controller.handle(now, input, &mut effects));
        let handles = effects.into_iter().filter_map(|effect| match effect {
            Effect::Deliver { handle, .. } => Some(handle),
            _ => None,
        });
        handles.collect()
    }

    /// Of delivery 89, C14: an entity that failed before the message arrived again leaves the inherited attempts to its
    /// successor; a message given up stays confirmed, even if its successor receives a copy.
    #[test]
    fn attempts_and_confirmations_outlive_every_failure() {
        let now = Instant::now();
        let start = || Input::Start(Dedupe::none());
        let mut first = controller(None);
        let attempts = delivered(&mut first, now, vec![start(), first_frame()]);
        assert_eq!(attempts.len(), 1);

        // The second controller ends before the message arrives.
        let mut second = controller(Some(first.handover_state(now)));
        assert_eq!(delivered(&mut second, now, vec![start()]).len(), 0);

        let mut third = controller(Some(second.handover_state(now)));
        let attempts = delivered(&mut third, now, vec![start(), first_frame()]);
        assert_eq!(attempts.iter().map(|handle| handle.key.attempt).collect::<Vec<_>>(), [2]);
        let give_up = Input::Abandon(attempts[0].clone(), None);
        assert_eq!(delivered(&mut third, now, vec![give_up]).len(), 0);
        assert_eq!(third.watermarks().confirmed(STREAM), SeqNr(1), "its attempts are used up");

        let mut fourth = controller(Some(third.handover_state(now)));
        assert_eq!(delivered(&mut fourth, now, vec![start(), first_frame()]).len(), 0, "it is known");
    }
}
