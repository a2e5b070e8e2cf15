//! A journal under load over everything it stores is killed again and again: all acknowledged values are there, no
//! append is torn, no number is missing, nothing that was deleted comes back, and every opening is clean.
//!
//! The child is this very test binary, started anew with the directory in an environment variable. It works as
//! fast as it can (`load`) and prints what it begins and what was acknowledged; the parent kills it in one of five
//! ways and compares (`known`). Kit cases `crash 1` to `crash 3`. `cargo xtask journal-crash` is the long form.

use crate::common;
mod known;
mod load;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use known::Known;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const DIRECTORY: &str = "GREYLAG_CRASH_DIRECTORY";
const CYCLES: &str = "GREYLAG_CRASH_CYCLES";
/// A new store is begun after this many kills, so that creating a store is interrupted, too.
const LIFE: usize = 40;
const MOST_ACKS: usize = 150;

/// The moment at which the child is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kill {
    /// After this many acknowledgements.
    UnderLoad(usize),
    /// This long after the child began to open the store.
    WhileOpening(Duration),
    /// After this many acknowledgements, when the child begins to delete events.
    WhileDeleting(usize),
    /// After this many acknowledgements, when the child begins to save a snapshot, or to write values too large for one
    /// row.
    WhileSaving(usize),
    /// After this many acknowledgements it is stopped; the directory is copied, and the copy opened as well.
    Stopped(usize),
}

impl Kill {
    const KINDS: usize = 5;

    /// The kill of a cycle. The first cycles take one kill of each kind, so that even a short run has them all.
    fn draw(cycle: usize, rng: &mut ChaCha8Rng) -> Self {
        let acks = rng.random_range(1..MOST_ACKS);
        let drawn = rng.random_range(1..10);
        match if cycle < Self::KINDS { cycle + 1 } else { drawn } {
            1 => Self::WhileDeleting(acks),
            2 => Self::WhileSaving(acks),
            3 => Self::Stopped(acks),
            4 => Self::UnderLoad(acks),
            5 | 6 => Self::WhileOpening(Duration::from_micros(rng.random_range(0..30_000))),
            _ => Self::UnderLoad(acks),
        }
    }

    fn acks(self) -> usize {
        match self {
            Self::WhileOpening(_) => 0,
            Self::UnderLoad(acks) | Self::WhileDeleting(acks) | Self::WhileSaving(acks) | Self::Stopped(acks) => acks,
        }
    }

    /// The line that the child prints just before the moment of the kill.
    fn waits_for(self) -> Option<&'static str> {
        match self {
            Self::WhileOpening(_) => Some("begin open"),
            Self::WhileDeleting(_) => Some("begin delete"),
            Self::WhileSaving(_) => Some("begin save"),
            Self::UnderLoad(_) | Self::Stopped(_) => None,
        }
    }
}

/// Child process of the test below; does nothing when run as a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_is_killed() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        load::run(Path::new(&directory)).await;
    }
}

fn start(directory: &Path) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

/// Runs the child and kills it. For [`Kill::Stopped`] answers the copy of the directory, with the values known to be in
/// it.
fn run_and_kill(directory: &Path, kill: Kill, known: &mut Known) -> Option<(tempfile::TempDir, Known)> {
    let (mut child, mut lines) = start(directory);
    let mut acks = 0;
    let mut line = || lines.next().expect("the child runs until it is killed").unwrap();
    while acks < kill.acks() {
        acks += usize::from(known.note(&line()));
    }
    if let Some(begin) = kill.waits_for() {
        loop {
            let line = line();
            known.note(&line);
            if line.contains(begin) {
                break;
            }
        }
    }
    let mut copied = None;
    match kill {
        Kill::WhileOpening(after) => std::thread::sleep(after),
        Kill::Stopped(_) => {
            stop(&child);
            let copy = tempfile::tempdir().unwrap();
            common::copy(directory, copy.path());
            copied = Some((copy, known.clone()));
        }
        Kill::UnderLoad(_) | Kill::WhileDeleting(_) | Kill::WhileSaving(_) => {}
    }
    child.kill().unwrap();
    for line in lines.map_while(Result::ok) {
        known.note(&line);
    }
    child.wait().unwrap();
    copied
}

/// Sends SIGSTOP; returns when no thread of the child runs any more.
fn stop(child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let is_stopped = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        status.rsplit(')').next().unwrap_or_default().trim_start().starts_with(['T', 't'])
    };
    while !std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(Result::unwrap).all(is_stopped) {
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_under_load_it_loses_nothing_that_was_acknowledged() {
    let cycles: usize = std::env::var(CYCLES).map_or(12, |cycles| cycles.parse().unwrap());
    let began_at = Instant::now();
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    let (mut directory, mut known) = (tempfile::tempdir().unwrap(), Known::default());
    let (mut acks, mut copies, mut kinds) = (0, 0, HashSet::new());
    for cycle in 0..cycles {
        if cycle % LIFE == 0 {
            acks += known.acks();
            (directory, known) = (tempfile::tempdir().unwrap(), Known::default());
        }
        let kill = Kill::draw(cycle, &mut rng);
        kinds.insert(std::mem::discriminant(&kill));
        if let Some((copy, mut known)) = run_and_kill(directory.path(), kill, &mut known) {
            known.compare(copy.path(), &format!("copy of cycle {cycle}")).await;
            copies += 1;
        }
        known.compare(directory.path(), &format!("cycle {cycle}, {kill:?}")).await;
        if (cycle + 1).is_multiple_of(500) {
            load::say(&format!("{} cycles, {:.1?}", cycle + 1, began_at.elapsed()));
        }
    }
    acks += known.acks();
    assert_eq!(kinds.len(), Kill::KINDS, "each kind of kill happens");
    assert!(acks > 0 && copies > 0, "{acks} acknowledgements, {copies} copies");
    load::say(&format!(
        "{cycles} kills, {acks} acknowledgements, {copies} copies of a stopped one: nothing lost, nothing torn, every \
         opening clean; {:.1?}",
        began_at.elapsed()
    ));
}
