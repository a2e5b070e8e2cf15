//! Decides when the next group is taken and how many requests it takes, by what the last groups cost.
//!
//! ```text
//! work for all takes longer: halves, in turns        making durable takes longer: all at once
//!   work     A     B     A     B                       work     ABAB          ABAB
//!   durable     A     B     A                          durable      ABABABABAB    ABABABABAB
//! ```
//! A caller that waits for an answer sends no further request. So if one group holds the requests of all callers, the
//! committer idles while that group is made durable and answered; and if each of two groups holds half, every caller
//! waits for two syncs instead of one.

use std::time::Duration;

/// Average costs of groups; older groups weigh less and less.
#[derive(Debug, Default)]
pub(crate) struct GroupSizing {
    /// Planning and applying, per request.
    work: Duration,
    /// From applied to durable, per group.
    durable: Duration,
}

impl GroupSizing {
    /// Includes the costs of a group of `requests` requests.
    pub(crate) fn learn(&mut self, requests: usize, work: Duration, durable: Duration) {
        let requests = u32::try_from(requests.max(1)).unwrap_or(u32::MAX);
        self.work = smoothed(self.work, work / requests);
        self.durable = smoothed(self.durable, durable);
    }

    /// How many requests must wait before the next group is taken, while `in_hand` are being committed.
    pub(crate) fn min_waiting(&self, in_hand: usize, waiting: usize) -> usize {
        // As many as are in hand: with fewer the groups would shrink, and where syncs dominate, the rate with them. But
        // two halves are never quite even, so do not wait for the last few.
        let few = if self.is_in_turns(in_hand + waiting) { in_hand / 8 } else { 0 };
        (in_hand - few).max(1)
    }

    /// How many of the waiting requests the next group takes. With nothing in hand all of them: turns need two groups,
    /// and half of a burst, half of the rest, and so on would be many groups.
    pub(crate) fn max_taken(&self, in_hand: usize, waiting: usize) -> usize {
        let all = in_hand + waiting;
        if in_hand > 0 && self.is_in_turns(all) { waiting.min(all.div_ceil(2)) } else { waiting }
    }

    /// Whether the work for half of `all` requests takes longer than making a group durable.
    fn is_in_turns(&self, all: usize) -> bool {
        self.work * u32::try_from(all / 2).unwrap_or(u32::MAX) > self.durable
    }
}

fn smoothed(before: Duration, now: Duration) -> Duration {
    if before.is_zero() { now } else { (before * 7 + now) / 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    fn sizing_after(work: Duration, durable: Duration) -> GroupSizing {
        let mut sizing = GroupSizing::default();
        sizing.learn(100, work * 100, durable);
        sizing
    }

    #[test]
    fn a_store_that_was_just_opened_takes_all_waiting_requests() {
        assert_eq!((GroupSizing::default().min_waiting(0, 0), GroupSizing::default().max_taken(0, 1_000)), (1, 1_000));
    }

    #[test]
    fn where_syncs_take_the_time_groups_hold_all_requests() {
        let sizing = sizing_after(10 * MICRO, 20_000 * MICRO);
        assert_eq!(
            (sizing.min_waiting(500, 400), sizing.max_taken(100, 900), sizing.max_taken(500, 500)),
            (500, 900, 500)
        );
    }

    #[test]
    fn where_work_takes_the_time_groups_hold_half() {
        let sizing = sizing_after(10 * MICRO, 400 * MICRO);
        assert_eq!((sizing.max_taken(600, 400), sizing.max_taken(100, 900)), (400, 500));
        assert_eq!(sizing.max_taken(0, 1_000), 1_000, "of those that came at once");
        assert_eq!((sizing.min_waiting(520, 480), sizing.min_waiting(0, 1), sizing.min_waiting(2, 0)), (455, 1, 2));
        // So few requests are not worth a sync of their own.
        assert_eq!((sizing.min_waiting(40, 40), sizing.max_taken(10, 70)), (40, 70));
    }

    #[test]
    fn one_slow_sync_does_not_change_the_sizing_and_a_slow_disk_does() {
        let mut sizing = sizing_after(10 * MICRO, 400 * MICRO);
        sizing.learn(500, 5_000 * MICRO, 20_000 * MICRO);
        assert_eq!(sizing.max_taken(100, 900), 500);
        (0..20).for_each(|_| sizing.learn(500, 5_000 * MICRO, 20_000 * MICRO));
        assert_eq!(sizing.max_taken(100, 900), 900);
    }
}
