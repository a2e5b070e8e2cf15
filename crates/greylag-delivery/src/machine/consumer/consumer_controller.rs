//! The consumer controller of a consumer that is no entity: point to point, or a worker.
//!
//! Point to point there is one link, which moves from producer to producer: by registration, or by the `first` frame of
//! a successor. A worker serves every producer of its work at the same time, so it has one link per producer, like an
//! entity, but without passivation and factory.
//!
//! Source: delivery §1.3, §1.4, C15, W1.

use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::ids::ControllerRef;
use crate::machine::consumer_link::{self, ConsumerCounters, ConsumerLink};
use crate::machine::dedupe::{Dedupe, Watermarks};
use crate::machine::sharding_consumer::{self, DeliveryHandle, Effect, ShardingConsumer, ShardingConsumerSettings};
use crate::message::{Content, ProducerStopped, SequencedBatch};

/// The kind of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumerKind {
    /// Takes the messages of one producer at a time, in order.
    PointToPoint,
    /// Takes the messages of every producer of its work, in any order.
    Worker,
}

/// An input to the consumer controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// Frames arrived.
    Batch(SequencedBatch<P>),
    /// A producer's link has ended.
    ProducerStopped(ProducerStopped),
    /// A node was removed from the cluster.
    NodeRemoved(UniqueAddress),
    /// A consumer starts; it replaces the present one, if there is one.
    Start(Dedupe),
    /// Attach to this producer controller. Point to point only: producers find their workers themselves.
    RegisterTo(ControllerRef),
    /// The consumer has processed a delivery.
    Confirm(DeliveryHandle),
    /// The consumer gave an attempt up; the next one follows after the pause, or after the usual back-off.
    Abandon(DeliveryHandle, Option<Duration>),
    /// The consumer has processed several deliveries at once.
    ConfirmAll(Vec<DeliveryHandle>),
    /// The message cannot be decoded; it waits until it is confirmed.
    Unreadable(DeliveryHandle),
    /// End in order. Point to point, the messages already here are delivered first; a worker ends with the jobs in
    /// hand, since other workers can do the rest.
    DeliverThenStop,
    /// The consumer has ended.
    Stop,
    /// A deadline may have passed.
    Tick,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct ConsumerController<P> {
    links: Links<P>,
}

#[derive(Debug, Clone)]
enum Links<P> {
    One(Box<OneLink<P>>),
    PerProducer(Box<ShardingConsumer<P>>),
}

#[derive(Debug, Clone)]
struct OneLink<P> {
    link: ConsumerLink<P>,
    watermarks: Watermarks,
    scratch: Vec<consumer_link::Effect<P>>,
}

/// The link number in the delivery handles of a point-to-point controller.
const ONLY_LINK: u64 = 1;

impl<P: Content> ConsumerController<P> {
    /// A controller without a consumer.
    pub fn new(kind: ConsumerKind, settings: ShardingConsumerSettings) -> Self {
        let links = match kind {
            ConsumerKind::PointToPoint => Links::One(Box::new(OneLink {
                watermarks: Watermarks::new(settings.dedupe_streams_max, settings.dedupe_retention),
                link: ConsumerLink::new(settings.link),
                scratch: Vec::new(),
            })),
            ConsumerKind::Worker => Links::PerProducer(Box::new(ShardingConsumer::new(settings))),
        };
        Self { links }
    }

    /// Handles one input.
    pub fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        match &mut self.links {
            Links::One(link) => link.handle(now, input, out),
            Links::PerProducer(links) => {
                if let Some(input) = for_worker(input) {
                    links.handle(now, input, out);
                }
            }
        }
    }

    /// The next time at which a tick may have an effect; may be early.
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.links {
            Links::One(one) => one.link.next_deadline(),
            Links::PerProducer(links) => links.next_deadline(),
        }
    }

    /// Whether a message is handed out, or could be.
    pub fn is_busy(&self) -> bool {
        match &self.links {
            Links::One(one) => one.link.is_busy(),
            Links::PerProducer(links) => links.is_busy(),
        }
    }

    /// Counts of all links since the start, including ended links.
    pub fn counters(&self) -> ConsumerCounters {
        match &self.links {
            Links::One(one) => one.link.counters(),
            Links::PerProducer(links) => links.counters(),
        }
    }

    /// Frames dropped because of too many producers, or too many frames before the start.
    pub fn refused(&self) -> u64 {
        match &self.links {
            Links::One(_) => 0,
            Links::PerProducer(links) => links.refused(),
        }
    }

    /// Deliveries unconfirmed for longer than the warning threshold.
    pub fn overdue(&self) -> u64 {
        match &self.links {
            Links::One(one) => one.link.overdue().into(),
            Links::PerProducer(links) => links.overdue(),
        }
    }

    /// Links to producers.
    pub fn link_count(&self) -> usize {
        match &self.links {
            Links::One(one) => usize::from(one.link.stream().is_some()),
            Links::PerProducer(links) => links.link_count(),
        }
    }

    /// How far each stream is processed.
    pub fn watermarks(&self) -> &Watermarks {
        match &self.links {
            Links::One(one) => &one.watermarks,
            Links::PerProducer(links) => links.watermarks(),
        }
    }
}

/// Translates an input for the links of a worker; a registration has no effect.
fn for_worker<P>(input: Input<P>) -> Option<sharding_consumer::Input<P>> {
    Some(match input {
        Input::Batch(batch) => sharding_consumer::Input::Batch(batch),
        Input::ProducerStopped(stopped) => sharding_consumer::Input::ProducerStopped(stopped),
        Input::NodeRemoved(node) => sharding_consumer::Input::NodeRemoved(node),
        Input::Start(dedupe) => sharding_consumer::Input::Start(dedupe),
        Input::RegisterTo(_) => return None,
        Input::Confirm(handle) => sharding_consumer::Input::Confirm(handle),
        Input::ConfirmAll(handles) => sharding_consumer::Input::ConfirmAll(handles),
        Input::Abandon(handle, pause) => sharding_consumer::Input::Abandon(handle, pause),
        Input::Unreadable(handle) => sharding_consumer::Input::Unreadable(handle),
        Input::DeliverThenStop => sharding_consumer::Input::Finish,
        Input::Stop => sharding_consumer::Input::Stop,
        Input::Tick => sharding_consumer::Input::Tick,
    })
}

impl<P: Content> OneLink<P> {
    fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        let was_busy = self.link.is_busy();
        let input = match input {
            Input::Batch(batch) => consumer_link::Input::Frames { header: batch.header, frames: batch.frames },
            // A successor attaches with its `first` frame, or by registration; the application decides which producer
            // that is.
            Input::ProducerStopped(_) | Input::NodeRemoved(_) => return,
            Input::Start(dedupe) => consumer_link::Input::Start(dedupe),
            Input::RegisterTo(controller) => consumer_link::Input::RegisterTo(controller),
            Input::Confirm(handle) => consumer_link::Input::Confirm(handle.key),
            Input::ConfirmAll(handles) => {
                consumer_link::Input::ConfirmAll(handles.into_iter().map(|handle| handle.key).collect())
            }
            Input::Abandon(handle, pause) => consumer_link::Input::Abandon(handle.key, pause),
            Input::Unreadable(handle) => consumer_link::Input::Unreadable(handle.key),
            Input::DeliverThenStop => consumer_link::Input::DeliverThenStop,
            Input::Stop => consumer_link::Input::Stop,
            Input::Tick => consumer_link::Input::Tick,
        };
        self.link.handle(now, input, &mut self.watermarks, &mut self.scratch);
        let producer = self.link.producer_id();
        out.extend(self.scratch.drain(..).filter_map(|effect| Effect::of_link(effect, ONLY_LINK, producer)));
        let is_busy = self.link.is_busy() && !self.link.is_stopped();
        if is_busy != was_busy {
            out.push(Effect::Busy(is_busy));
        }
        let (link, watermarks) = (&self.link, &mut self.watermarks);
        watermarks.prune(now, |stream| link.stream() == Some(stream));
    }
}
