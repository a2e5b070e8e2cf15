//! Updates and merges of each type beside those of the crate `crdts`, in one run; and what one add to a set of a million
//! elements costs.
//!
//! Both sides do the same: three replicas wrote a third of the content each. Clones that a merge consumes are made
//! outside of what is timed. Ours also keeps digests up to date, and makes a delta of each update. Medians are shown.
//!
//! `cargo bench -p greylag-crdt`

use std::hint::black_box;
use std::io::Write as _;
use std::time::{Duration, Instant};

use crdts::{CmRDT, CvRDT};
use greylag_crdt::{
    Change, DotSource, EntryMark, GCounter, GSet, Home, Lineage, LwwRegister, MvRegister, OrMap, OrMultiMap, OrSet,
    PNCounter, ReplicaId, ReplicatedData, UpdateCx, WriterKey,
};

const WRITERS: u64 = 3;

struct Process {
    replica: ReplicaId,
    numbers: DotSource,
    writer: WriterKey,
}

impl Process {
    fn new(id: u64) -> Self {
        Self { replica: ReplicaId(id), numbers: DotSource::new(), writer: WriterKey::new([id as u8]) }
    }

    fn home(&self) -> Home {
        Home { entry: EntryMark::of("bench"), replica: self.replica, born: 0 }
    }

    fn cx(&self) -> UpdateCx<'_> {
        UpdateCx::new(&self.numbers, self.replica, &self.writer, 1_000).for_entry(self.home(), 0, &[])
    }

    fn zero<T: ReplicatedData>(&self) -> T {
        let mut zero = T::zero();
        zero.bind(self.home());
        zero
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64 / 1e3
}

/// Microseconds of one merge; of short ones, many are timed together.
fn merging<T, O>(value: &T, clone: impl Fn(&T) -> T, other: impl Fn() -> O, merge: impl Fn(&mut T, O)) -> f64 {
    let sample = |count: usize| {
        let mut pairs: Vec<(T, Option<O>)> = (0..count).map(|_| (clone(value), Some(other()))).collect();
        let began = Instant::now();
        for (into, other) in &mut pairs {
            merge(into, other.take().expect("it is merged once"));
        }
        let took = began.elapsed() / count as u32;
        black_box(pairs);
        took
    };
    let first = sample(1);
    let count = (Duration::from_millis(5).as_nanos() / first.as_nanos().max(1)).clamp(1, 1_000) as usize;
    median((0..31).map(|_| sample(count)).collect())
}

/// Microseconds of one update, out of a thousand on one value.
fn updating<T: Clone>(value: &T, update: impl Fn(&mut T, u64)) -> f64 {
    const UPDATES: u64 = 1_000;
    let sample = || {
        let mut value = value.clone();
        // The first copies what is shared with the original.
        update(&mut value, u64::MAX);
        let began = Instant::now();
        (0..UPDATES).for_each(|number| update(&mut value, number));
        let took = began.elapsed();
        black_box(value);
        took
    };
    median((0..31).map(|_| sample()).collect()) / UPDATES as f64
}

struct Row {
    kind: &'static str,
    content: u64,
    action: &'static str,
    ours: f64,
    theirs: f64,
}

/// Two halves that overlap in a third, of ours and of theirs, and how each is updated and merged.
fn compare<T: ReplicatedData, C: CvRDT + Clone>(
    rows: &mut Vec<Row>,
    kind: &'static str,
    content: u64,
    write: impl Fn(&mut T, &mut UpdateCx<'_>, u64),
    write_theirs: impl Fn(&mut C, u64, u64),
    zero_theirs: impl Fn() -> C,
) {
    let processes: Vec<Process> = (1..=WRITERS).map(Process::new).collect();
    let parts: Vec<(T, C)> = processes
        .iter()
        .map(|process| {
            let (mut ours, mut theirs) = (process.zero::<T>(), zero_theirs());
            for number in (0..content).filter(|number| number % WRITERS == process.replica.0 - 1) {
                write(&mut ours, &mut process.cx(), number);
                write_theirs(&mut theirs, process.replica.0, number);
            }
            (ours, theirs)
        })
        .collect();
    let join = |indexes: [usize; 2]| {
        let (mut ours, mut theirs) = (processes[indexes[0]].zero::<T>(), zero_theirs());
        for index in indexes {
            // Through bytes, as it would come: nothing is shared.
            ours.merge(&T::from_bytes(&parts[index].0.to_bytes()).expect("it decodes")).expect("it joins");
            theirs.merge(parts[index].1.clone());
        }
        (ours, theirs)
    };
    let ((a, their_a), (b, their_b)) = (join([0, 1]), join([1, 2]));
    let ours_merge = |into: &mut T, other: &T| drop(into.merge(other));
    let (mut all, mut their_all) = (a.clone(), their_a.clone());
    ours_merge(&mut all, &b);
    their_all.merge(their_b.clone());
    let all_again = T::from_bytes(&all.to_bytes()).expect("it decodes");
    let mut push = |action, ours, theirs| rows.push(Row { kind, content, action, ours, theirs });
    push(
        "update",
        updating(&all, |value, number| write(value, &mut processes[0].cx(), content + number % 1_000)),
        updating(&their_all, |value, number| write_theirs(value, 1, content + number % 1_000)),
    );
    push(
        "merge, a third is new",
        merging(&a, Clone::clone, || &b, |into, other| ours_merge(into, other)),
        merging(&their_a, Clone::clone, || their_b.clone(), C::merge),
    );
    push(
        "merge, nothing is new",
        merging(&all, Clone::clone, || &all_again, |into, other| ours_merge(into, other)),
        merging(&their_all, Clone::clone, || their_all.clone(), C::merge),
    );
}

fn counters_and_registers(rows: &mut Vec<Row>) {
    compare::<GCounter, crdts::GCounter<u64>>(
        rows,
        "GCounter",
        300,
        |c, cx, _| _ = c.increment(cx, 1),
        |c, actor, _| c.apply(c.inc_many(actor, 1)),
        crdts::GCounter::new,
    );
    compare::<PNCounter, crdts::PNCounter<u64>>(
        rows,
        "PNCounter",
        300,
        |c, cx, n| _ = if n % 2 == 0 { c.increment(cx, 1) } else { c.decrement(cx, 1) },
        |c, actor, n| c.apply(if n % 2 == 0 { c.inc(actor) } else { c.dec(actor) }),
        crdts::PNCounter::new,
    );
    compare::<LwwRegister<u64>, crdts::LWWReg<u64, (u64, u64)>>(
        rows,
        "LWWReg",
        300,
        |r, cx, n| _ = r.set(cx, n),
        |r, actor, n| {
            let marker = (r.marker.0 + 1, actor);
            r.update(n, marker);
        },
        crdts::LWWReg::default,
    );
    compare::<MvRegister<u64>, crdts::MVReg<u64, u64>>(
        rows,
        "MVReg",
        300,
        MvRegister::set,
        |r, actor, n| {
            let write = r.write(n, r.read_ctx().derive_add_ctx(actor));
            r.apply(write);
        },
        crdts::MVReg::new,
    );
}

fn collections(rows: &mut Vec<Row>, content: u64) {
    compare::<GSet<u64>, crdts::GSet<u64>>(
        rows,
        "GSet",
        content,
        |s, _, n| s.add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        |s, _, n| s.insert(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        crdts::GSet::new,
    );
    compare::<OrSet<u64>, crdts::Orswot<u64, u64>>(
        rows,
        "OrSet",
        content,
        |s, cx, n| s.add(cx, n.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        |s, actor, n| {
            let add = s.add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), s.read_ctx().derive_add_ctx(actor));
            s.apply(add);
        },
        crdts::Orswot::new,
    );
    compare::<OrMap<u64, greylag_crdt::LwwStore<u64>>, crdts::Map<u64, crdts::MVReg<u64, u64>, u64>>(
        rows,
        "Map of registers",
        content,
        |m, cx, n| m.update(cx, n.wrapping_mul(0x9e37_79b9_7f4a_7c15), |r, cx| _ = r.set(cx, n)),
        |m, actor, n| {
            let context = m.read_ctx().derive_add_ctx(actor);
            let put = m.update(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), context, |r, context| r.write(n, context));
            m.apply(put);
        },
        crdts::Map::new,
    );
    compare::<OrMultiMap<u64, u64>, crdts::Map<u64, crdts::Orswot<u64, u64>, u64>>(
        rows,
        "Map of sets",
        content,
        |m, cx, n| m.add_binding(cx, n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n),
        |m, actor, n| {
            let context = m.read_ctx().derive_add_ctx(actor);
            let add = m.update(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), context, |s, context| s.add(n, context));
            m.apply(add);
        },
        crdts::Map::new,
    );
}

/// One add to a set of so many elements, as a replicator does it: on a clone, with its delta taken, encoded and joined
/// elsewhere.
fn one_add(out: &mut impl std::io::Write, content: u64) -> std::io::Result<()> {
    let (here, there) = (Process::new(1), Process::new(2));
    let mut set: OrSet<u64> = here.zero();
    set.add_all(&mut here.cx(), 0..content);
    let mut copy: OrSet<u64> = there.zero();
    let travelled = OrSet::from_bytes(&set.to_bytes()).expect("it decodes");
    ReplicatedData::merge(&mut copy, &travelled).expect("it joins");
    let (mut adds, mut applies, mut bytes) = (Vec::new(), Vec::new(), 0);
    for number in 0..1_001 {
        let element = content + number;
        let began = Instant::now();
        let mut changed = set.clone();
        changed.begin_change(Lineage(number));
        changed.add(&mut here.cx(), element);
        let Change::Delta(delta) = changed.take_change(Lineage(number)) else { continue };
        adds.push(began.elapsed());
        let encoded = OrSet::<u64>::delta_to_bytes(&delta);
        set = changed;
        let began = Instant::now();
        let delta = OrSet::<u64>::delta_from_bytes(&encoded).expect("it decodes");
        let mut joined = copy.clone();
        joined.merge_delta(&delta).expect("it joins");
        applies.push(began.elapsed());
        (copy, bytes) = (joined, encoded.len());
    }
    assert!(set == copy && set.digest() == copy.digest(), "both hold the same");
    let (add, apply) = (median(adds), median(applies));
    writeln!(out, "add to an OrSet of {content:>9}: {add:>6.2} us, delta {bytes} bytes, applied in {apply:.2} us")
}

fn main() -> std::io::Result<()> {
    let mut rows = Vec::new();
    counters_and_registers(&mut rows);
    for content in [1_000, 30_000] {
        collections(&mut rows, content);
    }
    let mut out = std::io::stdout();
    writeln!(out, "{:<17}{:>7}  {:<22}{:>12}{:>12}{:>8}", "type", "size", "action", "ours us", "crdts us", "times")?;
    for Row { kind, content, action, ours, theirs } in &rows {
        let times = theirs / ours;
        writeln!(out, "{kind:<17}{content:>7}  {action:<22}{ours:>12.3}{theirs:>12.3}{times:>8.1}")?;
    }
    for content in [1_000, 10_000, 100_000, 1_000_000] {
        one_add(&mut out, content)?;
    }
    Ok(())
}
