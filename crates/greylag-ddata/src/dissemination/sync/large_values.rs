//! The large values of a round, which travel in parts ([`crate::dissemination::repair`]). Source: ddata G12.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use greylag_crdt::Digest;

use crate::api::key::KeyId;
use crate::api::settings::ReplicatorSettings;
use crate::data::entries::Entries;
use crate::dissemination::repair::{Next, Outgoing, UNDER_WAY};
use crate::messages::message::{Message, RoundId, Wanted};

/// The large values that are sent and received in a round.
#[derive(Debug, Default)]
pub(super) struct LargeValues {
    /// Values that wait to be sent, with whether the result of the join is wanted back.
    waiting: VecDeque<(KeyId, bool)>,
    /// Values being sent.
    outgoing: BTreeMap<KeyId, Outgoing>,
    /// Values being received.
    receiving: BTreeSet<KeyId>,
}

/// What comes next of the large values.
#[derive(Debug)]
pub(super) enum NextOfLarge {
    Message(Message),
    /// Sums must be computed before the transfer goes on.
    SumsMissing,
    Nothing,
}

impl LargeValues {
    /// Whether no value is being sent or received, and none waits for that.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.outgoing.is_empty() && self.receiving.is_empty()
    }

    /// Whether there is something to send that waits neither for the peer nor for sums.
    pub(super) fn has_work(&self) -> bool {
        self.outgoing.values().any(Outgoing::has_work) || !self.waiting.is_empty()
    }

    /// Queues values; `send_back` says whether the results of the joins are wanted back.
    pub(super) fn send(&mut self, keys: Vec<KeyId>, send_back: bool) {
        self.waiting.extend(keys.into_iter().map(|key| (key, send_back)));
    }

    /// Notes that a value is being received.
    pub(super) fn begin_receiving(&mut self, key: KeyId) {
        self.receiving.insert(key);
    }

    /// Notes that a value is complete or refused.
    pub(super) fn end_receiving(&mut self, key: &KeyId) {
        self.receiving.remove(key);
    }

    /// Takes the peer's request for ranges of an offered value; no range ends the transfer. A value
    /// that is not being sent is left out.
    pub(super) fn on_ranges_wanted(&mut self, key: &KeyId, snapshot: Digest, ranges: Vec<Wanted>) {
        let Some(outgoing) = self.outgoing.get_mut(key).filter(|outgoing| outgoing.snapshot() == snapshot) else {
            return;
        };
        if ranges.is_empty() {
            self.outgoing.remove(key);
        } else {
            outgoing.want(ranges);
        }
    }

    /// The next message of a large value, with this number.
    pub(super) fn next(
        &mut self,
        settings: &ReplicatorSettings,
        entries: &Entries,
        round: RoundId,
        number: u64,
    ) -> NextOfLarge {
        while self.outgoing.len() < UNDER_WAY
            && let Some((key, send_back)) = self.waiting.pop_front()
        {
            let entry = entries.get(&key);
            if let Some(outgoing) = entry.and_then(|entry| Outgoing::new(settings, entry, send_back)) {
                self.outgoing.insert(key, outgoing);
            }
        }
        let Some((key, outgoing)) = self.outgoing.iter_mut().find(|(_, outgoing)| outgoing.has_work()) else {
            return NextOfLarge::Nothing;
        };
        let (key, snapshot) = (key.clone(), outgoing.snapshot());
        match outgoing.next() {
            Some(Next::Nodes(offer, nodes)) => {
                NextOfLarge::Message(Message::InnerNodes { round, number, key, snapshot, offer, nodes })
            }
            Some(Next::Bucket(part)) => NextOfLarge::Message(Message::Bucket { round, number, key, snapshot, part }),
            Some(Next::SumsMissing) => NextOfLarge::SumsMissing,
            // Drop the value: the peer asked for ranges that do not exist.
            Some(Next::Malformed) => {
                self.outgoing.remove(&key);
                NextOfLarge::Nothing
            }
            None => NextOfLarge::Nothing,
        }
    }
}
