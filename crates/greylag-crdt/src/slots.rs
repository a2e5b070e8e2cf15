//! One amount per replica, and what pruning did to them.
//!
//! The amounts are the state of a counter; the greater amount of a slot wins. Beside them stands what the markers of
//! removed replicas say was moved out of their slots, which is no part of the state: a late copy of a slot, or a second
//! owner who moved it too, would count an update twice, and the difference is taken off.
//!
//! Source: ddata Y4.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::codec::{DecodeError, Decoder, Encoder, ascending};
use crate::error::CounterOverflow;
use crate::prune::{Markers, Performed, Range, RemovedNodePruning};
use crate::replica::ReplicaId;

/// Amounts by replica. As a delta it holds the slots that changed. Clones share it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slots(Arc<Vec<(ReplicaId, u128)>>);

impl Slots {
    /// The amount of one replica.
    pub fn get(&self, replica: ReplicaId) -> u128 {
        self.place(replica).map_or(0, |at| self.0[at].1)
    }

    /// Replicas and their amounts, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (ReplicaId, u128)> + '_ {
        self.0.iter().copied()
    }

    /// How many replicas have an amount.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no amount.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn place(&self, replica: ReplicaId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&replica, |(own, _)| *own)
    }

    /// Sets a slot; 0 removes it.
    fn set(&mut self, replica: ReplicaId, amount: u128) {
        let slots = Arc::make_mut(&mut self.0);
        match slots.binary_search_by_key(&replica, |(own, _)| *own) {
            Ok(at) if amount == 0 => drop(slots.remove(at)),
            Ok(at) => slots[at].1 = amount,
            Err(_) if amount == 0 => {}
            Err(at) => slots.insert(at, (replica, amount)),
        }
    }

    /// The greater amount of each slot. Returns whether that is more than before.
    pub(crate) fn join(&mut self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.0, &other.0) {
            return false;
        }
        if self.is_empty() {
            self.clone_from(other);
            return !self.is_empty();
        }
        let mut grew = false;
        // Mostly both sides know the same replicas, and the amount stands where it stood over there.
        for (at, (replica, amount)) in other.0.iter().enumerate() {
            let place = match self.0.get(at) {
                Some((own, _)) if own == replica => Ok(at),
                _ => self.place(*replica),
            };
            if place.is_ok_and(|at| self.0[at].1 >= *amount) {
                continue;
            }
            grew = true;
            match place {
                Ok(at) => Arc::make_mut(&mut self.0)[at].1 = *amount,
                Err(at) => Arc::make_mut(&mut self.0).insert(at, (*replica, *amount)),
            }
        }
        grew
    }

    /// The slot of one replica alone: a delta.
    pub(crate) fn only(&self, replica: ReplicaId) -> Self {
        Self(Arc::new(vec![(replica, self.get(replica))]))
    }

    /// Adds to the slot of one replica.
    fn add(&mut self, replica: ReplicaId, by: u64) -> Result<(), CounterOverflow> {
        let place = self.place(replica);
        let before = place.map_or(0, |at| self.0[at].1);
        let total = before.checked_add(by.into()).ok_or(CounterOverflow)?;
        let slots = Arc::make_mut(&mut self.0);
        match place {
            Ok(at) => slots[at].1 = total,
            Err(at) => slots.insert(at, (replica, total)),
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
        out.u64(self.0.len() as u64);
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
                amount => slots.push((replica, amount)),
            }
            Ok(replica)
        })?;
        Ok(Self(Arc::new(slots)))
    }
}

/// Slots, and what markers moved out of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) slots: Slots,
    /// By removed replica and owner, what was moved. Hidden: no part of bytes or equality (ddata K9).
    moved: BTreeMap<ReplicaId, BTreeMap<ReplicaId, u128>>,
}

/// A sum of slots, or that it exceeds what can be held.
pub(crate) type Sum = Option<u128>;

impl Tally {
    pub(crate) fn of(slots: Slots) -> Self {
        Self { slots, moved: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, replica: ReplicaId, by: u64) -> Result<(), CounterOverflow> {
        self.slots.add(replica, by)
    }

    /// Joins another tally. What only the other knows of markers is needed for its slots, so it is taken over.
    pub(crate) fn join(&mut self, other: &Self) -> bool {
        for (removed, owners) in &other.moved {
            let own = self.moved.entry(*removed).or_default();
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
        let counted_twice = self.moved.iter().try_fold(0_u128, |sum, (removed, owners)| {
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
        self.moved.entry(removed).or_default().insert(own.owner, amount);
    }

    fn cleanup(&mut self, markers: &Markers) -> bool {
        self.moved.clear();
        for marker in markers.iter().filter(|marker| marker.moved.amount() > 0) {
            self.moved.entry(marker.removed).or_default().insert(marker.owner, marker.moved.amount());
        }
        self.slots.cleanup(markers)
    }
}
