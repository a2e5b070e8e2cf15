//! When dials that fail are worth a warning.
//!
//! A node that starts dials others that have not started yet, and one whose peer has ended dials it once more: such a
//! dial fails in every start and every stop that are as they should be. So a row of failures is told loudly once it has
//! lasted for as long as messages wait for a handshake, and once only; a failure that time does not mend (a certificate, another protocol) is told at once.
//!
//! Source: cluster T31.

use std::time::{Duration, Instant};

/// The dials of one peer that failed in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Complaints {
    since: Option<Instant>,
    is_told: bool,
}

impl Complaints {
    /// A dial has failed, for a cause that may pass by itself within `patience`, or not. True if it is to be a warning.
    pub(crate) fn failed(&mut self, now: Instant, may_pass: bool, patience: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        let lasts = now.saturating_duration_since(since) >= patience;
        let is_due = !self.is_told && (lasts || !may_pass);
        self.is_told |= is_due;
        is_due
    }

    /// A dial has reached the peer: the next failure begins a row.
    pub(crate) fn reached(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(3);

    #[test]
    fn a_row_of_failures_is_told_once_it_lasts_and_once_only() {
        let (mut complaints, start) = (Complaints::default(), Instant::now());
        let told = |complaints: &mut Complaints, millis: &[u64]| -> Vec<u64> {
            let at = |millis| start + Duration::from_millis(millis);
            millis.iter().copied().filter(|millis| complaints.failed(at(*millis), true, PATIENCE)).collect()
        };
        assert_eq!(told(&mut complaints, &[0, 1000, 2999, 3000, 7000, 60_000]), [3000]);
        complaints.reached();
        assert_eq!(told(&mut complaints, &[61_000, 62_000, 64_500, 70_000]), [64_500]);
        complaints.reached();
        assert!(complaints.failed(start, false, PATIENCE), "what does not pass by itself is told at once");
        assert!(!complaints.failed(start, false, PATIENCE) && !complaints.failed(start + 2 * PATIENCE, true, PATIENCE));
    }
}
