//! One replica of one entry, without a replicator around it.

use std::cell::Cell;

use greylag_crdt::{
    Change, DotSource, EntryMark, Home, Lineage, Markers, Performed, Range, ReplicaId, ReplicatedData, UpdateCx,
    WriterKey,
};

/// A process with its numbers.
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) numbers: DotSource,
    pub(crate) writer: WriterKey,
    pub(crate) wall_ms: i64,
    pub(crate) start_floor: u64,
    /// Own numbers reserved for renaming.
    pub(crate) reserved: Vec<(u64, u64)>,
    /// The birth of the entry here.
    born: Cell<u64>,
}

impl Node {
    pub(crate) fn new(id: u64) -> Self {
        let numbers = DotSource::new();
        Self {
            id,
            numbers,
            writer: WriterKey::new([id as u8]),
            wall_ms: 1_000,
            start_floor: 0,
            reserved: vec![],
            born: Cell::new(0),
        }
    }

    pub(crate) fn replica(&self) -> ReplicaId {
        ReplicaId(self.id)
    }

    pub(crate) fn home(&self) -> Home {
        Home { entry: EntryMark::of("entry"), replica: self.replica(), born: self.born.get() }
    }

    /// The zero of an entry that has just come into being here.
    pub(crate) fn zero<T: ReplicatedData>(&self) -> T {
        self.born.set(self.numbers.last());
        let mut zero = T::zero();
        zero.bind(self.home());
        zero
    }

    /// This node's copy of a value that some other node has.
    pub(crate) fn copy<T: ReplicatedData>(&self, value: &T) -> T {
        let mut copy: T = self.zero();
        copy.merge(&T::from_bytes(&value.to_bytes()).unwrap()).unwrap();
        copy
    }

    /// Changes a value.
    pub(crate) fn try_change<T: ReplicatedData>(
        &self,
        value: &mut T,
        change: impl FnOnce(&mut T, &mut UpdateCx<'_>),
    ) -> Change<T::Delta> {
        let lineage = Lineage(self.numbers.draw());
        value.begin_change(lineage);
        let cx = UpdateCx::new(&self.numbers, self.replica(), &self.writer, self.wall_ms);
        change(value, &mut cx.for_entry(self.home(), self.start_floor, &self.reserved));
        value.take_change(lineage)
    }

    /// Changes a value and returns the delta.
    pub(crate) fn change<T: ReplicatedData>(
        &self,
        value: &mut T,
        change: impl FnOnce(&mut T, &mut UpdateCx<'_>),
    ) -> T::Delta {
        match self.try_change(value, change) {
            Change::Delta(delta) => delta,
            other => panic!("a delta, not {other:?}"),
        }
    }

    /// Reserves a range for the numbers of a removed replica in a value.
    pub(crate) fn reserve<T: ReplicatedData>(&mut self, value: &T, removed: &Self) -> Vec<Range> {
        let numbers = value.pruning().and_then(|pruning| pruning.numbers_of(removed.replica()));
        let range = numbers.map(|(low, high)| Range::reserve(&self.numbers, low, high).unwrap());
        self.reserved.extend(range.iter().map(Range::reserved));
        range.into_iter().collect()
    }

    /// Performs a removed replica on a value, with reserved ranges.
    pub(crate) fn perform<T: ReplicatedData>(&self, held: &mut Held<T>, removed: &Self, ranges: &[Range]) {
        let (removed, owner) = (removed.replica(), self.replica());
        let mut marker = held.markers.get(removed, owner).cloned().unwrap_or(Performed::new(removed, owner));
        held.value.pruning_mut().unwrap().prune(removed, ranges, self.born.get(), &mut marker);
        held.markers.add(&marker);
        held.clean();
    }

    pub(crate) fn reserve_and_perform<T: ReplicatedData>(&mut self, held: &mut Held<T>, removed: &Self) {
        let ranges = self.reserve(&held.value, removed);
        self.perform(held, removed, &ranges);
    }
}

/// A value with the markers of its envelope.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held<T> {
    pub(crate) value: T,
    pub(crate) markers: Markers,
}

impl<T: ReplicatedData> Held<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value, markers: Markers::new() }
    }

    pub(crate) fn clean(&mut self) {
        self.markers.clean(self.value.pruning_mut().unwrap());
    }

    /// Receives a full state as a replicator does (ddata Z7).
    pub(crate) fn receive(&mut self, other: &Self) {
        let mut theirs = Self { value: T::from_bytes(&other.value.to_bytes()).unwrap(), markers: self.markers.clone() };
        theirs.markers.unite(&other.markers);
        self.markers = theirs.markers.clone();
        self.clean();
        theirs.clean();
        self.value.merge(&theirs.value).unwrap();
    }

    /// Receives a delta that was sent with `markers`, as a replicator does. Returns whether it could be joined.
    pub(crate) fn receive_delta(&mut self, delta: &T::Delta, markers: &Markers) -> bool {
        let knows_all = self.markers.includes(markers);
        if knows_all {
            let mut delta = delta.clone();
            self.markers.clean_delta::<T>(&mut delta);
            self.value.merge_delta(&delta).unwrap();
        }
        knows_all
    }
}

/// The join of two values; checks that both ways give the same.
pub(crate) fn merged<T: ReplicatedData>(a: &T, b: &T) -> T {
    let (mut left, mut right) = (a.clone(), b.clone());
    left.merge(b).unwrap();
    right.merge(a).unwrap();
    assert_eq!(left, right, "both ways");
    assert_eq!((left.to_bytes(), left.digest()), (right.to_bytes(), right.digest()));
    left
}

/// A value with deltas joined in.
pub(crate) fn with_deltas<'a, T: ReplicatedData>(value: &T, deltas: impl IntoIterator<Item = &'a T::Delta>) -> T {
    let mut value = value.clone();
    deltas.into_iter().for_each(|delta| _ = value.merge_delta(delta).unwrap());
    value
}
