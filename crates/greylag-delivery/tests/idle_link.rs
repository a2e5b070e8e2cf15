//! The memory of the two ends of an idle link, counted by the allocator. Only one test, since the allocator counts the
//! whole process.
//!
//! Source: delivery §12: at most 512 bytes at the producer's end, 1 KiB at the consumer's.

#[path = "support/two_ends.rs"]
#[allow(dead_code, reason = "the benchmark of a link uses the rest")]
mod two_ends;

use std::alloc::System;
use std::time::Duration;

use greylag_delivery::DeliverySettings;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use two_ends::TwoEnds;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LINKS: usize = 100;

/// Bytes freed per value when `ends` are dropped.
fn bytes_of_each<T>(ends: Vec<Box<T>>) -> usize {
    let (count, region) = (ends.len(), Region::new(ALLOCATOR));
    drop(ends);
    let change = region.change();
    (change.bytes_deallocated - change.bytes_allocated) / count
}

#[test]
fn an_idle_link_is_small() {
    let settings = DeliverySettings::default();
    let mut links: Vec<TwoEnds<u64>> = (0..LINKS).map(|_| TwoEnds::new(&settings)).collect();
    for link in &mut links {
        (0..100).for_each(|_| link.run(1, &7));
        link.sleep(Duration::from_secs(300));
        assert_eq!(link.next_deadline(), None, "no timer is left after five minutes");
        assert!(link.producer.is_settled());
    }
    let (producers, consumers): (Vec<_>, Vec<_>) =
        links.into_iter().map(|link| (Box::new(link.producer), Box::new(link.consumer))).unzip();
    let (producer, consumer) = (bytes_of_each(producers), bytes_of_each(consumers));
    assert!((1..=512).contains(&producer), "{producer} bytes at the producer's end");
    assert!((1..=1024).contains(&consumer), "{consumer} bytes at the consumer's end");
}
