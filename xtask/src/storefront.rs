//! The main job again and again, a node killed at a random point each time.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::run::{Failure, run, say};

/// Runs the storefront `runs` times; every run must match.
pub(crate) fn runs(runs: u32, seed: u64) -> Result<(), Failure> {
    run("cargo", &["build", "--release", "--package", "storefront"])?;
    let mut rng = StdRng::seed_from_u64(seed);
    for number in 1..=runs {
        let at = rng.random_range(5..95).to_string();
        let victim = ["region", "coordinator"][rng.random_range(0..2)];
        say(&format!("--- run {number} of {runs}: --kill {victim} --kill-at {at}"));
        let arguments = ["--kill", victim, "--kill-at", &at, "--plain"];
        let mut command = vec!["run", "--quiet", "--release", "--package", "storefront", "--"];
        command.extend(arguments);
        run("cargo", &command).map_err(|failure| format!("run {number} of {runs} (seed {seed}): {failure}"))?;
    }
    say(&format!("storefront: {runs} runs, {runs} matches (seed {seed})"));
    Ok(())
}
