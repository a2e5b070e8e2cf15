//! The gate, and the tasks that it consists of.

use std::path::PathBuf;

use crate::run::{Failure, root, run, run_and_read, run_with, say};
use crate::{layers, licences, proto, scenarios, sizes, spec};

/// Seeds of the simulation in the gate.
const GATE_SEEDS: &str = "2000";

/// Seeds of each scenario of the cluster in the gate (cluster §9).
const GATE_CLUSTER_SEEDS: u64 = 100;

/// Histories for the laws of each replicated type in the gate.
const GATE_HISTORIES: u64 = 10_000;

/// Runs every check that a change must pass. Changes no file.
pub(crate) fn ci() -> Result<(), Failure> {
    run("cargo", &["fmt", "--all", "--check"])?;
    layers::layers()?;
    sizes::sizes()?;
    spec::spec(false)?;
    scenarios::scenarios()?;
    licences::licences()?;
    proto::proto(true)?;
    run("cargo", &["clippy", "--workspace", "--all-targets", "--all-features", "--quiet", "--", "--deny", "warnings"])?;
    // Before the tests: a broken link is then reported after two minutes, not after all tests.
    run_with("cargo", &["doc", "--workspace", "--no-deps", "--quiet"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    let test = readme_test_command()?;
    run_tests_unskipped(&test)?;
    replicator_benchmark()?;
    command_line_features()?;
    delivery_features()?;
    laws(GATE_HISTORIES, "")?;
    sim(&["--seeds".to_owned(), GATE_SEEDS.to_owned()])?;
    // Skips the joins of a hundred nodes, which take longer than all other scenarios; the tests run them with one seed,
    // and `greylag-scale` with more.
    cluster_scenarios(GATE_CLUSTER_SEEDS, &["--skip", "scenario_36"])?;
    let programs = Programs::as_tested()?;
    programs.run("greylag-netns", &["--quick"])?;
    short_attack(&programs)?;
    say("ci: green");
    Ok(())
}

/// Runs the tests, and fails also if a test prints that it was skipped: a fresh machine may lack a program such as
/// PostgreSQL, but the machine of the gate must have it.
fn run_tests_unskipped(test: &str) -> Result<(), Failure> {
    let skipped = run_and_read("bash", &["-c", test], |line| line.starts_with("SKIPPED:"))?;
    if skipped.is_empty() { Ok(()) } else { Err(format!("tests were skipped:\n  {}", skipped.join("\n  "))) }
}

/// Runs the replicator's benchmark in its short form, because `cargo test` compiles and runs only named benchmarks, and a
/// broken one would stay unnoticed.
fn replicator_benchmark() -> Result<(), Failure> {
    run("cargo", &["test", "--quiet", "--workspace", "--all-features", "--bench", "replicator"])
}

/// Checks the command line with fewer features than in the workspace: with each feature alone it must compile, and
/// without features its tests must pass, some of which check the message for a missing feature.
fn command_line_features() -> Result<(), Failure> {
    for features in ["journal-sled", "journal-postgres", ""] {
        let of_cli = ["--quiet", "--package", "greylag-cli", "--features", features];
        run("cargo", &[&["clippy"], &of_cli[..], &["--all-targets", "--", "--deny", "warnings"]].concat())?;
    }
    run("cargo", &["test", "--quiet", "--package", "greylag-cli"])
}

/// Checks delivery with fewer features than in the workspace: with each feature alone it must compile, and without
/// features the tests of the remaining parts, such as point-to-point delivery and work pulling, must pass.
fn delivery_features() -> Result<(), Failure> {
    let package = ["--quiet", "--package", "greylag-delivery", "--no-default-features"];
    for features in ["", "sharding", "persistence", "ddata", "serde"] {
        let of_library = ["--features", features, "--", "--deny", "warnings"];
        run("cargo", &[&["clippy"], &package[..], &of_library].concat())?;
    }
    let tests = ["--lib", "--test", "suite"];
    run("cargo", &[&["test"], &package[..], &tests].concat())
}

/// The test command of the README, so that the gate runs the command that users read.
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
    run_release("greylag-simulation", arguments)
}

/// Runs each scenario of the cluster with this many seeds, in a release build.
pub(crate) fn sim_cluster(seeds: u64) -> Result<(), Failure> {
    cluster_scenarios(seeds, &[])
}

fn cluster_scenarios(seeds: u64, which: &[&str]) -> Result<(), Failure> {
    let test = ["test", "--quiet", "--release", "--package", "greylag-cluster", "--test", "simulation", "--"];
    run_with("cargo", &[&test, which].concat(), &[("GREYLAG_CLUSTER_SEEDS", &seeds.to_string())])
}

/// Pauses the process that answers for 0.5 to 60 s under reads from all nodes, with short settings and with the
/// defaults; fails if an answer is older than an earlier one.
pub(crate) fn sleeps() -> Result<(), Failure> {
    let test = ["test", "--quiet", "--release", "--package", "greylag", "--test", "sleep"];
    for settings in ["short", "default"] {
        run_with("cargo", &test, &[("GREYLAG_SLEEPS", "0.5,2,5,15,30,60"), ("GREYLAG_SLEEP_SETTINGS", settings)])?;
    }
    Ok(())
}

/// Kills a durable replicator under load this many times, in a release build; fails if an acknowledged update is lost.
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
        "suite",
        "--",
        "--nocapture",
        "ddata_crash::a_replicator_killed_under_load",
    ];
    run_with("cargo", &arguments, &[("GREYLAG_DDATA_CRASH_CYCLES", &cycles.to_string())])
}

/// Kills the embedded journal under load this many times, in a release build; fails if an acknowledged write is lost.
pub(crate) fn journal_crash(cycles: u64) -> Result<(), Failure> {
    journal_sled("crash::killed_under_load", ("GREYLAG_CRASH_CYCLES", cycles))
}

/// Damages copies of embedded journals this many times, in a release build; fails if a wrong value is read.
pub(crate) fn journal_damage(flips: u64) -> Result<(), Failure> {
    journal_sled("mutilation::", ("GREYLAG_MUTILATIONS", flips))?;
    journal_sled("power_loss::", ("GREYLAG_POWER_LOSSES", flips))
}

fn journal_sled(tests: &str, (variable, count): (&str, u64)) -> Result<(), Failure> {
    let cargo = ["test", "--quiet", "--release", "--package", "greylag-journal-sled", "--test", "suite", "--"];
    let arguments = [&cargo[..], &["--nocapture", "--test-threads=1", tests]].concat();
    run_with("cargo", &arguments, &[(variable, &count.to_string())])
}

/// Checks the laws of every replicated type over this many histories each.
pub(crate) fn laws(histories: u64, only: &str) -> Result<(), Failure> {
    let test =
        ["test", "--quiet", "--release", "--package", "greylag-crdt", "--test", "laws", "--", "--nocapture", only];
    run_with("cargo", &test, &[("GREYLAG_LAWS", &histories.to_string())])
}

/// Runs real nodes in network namespaces.
pub(crate) fn netns(arguments: &[String]) -> Result<(), Failure> {
    run_release("greylag-netns", arguments)
}

fn run_release(package: &str, arguments: &[String]) -> Result<(), Failure> {
    let mut command = vec!["run", "--quiet", "--release", "--package", package, "--"];
    command.extend(arguments.iter().map(String::as_str));
    run("cargo", &command)
}

/// Saturates the data lanes for this many seconds.
pub(crate) fn soak(seconds: u64, nodes: usize) -> Result<(), Failure> {
    run_release("greylag-soak", &["--seconds".to_owned(), seconds.to_string(), "--nodes".to_owned(), nodes.to_string()])
}

/// Gives jobs to workers that are killed, or more jobs than the workers can do.
pub(crate) fn jobs(arguments: &[String]) -> Result<(), Failure> {
    run_release("greylag-jobs", arguments)
}

/// The programs of the workspace in the debug build that the tests have made: a release build would take longer than the
/// programs run, and finds no other errors.
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

/// Attacks a storefront for ten seconds, with TLS and without.
fn short_attack(programs: &Programs) -> Result<(), Failure> {
    for tls in [&["--tls"][..], &[]] {
        programs.run("greylag-attack", &[&["--lenient", "--seconds", "10", "--purchases", "5000"], tls].concat())?;
    }
    Ok(())
}

/// Attacks a storefront for this many seconds.
pub(crate) fn attack(seconds: u64, tls: bool, lenient: bool) -> Result<(), Failure> {
    run("cargo", &["build", "--quiet", "--release", "--package", "storefront"])?;
    let flags = [(tls, "--tls"), (lenient, "--lenient")].into_iter().filter(|(wanted, _)| *wanted);
    let seconds = ["--seconds".to_owned(), seconds.to_string()].into_iter();
    let arguments: Vec<String> = seconds.chain(flags.map(|(_, flag)| flag.to_owned())).collect();
    run_release("greylag-attack", &arguments)
}
