//! What became of messages that were not delivered: counted per reason, lane and peer.
//!
//! Counting is exact; log lines are rationed per reason and peer, and a line that follows a dry
//! spell says how many were left out. Source: cluster T41.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use greylag_core::{DeadLetterReason, NodeAddress};

use crate::lane::Lane;

/// The place of a counter: why, on which lane, to or from whom. Lane and peer are absent where a
/// layer above dropped the message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeadLetterKey {
    /// Why.
    pub reason: DeadLetterReason,
    /// On which lane.
    pub lane: Option<Lane>,
    /// At the other end.
    pub peer: Option<NodeAddress>,
}

/// The counters of one node.
#[derive(Debug)]
pub struct DeadLetters {
    log_rate: u32,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    counts: BTreeMap<DeadLetterKey, u64>,
    rations: BTreeMap<(DeadLetterReason, Option<NodeAddress>), Ration>,
}

#[derive(Debug)]
struct Ration {
    since: Instant,
    logged: u32,
    suppressed: u64,
}

/// What the log should say about a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLine {
    /// How many before this one went unmentioned.
    pub suppressed: u64,
}

impl DeadLetters {
    /// Counters whose log lines are limited to `log_rate` a minute per reason and peer.
    pub fn new(log_rate: u32) -> Self {
        Self { log_rate, book: Mutex::default() }
    }

    /// Counts `count` messages; says whether to write a log line.
    pub fn count(&self, now: Instant, key: DeadLetterKey, count: u64) -> Option<LogLine> {
        let mut book = self.book.lock().expect("counting never panics");
        let ration = book.rations.entry((key.reason, key.peer.clone())).or_insert(Ration {
            since: now,
            logged: 0,
            suppressed: 0,
        });
        let mut line = None;
        if now.saturating_duration_since(ration.since) >= Duration::from_secs(60) {
            (ration.since, ration.logged) = (now, 0);
        }
        if ration.logged < self.log_rate {
            ration.logged += 1;
            line = Some(LogLine { suppressed: std::mem::take(&mut ration.suppressed) });
        } else {
            ration.suppressed += 1;
        }
        *book.counts.entry(key).or_default() += count;
        line
    }

    /// How many messages were dropped for `reason`, over all lanes and peers.
    pub fn total(&self, reason: DeadLetterReason) -> u64 {
        let book = self.book.lock().expect("counting never panics");
        book.counts.iter().filter(|(key, _)| key.reason == reason).map(|(_, count)| count).sum()
    }

    /// Every counter.
    pub fn counts(&self) -> BTreeMap<DeadLetterKey, u64> {
        self.book.lock().expect("counting never panics").counts.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_counts_and_few_are_logged() {
        let letters = DeadLetters::new(2);
        let now = Instant::now();
        let key = |lane| DeadLetterKey { reason: DeadLetterReason::QueueFull, lane: Some(lane), peer: None };
        let lines: Vec<bool> = (0..5).map(|_| letters.count(now, key(Lane::ordinary(0)), 1).is_some()).collect();
        assert_eq!(lines, [true, true, false, false, false]);
        let later = letters.count(now + Duration::from_secs(60), key(Lane::LARGE), 2);
        assert_eq!(later, Some(LogLine { suppressed: 3 }));
        assert_eq!(letters.total(DeadLetterReason::QueueFull), 7);
        assert_eq!(letters.counts()[&key(Lane::LARGE)], 2);
    }
}
