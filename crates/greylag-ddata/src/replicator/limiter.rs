//! Limits events about single entries: one event per entry and interval, however often a peer repeats itself. Every
//! refusal is counted nevertheless. Source: ddata A5, Y6, I3.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::api::key::KeyId;

/// How many entries are remembered; while so many are in conflict, further ones are only counted.
pub(super) const REMEMBERED: usize = 1_024;

/// When the last event about each entry was sent.
#[derive(Debug, Default)]
pub(super) struct EventLimiter(BTreeMap<KeyId, Instant>);

impl EventLimiter {
    /// Whether an event about the entry is due now; notes it as sent.
    pub(super) fn is_news(&mut self, now: Instant, key: &KeyId, interval: Duration) -> bool {
        if self.0.get(key).is_some_and(|told_at| *told_at + interval > now) {
            return false;
        }
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, told_at| *told_at + interval > now);
        }
        let has_room = self.0.len() < REMEMBERED;
        if has_room {
            self.0.insert(key.clone(), now);
        }
        has_room
    }

    /// Whether no event about the entry was ever sent, as far as is remembered; notes it as sent.
    pub(super) fn is_first(&mut self, now: Instant, key: &KeyId) -> bool {
        let is_first = !self.0.contains_key(key) && self.0.len() < REMEMBERED;
        if is_first {
            self.0.insert(key.clone(), now);
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> KeyId {
        KeyId::from(format!("key-{number}"))
    }

    /// ddata A5: one event per key and minute, and memory for a bounded number of keys.
    #[test]
    fn a_conflict_is_told_once_per_entry_and_interval() {
        let (start, minute) = (Instant::now(), Duration::from_secs(60));
        let mut limiter = EventLimiter::default();
        assert!(limiter.is_news(start, &key(0), minute));
        assert!(!limiter.is_news(start + minute / 2, &key(0), minute));
        assert!(limiter.is_news(start + minute / 2, &key(1), minute));
        assert!(limiter.is_news(start + minute, &key(0), minute));
        let told = (2..5_000).filter(|number| limiter.is_news(start + minute, &key(*number), minute)).count();
        assert_eq!(told, REMEMBERED - 2);
        assert!(limiter.is_news(start + minute * 3, &key(4_999), minute), "what is long ago makes room");
    }
}
