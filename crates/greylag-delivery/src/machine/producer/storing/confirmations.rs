//! Confirmations that are not stored yet, merged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::ids::SeqNr;
use crate::machine::tracking::deadlines::after;
use crate::queue::{Confirmation, MessageSent, Qualifier, TimestampMillis};

/// For each qualifier the highest number, and all exact numbers. Source: delivery D5.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingConfirmations {
    up_to: BTreeMap<Qualifier, (SeqNr, TimestampMillis)>,
    exact: BTreeSet<SeqNr>,
    exact_at: TimestampMillis,
    /// Number of messages that these confirm.
    messages: usize,
    /// When the oldest of these was added.
    since: Option<Instant>,
}

impl PendingConfirmations {
    pub(super) fn add(&mut self, now: Instant, confirmation: Confirmation, messages: usize) {
        self.since.get_or_insert(now);
        self.messages = self.messages.saturating_add(messages);
        match confirmation {
            Confirmation::UpTo { qualifier, seq_nr, timestamp_ms } => {
                let known = self.up_to.entry(qualifier).or_insert((seq_nr, timestamp_ms));
                *known = (known.0.max(seq_nr), known.1.max(timestamp_ms));
            }
            Confirmation::Exact { seq_nrs, timestamp_ms } => {
                self.exact.extend(seq_nrs);
                self.exact_at = self.exact_at.max(timestamp_ms);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.since.is_none()
    }

    /// When the confirmations must be stored at the latest. Intervals are cut to a century.
    pub(super) fn due(&self, count: usize, interval: Duration) -> Option<Instant> {
        let since = self.since?;
        Some(if self.messages >= count { since } else { after(since, interval) })
    }

    /// All confirmations, for one write.
    pub(super) fn as_write(&self) -> Vec<Confirmation> {
        let up_to = self.up_to.iter().map(|(qualifier, (seq_nr, timestamp_ms))| Confirmation::UpTo {
            qualifier: qualifier.clone(),
            seq_nr: *seq_nr,
            timestamp_ms: *timestamp_ms,
        });
        let seq_nrs: Vec<_> = self.exact.iter().copied().collect();
        let exact = (!seq_nrs.is_empty()).then_some(Confirmation::Exact { seq_nrs, timestamp_ms: self.exact_at });
        up_to.chain(exact).collect()
    }

    /// Whether the message is confirmed by one of these.
    pub(super) fn cover<M>(&self, message: &MessageSent<M>) -> bool {
        self.up_to.get(&message.qualifier).is_some_and(|(seq_nr, _)| message.seq_nr <= *seq_nr)
            || self.exact.contains(&message.seq_nr)
    }
}
