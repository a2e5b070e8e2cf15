//! Who follows which entries, and what each was told last.
//!
//! Subscribers are told in flushes: of each entry that changed since the last one, whoever follows
//! it and was told other data gets the present state. A new subscriber gets it once even if nothing
//! changed. Source: ddata R15, R16, R17.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greylag_crdt::Digest;

use crate::entries::{Data, Entries};
use crate::key::KeyId;
use crate::message::{Effect, Notice, Snapshot};

#[derive(Debug)]
struct Subscriber {
    /// The id, or prefix and `*`.
    pattern: KeyId,
    tag: Arc<str>,
    /// What it was told last, by entry.
    told: BTreeMap<KeyId, Digest>,
}

/// All subscriptions of a replicator.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    by_number: BTreeMap<u64, Subscriber>,
    /// By id, and by prefix without its `*`.
    by_id: BTreeMap<KeyId, BTreeSet<u64>>,
    by_prefix: BTreeMap<KeyId, BTreeSet<u64>>,
    /// Not told anything yet.
    new: BTreeSet<u64>,
}

impl Subscriptions {
    pub(crate) fn add(&mut self, number: u64, pattern: KeyId, tag: Arc<str>) {
        let (index, id) = Self::index(&pattern);
        let map = if index { &mut self.by_prefix } else { &mut self.by_id };
        map.entry(id).or_default().insert(number);
        self.by_number.insert(number, Subscriber { pattern, tag, told: BTreeMap::new() });
        self.new.insert(number);
    }

    pub(crate) fn remove(&mut self, number: u64) {
        let Some(subscriber) = self.by_number.remove(&number) else { return };
        self.new.remove(&number);
        let (index, id) = Self::index(&subscriber.pattern);
        let map = if index { &mut self.by_prefix } else { &mut self.by_id };
        if let Some(numbers) = map.get_mut(&id) {
            numbers.remove(&number);
            if numbers.is_empty() {
                map.remove(&id);
            }
        }
    }

    /// Whether a flush would have anything to look at.
    pub(crate) fn has_work(&self, entries: &Entries) -> bool {
        !self.new.is_empty() || (!entries.dirty.is_empty() && !self.by_number.is_empty())
    }

    /// Tells everybody what they have not been told.
    pub(crate) fn flush(&mut self, entries: &mut Entries, out: &mut Vec<Effect>) {
        let dirty = std::mem::take(&mut entries.dirty);
        let new = std::mem::take(&mut self.new);
        for key in &dirty {
            for number in self.followers(key) {
                if !new.contains(&number) {
                    self.tell(entries, number, key, out);
                }
            }
        }
        for number in new {
            let Some(subscriber) = self.by_number.get(&number) else { continue };
            let keys: Vec<KeyId> = match subscriber.pattern.strip_suffix('*') {
                Some(prefix) => {
                    let matching = entries.from(prefix).take_while(|(key, _)| key.starts_with(prefix));
                    matching.map(|(key, _)| key.clone()).collect()
                }
                None => vec![subscriber.pattern.clone()],
            };
            for key in keys {
                self.tell(entries, number, &key, out);
            }
        }
    }

    fn tell(&mut self, entries: &Entries, number: u64, key: &KeyId, out: &mut Vec<Effect>) {
        let Some(subscriber) = self.by_number.get_mut(&number) else { return };
        let Some(entry) = entries.get(key) else {
            if subscriber.told.remove(key).is_some() {
                out.push(Effect::Notify { subscriber: number, key: key.clone(), notice: Notice::Expired });
            }
            return;
        };
        let notice = match &entry.data {
            Data::Tombstone { .. } => Notice::Deleted,
            Data::Value(value) if value.tag() == subscriber.tag => Notice::Value(Snapshot::new(&**value)),
            Data::Value(_) => return,
        };
        if subscriber.told.insert(key.clone(), entry.digest()) != Some(entry.digest()) {
            out.push(Effect::Notify { subscriber: number, key: key.clone(), notice });
        }
    }

    /// Everybody that follows this entry, also by overlapping prefixes.
    fn followers(&self, key: &KeyId) -> BTreeSet<u64> {
        let mut found = self.by_id.get(key).cloned().unwrap_or_default();
        let ends = (0..=key.len()).filter(|end| key.is_char_boundary(*end));
        for numbers in ends.filter_map(|end| self.by_prefix.get(&key[..end])) {
            found.extend(numbers);
        }
        found
    }

    fn index(pattern: &KeyId) -> (bool, KeyId) {
        match pattern.strip_suffix('*') {
            Some(prefix) => (true, prefix.into()),
            None => (false, pattern.clone()),
        }
    }
}
