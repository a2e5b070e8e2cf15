//! Both ends of one link with direct calls between them: each effect of one machine is handed to the other, and the
//! clock is virtual. For tests and benchmarks of a link's costs.

use std::time::{Duration, Instant};

use greylag_delivery::machine::consumer_link::{self, ConsumerLink};
use greylag_delivery::machine::producer_link::{self, Frames, LinkMode, ProducerLink};
use greylag_delivery::{
    BatchHeader, Content, ControllerRef, Dedupe, DeliverySettings, ProducerId, ProducerIdentity, SeqNr,
    SequencedMessage, Watermarks,
};

/// Messages accepted before the consumer's machine runs, like one turn of a driver.
const TURN: u64 = 128;

/// Both ends, and the messages between them.
pub(crate) struct TwoEnds<P> {
    now: Instant,
    header: BatchHeader,
    consumer_ref: ControllerRef,
    pub(crate) producer: ProducerLink<P>,
    pub(crate) consumer: ConsumerLink<P>,
    watermarks: Watermarks,
    down: Vec<producer_link::Effect<P>>,
    up: Vec<consumer_link::Effect<P>>,
    frames: Vec<SequencedMessage<P>>,
    next: u64,
    delivered: u64,
    upstream: u64,
}

impl<P: Content> TwoEnds<P> {
    pub(crate) fn new(settings: &DeliverySettings) -> Self {
        let now = Instant::now();
        let identity = ProducerIdentity::in_memory(ProducerId::new("p").expect("a name"));
        let reference = |instance| ControllerRef {
            node: "localhost:17355#1".parse().expect("an address"),
            path: "delivery/1".into(),
            instance,
        };
        let header = BatchHeader {
            producer_id: identity.producer_id.clone(),
            stream_id: identity.stream_id,
            epoch: identity.epoch,
            controller: reference(1),
            ordered: true,
            lowest: 0,
        };
        let mut link = Self {
            now,
            header,
            consumer_ref: reference(2),
            producer: ProducerLink::new(settings.producer_link(LinkMode::Sharding, &identity), now),
            consumer: ConsumerLink::new(settings.consumer_link(LinkMode::Sharding)),
            watermarks: Watermarks::new(10, Duration::from_secs(60)),
            down: Vec::new(),
            up: Vec::new(),
            frames: Vec::new(),
            next: 1,
            delivered: 0,
            upstream: 0,
        };
        let start = consumer_link::Input::Start(Dedupe::none());
        link.consumer.handle(now, start, &mut link.watermarks, &mut link.up);
        link
    }

    /// Sends this many messages; each delivery is confirmed at once.
    pub(crate) fn run(&mut self, messages: u64, payload: &P) {
        let end = self.delivered + messages;
        while self.delivered < end {
            let before = self.delivered;
            self.accept((end - self.delivered).min(TURN), payload);
            self.settle();
            assert!(self.delivered > before, "the link goes on");
        }
    }

    /// Number of the consumer's messages so far.
    pub(crate) fn upstream(&self) -> u64 {
        self.upstream
    }

    /// The next deadline of either end.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        [self.producer.next_deadline(), self.consumer.next_deadline()].into_iter().flatten().min()
    }

    /// Advances time, with each tick at its time.
    pub(crate) fn sleep(&mut self, pause: Duration) {
        let end = self.now + pause;
        while let Some(at) = self.next_deadline().filter(|at| *at <= end) {
            self.now = at;
            self.producer.handle(at, producer_link::Input::Tick, &mut self.down);
            self.consumer.handle(at, consumer_link::Input::Tick, &mut self.watermarks, &mut self.up);
            self.confirm();
            self.settle();
        }
        self.now = end;
    }

    /// Accepts messages while there is demand, at most `count`.
    fn accept(&mut self, count: u64, payload: &P) {
        for _ in 0..count.min(self.producer.demand()) {
            let (total, frames) = (SeqNr(self.next), Frames::Whole(payload.clone()));
            let input = producer_link::Input::Accept { total, frames, ack: false };
            self.producer.handle(self.now, input, &mut self.down);
            self.next += 1;
        }
    }

    /// Carries out effects until there are none.
    fn settle(&mut self) {
        while !self.down.is_empty() {
            for effect in self.down.drain(..) {
                if let producer_link::Effect::Transmit { frame, first, lowest, .. } = effect {
                    self.header.lowest = lowest;
                    self.frames.push(SequencedMessage { frame, first });
                }
            }
            if self.frames.is_empty() {
                return;
            }
            let (header, frames) = (self.header.clone(), std::mem::take(&mut self.frames));
            let input = consumer_link::Input::Frames { header, frames };
            self.consumer.handle(self.now, input, &mut self.watermarks, &mut self.up);
            self.confirm();
        }
    }

    fn confirm(&mut self) {
        let mut messages = std::mem::take(&mut self.up);
        while !messages.is_empty() {
            for effect in messages.drain(..) {
                match effect {
                    consumer_link::Effect::Deliver { key, .. } => {
                        self.delivered += 1;
                        let input = consumer_link::Input::Confirm(key);
                        self.consumer.handle(self.now, input, &mut self.watermarks, &mut self.up);
                    }
                    consumer_link::Effect::Reply { epoch, message, .. } => {
                        self.upstream += 1;
                        let from = self.consumer_ref.clone();
                        let input = producer_link::Input::Received { from, epoch, message };
                        self.producer.handle(self.now, input, &mut self.down);
                    }
                    _ => {}
                }
            }
            std::mem::swap(&mut messages, &mut self.up);
        }
        self.up = messages;
    }
}
