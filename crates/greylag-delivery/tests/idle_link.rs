//! What the two ends of a link keep while it is idle, counted by the allocator. One test, since the counts are of the whole
//! process.
//!
//! Source: delivery §12: at most 512 bytes at the producer's end, 1 KiB at the consumer's.

use std::alloc::System;
use std::time::{Duration, Instant};

use greylag_delivery::machine::consumer_link::{self, ConsumerLink};
use greylag_delivery::machine::producer_link::{self, Frames, LinkMode, ProducerLink};
use greylag_delivery::{
    BatchHeader, ControllerRef, Dedupe, DeliverySettings, ProducerId, ProducerIdentity, SeqNr, SequencedMessage,
    Watermarks,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LINKS: usize = 100;

/// Both ends of a link.
struct Link {
    now: Instant,
    header: BatchHeader,
    consumer_ref: ControllerRef,
    producer: ProducerLink<u64>,
    consumer: ConsumerLink<u64>,
    watermarks: Watermarks,
    down: Vec<producer_link::Effect<u64>>,
    up: Vec<consumer_link::Effect<u64>>,
}

impl Link {
    fn new() -> Self {
        let (settings, now) = (DeliverySettings::default(), Instant::now());
        let identity = ProducerIdentity::in_memory(ProducerId::new("p").unwrap());
        let reference =
            |instance| ControllerRef { node: "n:1#1".parse().unwrap(), path: "delivery/1".into(), instance };
        let header = BatchHeader {
            producer_id: identity.producer_id.clone(),
            stream_id: identity.stream_id,
            epoch: identity.epoch,
            controller: reference(1),
            ordered: true,
            lowest: 1,
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
        };
        link.tell_consumer(consumer_link::Input::Start(Dedupe::none()));
        link
    }

    fn send(&mut self, total: u64) {
        let (total, frames) = (SeqNr(total), Frames::Whole(7));
        self.producer.handle(self.now, producer_link::Input::Accept { total, frames, ack: false }, &mut self.down);
        self.settle();
    }

    fn tell_consumer(&mut self, input: consumer_link::Input<u64>) {
        self.consumer.handle(self.now, input, &mut self.watermarks, &mut self.up);
    }

    /// Carries effects to and fro until there are none; every delivery is confirmed at once.
    fn settle(&mut self) {
        while !self.down.is_empty() || !self.up.is_empty() {
            for effect in std::mem::take(&mut self.down) {
                if let producer_link::Effect::Transmit { frame, first, .. } = effect {
                    let (header, frames) = (self.header.clone(), vec![SequencedMessage { frame, first }]);
                    self.tell_consumer(consumer_link::Input::Frames { header, frames });
                }
            }
            for effect in std::mem::take(&mut self.up) {
                match effect {
                    consumer_link::Effect::Deliver { key, .. } => {
                        self.tell_consumer(consumer_link::Input::Confirm(key));
                    }
                    consumer_link::Effect::Reply { epoch, message, .. } => {
                        let input = producer_link::Input::Received { from: self.consumer_ref.clone(), epoch, message };
                        self.producer.handle(self.now, input, &mut self.down);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Lets time pass until neither end has anything to do.
    fn fall_asleep(&mut self) {
        let end = self.now + Duration::from_secs(300);
        while let Some(at) = [self.producer.next_deadline(), self.consumer.next_deadline()].into_iter().flatten().min()
        {
            assert!(at < end, "no timer is left after five minutes");
            self.now = at;
            self.producer.handle(at, producer_link::Input::Tick, &mut self.down);
            self.tell_consumer(consumer_link::Input::Tick);
            self.settle();
        }
    }
}

/// Bytes that each of them gives back when it goes.
fn bytes_of_each<T>(ends: Vec<Box<T>>) -> usize {
    let (count, region) = (ends.len(), Region::new(ALLOCATOR));
    drop(ends);
    let change = region.change();
    (change.bytes_deallocated - change.bytes_allocated) / count
}

#[test]
fn an_idle_link_is_small() {
    let mut links: Vec<Link> = (0..LINKS).map(|_| Link::new()).collect();
    for link in &mut links {
        (1..=100).for_each(|total| link.send(total));
        link.fall_asleep();
        assert!(link.producer.is_settled());
    }
    let (producers, consumers): (Vec<_>, Vec<_>) =
        links.into_iter().map(|link| (Box::new(link.producer), Box::new(link.consumer))).unzip();
    let (producer, consumer) = (bytes_of_each(producers), bytes_of_each(consumers));
    assert!((1..=512).contains(&producer), "{producer} bytes at the producer's end");
    assert!((1..=1024).contains(&consumer), "{consumer} bytes at the consumer's end");
}
