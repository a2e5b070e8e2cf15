//! Feeds every decoder that reads bytes of a peer with bytes that no peer would send.

use crate::run::{Failure, command, output, root, run, say};

/// More memory than that, in MiB, is a leak or a bomb: the largest frame has 2 MiB.
const MEMORY: &str = "-rss_limit_mb=512";
/// No single allocation for a peer's bytes is larger, in MiB.
const ALLOCATION: &str = "-malloc_limit_mb=16";
/// The largest input, in bytes: more than a frame on the control lane.
const LENGTH: &str = "-max_len=4096";

/// Runs the targets whose name holds `only`, one after the other, each for so many inputs.
pub(crate) fn fuzz(runs: u64, only: &str) -> Result<(), Failure> {
    let is_there = |arguments: &[&str]| command("cargo").args(arguments).output().is_ok_and(|o| o.status.success());
    if !is_there(&["fuzz", "--version"]) {
        return Err("cargo-fuzz is missing: `cargo install cargo-fuzz`".to_owned());
    }
    if !is_there(&["+nightly", "--version"]) {
        return Err("a nightly compiler is missing: `rustup toolchain install nightly`".to_owned());
    }
    let fuzz = root().join("fuzz");
    let fuzz = fuzz.to_str().ok_or("the path of this repository is not text")?;
    run(
        "cargo",
        &["+nightly", "run", "--release", "--manifest-path", &format!("{fuzz}/Cargo.toml"), "--example", "seeds"],
    )?;
    let targets = output("cargo", &["fuzz", "list", "--fuzz-dir", fuzz])?;
    let runs = format!("-runs={runs}");
    for target in targets.lines().filter(|target| target.contains(only)) {
        let limits = ["--", &runs, MEMORY, ALLOCATION, LENGTH, "-print_final_stats=1"];
        run("cargo", &[&["+nightly", "fuzz", "run", "--fuzz-dir", fuzz, target], &limits[..]].concat())?;
        say(&format!("fuzz: {target}: {runs} inputs, no panic, within {MEMORY}"));
    }
    Ok(())
}
