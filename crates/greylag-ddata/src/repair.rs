//! Values that are too large to be sent whole, compared and sent range by range.
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
//! The holder speaks of one snapshot, whatever happens to its entry meanwhile. The other joins the
//! buckets into a draft, which takes the entry's place once all of them are in: until then nothing of
//! them shows, so no later update is seen without its earlier ones. Deltas that arrive meanwhile go
//! into the entry as always, and into the draft at its end. Source: ddata G6, G12.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use greylag_core::UniqueAddress;
use greylag_crdt::{Context, DecodeError, Digest, KeyRange, Part, RangeSum, context_from_bytes};

use crate::entries::Entry;
use crate::envelope::{Content, Envelope};
use crate::message::{Offer, RoundId, Wanted};
use crate::settings::ReplicatorSettings;
use crate::types::{AnyData, AnyType};

/// Values under way per round and direction; others wait.
pub(crate) const UNDER_WAY: usize = 4;
/// Sums in one message.
const NODES_PER_MESSAGE: usize = 256;
/// Parts of one range where several are split at once.
const CHILDREN: usize = 16;
/// Ranges with at most so many keys are sent, not split.
const LEAF_KEYS: u64 = 64;
/// Keys whose sums one step computes.
const WARM_STEP: usize = 8_192;
/// A part has at most so many bytes, unless it has only one key.
const PART_BYTES: usize = 16 * 1024;
/// Deltas kept for a draft; beyond it the draft is joined in one piece.
const DELTAS: usize = 10_000;

/// A snapshot that is being sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    value: Box<dyn AnyData>,
    snapshot: Digest,
    /// Until it is made.
    offer: Option<Box<Offer>>,
    todo: VecDeque<Wanted>,
    /// Sums in a message where one range is split.
    spread: usize,
    part_bytes: usize,
}

/// What a holder has to say next.
#[derive(Debug)]
pub(crate) enum Next {
    Nodes(Option<Box<Offer>>, Vec<(KeyRange, RangeSum)>),
    Bucket(Part),
    /// Sums have to be computed first, in further steps.
    Cold,
    /// What the other wants makes no sense.
    Nonsense,
}

impl Outgoing {
    /// The value of an entry as it is now; `None` if it is none, or knows no ranges.
    pub(crate) fn new(settings: &ReplicatorSettings, entry: &Entry, send_back: bool) -> Option<Self> {
        let value = entry.value()?;
        let ranged = value.ranged()?;
        let key_bytes = entry.size_bound / ranged.keys().max(1) + 64;
        let head = entry.envelope_with(Content::Value { tag: value.tag(), bytes: Bytes::new() });
        Some(Self {
            snapshot: entry.digest(),
            offer: Some(Box::new(Offer { head, context: ranged.context_bytes().into(), send_back })),
            todo: VecDeque::new(),
            // Bounds are keys, and keys may be long.
            spread: (settings.max_message_bytes / 4 / key_bytes).clamp(2, NODES_PER_MESSAGE),
            // A receiver joins a part in one step, and others wait for that.
            part_bytes: PART_BYTES.min(settings.max_message_bytes / 2),
            value: value.boxed_clone(),
        })
    }

    pub(crate) fn snapshot(&self) -> Digest {
        self.snapshot
    }

    /// Takes what the other wants.
    pub(crate) fn want(&mut self, ranges: Vec<Wanted>) {
        self.todo.extend(ranges);
    }

    pub(crate) fn has_work(&self) -> bool {
        self.offer.is_some() || !self.todo.is_empty()
    }

    /// What to say next; `None` while the other has to speak.
    pub(crate) fn next(&mut self) -> Option<Next> {
        let ranged = self.value.ranged()?;
        if let Some(offer) = self.offer.take() {
            return Some(Next::Nodes(Some(offer), vec![(KeyRange::ALL, ranged.whole())]));
        }
        let first = self.todo.front()?;
        if first.split && !ranged.warm(WARM_STEP) {
            return Some(Next::Cold);
        }
        let said = if first.split { self.split() } else { self.part() };
        Some(said.unwrap_or(Next::Nonsense))
    }

    fn split(&mut self) -> Result<Next, DecodeError> {
        let Some(ranged) = self.value.ranged() else { return Ok(Next::Nonsense) };
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
            return Ok(Next::Nonsense);
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

/// What is being made of an entry and a snapshot of a peer.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) from: UniqueAddress,
    /// As the peer names it.
    pub(crate) round: RoundId,
    pub(crate) snapshot: Digest,
    pub(crate) offer: Offer,
    /// All of the peer's value is wanted, not only what differs: markers differ, or nothing is held here.
    is_whole: bool,
    /// Whether it includes what was held here when it began.
    includes_own: bool,
    context: Context,
    value: Box<dyn AnyData>,
    /// The digest that the entry has as long as `deltas` are all that changed it; `None` for absent.
    expected: Option<Digest>,
    deltas: Vec<Bytes>,
    compare: VecDeque<(KeyRange, RangeSum)>,
    /// Ranges whose sums, or content, are still to come: beginnings and ends.
    splitting: BTreeMap<Bound, Bound>,
    awaited: BTreeMap<Bound, Bound>,
    pub(crate) bytes: usize,
    /// Offers of the same entry in other rounds, which are looked at when this is done.
    pub(crate) deferred: BTreeMap<(UniqueAddress, RoundId), Deferred>,
}

/// An offer that waits.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) round: RoundId,
    pub(crate) snapshot: Digest,
    pub(crate) offer: Offer,
    pub(crate) sum: RangeSum,
}

/// What a draft asks for.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) wanted: Vec<Wanted>,
    /// Own sums have to be computed first, in further steps.
    pub(crate) is_cold: bool,
    pub(crate) is_done: bool,
}

/// What came makes no sense, or cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonsense;

impl From<DecodeError> for Nonsense {
    fn from(_: DecodeError) -> Self {
        Self
    }
}

impl Draft {
    /// `zero` is the empty value of the type, at home here.
    pub(crate) fn new(
        from: UniqueAddress,
        deferred: Deferred,
        own: Option<&Entry>,
        zero: Box<dyn AnyData>,
    ) -> Result<Self, Nonsense> {
        let Deferred { round, snapshot, offer, sum } = deferred;
        // Under different names nothing can be compared.
        let base = own.filter(|own| *own.markers() == offer.head.markers).and_then(Entry::value);
        let value = base.map_or(zero, AnyData::boxed_clone);
        if value.ranged().is_none() {
            return Err(Nonsense);
        }
        // From now on parts add to it; at the end there would be everything to be hashed at once.
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

    /// Whether it is made of this snapshot, in this round.
    pub(crate) fn is_of(&self, from: &UniqueAddress, round: RoundId, snapshot: Digest) -> bool {
        (&self.from, self.round, self.snapshot) == (from, round, snapshot)
    }

    /// Whether there are sums that were not compared so far.
    pub(crate) fn has_to_compare(&self) -> bool {
        !self.compare.is_empty()
    }

    /// What to ask for next.
    pub(crate) fn advance(&mut self) -> Result<Step, Nonsense> {
        let mut step = Step::default();
        let ranged = self.value.ranged().ok_or(Nonsense)?;
        if !self.is_whole && !self.compare.is_empty() && !ranged.warm(WARM_STEP) {
            step.is_cold = true;
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
                return Err(Nonsense);
            }
            step.wanted.push(Wanted { range, split });
        }
        step.is_done = self.splitting.is_empty() && self.awaited.is_empty();
        Ok(step)
    }

    /// Takes sums within ranges that were to be split.
    pub(crate) fn on_nodes(&mut self, nodes: Vec<(KeyRange, RangeSum)>) -> Result<(), Nonsense> {
        for (range, sum) in nodes {
            close(&mut self.splitting, &range)?;
            self.compare.push_back((range, sum));
        }
        Ok(())
    }

    /// Joins what is in a range.
    pub(crate) fn on_bucket(&mut self, part: &Part) -> Result<(), Nonsense> {
        close(&mut self.awaited, &part.range)?;
        self.value.ranged_mut().ok_or(Nonsense)?.join_part(&self.context, part)?;
        self.bytes += part.bytes.len();
        Ok(())
    }

    /// A delta was joined into the entry, which had the digest `before` and has `after` now.
    pub(crate) fn note(&mut self, delta: &Bytes, before: Option<Digest>, after: Option<Digest>) {
        if self.expected == before && self.deltas.len() < DELTAS {
            self.deltas.push(delta.clone());
            self.expected = after;
        }
    }

    /// Ends it: the value, and whether it includes all that the entry with this digest does.
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

/// The beginning of an open range was answered.
fn close(open: &mut BTreeMap<Bound, Bound>, answered: &KeyRange) -> Result<(), Nonsense> {
    let to = open.remove(&answered.from).ok_or(Nonsense)?;
    if answered.to != to {
        // What is left of it begins where the answer ends, and that is somewhere.
        let from = answered.to.clone().ok_or(Nonsense)?;
        open.insert(Some(from), to);
    }
    Ok(())
}
