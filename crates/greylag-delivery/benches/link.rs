//! The two machines of a link alone, without tasks, sockets and codec.
//!
//! `cargo bench -p greylag-delivery --bench link`. One thread hands each effect of one machine to the other. Measured
//! are frames per second, allocations per frame, upstream messages per frame, and the bytes that an idle link keeps.

#![allow(clippy::print_stdout, missing_docs)]

#[path = "../../greylag-sharding/benches/support/mod.rs"]
mod support;
#[path = "../tests/support/two_ends.rs"]
mod two_ends;

use std::alloc::System;
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_delivery::{Content, DeliverySettings};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::{is_measured, report};
use two_ends::TwoEnds;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PAYLOAD: usize = 64;
const ROUNDS: usize = 5;

/// The payload of a frame: bytes that clones share.
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

fn link(window: u32) -> TwoEnds<Shared> {
    let mut settings = DeliverySettings::default();
    settings.consumer.flow_control_window = window;
    settings.consumer.max_outstanding_deliveries = window;
    TwoEnds::new(&settings)
}

fn main() {
    let messages = if is_measured() { 2_000_000 } else { 20_000 };
    let payload = Shared(Bytes::from_static(&[7; PAYLOAD]));
    for window in [8, 50, 1024] {
        let (mut rates, mut allocations, mut upstream) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut link = link(window);
            link.run(10_000, &payload);
            let (up_before, region, start) = (link.upstream(), Region::new(ALLOCATOR), Instant::now());
            link.run(messages, &payload);
            let took = start.elapsed().as_secs_f64();
            rates.push(messages as f64 / took / 1e6);
            allocations.push(region.change().allocations as f64 / messages as f64);
            upstream.push((link.upstream() - up_before) as f64 / messages as f64);
        }
        let what = format!("one link, {PAYLOAD} bytes, window {window}");
        report(&format!("{what}: million frames/s on one core"), rates);
        report(&format!("{what}: allocations a frame"), allocations);
        report(&format!("{what}: upstream messages a frame"), upstream);
    }
    idle();
}

/// The memory of an idle link: of each end, five minutes after its only message.
fn idle() {
    let count = if is_measured() { 10_000 } else { 100 };
    let payload = Shared(Bytes::from_static(&[7; PAYLOAD]));
    let mut links: Vec<_> = (0..count).map(|_| link(50)).collect();
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
