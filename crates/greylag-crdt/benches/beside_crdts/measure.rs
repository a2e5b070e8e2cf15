//! Medians of many samples; short actions are timed many at a time.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::sides::Side;

/// Microseconds per action.
pub(crate) struct Figures {
    in_place: f64,
    kept: f64,
    merge_new: f64,
    merge_same: f64,
}

/// The title of an action, and its figure.
type Action = (&'static str, fn(&Figures) -> f64);

impl Figures {
    pub(crate) const ACTIONS: [Action; 4] = [
        ("update, in place", |f| f.in_place),
        ("update, kept", |f| f.kept),
        ("merge, a third is new", |f| f.merge_new),
        ("merge, nothing is new", |f| f.merge_same),
    ];
}

/// The greatest number of short updates that are timed together.
const UPDATES: u64 = 1_000;
/// From this size on a value is not made anew for every sample.
const LARGE: u64 = 1_000_000;

pub(crate) fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_nanos() as f64 / 1e3
}

/// The microseconds of one of `count` actions; `prepare` is not timed.
fn sampled<P>(count: u64, mut prepare: impl FnMut() -> P, mut act: impl FnMut(&mut P)) -> f64 {
    let (began, mut times) = (Instant::now(), Vec::new());
    while times.len() < 5 || (times.len() < 31 && began.elapsed() < Duration::from_secs(2)) {
        let mut prepared = prepare();
        let began = Instant::now();
        act(&mut prepared);
        times.push(began.elapsed());
        drop(black_box(prepared));
    }
    median(times) / count as f64
}

/// Measures updates of a value, and merges: of two values that share a third of their content, and of two equal ones.
pub(crate) fn measure<S: Side>(side: &S) -> Figures {
    let writers = side.writers();
    // One third of the numbers, each written by its writer; no writer writes in two thirds.
    let part = |third: u64, size: u64| {
        let mut value = side.zero(third);
        for number in (0..size).filter(|number| number % 3 == third) {
            side.write(&mut value, number % writers, [number].into_iter());
        }
        value
    };
    let join = |thirds: &[u64], size| {
        let mut joined = side.zero(0);
        thirds.iter().for_each(|third| side.merge(&mut joined, &mut Some(part(*third, size))));
        joined
    };
    let merge_new = {
        let size = side.size().max(3);
        merging(side, &join(&[0, 1], size), &join(&[1, 2], size))
    };
    let all = join(&[0, 1, 2], side.size());
    let merge_same = merging(side, &all, &all);
    Figures { in_place: in_place(side, &all), kept: kept(side, &all), merge_new, merge_same }
}

fn merging<S: Side>(side: &S, value: &S::Value, other: &S::Value) -> f64 {
    let pairs = |count: u64| (0..count).map(|_| (side.copy(value), Some(side.copy(other)))).collect::<Vec<_>>();
    let merge = |pairs: &mut Vec<(S::Value, Option<S::Value>)>| {
        for (into, other) in pairs {
            side.merge(into, other);
        }
    };
    let mut first = pairs(1);
    let began = Instant::now();
    merge(&mut first);
    let took = began.elapsed().as_nanos().max(1);
    drop(first);
    // Few enough that allocations reuse memory and do not wait for new pages of the system.
    let count = (Duration::from_micros(50).as_nanos() / took).clamp(1, u128::from(UPDATES)) as u64;
    sampled(count, || pairs(count), merge)
}

/// Times updates of several copies; each copy grows by a tenth at most.
fn in_place<S: Side>(side: &S, value: &S::Value) -> f64 {
    let each = (side.size() / 10).clamp(1, UPDATES);
    let copies = || (0..UPDATES / each).map(|_| side.ready(value)).collect::<Vec<_>>();
    let mut next = side.size();
    let mut write = |copies: &mut Vec<S::Value>| {
        for copy in copies {
            side.write(copy, 0, next..next + each);
        }
        next += each;
    };
    if side.size() < LARGE {
        sampled(UPDATES / each * each, copies, write)
    } else {
        let mut kept = copies();
        sampled(UPDATES, || (), |()| write(&mut kept))
    }
}

/// Times updates that each run on a clone of the value; where clones take long, fewer updates are timed.
fn kept<S: Side>(side: &S, value: &S::Value) -> f64 {
    let mut next = side.size() + UPDATES * 100;
    let mut write = |copies: &mut Vec<S::Value>, each: u64| {
        for copy in copies {
            side.write_kept(copy, 0, next..next + each);
        }
        next += each;
    };
    let began = Instant::now();
    let mut first = vec![side.ready(value)];
    write(&mut first, 1);
    let took = began.elapsed().as_nanos().max(1);
    let updates = (Duration::from_millis(50).as_nanos() / took).clamp(1, u128::from(UPDATES)) as u64;
    let each = (side.size() / 10).clamp(1, updates);
    if side.size() < LARGE {
        let copies = || (0..updates.div_ceil(each)).map(|_| side.ready(value)).collect::<Vec<_>>();
        sampled(updates.div_ceil(each) * each, copies, |copies| write(copies, each))
    } else {
        sampled(each, || (), |()| write(&mut first, each))
    }
}
