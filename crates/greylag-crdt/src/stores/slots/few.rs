//! A few slots with amounts of at most 64 bits, stored inline.

use super::amount::{Amount, Slot};
use crate::causality::replica::{ReplicaId, SlotId};

/// The greatest number of slots stored inline: mostly a handful of replicas count.
pub(super) const FEW: usize = 3;

/// Slots, ascending; places with amount 0 come last and are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FewSlots([Small; FEW]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Small {
    slot: SlotId,
    amount: u64,
}

const NONE: Small = Small { slot: SlotId { replica: ReplicaId(0), birth: 0 }, amount: 0 };

impl FewSlots {
    /// One slot; none if the amount is 0.
    #[inline]
    pub(super) fn one(slot: SlotId, amount: u64) -> Self {
        let mut few = Self::default();
        if amount > 0 {
            few.0[0] = Small { slot, amount };
        }
        few
    }

    /// These slots inline; `None` if they are too many or an amount is too large.
    pub(super) fn of(slots: &[Slot]) -> Option<Self> {
        let mut few = Self::default();
        for (own, (slot, amount)) in few.0.get_mut(..slots.len())?.iter_mut().zip(slots) {
            *own = Small { slot: *slot, amount: u64::try_from(amount.get()).ok()? };
        }
        Some(few)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.0.iter().filter(|small| small.amount > 0).count()
    }

    #[inline]
    fn as_slice(&self) -> &[Small] {
        &self.0[..self.len()]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SlotId, u128)> + '_ {
        self.as_slice().iter().map(|small| (small.slot, small.amount.into()))
    }

    pub(super) fn as_list<'a>(&self, room: &'a mut [Slot; FEW]) -> &'a [Slot] {
        let slots = self.as_slice();
        for (slot, small) in room.iter_mut().zip(slots) {
            *slot = (small.slot, Amount::of(small.amount.into()));
        }
        &room[..slots.len()]
    }

    /// The index of a slot, or the index that it would have. A linear search of so few is faster than a binary one.
    #[inline]
    fn place(&self, slot: SlotId) -> Result<usize, usize> {
        let slots = self.as_slice();
        match slots.iter().position(|small| small.slot >= slot) {
            Some(at) if slots[at].slot == slot => Ok(at),
            at => Err(at.unwrap_or(slots.len())),
        }
    }

    #[inline]
    pub(super) fn get(&self, slot: SlotId) -> u64 {
        self.place(slot).map_or(0, |at| self.0[at].amount)
    }

    /// Adds to a slot. Returns `false`, and changes nothing, if there is no room.
    #[inline]
    pub(super) fn add(&mut self, slot: SlotId, by: u64) -> bool {
        match self.place(slot) {
            Ok(at) => match self.0[at].amount.checked_add(by) {
                Some(sum) => self.0[at].amount = sum,
                None => return false,
            },
            Err(at) if self.len() < FEW => self.insert(at, Small { slot, amount: by }),
            Err(_) => return false,
        }
        true
    }

    fn insert(&mut self, at: usize, small: Small) {
        self.0.copy_within(at..FEW - 1, at + 1);
        self.0[at] = small;
    }

    /// Keeps the greater amount of each slot. Returns whether anything grew; `None`, and changes nothing, if there is
    /// no room.
    #[inline]
    pub(super) fn join(&mut self, other: &Self) -> Option<bool> {
        let (own, theirs) = (self.len(), other.as_slice());
        // Fast path: mostly both sides have the same slots.
        if theirs.len() <= own && self.0.iter().zip(theirs).all(|(own, theirs)| own.slot == theirs.slot) {
            let mut grew = false;
            for (own, theirs) in self.0.iter_mut().zip(theirs) {
                grew |= own.amount < theirs.amount;
                own.amount = own.amount.max(theirs.amount);
            }
            return Some(grew);
        }
        let missing = theirs.iter().filter(|small| self.place(small.slot).is_err()).count();
        if own + missing > FEW {
            return None;
        }
        let mut grew = missing > 0;
        for small in theirs {
            match self.place(small.slot) {
                Ok(at) => {
                    grew |= self.0[at].amount < small.amount;
                    self.0[at].amount = self.0[at].amount.max(small.amount);
                }
                Err(at) => self.insert(at, *small),
            }
        }
        Some(grew)
    }
}

impl Default for FewSlots {
    fn default() -> Self {
        Self([NONE; FEW])
    }
}
