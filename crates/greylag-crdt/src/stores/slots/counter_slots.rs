//! Slots, and the amounts that pruning moved out of them.
//!
//! The moved amounts of the markers are no part of the state. The value needs them: an update would count twice if a
//! late copy of its slot is here, or if its slot was moved to two others; the surplus is subtracted.

use std::collections::{BTreeMap, BTreeSet};

use super::Slots;
use crate::causality::replica::{ReplicaId, SlotId};
use crate::error::CounterOverflow;
use crate::pruning::prune::{Markers, Performed, Range, RemovedNodePruning};

/// Slots, and the amounts that markers moved out of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct CounterSlots {
    pub(crate) slots: Slots,
    /// The moved amounts; mostly none. Hidden: no part of bytes or equality (ddata K9).
    moved: Option<Box<Moved>>,
}

/// Moved amounts, by slot of a removed replica and slot of an owner.
type Moved = BTreeMap<SlotId, BTreeMap<SlotId, u128>>;

/// A sum of slots; `None` if it exceeds a `u128`.
pub(crate) type Sum = Option<u128>;

impl CounterSlots {
    pub(crate) fn of(slots: Slots) -> Self {
        Self { slots, ..Self::default() }
    }

    #[inline]
    pub(crate) fn add(&mut self, slot: SlotId, by: u64) -> Result<(), CounterOverflow> {
        self.slots.add(slot, by)
    }

    /// Joins another counter's slots. Takes over the moves that only `other` knows: its slots need them.
    #[inline]
    pub(crate) fn join(&mut self, other: &Self) -> bool {
        for (from, targets) in other.moved.iter().flat_map(|moved| moved.iter()) {
            let own = self.moved.get_or_insert_default().entry(*from).or_default();
            for (to, amount) in targets {
                let known = own.entry(*to).or_default();
                *known = (*known).max(*amount);
            }
        }
        self.slots.join(&other.slots)
    }

    /// The sum of all slots, with each update of a removed replica counted once.
    pub(crate) fn sum(&self) -> Sum {
        let slots = self.slots.iter().try_fold(0_u128, |sum, (_, amount)| sum.checked_add(amount))?;
        let moved = self.moved.iter().flat_map(|moved| moved.iter());
        let counted_twice = moved.map(|(from, targets)| {
            let late = self.slots.get(*from);
            let once = targets.values().copied().max().unwrap_or(0).max(late);
            let all = targets.values().try_fold(late, |all, amount| all.checked_add(*amount))?;
            Some(all - once)
        });
        let counted_twice = counted_twice.into_iter().try_fold(0_u128, |sum, more| sum.checked_add(more?))?;
        // Saturate: the marker may be here before the owner's slot is, and then there is nothing to subtract yet.
        Some(slots.saturating_sub(counted_twice))
    }
}

impl PartialEq for CounterSlots {
    fn eq(&self, other: &Self) -> bool {
        self.slots == other.slots
    }
}

impl Eq for CounterSlots {}

impl RemovedNodePruning for CounterSlots {
    fn modified_by(&self) -> BTreeSet<ReplicaId> {
        self.slots.iter().map(|(slot, _)| slot.replica).collect()
    }

    fn needs_pruning(&self, removed: ReplicaId, markers: &[Performed]) -> bool {
        let is_above_all =
            |(slot, amount): (SlotId, u128)| markers.iter().all(|marker| marker.moved.greatest(slot.birth) < amount);
        self.slots.of(removed).any(is_above_all)
    }

    fn numbers_of(&self, _: ReplicaId) -> Option<(u64, u64)> {
        None
    }

    fn prune(&mut self, removed: ReplicaId, _: &[Range], birth: u64, own: &mut Performed) {
        let to = SlotId::new(own.owner, birth);
        for (from, amount) in self.slots.of(removed).collect::<Vec<_>>() {
            let more = amount.saturating_sub(own.moved.amount(from.birth, birth));
            // Leave a slot that would overflow where it is: nothing is lost, and nothing is counted twice.
            let Some(total) = self.slots.get(to).checked_add(more).filter(|_| more > 0) else { continue };
            self.slots.set(to, total);
            self.slots.set(from, 0);
            own.moved.set_amount(from.birth, birth, amount);
            self.moved.get_or_insert_default().entry(from).or_default().insert(to, amount);
        }
    }

    fn cleanup(&mut self, markers: &Markers) -> bool {
        self.moved = None;
        for marker in markers.iter() {
            for (from, to, amount) in marker.moved.amounts() {
                let from = SlotId::new(marker.removed, from);
                let moved = self.moved.get_or_insert_default().entry(from).or_default();
                moved.insert(SlotId::new(marker.owner, to), amount);
            }
        }
        self.slots.cleanup(markers)
    }
}
