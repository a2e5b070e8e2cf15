//! The two sides of the comparison: how each makes, copies, updates and merges a value.

use std::hint::black_box;
use std::marker::PhantomData;

use crdts::{CmRDT, CvRDT};
use greylag_crdt::{DotSource, EntryMark, Home, Lineage, ReplicaId, ReplicatedData, UpdateCx, WriterKey};

/// The time at which all writes happen.
pub(crate) const WALL_MS: i64 = 1_000;

/// What is measured of both sides. Writers are numbered from 0.
pub(crate) trait Side {
    type Value;

    /// How many replicas write; the numbers go round them in turn.
    fn writers(&self) -> u64;
    /// How many numbers are written.
    fn size(&self) -> u64;
    /// A value that a writer has not written to yet.
    fn zero(&self, writer: u64) -> Self::Value;
    /// A copy that shares nothing with the value.
    fn copy(&self, value: &Self::Value) -> Self::Value;
    /// A copy that writer 0 has updated once: the first update of a decoded value claims more numbers than later ones.
    fn ready(&self, value: &Self::Value) -> Self::Value {
        let mut copy = self.copy(value);
        self.write(&mut copy, 0, [0].into_iter());
        copy
    }
    /// Writes numbers, in place.
    fn write(&self, value: &mut Self::Value, writer: u64, numbers: impl Iterator<Item = u64>);
    /// Writes numbers, each on a clone that then replaces the value, and makes the delta for other replicas.
    fn write_kept(&self, value: &mut Self::Value, writer: u64, numbers: impl Iterator<Item = u64>);
    /// Joins the value of another replica; a merge that consumes its argument takes `other`.
    fn merge(&self, into: &mut Self::Value, other: &mut Option<Self::Value>);
}

/// A type of `greylag-crdt`.
pub(crate) struct GreylagSide<T, W> {
    writers: u64,
    size: u64,
    processes: Vec<Process>,
    write: W,
    of: PhantomData<T>,
}

pub(crate) struct Process {
    replica: ReplicaId,
    numbers: DotSource,
    writer: WriterKey,
    home: Home,
}

/// How a type of `greylag-crdt` is updated.
pub(crate) trait Update<T> {
    /// The second argument of every update.
    type With<'a>;

    fn with(process: &Process) -> Self::With<'_>;
    fn update(&self, value: &mut T, with: &mut Self::With<'_>, number: u64);
}

/// Updates that take an [`UpdateCx`], as of nearly all types.
pub(crate) struct InContext<F>(F);

impl<T, F: Fn(&mut T, &mut UpdateCx<'_>, u64)> Update<T> for InContext<F> {
    type With<'a> = UpdateCx<'a>;

    fn with(process: &Process) -> UpdateCx<'_> {
        let Process { replica, numbers, writer, home } = process;
        UpdateCx::new(numbers, *replica, writer, WALL_MS).for_entry(*home, 0, &[])
    }

    fn update(&self, value: &mut T, with: &mut UpdateCx<'_>, number: u64) {
        (self.0)(value, with, number);
    }
}

/// Updates that take no context.
pub(crate) struct Alone<F>(F);

impl<T, F: Fn(&mut T, u64)> Update<T> for Alone<F> {
    type With<'a> = ();

    fn with(_: &Process) {}

    fn update(&self, value: &mut T, (): &mut (), number: u64) {
        (self.0)(value, number);
    }
}

pub(crate) fn writer_key(id: u64) -> WriterKey {
    WriterKey::new(format!("10.0.0.{id}").into_bytes())
}

impl<T, F: Fn(&mut T, &mut UpdateCx<'_>, u64)> GreylagSide<T, InContext<F>> {
    pub(crate) fn new(writers: u64, size: u64, write: F) -> Self {
        Self::of(writers, size, InContext(write))
    }
}

impl<T, F: Fn(&mut T, u64)> GreylagSide<T, Alone<F>> {
    pub(crate) fn alone(writers: u64, size: u64, write: F) -> Self {
        Self::of(writers, size, Alone(write))
    }
}

impl<T, W: Update<T>> GreylagSide<T, W> {
    fn of(writers: u64, size: u64, write: W) -> Self {
        let process = |id| {
            let home = Home { entry: EntryMark::of("bench"), replica: ReplicaId(id), born: 0 };
            Process { replica: ReplicaId(id), numbers: DotSource::new(), writer: writer_key(id), home }
        };
        Self { writers, size, processes: (1..=writers).map(process).collect(), write, of: PhantomData }
    }

    fn with(&self, writer: u64) -> W::With<'_> {
        W::with(&self.processes[writer as usize])
    }
}

impl<T: ReplicatedData, W: Update<T>> Side for GreylagSide<T, W> {
    type Value = T;

    fn writers(&self) -> u64 {
        self.writers
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn zero(&self, writer: u64) -> T {
        let mut zero = T::zero();
        zero.bind(self.processes[writer as usize].home);
        zero
    }

    /// Copies through bytes, as a value from another replica would come.
    fn copy(&self, value: &T) -> T {
        let mut copy = T::from_bytes(&value.to_bytes()).expect("it decodes");
        copy.bind(self.processes[0].home);
        copy
    }

    fn write(&self, value: &mut T, writer: u64, numbers: impl Iterator<Item = u64>) {
        let mut with = self.with(writer);
        numbers.for_each(|number| self.write.update(value, &mut with, number));
    }

    fn write_kept(&self, value: &mut T, writer: u64, numbers: impl Iterator<Item = u64>) {
        let mut with = self.with(writer);
        for number in numbers {
            let mut changed = value.clone();
            changed.begin_change(Lineage(number));
            self.write.update(&mut changed, &mut with, number);
            black_box(changed.take_change(Lineage(number)));
            *value = changed;
        }
    }

    fn merge(&self, into: &mut T, other: &mut Option<T>) {
        let other = other.as_ref().expect("something came");
        black_box(into.merge(other)).expect("it joins");
    }
}

/// A type of the crate `crdts`.
pub(crate) struct CrdtsSide<Z, O> {
    writers: u64,
    size: u64,
    zero: Z,
    operation: O,
}

impl<T: CmRDT, Z: Fn() -> T, O: Fn(&T, u64, u64) -> T::Op> CrdtsSide<Z, O> {
    /// `operation` makes an operation of a value, the actor and a number.
    pub(crate) fn new(writers: u64, size: u64, zero: Z, operation: O) -> Self {
        Self { writers, size, zero, operation }
    }
}

impl<T, Z: Fn() -> T, O: Fn(&T, u64, u64) -> T::Op> Side for CrdtsSide<Z, O>
where
    T: CvRDT + CmRDT<Op: Clone> + Clone,
{
    type Value = T;

    fn writers(&self) -> u64 {
        self.writers
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn zero(&self, _: u64) -> T {
        (self.zero)()
    }

    fn copy(&self, value: &T) -> T {
        value.clone()
    }

    fn write(&self, value: &mut T, writer: u64, numbers: impl Iterator<Item = u64>) {
        numbers.for_each(|number| value.apply((self.operation)(value, writer + 1, number)));
    }

    fn write_kept(&self, value: &mut T, writer: u64, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            let mut changed = value.clone();
            let operation = (self.operation)(&changed, writer + 1, number);
            changed.apply(operation.clone());
            black_box(operation);
            *value = changed;
        }
    }

    fn merge(&self, into: &mut T, other: &mut Option<T>) {
        into.merge(other.take().expect("something came"));
    }
}
