//! Measures the costs of a replicator and how they grow: with the number of keys, with what a peer missed, with the
//! size of one entry. Machines are measured alone; whole nodes run in one process and communicate over real sockets.
//!
//! `cargo bench -p greylag-ddata --bench replicator -- [keys] [differ] [lag] [catch-up] [apart] [idle] [writes] [large]`

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

mod cores;
mod large;
mod machines;
mod measure;
mod memory;
mod nodes;
mod writes;

use std::collections::BTreeSet;

use tokio::runtime::Runtime;

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if let [what, kind, count] = &chosen[..]
        && what == memory::IN_OWN_PROCESS
    {
        return memory::measure(kind, count.parse().expect("a number of entries"));
    }
    // `cargo test` runs this benchmark in a short form, to check that it works.
    let full = std::env::args().any(|arg| arg == "--bench");
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|arg| arg == name);
    let sizes: &[u32] = if full { &[1_000, 10_000, 100_000, 1_000_000] } else { &[100] };
    let largest = sizes[sizes.len() - 1];
    if wanted("keys") {
        sizes.iter().for_each(|count| machines::keys(*count));
        sizes.iter().for_each(|count| memory::of_all_kinds(*count));
    }
    if wanted("differ") {
        sizes.iter().for_each(|count| machines::differ(*count));
    }
    if wanted("lag") {
        machines::lag(if full { 50_000 } else { 500 });
    }
    let runtime = Runtime::new().expect("a runtime starts");
    if wanted("catch-up") {
        sizes.iter().for_each(|count| nodes::catch_up(*count, 1, false));
        nodes::catch_up(largest.min(100_000), 2, false);
    }
    if wanted("apart") {
        nodes::catch_up(largest.min(100_000), 1, true);
        nodes::catch_up(largest, 1, true);
    }
    if wanted("idle") {
        sizes.iter().for_each(|count| machines::idle(*count));
        for count in BTreeSet::from([sizes[0], largest]) {
            runtime.block_on(nodes::idle(count, if full { 10 } else { 1 }));
        }
    }
    if wanted("writes") {
        runtime.block_on(writes::writes(if full { 2_000 } else { 50 }, if full { 100_000 } else { 500 }));
    }
    if wanted("large") {
        large::large(if full { 2_000_000 } else { 5_000 });
    }
}
