//! Models of the types with dots.

use std::collections::{BTreeMap, BTreeSet};

use greylag_crdt::{
    CounterStore, FlagStore, GCounter, GSet, LwwMap, LwwStore, MvRegister, OrMap, OrMapStore, OrMultiMap, OrSet,
    OrSetStore, Plain, PnCounterMap, UpdateCx,
};

use crate::model::{Live, Model, Path, Place, Plan};
use crate::plain_types::{Cell, cell, winner};
use crate::step::Op;

fn keys<W>(live: &[Live<'_, W>]) -> BTreeSet<u8> {
    live.iter().map(|live| live.path.0).collect()
}

impl Model for OrSet<u8> {
    type Write = ();
    type View = BTreeSet<u8>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind % 8 {
            0..=3 => self.add(cx, op.key),
            4 | 5 => _ = self.remove(cx, &op.key),
            6 => self.add_all(cx, [op.key, op.key + 1]),
            _ => self.clear(cx),
        }
    }

    fn view(&self) -> BTreeSet<u8> {
        self.iter().copied().collect()
    }

    fn plan(op: Op, place: &Place<'_, ()>) -> Plan<()> {
        let next = op.key + 1;
        match op.kind % 8 {
            0..=3 => Plan::one((op.key, 0), (), place.under(op.key)),
            4 | 5 => Plan::remove(place.under(op.key)),
            6 => {
                let both = place.all(|path| path.0 == op.key || path.0 == next);
                Plan::write(vec![((op.key, 0), ()), ((next, 0), ())], both)
            }
            _ => Plan::remove(place.all(|_| true)),
        }
    }

    fn model(live: &[Live<'_, ()>]) -> BTreeSet<u8> {
        keys(live)
    }
}

impl Model for MvRegister<i8> {
    type Write = i8;
    type View = BTreeSet<i8>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        self.set(cx, op.amount);
    }

    fn view(&self) -> BTreeSet<i8> {
        self.values().copied().collect()
    }

    fn plan(op: Op, place: &Place<'_, i8>) -> Plan<i8> {
        Plan::one((0, 0), op.amount, place.all(|_| true))
    }

    fn model(live: &[Live<'_, i8>]) -> BTreeSet<i8> {
        live.iter().map(|live| *live.write).collect()
    }
}

impl Model for LwwMap<u8, i8> {
    type Write = Cell;
    type View = BTreeMap<u8, i8>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind {
            0..64 => _ = self.remove(cx, &op.key),
            _ if op.kind.is_multiple_of(3) => self.put(cx, op.key, op.amount).unwrap(),
            _ if op.kind % 3 == 1 => _ = self.put_first(cx, op.key, op.amount).unwrap(),
            _ => _ = self.put_with(cx, op.key, op.amount, |_, value| i64::from(*value)),
        }
    }

    fn view(&self) -> BTreeMap<u8, i8> {
        self.iter().map(|(key, value)| (*key, *value)).collect()
    }

    fn plan(op: Op, place: &Place<'_, Cell>) -> Plan<Cell> {
        if op.kind < 64 {
            return Plan::remove(place.under(op.key));
        }
        let observed = winner(place.live, |path| path.0 == op.key);
        let new = cell(op, place, observed);
        Plan::one((op.key, 0), observed.map_or(new, |observed| observed.max(new)), place.under(op.key))
    }

    fn model(live: &[Live<'_, Cell>]) -> BTreeMap<u8, i8> {
        keys(live).into_iter().filter_map(|key| Some((key, winner(live, |path| path.0 == key)?.3))).collect()
    }
}

/// Keys, each with the keys of its inner map.
type Nested = BTreeMap<u8, BTreeSet<u8>>;

fn nested(live: &[Live<'_, ()>]) -> Nested {
    let mut nested = Nested::new();
    live.iter().for_each(|live| _ = nested.entry(live.path.0).or_default().insert(live.path.1));
    nested
}

fn other(op: Op) -> u8 {
    (op.inner + 1) % 3
}

fn plan_sets(op: Op, place: &Place<'_, ()>) -> Plan<()> {
    let (one, two) = ((op.key, op.inner), (op.key, other(op)));
    match op.kind % 10 {
        0..=3 => Plan::one(one, (), place.all(|path| path == one)),
        4 | 5 => Plan::remove(place.all(|path| path == one)),
        6 => Plan::remove(place.under(op.key)),
        7 => Plan::write(vec![(one, ()), (two, ())], place.under(op.key)),
        8 => Plan::one(two, (), place.all(|path| path == one || path == two)),
        _ => Plan::remove(place.all(|_| true)),
    }
}

/// The view and the model of maps from keys to sets.
macro_rules! sets_by_key {
    () => {
        fn view(&self) -> Nested {
            self.iter().map(|(key, values)| (*key, values.iter().copied().collect())).collect()
        }

        fn plan(op: Op, place: &Place<'_, ()>) -> Plan<()> {
            plan_sets(op, place)
        }

        fn model(live: &[Live<'_, ()>]) -> Nested {
            nested(live)
        }
    };
}

impl Model for OrMultiMap<u8, u8> {
    type Write = ();
    type View = Nested;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind % 10 {
            0..=3 => self.add_binding(cx, op.key, op.inner),
            4 | 5 => _ = self.remove_binding(cx, &op.key, &op.inner),
            6 => _ = self.remove(cx, &op.key),
            7 => self.put(cx, op.key, [op.inner, other(op)]),
            8 => self.replace_binding(cx, op.key, &op.inner, other(op)),
            _ => self.clear(cx),
        }
    }

    sets_by_key!();
}

impl Model for OrMap<u8, OrSetStore<u8>> {
    type Write = ();
    type View = Nested;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind % 10 {
            0..=3 => self.update(cx, op.key, |set, cx| set.add(cx, op.inner)),
            4 | 5 => _ = self.update(cx, op.key, |set, cx| set.remove(cx, &op.inner)),
            6 => _ = self.remove(cx, &op.key),
            7 => self.put(cx, op.key, &OrSetStore::of_elements([op.inner, other(op)])),
            8 => self.update(cx, op.key, |set, cx| {
                set.add(cx, other(op));
                set.remove(cx, &op.inner);
            }),
            _ => self.clear(cx),
        }
    }

    sets_by_key!();
}

impl Model for OrMap<u8, FlagStore> {
    type Write = ();
    type View = BTreeSet<u8>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind % 4 {
            0 | 1 => self.update(cx, op.key, |flag, cx| {
                flag.switch_on(cx);
            }),
            2 => self.update(cx, op.key, |flag, cx| {
                flag.switch_off(cx);
            }),
            _ => _ = self.remove(cx, &op.key),
        }
    }

    fn view(&self) -> BTreeSet<u8> {
        self.iter().filter(|(_, flag)| flag.enabled()).map(|(key, _)| *key).collect()
    }

    fn plan(op: Op, place: &Place<'_, ()>) -> Plan<()> {
        match op.kind % 4 {
            0 | 1 => Plan::one((op.key, 0), (), place.under(op.key)),
            _ => Plan::remove(place.under(op.key)),
        }
    }

    fn model(live: &[Live<'_, ()>]) -> BTreeSet<u8> {
        keys(live)
    }
}

impl Model for OrMap<u8, OrMapStore<u8, LwwStore<i8>>> {
    type Write = Cell;
    type View = BTreeMap<Path, i8>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind {
            0..32 => _ = self.remove(cx, &op.key),
            32..64 => _ = self.update(cx, op.key, |map, cx| map.remove(cx, &op.inner)),
            kind => self.update(cx, op.key, |map, cx| {
                map.update(cx, op.inner, |register, cx| match kind % 3 {
                    0 => register.set(cx, op.amount).unwrap(),
                    1 => _ = register.set_first(cx, op.amount).unwrap(),
                    _ => _ = register.set_with(cx, op.amount, |_, value| i64::from(*value)),
                });
            }),
        }
    }

    fn view(&self) -> BTreeMap<Path, i8> {
        let pairs = self.iter().flat_map(|(key, map)| map.entries().iter().map(|(inner, cell)| ((*key, *inner), cell)));
        pairs.map(|(path, register)| (path, *register.value().unwrap())).collect()
    }

    fn plan(op: Op, place: &Place<'_, Cell>) -> Plan<Cell> {
        let path = (op.key, op.inner);
        match op.kind {
            0..32 => Plan::remove(place.under(op.key)),
            32..64 => Plan::remove(place.all(|own| own == path)),
            _ => {
                let observed = winner(place.live, |own| own == path);
                let new = cell(op, place, observed);
                let kept = observed.map_or(new, |observed| observed.max(new));
                Plan::one(path, kept, place.all(|own| own == path))
            }
        }
    }

    fn model(live: &[Live<'_, Cell>]) -> BTreeMap<Path, i8> {
        let paths: BTreeSet<Path> = live.iter().map(|live| live.path).collect();
        paths.into_iter().filter_map(|path| Some((path, winner(live, |own| own == path)?.3))).collect()
    }
}

impl Model for OrMap<u8, Plain<GSet<u8>>> {
    type Write = BTreeSet<u8>;
    type View = Nested;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind % 5 {
            0..=2 => self.update(cx, op.key, |set, _| set.add(op.inner)),
            3 => _ = self.remove(cx, &op.key),
            _ => {
                let mut set = GSet::new();
                set.add(op.inner);
                self.put(cx, op.key, &Plain::of_value(set));
            }
        }
    }

    fn view(&self) -> Nested {
        self.iter().map(|(key, set)| (*key, set.value().iter().copied().collect())).collect()
    }

    fn plan(op: Op, place: &Place<'_, BTreeSet<u8>>) -> Plan<BTreeSet<u8>> {
        let own = place.live.iter().filter(|live| live.path.0 == op.key);
        let mut joined: BTreeSet<u8> = own.flat_map(|live| live.write.iter().copied()).collect();
        match op.kind % 5 {
            0..=2 if !joined.insert(op.inner) => Plan::nothing(),
            0..=2 => Plan::one((op.key, 0), joined, place.under(op.key)),
            3 => Plan::remove(place.under(op.key)),
            _ => Plan::one((op.key, 0), [op.inner].into(), place.under(op.key)),
        }
    }

    fn model(live: &[Live<'_, BTreeSet<u8>>]) -> Nested {
        let mut view = Nested::new();
        live.iter().for_each(|live| view.entry(live.path.0).or_default().extend(live.write));
        view
    }
}

/// The slots of a plain counter are named by replicas and lives of the entry, and never pruned: a limit that ddata Y11
/// documents. So this model knows slots, and swallows the same increments.
impl Model for OrMap<u8, Plain<GCounter>> {
    type Write = BTreeMap<(usize, u64), u128>;
    type View = BTreeMap<u8, u128>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind % 4 {
            0..=2 => self.update(cx, op.key, |counter, cx| counter.increment(cx, op.inner.into()).unwrap()),
            _ => _ = self.remove(cx, &op.key),
        }
    }

    fn view(&self) -> BTreeMap<u8, u128> {
        self.iter().map(|(key, counter)| (*key, counter.value().value())).collect()
    }

    fn plan(op: Op, place: &Place<'_, Self::Write>) -> Plan<Self::Write> {
        let mut joined = joined_slots(place.live, op.key);
        match op.kind % 4 {
            0..=2 if op.inner == 0 => Plan::nothing(),
            0..=2 => {
                *joined.entry((place.replica, place.life)).or_default() += u128::from(op.inner);
                Plan::one((op.key, 0), joined, place.under(op.key))
            }
            _ => Plan::remove(place.under(op.key)),
        }
    }

    fn model(live: &[Live<'_, Self::Write>]) -> BTreeMap<u8, u128> {
        keys(live).into_iter().map(|key| (key, joined_slots(live, key).values().sum())).collect()
    }
}

fn joined_slots(live: &[Live<'_, BTreeMap<(usize, u64), u128>>], key: u8) -> BTreeMap<(usize, u64), u128> {
    let mut joined: BTreeMap<(usize, u64), u128> = BTreeMap::new();
    for (replica, amount) in live.iter().filter(|live| live.path.0 == key).flat_map(|live| live.write) {
        let slot = joined.entry(*replica).or_default();
        *slot = (*slot).max(*amount);
    }
    joined
}

/// The increments that a write has taken over, each once: no slot may swallow or double one (ddata Y9).
type Increments = BTreeMap<usize, i128>;

fn counts(live: &[Live<'_, Increments>]) -> BTreeMap<u8, i128> {
    let mut keys: BTreeMap<u8, Increments> = BTreeMap::new();
    live.iter().for_each(|live| keys.entry(live.path.0).or_default().extend(live.write));
    keys.into_iter().map(|(key, increments)| (key, increments.values().sum())).collect()
}

fn plan_counts(op: Op, place: &Place<'_, Increments>) -> Plan<Increments> {
    match op.kind % 4 {
        0..=2 if op.amount == 0 => Plan::nothing(),
        0..=2 => {
            let own = place.live.iter().filter(|live| live.path.0 == op.key);
            let mut increments: Increments = own.flat_map(|live| live.write.clone()).collect();
            increments.insert(place.id, op.amount.into());
            Plan::one((op.key, 0), increments, place.under(op.key))
        }
        _ => Plan::remove(place.under(op.key)),
    }
}

impl Model for PnCounterMap<u8> {
    type Write = Increments;
    type View = BTreeMap<u8, i128>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match op.kind % 4 {
            0 | 1 => self.increment(cx, op.key, op.amount.into()).unwrap(),
            2 => self.decrement(cx, op.key, (-op.amount).into()).unwrap(),
            _ => _ = self.remove(cx, &op.key),
        }
    }

    fn view(&self) -> BTreeMap<u8, i128> {
        self.iter().map(|(key, value)| (*key, value)).collect()
    }

    fn plan(op: Op, place: &Place<'_, Increments>) -> Plan<Increments> {
        plan_counts(op, place)
    }

    fn model(live: &[Live<'_, Increments>]) -> BTreeMap<u8, i128> {
        counts(live)
    }
}

impl Model for OrMap<u8, CounterStore> {
    type Write = Increments;
    type View = BTreeMap<u8, i128>;

    fn apply(&mut self, cx: &mut UpdateCx<'_>, op: Op) {
        match (op.kind % 5, op.kind % 4) {
            (4, _) => self.put(cx, op.key, &CounterStore::counting(op.amount.into())),
            (_, 3) => _ = self.remove(cx, &op.key),
            _ => self.update(cx, op.key, |counter, cx| counter.increment(cx, op.amount.into()).unwrap()),
        }
    }

    fn view(&self) -> BTreeMap<u8, i128> {
        self.iter().map(|(key, counter)| (*key, counter.checked_value().unwrap())).collect()
    }

    fn plan(op: Op, place: &Place<'_, Increments>) -> Plan<Increments> {
        match op.kind % 5 {
            4 => Plan::one((op.key, 0), [(place.id, op.amount.into())].into(), place.under(op.key)),
            _ => plan_counts(op, place),
        }
    }

    fn model(live: &[Live<'_, Increments>]) -> BTreeMap<u8, i128> {
        counts(live)
    }
}
