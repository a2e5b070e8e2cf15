//! One round of anti-entropy with one peer: finds the differences and exchanges them.
//!
//! The opener sends its sum. If the other's differs, both sides descend: where a part differs, each answers with sums
//! one level deeper, with a list if it holds few keys there, or with the entries at once if the other holds nothing.
//! Listed differences travel as entries both ways, very large values in parts ([`crate::repair`]). A round may cover a
//! part of the hash space only: a new node asks several peers for one share each.
//!
//! All these messages are numbered per round and direction. Each side reports how many it has processed and sent; the
//! opener knows that the round is complete when both sides have processed everything that the other sent and neither
//! has anything left. A lost message therefore stalls the round but never fakes its end; a stalled round is dropped and
//! the next one begins afresh. Source: ddata G9, G10, G13.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use greylag_crdt::Digest;

use crate::entries::Entries;
use crate::envelope::Envelope;
use crate::key::KeyId;
use crate::message::{Listed, Message, RoundId, Wanted};
use crate::pruning::RoundsSnapshot;
use crate::repair::{Next, Outgoing, UNDER_WAY};
use crate::settings::ReplicatorSettings;
use crate::tree::{LEAF_KEYS, Prefix, Sixteenths, Sum};

/// The most parts whose sums are in one message: 256 sums.
const PARENTS_PER_MESSAGE: usize = 16;
/// The most hashes in one message, and parts in one list.
const HASHES_PER_MESSAGE: usize = 512;
/// The most entries in one message: the receiver decodes and joins them in one step. The window counts such messages by
/// their content.
const ENTRIES_PER_MESSAGE: usize = 64;
/// About the most that one step of a round sends, in units of entries; other messages cost less. Others are served
/// between two steps.
const STEP_COST: usize = 64;
/// The weight of a full message in the window.
const FULL: usize = 64;

/// The most ranges in one message.
const RANGES_PER_MESSAGE: usize = 512;
/// A part of the hash space is streamed in pieces of about so many entries, so that no step is long.
const STREAMED_AT_ONCE: u64 = 256;
/// How long a message in fragments may take.
pub(crate) const FRAGMENTS_TIMEOUT: Duration = Duration::from_secs(30);

/// Decides whether a difference is suppressed: by the hash, the own digest and the peer's, and the peer's used-time.
pub(crate) type Skip<'a> = dyn FnMut(u64, Option<Digest>, Option<Digest>, Option<i64>) -> bool + 'a;

/// What is to be sent in a round when the window allows it; as much of one kind as fits goes into one message.
#[derive(Debug, Default)]
struct Queue {
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
    fn is_empty(&self) -> bool {
        self.nodes.is_empty()
            && self.lists.is_empty()
            && self.wants.is_empty()
            && self.differing.is_empty()
            && self.lacking.is_empty()
            && self.streams.is_empty()
            && self.inner.is_empty()
    }
}

/// A round under way.
#[derive(Debug)]
pub(crate) struct Round {
    number: u64,
    opened_here: bool,
    /// The part of the hash space that the round covers.
    pub(crate) part: Sixteenths,
    pub(crate) began_at: Instant,
    pub(crate) progress_at: Instant,
    queue: Queue,
    /// Large values that wait to be sent, with whether the result of the join is wanted back.
    large: VecDeque<(KeyId, bool)>,
    /// Large values being sent.
    outgoing: BTreeMap<KeyId, Outgoing>,
    /// Large values being received.
    receiving: BTreeSet<KeyId>,
    /// The peer's sum, as long as comparing it is deferred.
    pub(crate) held: Option<Sum>,
    /// Whether sums must be computed before the round goes on.
    pub(crate) sums_missing: bool,
    /// Whether the last step sent as much as one step may, and more is left.
    pub(crate) has_more: bool,
    /// The weights of the unacknowledged messages, the oldest first.
    weights: VecDeque<usize>,
    /// Whether a part of the round was given up; its end then counts for nothing.
    pub(crate) has_failed: bool,
    /// The number of the last message that went in fragments.
    fragmented: u64,
    sent: u64,
    received: BTreeSet<u64>,
    /// The peer's last acknowledgement: its number, the numbers of received and sent messages, and whether nothing is
    /// left.
    peer: (u64, u64, u64, bool),
    /// The last acknowledgement sent to the peer.
    sent_ack: Option<(u64, u64, bool)>,
    acks: u64,
    /// Whether the peer has answered the opening; always `true` if the peer opened the round.
    pub(crate) answered: bool,
    /// The own pruning rounds for which completing this round collects the peer.
    pub(crate) own_rounds: RoundsSnapshot,
    /// Whether every member was reachable when the round began.
    pub(crate) all_were_reachable: bool,
}

impl Round {
    pub(crate) fn new(now: Instant, number: u64, opened_here: bool) -> Self {
        Self {
            number,
            opened_here,
            part: Sixteenths::ALL,
            began_at: now,
            progress_at: now,
            queue: Queue::default(),
            large: VecDeque::new(),
            outgoing: BTreeMap::new(),
            receiving: BTreeSet::new(),
            held: None,
            sums_missing: false,
            has_more: false,
            weights: VecDeque::new(),
            has_failed: false,
            fragmented: 0,
            sent: 0,
            received: BTreeSet::new(),
            peer: (0, 0, 0, false),
            sent_ack: None,
            acks: 0,
            answered: !opened_here,
            own_rounds: RoundsSnapshot::default(),
            all_were_reachable: false,
        }
    }

    /// The round's name in messages from here.
    fn id(&self) -> RoundId {
        RoundId { opened_by_sender: self.opened_here, number: self.number }
    }

    /// The opener's number for the round.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn is(&self, number: u64) -> bool {
        self.number == number
    }

    /// Notes a numbered message. Returns whether it is new.
    pub(crate) fn receive(&mut self, now: Instant, number: u64) -> bool {
        let new = number > 0 && self.received.insert(number);
        if new {
            self.progress_at = now;
        }
        new
    }

    /// Takes the peer's acknowledgement.
    pub(crate) fn on_ack(&mut self, now: Instant, number: u64, received: u64, sent: u64, idle: bool) {
        if number > self.peer.0 {
            self.peer = (number, received, sent, idle);
            self.progress_at = now;
        }
    }

    /// Whether every difference was exchanged both ways; only the opener can know.
    pub(crate) fn is_complete(&self) -> bool {
        let (number, received, sent, idle) = self.peer;
        number > 0 && idle && self.is_idle() && received == self.sent && self.received.len() as u64 == sent
    }

    /// Whether there is nothing more to send at present.
    fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.large.is_empty()
            && self.outgoing.is_empty()
            && self.receiving.is_empty()
            && self.held.is_none()
    }

    /// Whether there is something to send that waits neither for the peer nor for sums.
    fn has_something_to_say(&self) -> bool {
        !self.queue.is_empty() || self.outgoing.values().any(Outgoing::has_work) || !self.large.is_empty()
    }

    /// Until when the round may rest before it counts as stalled: a round that has lost a message never goes on.
    pub(crate) fn stalls_at(&self, interval: Duration) -> Instant {
        let timeout = if self.peer.1 < self.fragmented { FRAGMENTS_TIMEOUT.max(interval * 2) } else { interval * 2 };
        self.progress_at + timeout
    }

    /// Compares everything that the round covers with the peer's sum.
    pub(crate) fn compare_root(&mut self, entries: &Entries, theirs: Sum) {
        if self.part == Sixteenths::ALL {
            self.compare(entries, Prefix::ROOT, theirs);
        } else if theirs.count == 0 {
            self.queue.streams.extend(self.part.prefixes());
        } else if entries.tree.sum_of(self.part) != theirs {
            self.queue.nodes.push_back(Prefix::ROOT);
        }
    }

    /// Compares the sixteen parts of a part with the peer's sums.
    pub(crate) fn compare_children(&mut self, entries: &Entries, parent: Prefix, theirs: &[Sum]) {
        for (child, sum) in parent.children().zip(theirs) {
            if parent != Prefix::ROOT || self.part.contains(child) {
                self.compare(entries, child, *sum);
            }
        }
    }

    /// Compares a part with the peer's sum.
    pub(crate) fn compare(&mut self, entries: &Entries, prefix: Prefix, theirs: Sum) {
        let own = entries.tree.sum(prefix);
        if own == theirs {
            return;
        }
        if theirs.count == 0 {
            self.queue.streams.push_back(prefix);
        } else if own.count <= LEAF_KEYS as u64 || prefix.is_deepest() {
            self.queue.lists.push_back(prefix);
        } else {
            self.queue.nodes.push_back(prefix);
        }
    }

    /// Compares a part with the list of everything that the peer holds in it. `skip` decides which differences are
    /// suppressed, because exchanging them changed nothing before.
    pub(crate) fn compare_list(&mut self, entries: &Entries, prefix: Prefix, theirs: &[Listed], skip: &mut Skip<'_>) {
        if theirs.is_empty() {
            // Stream the part, some entries at a time: it may be large.
            return self.queue.streams.push_back(prefix);
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
        let Queue { lacking, differing, wants: wanted, .. } = &mut self.queue;
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

    /// Queues entries that the peer asked for.
    pub(crate) fn on_want(&mut self, entries: &Entries, hashes: &[u64]) {
        self.send_entries(hashes.iter().flat_map(|hash| keys_of(entries, *hash)));
    }

    /// Queues entries whose results are not wanted back.
    pub(crate) fn send_entries(&mut self, keys: impl IntoIterator<Item = KeyId>) {
        self.queue.lacking.extend(keys);
    }

    /// Notes that a large value is being received.
    pub(crate) fn begin_receiving(&mut self, key: KeyId) {
        self.receiving.insert(key);
    }

    /// Asks for ranges of a large value.
    pub(crate) fn want_ranges(&mut self, key: &KeyId, snapshot: Digest, mut ranges: Vec<Wanted>) {
        while !ranges.is_empty() {
            let rest = ranges.split_off(ranges.len().min(RANGES_PER_MESSAGE));
            self.queue.inner.push_back((key.clone(), snapshot, ranges));
            ranges = rest;
        }
    }

    /// Ends receiving a value in parts: it is complete or refused, and nothing more of it is wanted.
    pub(crate) fn end_receiving(&mut self, key: &KeyId, snapshot: Digest) {
        self.receiving.remove(key);
        self.queue.inner.push_back((key.clone(), snapshot, Vec::new()));
    }

    /// Takes the peer's request for ranges of an offered value; no range ends the transfer. Returns whether the value
    /// is being sent at all.
    pub(crate) fn on_ranges_wanted(&mut self, key: &KeyId, snapshot: Digest, ranges: Vec<Wanted>) -> bool {
        let Some(outgoing) = self.outgoing.get_mut(key).filter(|outgoing| outgoing.snapshot() == snapshot) else {
            return false;
        };
        if ranges.is_empty() {
            self.outgoing.remove(key);
        } else {
            outgoing.want(ranges);
        }
        true
    }

    /// The next message of a large value.
    fn next_of_large(&mut self, settings: &ReplicatorSettings, entries: &Entries, number: u64) -> Option<Message> {
        while self.outgoing.len() < UNDER_WAY
            && let Some((key, send_back)) = self.large.pop_front()
        {
            let entry = entries.get(&key);
            if let Some(outgoing) = entry.and_then(|entry| Outgoing::new(settings, entry, send_back)) {
                self.outgoing.insert(key, outgoing);
            }
        }
        let round = self.id();
        let (key, outgoing) = self.outgoing.iter_mut().find(|(_, outgoing)| outgoing.has_work())?;
        let (key, snapshot) = (key.clone(), outgoing.snapshot());
        match outgoing.next()? {
            Next::Nodes(offer, nodes) => Some(Message::InnerNodes { round, number, key, snapshot, offer, nodes }),
            Next::Bucket(part) => Some(Message::Bucket { round, number, key, snapshot, part }),
            Next::SumsMissing => {
                self.sums_missing = true;
                None
            }
            // Drop the value: the peer asked for ranges that do not exist.
            Next::Malformed => {
                self.outgoing.remove(&key);
                None
            }
        }
    }

    /// The next message that is not of a large value, with whether it goes to the bulk mailbox.
    fn next_of_queue(
        &mut self,
        settings: &ReplicatorSettings,
        entries: &mut Entries,
        number: u64,
    ) -> Option<(bool, Message)> {
        let (round, queue) = (self.id(), &mut self.queue);
        if let Some((key, snapshot, ranges)) = queue.inner.pop_front() {
            return Some((false, Message::InnerWant { round, number, key, snapshot, ranges }));
        }
        if !queue.nodes.is_empty() {
            let parents = queue.nodes.drain(..queue.nodes.len().min(PARENTS_PER_MESSAGE));
            let sums = |parent: Prefix| parent.children().map(|child| entries.tree.sum(child)).collect();
            let parents = parents.map(|parent| (parent, sums(parent))).collect();
            return Some((false, Message::SyncNodes { round, number, parents }));
        }
        if !queue.lists.is_empty() {
            let (mut prefixes, mut keys) = (Vec::new(), Vec::new());
            while keys.len() + prefixes.len() < HASHES_PER_MESSAGE
                && let Some(prefix) = queue.lists.pop_front()
            {
                prefixes.push(prefix);
                keys.extend(listed(entries, prefix));
            }
            return Some((false, Message::SyncList { round, number, prefixes, keys }));
        }
        if !queue.wants.is_empty() {
            let hashes = queue.wants.drain(..queue.wants.len().min(HASHES_PER_MESSAGE)).collect();
            return Some((false, Message::SyncWant { round: Some(round), number, hashes }));
        }
        loop {
            let queue = &mut self.queue;
            let send_back = !queue.differing.is_empty();
            while !send_back
                && queue.lacking.len() < ENTRIES_PER_MESSAGE
                && let Some(prefix) = queue.streams.pop_front()
            {
                if entries.tree.sum(prefix).count > STREAMED_AT_ONCE && !prefix.is_deepest() {
                    prefix.children().rev().for_each(|child| queue.streams.push_front(child));
                } else {
                    queue.lacking.extend(entries.tree.items(prefix).into_iter().map(|(_, key, _)| key));
                }
            }
            let keys = if send_back { &mut queue.differing } else { &mut queue.lacking };
            if keys.is_empty() {
                return None;
            }
            let (bulk, found, large) = fill(settings, entries, keys);
            self.large.extend(large.into_iter().map(|key| (key, send_back)));
            if !found.is_empty() {
                return Some((bulk, Message::Gossip { round: Some(round), number, send_back, entries: found }));
            }
        }
    }

    /// The weight of the unacknowledged messages.
    fn unacknowledged(&mut self) -> usize {
        let count = self.sent - self.peer.1.min(self.sent);
        let known = self.weights.len() - (self.weights.len() as u64).min(count) as usize;
        self.weights.drain(..known);
        self.weights.iter().sum()
    }

    /// Sends what the window and one step allow, and then an acknowledgement if the peer does not know the present
    /// state.
    pub(crate) fn pump(
        &mut self,
        settings: &ReplicatorSettings,
        entries: &mut Entries,
        out: &mut Vec<(bool, Message)>,
    ) {
        let mut left = STEP_COST;
        self.has_more = false;
        let mut under_way = self.unacknowledged();
        while under_way < settings.sync_window * FULL {
            self.has_more = left == 0 && self.has_something_to_say();
            if left == 0 {
                break;
            }
            let number = self.sent + 1;
            let next = self.next_of_queue(settings, entries, number);
            let next = next.or_else(|| Some((false, self.next_of_large(settings, entries, number)?)));
            let Some((bulk, message)) = next else { break };
            self.sent = number;
            if bulk {
                self.fragmented = number;
            }
            left = left.saturating_sub(cost(&message));
            self.weights.push_back(weight(settings, &message));
            under_way += weight(settings, &message);
            out.push((bulk, message));
        }
        let idle = self.is_idle();
        let state = (self.received.len() as u64, self.sent, idle);
        if self.sent_ack != Some(state) {
            self.sent_ack = Some(state);
            self.acks += 1;
            let (received, sent, idle) = state;
            out.push((false, Message::SyncAck { round: self.id(), number: self.acks, received, sent, idle }));
        }
    }
}

/// About what making a message costs, in units of entries.
fn cost(message: &Message) -> usize {
    match message {
        Message::Gossip { entries, .. } => entries.len(),
        Message::SyncList { prefixes, keys, .. } => 1 + (prefixes.len() + keys.len()) / 16,
        Message::SyncNodes { parents, .. } => parents.len(),
        Message::Bucket { .. } => STEP_COST,
        Message::InnerNodes { nodes, .. } => 1 + nodes.len() / 4,
        _ => 1,
    }
}

/// The weight of a message in the window: of entries and parts their share of a full message; every other message is
/// full.
fn weight(settings: &ReplicatorSettings, message: &Message) -> usize {
    let (count, bytes) = match message {
        Message::Gossip { entries, .. } => {
            (entries.len(), entries.iter().map(|(key, envelope)| key.len() + envelope.size()).sum())
        }
        Message::Bucket { part, .. } => (1, part.bytes.len()),
        _ => return FULL,
    };
    let of_count = (count * FULL).div_ceil(settings.max_delta_elements);
    let most = of_count.max((bytes * FULL).div_ceil(settings.max_message_bytes));
    most.clamp(1, FULL)
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
    use greylag_crdt::{DotSource, GSet, Markers, ReplicaId, ReplicatedData, hash64};

    use super::*;
    use crate::entries::{Data, EntryContent};

    /// ddata G10: a message holds 256 sums at most.
    #[test]
    fn a_message_holds_256_sums() {
        let settings = ReplicatorSettings::default();
        let mut entries = Entries::new(ReplicaId(1), DotSource::new(), &settings);
        let (mut round, mut out) = (Round::new(Instant::now(), 1, true), Vec::new());
        round.queue.nodes.extend(Prefix::ROOT.children().flat_map(|part| part.children().collect::<Vec<_>>()));
        round.pump(&settings, &mut entries, &mut out);
        let sums = out.iter().filter_map(|(_, message)| match message {
            Message::SyncNodes { parents, .. } => Some(parents.iter().map(|(_, sums)| sums.len()).sum::<usize>()),
            _ => None,
        });
        assert_eq!(sums.collect::<Vec<_>>(), [256; 4]);
    }

    /// ddata H9, G10: a peer that holds little is sent much, and no step gathers all of it.
    #[test]
    fn entries_that_a_peer_lacks_are_gathered_in_steps() {
        let mut entries = Entries::new(ReplicaId(1), DotSource::new(), &ReplicatorSettings::test());
        let all = 10_000;
        for n in 0..all {
            let data = Data::Value(Box::new(GSet::<String>::zero()));
            let (versions, markers) = (BTreeMap::new(), Markers::new());
            let key = KeyId::from(format!("key-{n}"));
            entries.set(&key, EntryContent { data, versions, markers, size_bound: 9, born: 0, used_ms: None });
        }
        let mut round = Round::new(Instant::now(), 1, false);
        let listed = |n: u32| Listed { hash: hash64(format!("key-{n}").as_bytes()), digest: Digest(7), used_ms: None };
        round.compare_list(&entries, Prefix::ROOT, &[listed(3), listed(4)], &mut |_, _, _, _| false);
        assert_eq!(round.queue.differing.len(), 2);
        assert!(round.queue.lacking.len() < 2 * STREAMED_AT_ONCE as usize, "{} at once", round.queue.lacking.len());
        let (settings, mut sent) = (ReplicatorSettings::test(), BTreeSet::new());
        loop {
            let mut out = Vec::new();
            round.pump(&settings, &mut entries, &mut out);
            for (_, message) in out {
                match message {
                    Message::Gossip { entries, .. } => sent.extend(entries.into_iter().map(|(key, _)| key)),
                    Message::SyncAck { number, idle: true, .. } => {
                        return assert_eq!((sent.len(), number > 0), (all, true));
                    }
                    _ => {}
                }
            }
            let sent = round.sent;
            round.on_ack(Instant::now(), round.peer.0 + 1, sent, 0, false);
        }
    }

    /// ddata G10: a message that came twice counts once, a missing one keeps the round open, and an older
    /// acknowledgement of the peer does not replace a newer one.
    #[test]
    fn the_end_of_a_round_is_found_by_counting() {
        let now = Instant::now();
        let mut round = Round::new(now, 1, true);
        assert_eq!([2, 2, 0].map(|number| round.receive(now, number)), [true, false, false]);
        round.on_ack(now, 5, 0, 2, true);
        assert!(!round.is_complete(), "the first one is missing");
        assert!(round.receive(now, 1) && round.is_complete());
        round.on_ack(now, 6, 0, 3, true);
        round.on_ack(now, 5, 0, 2, true);
        assert!(!round.is_complete(), "it has sent a third one");
        round.receive(now, 3);
        round.on_ack(now, 7, 0, 3, false);
        assert!(!round.is_complete(), "it has more to say");
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
