//! A store with its context: the state of every causal type.
//!
//! An operation is an [`Edit`] that changes the value in place. A [`Fragment`] explains the edit: a small store, the
//! dots that the edit has seen, and the keys that it touches. The changed value is exactly the old one joined with the
//! fragment (L3); the fragment is made only where a delta is collected. Joins are total, in any order and any number;
//! deltas are delivered in order for consistency, never for safety.
//!
//! Source: ddata K6, K7, K8, K10, K12, Y9.

mod keyed;
mod ranges;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use triomphe::Arc;

use crate::causality::context::Context;
use crate::causality::cx::UpdateCx;
use crate::causality::omissions::Clause;
use crate::causality::replica::ReplicaId;
use crate::data::{Change, Grew, Home, Lineage, Tracker};
use crate::encoding::cached_digest::CachedDigest;
use crate::encoding::codec::{DecodeError, Decoder, Encoder, FORMAT};
use crate::encoding::hash::Digest;
use crate::error::MergeError;
use crate::pruning::prune::{Markers, Performed, Range, RemovedNodePruning};
use crate::pruning::rename::Moves;
use crate::stores::fragment::{Fragment, check};
use crate::stores::store::{Changes, DotSet, Edit, Host, Join, Store, with_path};

/// A store, the dots that it has seen, and bookkeeping that is not part of the value.
#[derive(Clone)]
pub struct Causal<S: Store> {
    store: S,
    context: Arc<Context>,
    /// The sum of the leaves' digests, kept up with every change since it was asked for.
    sum: CachedDigest,
    /// How many slot ids name each replica, kept up with every change.
    slots: BTreeMap<ReplicaId, i64>,
    home: Option<Home>,
    /// The replica that updates the value; its slots are watched.
    own: Option<ReplicaId>,
    /// Own slots at or below this number are never added to again.
    slot_floor: u64,
    /// Whether this replica has drawn dots for the entry since it was last absent here.
    drawn: bool,
    tracker: Tracker<Box<Fragment<S>>>,
}

impl<S: Store> Causal<S> {
    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The dots that were seen.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Makes the updating replica the value's own. If another replica was, the slots that the new one counted in
    /// elsewhere are not added to here.
    fn adopt(&mut self, cx: &UpdateCx<'_>) {
        if self.own != Some(cx.replica()) {
            self.own = Some(cx.replica());
            self.slot_floor = cx.last_drawn();
        }
    }

    /// Returns the claim `(prev, last]` of an update, and whether the update is the first that draws since the entry
    /// was absent. A claim is sound because this replica issued nothing else for the entry in between; it keeps
    /// contexts compact although numbers have gaps. A value that is not bound to the entry of `cx` claims nothing: it
    /// does not know what the entry holds.
    fn claim(&mut self, cx: &UpdateCx<'_>, drawn: &DotSet) -> (Context, bool) {
        let mut claim = Context::new();
        let (Some(last), Some(floor)) = (drawn.dots().last(), self.floor(cx)) else { return (claim, false) };
        let own = cx.replica();
        let is_first = !std::mem::replace(&mut self.drawn, true);
        if !is_first {
            claim.insert_range(own, self.claimed_up_to(cx).max(floor).saturating_add(1), last.number);
        } else {
            // Claim all own numbers that are not live here: their leaves were forgotten here, so they are retired
            // everywhere.
            let mut next = floor + 1;
            for live in self.live_numbers(own).into_iter().filter(|live| (floor + 1..=last.number).contains(live)) {
                claim.insert_range(own, next, live - 1);
                next = live.saturating_add(1);
            }
            claim.insert_range(own, next, last.number);
        }
        for (above, up_to) in cx.reserved() {
            claim.remove_range(own, above + 1, *up_to);
        }
        (claim, is_first)
    }

    /// The numbers of a replica's leaves, ascending.
    fn live_numbers(&self, replica: ReplicaId) -> Vec<u64> {
        let mut numbers = Vec::new();
        self.store.visit_dots(&mut |dot| {
            if dot.replica == replica {
                numbers.push(dot.number);
            }
        });
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The claim of most updates, as one interval: numbers were drawn, not for the first time, and none are reserved.
    /// `None` for all other updates.
    fn plain_claim(&self, cx: &UpdateCx<'_>, drawn: &DotSet) -> Option<(u64, u64)> {
        let (last, floor) = drawn.dots().last().zip(self.floor(cx))?;
        let is_plain = self.drawn && cx.reserved().is_empty();
        is_plain.then(|| (self.claimed_up_to(cx).max(floor).saturating_add(1), last.number))
    }

    /// The start floor, if `cx` is of the entry that this value is bound to.
    fn floor(&self, cx: &UpdateCx<'_>) -> Option<u64> {
        let floor = cx.start_floor(self.home.map(|home| home.entry))?;
        Some(if cx.omits(Clause::StartFloor) { 0 } else { floor })
    }

    /// The highest number of the updating replica that this context has seen.
    fn claimed_up_to(&self, cx: &UpdateCx<'_>) -> u64 {
        if cx.omits(Clause::ClaimStart) { 0 } else { self.context.highest(cx.replica()) }
    }

    fn join_fragment(&mut self, fragment: &Fragment<S>) -> Grew {
        // Join everything only if numbers that a first delta claims were seen here: nearly always the touched keys
        // suffice.
        let everything = S::everything();
        let scope = if fragment.forgotten.intersects(&self.context) { &everything } else { &fragment.scope };
        self.join_parts(&fragment.store, &fragment.context, scope)
    }

    fn join_parts(&mut self, store: &S, context: &Context, scope: &S::Scope) -> Grew {
        let mut join = Join::new(&self.context, context, self.changes());
        let changed = self.store.join(store, scope, &mut join);
        let changes = join.changes;
        let seen_more = !self.context.covers_all(context);
        if seen_more {
            Arc::make_mut(&mut self.context).add_all(context);
        }
        self.settle(changes, self.own.map_or(0, |own| self.context.highest(own)));
        (changed || seen_more).into()
    }

    /// Takes over what a join or a patch did to the store. `highest` is the highest own number known; if an own slot
    /// shrank, new own slots must lie above it.
    fn settle(&mut self, mut changes: Changes, highest: u64) {
        if let Some(sum) = changes.sum {
            self.sum.add(|| sum);
        }
        self.count_slots(std::mem::take(&mut changes.slots));
        if changes.shrunk && self.own.is_some() {
            self.slot_floor = self.slot_floor.max(highest);
        }
    }

    fn count_slots(&mut self, more: BTreeMap<ReplicaId, i64>) {
        if more.is_empty() {
            return;
        }
        for (replica, count) in more {
            *self.slots.entry(replica).or_default() += count;
        }
        self.slots.retain(|_, count| *count > 0);
    }

    /// Joins another state.
    ///
    /// # Errors
    /// [`MergeError::ForeignEntry`].
    pub(crate) fn merge(&mut self, other: &Self) -> Result<Grew, MergeError> {
        if let (Some(own), Some(theirs)) = (self.home, other.home)
            && own.entry != theirs.entry
        {
            return Err(MergeError::ForeignEntry);
        }
        self.home = self.home.or(other.home);
        self.tracker.merged();
        if self.context.is_empty() {
            // Nothing was seen here, so share the whole structure of the other.
            self.store = other.store.clone();
            self.sum.clone_from(&other.sum);
            self.slots.clone_from(&other.slots);
            self.context = Arc::clone(&other.context);
            return Ok((!self.context.is_empty()).into());
        }
        Ok(self.join_parts(&other.store, &other.context, &S::everything()))
    }

    /// Joins a fragment.
    pub(crate) fn merge_delta(&mut self, delta: &Fragment<S>) -> Grew {
        self.tracker.merged();
        self.join_fragment(delta)
    }

    /// Removes every leaf that a context has seen, for good.
    #[cfg(feature = "crdts")]
    pub(crate) fn retire(&mut self, context: &Context) {
        self.tracker.merged();
        self.join_parts(&S::default(), context, &S::everything());
    }

    pub(crate) fn bind(&mut self, home: Home) {
        if self.home.is_none() {
            self.home = Some(home);
            self.own = Some(home.replica);
            self.slot_floor = home.born;
        }
    }

    pub(crate) fn begin_change(&mut self, lineage: Lineage) {
        self.tracker.begin(lineage);
    }

    pub(crate) fn take_change(&mut self, lineage: Lineage) -> Change<Fragment<S>> {
        self.tracker.take(lineage).map(|fragment| *fragment)
    }

    /// The sum over leaves and context. Source: ddata K10.
    pub(crate) fn digest(&self) -> Digest {
        debug_assert!(
            self.store.leaves() > 64 || self.leaf_sum() == self.store.digest(&mut Vec::new()),
            "the kept digest is the digest of the leaves"
        );
        self.leaf_sum().plus(with_path(|path| {
            let mut out = Encoder::continuing(std::mem::take(path));
            self.context.encode_alone(&mut out);
            *path = out.finish();
            Digest::of(path)
        }))
    }

    /// The sum over leaves.
    fn leaf_sum(&self) -> Digest {
        self.sum.get_or(|| with_path(|path| self.store.digest(path)))
    }

    /// An empty record of changes, with a sum only if the sum over leaves is known.
    fn changes(&self) -> Changes {
        Changes::new(self.own, self.sum.known().is_some())
    }

    pub(crate) fn encode(&self, out: &mut Encoder) {
        out.u8(FORMAT);
        self.context.encode(self.slots.keys().copied(), out);
        self.store.encode(out);
    }

    pub(crate) fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        inp.format()?;
        let (context, others) = Context::decode(inp)?;
        let store = S::decode(inp)?;
        check(&store, &context, &others)?;
        let mut decoded = Self { store, context: Arc::new(context), ..Self::default() };
        decoded.recompute();
        Ok(decoded)
    }

    fn recompute(&mut self) {
        self.sum.forget();
        let slots = &mut self.slots;
        slots.clear();
        self.store.visit_slots(&mut |slot| *slots.entry(slot.replica).or_default() += 1);
    }

    /// The numbers of a replica that the context or slot ids name, as closed intervals.
    fn numbers(&self, replica: ReplicaId) -> Vec<(u64, u64)> {
        let mut numbers: Vec<(u64, u64)> = self.context.intervals(replica).collect();
        if self.slots.contains_key(&replica) {
            self.store.visit_slots(&mut |slot| {
                if slot.replica == replica {
                    numbers.push((slot.number, slot.number));
                }
            });
        }
        numbers
    }

    fn rename(&mut self, moves: &Moves) -> bool {
        let slots = self.slots.keys().any(|replica| moves.concern(*replica));
        if !slots && !self.context.is_moved_by(moves) {
            return false;
        }
        let mut changed = self.context.is_moved_by(moves);
        Arc::make_mut(&mut self.context).rename(moves);
        changed |= self.store.rename(moves);
        self.recompute();
        changed
    }
}

impl<S: Store> Host<S> for Causal<S> {
    fn store(&self) -> Option<&S> {
        (!self.store.is_empty()).then_some(&self.store)
    }

    /// Makes the edit in place; the value is then the old one joined with the edit's fragment. The fragment is made
    /// only if the caller collects changes.
    fn apply(&mut self, cx: &UpdateCx<'_>, edit: Edit<S>) {
        self.adopt(cx);
        let Edit { patch, drawn } = edit;
        let mut changes = self.changes();
        if !self.tracker.is_open()
            && let Some((low, high)) = self.plain_claim(cx, &drawn)
        {
            self.store.patch(patch, &mut changes);
            self.settle(changes, cx.last_drawn());
            Arc::make_mut(&mut self.context).insert_range(cx.replica(), low, high);
            return;
        }
        let (mut context, is_first) = self.claim(cx, &drawn);
        let forgotten = if is_first { context.clone() } else { Context::new() };
        let (store, scope) = S::content(&patch);
        changes.superseded = Some(Vec::new());
        self.store.patch(patch, &mut changes);
        // The fragment's context: superseded dots one by one, drawn dots, and the claim.
        let superseded = changes.superseded.take().unwrap_or_default();
        drawn.dots().iter().chain(&superseded).for_each(|dot| context.insert(*dot));
        self.settle(changes, cx.last_drawn());
        Arc::make_mut(&mut self.context).union(&context);
        if cx.omits(Clause::RemovalContext) {
            superseded.iter().for_each(|dot| context.remove_range(dot.replica, dot.number, dot.number));
        }
        let fragment = Box::new(Fragment { store, context, scope, forgotten });
        self.tracker.record(fragment, |collected, fragment| collected.join(fragment));
    }

    fn slot_floor(&mut self, cx: &UpdateCx<'_>) -> u64 {
        self.adopt(cx);
        self.slot_floor
    }
}

impl<S: Store> RemovedNodePruning for Causal<S> {
    fn modified_by(&self) -> BTreeSet<ReplicaId> {
        self.context.replicas().chain(self.slots.keys().copied()).collect()
    }

    fn needs_pruning(&self, removed: ReplicaId, markers: &[Performed]) -> bool {
        let ranges: Vec<&Range> = markers.iter().flat_map(|marker| &marker.ranges).collect();
        self.numbers(removed).into_iter().any(|(low, high)| !are_covered(low, high, &ranges))
    }

    fn numbers_of(&self, removed: ReplicaId) -> Option<(u64, u64)> {
        let numbers = self.numbers(removed);
        let lowest = numbers.iter().map(|(low, _)| *low).min()?;
        Some((lowest, numbers.iter().map(|(_, high)| *high).max()?))
    }

    fn prune(&mut self, _: ReplicaId, ranges: &[Range], _: u64, own: &mut Performed) {
        own.add_ranges(ranges);
        let mut markers = Markers::new();
        markers.add(own);
        self.cleanup(&markers);
    }

    fn cleanup(&mut self, markers: &Markers) -> bool {
        let moves = Moves::of(markers);
        !moves.is_empty() && self.rename(&moves)
    }
}

/// Whether every number of a closed interval is in some range.
fn are_covered(low: u64, high: u64, ranges: &[&Range]) -> bool {
    let mut next = low;
    while let Some(range) = ranges.iter().find(|range| range.covers(next)) {
        if range.hi >= high {
            return true;
        }
        next = range.hi + 1;
    }
    false
}

impl<S: Store> Default for Causal<S> {
    fn default() -> Self {
        Self {
            store: S::default(),
            context: Arc::default(),
            sum: CachedDigest::default(),
            slots: BTreeMap::new(),
            home: None,
            own: None,
            slot_floor: 0,
            drawn: false,
            tracker: Tracker::default(),
        }
    }
}

impl<S: Store> PartialEq for Causal<S> {
    fn eq(&self, other: &Self) -> bool {
        let sums = self.sum.known().zip(other.sum.known());
        sums.is_none_or(|(own, theirs)| own == theirs) && self.context == other.context && self.store == other.store
    }
}

impl<S: Store> fmt::Debug for Causal<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Causal").field("store", &self.store).field("context", &self.context).finish()
    }
}

/// The trait methods that are the same for every type with one field `causal`.
macro_rules! causal_data {
    ($tag:expr, $store:ty) => {
        const TAG: $crate::encoding::tag::TypeTag = $tag;
        const CAUSAL: bool = true;
        type Delta = $crate::stores::fragment::Fragment<$store>;

        fn zero() -> Self {
            Self::default()
        }

        fn merge(&mut self, other: &Self) -> Result<$crate::data::Grew, $crate::error::MergeError> {
            self.causal.merge(&other.causal)
        }

        fn merge_delta(&mut self, delta: &Self::Delta) -> Result<$crate::data::Grew, $crate::error::MergeError> {
            Ok(self.causal.merge_delta(delta))
        }

        fn join_deltas(into: &mut Self::Delta, other: &Self::Delta) {
            into.join(other);
        }

        fn delta_size(delta: &Self::Delta) -> usize {
            delta.leaves()
        }

        fn cleanup_delta(delta: &mut Self::Delta, markers: &$crate::pruning::prune::Markers) -> bool {
            delta.cleanup(markers)
        }

        fn bind(&mut self, home: $crate::data::Home) {
            self.causal.bind(home);
        }

        fn reads_like(&self, before: &Self) -> bool {
            use $crate::stores::store::Store as _;
            self.causal.store().reads_like(before.causal.store())
        }

        fn pruning(&self) -> Option<&dyn $crate::pruning::prune::RemovedNodePruning> {
            Some(&self.causal)
        }

        fn pruning_mut(&mut self) -> Option<&mut dyn $crate::pruning::prune::RemovedNodePruning> {
            Some(&mut self.causal)
        }

        fn begin_change(&mut self, lineage: $crate::data::Lineage) {
            self.causal.begin_change(lineage);
        }

        fn take_change(&mut self, lineage: $crate::data::Lineage) -> $crate::data::Change<Self::Delta> {
            self.causal.take_change(lineage)
        }

        fn digest(&self) -> $crate::encoding::hash::Digest {
            self.causal.digest()
        }

        fn encode(&self, out: &mut $crate::encoding::codec::Encoder) {
            self.causal.encode(out);
        }

        fn decode(
            inp: &mut $crate::encoding::codec::Decoder<'_>,
        ) -> Result<Self, $crate::encoding::codec::DecodeError> {
            $crate::stores::causal::Causal::decode(inp).map(|causal| Self { causal })
        }

        fn encode_delta(delta: &Self::Delta, out: &mut $crate::encoding::codec::Encoder) {
            delta.encode(out);
        }

        fn decode_delta(
            inp: &mut $crate::encoding::codec::Decoder<'_>,
        ) -> Result<Self::Delta, $crate::encoding::codec::DecodeError> {
            $crate::stores::fragment::Fragment::decode(inp)
        }

        fn size_hint(&self) -> usize {
            use $crate::stores::store::Store as _;
            32 + self.causal.store().leaves() * 32
        }
    };
}
pub(crate) use causal_data;
pub(crate) use keyed::keyed;
