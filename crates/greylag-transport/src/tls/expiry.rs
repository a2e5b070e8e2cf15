//! Decides when a certificate's coming end is worth a warning. Source: cluster 83.

/// Days before a certificate's end at which a warning is due, the last one first.
const WARNED_AT: [i64; 3] = [1, 7, 30];
const DAY_SECS: i64 = 24 * 3600;

/// Whole days from `now` to `end`, both in seconds since 1970; negative once it has ended.
pub(crate) fn days_left(end: i64, now: i64) -> i64 {
    end.saturating_sub(now).div_euclid(DAY_SECS)
}

/// The last warning about the certificate in use.
#[derive(Debug, Default)]
pub(crate) struct Warned {
    /// The end of the certificate that the last warning was about, and the warning's threshold.
    last: Option<(i64, i64)>,
}

impl Warned {
    /// Whether a warning is due now about a certificate with this end: once per threshold, and once after the end.
    pub(crate) fn is_due(&mut self, end: i64, now: i64) -> bool {
        let left = days_left(end, now);
        let ended = (left < 0).then_some(-1);
        // Count in seconds: a certificate has n whole days left until less than n days are, so the last threshold is
        // one day.
        let reached = ended.or_else(|| WARNED_AT.into_iter().find(|days| end.saturating_sub(now) <= days * DAY_SECS));
        let Some(threshold) = reached else {
            self.last = None;
            return false;
        };
        let is_news = self.last != Some((end, threshold));
        self.last = Some((end, threshold));
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cluster 83: warnings come 30, 7 and 1 days before the end, and after it; again for the certificate that replaces
    /// it.
    #[test]
    fn a_certificate_is_warned_of_at_thirty_seven_and_one_days() {
        let mut warned = Warned::default();
        let end = 1_800_000_000;
        // Checked twice a day, from forty days before the end to two days after it.
        let due: Vec<i64> = (0..84)
            .map(|half_days| end - 40 * DAY_SECS + half_days * DAY_SECS / 2)
            .filter(|now| warned.is_due(end, *now))
            .map(|now| (end - now).div_euclid(DAY_SECS / 2))
            .collect();
        assert_eq!(due, [60, 14, 2, -1], "in half days");
        let next = end + 400 * DAY_SECS;
        assert!(!warned.is_due(next, end));
        assert!(warned.is_due(next, next - 6 * DAY_SECS), "one that was not looked at for long is warned of once");
        assert!(!warned.is_due(next, next - 6 * DAY_SECS + 1));
    }

    #[test]
    fn days_are_whole_and_go_on_after_the_end() {
        assert_eq!([DAY_SECS, DAY_SECS - 1, 0, -1].map(|left| days_left(100 + left, 100)), [1, 0, 0, -1]);
    }
}
