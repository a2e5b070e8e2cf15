//! Compares the server's clock with the latest stored event, and warns once each time the clock falls behind.
//!
//! Every append answers by how much the clock is behind the time of the latest stored event. Normally the lag is at
//! most the time by which commits overlap; after a failover to a server whose clock is behind, it is larger. Source:
//! persistence 70.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Watches the server's clock.
#[derive(Debug)]
pub(crate) struct ClockWatch {
    journal: String,
    /// Lag up to this is not reported (`behind_current_time`).
    tolerated: Duration,
    seen: Mutex<ObservedLag>,
}

/// The observed lag of the clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ObservedLag {
    /// Lag at the last answer.
    pub(crate) behind: Duration,
    /// How often the lag rose above the tolerated one.
    pub(crate) times: u64,
}

/// A change from one answer to the next.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    SetBack,
    CaughtUp,
}

impl ObservedLag {
    fn on_answer(&mut self, behind: Duration, tolerated: Duration) -> Option<Change> {
        let was_behind = self.behind > tolerated;
        self.behind = behind;
        match (was_behind, behind > tolerated) {
            (false, true) => {
                self.times = self.times.saturating_add(1);
                Some(Change::SetBack)
            }
            (true, false) => Some(Change::CaughtUp),
            (false, false) | (true, true) => None,
        }
    }
}

impl ClockWatch {
    pub(crate) fn new(journal: String, tolerated: Duration) -> Self {
        Self { journal, tolerated, seen: Mutex::default() }
    }

    /// Notes an answer that says the clock is behind by `behind`.
    pub(crate) fn note(&self, behind: Duration) {
        let change = self.seen.lock().unwrap_or_else(PoisonError::into_inner).on_answer(behind, self.tolerated);
        let journal = self.journal.as_str();
        match change {
            Some(Change::SetBack) => tracing::warn!(
                journal,
                ?behind,
                "the clock of the journal database is behind the latest stored event: new events get the time of that \
                 event, and projections see them once the clock has passed it; set the server's clock right"
            ),
            Some(Change::CaughtUp) => {
                tracing::info!(journal, "the clock of the journal database has passed the latest stored event");
            }
            None => {}
        }
    }

    pub(crate) fn seen(&self) -> ObservedLag {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sentence about the clock, if its lag is more than tolerated.
    pub(crate) fn problem(&self) -> Option<String> {
        let ObservedLag { behind, .. } = self.seen();
        (behind > self.tolerated)
            .then(|| format!("the server's clock is {behind:.1?} behind the latest stored event; set it right"))
    }
}

/// The error text for a write that is refused because the clock is too far behind.
pub(crate) fn too_far_behind(behind: Duration, max_clock_lag: Duration) -> String {
    format!(
        "the server's clock is {behind:.1?} behind the latest stored event, more than max_clock_lag = {max_clock_lag:?}; \
         set the server's clock right, or raise max_clock_lag if that event's time is the wrong one"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fall_behind_is_reported_once() {
        let (mut seen, millis) = (ObservedLag::default(), Duration::from_millis);
        let mut take = |behind| seen.on_answer(millis(behind), millis(100));
        assert_eq!([take(0), take(100)], [None, None], "as far as commits overlap");
        assert_eq!([take(101), take(60_000), take(59_000)], [Some(Change::SetBack), None, None]);
        assert_eq!([take(100), take(0)], [Some(Change::CaughtUp), None]);
        assert_eq!(take(5_000), Some(Change::SetBack));
        assert_eq!(seen, ObservedLag { behind: millis(5_000), times: 2 });
    }

    #[test]
    fn the_problem_names_the_lag() {
        let watch = ClockWatch::new("journal".to_owned(), Duration::from_millis(100));
        assert_eq!(watch.problem(), None);
        watch.note(Duration::from_secs(60));
        assert!(watch.problem().is_some_and(|problem| problem.contains("60.0s behind")));
        assert!(too_far_behind(Duration::from_secs(660), Duration::from_secs(600)).contains("max_clock_lag = 600s"));
    }
}
