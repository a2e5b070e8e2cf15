//! Which entries' conflicts were told lately: one event per entry and interval, however often a peer
//! repeats itself. Every refusal is counted all the same. Source: ddata A5, I3.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::key::KeyId;

/// So many entries are remembered; while as many are in conflict, further ones are only counted.
const REMEMBERED: usize = 1_024;

/// Entries whose conflict was told, and when.
#[derive(Debug, Default)]
pub(super) struct Conflicts(BTreeMap<KeyId, Instant>);

impl Conflicts {
    /// Whether a conflict is to be told now.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata A5: one event per key and minute, and no more memory than for so many keys.
    #[test]
    fn a_conflict_is_told_once_per_entry_and_interval() {
        let (start, minute) = (Instant::now(), Duration::from_secs(60));
        let mut conflicts = Conflicts::default();
        let key = |number: usize| KeyId::from(format!("key-{number}"));
        assert!(conflicts.is_news(start, &key(0), minute));
        assert!(!conflicts.is_news(start + minute / 2, &key(0), minute));
        assert!(conflicts.is_news(start + minute / 2, &key(1), minute));
        assert!(conflicts.is_news(start + minute, &key(0), minute));
        let told = (2..5_000).filter(|number| conflicts.is_news(start + minute, &key(*number), minute)).count();
        assert_eq!(told, REMEMBERED - 2);
        assert!(conflicts.is_news(start + minute * 3, &key(4_999), minute), "what is long ago makes room");
    }
}
