//! Work pulling at its limits: a million jobs for worker processes of which one is killed every second, and ten times
//! as many jobs as the workers can do. `cargo xtask jobs` runs it.
//!
//! Every worker writes a record when it begins a job and when it has done the job, before it confirms; the producer's
//! process notes when it learns of the confirmation. All processes take the times from one clock of the machine, so
//! afterwards each job can be checked: whether it was done, whether that was before its confirmation, and whether it
//! was begun again after its confirmation. The run fails if a guarantee was violated for any job.
//!
//! Source: delivery §2, W4, W5, W8.

mod crew;
mod kills;
mod ledger;
mod memory;
mod overload;
mod record;
mod worker;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use greylag::prelude::*;

/// Any error, which ends the run and is printed.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A run that makes no progress for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Parser)]
#[command(name = "greylag-jobs", about = "Jobs for worker processes that are killed")]
struct Arguments {
    #[command(flatten)]
    kills: Kills,
    #[command(subcommand)]
    mode: Option<Mode>,
}

#[derive(Args)]
struct Kills {
    /// How many jobs.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    jobs: u64,
    /// How many worker processes at any time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=1_000))]
    workers: u64,
    /// From one kill to the next, in milliseconds.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    kill_every_ms: u64,
    /// How long a job takes, in microseconds; 0 for no time at all.
    #[arg(long, default_value_t = 0)]
    work_us: u64,
}

#[derive(Subcommand)]
enum Mode {
    /// Offer more jobs than the workers can do: memory stays flat, and each refused job gets an error.
    Overload(Overload),
    /// One worker; started by the program itself.
    #[command(hide = true)]
    Worker(worker::Worker),
}

#[derive(Args)]
struct Overload {
    /// How long the overload lasts.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How many times what the workers can do is offered.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=1_000))]
    times: u64,
    /// How many worker processes.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    workers: u64,
    /// Report how many jobs are done under overload, and do not judge it: for a machine that has other work.
    #[arg(long)]
    lenient: bool,
}

/// The work key of the jobs, which are plain numbers.
fn jobs() -> WorkKey<u64> {
    WorkKey::new("jobs", json("job"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { kills, mode } = Arguments::parse();
    let outcome = match mode {
        None => kills::run(&kills).await,
        Some(Mode::Overload(overload)) => overload::run(&overload).await,
        Some(Mode::Worker(worker)) => worker::run(&worker).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&format!("jobs: {failure}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints one line; errors are ignored, since the reader may close the pipe.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
