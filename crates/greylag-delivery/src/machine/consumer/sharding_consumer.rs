//! The consumer controller of one sharded entity: one link per producer and stream, and watermarks that outlive the
//! links.
//!
//! Frames that arrive before the entity has started wait here. Afterwards each stream has a link of its own, so the
//! entity may have deliveries of several producers in hand; messages of different producers are not ordered. A link
//! ends with its producer, or after a long idle time; the watermark of its stream is kept.
//!
//! Source: delivery §3.2, S11 to S17.

mod handover;
mod protocol;
mod streams;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use greylag_core::UniqueAddress;

use crate::ids::{ControllerRef, Epoch, ProducerId, StreamId};
use crate::machine::consumer_link::{self, ConsumerCounters};
use crate::machine::dedupe::{Dedupe, Watermarks};
use crate::machine::omissions::Clause;
use crate::message::{Content, SequencedBatch, Upstream};
use streams::Streams;

pub(crate) use handover::HandoverState;
pub use protocol::{DeliveryHandle, Effect, Input, ShardingConsumerSettings};

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
    streams: Streams<P>,
    /// Links that ended because a message could not be processed ([`consumer_link::PoisonPolicy::StopConsumer`]).
    given_up: BTreeSet<(StreamId, ProducerId)>,
    watermarks: Watermarks,
    refused: u64,
    stop_reported: bool,
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
            streams: Streams::new(),
            given_up: BTreeSet::new(),
            refused: 0,
            stop_reported: false,
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
        self.check_invariants();
    }

    /// Source: delivery S12, S13.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let frames: usize = self.before_start.iter().map(|batch| batch.frames.len()).sum();
        assert_eq!(self.waiting_frames, frames, "frames that wait for the start are counted");
        assert!(self.waiting_frames <= self.settings.buffer_size, "frames that wait for the start are bounded");
        assert!(frames == 0 || self.life == Life::Starting, "frames wait only for the start");
        assert!(self.streams.len() <= self.settings.max_producers_per_entity, "the producers of an entity are bounded");
        assert_eq!(self.life == Life::Stopped, self.stop_reported, "the end is reported once");
        assert!(!self.stop_reported || self.streams.is_empty(), "the end comes after that of all links");
        self.streams.check_invariants();
    }

    /// The next time at which a tick may have an effect; may be early.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.streams.next_deadline()
    }

    /// Whether a delivery is in hand, or will be without further input, or frames wait for the entity's start.
    pub fn is_busy(&self) -> bool {
        self.streams.keep_awake() || self.waiting_frames > 0
    }

    /// Whether a message of any producer is undelivered or unconfirmed.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.waiting_frames > 0 || self.streams.are_busy()
    }

    /// Deliveries that were reported as overdue.
    pub fn overdue(&self) -> u64 {
        self.streams.overdue()
    }

    /// Counts of all links since the start, including ended links.
    pub fn counters(&self) -> ConsumerCounters {
        self.streams.counters()
    }

    /// Changes when a link begins, ends, or gets a producer on another node.
    pub(crate) fn links_version(&self) -> u64 {
        self.streams.links_version()
    }

    /// The streams that have a link, ascending.
    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.streams.ids()
    }

    /// The nodes of the links' producers.
    pub(crate) fn producer_nodes(&self) -> impl Iterator<Item = &UniqueAddress> {
        self.streams.producers().map(|(controller, _)| &controller.node)
    }

    /// The state for this controller's successor.
    pub(crate) fn handover_state(&self, now: Instant) -> HandoverState {
        let (of_links, links) = (self.streams.attempts(), self.streams.ids());
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
        if !self.settings.link.omissions.has(Clause::Marks) {
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
        self.streams.note_use(now, index);
        self.handle_input(now, index, consumer_link::Input::Frames { header: batch.header, frames: batch.frames }, out);
    }

    /// The index of the stream's link; makes the link if there is room for one.
    fn stream_index(&mut self, now: Instant, key: (StreamId, ProducerId), out: &mut Vec<Effect<P>>) -> Option<usize> {
        if let Some(index) = self.streams.find(&key) {
            return Some(index);
        }
        if self.streams.len() + self.given_up.len() >= self.settings.max_producers_per_entity {
            let longest_idle = self.streams.longest_idle()?;
            self.handle_input(now, longest_idle, consumer_link::Input::Stop, out);
        }
        if self.streams.have_another_of(&key.1, now) {
            out.push(Effect::SameProducer(key.1.clone()));
        }
        let index = self.streams.open(now, key, &self.settings.link);
        self.handle_input(now, index, consumer_link::Input::Start(Dedupe::none()), out);
        let streams = &self.streams;
        self.watermarks.prune(now, |stream| streams.have(stream));
        Some(index)
    }

    fn on_start(&mut self, now: Instant, dedupe: Dedupe, out: &mut Vec<Effect<P>>) {
        if !self.settings.link.omissions.has(Clause::Marks) {
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
        // Too late for a link that has ended (C16).
        if let Some(index) = self.streams.of_delivery(handle) {
            self.streams.note_use(now, index);
            self.handle_input(now, index, input, out);
        }
    }

    fn end_links(&mut self, now: Instant, gone: impl Fn(&ControllerRef, Epoch) -> bool, out: &mut Vec<Effect<P>>) {
        for index in (0..self.streams.len()).rev() {
            if self.streams.producer(index).is_some_and(|(controller, epoch)| gone(controller, epoch)) {
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
        let replies: Vec<Effect<P>> = (self.streams.producers())
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
        while let Some((index, is_spent)) = self.streams.pop_due(now, self.settings.consumer_idle_after) {
            let input = if is_spent { consumer_link::Input::Stop } else { consumer_link::Input::Tick };
            self.handle_input(now, index, input, out);
        }
    }

    /// Gives one link an input, and passes its effects on. The link may have ended afterwards.
    fn handle_input(&mut self, now: Instant, index: usize, input: consumer_link::Input<P>, out: &mut Vec<Effect<P>>) {
        let handled = self.streams.handle(now, index, input, &self.settings, &mut self.watermarks, out);
        self.given_up.extend(handled.given_up);
        if handled.has_ended {
            self.report_stopped(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::DeliverySettings;
    use crate::ids::SeqNr;
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
