//! Whether a region's task still works: a question waits in the task's queue, and the task answers it in turn.
//!
//! Source: sharding §6.4 (`healthcheck.timeout`).

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of the last question and of the last answer.
#[derive(Default)]
pub(crate) struct LivenessProbe {
    asked: AtomicU64,
    answered: AtomicU64,
}

impl LivenessProbe {
    /// The number of a new question; `None` while one is open.
    pub(crate) fn ask(&self) -> Option<u64> {
        let asked = self.asked.load(Ordering::Relaxed);
        let is_free = self.answered.load(Ordering::Relaxed) == asked;
        let next = asked + 1;
        let taken = is_free && self.asked.compare_exchange(asked, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        taken.then_some(next)
    }

    /// Notes that the task has answered a question.
    pub(crate) fn answer(&self, number: u64) {
        self.answered.fetch_max(number, Ordering::Relaxed);
    }

    /// Whether no question is open.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed) == self.asked.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_question_is_open_at_a_time() {
        let probe = LivenessProbe::default();
        assert!(probe.has_answered(), "it was asked nothing");
        assert_eq!((probe.ask(), probe.ask()), (Some(1), None));
        assert!(!probe.has_answered());
        probe.answer(1);
        assert!(probe.has_answered());
        assert_eq!(probe.ask(), Some(2));
    }
}
