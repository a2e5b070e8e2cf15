//! Amounts by slot, the state of a counter; of two amounts of a slot the greater counts.
//!
//! A slot is named by a replica and a birth of the entry there: the replica cannot know how far its slot of an earlier
//! life is elsewhere, and new increments would vanish below the greater amount. Most counters have a handful of slots
//! with amounts of at most 64 bits; these take no heap memory ([`few`]). All others stand in a list ([`many`]). The
//! slots alone decide between the two forms.
//!
//! Source: ddata Y4.

mod amount;
mod counter_slots;
mod few;
mod many;

use triomphe::Arc;

pub(crate) use counter_slots::CounterSlots;

use crate::causality::replica::{ReplicaId, SlotId};
use crate::encoding::codec::{DecodeError, Decoder, Encoder, FORMAT, FORMAT_WITH_BIRTHS, ascending};
use crate::error::CounterOverflow;
use crate::pruning::prune::Markers;
use amount::{Amount, EMPTY, Slot};
use few::{FEW, FewSlots};
use many::{Many, merged, missing};

/// Amounts by slot. As a delta: the slots that changed. Clones share the list of many.
#[derive(Debug, Clone, Default)]
pub struct Slots {
    /// The slots, if they are few; empty if there are `many`. Two fields and not one `enum`, which the compiler would
    /// move piece by piece.
    few: FewSlots,
    many: Option<Arc<Many>>,
}

impl Slots {
    /// The amount of one slot; 0 if the slot is absent.
    #[inline]
    pub fn get(&self, slot: SlotId) -> u128 {
        match &self.many {
            None => self.few.get(slot).into(),
            Some(many) => many.get(slot),
        }
    }

    /// Slots and their amounts, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, u128)> + '_ {
        let many = self.many.as_ref().map_or(&[][..], |many| many.as_slice());
        self.few.iter().chain(many.iter().map(|(slot, amount)| (*slot, amount.get())))
    }

    /// The slots of one replica and their amounts, ascending: one for each life of the entry in which the replica
    /// counted.
    pub fn of(&self, replica: ReplicaId) -> impl Iterator<Item = (SlotId, u128)> + '_ {
        let many = self.many.as_ref().map_or(&[][..], |many| many.of_replica(replica));
        let few = self.few.iter().filter(move |(slot, _)| slot.replica == replica);
        few.chain(many.iter().map(|(slot, amount)| (*slot, amount.get())))
    }

    /// How many slots have an amount.
    pub fn len(&self) -> usize {
        self.many.as_ref().map_or(self.few.len(), |many| many.as_slice().len())
    }

    /// Whether no slot has an amount.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slots as a list; `room` holds the list if they are few.
    #[inline]
    fn as_list<'a>(&'a self, room: &'a mut [Slot; FEW]) -> &'a [Slot] {
        match &self.many {
            None => self.few.as_list(room),
            Some(many) => many.as_slice(),
        }
    }

    /// Sets a slot; 0 removes it.
    fn set(&mut self, slot: SlotId, amount: u128) {
        let mut slots = self.as_list(&mut [EMPTY; FEW]).to_vec();
        match slots.binary_search_by_key(&slot, |(own, _)| *own) {
            Ok(at) if amount == 0 => drop(slots.remove(at)),
            Ok(at) => slots[at].1 = Amount::of(amount),
            Err(_) if amount == 0 => {}
            Err(at) => slots.insert(at, (slot, Amount::of(amount))),
        }
        *self = slots.into();
    }

    /// Keeps the greater amount of each slot. Returns whether anything grew.
    pub(crate) fn join(&mut self, other: &Self) -> bool {
        if self.many.is_none()
            && other.many.is_none()
            && let Some(grew) = self.few.join(&other.few)
        {
            return grew;
        }
        if self.is_empty() {
            self.clone_from(other);
            return !self.is_empty();
        }
        if let Some(own) = &mut self.many {
            return match &other.many {
                Some(theirs) if Arc::ptr_eq(own, theirs) => false,
                _ => Many::join(own, other.as_list(&mut [EMPTY; FEW])),
            };
        }
        let (mut own_room, mut their_room) = ([EMPTY; FEW], [EMPTY; FEW]);
        let (own, theirs) = (self.as_list(&mut own_room), other.as_list(&mut their_room));
        let Some(missing) = missing(own, theirs) else { return false };
        *self = merged(own, theirs, missing).into();
        true
    }

    /// A delta: the amount of `slot` alone, or all slots if it is `None`.
    #[inline]
    pub(crate) fn only(&self, slot: Option<SlotId>) -> Self {
        match (slot, &self.many) {
            (None, _) => self.clone(),
            (Some(slot), None) => Self { few: FewSlots::one(slot, self.few.get(slot)), many: None },
            (Some(slot), Some(many)) => vec![(slot, Amount::of(many.get(slot)))].into(),
        }
    }

    /// Adds to a slot.
    #[inline]
    fn add(&mut self, slot: SlotId, by: u64) -> Result<(), CounterOverflow> {
        match &mut self.many {
            Some(many) => Many::add(many, slot, by),
            None if self.few.add(slot, by) => Ok(()),
            // The few have no room for the slot, or not for the sum.
            None => {
                self.set(slot, self.get(slot) + u128::from(by));
                Ok(())
            }
        }
    }

    /// Removes slots of removed replicas whose whole amount, as markers say, was moved.
    pub(crate) fn cleanup(&mut self, markers: &Markers) -> bool {
        let mut changed = false;
        for marker in markers.iter() {
            let is_moved = |(slot, amount): &(SlotId, u128)| *amount <= marker.moved.greatest(slot.birth);
            let moved: Vec<SlotId> = self.of(marker.removed).filter(is_moved).map(|(slot, _)| slot).collect();
            changed |= !moved.is_empty();
            moved.into_iter().for_each(|slot| self.set(slot, 0));
        }
        changed
    }

    /// The format of these slots. All that format 1 can represent, which has no births, is written in it, so that equal
    /// states have equal bytes and digests in both formats.
    pub(crate) fn format(&self) -> u8 {
        if self.iter().all(|(slot, _)| slot.birth == 0) { FORMAT } else { FORMAT_WITH_BIRTHS }
    }

    pub(crate) fn encode(&self, format: u8, out: &mut Encoder) {
        out.u64(self.len() as u64);
        for (slot, amount) in self.iter() {
            out.u64(slot.replica.0);
            if format == FORMAT_WITH_BIRTHS {
                out.u64(slot.birth);
            }
            out.u128(amount);
        }
    }

    pub(crate) fn decode(format: u8, inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut slots = Vec::new();
        ascending(inp, |inp| {
            let replica = ReplicaId(inp.u64()?);
            let birth = if format == FORMAT_WITH_BIRTHS { inp.u64()? } else { 0 };
            let slot = SlotId { replica, birth };
            match inp.u128()? {
                0 => return Err(DecodeError::NotCanonical("an empty slot")),
                amount => slots.push((slot, Amount::of(amount))),
            }
            Ok(slot)
        })?;
        Ok(slots.into())
    }
}

impl From<Vec<Slot>> for Slots {
    fn from(slots: Vec<Slot>) -> Self {
        match FewSlots::of(&slots) {
            Some(few) => Self { few, many: None },
            None => Self { few: FewSlots::default(), many: Some(Arc::new(Many::of(slots))) },
        }
    }
}

impl PartialEq for Slots {
    fn eq(&self, other: &Self) -> bool {
        match (&self.many, &other.many) {
            (None, None) => self.few == other.few,
            (Some(own), Some(theirs)) => own.as_slice() == theirs.as_slice(),
            _ => false,
        }
    }
}

impl Eq for Slots {}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn slots(of: &[(u64, u64, u128)]) -> Slots {
        let mut slots = Slots::default();
        of.iter().for_each(|(replica, birth, amount)| slots.set(SlotId::new(ReplicaId(*replica), *birth), *amount));
        slots
    }

    fn some() -> impl Strategy<Value = Vec<(u64, u64, u128)>> {
        let amount = prop_oneof![1_u128..5, (u128::from(u64::MAX) - 2)..(u128::from(u64::MAX) + 3)];
        proptest::collection::vec((0_u64..3, 0_u64..3, amount), 0..8)
    }

    proptest! {
        /// ddata Y4: in whatever form both sides are, the greater amount of each slot counts, and the form follows from
        /// the slots.
        #[test]
        fn the_greater_amount_of_each_slot_counts(one in some(), other in some(), by in 0_u64..3) {
            let (one, other) = (slots(&one), slots(&other));
            let mut joined = one.clone();
            let grew = joined.join(&other);
            prop_assert_eq!(grew, joined != one);
            let mut expected: std::collections::BTreeMap<SlotId, u128> = one.iter().collect();
            for (slot, amount) in other.iter() {
                let own = expected.entry(slot).or_default();
                *own = (*own).max(amount);
            }
            prop_assert!(joined.iter().eq(expected.clone()));
            let list: Vec<Slot> = expected.iter().map(|(slot, amount)| (*slot, Amount::of(*amount))).collect();
            prop_assert_eq!(&joined, &Slots::from(list));
            if by > 0 {
                let slot = SlotId::new(ReplicaId(1), 1);
                joined.add(slot, by).unwrap();
                prop_assert_eq!(joined.get(slot), expected.get(&slot).copied().unwrap_or(0) + u128::from(by));
                let list: Vec<Slot> = joined.iter().map(|(slot, amount)| (slot, Amount::of(amount))).collect();
                prop_assert_eq!(&joined, &Slots::from(list));
                prop_assert_eq!(joined.only(Some(slot)).iter().collect::<Vec<_>>(), vec![(slot, joined.get(slot))]);
            }
            let of: Vec<_> = joined.of(ReplicaId(1)).collect();
            prop_assert!(joined.iter().filter(|(slot, _)| slot.replica == ReplicaId(1)).eq(of));
        }
    }

    /// ddata H1: births took no additional room.
    #[test]
    fn slots_are_small() {
        assert_eq!(size_of::<Slots>(), 80);
    }
}
