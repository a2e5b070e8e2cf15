//! Compares updates and merges of each type with those of the crate `crdts`, in one run, and measures one add to a set
//! of a million elements.
//!
//! Both sides do the same on the same keys and end with the same content. An update is measured in two forms. *In
//! place*: on a value that has no clone, only the new value is wanted. *Kept*, as a replicator needs it: on a clone,
//! the former value is kept until the new one stands, and the delta for other replicas is made. In the first form an
//! update of `crdts` makes its operation and applies it, in the second the operation is cloned too. The inputs of a
//! merge are made outside of the timed part, and share nothing. Figures are medians.
//!
//! `cargo bench -p greylag-crdt` (`-- OrSet`: only types whose name begins so; `-- OrSet 100`: only this size)

mod measure;
mod one_add;
mod sides;

use std::io::{self, Write as _};

use measure::{Figures, measure};
use sides::{CrdtsSide, GreylagSide, Side};

use greylag_crdt::{GCounter, GSet, LwwRegister, LwwStore, MvRegister, OrMap, OrMultiMap, OrSet, PNCounter};

/// Elements or keys of a collection.
const SIZES: [u64; 4] = [1, 100, 10_000, 1_000_000];
/// Replicas that wrote to a counter or a register.
const WRITERS: [u64; 3] = [3, 99, 9_999];

/// The types to measure, and the output.
struct Table {
    wanted: String,
    /// The only size to measure, if the command line names one.
    size: Option<u64>,
    out: io::Stdout,
}

impl Table {
    fn row(&mut self, kind: &str, size: u64, ours: &impl Side, theirs: &impl Side) -> io::Result<()> {
        if !kind.starts_with(&self.wanted) || self.size.is_some_and(|wanted| wanted != size) {
            return Ok(());
        }
        let (ours, theirs) = (measure(ours), measure(theirs));
        for (action, of) in Figures::ACTIONS {
            let (ours, theirs) = (of(&ours), of(&theirs));
            let times = theirs / ours;
            writeln!(self.out, "{kind:<18}{size:>8}  {action:<24}{ours:>14.3}{theirs:>14.3}{times:>10.1}")?;
        }
        Ok(())
    }
}

/// Spreads consecutive numbers over the whole order of keys.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn counters(table: &mut Table) -> io::Result<()> {
    for writers in WRITERS {
        let ours = GreylagSide::<GCounter, _>::new(writers, writers, |c, cx, _| _ = c.increment(cx, 1));
        let theirs = CrdtsSide::new(writers, writers, crdts::GCounter::<u64>::new, |c, actor, _| c.inc_many(actor, 1));
        table.row("GCounter", writers, &ours, &theirs)?;
        let ours = GreylagSide::<PNCounter, _>::new(writers, writers, |c, cx, n| {
            _ = c.increment(cx, if n % 2 == 0 { 1 } else { -1 });
        });
        let theirs = CrdtsSide::new(writers, writers, crdts::PNCounter::<u64>::new, |c, actor, n| {
            if n % 2 == 0 { c.inc(actor) } else { c.dec(actor) }
        });
        table.row("PNCounter", writers, &ours, &theirs)?;
    }
    Ok(())
}

fn registers(table: &mut Table) -> io::Result<()> {
    let ours = GreylagSide::<LwwRegister<u64>, _>::new(3, 3, |r, cx, n| _ = r.set(cx, n));
    table.row(
        "LWWReg",
        1,
        &ours,
        &CrdtsSide::new(3, 3, crdts::LWWReg::<u64, (u64, u64)>::default, |r, actor, n| crdts::LWWReg {
            val: n,
            marker: (r.marker.0 + 1, actor),
        }),
    )?;
    // A marker with the same content as ours: time, writer in the order of addresses, number of the process.
    let numbers = greylag_crdt::DotSource::new();
    let writers: Vec<_> = (0..=3).map(sides::writer_key).collect();
    let zero = || crdts::LWWReg { val: 0, marker: (i64::MIN, std::cmp::Reverse(writers[0].clone()), 0) };
    table.row(
        "LWWReg, same marker",
        1,
        &ours,
        &CrdtsSide::new(3, 3, zero, |r, actor, n| {
            let writer = std::cmp::Reverse(writers[actor as usize % 4].clone());
            crdts::LWWReg { val: n, marker: (sides::WALL_MS.max(r.marker.0 + 1), writer, numbers.draw()) }
        }),
    )?;
    for writers in [3, 99] {
        let ours = GreylagSide::<MvRegister<u64>, _>::new(writers, writers, MvRegister::set);
        let theirs = CrdtsSide::new(writers, writers, crdts::MVReg::<u64, u64>::new, |r, actor, n| {
            r.write(n, r.read_ctx().derive_add_ctx(actor))
        });
        table.row("MVReg", writers, &ours, &theirs)?;
    }
    Ok(())
}

fn collections(table: &mut Table) -> io::Result<()> {
    for size in SIZES {
        let ours = GreylagSide::<GSet<u64>, _>::alone(3, size, |s, n| s.add(spread(n)));
        table.row("GSet", size, &ours, &CrdtsSide::new(3, size, crdts::GSet::<u64>::new, |_, _, n| spread(n)))?;
        let ours = GreylagSide::<OrSet<u64>, _>::new(3, size, |s, cx, n| s.add(cx, spread(n)));
        table.row(
            "OrSet",
            size,
            &ours,
            &CrdtsSide::new(3, size, crdts::Orswot::<u64, u64>::new, |s, actor, n| {
                s.add(spread(n), s.read_ctx().derive_add_ctx(actor))
            }),
        )?;
        let ours = GreylagSide::<OrMap<u64, LwwStore<u64>>, _>::new(3, size, |m, cx, n| {
            m.update(cx, spread(n), |r, cx| _ = r.set(cx, n));
        });
        let zero = crdts::Map::<u64, crdts::MVReg<u64, u64>, u64>::new;
        table.row(
            "Map of registers",
            size,
            &ours,
            &CrdtsSide::new(3, size, zero, |m, actor, n| {
                m.update(spread(n), m.read_ctx().derive_add_ctx(actor), |r, context| r.write(n, context))
            }),
        )?;
        let ours = GreylagSide::<OrMultiMap<u64, u64>, _>::new(3, size, |m, cx, n| m.add_binding(cx, spread(n), n));
        let zero = crdts::Map::<u64, crdts::Orswot<u64, u64>, u64>::new;
        table.row(
            "Map of sets",
            size,
            &ours,
            &CrdtsSide::new(3, size, zero, |m, actor, n| {
                m.update(spread(n), m.read_ctx().derive_add_ctx(actor), |s, context| s.add(n, context))
            }),
        )?;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let wanted = arguments.next().unwrap_or_default();
    let size = arguments.next().and_then(|size| size.parse().ok());
    let mut table = Table { wanted, size, out: io::stdout() };
    let (ours, theirs) = ("ours us", "crdts us");
    writeln!(table.out, "{:<18}{:>8}  {:<24}{ours:>14}{theirs:>14}{:>10}", "type", "size", "action", "times")?;
    counters(&mut table)?;
    registers(&mut table)?;
    collections(&mut table)?;
    if table.wanted.is_empty() || table.wanted == "add" {
        for content in [1_000, 10_000, 100_000, 1_000_000] {
            one_add::measure(&mut table.out, content)?;
        }
    }
    Ok(())
}
