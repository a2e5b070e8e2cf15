//! One amount per replica, and what pruning did to them.
//!
//! The amounts are the state of a counter; the greater amount of a slot wins. Beside them stands what the markers of
//! removed replicas say was moved out of their slots, which is no part of the state: a late copy of a slot, or a second
//! owner who moved it too, would count an update twice, and the difference is taken off.
//!
//! Source: ddata Y4.

use std::collections::{BTreeMap, BTreeSet};

use triomphe::Arc;

use crate::codec::{DecodeError, Decoder, Encoder, ascending};
use crate::error::CounterOverflow;
use crate::prune::{Markers, Performed, Range, RemovedNodePruning};
use crate::replica::ReplicaId;

/// Amounts by replica. As a delta it holds the slots that changed. Clones share what is more than a few.
#[derive(Debug, Clone)]
pub struct Slots {
    /// Those with an amount, ascending by replica; none if there are `many`. Not one `enum` of the two, which the
    /// compiler moves piece by piece.
    few: [Slot; FEW],
    many: Option<Arc<Many>>,
}

#[derive(Debug, Clone)]
struct Many {
    /// Ascending by replica.
    slots: Vec<Slot>,
    /// Where the slot stood that was added to last: mostly it is the same again.
    last: usize,
}

type Slot = (ReplicaId, Amount);

/// An amount in two halves, the upper one first: a `u128` would take a quarter more room, for its alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Amount([u64; 2]);

impl Amount {
    #[inline]
    fn of(amount: u128) -> Self {
        Self([(amount >> 64) as u64, amount as u64])
    }

    #[inline]
    fn checked_add(self, more: u64) -> Option<Self> {
        let (low, carry) = self.0[1].overflowing_add(more);
        Some(Self([self.0[0].checked_add(carry.into())?, low]))
    }

    #[inline]
    fn raise(&mut self, other: Self) {
        *self = (*self).max(other);
    }

    #[inline]
    fn get(self) -> u128 {
        u128::from(self.0[0]) << 64 | u128::from(self.0[1])
    }
}

/// So many slots take no memory of their own: mostly a handful of replicas count.
const FEW: usize = 3;
const EMPTY: Slot = (ReplicaId(0), Amount([0; 2]));

/// How many of a few there are.
#[inline]
fn count(slots: &[Slot; FEW]) -> usize {
    slots.iter().filter(|(_, amount)| amount.0 != [0; 2]).count()
}

impl Slots {
    /// The amount of one replica.
    #[inline]
    pub fn get(&self, replica: ReplicaId) -> u128 {
        self.place(replica).map_or(0, |at| self.as_slice()[at].1.get())
    }

    /// Replicas and their amounts, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (ReplicaId, u128)> + '_ {
        self.as_slice().iter().map(|(replica, amount)| (*replica, amount.get()))
    }

    /// How many replicas have an amount.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there is no amount.
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    #[inline]
    fn as_slice(&self) -> &[Slot] {
        match &self.many {
            None => &self.few[..count(&self.few)],
            Some(many) => &many.slots,
        }
    }

    /// The slots, to be changed in place: copied if somebody else holds them too.
    #[inline]
    fn as_mut_slice(&mut self) -> &mut [Slot] {
        match &mut self.many {
            None => {
                let count = count(&self.few);
                &mut self.few[..count]
            }
            Some(many) => &mut Arc::make_mut(many).slots,
        }
    }

    fn insert(&mut self, at: usize, slot: Slot) {
        match &mut self.many {
            None if count(&self.few) < FEW => {
                self.few.copy_within(at..FEW - 1, at + 1);
                self.few[at] = slot;
            }
            None => {
                let mut slots = self.few.to_vec();
                slots.insert(at, slot);
                *self = slots.into();
            }
            Some(many) => Arc::make_mut(many).slots.insert(at, slot),
        }
    }

    #[inline]
    fn place(&self, replica: ReplicaId) -> Result<usize, usize> {
        let slots = self.as_slice();
        let Some(many) = &self.many else {
            // A few are looked through faster than halved.
            return match slots.iter().position(|(own, _)| *own >= replica) {
                Some(at) if slots[at].0 == replica => Ok(at),
                at => Err(at.unwrap_or(slots.len())),
            };
        };
        match slots.get(many.last) {
            Some((own, _)) if *own == replica => Ok(many.last),
            _ => slots.binary_search_by_key(&replica, |(own, _)| *own),
        }
    }

    /// Sets a slot; 0 removes it.
    fn set(&mut self, replica: ReplicaId, amount: u128) {
        match self.place(replica) {
            Ok(at) if amount == 0 => {
                let mut slots = self.as_slice().to_vec();
                slots.remove(at);
                *self = slots.into();
            }
            Ok(at) => self.as_mut_slice()[at].1 = Amount::of(amount),
            Err(_) if amount == 0 => {}
            Err(at) => self.insert(at, (replica, Amount::of(amount))),
        }
    }

    /// The greater amount of each slot. Returns whether that is more than before.
    pub(crate) fn join(&mut self, other: &Self) -> bool {
        if let (Some(own), Some(theirs)) = (&self.many, &other.many)
            && Arc::ptr_eq(own, theirs)
        {
            return false;
        }
        if self.is_empty() {
            self.clone_from(other);
            return !self.is_empty();
        }
        if self.is_aligned_with(other) {
            return self.raise_aligned(other);
        }
        match self.missing(other) {
            None => false,
            Some(0) => {
                self.raise(other);
                true
            }
            Some(missing) if self.len() + missing <= FEW => {
                for (replica, amount) in other.as_slice() {
                    match self.place(*replica) {
                        Ok(at) => self.as_mut_slice()[at].1.raise(*amount),
                        Err(at) => self.insert(at, (*replica, *amount)),
                    }
                }
                true
            }
            Some(missing) => {
                *self = self.merged(other, missing).into();
                true
            }
        }
    }

    /// Whether the other's replicas are the first ones here, as they mostly are: both sides know the same.
    fn is_aligned_with(&self, other: &Self) -> bool {
        let (own, theirs) = (self.as_slice(), other.as_slice());
        theirs.len() <= own.len() && own.iter().zip(theirs).all(|(own, theirs)| own.0 == theirs.0)
    }

    fn raise_aligned(&mut self, other: &Self) -> bool {
        let theirs = other.as_slice();
        let grows = self.as_slice().iter().zip(theirs).any(|(own, theirs)| own.1 < theirs.1);
        if grows {
            self.as_mut_slice().iter_mut().zip(theirs).for_each(|(own, theirs)| own.1.raise(theirs.1));
        }
        grows
    }

    /// How many slots the other has that are not here; `None` if it adds nothing at all.
    fn missing(&self, other: &Self) -> Option<usize> {
        let (mut missing, mut grows) = (0, false);
        let mut own = self.as_slice();
        for (replica, amount) in other.as_slice() {
            own = from(own, *replica);
            match own.first() {
                Some((twin, held)) if twin == replica => grows |= held < amount,
                _ => missing += 1,
            }
        }
        (grows || missing > 0).then_some(missing)
    }

    /// Takes over greater amounts of slots that are all here.
    fn raise(&mut self, other: &Self) {
        let mut theirs = other.as_slice();
        for (replica, held) in self.as_mut_slice() {
            theirs = from(theirs, *replica);
            if let Some((twin, amount)) = theirs.first()
                && twin == replica
            {
                held.raise(*amount);
            }
        }
    }

    /// Both, with so many slots more than here.
    fn merged(&self, other: &Self, missing: usize) -> Vec<Slot> {
        let mut merged = Vec::with_capacity(self.len() + missing);
        let mut theirs = other.as_slice();
        for &(replica, held) in self.as_slice() {
            let rest = from(theirs, replica);
            merged.extend_from_slice(&theirs[..theirs.len() - rest.len()]);
            theirs = rest;
            let twin = theirs.first().filter(|(twin, _)| *twin == replica);
            merged.push((replica, twin.map_or(held, |(_, amount)| held.max(*amount))));
            theirs = &theirs[usize::from(twin.is_some())..];
        }
        merged.extend_from_slice(theirs);
        merged
    }

    /// The slot of one replica alone, or all: a delta.
    #[inline]
    pub(crate) fn only(&self, replica: Option<ReplicaId>) -> Self {
        let Some(replica) = replica else { return self.clone() };
        Self { few: [(replica, Amount::of(self.get(replica))), EMPTY, EMPTY], many: None }
    }

    /// Adds to the slot of one replica.
    #[inline]
    fn add(&mut self, replica: ReplicaId, by: u64) -> Result<(), CounterOverflow> {
        match self.place(replica) {
            Ok(at) => {
                let amount = match &mut self.many {
                    None => &mut self.few[at].1,
                    Some(many) => {
                        let many = Arc::make_mut(many);
                        many.last = at;
                        &mut many.slots[at].1
                    }
                };
                *amount = amount.checked_add(by).ok_or(CounterOverflow)?;
            }
            Err(at) => self.insert(at, (replica, Amount::of(by.into()))),
        }
        Ok(())
    }

    /// Removes the slots of removed replicas of which markers say that all was moved.
    pub(crate) fn cleanup(&mut self, markers: &Markers) -> bool {
        let mut changed = false;
        for marker in markers.iter() {
            let amount = self.get(marker.removed);
            if amount > 0 && amount <= marker.moved.amount() {
                self.set(marker.removed, 0);
                changed = true;
            }
        }
        changed
    }

    pub(crate) fn encode(&self, out: &mut Encoder) {
        out.u64(self.len() as u64);
        for (replica, amount) in self.iter() {
            out.u64(replica.0);
            out.u128(amount);
        }
    }

    pub(crate) fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut slots = Vec::new();
        ascending(inp, |inp| {
            let replica = ReplicaId(inp.u64()?);
            match inp.u128()? {
                0 => return Err(DecodeError::NotCanonical("an empty slot")),
                amount => slots.push((replica, Amount::of(amount))),
            }
            Ok(replica)
        })?;
        Ok(slots.into())
    }
}

/// What of ascending slots begins at a replica; mostly that is where they begin.
#[inline]
fn from(slots: &[Slot], replica: ReplicaId) -> &[Slot] {
    let before = slots.iter().take_while(|(own, _)| *own < replica).count();
    &slots[before..]
}

impl From<Vec<Slot>> for Slots {
    fn from(slots: Vec<Slot>) -> Self {
        let mut few = [EMPTY; FEW];
        let many = match few.get_mut(..slots.len()) {
            Some(kept) => {
                kept.copy_from_slice(&slots);
                None
            }
            None => Some(Arc::new(Many { slots, last: 0 })),
        };
        Self { few, many }
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self { few: [EMPTY; FEW], many: None }
    }
}

impl PartialEq for Slots {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Slots {}

/// Slots, and what markers moved out of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) slots: Slots,
    /// What was moved. Hidden: no part of bytes or equality (ddata K9). Mostly nothing.
    moved: Option<Box<Moved>>,
}

/// By removed replica and owner.
type Moved = BTreeMap<ReplicaId, BTreeMap<ReplicaId, u128>>;

/// A sum of slots, or that it exceeds what can be held.
pub(crate) type Sum = Option<u128>;

impl Tally {
    pub(crate) fn of(slots: Slots) -> Self {
        Self { slots, ..Self::default() }
    }

    #[inline]
    pub(crate) fn add(&mut self, replica: ReplicaId, by: u64) -> Result<(), CounterOverflow> {
        self.slots.add(replica, by)
    }

    /// Joins another tally. What only the other knows of markers is needed for its slots, so it is taken over.
    #[inline]
    pub(crate) fn join(&mut self, other: &Self) -> bool {
        for (removed, owners) in other.moved.iter().flat_map(|moved| moved.iter()) {
            let own = self.moved.get_or_insert_default().entry(*removed).or_default();
            for (owner, amount) in owners {
                let known = own.entry(*owner).or_default();
                *known = (*known).max(*amount);
            }
        }
        self.slots.join(&other.slots)
    }

    /// All slots, each update of a removed replica once.
    pub(crate) fn sum(&self) -> Sum {
        let slots = self.slots.iter().try_fold(0_u128, |sum, (_, amount)| sum.checked_add(amount))?;
        let counted_twice =
            self.moved.iter().flat_map(|moved| moved.iter()).try_fold(0_u128, |sum, (removed, owners)| {
                let late = self.slots.get(*removed);
                let once = owners.values().copied().max().unwrap_or(0).max(late);
                let all = owners.values().try_fold(late, |all, amount| all.checked_add(*amount))?;
                sum.checked_add(all - once)
            })?;
        // An owner's slot may be elsewhere while its marker is here already; then there is nothing to take off yet.
        Some(slots.saturating_sub(counted_twice))
    }
}

impl PartialEq for Tally {
    fn eq(&self, other: &Self) -> bool {
        self.slots == other.slots
    }
}

impl Eq for Tally {}

impl RemovedNodePruning for Tally {
    fn modified_by(&self) -> BTreeSet<ReplicaId> {
        self.slots.iter().map(|(replica, _)| replica).collect()
    }

    fn needs_pruning(&self, removed: ReplicaId, markers: &[Performed]) -> bool {
        markers.iter().all(|marker| marker.moved.amount() < self.slots.get(removed)) && self.slots.get(removed) > 0
    }

    fn numbers_of(&self, _: ReplicaId) -> Option<(u64, u64)> {
        None
    }

    fn prune(&mut self, removed: ReplicaId, _: &[Range], own: &mut Performed) {
        let amount = self.slots.get(removed);
        let more = amount.saturating_sub(own.moved.amount());
        // A slot that would overflow is left where it is: nothing is lost, and nothing is counted twice.
        let Some(total) = self.slots.get(own.owner).checked_add(more).filter(|_| more > 0) else { return };
        self.slots.set(own.owner, total);
        self.slots.set(removed, 0);
        own.moved.set_amount(amount);
        self.moved.get_or_insert_default().entry(removed).or_default().insert(own.owner, amount);
    }

    fn cleanup(&mut self, markers: &Markers) -> bool {
        self.moved = None;
        for marker in markers.iter().filter(|marker| marker.moved.amount() > 0) {
            let moved = self.moved.get_or_insert_default();
            moved.entry(marker.removed).or_default().insert(marker.owner, marker.moved.amount());
        }
        self.slots.cleanup(markers)
    }
}
