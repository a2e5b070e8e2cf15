//! A timer wheel: inserting and removing one item takes the same few steps however many there are.
//!
//! Time is counted in ticks. An item stands in a list of one bucket: of the finest level if its tick is in the present
//! block of 64 ticks, of a coarser level if it lies further ahead, and moves down when its block begins. Nothing is due
//! before its time; an item is due with the first tick that begins at its time or later.
//!
//! Source: sharding §4.4, §10 (timers); Varghese and Lauck 1987.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// Bits of the tick that select a bucket of a level.
const BITS: u32 = 6;
const BUCKETS: usize = 1 << BITS;

/// The place of an item, to remove it before it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::machine::shard) struct TimerPlace(NonZeroU32);

impl TimerPlace {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// One item that is to fall due.
#[derive(Debug)]
struct Entry<T> {
    /// `None`: the place is free, and `next` is the next free one.
    item: Option<T>,
    at: Instant,
    serial: u64,
    tick: u64,
    bucket: (u8, u8),
    next: Option<TimerPlace>,
    previous: Option<TimerPlace>,
}

#[derive(Debug)]
struct Level {
    /// A bit for each bucket that is not empty.
    occupied: u64,
    heads: [Option<TimerPlace>; BUCKETS],
}

/// See the module's description. An empty wheel holds no memory.
#[derive(Debug)]
pub(in crate::machine::shard) struct Wheel<T> {
    start: Instant,
    tick: Duration,
    /// Everything up to this tick has been given out.
    now: u64,
    levels: Vec<Level>,
    entries: Vec<Entry<T>>,
    free: Option<TimerPlace>,
    last_serial: u64,
}

impl<T> Wheel<T> {
    /// An empty wheel whose ticks are `tick` long; at least a nanosecond.
    pub(in crate::machine::shard) fn new(tick: Duration, start: Instant) -> Self {
        let tick = tick.max(Duration::from_nanos(1));
        Self { start, tick, now: 0, levels: Vec::new(), entries: Vec::new(), free: None, last_serial: 0 }
    }

    /// Lets `item` fall due at `at`, or with the next tick if `at` has passed.
    pub(in crate::machine::shard) fn insert(&mut self, at: Instant, item: T) -> TimerPlace {
        let nanos = at.saturating_duration_since(self.start).as_nanos();
        let tick = u64::try_from(nanos.div_ceil(self.tick.as_nanos())).unwrap_or(u64::MAX);
        let tick = tick.max(self.now.saturating_add(1));
        self.last_serial += 1;
        let serial = self.last_serial;
        let entry = Entry { item: Some(item), at, serial, tick, bucket: (0, 0), next: None, previous: None };
        let place = match self.free {
            Some(place) => {
                self.free = self.entries[place.index()].next;
                self.entries[place.index()] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                let number = u32::try_from(self.entries.len()).ok().and_then(NonZeroU32::new);
                TimerPlace(number.expect("fewer than four billion things are due at a time"))
            }
        };
        self.link(place);
        place
    }

    /// Removes the item at `place`.
    pub(in crate::machine::shard) fn remove(&mut self, place: TimerPlace) {
        self.unlink(place);
        self.release(place);
    }

    /// Checks a wheel of few items: each stands in the bucket of its tick, which lies ahead.
    pub(in crate::machine::shard) fn check_invariants(&self) {
        if !cfg!(debug_assertions) || self.entries.len() > 64 {
            return;
        }
        for entry in self.entries.iter().filter(|entry| entry.item.is_some()) {
            assert!(entry.tick > self.now, "what is due was given out");
            let (level, bucket) = entry.bucket;
            let of = &self.levels[usize::from(level)];
            assert!(of.occupied & (1 << bucket) != 0, "an item is found by its bucket");
            let block = BITS * u32::from(level);
            assert_eq!((entry.tick >> block) & (BUCKETS as u64 - 1), u64::from(bucket), "an item stands in its bucket");
        }
    }

    /// The time of the tick with which an item is due next, or moves to a finer level.
    pub(in crate::machine::shard) fn next_deadline(&self) -> Option<Instant> {
        let (tick, _) = self.next_tick()?;
        let nanos = u128::from(tick).checked_mul(self.tick.as_nanos())?;
        self.start.checked_add(Duration::from_nanos(u64::try_from(nanos).ok()?))
    }

    /// Takes out the items that are due by `now`, in the order of their times; of the same time, in the order of
    /// insertion.
    pub(in crate::machine::shard) fn take_due(&mut self, now: Instant) -> Vec<T> {
        let mut due = Vec::new();
        let nanos = now.saturating_duration_since(self.start).as_nanos();
        let tick = u64::try_from(nanos / self.tick.as_nanos()).unwrap_or(u64::MAX);
        while let Some((next, bucket)) = self.next_tick().filter(|(next, _)| *next <= tick) {
            self.now = next;
            self.empty_bucket(bucket, &mut due);
        }
        self.now = self.now.max(tick);
        due.sort_unstable_by_key(|(at, serial, _)| (*at, *serial));
        due.into_iter().map(|(_, _, item)| item).collect()
    }

    /// Takes out the items that are due with the present tick, and moves the rest of the bucket to finer levels.
    fn empty_bucket(&mut self, (level, bucket): (u8, u8), due: &mut Vec<(Instant, u64, T)>) {
        let of = &mut self.levels[usize::from(level)];
        of.occupied &= !(1 << bucket);
        let mut next = of.heads[usize::from(bucket)].take();
        while let Some(place) = next {
            let entry = &mut self.entries[place.index()];
            next = entry.next.take();
            entry.previous = None;
            if entry.tick > self.now {
                self.link(place);
                continue;
            }
            let (at, serial) = (entry.at, entry.serial);
            due.extend(entry.item.take().map(|item| (at, serial, item)));
            self.release(place);
        }
    }

    /// The first tick at which a non-empty bucket begins. All buckets of a finer level come before those of a coarser
    /// level, whose blocks begin later.
    fn next_tick(&self) -> Option<(u64, (u8, u8))> {
        let (at, level) = self.levels.iter().enumerate().find(|(_, level)| level.occupied != 0)?;
        let bucket = level.occupied.trailing_zeros();
        let shift = BITS * u32::try_from(at).ok()?;
        let block = self.now.checked_shr(shift + BITS).unwrap_or(0).checked_shl(shift + BITS).unwrap_or(0);
        Some((block | (u64::from(bucket) << shift), (u8::try_from(at).ok()?, u8::try_from(bucket).ok()?)))
    }

    /// Puts an entry into the bucket of its tick, which lies ahead.
    fn link(&mut self, place: TimerPlace) {
        let entry = &mut self.entries[place.index()];
        // The highest bit in which the tick differs from the present one tells the level.
        let level = (u64::BITS - 1 - ((entry.tick ^ self.now) | 1).leading_zeros()) / BITS;
        let bucket = (entry.tick >> (level * BITS)) & (BUCKETS as u64 - 1);
        entry.bucket = (level as u8, bucket as u8);
        while self.levels.len() <= level as usize {
            self.levels.push(Level { occupied: 0, heads: [None; BUCKETS] });
        }
        let of = &mut self.levels[level as usize];
        of.occupied |= 1 << bucket;
        entry.next = of.heads[bucket as usize].replace(place);
        if let Some(next) = entry.next {
            self.entries[next.index()].previous = Some(place);
        }
    }

    fn unlink(&mut self, place: TimerPlace) {
        let entry = &self.entries[place.index()];
        let (next, previous, (level, bucket)) = (entry.next, entry.previous, entry.bucket);
        if let Some(next) = next {
            self.entries[next.index()].previous = previous;
        }
        match previous {
            Some(previous) => self.entries[previous.index()].next = next,
            None => {
                let of = &mut self.levels[usize::from(level)];
                of.heads[usize::from(bucket)] = next;
                if next.is_none() {
                    of.occupied &= !(1 << bucket);
                }
            }
        }
    }

    fn release(&mut self, place: TimerPlace) {
        let entry = &mut self.entries[place.index()];
        entry.item = None;
        entry.previous = None;
        entry.next = self.free.replace(place);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const TICK: Duration = Duration::from_millis(10);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nothing_is_due_early_and_order_is_that_of_the_times() {
        let start = Instant::now();
        let mut wheel = Wheel::new(TICK, start);
        let ms = |ms: u64| start + Duration::from_millis(ms);
        for (at, name) in [(7, "c"), (3, "a"), (3, "b"), (11, "d")] {
            wheel.insert(ms(at), name);
        }
        assert_eq!(wheel.next_deadline(), Some(ms(10)));
        assert!(wheel.take_due(ms(9)).is_empty());
        assert_eq!(wheel.take_due(ms(10)), ["a", "b", "c"]);
        assert_eq!(wheel.next_deadline(), Some(ms(20)), "never early");
        assert_eq!(wheel.take_due(ms(20)), ["d"]);
        assert_eq!(wheel.next_deadline(), None);
    }

    #[test]
    fn items_due_at_once_come_with_the_next_tick() {
        let start = Instant::now();
        let mut wheel = Wheel::new(TICK, start);
        wheel.take_due(start + SECOND);
        wheel.insert(start, "past");
        wheel.insert(start + SECOND, "now");
        assert_eq!(wheel.next_deadline(), Some(start + SECOND + TICK));
        assert_eq!(wheel.take_due(start + SECOND + TICK), ["past", "now"]);
    }

    #[test]
    fn moments_beyond_all_time_are_no_deadline() {
        let start = Instant::now();
        let mut wheel = Wheel::new(Duration::from_nanos(1), start);
        let far = start + SECOND * u32::MAX;
        let place = wheel.insert(far, ());
        assert!(wheel.next_deadline().is_some_and(|at| at <= far && at > start));
        wheel.remove(place);
        assert_eq!(wheel.next_deadline(), None);
    }

    #[test]
    fn places_are_used_again() {
        let start = Instant::now();
        let mut wheel = Wheel::new(TICK, start);
        for n in 0..10_000_u32 {
            let place = wheel.insert(start + SECOND * n, n);
            wheel.remove(place);
        }
        assert_eq!(
            wheel.entries.len(),
            1,
            "a timer that is set and cancelled for each message costs nothing that stays"
        );
    }

    /// Against a sorted map of the same things.
    #[test]
    fn wheel_yields_items_in_the_order_of_a_sorted_map() {
        for seed in 0..200 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let start = Instant::now();
            let (mut wheel, mut model, mut places) = (Wheel::new(TICK, start), BTreeMap::new(), BTreeMap::new());
            let (mut now, mut serial) = (start, 0_u64);
            for _ in 0..400 {
                match rng.random_range(0..4) {
                    0 | 1 => {
                        serial += 1;
                        let far = 1_u64 << rng.random_range(0..40);
                        let at = now + Duration::from_micros(rng.random_range(0..far));
                        places.insert(serial, (at, wheel.insert(at, serial)));
                        model.insert((at, serial), ());
                    }
                    2 if !places.is_empty() => {
                        let chosen = rng.random_range(0..places.len());
                        let (serial, (at, place)) = places.iter().nth(chosen).map(|(n, entry)| (*n, *entry)).unwrap();
                        places.remove(&serial);
                        wheel.remove(place);
                        model.remove(&(at, serial));
                    }
                    _ => {
                        let next = wheel.next_deadline();
                        assert_eq!(next.is_some(), !model.is_empty(), "seed {seed}");
                        let far = 1_u64 << rng.random_range(0..40);
                        now = match next {
                            Some(next) if rng.random_bool(0.7) => next.max(now),
                            _ => now + Duration::from_micros(rng.random_range(0..far)),
                        };
                        let due = wheel.take_due(now);
                        assert!(wheel.next_deadline().is_none_or(|next| next > now), "seed {seed}");
                        let due: Vec<_> =
                            due.into_iter().map(|serial| (places.remove(&serial).unwrap().0, serial)).collect();
                        assert!(due.is_sorted() && due.iter().all(|(at, _)| *at <= now), "seed {seed}: {due:?}");
                        due.iter().for_each(|entry| model.retain(|key, ()| key != entry));
                        let late = model.keys().next().filter(|(at, _)| *at + TICK * 2 <= now);
                        assert_eq!(late, None, "seed {seed}: more than a tick late");
                    }
                }
            }
        }
    }
}
