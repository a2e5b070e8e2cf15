//! What is to be sent in a round, and how differences come into that queue.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use greylag_crdt::Digest;

use super::large_values::LargeValues;
use crate::api::key::KeyId;
use crate::api::settings::ReplicatorSettings;
use crate::data::entries::Entries;
use crate::data::envelope::Envelope;
use crate::data::tree::{LEAF_KEYS, Prefix, Sixteenths, Sum};
use crate::messages::message::{Listed, Message, RoundId, Wanted};

/// The most parts whose sums are in one message: 256 sums.
const PARENTS_PER_MESSAGE: usize = 16;
/// The most hashes in one message, and parts in one list.
const HASHES_PER_MESSAGE: usize = 512;
/// The most entries in one message: the receiver decodes and joins them in one step. The window counts such messages by
/// their content.
const ENTRIES_PER_MESSAGE: usize = 64;
/// The most ranges in one message.
const RANGES_PER_MESSAGE: usize = 512;
/// A part of the hash space is streamed in pieces of about so many entries, so that no step is long.
pub(super) const STREAMED_AT_ONCE: u64 = 256;
/// Decides whether a difference is suppressed: by the hash, the own digest and the peer's, and the peer's used-time.
pub(crate) type Skip<'a> = dyn FnMut(u64, Option<Digest>, Option<Digest>, Option<i64>) -> bool + 'a;

/// What is to be sent in a round when the window allows it; as much of one kind as fits goes into one message.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Parts whose sums differ: send the sums one level deeper.
    nodes: VecDeque<Prefix>,
    /// Parts with few keys that differ: list all keys.
    lists: VecDeque<Prefix>,
    wants: VecDeque<u64>,
    /// Entries that differ: send them, and ask for the result of the join.
    differing: VecDeque<KeyId>,
    /// Entries that the peer lacks: send them.
    lacking: VecDeque<KeyId>,
    /// Parts of which the peer holds nothing: send everything in them.
    streams: VecDeque<Prefix>,
    /// Ranges to ask for, of values that the peer offered; no range means that nothing more is wanted.
    inner: VecDeque<(KeyId, Digest, Vec<Wanted>)>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.lists.is_empty()
            && self.wants.is_empty()
            && self.differing.is_empty()
            && self.lacking.is_empty()
            && self.streams.is_empty()
            && self.inner.is_empty()
    }

    /// Compares everything in a part of the hash space with the peer's sum.
    pub(super) fn compare_root(&mut self, entries: &Entries, part: Sixteenths, theirs: Sum) {
        if part == Sixteenths::ALL {
            self.compare(entries, Prefix::ROOT, theirs);
        } else if theirs.count == 0 {
            self.streams.extend(part.prefixes());
        } else if entries.tree.sum_of(part) != theirs {
            self.nodes.push_back(Prefix::ROOT);
        }
    }

    /// Compares a part with the peer's sum.
    pub(super) fn compare(&mut self, entries: &Entries, prefix: Prefix, theirs: Sum) {
        let own = entries.tree.sum(prefix);
        if own == theirs {
            return;
        }
        if theirs.count == 0 {
            self.streams.push_back(prefix);
        } else if own.count <= LEAF_KEYS as u64 || prefix.is_deepest() {
            self.lists.push_back(prefix);
        } else {
            self.nodes.push_back(prefix);
        }
    }

    /// Compares a part with the list of everything that the peer holds in it. `skip` decides which differences are
    /// suppressed, because exchanging them changed nothing before.
    pub(super) fn compare_list(&mut self, entries: &Entries, prefix: Prefix, theirs: &[Listed], skip: &mut Skip<'_>) {
        if theirs.is_empty() {
            // Stream the part, some entries at a time: it may be large.
            return self.streams.push_back(prefix);
        }
        // Descend: the peer holds little in this part, but this replica may hold a thousand times as much.
        if entries.tree.sum(prefix).count > STREAMED_AT_ONCE && !prefix.is_deepest() {
            for child in prefix.children() {
                let theirs: Vec<Listed> = theirs.iter().filter(|held| child.contains(held.hash)).copied().collect();
                self.compare_list(entries, child, &theirs, skip);
            }
            return;
        }
        let mut listed: BTreeMap<u64, BTreeSet<Digest>> = BTreeMap::new();
        let mut used: BTreeMap<u64, i64> = BTreeMap::new();
        for Listed { hash, digest, used_ms } in theirs {
            listed.entry(*hash).or_default().insert(*digest);
            used.extend(used_ms.map(|used_ms| (*hash, used_ms)));
        }
        let used = |hash| used.get(&hash).copied();
        let mut held: BTreeMap<u64, Vec<(KeyId, Digest)>> = BTreeMap::new();
        let present = entries.tree.items(prefix).into_iter().filter(|(_, key, _)| !entries.is_overdue(key));
        for (hash, key, digest) in present {
            held.entry(hash).or_default().push((key, digest));
        }
        let Queue { lacking, differing, wants: wanted, .. } = self;
        for (hash, own) in &held {
            let digests: BTreeSet<Digest> = own.iter().map(|(_, digest)| *digest).collect();
            let keys = own.iter().map(|(key, _)| key.clone());
            match listed.get(hash) {
                None => lacking.extend(keys),
                Some(theirs) if *theirs == digests => {}
                Some(theirs) if skip(*hash, digests.first().copied(), theirs.first().copied(), used(*hash)) => {}
                Some(theirs) => {
                    differing.extend(keys);
                    // Two ids may have one hash: the peer may hold one that is not here.
                    if theirs.len() > digests.len() {
                        wanted.push_back(*hash);
                    }
                }
            }
        }
        let absent = listed.iter().filter(|(hash, _)| !held.contains_key(hash));
        for (hash, theirs) in absent {
            if !skip(*hash, None, theirs.first().copied(), used(*hash)) {
                wanted.push_back(*hash);
            }
        }
    }

    /// Queues entries whose results are not wanted back.
    pub(super) fn send_entries(&mut self, keys: impl IntoIterator<Item = KeyId>) {
        self.lacking.extend(keys);
    }

    /// Asks for ranges of a large value.
    pub(super) fn want_ranges(&mut self, key: &KeyId, snapshot: Digest, mut ranges: Vec<Wanted>) {
        while !ranges.is_empty() {
            let rest = ranges.split_off(ranges.len().min(RANGES_PER_MESSAGE));
            self.inner.push_back((key.clone(), snapshot, ranges));
            ranges = rest;
        }
    }

    /// Tells the peer that nothing more of a large value is wanted.
    pub(super) fn want_no_more(&mut self, key: &KeyId, snapshot: Digest) {
        self.inner.push_back((key.clone(), snapshot, Vec::new()));
    }

    /// The next message with this number, with whether it goes to the bulk mailbox. Entries that are never sent whole
    /// are handed to `large_values`.
    pub(super) fn next(
        &mut self,
        settings: &ReplicatorSettings,
        entries: &mut Entries,
        large_values: &mut LargeValues,
        round: RoundId,
        number: u64,
    ) -> Option<(bool, Message)> {
        if let Some((key, snapshot, ranges)) = self.inner.pop_front() {
            return Some((false, Message::InnerWant { round, number, key, snapshot, ranges }));
        }
        if !self.nodes.is_empty() {
            let parents = self.nodes.drain(..self.nodes.len().min(PARENTS_PER_MESSAGE));
            let sums = |parent: Prefix| parent.children().map(|child| entries.tree.sum(child)).collect();
            let parents = parents.map(|parent| (parent, sums(parent))).collect();
            return Some((false, Message::SyncNodes { round, number, parents }));
        }
        if !self.lists.is_empty() {
            let (mut prefixes, mut keys) = (Vec::new(), Vec::new());
            while keys.len() + prefixes.len() < HASHES_PER_MESSAGE
                && let Some(prefix) = self.lists.pop_front()
            {
                prefixes.push(prefix);
                keys.extend(listed(entries, prefix));
            }
            return Some((false, Message::SyncList { round, number, prefixes, keys }));
        }
        if !self.wants.is_empty() {
            let hashes = self.wants.drain(..self.wants.len().min(HASHES_PER_MESSAGE)).collect();
            return Some((false, Message::SyncWant { round: Some(round), number, hashes }));
        }
        loop {
            let send_back = !self.differing.is_empty();
            while !send_back
                && self.lacking.len() < ENTRIES_PER_MESSAGE
                && let Some(prefix) = self.streams.pop_front()
            {
                if entries.tree.sum(prefix).count > STREAMED_AT_ONCE && !prefix.is_deepest() {
                    prefix.children().rev().for_each(|child| self.streams.push_front(child));
                } else {
                    self.lacking.extend(entries.tree.items(prefix).into_iter().map(|(_, key, _)| key));
                }
            }
            let keys = if send_back { &mut self.differing } else { &mut self.lacking };
            if keys.is_empty() {
                return None;
            }
            let (bulk, found, large) = fill(settings, entries, keys);
            large_values.send(large, send_back);
            if !found.is_empty() {
                return Some((bulk, Message::Gossip { round: Some(round), number, send_back, entries: found }));
            }
        }
    }
}

/// Everything held in a part, with the hashes of ids.
fn listed(entries: &Entries, prefix: Prefix) -> impl Iterator<Item = Listed> {
    let present = entries.tree.items(prefix).into_iter().filter(|(_, key, _)| !entries.is_overdue(key));
    present.map(|(hash, key, digest)| Listed { hash, digest, used_ms: entries.used_ms(&key) })
}

/// The ids held here that have this hash.
pub(crate) fn keys_of(entries: &Entries, hash: u64) -> Vec<KeyId> {
    let prefix = Prefix::new(hash, 16).map(|prefix| entries.tree.items(prefix)).unwrap_or_default();
    prefix.into_iter().map(|(_, key, _)| key).collect()
}

/// Takes as many entries as fit one message; an entry that is too large on its own goes over bulk. Entries that are
/// gone are left out; entries that are never sent whole are returned separately.
pub(crate) fn fill(
    settings: &ReplicatorSettings,
    entries: &mut Entries,
    keys: &mut VecDeque<KeyId>,
) -> (bool, Vec<(KeyId, Envelope)>, Vec<KeyId>) {
    let (mut found, mut large, mut bytes) = (Vec::new(), Vec::new(), 0);
    while let Some(key) = keys.pop_front() {
        if entries.is_large(&key, settings.inner_tree_keys) {
            large.push(key);
            continue;
        }
        let Some(envelope) = entries.envelope(&key) else { continue };
        let size = envelope.size() + key.len();
        if !found.is_empty()
            && (found.len() >= settings.max_delta_elements.min(ENTRIES_PER_MESSAGE)
                || bytes + size > settings.max_message_bytes)
        {
            keys.push_front(key);
            break;
        }
        bytes += size;
        found.push((key, envelope));
    }
    (bytes > settings.max_message_bytes, found, large)
}

#[cfg(test)]
mod tests {
    use greylag_crdt::{DotSource, GSet, Markers, ReplicaId, ReplicatedData};

    use super::*;
    use crate::data::entries::{Data, EntryContent};

    impl Queue {
        /// How many entries differ, and how many the peer lacks.
        pub(in crate::dissemination::sync) fn lengths(&self) -> (usize, usize) {
            (self.differing.len(), self.lacking.len())
        }
    }

    /// ddata G10: a message holds 256 sums at most.
    #[test]
    fn a_message_holds_256_sums() {
        let settings = ReplicatorSettings::default();
        let mut entries = Entries::new(ReplicaId(1), DotSource::new(), &settings);
        let (mut queue, round) = (Queue::default(), RoundId { opened_by_sender: true, number: 1 });
        queue.nodes.extend(Prefix::ROOT.children().flat_map(|part| part.children().collect::<Vec<_>>()));
        let mut next = |number| queue.next(&settings, &mut entries, &mut LargeValues::default(), round, number);
        let messages = std::iter::from_fn(|| next(1)).filter_map(|(_, message)| match message {
            Message::SyncNodes { parents, .. } => Some(parents.iter().map(|(_, sums)| sums.len()).sum::<usize>()),
            _ => None,
        });
        assert_eq!(messages.collect::<Vec<_>>(), [256; 16]);
    }

    /// ddata G11: a message respects the limits of entries and bytes, and a large entry goes alone.
    #[test]
    fn messages_hold_as_much_as_they_may() {
        let mut entries = Entries::new(ReplicaId(1), DotSource::new(), &ReplicatorSettings::test());
        for (name, size) in [("a", 10), ("b", 10), ("c", 10), ("d", 3_000), ("e", 3_000), ("f", 9_000), ("g", 10)] {
            let mut set = GSet::<String>::zero();
            set.add("x".repeat(size));
            let (versions, markers) = (Default::default(), Markers::new());
            let data = Data::Value(Box::new(set));
            entries.set(&name.into(), EntryContent { data, versions, markers, size_bound: 9, born: 0, used_ms: None });
        }
        let settings =
            ReplicatorSettings { max_delta_elements: 2, max_message_bytes: 4_096, ..ReplicatorSettings::test() };
        let mut keys: VecDeque<KeyId> = ["a", "b", "c", "d", "e", "f", "g"].map(KeyId::from).into();
        let mut messages = Vec::new();
        while !keys.is_empty() {
            let (bulk, found, _) = fill(&settings, &mut entries, &mut keys);
            messages.push((bulk, found.iter().map(|(key, _)| &**key).collect::<Vec<&str>>().concat()));
        }
        let expected = [(false, "ab"), (false, "cd"), (false, "e"), (true, "f"), (false, "g")];
        assert_eq!(messages, expected.map(|(bulk, keys)| (bulk, keys.to_owned())));
    }
}
