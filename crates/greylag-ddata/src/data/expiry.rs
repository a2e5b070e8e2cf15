//! Lifetimes of entries, and the index of their deadlines.
//!
//! A value expires when it was not used for the time of its pattern; a tombstone that long after its deletion, or at
//! the age of `delete_tombstone_ttl` if that is earlier. The index is ordered by deadline, so entries whose time has
//! not come cost nothing. Using an entry does not move it in the index; when its turn comes and it was used meanwhile,
//! it goes back with its present deadline. So a read costs no index operation, and every entry is examined at most once
//! per lifetime. Source: ddata E1, E2, R5.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::api::key::KeyId;
use crate::api::settings::ReplicatorSettings;
use crate::pruning::millis;

/// The deadline of an entry that never expires.
pub(crate) const NEVER: i64 = i64::MAX;

/// The dates of an entry that expires. Wall clock in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dates {
    /// When the entry was last used, by any replica; of a tombstone its deletion time.
    pub(crate) used_ms: i64,
    /// The used-time that all peers were told last; a later one is told only if it matters.
    pub(crate) told_ms: i64,
    /// The time from which the entry counts as absent.
    pub(crate) deadline_ms: i64,
    /// The entry's time in the index: its deadline, or earlier if it was used since.
    pub(crate) indexed_ms: i64,
}

/// The inactivity after which entries expire, in milliseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lifetimes {
    exact: BTreeMap<String, i64>,
    /// Longest first; the empty prefix, which is `*`, last.
    prefixes: Vec<(String, i64)>,
    tombstone_ttl: Option<i64>,
}

impl Lifetimes {
    pub(crate) fn new(settings: &ReplicatorSettings) -> Self {
        let mut lifetimes = Self { tombstone_ttl: settings.delete_tombstone_ttl.map(millis), ..Self::default() };
        for (pattern, after) in &settings.expire_keys_after_inactivity {
            match pattern.strip_suffix('*') {
                Some(prefix) => lifetimes.prefixes.push((prefix.to_owned(), at_least_one(*after))),
                None => drop(lifetimes.exact.insert(pattern.clone(), at_least_one(*after))),
            }
        }
        lifetimes.prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        lifetimes
    }

    /// How long an entry lives without being used, by its most specific pattern; `None` for ever.
    pub(crate) fn of(&self, key: &str) -> Option<i64> {
        let exact = self.exact.get(key).copied();
        exact.or_else(|| self.prefixes.iter().find(|(prefix, _)| key.starts_with(prefix)).map(|(_, after)| *after))
    }

    /// When a value that was last used at `used_ms` expires.
    pub(crate) fn of_value(&self, key: &str, used_ms: i64) -> i64 {
        self.of(key).map_or(NEVER, |after| later(used_ms, after))
    }

    /// When the tombstone of a deletion is dropped.
    pub(crate) fn of_tombstone(&self, key: &str, deleted_at: i64) -> i64 {
        let after = self.of(key).into_iter().chain(self.tombstone_ttl).min();
        after.map_or(NEVER, |after| later(deleted_at, after))
    }

    /// Whether a tombstone is dropped because of its age alone, so that the horizon has to remember it. A tombstone of
    /// an entry that would have expired as early need not be remembered.
    pub(crate) fn is_dropped_by_age(&self, key: &str) -> bool {
        self.tombstone_ttl.is_some_and(|ttl| self.of(key).is_none_or(|after| ttl < after))
    }
}

/// `by` later, but before [`NEVER`]: an entry that can expire does so at some time, however far ahead a peer's clock
/// is.
pub(crate) fn later(at_ms: i64, by: i64) -> i64 {
    at_ms.saturating_add(by).min(NEVER - 1)
}

fn at_least_one(after: Duration) -> i64 {
    millis(after).max(1)
}

/// Entries that expire, ordered by the time at which to examine them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeadlineIndex(BTreeSet<(i64, KeyId)>);

impl DeadlineIndex {
    /// Moves an entry from time `was` to time `is`.
    pub(crate) fn update(&mut self, key: &KeyId, was: i64, is: i64) {
        if was == is {
            return;
        }
        if was != NEVER {
            self.0.remove(&(was, key.clone()));
        }
        if is != NEVER {
            self.0.insert((is, key.clone()));
        }
    }

    /// The first entry that is due at this time.
    pub(crate) fn due(&self, now_ms: i64) -> Option<KeyId> {
        self.0.first().filter(|(at, _)| *at <= now_ms).map(|(_, key)| key.clone())
    }

    /// When the first entry is due.
    pub(crate) fn next(&self) -> Option<i64> {
        self.0.first().map(|(at, _)| *at)
    }

    pub(crate) fn contains(&self, key: &KeyId, at: i64) -> bool {
        self.0.contains(&(at, key.clone()))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetimes(ttl: Option<u64>) -> Lifetimes {
        let patterns = [("a", 1), ("a*", 2), ("ab*", 3), ("abc", 4), ("*", 5), ("x*y", 6)];
        let settings = ReplicatorSettings {
            expire_keys_after_inactivity: patterns
                .map(|(pattern, seconds)| (pattern.to_owned(), Duration::from_secs(seconds)))
                .into(),
            delete_tombstone_ttl: ttl.map(Duration::from_secs),
            ..ReplicatorSettings::default()
        };
        Lifetimes::new(&settings)
    }

    /// ddata E1: the exact pattern wins, then the longest prefix, then `*`; a star inside a pattern is literal.
    #[test]
    fn the_most_specific_pattern_wins() {
        let found = ["a", "aa", "ab", "abc", "abcd", "b", "x*y", "xzy"].map(|key| lifetimes(None).of(key));
        assert_eq!(found, [1, 2, 3, 4, 3, 5, 6, 5].map(|seconds| Some(seconds * 1_000)));
        assert_eq!(Lifetimes::default().of("a"), None);
    }

    /// ddata E1, R5: a tombstone is dropped at the earlier of the two times.
    #[test]
    fn tombstones_go_by_their_age_or_with_what_expires() {
        assert_eq!(lifetimes(Some(2)).of_tombstone("abc", 1_000), 3_000);
        assert_eq!(lifetimes(Some(9)).of_tombstone("abc", 1_000), 5_000);
        assert_eq!(lifetimes(None).of_tombstone("abc", 1_000), 5_000);
        assert!(lifetimes(Some(2)).is_dropped_by_age("abc") && !lifetimes(Some(4)).is_dropped_by_age("abc"));
        assert_eq!(Lifetimes::default().of_tombstone("abc", 1_000), NEVER);
    }
}
