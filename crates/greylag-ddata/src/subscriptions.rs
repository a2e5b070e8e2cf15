//! Subscribers: which entries each follows, and what it was told of them last.
//!
//! Subscribers are told in flushes: of each entry that changed since the last flush, every subscriber that
//! follows it and was told other data gets the present state. Data that pruning changed, and that read as
//! before, are no other data. A new subscriber gets the present state once even if nothing changed.
//! Source: ddata R15, R16, R17.

mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greylag_crdt::Digest;

use crate::effect::{Effect, Notice, Snapshot};
use crate::entries::{Data, Entries};
use crate::key::KeyId;
use index::{Pattern, PatternIndex};

#[derive(Debug)]
struct Subscriber {
    /// The id, or prefix and `*`.
    pattern: KeyId,
    /// Only entries with this tag; of all types if `None`.
    tag: Option<Arc<str>>,
    /// What it was told last, by entry.
    told: BTreeMap<KeyId, Told>,
}

/// What a subscriber believes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Value(Digest),
    Deleted,
}

impl Subscriber {
    /// What it is told of an entry now, and what it knows then; `None` if that is nothing new to it.
    fn news(&mut self, entries: &Entries, key: &KeyId) -> Option<Notice> {
        let known = self.told.get(key);
        let Some(entry) = entries.get(key) else { return self.told.remove(key).map(|_| Notice::Expired) };
        let (notice, now) = match &entry.data {
            // A tombstone has no type: a subscriber to the entries of one type below a prefix hears of it only
            // if it has heard of the value.
            Data::Tombstone { .. } if known.is_some() || self.tag.is_none() || !self.pattern.ends_with('*') => {
                (Notice::Deleted, Told::Deleted)
            }
            Data::Value(value) if self.tag.as_ref().is_none_or(|tag| *tag == value.tag()) => {
                (Notice::Value(Snapshot::new(&**value)), Told::Value(entry.told()))
            }
            Data::Tombstone { .. } => return None,
            // What it has heard of is gone, and its id serves another type.
            Data::Value(_) => return self.told.remove(key).map(|_| Notice::Expired),
        };
        (self.told.insert(key.clone(), now) != Some(now)).then_some(notice)
    }
}

/// All subscriptions of a replicator.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    by_number: BTreeMap<u64, Subscriber>,
    index: PatternIndex,
    /// Not told anything yet.
    new: BTreeSet<u64>,
}

impl Subscriptions {
    /// Follows an id, or a prefix and `*`, of one type or of all.
    pub(crate) fn add(&mut self, number: u64, pattern: KeyId, tag: Option<Arc<str>>) {
        self.remove(number);
        self.index.insert(Pattern::read(&pattern), number);
        self.by_number.insert(number, Subscriber { pattern, tag, told: BTreeMap::new() });
        self.new.insert(number);
    }

    /// Nothing if there is no such subscription.
    pub(crate) fn remove(&mut self, number: u64) {
        if let Some(subscriber) = self.by_number.remove(&number) {
            self.new.remove(&number);
            self.index.remove(Pattern::read(&subscriber.pattern), number);
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether a flush would have anything to look at. Changes made while there is no subscriber are not kept.
    pub(crate) fn has_work(&self, entries: &mut Entries) -> bool {
        if self.by_number.is_empty() {
            entries.dirty.clear();
        }
        !self.new.is_empty() || !entries.dirty.is_empty()
    }

    /// Tells every subscriber what it has not been told.
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
