//! When to check entities for having been idle too long.
//!
//! Each live slot stands in one bucket: the bucket of the time at which the slot is idle for too long unless touched. A
//! touch moves nothing and only notes the time in the slot; when its bucket has come, a slot that was touched since
//! goes into a later bucket. So a message costs nothing here, and an entity is checked about once for each idle time.
//!
//! Source: sharding §4.10 (idle).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::passivation::Passivation;

/// See the module's description. Times are ticks of the shard.
#[derive(Debug, Default)]
pub(super) struct IdleWheel {
    /// `None`: no entity ends for being idle.
    idle_ticks: Option<u32>,
    /// Ticks that one bucket covers.
    width: u32,
    /// Slots by the number of the bucket; a bucket is due when its last tick has passed.
    buckets: BTreeMap<u32, Vec<u32>>,
    /// Slots that stand in a bucket, a bit for each.
    watched: Vec<u64>,
    /// Slots to be checked now.
    due: Vec<u32>,
}

impl IdleWheel {
    /// For a shard whose ticks are `tick` long.
    pub(super) fn new(passivation: &Passivation, tick: Duration) -> Self {
        let ticks = |time: Duration| {
            let whole = time.as_nanos().div_ceil(tick.as_nanos());
            u32::try_from(whole).unwrap_or(u32::MAX / 2)
        };
        // One tick more than the idle time: a touch falls after the beginning of its tick, and would end the entity too
        // early.
        let idle_ticks = passivation.idle_timeout().map(|idle| ticks(idle) + 1);
        let width = passivation.idle_check_interval().map_or(1, ticks).max(1);
        Self { idle_ticks, width, ..Self::default() }
    }

    /// Notes that a live slot was touched. The slot may be watched already.
    pub(super) fn watch(&mut self, slot: u32, touched: u32) {
        let Some(idle_ticks) = self.idle_ticks else { return };
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if self.watched.len() <= word {
            self.watched.resize(word + 1, 0);
        }
        if self.watched[word] & bit == 0 {
            self.watched[word] |= bit;
            let bucket = touched.saturating_add(idle_ticks) / self.width;
            self.buckets.entry(bucket).or_default().push(slot);
        }
    }

    /// Checks that each watched slot of a small shard stands in one bucket, or is to be checked now.
    pub(super) fn check_invariants(&self) {
        if cfg!(debug_assertions) && self.watched.len() <= 1 {
            let standing = self.buckets.values().map(Vec::len).sum::<usize>() + self.due.len();
            let watched: u32 = self.watched.iter().map(|word| word.count_ones()).sum();
            assert_eq!(standing, watched as usize, "each watched slot stands in one bucket");
        }
    }

    /// The tick from which slots are due.
    pub(super) fn due_at(&self) -> Option<u32> {
        self.buckets.keys().next().map(|bucket| bucket.saturating_add(1).saturating_mul(self.width))
    }

    /// Advances to the tick `now`.
    pub(super) fn on_tick(&mut self, now: u32) {
        while self.due_at().is_some_and(|due| due <= now) {
            let (_, mut slots) = self.buckets.pop_first().expect("it is due");
            if self.due.is_empty() { self.due = slots } else { self.due.append(&mut slots) }
        }
    }

    /// Whether slots are to be checked.
    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The next slot to be checked; it is no longer watched.
    pub(super) fn next_due(&mut self) -> Option<u32> {
        let slot = self.due.pop()?;
        self.watched[slot as usize / 64] &= !(1 << (slot % 64));
        Some(slot)
    }

    /// Whether a slot touched at the tick `touched` has been idle for too long.
    pub(super) fn is_idle(&self, touched: u32, now: u32) -> bool {
        self.idle_ticks.is_some_and(|ticks| now.saturating_sub(touched) >= ticks)
    }

    /// Checks a slot that is idle, but busy or vetoed, again in the next bucket.
    pub(super) fn watch_again(&mut self, slot: u32, now: u32) {
        let soon = now.saturating_sub(self.idle_ticks.unwrap_or(0)).saturating_add(1);
        self.watch(slot, soon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(10);

    fn due(wheel: &mut IdleWheel) -> Vec<u32> {
        let mut due: Vec<_> = std::iter::from_fn(|| wheel.next_due()).collect();
        due.sort_unstable();
        due
    }

    #[test]
    fn a_slot_is_due_between_one_idle_time_and_a_twentieth_more() {
        let mut wheel = IdleWheel::new(&Passivation::idle_after(Duration::from_secs(10)), TICK);
        for touched in 0..200 {
            wheel.watch(touched, touched);
        }
        for tick in 0..=1_300 {
            wheel.on_tick(tick);
            for slot in due(&mut wheel) {
                assert!((slot + 1_001..=slot + 1_051).contains(&tick), "slot {slot} at {tick}");
                assert!(wheel.is_idle(slot, tick) && !wheel.is_idle(tick - 1_000, tick));
            }
        }
        assert!(wheel.buckets.is_empty() && wheel.due_at().is_none());
    }

    #[test]
    fn a_slot_stands_in_one_bucket_and_its_deadline_moves() {
        let mut wheel = IdleWheel::new(&Passivation::idle_after(Duration::from_secs(1)), TICK);
        (0..5).for_each(|touched| wheel.watch(7, touched));
        let first = wheel.due_at().unwrap();
        wheel.on_tick(first);
        assert!(wheel.due_at().is_none() && wheel.has_due());
        assert_eq!(due(&mut wheel), [7]);
        wheel.watch_again(7, first);
        assert!(wheel.due_at().is_some_and(|next| next > first && next <= first + 2 * wheel.width));
        let mut never = IdleWheel::new(&Passivation::none(), TICK);
        never.watch(7, 0);
        assert_eq!(never.due_at(), None);
    }

    #[test]
    fn an_idle_time_shorter_than_a_tick_is_kept() {
        let mut wheel = IdleWheel::new(&Passivation::idle_after(Duration::from_millis(1)), TICK);
        wheel.watch(1, 5);
        assert_eq!(wheel.due_at(), Some(8));
        assert!(!wheel.is_idle(5, 6) && wheel.is_idle(5, 7));
    }
}
