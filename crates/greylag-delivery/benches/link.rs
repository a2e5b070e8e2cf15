//! The two machines of a link alone: no tasks, no sockets, no codec.
//!
//! `cargo bench -p greylag-delivery --bench link`. What is measured is one thread that hands each effect of one machine to the
//! other: frames a second, allocations a frame, upstream messages a frame, and the bytes that an idle link keeps.

#![allow(clippy::print_stdout, missing_docs)]

#[path = "../../greylag-sharding/benches/support/mod.rs"]
mod support;

use std::alloc::System;
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_delivery::machine::consumer_link::{self, ConsumerLink};
use greylag_delivery::machine::producer_link::{self, Frames, LinkMode, ProducerLink};
use greylag_delivery::{
    BatchHeader, Content, ControllerRef, Dedupe, DeliverySettings, ProducerId, ProducerIdentity, SeqNr,
    SequencedMessage, Watermarks,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::{is_measured, report};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PAYLOAD: usize = 64;
const ROUNDS: usize = 5;
/// Messages that are accepted before the consumer's machine runs, as a turn of a driver would.
const TURN: u64 = 128;

/// What a frame carries: bytes that copies share.
#[derive(Clone)]
struct Shared(Bytes);

impl Content for Shared {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn total_len(&self) -> Option<u64> {
        None
    }
}

/// Both ends, and what passes between them.
struct Link {
    now: Instant,
    header: BatchHeader,
    consumer_ref: ControllerRef,
    producer: ProducerLink<Shared>,
    consumer: ConsumerLink<Shared>,
    watermarks: Watermarks,
    down: Vec<producer_link::Effect<Shared>>,
    up: Vec<consumer_link::Effect<Shared>>,
    frames: Vec<SequencedMessage<Shared>>,
    next: u64,
    delivered: u64,
    upstream: u64,
}

impl Link {
    fn new(window: u32) -> Self {
        let mut settings = DeliverySettings::default();
        settings.consumer.flow_control_window = window;
        settings.consumer.max_outstanding_deliveries = window;
        let now = Instant::now();
        let identity = ProducerIdentity::in_memory(ProducerId::new("bench").expect("a name"));
        let reference = |instance| ControllerRef {
            node: "localhost:17355#1".parse().expect("an address"),
            path: "delivery/bench".into(),
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

    /// Accepts as many messages as there is demand for, at most so many.
    fn accept(&mut self, count: u64, payload: &Shared) {
        for _ in 0..count.min(self.producer.demand()) {
            let (total, frames) = (SeqNr(self.next), Frames::Whole(payload.clone()));
            let input = producer_link::Input::Accept { total, frames, ack: false };
            self.producer.handle(self.now, input, &mut self.down);
            self.next += 1;
        }
    }

    /// Carries effects to and fro until there are none.
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

    /// Lets time pass, with each tick at its time.
    fn sleep(&mut self, pause: Duration) {
        let end = self.now + pause;
        loop {
            let (producer, consumer) = (self.producer.next_deadline(), self.consumer.next_deadline());
            match [producer, consumer].into_iter().flatten().min().filter(|at| *at <= end) {
                Some(at) => self.now = at,
                None => break,
            }
            self.producer.handle(self.now, producer_link::Input::Tick, &mut self.down);
            self.consumer.handle(self.now, consumer_link::Input::Tick, &mut self.watermarks, &mut self.up);
            self.confirm();
            self.settle();
        }
        self.now = end;
    }

    fn confirm(&mut self) {
        let mut told = std::mem::take(&mut self.up);
        while !told.is_empty() {
            for effect in told.drain(..) {
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
            std::mem::swap(&mut told, &mut self.up);
        }
        self.up = told;
    }

    fn run(&mut self, messages: u64, payload: &Shared) {
        let end = self.delivered + messages;
        while self.delivered < end {
            let before = self.delivered;
            self.accept((end - self.delivered).min(TURN), payload);
            self.settle();
            assert!(self.delivered > before, "the link goes on");
        }
    }
}

fn main() {
    let messages = if is_measured() { 2_000_000 } else { 20_000 };
    let payload = Shared(Bytes::from_static(&[7; PAYLOAD]));
    for window in [8, 50, 1024] {
        let (mut rates, mut allocations, mut upstream) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut link = Link::new(window);
            link.run(10_000, &payload);
            let (up_before, region, start) = (link.upstream, Region::new(ALLOCATOR), Instant::now());
            link.run(messages, &payload);
            let took = start.elapsed().as_secs_f64();
            rates.push(messages as f64 / took / 1e6);
            allocations.push(region.change().allocations as f64 / messages as f64);
            upstream.push((link.upstream - up_before) as f64 / messages as f64);
        }
        let what = format!("one link, {PAYLOAD} bytes, window {window}");
        report(&format!("{what}: million frames/s on one core"), rates);
        report(&format!("{what}: allocations a frame"), allocations);
        report(&format!("{what}: upstream messages a frame"), upstream);
    }
    idle();
}

/// What a link keeps between its messages: each end with one message behind it, five minutes after.
fn idle() {
    let count = if is_measured() { 10_000 } else { 100 };
    let payload = Shared(Bytes::from_static(&[7; PAYLOAD]));
    let mut links: Vec<Link> = (0..count).map(|_| Link::new(50)).collect();
    for link in &mut links {
        link.run(1, &payload);
        link.sleep(Duration::from_secs(300));
    }
    let bytes = |region: &Region<'_, System>| {
        let change = region.change();
        change.bytes_deallocated.saturating_sub(change.bytes_allocated) as f64 / count as f64
    };
    let (producers, consumers): (Vec<_>, Vec<_>) =
        links.into_iter().map(|link| (Box::new(link.producer), Box::new(link.consumer))).unzip();
    let region = Region::new(ALLOCATOR);
    drop(producers);
    report("an idle link: bytes of the producer's end", [bytes(&region)]);
    let region = Region::new(ALLOCATOR);
    drop(consumers);
    report("an idle link: bytes of the consumer's end", [bytes(&region)]);
}
