//! A counter inside a map: amounts in slots named by dots.
//!
//! The slots of a plain counter are named by replicas: after a removal and a new creation the old amounts would still
//! be known elsewhere, and new increments would vanish below them. Here a replica adds to its newest slot only as long
//! as none of its slots in the entry was ever seen to shrink or vanish; after that it begins a new slot, named by the
//! new dot. So no increment is swallowed by a stale maximum.
//!
//! Source: ddata Y9.

use crate::causality::cx::UpdateCx;
use crate::causality::replica::{Dot, ReplicaId};
use crate::encoding::codec::{DecodeError, Decoder, Encoder, ascending};
use crate::encoding::tag::TypeTag;
use crate::error::CounterOverflow;
use crate::pruning::rename::Moves;
use crate::stores::store::{DotFun, DotSet, Edit, Leaf, StoreMut, decode_dot, edited_by_store_mut, encode_dot};
use crate::types::counter::difference;

/// Added and subtracted amounts by slot; of two amounts of a slot the greater counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotCounter {
    /// Sorted by slot.
    slots: Vec<(Dot, Amounts)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Amounts {
    added: u128,
    taken: u128,
}

impl Amounts {
    fn join(&mut self, other: Self) {
        self.added = self.added.max(other.added);
        self.taken = self.taken.max(other.taken);
    }
}

impl SlotCounter {
    /// Additions minus subtractions, within the bounds of `i128`.
    pub fn value(&self) -> i128 {
        let sum = |of: fn(&Amounts) -> u128| self.slots.iter().fold(0_u128, |sum, (_, s)| sum.saturating_add(of(s)));
        difference(sum(|s| s.added), sum(|s| s.taken)).unwrap_or_else(|bound| bound)
    }

    /// Additions minus subtractions, or `None` if the difference exceeds the bounds of `i128`.
    pub fn checked_value(&self) -> Option<i128> {
        let sum = |of: fn(&Amounts) -> u128| self.slots.iter().try_fold(0_u128, |sum, (_, s)| sum.checked_add(of(s)));
        difference(sum(|s| s.added)?, sum(|s| s.taken)?).ok()
    }

    fn amounts(&mut self, slot: Dot) -> &mut Amounts {
        let at = match self.slots.binary_search_by_key(&slot, |(own, _)| *own) {
            Ok(at) => at,
            Err(at) => {
                self.slots.insert(at, (slot, Amounts::default()));
                at
            }
        };
        &mut self.slots[at].1
    }

    /// The newest slot of a replica whose number `admits` accepts.
    fn newest(&self, replica: ReplicaId, admits: impl Fn(u64) -> bool) -> Option<Dot> {
        self.slots.iter().map(|(slot, _)| *slot).rfind(|slot| slot.replica == replica && admits(slot.number))
    }
}

impl Leaf for SlotCounter {
    const TAG: TypeTag = TypeTag::new("counter");

    edited_by_store_mut!(DotFun<Self>);

    fn join(&mut self, other: &Self) {
        for (slot, amounts) in &other.slots {
            self.amounts(*slot).join(*amounts);
        }
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.slots.len() as u64);
        for (slot, amounts) in &self.slots {
            encode_dot(*slot, out);
            out.u128(amounts.added);
            out.u128(amounts.taken);
        }
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut slots = Vec::new();
        ascending(inp, |inp| {
            let slot = decode_dot(inp)?;
            slots.push((slot, Amounts { added: inp.u128()?, taken: inp.u128()? }));
            Ok(slot)
        })?;
        Ok(Self { slots })
    }

    /// A copy with one slot of its own: original and copy may both be added to.
    fn copied_to(&self, dot: Dot) -> Self {
        let mut total = Amounts::default();
        for (_, amounts) in &self.slots {
            total.added = total.added.saturating_add(amounts.added);
            total.taken = total.taken.saturating_add(amounts.taken);
        }
        Self { slots: vec![(dot, total)] }
    }

    fn rename(&mut self, moves: &Moves) -> bool {
        if self.slots.iter().all(|(slot, _)| moves.target(*slot).is_none()) {
            return false;
        }
        for (slot, amounts) in std::mem::take(&mut self.slots) {
            self.amounts(moves.target(slot).unwrap_or(slot)).join(amounts);
        }
        true
    }

    fn read_alike(one: &CounterStore, other: &CounterStore) -> bool {
        one.checked_value() == other.checked_value()
    }

    fn visit_slots(&self, visit: &mut dyn FnMut(Dot, u128, u128)) {
        self.slots.iter().for_each(|(slot, amounts)| visit(*slot, amounts.added, amounts.taken));
    }
}

/// A counter inside a map. See [`crate::PnCounterMap`].
pub type CounterStore = DotFun<SlotCounter>;

impl DotFun<SlotCounter> {
    /// A counter to put into a map.
    pub fn counting(amount: i64) -> Self {
        let mut counter = SlotCounter::default();
        let amounts = counter.amounts(Dot::UNPLACED);
        (amounts.added, amounts.taken) = (amount.max(0).unsigned_abs().into(), amount.min(0).unsigned_abs().into());
        Self::single(Dot::UNPLACED, counter)
    }

    /// Additions minus subtractions, within the bounds of `i128`.
    pub fn value(&self) -> i128 {
        self.joined().map_or(0, |counter| counter.value())
    }

    /// Additions minus subtractions, or `None` if the difference exceeds the bounds of `i128`.
    pub fn checked_value(&self) -> Option<i128> {
        self.joined().map_or(Some(0), |counter| counter.checked_value())
    }
}

impl StoreMut<'_, CounterStore> {
    /// Additions minus subtractions.
    pub fn value(&self) -> i128 {
        self.store().map_or(0, CounterStore::value)
    }

    /// Adds to the counter; a negative amount is a decrement, 0 changes nothing.
    ///
    /// # Errors
    /// [`CounterOverflow`].
    pub fn increment(&mut self, cx: &mut UpdateCx<'_>, by: i64) -> Result<(), CounterOverflow> {
        self.change(cx, by.unsigned_abs(), by > 0)
    }

    /// Subtracts from the counter; a negative amount is an increment, 0 changes nothing.
    ///
    /// # Errors
    /// [`CounterOverflow`].
    pub fn decrement(&mut self, cx: &mut UpdateCx<'_>, by: i64) -> Result<(), CounterOverflow> {
        self.change(cx, by.unsigned_abs(), by < 0)
    }

    fn change(&mut self, cx: &mut UpdateCx<'_>, by: u64, up: bool) -> Result<(), CounterOverflow> {
        if by == 0 {
            return Ok(());
        }
        let floor = self.0.slot_floor(cx);
        let mut counter = self.store().and_then(DotFun::joined).unwrap_or_default();
        let newest = counter.newest(cx.replica(), |number| number > floor && !cx.is_reserved(number));
        let dot = cx.draw_dot();
        let amounts = counter.amounts(newest.unwrap_or(dot));
        let amount = if up { &mut amounts.added } else { &mut amounts.taken };
        *amount = amount.checked_add(by.into()).ok_or(CounterOverflow)?;
        self.0.apply(cx, Edit { patch: DotFun::single(dot, counter), drawn: DotSet::single(dot) });
        Ok(())
    }
}
