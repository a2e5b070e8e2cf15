//! A virtual clock, and a network that loses, delays, duplicates and reorders messages.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) struct World<E> {
    pub(crate) rng: ChaCha8Rng,
    pub(crate) now: Instant,
    pub(crate) start: Instant,
    queue: BinaryHeap<Reverse<Entry<E>>>,
    order: u64,
    pub(crate) link: Link,
}

/// Fault probabilities and delays of the network.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) drop: f64,
    pub(crate) duplicate: f64,
    pub(crate) max_delay: Duration,
    pub(crate) reorders: bool,
}

impl Link {
    pub(crate) fn draw(rng: &mut ChaCha8Rng) -> Self {
        Self {
            drop: [0.0, 0.05, 0.2, 0.35][rng.random_range(0..4)],
            duplicate: [0.0, 0.05][rng.random_range(0..2)],
            max_delay: Duration::from_millis(rng.random_range(0..=50)),
            reorders: rng.random_bool(0.5),
        }
    }

    pub(crate) fn without_faults(self) -> Self {
        Self { drop: 0.0, duplicate: 0.0, ..self }
    }
}

struct Entry<E> {
    at: Instant,
    order: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<E: Clone> World<E> {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let link = Link::draw(&mut rng);
        let now = Instant::now();
        Self { rng, now, start: now, queue: BinaryHeap::new(), order: 0, link }
    }

    pub(crate) fn at(&mut self, at: Instant, event: E) {
        self.order += 1;
        self.queue.push(Reverse(Entry { at: at.max(self.now), order: self.order, event }));
    }

    pub(crate) fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    /// Sends a message through the network; `extra` is added to the usual delay. Returns whether any copy arrives.
    pub(crate) fn send(&mut self, event: &E, extra: Duration) -> bool {
        let copies = 1 + u32::from(self.rng.random_bool(self.link.duplicate));
        let mut arrives = false;
        for _ in 0..copies {
            if self.rng.random_bool(self.link.drop) {
                continue;
            }
            let delay = if self.link.reorders { self.upto(self.link.max_delay) } else { self.link.max_delay };
            self.after(delay + extra, event.clone());
            arrives = true;
        }
        arrives
    }

    pub(crate) fn upto(&mut self, limit: Duration) -> Duration {
        Duration::from_micros(self.rng.random_range(0..=limit.as_micros() as u64))
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    pub(crate) fn pick(&mut self, count: usize) -> usize {
        (self.rng.next_u64() % count as u64) as usize
    }

    pub(crate) fn next(&mut self) -> Option<E> {
        let Reverse(entry) = self.queue.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.now.duration_since(self.start)
    }
}
