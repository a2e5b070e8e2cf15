//! The laws of ddata §1 over random histories of several replicas: states and deltas travel in any
//! order, any number of times, in any grouping, and what is visible always equals a naive model that
//! knows nothing of dots and contexts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use greylag_crdt::{
    Change, DotSource, EntryMark, GCounter, Home, Lineage, LwwMap, LwwRegister, OrSet, PNCounter, ReplicaId,
    ReplicatedData, UpdateCx, WriterKey,
};
use proptest::prelude::*;

const REPLICAS: usize = 3;
const ENTRY: &str = "entry";

/// An operation, as far as chance decides it; each type makes of it what it can do.
#[derive(Debug, Clone, Copy)]
struct Op {
    kind: u8,
    key: u8,
    amount: i8,
}

/// An operation that was done: what it wrote, and which writes it superseded.
#[derive(Debug, Clone)]
struct Done {
    id: usize,
    replica: usize,
    op: Op,
    /// By key, the rank that decides ties, and the value.
    writes: BTreeMap<u8, (Rank, i8)>,
    /// Writes by operation and key.
    supersedes: BTreeSet<(usize, u8)>,
}

/// Timestamp, then smaller writer, then later operation.
type Rank = (i64, Reverse<usize>, usize);

/// The writes that nothing seen superseded.
fn live<'a>(seen: &[&'a Done]) -> Vec<(usize, u8, &'a (Rank, i8))> {
    let superseded: BTreeSet<(usize, u8)> = seen.iter().flat_map(|done| done.supersedes.iter().copied()).collect();
    let writes = seen.iter().flat_map(|done| done.writes.iter().map(|(key, write)| (done.id, *key, write)));
    writes.filter(|(id, key, _)| !superseded.contains(&(*id, *key))).collect()
}

/// A type under test.
trait Subject: ReplicatedData {
    type View: PartialEq + Debug;
    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op);
    fn view(&self) -> Self::View;
    /// What the operation writes and supersedes where `seen` is all that is known.
    fn plan(seen: &[&Done], done: &mut Done);
    fn model(seen: &[&Done]) -> Self::View;
}

impl Subject for OrSet<u8> {
    type View = BTreeSet<u8>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind % 6 {
            0..=2 => self.add(cx, op.key),
            3 => drop(self.remove(cx, &op.key)),
            4 => self.add_all(cx, [op.key, op.key + 1]),
            _ => self.clear(cx),
        }
    }

    fn view(&self) -> BTreeSet<u8> {
        self.iter().copied().collect()
    }

    fn plan(seen: &[&Done], done: &mut Done) {
        let rank = (0, Reverse(0), done.id);
        let op = done.op;
        let (adds, touches): (Vec<u8>, Vec<u8>) = match op.kind % 6 {
            0..=2 => (vec![op.key], vec![op.key]),
            3 => (vec![], vec![op.key]),
            4 => (vec![op.key, op.key + 1], vec![op.key, op.key + 1]),
            _ => (vec![], (0..=u8::MAX).collect()),
        };
        done.writes = adds.into_iter().map(|key| (key, (rank, 0))).collect();
        let superseded = live(seen).into_iter().filter(|(_, key, _)| touches.contains(key));
        done.supersedes = superseded.map(|(id, key, _)| (id, key)).collect();
    }

    fn model(seen: &[&Done]) -> BTreeSet<u8> {
        live(seen).into_iter().map(|(_, key, _)| key).collect()
    }
}

fn winner(seen: &[&Done], key: u8) -> Option<(Rank, i8)> {
    live(seen).into_iter().filter(|(_, k, _)| *k == key).map(|(_, _, write)| *write).max()
}

impl Subject for LwwMap<u8, i8> {
    type View = BTreeMap<u8, i8>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind % 4 {
            0 => self.put(cx, op.key, op.amount).unwrap(),
            1 | 2 => drop(self.put_with(cx, op.key, op.amount, |_, v| (*v).into())),
            _ => drop(self.remove(cx, &op.key)),
        }
    }

    fn view(&self) -> BTreeMap<u8, i8> {
        self.iter().map(|(key, value)| (*key, *value)).collect()
    }

    fn plan(seen: &[&Done], done: &mut Done) {
        let (op, observed) = (done.op, winner(seen, done.op.key));
        let timestamp = match op.kind % 4 {
            0 => Some((observed.map_or(0, |(rank, _)| rank.0) + 1).max(0)),
            1 | 2 => Some(op.amount.into()),
            _ => None,
        };
        if let Some(timestamp) = timestamp {
            let write = ((timestamp, Reverse(done.replica), done.id), op.amount);
            done.writes.insert(op.key, observed.map_or(write, |observed| observed.max(write)));
        }
        let superseded = live(seen).into_iter().filter(|(_, key, _)| *key == op.key);
        done.supersedes = superseded.map(|(id, key, _)| (id, key)).collect();
    }

    fn model(seen: &[&Done]) -> BTreeMap<u8, i8> {
        let keys: BTreeSet<u8> = live(seen).into_iter().map(|(_, key, _)| key).collect();
        keys.into_iter().filter_map(|key| winner(seen, key).map(|(_, value)| (key, value))).collect()
    }
}

impl Subject for LwwRegister<i8> {
    type View = Option<i8>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        self.set_with(cx, op.amount, |_, _| (op.kind % 4).into());
    }

    fn view(&self) -> Option<i8> {
        self.value().copied()
    }

    fn plan(_: &[&Done], done: &mut Done) {
        let rank = ((done.op.kind % 4).into(), Reverse(done.replica), done.id);
        done.writes.insert(0, (rank, done.op.amount));
    }

    fn model(seen: &[&Done]) -> Option<i8> {
        winner(seen, 0).map(|(_, value)| value)
    }
}

macro_rules! counter {
    ($type:ty, $apply:expr, $value:ty) => {
        impl Subject for $type {
            type View = $value;

            fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
                $apply(self, cx, op);
            }

            fn view(&self) -> $value {
                self.value()
            }

            fn plan(_: &[&Done], _: &mut Done) {}

            fn model(seen: &[&Done]) -> $value {
                // Operations of one replica are seen in order, or implied by a later one.
                let mut sum: $value = 0;
                for replica in 0..REPLICAS {
                    let own = seen.iter().filter(|done| done.replica == replica);
                    let mut scratch = <$type>::new();
                    let (source, writer) = (DotSource::new(), WriterKey::new(*b"model"));
                    let mut cx = UpdateCx::new(&source, ReplicaId(1), &writer, 0);
                    own.for_each(|done| scratch.apply(&mut cx, done.op));
                    sum += scratch.value();
                }
                sum
            }
        }
    };
}
counter!(
    GCounter,
    |counter: &mut GCounter, cx: &mut UpdateCx<'_>, op: Op| counter.increment(cx, op.key.into()).unwrap(),
    u128
);
counter!(
    PNCounter,
    |counter: &mut PNCounter, cx: &mut UpdateCx<'_>, op: Op| counter.increment(cx, op.amount.into()).unwrap(),
    i128
);

/// Something that happens.
#[derive(Debug, Clone)]
enum Step {
    Do(usize, Op),
    /// A full state travels.
    State(usize, usize),
    /// Some of the deltas made so far travel to one replica: chosen by the bits, as one group or one
    /// by one, newest first or oldest first.
    Deltas {
        to: usize,
        bits: u64,
        grouped: bool,
        newest_first: bool,
    },
    /// Numbers are drawn for another entry.
    Gap(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let op = (any::<u8>(), 0..4_u8, -4..4_i8).prop_map(|(kind, key, amount)| Op { kind, key, amount });
    let step = prop_oneof![
        4 => (0..REPLICAS, op).prop_map(|(at, op)| Step::Do(at, op)),
        2 => (0..REPLICAS, 0..REPLICAS).prop_map(|(from, to)| Step::State(from, to)),
        2 => (0..REPLICAS, any::<u64>(), any::<bool>(), any::<bool>())
            .prop_map(|(to, bits, grouped, newest_first)| Step::Deltas { to, bits, grouped, newest_first }),
        1 => (0..REPLICAS).prop_map(Step::Gap),
    ];
    prop::collection::vec(step, 1..40)
}

/// A slot's delta is its new total, so it implies earlier operations of its replica.
#[derive(Clone, Copy)]
enum Implied {
    Nothing,
    All,
    SameSign,
}

fn home(replica: u64) -> Home {
    Home { entry: EntryMark::of(ENTRY), replica: ReplicaId(replica), born: 0 }
}

fn bound<T: ReplicatedData>(replica: u64) -> T {
    let mut zero = T::zero();
    zero.bind(home(replica));
    zero
}

struct World<T: Subject> {
    values: Vec<T>,
    seen: Vec<BTreeSet<usize>>,
    done: Vec<Done>,
    deltas: Vec<(usize, T::Delta)>,
    sources: Vec<DotSource>,
    writers: Vec<WriterKey>,
    implied: Implied,
}

impl<T: Subject> World<T> {
    fn new(implied: Implied) -> Self {
        Self {
            values: (0..REPLICAS).map(|at| bound(at as u64 + 1)).collect(),
            seen: vec![BTreeSet::new(); REPLICAS],
            done: Vec::new(),
            deltas: Vec::new(),
            sources: (0..REPLICAS).map(|_| DotSource::new()).collect(),
            writers: (0..REPLICAS as u8).map(|index| WriterKey::new([index])).collect(),
            implied,
        }
    }

    fn known(&self, at: usize) -> Vec<&Done> {
        self.seen[at].iter().map(|id| &self.done[*id]).collect()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Gap(at) => drop(self.sources[*at].draw()),
            Step::Do(at, op) => self.operate(*at, *op),
            Step::State(from, to) => {
                let other = T::from_bytes(&self.values[*from].to_bytes()).unwrap();
                assert_eq!(other, self.values[*from], "L6: decoding undoes encoding");
                self.merge_state(*to, &other);
                let more = self.seen[*from].clone();
                self.seen[*to].extend(more);
            }
            Step::Deltas { to, bits, grouped, newest_first } => {
                let chosen = (0..self.deltas.len()).filter(|index| bits & (1 << (index % 64)) != 0);
                let mut chosen: Vec<usize> = chosen.collect();
                if *newest_first {
                    chosen.reverse();
                }
                let mut group: Option<T::Delta> = None;
                for index in chosen {
                    let (id, delta) = self.deltas[index].clone();
                    let delta = T::delta_from_bytes(&T::delta_to_bytes(&delta)).unwrap();
                    self.learn(*to, id);
                    match &mut group {
                        Some(group) if *grouped => T::join_deltas(group, &delta),
                        _ if *grouped => group = Some(delta),
                        _ => drop(self.values[*to].merge_delta(&delta).unwrap()),
                    }
                }
                if let Some(group) = group {
                    self.values[*to].merge_delta(&group).unwrap();
                }
            }
        }
    }

    fn learn(&mut self, at: usize, id: usize) {
        self.seen[at].insert(id);
        let Done { replica, op, .. } = self.done[id];
        let earlier = self.done[..id].iter().filter(|done| done.replica == replica);
        let implied = earlier.filter(|done| match self.implied {
            Implied::Nothing => false,
            Implied::All => true,
            Implied::SameSign => (done.op.amount < 0) == (op.amount < 0),
        });
        self.seen[at].extend(implied.map(|done| done.id));
    }

    fn operate(&mut self, at: usize, op: Op) {
        let id = self.done.len();
        let mut done = Done { id, replica: at, op, writes: BTreeMap::new(), supersedes: BTreeSet::new() };
        T::plan(&self.known(at), &mut done);
        self.done.push(done);
        self.seen[at].insert(id);
        let base = self.values[at].clone();
        let value = &mut self.values[at];
        value.begin_change(Lineage(id as u64));
        let mut cx = UpdateCx::new(&self.sources[at], ReplicaId(at as u64 + 1), &self.writers[at], 0);
        cx = cx.for_entry(home(at as u64 + 1), 0, &[]);
        value.apply(&mut cx, op);
        match value.take_change(Lineage(id as u64)) {
            Change::None => assert_eq!(*value, base, "L8: no delta, no change"),
            Change::FullOnly => panic!("the operation kept the lineage"),
            Change::Delta(delta) => {
                let mut again = base.clone();
                assert!(again.merge_delta(&delta).unwrap().grew(), "L8: a delta says something");
                assert_eq!(again, *value, "L3: the changed value is the old one joined with the delta");
                self.deltas.push((id, delta));
            }
        }
    }

    fn merge_state(&mut self, to: usize, other: &T) {
        let own = self.values[to].clone();
        let grew = self.values[to].merge(other).unwrap();
        assert_eq!(grew.grew(), self.values[to] != own, "a merge says whether it changed anything");
        let mut reverse = other.clone();
        reverse.merge(&own).unwrap();
        assert_eq!(reverse, self.values[to], "L1: commutative");
        let mut again = self.values[to].clone();
        assert!(!again.merge(other).unwrap().grew(), "L1, L2: idempotent and inflationary");
        assert!(!again.merge(&own).unwrap().grew(), "L2: inflationary");
    }

    fn check(&self) {
        for (at, value) in self.values.iter().enumerate() {
            assert_eq!(value.view(), T::model(&self.known(at)), "L7: visible content of replica {at}");
            let decoded = T::from_bytes(&value.to_bytes()).unwrap();
            assert_eq!(decoded.digest(), value.digest(), "L6: the kept digest is the digest");
            for other in &self.values {
                assert_eq!(value == other, value.to_bytes() == other.to_bytes(), "L6: equal if bytes are");
                assert_eq!(value == other, value.digest() == other.digest(), "L6: equal if digests are");
            }
        }
    }

    /// All deltas in one order and grouping, all in another, and all states: the same.
    fn finish(&self, split: usize) {
        let mut states = T::zero();
        self.values.iter().for_each(|value| assert!(states.merge(value).is_ok()));
        let mut forward = T::zero();
        self.deltas.iter().for_each(|(_, delta)| assert!(forward.merge_delta(delta).is_ok()));
        assert_eq!(forward, states, "L4: all deltas are all states");
        let mut backward = T::zero();
        for (_, delta) in self.deltas.iter().rev().chain(&self.deltas) {
            backward.merge_delta(delta).unwrap();
        }
        assert_eq!(backward, states, "L4: in reverse, and twice");
        if self.deltas.is_empty() {
            return;
        }
        let split = split % self.deltas.len();
        let join = |deltas: &[(usize, T::Delta)]| {
            let mut joined: Option<T::Delta> = None;
            for (_, delta) in deltas {
                match &mut joined {
                    Some(joined) => T::join_deltas(joined, delta),
                    None => joined = Some(delta.clone()),
                }
            }
            joined
        };
        let whole = join(&self.deltas).unwrap();
        if let (Some(mut left), Some(right)) = (join(&self.deltas[..split]), join(&self.deltas[split..])) {
            T::join_deltas(&mut left, &right);
            assert_eq!(left, whole, "L5: grouping is associative");
        }
        let mut grouped = T::zero();
        grouped.merge_delta(&whole).unwrap();
        assert_eq!(grouped, states, "L4: as one group");
        let [a, b, c] = [&self.values[0], &self.values[1], &self.values[2]];
        let (mut left, mut right, mut bc) = (a.clone(), a.clone(), b.clone());
        left.merge(b).unwrap();
        left.merge(c).unwrap();
        bc.merge(c).unwrap();
        right.merge(&bc).unwrap();
        assert_eq!(left, right, "L1: associative");
    }
}

fn run<T: Subject>(steps: &[Step], split: usize, implied: Implied) {
    let mut world = World::<T>::new(implied);
    for step in steps {
        let snapshots: Vec<(T, Vec<u8>)> = world.values.iter().map(|value| (value.clone(), value.to_bytes())).collect();
        world.step(step);
        world.check();
        for (snapshot, bytes) in snapshots {
            assert_eq!(snapshot.to_bytes(), bytes, "L11: a clone is independent");
        }
    }
    world.finish(split);
}

/// Damaged bytes are refused or read; whatever is read can be merged, both ways, without a panic.
fn damage<T: Subject>(steps: &[Step], at: usize, byte: u8) {
    let mut world = World::<T>::new(Implied::Nothing);
    steps.iter().for_each(|step| world.step(step));
    let mut bytes = world.values[0].to_bytes();
    for end in 0..bytes.len() {
        assert!(T::from_bytes(&bytes[..end]).is_err(), "a truncation is refused");
    }
    let at = at % bytes.len();
    bytes[at] = byte;
    if let Ok(damaged) = T::from_bytes(&bytes) {
        assert_eq!(damaged.to_bytes(), bytes, "only canonical bytes are read");
        let (mut left, mut right) = (world.values[1].clone(), damaged.clone());
        drop((left.merge(&damaged), right.merge(&world.values[1])));
    }
    if let Some((_, delta)) = world.deltas.last() {
        let mut bytes = T::delta_to_bytes(delta);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(damaged) = T::delta_from_bytes(&bytes) {
            drop(world.values[2].merge_delta(&damaged));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn orset(steps in steps(), split: usize) { run::<OrSet<u8>>(&steps, split, Implied::Nothing); }

    #[test]
    fn lww_map(steps in steps(), split: usize) { run::<LwwMap<u8, i8>>(&steps, split, Implied::Nothing); }

    #[test]
    fn lww_register(steps in steps(), split: usize) { run::<LwwRegister<i8>>(&steps, split, Implied::Nothing); }

    #[test]
    fn gcounter(steps in steps(), split: usize) { run::<GCounter>(&steps, split, Implied::All); }

    #[test]
    fn pncounter(steps in steps(), split: usize) { run::<PNCounter>(&steps, split, Implied::SameSign); }

    #[test]
    fn damaged_bytes_never_panic(steps in steps(), at: usize, byte: u8) {
        damage::<OrSet<u8>>(&steps, at, byte);
        damage::<LwwMap<u8, i8>>(&steps, at, byte);
        damage::<LwwRegister<i8>>(&steps, at, byte);
        damage::<PNCounter>(&steps, at, byte);
    }
}

/// L12: what one element costs does not depend on how many there are.
#[test]
fn the_delta_of_one_element_is_small_whatever_the_set() {
    let (source, writer) = (DotSource::new(), WriterKey::new(*b"a"));
    let mut sizes = Vec::new();
    let mut set: OrSet<u64> = bound(1);
    for count in [10, 1_000, 10_000] {
        let mut cx = UpdateCx::new(&source, ReplicaId(1), &writer, 0).for_entry(home(1), 0, &[]);
        set.add_all(&mut cx, 0..count);
        // Numbers of the same length, so that only the set's size differs.
        while source.last() < 1 << 20 {
            source.draw();
        }
        set.begin_change(Lineage(count));
        set.add(&mut cx, 99_999);
        let Change::Delta(delta) = set.take_change(Lineage(count)) else { panic!("a delta") };
        sizes.push(OrSet::<u64>::delta_to_bytes(&delta).len());
    }
    assert_eq!(sizes[1], sizes[2]);
    assert!(sizes.iter().all(|size| *size <= 64), "{sizes:?}");
}
