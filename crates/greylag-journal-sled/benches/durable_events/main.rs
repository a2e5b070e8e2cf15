//! Durable events per second: through the journal, through the bare engine with the same batches, and as the same
//! bytes appended to a plain file.
//!
//! ```sh
//! cargo bench -p greylag-journal-sled --bench durable_events
//! cargo bench -p greylag-journal-sled --bench durable_events -- --entities 1000 --payload 300 --runs 5
//! ```
//! Every entity appends one event, waits until it is durable, and appends the next: `entities` is how many do so
//! at once. Then
//! - the *engine* writes as many batches of as many keys under the same kinds of keys, of the same bytes in all:
//!   `apply_batch`, `flush` and `fdatasync` for each, one after the other, without guard and without answers to
//!   callers;
//! - the *file* gets the bytes of each batch appended, with one `fdatasync` each.
//!
//! The journal has its tail guard, which is a second `fdatasync` for each batch. All run in one process on the
//! same disk, alternating; medians are printed. `GREYLAG_BENCH_DIR` chooses the disk (default: the build
//! directory's).

mod arguments;
mod engine;
mod file;
mod journal;

use std::io::Write;
use std::time::Instant;

use arguments::Arguments;

/// The load of one run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// How many entities append at once.
    pub(crate) entities: u64,
    /// How many events each entity appends.
    pub(crate) events_each: u64,
    pub(crate) payload_bytes: usize,
}

impl Load {
    fn of(entities: u64, payload_bytes: usize) -> Self {
        // Chosen so that a run takes about a second, however slow a sync is.
        let events_each = match entities {
            0..=9 => 3_000,
            10..=99 => 1_000,
            100..=999 => 500,
            1_000..=9_999 => 100,
            _ => 20,
        };
        Self { entities, events_each, payload_bytes }
    }

    pub(crate) fn events(&self) -> u64 {
        self.entities * self.events_each
    }

    /// Events of this load per second since `began_at`.
    pub(crate) fn rate(&self, began_at: Instant) -> f64 {
        self.events() as f64 / began_at.elapsed().as_secs_f64()
    }
}

/// Totals over the journal's group commits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    pub(crate) groups: u64,
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::read()?;
    let directory = std::env::var("GREYLAG_BENCH_DIR").unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "durable events/s, {} byte payloads, medians of {} runs, in {directory}",
        arguments.payload_bytes, arguments.runs
    )?;
    writeln!(out, "entities  journal   engine  of it     file  of it  events/group  keys/event  bytes/event")?;
    for &entities in &arguments.entities {
        let load = Load::of(entities, arguments.payload_bytes);
        let (mut journal, mut engine, mut file) = (Vec::new(), Vec::new(), Vec::new());
        let mut shape = Shape::default();
        // The first run warms caches and the allocator.
        for run in 0..=arguments.runs {
            let scratch = tempfile::tempdir_in(&directory)?;
            let (rate, found) = runtime.block_on(journal::run(scratch.path(), load))?;
            drop(scratch);
            let scratch = tempfile::tempdir_in(&directory)?;
            let engine_rate = engine::run(scratch.path(), load, found)?;
            drop(scratch);
            let scratch = tempfile::tempdir_in(&directory)?;
            let file_rate = file::run(scratch.path(), load, found)?;
            if run > 0 {
                journal.push(rate);
                engine.push(engine_rate);
                file.push(file_rate);
                shape = found;
            }
        }
        let (journal, engine, file) = (median(journal), median(engine), median(file));
        let events = load.events() as f64;
        let (group, keys, bytes) =
            (events / shape.groups as f64, shape.keys as f64 / events, shape.bytes as f64 / events);
        let (of_engine, of_file) = (journal / engine, journal / file);
        writeln!(
            out,
            "{entities:>8} {journal:>8.0} {engine:>8.0} {of_engine:>6.2} {file:>8.0} {of_file:>6.2} {group:>13.1} {keys:>11.1} {bytes:>12.0}"
        )?;
    }
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
