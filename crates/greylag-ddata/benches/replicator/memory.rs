//! Measures the memory of an entry, with everything that the machine keeps of it.
//!
//! Each figure comes from a process of its own: memory freed by an earlier measurement would hide what this one takes.

use std::process::Command;
use std::time::Instant;

use greylag_crdt::{GCounter, LwwRegister, OrSet, ReplicatedData, UpdateCx};
use greylag_ddata::{Key, WriteLevel};

use crate::machines::Machine;
use crate::measure::resident;

/// The argument that makes a process measure one kind.
pub(crate) const IN_OWN_PROCESS: &str = "memory-of";

const KINDS: [&str; 3] = ["counters", "registers of 10 letters", "sets of 1 element of 10 letters"];

pub(crate) fn of_all_kinds(count: u32) {
    for kind in KINDS {
        let program = std::env::current_exe().expect("the path of this program");
        let done = Command::new(program).args(["--bench", IN_OWN_PROCESS, kind, &count.to_string()]).status();
        assert!(done.expect("it runs").success());
    }
}

pub(crate) fn measure(kind: &str, count: u32) {
    let text = |n: u32| format!("{n:010}");
    match kind {
        "counters" => fill(kind, count, |counter: &mut GCounter, cx, _| counter.increment(cx, 1).expect("room")),
        "registers of 10 letters" => fill(kind, count, |register: &mut LwwRegister<String>, cx, n| {
            register.set(cx, text(n)).map(drop).expect("a time");
        }),
        _ => fill(kind, count, |set: &mut OrSet<String>, cx, n| set.add(cx, text(n))),
    }
}

fn fill<T: ReplicatedData>(kind: &str, count: u32, change: impl Fn(&mut T, &mut UpdateCx<'_>, u32)) {
    let now = Instant::now();
    let mut machine = Machine::new(1, now);
    machine.meet(now, &[], true);
    let before = resident();
    for n in 0..count {
        let key = Key::<T>::new(format!("key-{n:08}")).expect("a key");
        let Machine { core, out, .. } = &mut machine;
        let changed = core.update(
            now,
            0,
            n.into(),
            &key,
            WriteLevel::Local,
            T::zero,
            |value, cx| {
                change(value, cx, n);
                Ok::<_, std::convert::Infallible>(())
            },
            out,
        );
        changed.expect("an update");
        out.clear();
    }
    let bytes = resident().saturating_sub(before) / count as usize;
    let encoded = machine.core.metrics().bytes / count as usize;
    println!(
        "memory: {count:>8} {kind}: {bytes} bytes each, id and value included; {} without the 12 of the id and the \
         {encoded} of the value as encoded",
        bytes.saturating_sub(12 + encoded)
    );
}
