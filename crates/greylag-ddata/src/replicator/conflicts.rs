//! Limits events about single entries: one event per entry and interval, however often a peer repeats itself. Every
//! refusal is counted nevertheless. Source: ddata A5, Y6, I3.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::key::KeyId;

/// How many entries are remembered; while so many are in conflict, further ones are only counted.
const REMEMBERED: usize = 1_024;

/// An entry that never converges: a peer holds another type under its id. Source: ddata A5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeConflict {
    /// The entry.
    pub key: KeyId,
    /// The tag of the entry's type here.
    pub own: Arc<str>,
    /// The peer that was heard last in this conflict.
    pub peer: UniqueAddress,
    /// The tag of the entry's type at the peer.
    pub found: Arc<str>,
}

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

/// The limits of all events about single entries, and the conflicts of types.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    /// Events about refused types.
    pub(super) types: EventLimiter,
    /// Events about clocks that are far ahead.
    pub(super) clocks: EventLimiter,
    /// Events about replica ids that are used twice.
    pub(super) ids: EventLimiter,
    /// Events about times too far ahead, by the peer that sent them.
    pub(super) times: EventLimiter,
    /// The conflicts of types found so far, the latest one of each entry.
    standing: BTreeMap<KeyId, TypeConflict>,
}

impl Conflicts {
    /// Notes that a peer's entry was refused for its type.
    pub(super) fn met(&mut self, conflict: TypeConflict) {
        if self.standing.len() < REMEMBERED || self.standing.contains_key(&conflict.key) {
            self.standing.insert(conflict.key.clone(), conflict);
        }
    }

    /// The conflicts that still exist: a conflict ends when the entry here is gone, deleted or of another type.
    pub(super) fn standing(&mut self, tag_of: impl Fn(&str) -> Option<Arc<str>>) -> Vec<TypeConflict> {
        self.standing.retain(|key, conflict| tag_of(key).is_some_and(|own| own == conflict.own));
        self.standing.values().cloned().collect()
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

    /// ddata R6: conflicts are listed as long as they exist, each entry once, and at most as many as are remembered.
    #[test]
    fn conflicts_are_listed_while_they_last() {
        let mut conflicts = Conflicts::default();
        for number in (0..2_000).chain([7]) {
            let peer = "a:1#1".parse().unwrap();
            conflicts.met(TypeConflict { key: key(number), own: "set".into(), peer, found: "map".into() });
        }
        assert_eq!(conflicts.standing(|_| Some("set".into())).len(), REMEMBERED);
        let left = conflicts.standing(|id| Some(if id == "key-7" { "set".into() } else { "map".into() }));
        assert_eq!(left.iter().map(|conflict| &*conflict.key).collect::<Vec<_>>(), ["key-7"]);
    }
}
