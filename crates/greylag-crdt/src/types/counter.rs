//! Counters: one slot per replica and life of the entry at that replica; of two amounts of a slot the greater counts.
//!
//! Source: ddata Y4.

use std::fmt;

use crate::causality::cx::UpdateCx;
use crate::causality::replica::SlotId;
use crate::data::{Change, Grew, Lineage, ReplicatedData, Tracker};
use crate::encoding::cached_digest::CachedDigest;
use crate::encoding::codec::{DecodeError, Decoder, Encoder};
use crate::encoding::hash::Digest;
use crate::encoding::tag::TypeTag;
use crate::error::{CounterOverflow, MergeError};
use crate::parts;
use crate::pruning::prune::{Markers, RemovedNodePruning};
use crate::stores::slots::{CounterSlots, Slots};

/// A counter that only grows.
///
/// ```
/// use greylag_crdt::{DotSource, GCounter, ReplicaId, UpdateCx, WriterKey};
///
/// let (source, writer) = (DotSource::new(), WriterKey::new(*b"a"));
/// let mut cx = UpdateCx::new(&source, ReplicaId(1), &writer, 0);
/// let mut visits = GCounter::new();
/// visits.increment(&mut cx, 3)?;
/// assert_eq!(visits.value(), 3);
/// # Ok::<(), greylag_crdt::CounterOverflow>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct GCounter {
    state: CounterSlots,
    cached: CachedDigest,
    /// The slot that the update added to; the delta is its amount after the update.
    tracker: Tracker<Touched>,
}

impl GCounter {
    /// The counter at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds to the counter; 0 changes nothing.
    ///
    /// # Errors
    /// [`CounterOverflow`].
    #[inline]
    pub fn increment(&mut self, cx: &mut UpdateCx<'_>, by: u64) -> Result<(), CounterOverflow> {
        if by > 0 {
            self.state.add(cx.slot(), by)?;
            self.cached.forget();
            self.tracker.record(Touched::one(cx.slot(), true), Touched::join);
        }
        Ok(())
    }

    /// The sum of all slots, at most `u128::MAX`.
    pub fn value(&self) -> u128 {
        self.checked_value().unwrap_or(u128::MAX)
    }

    /// The sum of all slots, or `None` if it exceeds `u128::MAX`.
    pub fn checked_value(&self) -> Option<u128> {
        self.state.sum()
    }

    /// The slots.
    pub fn slots(&self) -> &Slots {
        &self.state.slots
    }
}

impl fmt::Debug for GCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

impl ReplicatedData for GCounter {
    const TAG: TypeTag = TypeTag::new("gl.gcounter/1");
    const CAUSAL: bool = false;
    type Delta = Slots;

    fn zero() -> Self {
        Self::new()
    }

    fn merge(&mut self, other: &Self) -> Result<Grew, MergeError> {
        self.tracker.merged();
        let grew = self.state.join(&other.state);
        if grew {
            self.cached.forget();
        }
        Ok(grew.into())
    }

    fn merge_delta(&mut self, delta: &Slots) -> Result<Grew, MergeError> {
        self.tracker.merged();
        let grew = self.state.slots.join(delta);
        if grew {
            self.cached.forget();
        }
        Ok(grew.into())
    }

    fn join_deltas(into: &mut Slots, other: &Slots) {
        into.join(other);
    }

    fn delta_size(delta: &Slots) -> usize {
        delta.len()
    }

    fn cleanup_delta(delta: &mut Slots, markers: &Markers) -> bool {
        delta.cleanup(markers)
    }

    fn reads_like(&self, before: &Self) -> bool {
        self.checked_value() == before.checked_value()
    }

    fn pruning(&self) -> Option<&dyn RemovedNodePruning> {
        Some(&self.state)
    }

    fn pruning_mut(&mut self) -> Option<&mut dyn RemovedNodePruning> {
        self.cached.forget();
        Some(&mut self.state)
    }

    fn begin_change(&mut self, lineage: Lineage) {
        self.tracker.begin(lineage);
    }

    fn take_change(&mut self, lineage: Lineage) -> Change<Slots> {
        self.tracker.take_as(lineage, |touched| self.state.slots.only(touched.only()))
    }

    fn digest(&self) -> Digest {
        self.cached.get(self)
    }

    fn encode(&self, out: &mut Encoder) {
        Self::encode_delta(&self.state.slots, out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { state: CounterSlots::of(Self::decode_delta(inp)?), ..Self::default() })
    }

    fn encode_delta(delta: &Slots, out: &mut Encoder) {
        let format = delta.format();
        out.u8(format);
        delta.encode(format, out);
    }

    fn decode_delta(inp: &mut Decoder<'_>) -> Result<Slots, DecodeError> {
        let format = inp.counter_format()?;
        let slots = Slots::decode(format, inp)?;
        check_format(format, slots.format())?;
        Ok(slots)
    }

    fn size_hint(&self) -> usize {
        8 + self.state.slots.len() * 24
    }
}

/// Refuses format 2 for slots that format 1 can represent: each value has one canonical form.
fn check_format(found: u8, canonical: u8) -> Result<(), DecodeError> {
    if found == canonical {
        Ok(())
    } else {
        Err(DecodeError::NotCanonical("slots without births must be written in format 1"))
    }
}

/// Which slots an update added to.
#[derive(Debug, Clone, Copy)]
struct Touched {
    slot: SlotId,
    /// Whether the update added to more than one slot, which no replicator does; the delta is then all slots.
    are_several: bool,
    added: bool,
    taken: bool,
}

impl Touched {
    #[inline]
    fn one(slot: SlotId, up: bool) -> Self {
        Self { slot, are_several: false, added: up, taken: !up }
    }

    fn join(&mut self, other: &Self) {
        self.are_several |= other.are_several || self.slot != other.slot;
        self.added |= other.added;
        self.taken |= other.taken;
    }

    /// The slot, if the update added to one only.
    fn only(self) -> Option<SlotId> {
        (!self.are_several).then_some(self.slot)
    }
}

/// A counter that grows and shrinks: one sum of additions, one of subtractions.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PNCounter {
    halves: Halves,
    cached: CachedDigest,
    /// The slots that the update added to; the delta is their amounts after the update.
    tracker: Tracker<Touched>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Halves {
    added: CounterSlots,
    taken: CounterSlots,
}

/// A delta: the slots of additions and of subtractions that changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotPair {
    added: Slots,
    taken: Slots,
}

impl SlotPair {
    fn join(&mut self, other: &Self) {
        self.added.join(&other.added);
        self.taken.join(&other.taken);
    }
}

impl PNCounter {
    /// The counter at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds to the counter; a negative amount is a decrement, 0 changes nothing.
    ///
    /// # Errors
    /// [`CounterOverflow`].
    #[inline]
    pub fn increment(&mut self, cx: &mut UpdateCx<'_>, by: i64) -> Result<(), CounterOverflow> {
        self.change(cx, by.unsigned_abs(), by > 0)
    }

    /// Subtracts from the counter; a negative amount is an increment, 0 changes nothing.
    ///
    /// # Errors
    /// [`CounterOverflow`].
    #[inline]
    pub fn decrement(&mut self, cx: &mut UpdateCx<'_>, by: i64) -> Result<(), CounterOverflow> {
        self.change(cx, by.unsigned_abs(), by < 0)
    }

    #[inline]
    fn change(&mut self, cx: &mut UpdateCx<'_>, by: u64, up: bool) -> Result<(), CounterOverflow> {
        if by > 0 {
            let half = if up { &mut self.halves.added } else { &mut self.halves.taken };
            half.add(cx.slot(), by)?;
            self.cached.forget();
            self.tracker.record(Touched::one(cx.slot(), up), Touched::join);
        }
        Ok(())
    }

    /// Additions minus subtractions, within the bounds of `i128`.
    pub fn value(&self) -> i128 {
        let sum = |half: &CounterSlots| half.sum().unwrap_or(u128::MAX);
        difference(sum(&self.halves.added), sum(&self.halves.taken)).unwrap_or_else(|bound| bound)
    }

    /// Additions minus subtractions, or `None` if that exceeds the bounds of `i128`.
    pub fn checked_value(&self) -> Option<i128> {
        difference(self.halves.added.sum()?, self.halves.taken.sum()?).ok()
    }

    /// The added amounts, by slot.
    pub fn added(&self) -> &Slots {
        &self.halves.added.slots
    }

    /// The subtracted amounts, by slot.
    pub fn taken(&self) -> &Slots {
        &self.halves.taken.slots
    }
}

fn encode_pair(added: &Slots, taken: &Slots, out: &mut Encoder) {
    let format = added.format().max(taken.format());
    out.u8(format);
    added.encode(format, out);
    taken.encode(format, out);
}

/// `added - taken`, or the bound of `i128` that the difference exceeds.
pub(crate) fn difference(added: u128, taken: u128) -> Result<i128, i128> {
    if added >= taken {
        i128::try_from(added - taken).map_err(|_| i128::MAX)
    } else {
        0_i128.checked_sub_unsigned(taken - added).ok_or(i128::MIN)
    }
}

impl fmt::Debug for PNCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

parts::prune_by_parts!(Halves, added, taken);

impl ReplicatedData for PNCounter {
    const TAG: TypeTag = TypeTag::new("gl.pncounter/1");
    const CAUSAL: bool = false;
    type Delta = SlotPair;

    fn zero() -> Self {
        Self::new()
    }

    fn merge(&mut self, other: &Self) -> Result<Grew, MergeError> {
        self.tracker.merged();
        // `|`, not `||`: both halves have to be joined.
        let grew = self.halves.added.join(&other.halves.added) | self.halves.taken.join(&other.halves.taken);
        if grew {
            self.cached.forget();
        }
        Ok(grew.into())
    }

    fn merge_delta(&mut self, delta: &SlotPair) -> Result<Grew, MergeError> {
        self.tracker.merged();
        let grew = self.halves.added.slots.join(&delta.added) | self.halves.taken.slots.join(&delta.taken);
        if grew {
            self.cached.forget();
        }
        Ok(grew.into())
    }

    fn join_deltas(into: &mut SlotPair, other: &SlotPair) {
        into.join(other);
    }

    fn delta_size(delta: &SlotPair) -> usize {
        delta.added.len() + delta.taken.len()
    }

    fn cleanup_delta(delta: &mut SlotPair, markers: &Markers) -> bool {
        delta.added.cleanup(&markers.part(0)) | delta.taken.cleanup(&markers.part(1))
    }

    fn reads_like(&self, before: &Self) -> bool {
        self.checked_value() == before.checked_value()
    }

    fn pruning(&self) -> Option<&dyn RemovedNodePruning> {
        Some(&self.halves)
    }

    fn pruning_mut(&mut self) -> Option<&mut dyn RemovedNodePruning> {
        self.cached.forget();
        Some(&mut self.halves)
    }

    fn begin_change(&mut self, lineage: Lineage) {
        self.tracker.begin(lineage);
    }

    fn take_change(&mut self, lineage: Lineage) -> Change<SlotPair> {
        let Halves { added, taken } = &self.halves;
        self.tracker.take_as(lineage, |touched| {
            let of = |is_touched, half: &CounterSlots| match is_touched {
                true => half.slots.only(touched.only()),
                false => Slots::default(),
            };
            SlotPair { added: of(touched.added, added), taken: of(touched.taken, taken) }
        })
    }

    fn digest(&self) -> Digest {
        self.cached.get(self)
    }

    fn encode(&self, out: &mut Encoder) {
        encode_pair(self.added(), self.taken(), out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let SlotPair { added, taken } = Self::decode_delta(inp)?;
        let halves = Halves { added: CounterSlots::of(added), taken: CounterSlots::of(taken) };
        Ok(Self { halves, ..Self::default() })
    }

    fn encode_delta(delta: &SlotPair, out: &mut Encoder) {
        encode_pair(&delta.added, &delta.taken, out);
    }

    fn decode_delta(inp: &mut Decoder<'_>) -> Result<SlotPair, DecodeError> {
        let format = inp.counter_format()?;
        let (added, taken) = (Slots::decode(format, inp)?, Slots::decode(format, inp)?);
        check_format(format, added.format().max(taken.format()))?;
        Ok(SlotPair { added, taken })
    }

    fn size_hint(&self) -> usize {
        8 + (self.added().len() + self.taken().len()) * 24
    }
}
