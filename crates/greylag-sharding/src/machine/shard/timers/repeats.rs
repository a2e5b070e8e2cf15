//! Repeating timers: their messages and due times. And the messages of receive timeouts.
//!
//! To the machine of a shard every timer fires once. The shell sets a repeating timer again when its turn has come;
//! this module computes the next time. Periods that pass while the entity cannot take messages count as one, and no
//! timer outlives the incarnation that set it. The machine detects silences that are too long; this module keeps what
//! makes their message.
//!
//! Source: sharding §4.4.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greylag_persistence::Pace;

use crate::entity::TimerKey;
use crate::machine::shard::protocol::SlotId;
use crate::parcel::FAR;

/// The repeating timers of a shard's entities. `F` makes the messages of one timer.
pub(crate) struct Repeats<F> {
    by_slot: BTreeMap<SlotId, Vec<Repeat<F>>>,
    receive_timeouts: BTreeMap<SlotId, F>,
}

struct Repeat<F> {
    key: TimerKey,
    due_at: Instant,
    period: Duration,
    pace: Pace,
    influences: bool,
    make: F,
}

/// A timer whose turn has come.
pub(crate) struct Fired<'a, F> {
    /// Makes the timer's message.
    pub(crate) make: &'a mut F,
    /// When the timer is due next.
    pub(crate) next: Instant,
    /// Whether the timer's messages end a silence of the entity.
    pub(crate) influences: bool,
}

/// The period of a timer, the instant from which a period counts, and whether the messages end a silence of the entity.
pub(crate) struct RepeatSpec {
    pub(crate) period: Duration,
    pub(crate) pace: Pace,
    pub(crate) influences: bool,
}

impl<F> Default for Repeats<F> {
    fn default() -> Self {
        Self { by_slot: BTreeMap::new(), receive_timeouts: BTreeMap::new() }
    }
}

impl<F> Repeats<F> {
    /// Sets a timer in place of any other of its key; returns when it is first due.
    pub(crate) fn set(&mut self, slot: SlotId, key: TimerKey, spec: RepeatSpec, make: F, now: Instant) -> Instant {
        self.cancel(slot, key);
        let RepeatSpec { period, pace, influences } = spec;
        let due_at = now.checked_add(period).unwrap_or(now + FAR);
        self.by_slot.entry(slot).or_default().push(Repeat { key, due_at, period, pace, influences, make });
        due_at
    }

    /// Sets or removes the maker of the messages of an entity's receive timeout; returns the previous one.
    pub(crate) fn set_receive_timeout(&mut self, slot: SlotId, make: Option<F>) -> Option<F> {
        match make {
            Some(make) => self.receive_timeouts.insert(slot, make),
            None => self.receive_timeouts.remove(&slot),
        }
    }

    /// The maker of the message that tells an entity of a silence.
    pub(crate) fn receive_timeout(&mut self, slot: SlotId) -> Option<&mut F> {
        self.receive_timeouts.get_mut(&slot)
    }

    /// Forgets a timer.
    pub(crate) fn cancel(&mut self, slot: SlotId, key: TimerKey) {
        if let Some(repeats) = self.by_slot.get_mut(&slot) {
            repeats.retain(|repeat| repeat.key != key);
            if repeats.is_empty() {
                self.by_slot.remove(&slot);
            }
        }
    }

    /// Forgets all timers of an incarnation that has ended.
    pub(crate) fn end(&mut self, slot: SlotId) {
        self.by_slot.remove(&slot);
        self.receive_timeouts.remove(&slot);
    }

    /// Schedules the next period of a timer whose turn has come. `None` if the timer was forgotten.
    pub(crate) fn fire(&mut self, slot: SlotId, key: TimerKey, now: Instant) -> Option<Fired<'_, F>> {
        let repeat = self.by_slot.get_mut(&slot)?.iter_mut().find(|repeat| repeat.key == key)?;
        repeat.due_at = match repeat.pace {
            Pace::Delay => now.checked_add(repeat.period).unwrap_or(now + FAR),
            Pace::Rate => {
                let late = now.saturating_duration_since(repeat.due_at).as_nanos();
                let periods = late / repeat.period.as_nanos().max(1) + 1;
                let wait = u32::try_from(periods).ok().and_then(|periods| repeat.period.checked_mul(periods));
                wait.and_then(|wait| repeat.due_at.checked_add(wait)).unwrap_or(now + repeat.period)
            }
        };
        Some(Fired { make: &mut repeat.make, next: repeat.due_at, influences: repeat.influences })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn every(period: Duration, pace: Pace) -> RepeatSpec {
        RepeatSpec { period, pace, influences: true }
    }

    #[test]
    fn missed_times_of_a_rate_are_one_and_a_delay_counts_from_its_handling() {
        let start = Instant::now();
        let late = start + SECOND * 9 / 2;
        for (pace, next) in [(Pace::Rate, SECOND * 5), (Pace::Delay, SECOND * 11 / 2)] {
            let mut repeats = Repeats::default();
            assert_eq!(repeats.set(SlotId(1), "tick".into(), every(SECOND, pace), 7, start), start + SECOND);
            let fired = repeats.fire(SlotId(1), "tick".into(), late).unwrap();
            assert_eq!((*fired.make, fired.next), (7, start + next), "{pace:?}");
        }
    }

    #[test]
    fn a_fixed_rate_timer_on_time_keeps_its_period() {
        let (start, mut repeats) = (Instant::now(), Repeats::default());
        repeats.set(SlotId(1), "tick".into(), every(SECOND, Pace::Rate), (), start);
        for turn in 1..=3 {
            let fired = repeats.fire(SlotId(1), "tick".into(), start + SECOND * turn).unwrap();
            assert_eq!(fired.next, start + SECOND * (turn + 1));
        }
    }

    #[test]
    fn a_timer_ends_with_its_cancellation_its_replacement_and_its_incarnation() {
        let (start, mut repeats) = (Instant::now(), Repeats::default());
        let (tick, tock) = (TimerKey::from("tick"), TimerKey::from("tock"));
        repeats.set(SlotId(1), tick, every(SECOND, Pace::Rate), 1, start);
        repeats.set(SlotId(1), tick, every(SECOND * 2, Pace::Rate), 2, start);
        repeats.set(SlotId(1), tock, every(SECOND, Pace::Rate), 3, start);
        repeats.set_receive_timeout(SlotId(1), Some(4));
        assert_eq!(repeats.fire(SlotId(1), tick, start + SECOND * 2).map(|fired| *fired.make), Some(2));
        repeats.cancel(SlotId(1), tick);
        assert!(repeats.fire(SlotId(1), tick, start + SECOND * 4).is_none());
        assert!(repeats.fire(SlotId(2), tock, start + SECOND).is_none(), "of another entity");
        repeats.end(SlotId(1));
        assert!(repeats.fire(SlotId(1), tock, start + SECOND).is_none());
        assert!(repeats.by_slot.is_empty() && repeats.receive_timeout(SlotId(1)).is_none());
    }
}
