//! Subscriptions: the entries that each subscriber follows, and the state that it was last told.
//!
//! Subscribers are notified in flushes: for each entry that changed since the last flush, every subscriber that follows
//! it and was told other data gets the present state. Data that pruning changed but that read as before do not count as
//! other data. A new subscriber gets the present state once even if nothing changed. Source: ddata R15, R16, R17.

mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greylag_crdt::Digest;

use crate::api::effect::{Effect, Notice, Snapshot};
use crate::api::key::KeyId;
use crate::data::entries::{Data, Entries};
use index::{Pattern, PatternIndex};

#[derive(Debug)]
struct Subscriber {
    /// An id, or a prefix and `*`.
    pattern: KeyId,
    /// The tag of the followed type; `None` for all types.
    tag: Option<Arc<str>>,
    /// The state that the subscriber was last told, by entry.
    notified: BTreeMap<KeyId, LastNotified>,
}

/// The state of an entry that a subscriber was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastNotified {
    Value(Digest),
    Deleted,
}

impl Subscriber {
    /// The notice about an entry that the subscriber must get now, if any; notes it as told.
    fn news(&mut self, entries: &Entries, key: &KeyId) -> Option<Notice> {
        let known = self.notified.get(key);
        let Some(entry) = entries.get(key) else { return self.notified.remove(key).map(|_| Notice::Expired) };
        let (notice, now) = match &entry.data {
            // A tombstone has no type: a subscriber to one type below a prefix is told of it only if it was told of the
            // value.
            Data::Tombstone { .. } if known.is_some() || self.tag.is_none() || !self.pattern.ends_with('*') => {
                (Notice::Deleted, LastNotified::Deleted)
            }
            Data::Value(value) if self.tag.as_ref().is_none_or(|tag| *tag == value.tag()) => {
                (Notice::Value(Snapshot::new(&**value)), LastNotified::Value(entry.notified_digest()))
            }
            Data::Tombstone { .. } => return None,
            // The value that the subscriber was told of is gone, and its id serves another type.
            Data::Value(_) => return self.notified.remove(key).map(|_| Notice::Expired),
        };
        (self.notified.insert(key.clone(), now) != Some(now)).then_some(notice)
    }
}

/// All subscriptions of a replicator.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    by_number: BTreeMap<u64, Subscriber>,
    index: PatternIndex,
    /// Subscriptions that were told nothing yet.
    new: BTreeSet<u64>,
}

impl Subscriptions {
    /// Adds a subscription to an id, or a prefix and `*`, of one type or of all.
    pub(crate) fn add(&mut self, number: u64, pattern: KeyId, tag: Option<Arc<str>>) {
        self.remove(number);
        self.index.insert(Pattern::read(&pattern), number);
        self.by_number.insert(number, Subscriber { pattern, tag, notified: BTreeMap::new() });
        self.new.insert(number);
    }

    /// Removes a subscription; does nothing if there is none.
    pub(crate) fn remove(&mut self, number: u64) {
        if let Some(subscriber) = self.by_number.remove(&number) {
            self.new.remove(&number);
            self.index.remove(Pattern::read(&subscriber.pattern), number);
        }
    }

    /// The number of subscriptions.
    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether a flush has anything to examine. Changes made while there is no subscriber are not kept.
    pub(crate) fn has_work(&self, entries: &mut Entries) -> bool {
        if self.by_number.is_empty() {
            entries.dirty.clear();
        }
        !self.new.is_empty() || !entries.dirty.is_empty()
    }

    /// Notifies every subscriber of what it was not told yet.
    pub(crate) fn flush(&mut self, entries: &mut Entries, out: &mut Vec<Effect>) {
        let dirty = std::mem::take(&mut entries.dirty);
        let new = std::mem::take(&mut self.new);
        for key in &dirty {
            let mut followers = self.index.followers(key);
            followers.sort_unstable();
            for number in followers.into_iter().filter(|number| !new.contains(number)) {
                self.tell(entries, number, key, out);
            }
        }
        for number in new {
            let Some(subscriber) = self.by_number.get(&number) else { continue };
            let keys: Vec<KeyId> = match Pattern::read(&subscriber.pattern) {
                Pattern::Prefix(prefix) => {
                    let matching = entries.from(prefix).take_while(|(key, _)| key.starts_with(prefix));
                    matching.map(|(key, _)| key.clone()).collect()
                }
                Pattern::Id(_) => vec![subscriber.pattern.clone()],
            };
            for key in keys {
                self.tell(entries, number, &key, out);
            }
        }
    }

    /// Asserts that the index finds every subscriber under its pattern, and that every new subscriber is still
    /// subscribed; checked while that is cheap.
    pub(crate) fn check_invariants(&self) {
        if self.by_number.len() <= 16 {
            for (number, subscriber) in &self.by_number {
                let id = subscriber.pattern.strip_suffix('*').unwrap_or(&subscriber.pattern);
                assert!(self.index.followers(id).contains(number), "{} is found", subscriber.pattern);
            }
            assert!(self.new.iter().all(|number| self.by_number.contains_key(number)), "a new one is subscribed");
        }
    }

    fn tell(&mut self, entries: &Entries, number: u64, key: &KeyId, out: &mut Vec<Effect>) {
        let news = self.by_number.get_mut(&number).and_then(|subscriber| subscriber.news(entries, key));
        out.extend(news.map(|notice| Effect::Notify { subscriber: number, key: key.clone(), notice }));
    }
}
