//! The gate, and the small tasks that it is made of.

use std::path::PathBuf;

use crate::run::{Failure, root, run, run_and_read, run_with, say};
use crate::{layers, licences, proto, scenarios, spec};

/// How many seeds the gate gives the simulation.
const GATE_SEEDS: &str = "2000";

/// How many seeds the gate gives each scenario of the cluster (cluster §9).
const GATE_CLUSTER_SEEDS: u64 = 100;

/// How many histories the gate gives the laws of each replicated type.
const GATE_HISTORIES: u64 = 10_000;

/// Everything that must hold before a change lands. Changes no file.
pub(crate) fn ci() -> Result<(), Failure> {
    run("cargo", &["fmt", "--all", "--check"])?;
    layers::layers()?;
    spec::spec(false)?;
    scenarios::scenarios()?;
    licences::licences()?;
    proto::proto(true)?;
    run("cargo", &["clippy", "--workspace", "--all-targets", "--all-features", "--quiet", "--", "--deny", "warnings"])?;
    // A broken link costs two minutes here, and the whole of the tests' time after them.
    run_with("cargo", &["doc", "--workspace", "--no-deps", "--quiet"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    let test = readme_test_command()?;
    unskipped(&test)?;
    benchmark()?;
    command_line()?;
    delivery_without_entities()?;
    laws(GATE_HISTORIES, "")?;
    sim(&["--seeds".to_owned(), GATE_SEEDS.to_owned()])?;
    // The joins of a hundred nodes take longer than all the rest; the tests play one, and `greylag-scale` more.
    played(GATE_CLUSTER_SEEDS, &["--skip", "scenario_36"])?;
    let programs = Programs::as_tested()?;
    programs.run("greylag-netns", &["--quick"])?;
    short_attack(&programs)?;
    say("ci: green");
    Ok(())
}

/// Runs the tests, and fails also if one says that it was skipped: what a fresh machine may lack (such
/// as PostgreSQL), the gate's machine must have.
fn unskipped(test: &str) -> Result<(), Failure> {
    let skipped = run_and_read("bash", &["-c", test], |line| line.starts_with("SKIPPED:"))?;
    if skipped.is_empty() { Ok(()) } else { Err(format!("tests were skipped:\n  {}", skipped.join("\n  "))) }
}

/// The replicator's benchmark in its short form: `cargo test` compiles and runs a benchmark only where it is named, so one
/// that no longer works would be noticed when figures are wanted.
fn benchmark() -> Result<(), Failure> {
    run("cargo", &["test", "--quiet", "--workspace", "--all-features", "--bench", "replicator"])
}

/// The command line with fewer features than the tests of the workspace give it: with each alone it compiles, and with
/// none its tests pass, which ask for what is missing.
fn command_line() -> Result<(), Failure> {
    for features in ["journal-sled", "journal-postgres", ""] {
        let of_cli = ["--quiet", "--package", "greylag-cli", "--features", features];
        run("cargo", &[&["clippy"], &of_cli[..], &["--all-targets", "--", "--deny", "warnings"]].concat())?;
    }
    run("cargo", &["test", "--quiet", "--package", "greylag-cli"])
}

/// Delivery without entities, which the tests of the workspace have: with each feature alone it compiles, and with none
/// point to point and work pulling pass their tests.
fn delivery_without_entities() -> Result<(), Failure> {
    let package = ["--quiet", "--package", "greylag-delivery", "--no-default-features"];
    for features in ["", "sharding", "persistence", "ddata", "serde"] {
        let of_library = ["--features", features, "--", "--deny", "warnings"];
        run("cargo", &[&["clippy"], &package[..], &of_library].concat())?;
    }
    let tests = ["--lib", "--test", "point_to_point", "--test", "work_pulling"];
    run("cargo", &[&["test"], &package[..], &tests].concat())
}

/// The second command of the README, so that what people are told is what is checked.
fn readme_test_command() -> Result<String, Failure> {
    let readme = std::fs::read_to_string(root().join("README.md")).map_err(|error| format!("no README.md: {error}"))?;
    readme
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("cargo test"))
        .map(ToOwned::to_owned)
        .ok_or("README.md names no command that begins with `cargo test`".to_owned())
}

/// Runs the simulation.
pub(crate) fn sim(arguments: &[String]) -> Result<(), Failure> {
    release("greylag-simulation", arguments)
}

/// Plays each scenario of the cluster with so many seeds, optimized.
pub(crate) fn sim_cluster(seeds: u64) -> Result<(), Failure> {
    played(seeds, &[])
}

fn played(seeds: u64, which: &[&str]) -> Result<(), Failure> {
    let test = ["test", "--quiet", "--release", "--package", "greylag-cluster", "--test", "simulation", "--"];
    run_with("cargo", &[&test, which].concat(), &[("GREYLAG_CLUSTER_SEEDS", &seeds.to_string())])
}

/// Stops the process that answers for 0.5 to 60 s under reads from all nodes, with short settings and with the
/// defaults; fails if an answer is older than one that was given before.
pub(crate) fn sleeps() -> Result<(), Failure> {
    let test = ["test", "--quiet", "--release", "--package", "greylag", "--test", "sleep"];
    for settings in ["short", "default"] {
        run_with("cargo", &test, &[("GREYLAG_SLEEPS", "0.5,2,5,15,30,60"), ("GREYLAG_SLEEP_SETTINGS", settings)])?;
    }
    Ok(())
}

/// Kills a durable replicator under load so many times, optimized; fails if an acknowledged update is lost.
pub(crate) fn durable(cycles: u64) -> Result<(), Failure> {
    let arguments = [
        "test",
        "--quiet",
        "--release",
        "--package",
        "greylag-store-sled",
        "--features",
        "ddata",
        "--test",
        "ddata_crash",
        "--",
        "--nocapture",
        "acknowledged",
    ];
    run_with("cargo", &arguments, &[("GREYLAG_DDATA_CRASH_CYCLES", &cycles.to_string())])
}

/// Kills the embedded journal under load so many times, optimized; fails if anything acknowledged is lost.
pub(crate) fn journal_crash(cycles: u64) -> Result<(), Failure> {
    journal_sled("crash", "acknowledged", ("GREYLAG_CRASH_CYCLES", cycles))
}

/// Damages copies of embedded journals so many times, optimized; fails if anything is read wrong.
pub(crate) fn journal_damage(flips: u64) -> Result<(), Failure> {
    journal_sled("mutilation", "", ("GREYLAG_MUTILATIONS", flips))?;
    journal_sled("power_loss", "", ("GREYLAG_POWER_LOSSES", flips))
}

fn journal_sled(test: &str, only: &str, (variable, count): (&str, u64)) -> Result<(), Failure> {
    let cargo = ["test", "--quiet", "--release", "--package", "greylag-journal-sled", "--test", test, "--"];
    let arguments = [&cargo[..], &["--nocapture", "--test-threads=1", only]].concat();
    run_with("cargo", &arguments, &[(variable, &count.to_string())])
}

/// Checks the laws of every replicated type over so many histories each.
pub(crate) fn laws(histories: u64, only: &str) -> Result<(), Failure> {
    let test =
        ["test", "--quiet", "--release", "--package", "greylag-crdt", "--test", "laws", "--", "--nocapture", only];
    run_with("cargo", &test, &[("GREYLAG_LAWS", &histories.to_string())])
}

/// Runs real nodes in network namespaces.
pub(crate) fn netns(arguments: &[String]) -> Result<(), Failure> {
    release("greylag-netns", arguments)
}

fn release(package: &str, arguments: &[String]) -> Result<(), Failure> {
    let mut command = vec!["run", "--quiet", "--release", "--package", package, "--"];
    command.extend(arguments.iter().map(String::as_str));
    run("cargo", &command)
}

/// Saturates the data lanes for so long.
pub(crate) fn soak(seconds: u64, nodes: usize) -> Result<(), Failure> {
    release("greylag-soak", &["--seconds".to_owned(), seconds.to_string(), "--nodes".to_owned(), nodes.to_string()])
}

/// Gives jobs to workers that are killed, or more than they can do.
pub(crate) fn jobs(arguments: &[String]) -> Result<(), Failure> {
    release("greylag-jobs", arguments)
}

/// The programs of the workspace as the tests have built them. Whether nodes keep their promises shows in a debug build
/// too, and an optimized one takes longer to build than the programs run.
struct Programs(PathBuf);

impl Programs {
    fn as_tested() -> Result<Self, Failure> {
        run("cargo", &["build", "--quiet", "--workspace", "--all-features", "--bins"])?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        Ok(Self(target.join("debug")))
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), Failure> {
        run(&self.0.join(program).display().to_string(), arguments)
    }
}

/// Attacks a storefront for a moment.
fn short_attack(programs: &Programs) -> Result<(), Failure> {
    for tls in [&["--tls"][..], &[]] {
        programs.run("greylag-attack", &[&["--lenient", "--seconds", "10", "--purchases", "5000"], tls].concat())?;
    }
    Ok(())
}

/// Attacks a storefront for so long.
pub(crate) fn attack(seconds: u64, tls: bool, lenient: bool) -> Result<(), Failure> {
    run("cargo", &["build", "--quiet", "--release", "--package", "storefront"])?;
    let flags = [(tls, "--tls"), (lenient, "--lenient")].into_iter().filter(|(wanted, _)| *wanted);
    let seconds = ["--seconds".to_owned(), seconds.to_string()].into_iter();
    let arguments: Vec<String> = seconds.chain(flags.map(|(_, flag)| flag.to_owned())).collect();
    release("greylag-attack", &arguments)
}
