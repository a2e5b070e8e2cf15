//! When entries were last used, and how they go without trace. Source: ddata E1, E2, R5.

use super::{Data, Entries, Entry, Gone};
use crate::expiry::{Lifetimes, NEVER};
use crate::key::KeyId;

impl Entry {
    /// Says when it was last used and when it expires.
    pub(super) fn date(
        &mut self,
        lifetimes: &Lifetimes,
        now_ms: i64,
        key: &str,
        was: Option<&Self>,
        used_ms: Option<i64>,
    ) {
        match self.data {
            Data::Tombstone { deleted_at } => {
                (self.used_ms, self.told_ms) = (deleted_at, deleted_at);
                self.deadline_ms = lifetimes.of_tombstone(key, deleted_at);
            }
            Data::Value(_) => {
                let known = used_ms.max(was.map(|was| was.used_ms));
                self.used_ms = known.unwrap_or(now_ms);
                self.told_ms = was.map_or(self.used_ms, |was| was.told_ms);
                self.deadline_ms = lifetimes.of_value(key, self.used_ms);
            }
        }
        // One that is used often stays where it is in the index until its turn comes.
        let stands = was.map_or(NEVER, |was| was.indexed_ms);
        self.indexed_ms = if self.deadline_ms == NEVER { NEVER } else { stands.min(self.deadline_ms) };
    }
}

impl Entries {
    /// The wall clock went on.
    pub(crate) fn set_now(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
    }

    /// Removes an entry without trace; whoever follows it learns that it is gone, and so does its store.
    /// What was logged of it is the log's.
    pub(crate) fn forget(&mut self, key: &KeyId) {
        let Some(entry) = self.map.remove(key) else { return };
        self.storing.changed(key, None);
        self.tree.set(key, None);
        self.index.update(key, Some(entry.named()), None);
        self.deadlines.update(key, entry.indexed_ms, NEVER);
        self.totals.forget(&entry);
        self.dirty.insert(key.clone());
    }

    /// Whether an entry is past its deadline and not yet removed.
    pub(crate) fn is_overdue(&self, key: &str) -> bool {
        self.deadlines.next().is_some_and(|next| next <= self.now_ms)
            && self.map.get(key).is_some_and(|entry| entry.deadline_ms <= self.now_ms)
    }

    /// Removes entries that are past their deadline, at most so many.
    pub(crate) fn expire(&mut self, limit: usize) -> Vec<Gone> {
        let mut gone = Vec::new();
        for _ in 0..limit {
            let Some(key) = self.deadlines.due(self.now_ms) else { break };
            let Some(entry) = self.map.get_mut(&key) else { break };
            if entry.deadline_ms > self.now_ms {
                let was = std::mem::replace(&mut entry.indexed_ms, entry.deadline_ms);
                self.deadlines.update(&key, was, entry.deadline_ms);
                continue;
            }
            gone.extend(self.forget_overdue(&key));
        }
        gone
    }

    /// Removes an entry if it is past its deadline.
    pub(crate) fn forget_overdue(&mut self, key: &KeyId) -> Option<Gone> {
        self.deadlines.next()?;
        let entry = self.map.get(key).filter(|entry| entry.deadline_ms <= self.now_ms)?;
        let aged = match entry.data {
            Data::Tombstone { deleted_at } if self.lifetimes.is_dropped_by_age(key) => Some(deleted_at),
            _ => None,
        };
        self.forget(key);
        Some(Gone { key: key.clone(), aged })
    }

    /// When an entry may be past its deadline next.
    pub(crate) fn next_deadline_ms(&self) -> Option<i64> {
        self.deadlines.next()
    }

    /// Whether what arrives for an absent entry has expired on the way. Source: ddata E2.
    pub(super) fn is_too_late(&self, key: &str, used_ms: Option<i64>) -> bool {
        self.get(key).is_none() && used_ms.is_some_and(|used_ms| self.lifetimes.of_value(key, used_ms) <= self.now_ms)
    }

    /// When an entry was last used; `None` if it does not expire, or is none, or a tombstone.
    pub(crate) fn used_ms(&self, key: &str) -> Option<i64> {
        self.deadlines.next()?;
        self.get(key).and_then(Entry::used)
    }

    /// An entry was used now. Returns whether all peers are to be told, which from now on they are: only
    /// if it matters, a tenth of its lifetime. Source: ddata E2.
    pub(crate) fn touch(&mut self, key: &str) -> bool {
        let Some(entry) = self.use_at(key, self.now_ms) else { return false };
        let lifetime = entry.deadline_ms.saturating_sub(entry.used_ms);
        let matters = entry.used_ms.saturating_sub(entry.told_ms).saturating_mul(10) >= lifetime;
        if matters {
            entry.told_ms = entry.used_ms;
        }
        matters
    }

    /// An update of an entry is logged, and with it all peers are told when it was used. Returns that.
    pub(crate) fn note_update(&mut self, key: &str) -> Option<i64> {
        self.deadlines.next()?;
        let entry = self.map.get_mut(key)?;
        entry.told_ms = entry.used_ms;
        entry.used()
    }

    /// A peer says when an entry was last used.
    pub(crate) fn note_used(&mut self, key: &str, used_ms: i64) {
        self.use_at(key, used_ms);
    }

    /// As `note_used`, and the peer says it to all others too.
    pub(crate) fn note_told(&mut self, key: &str, used_ms: i64) {
        if let Some(entry) = self.use_at(key, used_ms) {
            entry.told_ms = entry.told_ms.max(used_ms);
        }
    }

    fn use_at(&mut self, key: &str, used_ms: i64) -> Option<&mut Entry> {
        self.deadlines.next()?;
        let now_ms = self.now_ms;
        let entry = self.map.get_mut(key).filter(|entry| entry.deadline_ms > now_ms)?;
        let lifetime = entry.deadline_ms.saturating_sub(entry.used()?);
        entry.used_ms = entry.used_ms.max(used_ms);
        entry.deadline_ms = entry.used_ms.saturating_add(lifetime);
        Some(entry)
    }

    /// Every expiring entry is looked at when its time has come, and nothing else is. Source: ddata O5.
    pub(super) fn check_deadlines(&self) {
        let expiring = self.map.iter().filter(|(_, entry)| entry.deadline_ms != NEVER);
        for (key, entry) in expiring.clone() {
            assert!(entry.indexed_ms <= entry.deadline_ms, "{key}: it is looked at when its time has come");
            assert!(self.deadlines.contains(key, entry.indexed_ms), "{key}: every expiring entry is indexed");
        }
        assert_eq!(expiring.count(), self.deadlines.len(), "nothing else is indexed");
    }
}
