//! Changes the machines on purpose by cargo-mutants, and checks that a test fails for each change.
//!
//! `.cargo/mutants.toml` selects the files to change: the pure machines. All changes of the workspace would take days, so
//! the task makes a share that a seed selects, or the changes in the lines of a diff.
//!
//! The tests of the machines run first, because they are built and run in seconds. All tests of a crate run only for the
//! mutants that these tests miss.

use std::path::Path;

use serde_json::Value;

use crate::run::{Failure, command, output, root, say};

/// The crates with machines.
const CRATES: &[&str] = &[
    "greylag-cluster",
    "greylag-ddata",
    "greylag-persistence",
    "greylag-transport",
    "greylag-sharding",
    "greylag-delivery",
];

/// Percentage of the mutants that compile for which a test must fail.
const REQUIRED_PERCENT: usize = 95;

/// The test targets of machines, besides the unit tests: transcripts and simulations.
const MACHINE_TESTS: &[&str] = &["protocol", "simulation"];

/// The mutants to make.
pub(crate) struct Choice {
    /// The number of equal shares into which the mutants are divided; one share is run.
    pub(crate) share: u64,
    /// Selects the share.
    pub(crate) seed: u64,
    /// If set, all mutants in the lines that differ from this revision, and no others.
    pub(crate) diff: Option<String>,
    /// Only crates whose name contains this text.
    pub(crate) only: String,
}

/// The outcomes of the mutants of one crate.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    /// Count of mutants for which a test failed or timed out.
    noticed: usize,
    /// Mutants for which no test failed; a person reads them.
    missed: Vec<String>,
    /// Count of mutants that did not compile.
    unviable: usize,
}

/// Runs cargo-mutants for each crate, and fails if tests failed for too few mutants.
pub(crate) fn mutants(choice: &Choice) -> Result<(), Failure> {
    if !command("cargo").args(["mutants", "--version"]).output().is_ok_and(|o| o.status.success()) {
        return Err("cargo-mutants is missing: `cargo install --locked cargo-mutants`".to_owned());
    }
    let out = root().join("target/mutants");
    std::fs::create_dir_all(&out).map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let diff = choice.diff.as_deref().map(|revision| write_diff(revision, &out)).transpose()?;
    let mut all = Tally::default();
    for name in CRATES.iter().filter(|name| name.contains(&choice.only)) {
        let tally = run_for_crate(name, choice, diff.as_deref(), &out)?;
        say(&format!("mutants: {name}: {}", describe(&tally)));
        all.noticed += tally.noticed;
        all.unviable += tally.unviable;
        all.missed.extend(tally.missed);
    }
    for missed in &all.missed {
        say(&format!("missed: {missed}"));
    }
    say(&format!("mutants: {}", describe(&all)));
    let viable = all.noticed + all.missed.len();
    if viable > 0 && all.noticed * 100 < viable * REQUIRED_PERCENT {
        return Err(format!(
            "tests failed for fewer than {REQUIRED_PERCENT} in 100 mutants; read the missed ones above"
        ));
    }
    Ok(())
}

/// Runs the tests of the machines for the mutants of one crate, and all its tests for the missed ones.
fn run_for_crate(name: &str, choice: &Choice, diff: Option<&str>, out: &Path) -> Result<Tally, Failure> {
    let which = selection_arguments(choice, diff);
    let mut tally = run_mutants(name, &which, &tests_of_machines(name), &out.join(name))?;
    if !tally.missed.is_empty() {
        let missed: Vec<String> =
            tally.missed.iter().flat_map(|name| ["--re".to_owned(), exact_pattern(name)]).collect();
        let again = run_mutants(name, &missed, &[], &out.join(format!("{name}-all-tests")))?;
        tally.noticed += again.noticed;
        tally.missed = again.missed;
    }
    Ok(tally)
}

/// Runs cargo-mutants for some mutants, with some tests or, if none is named, with all.
fn run_mutants(name: &str, which: &[String], tests: &[String], place: &Path) -> Result<Tally, Failure> {
    // A run that finds nothing to change writes no output; the output of an earlier run would be counted again.
    std::fs::remove_dir_all(place).ok();
    let arguments = arguments(name, which, tests, place);
    say(&format!("==> cargo {}", arguments.join(" ")));
    // The exit status is ignored: it only tells whether a mutant was missed, and the outcomes name the missed ones.
    command("cargo").args(&arguments).status().map_err(|error| format!("cannot run cargo mutants: {error}"))?;
    tally(place)
}

/// The arguments of cargo for the tests of a crate's machines.
fn tests_of_machines(name: &str) -> Vec<String> {
    let tests = root().join("crates").join(name).join("tests");
    let is_there =
        |test: &&&str| tests.join(format!("{test}.rs")).is_file() || tests.join(test).join("main.rs").is_file();
    let named = MACHINE_TESTS.iter().filter(is_there).flat_map(|test| ["--test".to_owned(), (*test).to_owned()]);
    ["--lib".to_owned()].into_iter().chain(named).collect()
}

/// A regular expression that matches only this name of a mutant.
fn exact_pattern(name: &str) -> String {
    let escaped = name.chars().map(|c| if c.is_ascii_punctuation() { format!("\\{c}") } else { c.to_string() });
    format!("^{}$", escaped.collect::<String>().replace("\\<", "<").replace("\\>", ">"))
}

/// Writes the lines that differ from a revision to a file; answers its path.
fn write_diff(revision: &str, out: &Path) -> Result<String, Failure> {
    let text = output("git", &["diff", revision, "--", "crates/*/src"])?;
    if text.trim().is_empty() {
        return Err(format!("nothing below crates/*/src differs from {revision}"));
    }
    let path = out.join("lines.diff");
    std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path.display().to_string())
}

/// The arguments of cargo-mutants for the mutants of a choice.
fn selection_arguments(choice: &Choice, diff: Option<&str>) -> Vec<String> {
    if let Some(diff) = diff {
        return vec!["--in-diff".to_owned(), diff.to_owned()];
    }
    let share = choice.share.max(1);
    let shard = format!("{}/{share}", choice.seed % share);
    vec!["--shard".to_owned(), shard, "--sharding".to_owned(), "round-robin".to_owned()]
}

fn arguments(name: &str, which: &[String], tests: &[String], place: &Path) -> Vec<String> {
    let place = place.display().to_string();
    let all = ["mutants", "--package", name, "--no-shuffle", "--colors", "never", "--output", &place];
    let mut arguments: Vec<String> = all.map(ToOwned::to_owned).to_vec();
    arguments.extend_from_slice(which);
    // Passed by `--cargo-arg`: arguments after `--` would select the tests to run, but all tests would be built.
    arguments.extend(tests.iter().map(|test| format!("--cargo-arg={test}")));
    arguments
}

fn describe(tally: &Tally) -> String {
    let Tally { noticed, missed, unviable } = tally;
    let viable = noticed + missed.len();
    format!("{noticed} of {viable} noticed, {} missed; {unviable} more did not compile", missed.len())
}

/// Reads the outcomes that cargo-mutants wrote.
fn tally(place: &Path) -> Result<Tally, Failure> {
    let path = place.join("mutants.out/outcomes.json");
    // A crate in which there is nothing to change leaves no file.
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(Tally::default()) };
    let outcomes: Value =
        serde_json::from_str(&text).map_err(|error| format!("{} is not JSON: {error}", path.display()))?;
    let mut tally = Tally::default();
    for outcome in outcomes["outcomes"].as_array().into_iter().flatten() {
        let name = || outcome["scenario"]["Mutant"]["name"].as_str().unwrap_or("a mutant without a name").to_owned();
        match outcome["summary"].as_str().unwrap_or_default() {
            "CaughtMutant" | "Timeout" => tally.noticed += 1,
            "MissedMutant" => tally.missed.push(name()),
            "Unviable" => tally.unviable += 1,
            "Success" => {} // the tests of the unchanged crate
            other => {
                return Err(format!("the tests of the unchanged crate ended with `{other}`: see {}", path.display()));
            }
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted_and_the_missed_are_named() {
        let place = std::env::temp_dir().join(format!("greylag-mutants-{}", std::process::id()));
        std::fs::create_dir_all(place.join("mutants.out")).unwrap();
        let write = |text: &str| std::fs::write(place.join("mutants.out/outcomes.json"), text).unwrap();
        write(
            r#"{"outcomes": [
                {"scenario": "Baseline", "summary": "Success"},
                {"scenario": {"Mutant": {"name": "a.rs:1: replace f"}}, "summary": "CaughtMutant"},
                {"scenario": {"Mutant": {"name": "b.rs:2: replace g"}}, "summary": "MissedMutant"},
                {"scenario": {"Mutant": {"name": "c.rs:3: replace h"}}, "summary": "Unviable"},
                {"scenario": {"Mutant": {"name": "d.rs:4: replace i"}}, "summary": "Timeout"}]}"#,
        );
        let found = tally(&place).unwrap();
        assert_eq!(found, Tally { noticed: 2, missed: vec!["b.rs:2: replace g".to_owned()], unviable: 1 });
        write(r#"{"outcomes": [{"scenario": "Baseline", "summary": "Failure"}]}"#);
        assert!(tally(&place).unwrap_err().contains("Failure"));
        std::fs::remove_dir_all(&place).unwrap();
        assert_eq!(tally(&place).unwrap(), Tally::default());
    }

    #[test]
    fn a_share_is_drawn_by_the_seed_and_a_difference_is_taken_whole() {
        let choice = Choice { share: 40, seed: 83, diff: None, only: String::new() };
        let drawn = selection_arguments(&choice, None).join(" ");
        assert!(drawn.contains("--shard 3/40"), "{drawn}");
        assert_eq!(selection_arguments(&choice, Some("x.diff")), ["--in-diff", "x.diff"]);
    }

    #[test]
    fn tests_of_machines_come_first_and_the_missed_are_named_exactly() {
        assert_eq!(tests_of_machines("greylag-delivery"), ["--lib", "--test", "protocol", "--test", "simulation"]);
        assert_eq!(tests_of_machines("greylag-cluster"), ["--lib", "--test", "protocol", "--test", "simulation"]);
        assert_eq!(tests_of_machines("greylag-persistence"), ["--lib", "--test", "protocol"]);
        let named = arguments("greylag-ddata", &[], &["--lib".to_owned()], Path::new("out")).join(" ");
        assert!(named.ends_with("--output out --cargo-arg=--lib"), "{named}");
        assert_eq!(exact_pattern("a_b.rs:1: replace f -> u8 with <T>"), r"^a\_b\.rs\:1\: replace f \-> u8 with <T>$");
    }
}
