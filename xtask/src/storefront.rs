//! Runs the storefront many times, and kills a node at a random point of each run.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::run::{Failure, run, say};

/// The runs of the storefront.
#[derive(clap::Args)]
pub(crate) struct Runs {
    /// Number of runs, one for each seed.
    #[arg(long, visible_alias = "runs", default_value_t = 20)]
    seeds: u32,
    /// The first seed. A seed determines which node is killed, and when.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Store of the shard coordinator for the homes of shards.
    #[arg(long, value_parser = ["ddata", "persistence"], default_value = "ddata")]
    store_mode: String,
}

/// Runs the storefront once for each seed; the report of every run must match.
pub(crate) fn runs(Runs { seeds, seed, store_mode }: &Runs) -> Result<(), Failure> {
    run("cargo", &["build", "--release", "--package", "storefront"])?;
    let last = seed.saturating_add(u64::from(*seeds));
    for seed in *seed..last {
        let mut rng = StdRng::seed_from_u64(seed);
        let at = rng.random_range(5..95).to_string();
        let victim = ["region", "coordinator", "producer"][rng.random_range(0..3)];
        say(&format!("--- seed {seed}: --store-mode {store_mode} --kill {victim} --kill-at {at}"));
        let arguments = ["--store-mode", store_mode, "--kill", victim, "--kill-at", &at, "--plain"];
        let mut command = vec!["run", "--quiet", "--release", "--package", "storefront", "--"];
        command.extend(arguments);
        let again = format!("cargo xtask storefront --store-mode {store_mode} --seeds 1 --seed {seed}");
        run("cargo", &command).map_err(|failure| format!("seed {seed}: {failure}; replay by `{again}`"))?;
    }
    say(&format!("storefront, store mode {store_mode}: {seeds} runs, {seeds} matches"));
    Ok(())
}
