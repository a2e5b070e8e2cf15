//! Decides which failing dials are worth a warning.
//!
//! A starting node dials nodes that have not started yet, and a node whose peer has ended dials the peer once more:
//! such dials fail in every orderly start and stop. So a row of failures is warned of once, when it has lasted for as
//! long as messages wait for a handshake; a failure that time does not mend (a certificate, another protocol) is warned
//! of at once.
//!
//! Source: cluster T31.

use std::time::{Duration, Instant};

/// The row of failed dials to one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DialWarnings {
    since: Option<Instant>,
    is_told: bool,
}

impl DialWarnings {
    /// Notes a failed dial, whose cause may pass by itself or not. Returns true if the failure is to be logged as a
    /// warning.
    pub(crate) fn failed(&mut self, now: Instant, may_pass: bool, patience: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        let lasts = now.saturating_duration_since(since) >= patience;
        let is_due = !self.is_told && (lasts || !may_pass);
        self.is_told |= is_due;
        is_due
    }

    /// Notes a dial that reached the peer: the next failure begins a new row.
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
        let (mut dial_warnings, start) = (DialWarnings::default(), Instant::now());
        let told = |dial_warnings: &mut DialWarnings, millis: &[u64]| -> Vec<u64> {
            let at = |millis| start + Duration::from_millis(millis);
            millis.iter().copied().filter(|millis| dial_warnings.failed(at(*millis), true, PATIENCE)).collect()
        };
        assert_eq!(told(&mut dial_warnings, &[0, 1000, 2999, 3000, 7000, 60_000]), [3000]);
        dial_warnings.reached();
        assert_eq!(told(&mut dial_warnings, &[61_000, 62_000, 64_500, 70_000]), [64_500]);
        dial_warnings.reached();
        assert!(dial_warnings.failed(start, false, PATIENCE), "what does not pass by itself is told at once");
        assert!(
            !dial_warnings.failed(start, false, PATIENCE)
                && !dial_warnings.failed(start + 2 * PATIENCE, true, PATIENCE)
        );
    }
}
