//! The values of the simulation's entries, and a model of them that knows neither dots nor deltas.
//!
//! A [`Ledger`] is a set, a counter and three maps beside the plain list of the operations that it has seen. All parts
//! travel together, so at every moment, on every replica, that list says what the other parts must show: the [`OperationHistory`]
//! computes it from the happened-before relation alone, which is the list of operations that each operation had seen
//! where it was performed. Source: ddata L7, Z8, O6.

use std::collections::{BTreeMap, BTreeSet};

use greylag_crdt::{GSet, LwwMap, OrMultiMap, OrSet, PNCounter, PnCounterMap, ReplicatedData, UpdateCx};

/// A set of operations of one entry, by their numbers.
pub(super) type Mask = u64;

/// The most operations of an entry.
pub(super) const MOST: usize = 64;

/// One entry: the list of its operations, and the data that they changed.
#[derive(Clone, Debug, PartialEq, ReplicatedData)]
#[crdt(tag = "sim.ledger/1")]
pub(super) struct Ledger {
    log: GSet<u8>,
    set: OrSet<u8>,
    counter: PNCounter,
    places: LwwMap<u8, u8>,
    votes: PnCounterMap<u8>,
    tags: OrMultiMap<u8, u8>,
}

/// An operation of a user on an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperationKind {
    Add(u8),
    Take(u8),
    Clear,
    Count(i64),
    /// Puts a value for a key, with a timestamp.
    Put(u8, i64),
    Unput(u8),
    Vote(u8, i64),
    Unvote(u8),
    Tag(u8, u8),
    Untag(u8, u8),
    UntagAll(u8),
}

/// A part of an entry that operations write and remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Element(u8),
    Place(u8),
    Vote(u8),
    Tag(u8, u8),
}

impl OperationKind {
    /// The part that the operation writes.
    fn writes(self) -> Option<Part> {
        match self {
            Self::Add(element) => Some(Part::Element(element)),
            Self::Put(key, _) => Some(Part::Place(key)),
            Self::Vote(key, _) => Some(Part::Vote(key)),
            Self::Tag(key, value) => Some(Part::Tag(key, value)),
            _ => None,
        }
    }

    /// Whether the operation supersedes earlier operations that wrote this part, as far as it has seen them.
    fn supersedes(self, leaf: Part) -> bool {
        match (self, leaf) {
            (Self::Add(own) | Self::Take(own), Part::Element(element)) => own == element,
            (Self::Clear, Part::Element(_)) => true,
            (Self::Put(own, _) | Self::Unput(own), Part::Place(key)) => own == key,
            (Self::Vote(own, _) | Self::Unvote(own), Part::Vote(key)) => own == key,
            (Self::Tag(own, value) | Self::Untag(own, value), Part::Tag(key, other)) => own == key && value == other,
            (Self::UntagAll(own), Part::Tag(key, _)) => own == key,
            _ => false,
        }
    }
}

/// One operation, and what it depends on.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    /// The process, and the life of its replicator.
    pub(super) origin: (usize, u32),
    pub(super) act: OperationKind,
    /// Operations that this one superseded.
    supersedes: Mask,
    /// Votes that this vote carries on, its own included.
    carries: Mask,
    /// The winning put, by timestamp, among this one and those that it superseded.
    place: (i64, u8),
}

/// The values that an entry shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shown {
    elements: BTreeSet<u8>,
    counter: i128,
    places: BTreeMap<u8, u8>,
    votes: BTreeMap<u8, i128>,
    tags: BTreeSet<(u8, u8)>,
}

/// All operations of one entry.
#[derive(Debug, Default)]
pub(super) struct OperationHistory {
    pub(super) ops: Vec<Operation>,
    /// Values computed so far, by the operations seen.
    known: BTreeMap<Mask, Shown>,
}

/// The numbers in a mask, ascending.
pub(super) fn numbers(mut mask: Mask) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let next = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(next)
    })
}

impl OperationHistory {
    /// The operations of `seen` that no other one of `seen` superseded.
    fn live(&self, seen: Mask) -> Mask {
        seen & !numbers(seen).map(|number| self.ops[number].supersedes).fold(0, |all, mask| all | mask)
    }

    /// Notes an operation of a replica that has seen `seen`, and returns its number.
    pub(super) fn note(&mut self, origin: (usize, u32), act: OperationKind, seen: Mask) -> u8 {
        let number = u8::try_from(self.ops.len()).expect("an entry gets few operations");
        let superseded = |number: &usize| self.ops[*number].act.writes().is_some_and(|leaf| act.supersedes(leaf));
        let superseded: Vec<usize> = numbers(self.live(seen)).filter(superseded).collect();
        let own = 1 << number;
        let carried = superseded.iter().map(|number| self.ops[*number].carries);
        let carries =
            if matches!(act, OperationKind::Vote(..)) { carried.fold(own, |all, mask| all | mask) } else { 0 };
        let mut place = (i64::MIN, number);
        if let OperationKind::Put(_, at) = act {
            place = superseded.iter().map(|number| self.ops[*number].place).fold((at, number), Ord::max);
        }
        let supersedes = superseded.into_iter().fold(0, |all, number| all | 1 << number);
        self.ops.push(Operation { origin, act, supersedes, carries, place });
        number
    }

    /// The value that a replica must show that has seen exactly these operations.
    pub(super) fn shown(&mut self, seen: Mask) -> &Shown {
        if !self.known.contains_key(&seen) {
            let shown = self.compute(seen);
            self.known.insert(seen, shown);
        }
        &self.known[&seen]
    }

    fn compute(&self, seen: Mask) -> Shown {
        let mut shown = Shown::default();
        let mut places: BTreeMap<u8, (i64, u8)> = BTreeMap::new();
        let mut votes: BTreeMap<u8, Mask> = BTreeMap::new();
        for number in numbers(self.live(seen)) {
            let op = &self.ops[number];
            match op.act {
                OperationKind::Add(element) => drop(shown.elements.insert(element)),
                OperationKind::Count(by) => shown.counter += i128::from(by),
                OperationKind::Put(key, _) => {
                    let best = places.entry(key).or_insert(op.place);
                    *best = (*best).max(op.place);
                }
                OperationKind::Vote(key, _) => *votes.entry(key).or_default() |= op.carries,
                OperationKind::Tag(key, value) => drop(shown.tags.insert((key, value))),
                OperationKind::Take(_)
                | OperationKind::Clear
                | OperationKind::Unput(_)
                | OperationKind::Unvote(_)
                | OperationKind::Untag(..)
                | OperationKind::UntagAll(_) => {}
            }
        }
        shown.places = places.into_iter().map(|(key, (_, number))| (key, number)).collect();
        let sum = |mask| numbers(mask).map(|number| self.voted(number)).sum();
        shown.votes = votes.into_iter().map(|(key, mask)| (key, sum(mask))).collect();
        shown
    }

    fn voted(&self, number: usize) -> i128 {
        match self.ops[number].act {
            OperationKind::Vote(_, by) => by.into(),
            _ => 0,
        }
    }

    /// Whether the operations of each origin are seen in order, without a gap. Source: ddata C5.
    pub(super) fn is_in_order(&self, seen: Mask) -> bool {
        let mut missed: BTreeSet<(usize, u32)> = BTreeSet::new();
        self.ops.iter().enumerate().all(|(number, op)| match seen & (1 << number) {
            0 => {
                missed.insert(op.origin);
                true
            }
            _ => !missed.contains(&op.origin),
        })
    }
}

impl Shown {
    /// Whether the act would change something here.
    pub(super) fn allows(&self, act: OperationKind) -> bool {
        match act {
            OperationKind::Take(element) => self.elements.contains(&element),
            OperationKind::Clear => !self.elements.is_empty(),
            OperationKind::Unput(key) => self.places.contains_key(&key),
            OperationKind::Unvote(key) => self.votes.contains_key(&key),
            OperationKind::Untag(key, value) => self.tags.contains(&(key, value)),
            OperationKind::UntagAll(key) => self.tags.iter().any(|(tagged, _)| *tagged == key),
            _ => true,
        }
    }
}

impl Ledger {
    /// The operations that the ledger has seen.
    pub(super) fn seen(&self) -> Mask {
        self.log.iter().fold(0, |all, number| all | 1 << number)
    }

    /// The values that the ledger shows.
    pub(super) fn shown(&self) -> Shown {
        Shown {
            elements: self.set.iter().copied().collect(),
            counter: self.counter.value(),
            places: self.places.iter().map(|(key, number)| (*key, *number)).collect(),
            votes: self.votes.iter().map(|(key, votes)| (*key, votes)).collect(),
            tags: self.tags.iter().flat_map(|(key, values)| values.iter().map(move |value| (*key, *value))).collect(),
        }
    }

    /// Performs an operation and adds it to the list.
    pub(super) fn perform(&mut self, cx: &mut UpdateCx<'_>, number: u8, act: OperationKind) {
        self.log.add(number);
        match act {
            OperationKind::Add(element) => self.set.add(cx, element),
            OperationKind::Take(element) => drop(self.set.remove(cx, &element)),
            OperationKind::Clear => self.set.clear(cx),
            OperationKind::Count(by) => self.counter.increment(cx, by).expect("small amounts"),
            OperationKind::Put(key, at) => drop(self.places.put_with(cx, key, number, |_, _| at)),
            OperationKind::Unput(key) => drop(self.places.remove(cx, &key)),
            OperationKind::Vote(key, by) => self.votes.increment(cx, key, by).expect("small amounts"),
            OperationKind::Unvote(key) => drop(self.votes.remove(cx, &key)),
            OperationKind::Tag(key, value) => self.tags.add_binding(cx, key, value),
            OperationKind::Untag(key, value) => drop(self.tags.remove_binding(cx, &key, &value)),
            OperationKind::UntagAll(key) => drop(self.tags.remove(cx, &key)),
        }
    }
}

/// A counter whose every increment is its own digit to the base 4, so that its value tells which increments it has
/// counted, and whether it has counted any of them twice.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The origin of each increment.
    pub(super) ops: Vec<(usize, u32)>,
}

impl Tally {
    /// The most increments.
    pub(super) const MOST: usize = 31;

    /// The amount of the increment with this number.
    pub(super) fn digit(number: usize) -> u64 {
        1 << (2 * number)
    }

    /// The increments counted in a value.
    pub(super) fn counted(&self, value: u128) -> Result<Mask, String> {
        let mut seen = 0;
        for number in 0..64 {
            match (value >> (2 * number)) & 3 {
                0 => {}
                1 if number < self.ops.len() => seen |= 1 << number,
                _ => return Err(format!("{value:#x} of {} increments counts one twice", self.ops.len())),
            }
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_add_wins_over_a_concurrent_removal() {
        let mut book = OperationHistory::default();
        assert_eq!(book.note((0, 0), OperationKind::Add(1), 0), 0);
        assert_eq!(book.note((1, 0), OperationKind::Add(1), 0b1), 1);
        assert_eq!(book.note((0, 0), OperationKind::Take(1), 0b1), 2);
        assert!(book.shown(0b101).elements.is_empty());
        assert!(book.shown(0b111).elements.contains(&1));
        assert!(book.is_in_order(0b101) && !book.is_in_order(0b100));
    }

    /// ddata scenario 80, by the model alone.
    #[test]
    fn votes_continued_concurrently_survive_a_removal() {
        let mut book = OperationHistory::default();
        let (a, b, c) = ((0, 0), (1, 0), (2, 0));
        book.note(a, OperationKind::Vote(7, 1), 0);
        book.note(a, OperationKind::Vote(7, 1), 0b1);
        book.note(a, OperationKind::Unvote(7), 0b11);
        book.note(b, OperationKind::Vote(7, 1), 0b1);
        book.note(a, OperationKind::Vote(7, 1), 0b1111);
        book.note(c, OperationKind::Vote(7, 1), 0b11);
        assert_eq!(book.shown(0b11_1111).votes[&7], 5);
    }

    #[test]
    fn a_digit_reveals_a_double_count() {
        let tally = Tally { ops: vec![(0, 0); 3] };
        assert_eq!(tally.counted(Tally::digit(0).into()), Ok(0b1));
        assert_eq!(tally.counted((Tally::digit(0) + Tally::digit(2)).into()), Ok(0b101));
        assert!(tally.counted((2 * Tally::digit(1)).into()).is_err());
        assert!(tally.counted(Tally::digit(3).into()).is_err());
    }
}
