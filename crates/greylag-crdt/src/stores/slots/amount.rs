//! Amounts of slots.

use crate::causality::replica::{ReplicaId, SlotId};

/// A slot with its amount, as an item of the list.
pub(super) type Slot = (SlotId, Amount);

/// An amount in two halves, the upper one first: a `u128` would take a quarter more room because of its alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Amount([u64; 2]);

impl Amount {
    #[inline]
    pub(super) fn of(amount: u128) -> Self {
        Self([(amount >> 64) as u64, amount as u64])
    }

    #[inline]
    pub(super) fn checked_add(self, more: u64) -> Option<Self> {
        let (low, carry) = self.0[1].overflowing_add(more);
        Some(Self([self.0[0].checked_add(carry.into())?, low]))
    }

    #[inline]
    pub(super) fn raise(&mut self, other: Self) {
        *self = (*self).max(other);
    }

    #[inline]
    pub(super) fn get(self) -> u128 {
        u128::from(self.0[0]) << 64 | u128::from(self.0[1])
    }
}

pub(super) const EMPTY: Slot = (SlotId { replica: ReplicaId(0), birth: 0 }, Amount([0; 2]));
