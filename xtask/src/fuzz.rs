//! Feeds invalid bytes to every decoder that reads bytes of a peer.

use crate::run::{Failure, command, output, root, run, say};

/// Limit of the memory, in MiB: the largest frame has 2 MiB, so more is a leak or an attack.
const MEMORY: &str = "-rss_limit_mb=512";
/// Limit of a single allocation for a peer's bytes, in MiB.
const ALLOCATION: &str = "-malloc_limit_mb=16";
/// Limit of an input, in bytes: more than a frame on the control lane has.
const LENGTH: &str = "-max_len=4096";

/// Runs the targets whose name contains `only`, one after the other, each for `runs` inputs.
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
