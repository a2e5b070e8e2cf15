//! Types of the crate `crdts` as replicated types, and the types here under the traits of `crdts`. Source: ddata
//! A7–A10.

#![cfg(feature = "crdts")]

use crdts::{CmRDT, CvRDT, LWWReg, MVReg, Map, Orswot, ResetRemove as _, VClock};
use greylag_crdt::{
    Adapted, AdapterTag, Change, Context, Dot, DotSource, EntryMark, Home, Lineage, MergeError, NoClock, OrSet,
    PNCounter, ReplicaId, ReplicatedData, TypeTag, UpdateCx, WriterKey,
};

type Actor = (ReplicaIdNumber, u64);
type ReplicaIdNumber = u64;

struct Loose;
impl AdapterTag for Loose {
    const TAG: TypeTag = TypeTag::new("test.adapted/1");
}

struct Validated;
impl AdapterTag for Validated {
    const TAG: TypeTag = TypeTag::new("test.validated/1");
    const VALIDATE: bool = true;
}

type Set = Adapted<Orswot<String, Actor>, Loose>;

fn add(set: &mut Set, actor: Actor, word: &str) {
    let op = set.add(word.to_owned(), set.read_ctx().derive_add_ctx(actor));
    set.apply(op);
}

fn joined<T: ReplicatedData>(values: &[&T]) -> T {
    values.iter().fold(T::zero(), |mut joined, value| {
        joined.merge(value).unwrap();
        joined
    })
}

/// Checks that values and digests are equal in any order of arrival, also after encoding and decoding.
fn converge<T: ReplicatedData>(a: &T, b: &T, c: &T) {
    let one = joined(&[a, b, c]);
    for other in [joined(&[c, b, a]), joined(&[b, a, c, b])] {
        assert_eq!((&one, one.digest()), (&other, other.digest()));
    }
    let decoded = T::from_bytes(&one.to_bytes()).unwrap();
    assert_eq!((&decoded, decoded.digest()), (&one, one.digest()));
    assert_ne!(a.digest(), one.digest(), "the values differ");
    for end in 0..one.to_bytes().len() {
        assert!(T::from_bytes(&one.to_bytes()[..end]).is_err());
    }
}

/// ddata A7, A8: hash maps, and vectors in the order of arrival, have the same digest at all replicas.
#[test]
fn adapted_types_converge() {
    let [a, b, c] = [1, 2, 3].map(|n| {
        let mut set = Set::zero();
        (0..20).for_each(|word| add(&mut set, (n, 0), &format!("{n}-{word}")));
        set
    });
    converge(&a, &b, &c);

    let [a, b, c] = [1, 2, 3].map(|n| {
        let mut register = Adapted::<MVReg<String, Actor>, Loose>::zero();
        let op = register.write(format!("by {n}"), register.read_ctx().derive_add_ctx((n, 0)));
        register.apply(op);
        register
    });
    converge(&a, &b, &c);
    assert_eq!(joined(&[&a, &b, &c]).read().val.len(), 3);

    let [a, b, c] = [1, 2, 3].map(|n| {
        let mut map = Adapted::<Map<String, MVReg<u64, Actor>, Actor>, Loose>::zero();
        let context = map.read_ctx().derive_add_ctx((n, 0));
        let op = map.update("key", context, |register, context| register.write(n, context));
        map.apply(op);
        map
    });
    converge(&a, &b, &c);

    let [a, b, c] = [1, 2, 3].map(|n| {
        let mut register = Adapted::<LWWReg<String, u64>, Loose>::zero();
        register.update(format!("by {n}"), n);
        register
    });
    assert_eq!(joined(&[&a, &b, &c]).val, "by 3");
    converge(&a, &b, &c);
}

/// ddata A1, A4: a change of a state-only type is the full state, or nothing.
#[test]
fn adapted_changes() {
    let mut set = Set::zero();
    set.begin_change(Lineage(1));
    assert_eq!(set.take_change(Lineage(1)), Change::None);
    set.begin_change(Lineage(2));
    add(&mut set, (1, 0), "x");
    assert_eq!(set.take_change(Lineage(2)), Change::FullOnly);
}

/// ddata A9: an entry that was created again has another actor, so its numbers are not mistaken for old ones.
/// ddata A9, A3: a refused merge leaves the value unchanged.
#[test]
fn a_new_actor_after_every_creation() {
    let (numbers, writer) = (DotSource::new(), WriterKey::new(*b"a"));
    let actor = |born| {
        let home = Home { entry: EntryMark::of("e"), replica: ReplicaId(1), born };
        let (replica, birth) = UpdateCx::new(&numbers, ReplicaId(1), &writer, 0).for_entry(home, 0, &[]).actor();
        (replica.0, birth)
    };
    let mut first = Set::zero();
    add(&mut first, actor(numbers.last()), "old");
    numbers.draw();
    let mut second = Set::zero();
    add(&mut second, actor(numbers.last()), "new");
    second.merge(&first).unwrap();
    assert!(second.read().val.contains("new") && second.read().val.contains("old"));
}

/// ddata A9, A3: a refused merge leaves the value.
#[test]
fn validation_is_asked_for_where_it_is_wanted() {
    type Strict = Adapted<Orswot<String, Actor>, Validated>;
    let [mut a, b] = ["x", "y"].map(|word| {
        let mut set = Strict::zero();
        let op = set.add(word.to_owned(), set.read_ctx().derive_add_ctx((1, 0)));
        set.apply(op);
        set
    });
    let before = a.clone();
    assert!(matches!(a.merge(&b), Err(MergeError::Invariant(_))), "one dot for two members");
    assert_eq!(a, before);
}

/// ddata A10: types of this crate as `CvRDT`, and as `CmRDT` with deltas as operations.
#[test]
fn ours_behind_their_traits() {
    let numbers = [DotSource::new(), DotSource::new()];
    let writer = WriterKey::new(*b"w");
    let cx = |at: usize| UpdateCx::new(&numbers[at], ReplicaId(at as u64 + 1), &writer, 0);
    let (mut a, mut b) = (OrSet::new(), OrSet::new());
    a.begin_change(Lineage(1));
    a.add(&mut cx(0), 'a');
    let Change::Delta(op) = a.take_change(Lineage(1)) else { panic!("a delta") };
    b.add(&mut cx(1), 'b');
    b.validate_op(&op).unwrap();
    b.apply(op.clone());
    b.apply(op);
    a.validate_merge(&b).unwrap();
    CvRDT::merge(&mut a, b.clone());
    assert_eq!(a, b);

    // `reset_remove` removes everything that the clock has reached, also in copies that arrive late.
    let late = a.clone();
    a.reset_remove(&VClock::from(crdts::Dot::new(ReplicaId(1), 1)));
    CvRDT::merge(&mut a, late);
    assert!(a.iter().eq(&['b']));

    // A type of this crate as the value of a `crdts` map.
    let mut counters = Map::<u8, Counter, Actor>::new();
    let op = counters.update(1_u8, counters.read_ctx().derive_add_ctx((1, 0)), |counter, _| {
        let mut counter = counter.0.clone();
        counter.begin_change(Lineage(1));
        counter.increment(&mut cx(0), 5).unwrap();
        let Change::Delta(delta) = counter.take_change(Lineage(1)) else { panic!("a delta") };
        delta
    });
    counters.apply(op);
    assert_eq!(counters.get(&1).val.unwrap().0.value(), 5);
}

/// A counter that can be the value of a `crdts` map.
#[derive(Debug, Clone, Default, PartialEq)]
struct Counter(PNCounter);

impl crdts::ResetRemove<Actor> for Counter {
    fn reset_remove(&mut self, _: &VClock<Actor>) {}
}

impl CmRDT for Counter {
    type Op = <PNCounter as CmRDT>::Op;
    type Validation = MergeError;

    fn validate_op(&self, op: &Self::Op) -> Result<(), MergeError> {
        self.0.validate_op(op)
    }

    fn apply(&mut self, op: Self::Op) {
        self.0.apply(op);
    }
}

/// ddata A10: a context is a clock only if it has no gaps.
#[test]
fn contexts_and_clocks() {
    let mut context = Context::new();
    context.insert_range(ReplicaId(1), 1, 4);
    context.insert_range(ReplicaId(2), 1, 9);
    let clock = VClock::try_from(&context).unwrap();
    assert_eq!((clock.get(&ReplicaId(1)), Context::from(&clock)), (4, context.clone()));
    context.insert(Dot::new(ReplicaId(2), 11));
    assert_eq!(VClock::try_from(&context), Err(NoClock(ReplicaId(2))));
}
