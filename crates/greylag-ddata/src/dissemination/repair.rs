//! Values too large to be sent whole: they are compared and sent range by range.
//!
//! ```text
//! holder                                    other
//! InnerNodes: what it is, one sum over all ->  equal: nothing wanted
//!                                          <- InnerWant: split it, or all of it
//! InnerNodes: sums within                  ->
//!                                          <- InnerWant: split these, all of those
//! Bucket, Bucket, ...                      ->
//!                                          <- InnerWant: nothing more
//! ```
//!
//! The holder serves one snapshot, even if its entry changes meanwhile. The other joins the buckets into a draft, which
//! replaces the entry once all of them are in: until then nothing of them is visible, so no later update is seen
//! without its earlier ones. Deltas that arrive meanwhile go into the entry as always, and into the draft at its end.
//! Source: ddata G6, G12.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use greylag_core::UniqueAddress;
use greylag_crdt::{Context, DecodeError, Digest, KeyRange, Part, RangeSum, context_from_bytes};

use crate::api::settings::ReplicatorSettings;
use crate::data::entries::Entry;
use crate::data::envelope::{Content, Envelope};
use crate::data::types::{AnyData, AnyType};
use crate::messages::message::{Offer, RoundId, Wanted};

/// The most values under way per round and direction; others wait.
pub(crate) const UNDER_WAY: usize = 4;
/// The most sums in one message.
const NODES_PER_MESSAGE: usize = 256;
/// The number of parts of a range if several ranges are split at once.
const CHILDREN: usize = 16;
/// Ranges with at most so many keys are sent, not split.
const LEAF_KEYS: u64 = 64;
/// The number of keys whose sums one step computes.
const SUMS_STEP: usize = 8_192;
/// The most bytes of a part, unless it has only one key.
const PART_BYTES: usize = 16 * 1024;
/// The most deltas kept for a draft; with more, the draft is joined at its end.
const DELTAS: usize = 10_000;

/// The holder's side: a snapshot that is being sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    value: Box<dyn AnyData>,
    snapshot: Digest,
    /// The offer, until it is sent.
    offer: Option<Box<Offer>>,
    todo: VecDeque<Wanted>,
    /// The number of sums in a message that splits one range.
    spread: usize,
    part_bytes: usize,
}

/// The next step of a holder.
#[derive(Debug)]
pub(crate) enum Next {
    Nodes(Option<Box<Offer>>, Vec<(KeyRange, RangeSum)>),
    Bucket(Part),
    /// Sums must be computed first, in further steps.
    SumsMissing,
    /// The other asked for ranges that do not exist.
    Malformed,
}

impl Outgoing {
    /// A snapshot of an entry's present value; `None` if the entry has no value, or its type no ranges.
    pub(crate) fn new(settings: &ReplicatorSettings, entry: &Entry, send_back: bool) -> Option<Self> {
        let value = entry.value()?;
        let ranged = value.ranged()?;
        let key_bytes = entry.size_bound / ranged.keys().max(1) + 64;
        let head = entry.envelope_with(Content::Value { tag: value.tag(), bytes: Bytes::new() });
        Some(Self {
            snapshot: entry.digest(),
            offer: Some(Box::new(Offer { head, context: ranged.context_bytes().into(), send_back })),
            todo: VecDeque::new(),
            // Bounds are keys, and keys may be long, so fewer sums may fit.
            spread: (settings.max_message_bytes / 4 / key_bytes).clamp(2, NODES_PER_MESSAGE),
            // Keep parts small: a receiver joins a part in one step, and others wait for that step.
            part_bytes: PART_BYTES.min(settings.max_message_bytes / 2),
            value: value.boxed_clone(),
        })
    }

    pub(crate) fn snapshot(&self) -> Digest {
        self.snapshot
    }

    /// Takes the ranges that the other wants.
    pub(crate) fn want(&mut self, ranges: Vec<Wanted>) {
        self.todo.extend(ranges);
    }

    pub(crate) fn has_work(&self) -> bool {
        self.offer.is_some() || !self.todo.is_empty()
    }

    /// The next step; `None` while the holder waits for the other.
    pub(crate) fn next(&mut self) -> Option<Next> {
        let ranged = self.value.ranged()?;
        if let Some(offer) = self.offer.take() {
            return Some(Next::Nodes(Some(offer), vec![(KeyRange::ALL, ranged.whole())]));
        }
        let first = self.todo.front()?;
        if first.split && !ranged.compute_sums(SUMS_STEP) {
            return Some(Next::SumsMissing);
        }
        let next = if first.split { self.split() } else { self.part() };
        Some(next.unwrap_or(Next::Malformed))
    }

    fn split(&mut self) -> Result<Next, DecodeError> {
        let Some(ranged) = self.value.ranged() else { return Ok(Next::Malformed) };
        let is_alone = self.todo.get(1).is_none_or(|second| !second.split);
        let most = if is_alone { self.spread } else { CHILDREN.min(self.spread) };
        let mut nodes = Vec::new();
        while nodes.len() + most <= self.spread.max(most)
            && let Some(wanted) = self.todo.pop_front_if(|wanted| wanted.split)
        {
            nodes.extend(ranged.split(&wanted.range, most)?);
        }
        Ok(Next::Nodes(None, nodes))
    }

    fn part(&mut self) -> Result<Next, DecodeError> {
        let (Some(ranged), Some(wanted)) = (self.value.ranged(), self.todo.pop_front()) else {
            return Ok(Next::Malformed);
        };
        let part = ranged.part(&wanted.range, self.part_bytes)?;
        if part.range.to != wanted.range.to {
            let range = KeyRange { from: part.range.to.clone(), to: wanted.range.to };
            self.todo.push_front(Wanted { range, split: false });
        }
        Ok(Next::Bucket(part))
    }
}

type Bound = Option<Vec<u8>>;

/// The other's side: the join of an entry with a peer's snapshot, while it is being made.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) from: UniqueAddress,
    /// The round, as the peer names it.
    pub(crate) round: RoundId,
    pub(crate) snapshot: Digest,
    pub(crate) offer: Offer,
    /// Whether all of the peer's value is wanted, not only differences: markers differ, or there is no own value.
    is_whole: bool,
    /// Whether the draft includes the own value from when it began.
    includes_own: bool,
    context: Context,
    value: Box<dyn AnyData>,
    /// The digest of the entry as long as only `deltas` have changed it; `None` for an absent entry.
    expected: Option<Digest>,
    deltas: Vec<Bytes>,
    compare: VecDeque<(KeyRange, RangeSum)>,
    /// Ranges whose sums, or whose content, are still to come, from begin to end.
    splitting: BTreeMap<Bound, Bound>,
    awaited: BTreeMap<Bound, Bound>,
    pub(crate) bytes: usize,
    /// Offers of the same entry in other rounds, which are handled when this draft is done.
    pub(crate) deferred: BTreeMap<(UniqueAddress, RoundId), Deferred>,
}

/// An offer that waits for another draft.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) round: RoundId,
    pub(crate) snapshot: Digest,
    pub(crate) offer: Offer,
    pub(crate) sum: RangeSum,
}

/// The next requests of a draft.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) wanted: Vec<Wanted>,
    /// Own sums must be computed first, in further steps.
    pub(crate) sums_missing: bool,
    pub(crate) is_done: bool,
}

/// A peer's message about a part of a value is malformed; the transfer is aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

impl From<DecodeError> for Malformed {
    fn from(_: DecodeError) -> Self {
        Self
    }
}

impl Draft {
    /// A draft that begins with the own value, or with `zero`, the empty value of the type bound to this entry.
    pub(crate) fn new(
        from: UniqueAddress,
        deferred: Deferred,
        own: Option<&Entry>,
        zero: Box<dyn AnyData>,
    ) -> Result<Self, Malformed> {
        let Deferred { round, snapshot, offer, sum } = deferred;
        // Compare with the own value only under equal markers: otherwise the same leaves may have different names.
        let base = own.filter(|own| *own.markers() == offer.head.markers).and_then(Entry::value);
        let value = base.map_or(zero, AnyData::boxed_clone);
        if value.ranged().is_none() {
            return Err(Malformed);
        }
        // Compute the digest now: parts then update it, and at the end it need not be computed over everything at once.
        value.digest();
        Ok(Self {
            from,
            round,
            snapshot,
            is_whole: base.is_none(),
            includes_own: base.is_some() || own.is_none(),
            context: context_from_bytes(&offer.context)?,
            offer,
            value,
            expected: own.map(Entry::digest),
            deltas: Vec::new(),
            compare: [(KeyRange::ALL, sum)].into(),
            splitting: BTreeMap::new(),
            awaited: BTreeMap::new(),
            bytes: 0,
            deferred: BTreeMap::new(),
        })
    }

    /// Whether the draft is of this snapshot, in this round.
    pub(crate) fn is_of(&self, from: &UniqueAddress, round: RoundId, snapshot: Digest) -> bool {
        (&self.from, self.round, self.snapshot) == (from, round, snapshot)
    }

    /// Whether there are sums that were not compared yet.
    pub(crate) fn has_to_compare(&self) -> bool {
        !self.compare.is_empty()
    }

    /// The ranges to ask for next.
    pub(crate) fn advance(&mut self) -> Result<Step, Malformed> {
        let mut step = Step::default();
        let ranged = self.value.ranged().ok_or(Malformed)?;
        if !self.is_whole && !self.compare.is_empty() && !ranged.compute_sums(SUMS_STEP) {
            step.sums_missing = true;
            return Ok(step);
        }
        for (range, theirs) in std::mem::take(&mut self.compare) {
            let own = ranged.sum(&range)?;
            if own == theirs {
                continue;
            }
            let split = !self.is_whole && theirs.count > LEAF_KEYS && own.count > 0;
            let open = if split { &mut self.splitting } else { &mut self.awaited };
            if open.insert(range.from.clone(), range.to.clone()).is_some() {
                return Err(Malformed);
            }
            step.wanted.push(Wanted { range, split });
        }
        step.is_done = self.splitting.is_empty() && self.awaited.is_empty();
        Ok(step)
    }

    /// Takes the sums within ranges that were asked to be split.
    pub(crate) fn on_nodes(&mut self, nodes: Vec<(KeyRange, RangeSum)>) -> Result<(), Malformed> {
        for (range, sum) in nodes {
            close(&mut self.splitting, &range)?;
            self.compare.push_back((range, sum));
        }
        Ok(())
    }

    /// Joins the content of a range.
    pub(crate) fn on_bucket(&mut self, part: &Part) -> Result<(), Malformed> {
        close(&mut self.awaited, &part.range)?;
        self.value.ranged_mut().ok_or(Malformed)?.join_part(&self.context, part)?;
        self.bytes += part.bytes.len();
        Ok(())
    }

    /// Notes a delta that was joined into the entry, which had the digest `before` and has `after` now.
    pub(crate) fn note(&mut self, delta: &Bytes, before: Option<Digest>, after: Option<Digest>) {
        if self.expected == before && self.deltas.len() < DELTAS {
            self.deltas.push(delta.clone());
            self.expected = after;
        }
    }

    /// Ends the draft. Returns its value, the head of the offer, and whether the value includes everything that the
    /// entry with digest `now` does.
    pub(crate) fn finish(
        mut self,
        found: &Arc<dyn AnyType>,
        now: Option<Digest>,
    ) -> (Box<dyn AnyData>, Envelope, bool) {
        if let Some(ranged) = self.value.ranged_mut() {
            ranged.finish_parts(&self.context);
        }
        let head = self.offer.head;
        let is_all = self.includes_own
            && self.expected == now
            && self.deltas.iter().all(|delta| found.merge_delta(&mut *self.value, delta, &head.markers).is_ok());
        (self.value, head, is_all)
    }
}

/// Removes the answered beginning of an open range.
fn close(open: &mut BTreeMap<Bound, Bound>, answered: &KeyRange) -> Result<(), Malformed> {
    let to = open.remove(&answered.from).ok_or(Malformed)?;
    if answered.to != to {
        // The rest begins where the answer ends, so the answer must have an end.
        let from = answered.to.clone().ok_or(Malformed)?;
        open.insert(Some(from), to);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use greylag_crdt::{Change, DotSource, Lineage, Markers, OrSet, ReplicaId, ReplicatedData, UpdateCx, WriterKey};

    use super::*;
    use crate::api::key::KeyId;
    use crate::data::entries::{Data, Entries, EntryContent};
    use crate::data::types::TypeTable;

    type Set = OrSet<String>;

    fn set(elements: usize) -> Set {
        let (numbers, writer) = (DotSource::new(), WriterKey::new(*b"w"));
        let mut set = Set::zero();
        set.begin_change(Lineage(1));
        let elements = (0..elements).map(|number| format!("{number:04}"));
        set.add_all(&mut UpdateCx::new(&numbers, ReplicaId(1), &writer, 0), elements);
        set
    }

    /// The number of sums in each message with which a holder of 1,000 keys answers requests for both halves. `split`
    /// says for each half whether its sums are wanted, or its content, which takes one message without sums.
    fn sums_in_messages(split: [bool; 2]) -> Vec<usize> {
        let settings = ReplicatorSettings::test();
        let mut entries = Entries::new(ReplicaId(1), DotSource::new(), &settings);
        let (key, value) = (KeyId::from("set"), set(1_000));
        let halves =
            AnyData::ranged(&value).and_then(|ranged| ranged.split(&KeyRange::ALL, 2).ok()).expect("two halves");
        let (data, versions, markers) = (Data::Value(Box::new(value)), BTreeMap::new(), Markers::new());
        entries.set(&key, EntryContent { data, versions, markers, size_bound: 9, born: 0, used_ms: None });
        let entry = entries.get(&key).expect("it is held");
        let mut outgoing = Outgoing::new(&settings, entry, false).expect("it knows ranges");
        assert!(matches!(outgoing.next(), Some(Next::Nodes(Some(_), _))), "the offer comes first");
        outgoing.want(halves.into_iter().zip(split).map(|((range, _), split)| Wanted { range, split }).collect());
        let said = std::iter::from_fn(|| outgoing.next());
        said.map(|next| match next {
            Next::Nodes(None, nodes) => nodes.len(),
            Next::Bucket(_) => 0,
            other => panic!("{other:?}"),
        })
        .collect()
    }

    /// ddata G12: if a peer wants several ranges of a large value split together, each is split into a few parts and
    /// all sums go in one message. A range whose split is wanted alone, or before a range whose content is wanted, is
    /// split into as many parts as a message holds sums.
    #[test]
    fn splits_that_are_wanted_together_share_a_message() {
        assert_eq!(sums_in_messages([true, true]), [2 * CHILDREN]);
        assert_eq!(sums_in_messages([true, false]), [NODES_PER_MESSAGE, 0]);
        assert_eq!(sums_in_messages([false, true]), [0, NODES_PER_MESSAGE]);
    }

    /// ddata G12: a bounded number of deltas is kept for a draft. If more come while it is made, the draft does not
    /// claim to include everything that the entry does.
    #[test]
    fn a_draft_includes_no_more_deltas_than_are_kept_for_it() {
        let types = TypeTable::new();
        let found = types.find(&Set::TAG.to_string()).expect("a type of the table");
        let mut added = set(1);
        let Change::Delta(delta) = added.take_change(Lineage(1)) else { panic!("an element was added") };
        let delta = Bytes::from(Set::delta_to_bytes(&delta));
        for (came, includes_all) in [(DELTAS, true), (DELTAS + 1, false)] {
            let content = Content::Value { tag: Set::TAG.to_string().into(), bytes: Bytes::new() };
            let context = AnyData::ranged(&Set::zero()).expect("a set knows ranges").context_bytes().into();
            let offer = Offer { head: Envelope::of(content), context, send_back: false };
            let round = RoundId { opened_by_sender: true, number: 1 };
            let offered = Deferred { round, snapshot: Digest(1), offer, sum: RangeSum::default() };
            let peer = "p:1#1".parse().expect("an address");
            let mut draft = Draft::new(peer, offered, None, found.zero()).expect("a draft");
            // The entry is absent at first; then each delta gives it another digest.
            let digest = |count: usize| (count > 0).then_some(Digest(count as u128));
            (0..came).for_each(|count| draft.note(&delta, digest(count), digest(count + 1)));
            let (value, _, is_all) = draft.finish(found, digest(came));
            let value = value.as_any().downcast_ref::<Set>().expect("a set");
            assert_eq!((is_all, value.contains("0000")), (includes_all, includes_all), "{came} deltas");
        }
    }
}
