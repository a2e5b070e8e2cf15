//! The missing frames of a link below frames that arrived, with the time since when they are missing.
//!
//! I7, second half: on a link whose ends are alive, such a frame is received within `resend_interval_min` and one round
//! trip, plus one interval of C11 for each resend request or repeat that was lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// Frames up to this number are accounted for; `None` until a frame of the current producer arrives.
    base: Option<u64>,
    arrived: BTreeSet<u64>,
    missing: BTreeMap<u64, Missing>,
}

#[derive(Debug, Clone, Copy)]
struct Missing {
    since: Instant,
    losses: u32,
}

impl Gaps {
    /// A first frame with this number arrived before its producer became the current one; the frames after it are
    /// expected.
    pub(crate) fn begins_at(&mut self, first: u64) {
        self.base = self.base.or(Some(first));
    }

    /// A frame of the current producer was buffered, or had arrived before; `lowest` is from its batch.
    pub(crate) fn arrived(&mut self, now: Instant, lowest: u64, seq_nr: u64) {
        let base = self.base.unwrap_or(seq_nr - 1).max(lowest.saturating_sub(1));
        let highest = self.arrived.last().copied().unwrap_or(base);
        self.arrived.insert(seq_nr);
        self.missing.remove(&seq_nr);
        self.missing = self.missing.split_off(&(base + 1));
        for number in highest.max(base) + 1..seq_nr {
            self.missing.insert(number, Missing { since: now, losses: 0 });
        }
        let settled = self.missing.first_key_value().map_or(self.arrived.last().copied(), |(first, _)| Some(first - 1));
        self.base = Some(settled.unwrap_or(base).max(base));
    }

    /// A resend request was lost, or comes late. That delays every missing frame, since the retry timer requests one
    /// range at a time.
    pub(crate) fn lost_question(&mut self) {
        self.missing.values_mut().for_each(|missing| missing.losses += 1);
    }

    /// A frame was lost.
    pub(crate) fn lost_frame(&mut self, seq_nr: u64) {
        if self.missing.contains_key(&seq_nr) {
            self.lost_question();
        }
    }

    /// The producer starts over: missing frames come as the consumer grants them.
    pub(crate) fn start_over(&mut self, now: Instant) {
        self.missing.values_mut().for_each(|missing| missing.since = now);
    }

    /// An error if a frame has been missing for longer than allowed.
    pub(crate) fn overdue(&self, now: Instant, first: Duration, more: Duration) -> Result<(), String> {
        let is_late = |missing: &Missing| now.saturating_duration_since(missing.since) > first + more * missing.losses;
        match self.missing.iter().find(|(_, missing)| is_late(missing)) {
            Some((seq_nr, Missing { since, losses })) => {
                let waited = now.saturating_duration_since(*since);
                Err(format!(
                    "I7: frame {seq_nr} has been missing for {waited:?}, with {losses} questions and repeats lost"
                ))
            }
            None => Ok(()),
        }
    }
}
