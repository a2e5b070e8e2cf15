//! Slots in a list: more than a few, or with an amount of more than 64 bits.

use triomphe::Arc;

use super::amount::{Amount, Slot};
use crate::causality::replica::{ReplicaId, SlotId};
use crate::error::CounterOverflow;

#[derive(Debug, Clone)]
pub(super) struct Many {
    /// Sorted by slot.
    slots: Vec<Slot>,
    /// The index of the slot that was last added to; mostly the next addition is to the same.
    last: usize,
}

impl Many {
    pub(super) fn of(slots: Vec<Slot>) -> Self {
        Self { slots, last: 0 }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[Slot] {
        &self.slots
    }

    /// The slots of one replica.
    pub(super) fn of_replica(&self, replica: ReplicaId) -> &[Slot] {
        let from = self.slots.partition_point(|(slot, _)| slot.replica < replica);
        let to = self.slots.partition_point(|(slot, _)| slot.replica <= replica);
        &self.slots[from..to]
    }

    #[inline]
    fn place(&self, slot: SlotId) -> Result<usize, usize> {
        match self.slots.get(self.last) {
            Some((own, _)) if *own == slot => Ok(self.last),
            _ => self.slots.binary_search_by_key(&slot, |(own, _)| *own),
        }
    }

    #[inline]
    pub(super) fn get(&self, slot: SlotId) -> u128 {
        self.place(slot).map_or(0, |at| self.slots[at].1.get())
    }

    /// Adds to a slot; the list is copied if another value shares it.
    #[inline]
    pub(super) fn add(list: &mut Arc<Self>, slot: SlotId, by: u64) -> Result<(), CounterOverflow> {
        let many = Arc::make_mut(list);
        match many.place(slot) {
            Ok(at) => {
                many.last = at;
                let amount = &mut many.slots[at].1;
                *amount = amount.checked_add(by).ok_or(CounterOverflow)?;
            }
            Err(at) => many.slots.insert(at, (slot, Amount::of(by.into()))),
        }
        Ok(())
    }

    /// Keeps the greater amount of each slot. Returns whether anything grew.
    pub(super) fn join(list: &mut Arc<Self>, theirs: &[Slot]) -> bool {
        let own = list.as_slice();
        if is_aligned(own, theirs) {
            let grows = own.iter().zip(theirs).any(|(own, theirs)| own.1 < theirs.1);
            if grows {
                let own = &mut Arc::make_mut(list).slots;
                own.iter_mut().zip(theirs).for_each(|(own, theirs)| own.1.raise(theirs.1));
            }
            return grows;
        }
        match missing(own, theirs) {
            None => return false,
            Some(0) => raise(&mut Arc::make_mut(list).slots, theirs),
            Some(missing) => *list = Arc::new(Self::of(merged(own, theirs, missing))),
        }
        true
    }
}

/// Whether the slots of `theirs` are the first ones of `own`; mostly both sides have the same.
fn is_aligned(own: &[Slot], theirs: &[Slot]) -> bool {
    theirs.len() <= own.len() && own.iter().zip(theirs).all(|(own, theirs)| own.0 == theirs.0)
}

/// How many slots of `theirs` are missing in `own`; `None` if `theirs` adds nothing at all.
pub(super) fn missing(mut own: &[Slot], theirs: &[Slot]) -> Option<usize> {
    let (mut missing, mut grows) = (0, false);
    for (slot, amount) in theirs {
        own = from(own, *slot);
        match own.first() {
            Some((twin, held)) if twin == slot => grows |= held < amount,
            _ => missing += 1,
        }
    }
    (grows || missing > 0).then_some(missing)
}

/// Takes over the greater amounts of `theirs`, whose slots are all in `own`.
fn raise(own: &mut [Slot], mut theirs: &[Slot]) {
    for (slot, held) in own {
        theirs = from(theirs, *slot);
        if let Some((twin, amount)) = theirs.first()
            && twin == slot
        {
            held.raise(*amount);
        }
    }
}

/// The join of both lists; `missing` slots are in `theirs` only.
pub(super) fn merged(own: &[Slot], mut theirs: &[Slot], missing: usize) -> Vec<Slot> {
    let mut merged = Vec::with_capacity(own.len() + missing);
    for &(slot, held) in own {
        let rest = from(theirs, slot);
        merged.extend_from_slice(&theirs[..theirs.len() - rest.len()]);
        theirs = rest;
        let twin = theirs.first().filter(|(twin, _)| *twin == slot);
        merged.push((slot, twin.map_or(held, |(_, amount)| held.max(*amount))));
        theirs = &theirs[usize::from(twin.is_some())..];
    }
    merged.extend_from_slice(theirs);
    merged
}

/// The part of ascending slots from `slot` on. Searches linearly: mostly it is all of them.
#[inline]
fn from(slots: &[Slot], slot: SlotId) -> &[Slot] {
    let before = slots.iter().take_while(|(own, _)| *own < slot).count();
    &slots[before..]
}
