//! Counters: one slot per replica, the greater amount wins.
//!
//! Source: ddata Y4.

use std::collections::BTreeMap;
use std::fmt;

use crate::codec::{DecodeError, Decoder, Encoder, FORMAT, ascending};
use crate::cx::UpdateCx;
use crate::data::{Change, Grew, Lineage, ReplicatedData, Tracker};
use crate::error::{CounterOverflow, MergeError};
use crate::replica::ReplicaId;
use crate::tag::TypeTag;

/// Amounts by replica. As a delta it holds the slots that changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slots(BTreeMap<ReplicaId, u128>);

impl Slots {
    /// The amount of one replica.
    pub fn get(&self, replica: ReplicaId) -> u128 {
        self.0.get(&replica).copied().unwrap_or(0)
    }

    /// Replicas and their amounts, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (ReplicaId, u128)> + '_ {
        self.0.iter().map(|(replica, amount)| (*replica, *amount))
    }

    fn join(&mut self, other: &Self) -> bool {
        let mut grew = false;
        for (replica, amount) in &other.0 {
            let slot = self.0.entry(*replica).or_default();
            if *slot < *amount {
                *slot = *amount;
                grew = true;
            }
        }
        grew
    }

    /// Adds to the slot of one replica and returns it as a delta.
    fn add(&mut self, replica: ReplicaId, by: u64) -> Result<Self, CounterOverflow> {
        let total = self.get(replica).checked_add(by.into()).ok_or(CounterOverflow)?;
        self.0.insert(replica, total);
        Ok(Self(BTreeMap::from([(replica, total)])))
    }

    fn sum(&self) -> Option<u128> {
        self.0.values().try_fold(0_u128, |sum, amount| sum.checked_add(*amount))
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.0.len() as u64);
        for (replica, amount) in &self.0 {
            out.u64(replica.0);
            out.u128(*amount);
        }
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut slots = BTreeMap::new();
        ascending(inp, |inp| {
            let replica = ReplicaId(inp.u64()?);
            match inp.u128()? {
                0 => return Err(DecodeError::NotCanonical("an empty slot")),
                amount => drop(slots.insert(replica, amount)),
            }
            Ok(replica)
        })?;
        Ok(Self(slots))
    }
}

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
    slots: Slots,
    tracker: Tracker<Slots>,
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
    pub fn increment(&mut self, cx: &mut UpdateCx<'_>, by: u64) -> Result<(), CounterOverflow> {
        if by > 0 {
            let delta = self.slots.add(cx.replica(), by)?;
            self.tracker.record(&delta, |collected, delta| {
                let _ = collected.join(delta);
            });
        }
        Ok(())
    }

    /// The sum of all slots, at most `u128::MAX`.
    pub fn value(&self) -> u128 {
        self.checked_value().unwrap_or(u128::MAX)
    }

    /// The sum of all slots, or `None` if it exceeds `u128::MAX`.
    pub fn checked_value(&self) -> Option<u128> {
        self.slots.sum()
    }

    /// The slots.
    pub fn slots(&self) -> &Slots {
        &self.slots
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
        self.merge_delta(&other.slots)
    }

    fn merge_delta(&mut self, delta: &Slots) -> Result<Grew, MergeError> {
        self.tracker.merged();
        Ok(self.slots.join(delta).into())
    }

    fn join_deltas(into: &mut Slots, other: &Slots) {
        into.join(other);
    }

    fn delta_size(delta: &Slots) -> usize {
        delta.0.len()
    }

    fn begin_change(&mut self, lineage: Lineage) {
        self.tracker.begin(lineage);
    }

    fn take_change(&mut self, lineage: Lineage) -> Change<Slots> {
        self.tracker.take(lineage)
    }

    fn encode(&self, out: &mut Encoder) {
        Self::encode_delta(&self.slots, out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { slots: Self::decode_delta(inp)?, tracker: Tracker::default() })
    }

    fn encode_delta(delta: &Slots, out: &mut Encoder) {
        out.u8(FORMAT);
        delta.encode(out);
    }

    fn decode_delta(inp: &mut Decoder<'_>) -> Result<Slots, DecodeError> {
        inp.format()?;
        Slots::decode(inp)
    }

    fn size_hint(&self) -> usize {
        8 + self.slots.0.len() * 16
    }
}

/// A counter that grows and shrinks: what was added, and what was taken away.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PNCounter {
    slots: SlotPair,
    tracker: Tracker<SlotPair>,
}

/// Additions and subtractions. As a delta it holds the slots that changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotPair {
    added: Slots,
    taken: Slots,
}

impl SlotPair {
    fn join(&mut self, other: &Self) -> bool {
        // Not `||`: both have to be joined.
        self.added.join(&other.added) | self.taken.join(&other.taken)
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
    pub fn increment(&mut self, cx: &mut UpdateCx<'_>, by: i64) -> Result<(), CounterOverflow> {
        self.change(cx, by.unsigned_abs(), by > 0)
    }

    /// Takes from the counter; a negative amount is an increment, 0 changes nothing.
    ///
    /// # Errors
    /// [`CounterOverflow`].
    pub fn decrement(&mut self, cx: &mut UpdateCx<'_>, by: i64) -> Result<(), CounterOverflow> {
        self.change(cx, by.unsigned_abs(), by < 0)
    }

    fn change(&mut self, cx: &mut UpdateCx<'_>, by: u64, up: bool) -> Result<(), CounterOverflow> {
        if by > 0 {
            let mut delta = SlotPair::default();
            if up {
                delta.added = self.slots.added.add(cx.replica(), by)?;
            } else {
                delta.taken = self.slots.taken.add(cx.replica(), by)?;
            }
            self.tracker.record(&delta, |collected, delta| {
                let _ = collected.join(delta);
            });
        }
        Ok(())
    }

    /// Additions minus subtractions, within the bounds of `i128`.
    pub fn value(&self) -> i128 {
        let sum = |slots: &Slots| slots.sum().unwrap_or(u128::MAX);
        let (added, taken) = (sum(&self.slots.added), sum(&self.slots.taken));
        if added >= taken {
            i128::try_from(added - taken).unwrap_or(i128::MAX)
        } else {
            i128::try_from(taken - added).map_or(i128::MIN, |amount| -amount)
        }
    }

    /// Additions minus subtractions, or `None` if that exceeds the bounds of `i128`.
    pub fn checked_value(&self) -> Option<i128> {
        let (added, taken) = (self.slots.added.sum()?, self.slots.taken.sum()?);
        if added >= taken {
            i128::try_from(added - taken).ok()
        } else {
            i128::try_from(taken - added).ok().map(|amount| -amount)
        }
    }

    /// What was added, by replica.
    pub fn added(&self) -> &Slots {
        &self.slots.added
    }

    /// What was taken away, by replica.
    pub fn taken(&self) -> &Slots {
        &self.slots.taken
    }
}

impl fmt::Debug for PNCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

impl ReplicatedData for PNCounter {
    const TAG: TypeTag = TypeTag::new("gl.pncounter/1");
    const CAUSAL: bool = false;
    type Delta = SlotPair;

    fn zero() -> Self {
        Self::new()
    }

    fn merge(&mut self, other: &Self) -> Result<Grew, MergeError> {
        self.merge_delta(&other.slots)
    }

    fn merge_delta(&mut self, delta: &SlotPair) -> Result<Grew, MergeError> {
        self.tracker.merged();
        Ok(self.slots.join(delta).into())
    }

    fn join_deltas(into: &mut SlotPair, other: &SlotPair) {
        into.join(other);
    }

    fn delta_size(delta: &SlotPair) -> usize {
        delta.added.0.len() + delta.taken.0.len()
    }

    fn begin_change(&mut self, lineage: Lineage) {
        self.tracker.begin(lineage);
    }

    fn take_change(&mut self, lineage: Lineage) -> Change<SlotPair> {
        self.tracker.take(lineage)
    }

    fn encode(&self, out: &mut Encoder) {
        Self::encode_delta(&self.slots, out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { slots: Self::decode_delta(inp)?, tracker: Tracker::default() })
    }

    fn encode_delta(delta: &SlotPair, out: &mut Encoder) {
        out.u8(FORMAT);
        delta.added.encode(out);
        delta.taken.encode(out);
    }

    fn decode_delta(inp: &mut Decoder<'_>) -> Result<SlotPair, DecodeError> {
        inp.format()?;
        Ok(SlotPair { added: Slots::decode(inp)?, taken: Slots::decode(inp)? })
    }

    fn size_hint(&self) -> usize {
        8 + (self.slots.added.0.len() + self.slots.taken.0.len()) * 16
    }
}
