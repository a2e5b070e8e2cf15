//! Runs worlds over seeds; see the library's docs.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use greylag_simulation::{Omission, Outcome, Violation, World, worlds};

/// The real machines of every layer under seeded faults.
#[derive(Parser)]
#[command(name = "cargo xtask sim")]
struct Cli {
    /// Which world; all of them if none is named.
    world: Option<String>,
    /// Only these profiles of the world, with commas between them.
    #[arg(long, value_delimiter = ',')]
    profile: Vec<String>,
    /// How many seeds each world gets; each profile a tenth of it, unless its world is named.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Only this seed.
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Leave a clause out. The run then succeeds only if a violation is found.
    #[arg(long)]
    without: Option<Omission>,
    /// List the worlds and end.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let all = worlds();
    if cli.list {
        all.iter().for_each(|world| say(&format!("{:<30} {}", world.label(), world.about)));
        return ExitCode::SUCCESS;
    }
    if let Some(name) = cli.world.as_deref().filter(|name| all.iter().all(|world| world.name != *name)) {
        let names: BTreeSet<_> = all.iter().map(|world| world.name).collect();
        let names: Vec<_> = names.into_iter().collect();
        say(&format!("there is no world {name:?}; there are {}", names.join(", ")));
        return ExitCode::FAILURE;
    }
    let unknown =
        cli.profile.iter().find(|name| all.iter().all(|world| world.profile.is_none_or(|known| known != *name)));
    if let Some(name) = unknown {
        say(&format!("there is no profile {name:?}; --list names them"));
        return ExitCode::FAILURE;
    }
    let (first, seeds) = cli.seed.map_or((cli.first, cli.seeds), |seed| (seed, 1));
    let chosen: Vec<_> = all
        .into_iter()
        .filter(|world| cli.world.as_deref().is_none_or(|name| name == world.name))
        .filter(|world| {
            cli.profile.is_empty()
                || world.profile.is_some_and(|profile| cli.profile.iter().any(|chosen| chosen == profile))
        })
        // A profile chosen by name is searched for any omission, also one that it does not list.
        .filter(|world| {
            let knows = |omission| world.omissions.contains(&omission) || !cli.profile.is_empty();
            cli.without.is_none_or(knows)
        })
        .collect();
    if chosen.is_empty() {
        say("no world has that clause to leave out");
        return ExitCode::FAILURE;
    }
    let mut good = true;
    for world in &chosen {
        // The profiles of a world share its seeds when everything is run.
        let shares = cli.world.is_none() && cli.seed.is_none() && cli.profile.is_empty() && world.profile.is_some();
        let seeds = if shares { seeds.div_ceil(10) } else { seeds };
        good &= report(world, first, seeds, cli.without);
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one world and prints its outcome; answers whether it is as expected.
fn report(world: &World, first: u64, seeds: u64, without: Option<Omission>) -> bool {
    let begun = Instant::now();
    let (outcome, violation) = sweep(world, first, seeds, without);
    let took = begun.elapsed().as_secs_f64();
    let name = world.label();
    match (violation, without) {
        (None, None) => {
            say(&format!("{name:<30} {seeds} seeds, {}, {took:.1} s: no violation", summary(&outcome)));
            true
        }
        (Some((seed, violation)), None) => {
            let profile = world.profile.map(|profile| format!(" --profile {profile}")).unwrap_or_default();
            let replay = format!("cargo xtask sim {}{profile} --seed {seed}", world.name);
            say(&format!("{name:<30} seed {seed}: {violation}\n  replay: {replay}"));
            world.explain(seed, None).iter().for_each(|text| say(text));
            false
        }
        (Some((seed, violation)), Some(omission)) => {
            say(&format!("{name:<30} without {omission:?}: found at seed {seed} ({took:.1} s): {violation}"));
            true
        }
        (None, Some(omission)) => {
            say(&format!("{name:<30} without {omission:?}: {seeds} seeds found nothing; the checkers are blind"));
            false
        }
    }
}

fn summary(outcome: &Outcome) -> String {
    let Outcome { steps, faults, checked, healthy_downed, lost, excused, performed } = outcome;
    let mut text = format!("{steps} steps, {faults} faults, {checked} checked");
    for (count, what) in [
        (healthy_downed, "healthy downed"),
        (lost, "clusters lost"),
        (excused, "excused"),
        (performed, "entries pruned"),
    ] {
        if *count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}

/// Runs the seeds on all cores. Of several violations yields that of the smallest seed.
fn sweep(world: &World, first: u64, seeds: u64, without: Option<Omission>) -> (Outcome, Option<(u64, Violation)>) {
    let next = AtomicU64::new(first);
    let state = Mutex::new((Outcome::default(), None::<(u64, Violation)>));
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let known =
                        state.lock().expect("no worker panics under the lock").1.as_ref().map(|(seed, _)| *seed);
                    if seed >= first + seeds || known.is_some_and(|known| known < seed) {
                        return;
                    }
                    let result = world.check(seed, without);
                    let mut state = state.lock().expect("no worker panics under the lock");
                    match result {
                        Ok(outcome) => state.0 += outcome,
                        Err(violation) if state.1.as_ref().is_none_or(|(known, _)| seed < *known) => {
                            state.1 = Some((seed, violation));
                        }
                        Err(_) => {}
                    }
                }
            });
        }
    });
    state.into_inner().expect("no worker panics under the lock")
}

fn say(line: &str) {
    // A write fails only if the reader has closed the pipe.
    let _ = writeln!(std::io::stdout(), "{line}");
}
