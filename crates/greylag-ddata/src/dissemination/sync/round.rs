//! The course of one round.

use std::time::{Duration, Instant};

use greylag_crdt::Digest;

use super::FRAGMENTS_TIMEOUT;
use super::large_values::{LargeValues, NextOfLarge};
use super::numbering::{Acknowledgement, Numbering};
use super::queue::{Queue, Skip, keys_of};
use crate::api::key::KeyId;
use crate::api::settings::ReplicatorSettings;
use crate::data::entries::Entries;
use crate::data::tree::{Prefix, Sixteenths, Sum};
use crate::messages::message::{Listed, Message, RoundId, Wanted};
use crate::pruning::RoundsSnapshot;

/// About the most that one step of a round sends, in units of entries; other messages cost less. Others are served
/// between two steps.
const STEP_COST: usize = 64;
/// The weight of a full message in the window.
const FULL: usize = 64;

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
    large: LargeValues,
    numbering: Numbering,
    /// The peer's sum, as long as comparing it is deferred.
    held: Option<Sum>,
    /// Whether sums must be computed before the round goes on.
    pub(crate) sums_missing: bool,
    /// Whether the last step sent as much as one step may, and more is left.
    pub(crate) has_more: bool,
    /// Whether a part of the round was given up; its end then counts for nothing.
    pub(crate) has_failed: bool,
    /// Whether the peer has answered the opening; always `true` if the peer opened the round.
    pub(crate) answered: bool,
    /// The own pruning rounds for which completing this round collects the peer.
    pub(crate) own_rounds: RoundsSnapshot,
    /// Whether every member was reachable when the round began.
    pub(crate) all_were_reachable: bool,
}

impl Round {
    /// A round over a part of the hash space.
    pub(crate) fn new(now: Instant, number: u64, opened_here: bool, part: Sixteenths) -> Self {
        Self {
            number,
            opened_here,
            part,
            began_at: now,
            progress_at: now,
            queue: Queue::default(),
            large: LargeValues::default(),
            numbering: Numbering::default(),
            held: None,
            sums_missing: false,
            has_more: false,
            has_failed: false,
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
        let new = self.numbering.on_received(number);
        if new {
            self.progress_at = now;
        }
        new
    }

    /// Takes the peer's acknowledgement.
    pub(crate) fn on_ack(&mut self, now: Instant, number: u64, received: u64, sent: u64, idle: bool) {
        if self.numbering.on_ack(number, received, sent, idle) {
            self.progress_at = now;
        }
    }

    /// Whether every difference was exchanged both ways; only the opener can know.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_idle() && self.numbering.is_settled()
    }

    /// Whether there is nothing more to send at present.
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.large.is_idle() && self.held.is_none()
    }

    /// Whether there is something to send that waits neither for the peer nor for sums.
    fn has_something_to_say(&self) -> bool {
        !self.queue.is_empty() || self.large.has_work()
    }

    /// Until when the round may rest before it counts as stalled: a round that has lost a message never goes on.
    pub(crate) fn stalls_at(&self, interval: Duration) -> Instant {
        let timeout =
            if self.numbering.awaits_fragments() { FRAGMENTS_TIMEOUT.max(interval * 2) } else { interval * 2 };
        self.progress_at + timeout
    }

    /// Compares everything that the round covers with the peer's sum.
    pub(crate) fn compare_root(&mut self, entries: &Entries, theirs: Sum) {
        self.queue.compare_root(entries, self.part, theirs);
    }

    /// Keeps the peer's sum, to be compared later.
    pub(crate) fn hold(&mut self, theirs: Sum) {
        self.held = Some(theirs);
    }

    /// Compares the peer's sum if that was deferred. Returns whether it was.
    pub(crate) fn release(&mut self, entries: &Entries) -> bool {
        let held = self.held.take();
        if let Some(theirs) = held {
            self.compare_root(entries, theirs);
        }
        held.is_some()
    }

    /// Compares the sixteen parts of a part with the peer's sums.
    pub(crate) fn compare_children(&mut self, entries: &Entries, parent: Prefix, theirs: &[Sum]) {
        for (child, sum) in parent.children().zip(theirs) {
            if parent != Prefix::ROOT || self.part.contains(child) {
                self.queue.compare(entries, child, *sum);
            }
        }
    }

    /// Compares a part with the list of everything that the peer holds in it. `skip` decides which differences are
    /// suppressed, because exchanging them changed nothing before.
    pub(crate) fn compare_list(&mut self, entries: &Entries, prefix: Prefix, theirs: &[Listed], skip: &mut Skip<'_>) {
        self.queue.compare_list(entries, prefix, theirs, skip);
    }

    /// Queues entries that the peer asked for.
    pub(crate) fn on_want(&mut self, entries: &Entries, hashes: &[u64]) {
        self.send_entries(hashes.iter().flat_map(|hash| keys_of(entries, *hash)));
    }

    /// Queues entries whose results are not wanted back.
    pub(crate) fn send_entries(&mut self, keys: impl IntoIterator<Item = KeyId>) {
        self.queue.send_entries(keys);
    }

    /// Notes that a large value is being received.
    pub(crate) fn begin_receiving(&mut self, key: KeyId) {
        self.large.begin_receiving(key);
    }

    /// Asks for ranges of a large value.
    pub(crate) fn want_ranges(&mut self, key: &KeyId, snapshot: Digest, ranges: Vec<Wanted>) {
        self.queue.want_ranges(key, snapshot, ranges);
    }

    /// Ends receiving a value in parts: it is complete or refused, and nothing more of it is wanted.
    pub(crate) fn end_receiving(&mut self, key: &KeyId, snapshot: Digest) {
        self.large.end_receiving(key);
        self.queue.want_no_more(key, snapshot);
    }

    /// Takes the peer's request for ranges of an offered value; no range ends the transfer.
    pub(crate) fn on_ranges_wanted(&mut self, key: &KeyId, snapshot: Digest, ranges: Vec<Wanted>) {
        self.large.on_ranges_wanted(key, snapshot, ranges);
    }

    /// The next message, with whether it goes to the bulk mailbox.
    fn next(&mut self, settings: &ReplicatorSettings, entries: &mut Entries) -> Option<(bool, Message)> {
        let (round, number) = (self.id(), self.numbering.next());
        if let Some(next) = self.queue.next(settings, entries, &mut self.large, round, number) {
            return Some(next);
        }
        match self.large.next(settings, entries, round, number) {
            NextOfLarge::Message(message) => Some((false, message)),
            NextOfLarge::SumsMissing => {
                self.sums_missing = true;
                None
            }
            NextOfLarge::Nothing => None,
        }
    }

    /// Sends what the window and one step allow, and then an acknowledgement if the peer does not know the present
    /// state.
    pub(crate) fn pump(&mut self, settings: &ReplicatorSettings, entries: &mut Entries, out: &mut Vec<Message>) {
        let mut left = STEP_COST;
        self.has_more = false;
        let mut under_way = self.numbering.unacknowledged();
        while under_way < settings.sync_window * FULL {
            self.has_more = left == 0 && self.has_something_to_say();
            if left == 0 {
                break;
            }
            let Some((bulk, message)) = self.next(settings, entries) else { break };
            let weight = weight(settings, &message);
            self.numbering.on_sent(weight, bulk);
            left = left.saturating_sub(cost(&message));
            under_way += weight;
            out.push(message);
        }
        let is_idle = self.is_idle();
        if let Some(Acknowledgement { number, received, sent, is_idle: idle }) = self.numbering.acknowledge(is_idle) {
            out.push(Message::SyncAck { round: self.id(), number, received, sent, idle });
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use greylag_crdt::{DotSource, GSet, Markers, ReplicaId, ReplicatedData, hash64};

    use super::*;
    use crate::data::entries::{Data, EntryContent};
    use crate::dissemination::sync::queue::STREAMED_AT_ONCE;

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
        let mut round = Round::new(Instant::now(), 1, false, Sixteenths::ALL);
        let listed = |n: u32| Listed { hash: hash64(format!("key-{n}").as_bytes()), digest: Digest(7), used_ms: None };
        round.compare_list(&entries, Prefix::ROOT, &[listed(3), listed(4)], &mut |_, _, _, _| false);
        let (differing, lacking) = round.queue.lengths();
        assert_eq!(differing, 2);
        assert!(lacking < 2 * STREAMED_AT_ONCE as usize, "{lacking} at once");
        let (settings, mut sent, mut acks) = (ReplicatorSettings::test(), BTreeSet::new(), 0);
        loop {
            let mut out = Vec::new();
            round.pump(&settings, &mut entries, &mut out);
            for message in out {
                match message {
                    Message::Gossip { entries, .. } => sent.extend(entries.into_iter().map(|(key, _)| key)),
                    Message::SyncAck { number, idle: true, .. } => {
                        return assert_eq!((sent.len(), number > 0), (all, true));
                    }
                    _ => {}
                }
            }
            acks += 1;
            round.on_ack(Instant::now(), acks, round.numbering.next() - 1, 0, false);
        }
    }

    /// ddata G10: a message that came twice counts once, a missing one keeps the round open, and an older
    /// acknowledgement of the peer does not replace a newer one.
    #[test]
    fn the_end_of_a_round_is_found_by_counting() {
        let now = Instant::now();
        let mut round = Round::new(now, 1, true, Sixteenths::ALL);
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
}
