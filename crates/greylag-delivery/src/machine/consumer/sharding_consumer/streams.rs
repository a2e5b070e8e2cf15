//! The streams of an entity that have a link, with the deadlines and the counters of their links.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::protocol::{DeliveryHandle, Effect, ShardingConsumerSettings};
use crate::ids::{ControllerRef, Epoch, ProducerId, SeqNr, StreamId};
use crate::machine::consumer_link::{self, ConsumerCounters, ConsumerLink, ConsumerLinkSettings, PoisonPolicy};
use crate::machine::dedupe::{Attempts, Watermarks};
use crate::machine::tracking::deadlines::{ArmedTimer, Deadlines};
use crate::message::Content;

/// Two streams of one producer id, both with frames within this time, may have two living producers.
const SAME_TIME: Duration = Duration::from_secs(10);

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

/// What became of a link that handled an input.
pub(super) struct Handled {
    /// Whether the link has ended, so that its index is void.
    pub(super) has_ended: bool,
    /// The stream, if a message of it could not be processed and the consumer stops for it
    /// ([`PoisonPolicy::StopConsumer`]).
    pub(super) given_up: Option<(StreamId, ProducerId)>,
}

/// See the module's documentation. The links are addressed by index; a link that begins or ends shifts the others.
#[derive(Debug, Clone)]
pub(super) struct Streams<P> {
    /// Sorted by key.
    streams: Vec<Stream<P>>,
    deadlines: Deadlines<(StreamId, ProducerId)>,
    next_number: u64,
    /// Number of links that keep their entity awake.
    awake: usize,
    overdue: u64,
    counters: ConsumerCounters,
    /// Changes when a link begins, ends, or gets a producer on another node.
    links_version: u64,
    scratch: Vec<consumer_link::Effect<P>>,
}

impl<P: Content> Streams<P> {
    pub(super) fn new() -> Self {
        Self {
            streams: Vec::new(),
            deadlines: Deadlines::new(),
            next_number: 1,
            awake: 0,
            overdue: 0,
            counters: ConsumerCounters::default(),
            links_version: 0,
            scratch: Vec::new(),
        }
    }

    /// Checks the sums, and each link of an entity with few. Source: delivery S15.
    pub(super) fn check_invariants(&self) {
        if !cfg!(debug_assertions) || self.streams.len() > 16 {
            return;
        }
        let awake = self.streams.iter().filter(|stream| stream.awake).count();
        assert_eq!(self.awake, awake, "the links that keep the entity awake are counted");
        let overdue: u64 = self.streams.iter().map(|stream| u64::from(stream.overdue)).sum();
        assert_eq!(self.overdue, overdue, "overdue deliveries are counted");
        assert!(self.streams.is_sorted_by(|one, next| one.key < next.key), "a stream has one link, found by its key");
        for stream in &self.streams {
            assert!(!stream.link.is_stopped(), "a link that has ended is removed");
            assert!(stream.armed.covers(stream.link.next_deadline()), "a link is looked at when it has work to do");
        }
    }

    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether a link has a delivery in hand, or will have without further input.
    pub(super) fn keep_awake(&self) -> bool {
        self.awake > 0
    }

    /// Whether a message of any link is undelivered or unconfirmed.
    pub(super) fn are_busy(&self) -> bool {
        self.streams.iter().any(|stream| stream.busy)
    }

    /// Deliveries that were reported as overdue.
    pub(super) fn overdue(&self) -> u64 {
        self.overdue
    }

    /// Counts of all links since the start, including ended links.
    pub(super) fn counters(&self) -> ConsumerCounters {
        self.counters
    }

    /// Changes when a link begins, ends, or gets a producer on another node.
    pub(super) fn links_version(&self) -> u64 {
        self.links_version
    }

    /// The ids of the streams, ascending.
    pub(super) fn ids(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.streams.iter().map(|stream| stream.key.0)
    }

    /// Whether the stream has a link.
    pub(super) fn have(&self, stream: StreamId) -> bool {
        self.ids().any(|alive| alive == stream)
    }

    /// The producers of the links, each with its epoch.
    pub(super) fn producers(&self) -> impl Iterator<Item = (&ControllerRef, Epoch)> {
        self.streams.iter().filter_map(|stream| stream.link.producer())
    }

    pub(super) fn producer(&self, index: usize) -> Option<(&ControllerRef, Epoch)> {
        self.streams[index].link.producer()
    }

    /// The attempts at the messages that the links hold.
    pub(super) fn attempts(&self) -> impl Iterator<Item = (StreamId, SeqNr, Attempts)> + '_ {
        self.streams.iter().flat_map(|stream| stream.link.attempts())
    }

    // ---- which link -----------------------------------------------------------------------------

    pub(super) fn find(&self, key: &(StreamId, ProducerId)) -> Option<usize> {
        self.streams.binary_search_by(|stream| stream.key.cmp(key)).ok()
    }

    /// The link that handed a delivery out, unless it has ended.
    pub(super) fn of_delivery(&self, handle: &DeliveryHandle) -> Option<usize> {
        let key = (handle.id.stream_id, &handle.id.producer_id);
        let index = self.streams.binary_search_by(|stream| (stream.key.0, &stream.key.1).cmp(&key)).ok()?;
        (self.streams[index].number == handle.link).then_some(index)
    }

    /// Of the links that are not busy, the one without use for longest.
    pub(super) fn longest_idle(&self) -> Option<usize> {
        let idle = (0..self.streams.len()).filter(|index| !self.streams[*index].busy);
        idle.min_by_key(|index| self.streams[*index].used_at)
    }

    /// Whether a stream of this producer id was used lately.
    pub(super) fn have_another_of(&self, producer: &ProducerId, now: Instant) -> bool {
        self.streams.iter().any(|stream| stream.key.1 == *producer && now < stream.used_at + SAME_TIME)
    }

    /// Makes the link of a stream that has none.
    pub(super) fn open(
        &mut self,
        now: Instant,
        key: (StreamId, ProducerId),
        settings: &Arc<ConsumerLinkSettings>,
    ) -> usize {
        let index = self.streams.partition_point(|stream| stream.key < key);
        let number = self.next_number;
        self.next_number += 1;
        let (link, armed) = (ConsumerLink::new(Arc::clone(settings)), ArmedTimer::default());
        let (busy, awake, overdue) = (false, false, 0);
        let stream = Stream { key, number, link, used_at: now, busy, awake, overdue, armed };
        // Reserve exactly one: most entities have one producer, and spare capacity would be most of their memory.
        self.streams.reserve_exact(1);
        self.streams.insert(index, stream);
        index
    }

    pub(super) fn note_use(&mut self, now: Instant, index: usize) {
        self.streams[index].used_at = now;
    }

    // ---- deadlines ------------------------------------------------------------------------------

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// The next link whose deadline may be due, and whether the link was idle for so long that it ends.
    pub(super) fn pop_due(&mut self, now: Instant, idle_after: Duration) -> Option<(usize, bool)> {
        while let Some((entry, key)) = self.deadlines.pop_due(now) {
            let Some(index) = self.find(&key) else { continue };
            let stream = &mut self.streams[index];
            if stream.armed.fired(entry) {
                let idle_for = now.saturating_duration_since(stream.used_at);
                return Some((index, !stream.busy && idle_for >= idle_after));
            }
        }
        None
    }

    // ---- inputs ---------------------------------------------------------------------------------

    /// Gives a link an input, and appends the effects of the link to `out`. Removes the link if it has ended.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        index: usize,
        input: consumer_link::Input<P>,
        settings: &ShardingConsumerSettings,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) -> Handled {
        let stream = &mut self.streams[index];
        let (counted, node) =
            (stream.link.counters(), stream.link.producer().map(|(producer, _)| producer.node.clone()));
        stream.link.handle(now, input, watermarks, &mut self.scratch);
        self.counters.add_since(&counted, &stream.link.counters());
        if stream.link.is_stopped() || stream.link.producer().map(|(producer, _)| &producer.node) != node.as_ref() {
            self.links_version += 1;
        }
        let mut given_up = None;
        for effect in self.scratch.drain(..) {
            match &effect {
                consumer_link::Effect::Poisoned { .. } if settings.link.on_poison == PoisonPolicy::StopConsumer => {
                    given_up = Some(stream.key.clone());
                }
                // Not passed on: the controller reports its own end after its last link.
                consumer_link::Effect::Stopped => continue,
                _ => {}
            }
            out.extend(Effect::of_link(effect, stream.number, Some(&stream.key.1)));
        }
        let has_ended = stream.link.is_stopped();
        stream.busy = !has_ended && stream.link.is_busy();
        let awake = !has_ended && stream.link.keeps_awake();
        match (std::mem::replace(&mut stream.awake, awake), awake) {
            (false, true) => self.awake += 1,
            (true, false) => self.awake -= 1,
            _ => {}
        }
        let overdue = stream.link.overdue();
        self.overdue = self.overdue + u64::from(overdue) - u64::from(std::mem::replace(&mut stream.overdue, overdue));
        if has_ended {
            self.streams.remove(index);
        } else {
            let idle_at = (!stream.busy).then(|| stream.used_at + settings.consumer_idle_after);
            let deadline = [stream.link.next_deadline(), idle_at].into_iter().flatten().min();
            self.deadlines.arm(stream.key.clone(), &mut stream.armed, deadline);
        }
        Handled { has_ended, given_up }
    }
}
