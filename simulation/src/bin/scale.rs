//! Prints how membership scales with the size of a cluster; see `greylag_simulation::scale`.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use greylag_simulation::scale::{self, Parted, Plan, Report, Wire};

/// Limit of processor time, on one core, for sixty virtual seconds of a thousand members with a partition (cluster C5).
const PROCESSOR_BUDGET: Duration = Duration::from_secs(60);

/// Big clusters on virtual time. Fails if a single change converges too late (cluster G2), or the
/// partition costs too much (cluster C5).
#[derive(Parser)]
#[command(name = "greylag-scale")]
struct Cli {
    /// The sizes to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000])]
    members: Vec<usize>,
    /// Where chance begins.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many changes of each kind.
    #[arg(long, default_value_t = 3)]
    changes: usize,
    /// Encode every message and read it again: slower, and what one real node pays.
    #[arg(long)]
    wire: bool,
    /// Instead: sixty virtual seconds with a partition, at these sizes.
    #[arg(long)]
    partition: bool,
    /// Say on the standard error every virtual second how far it is.
    #[arg(long)]
    progress: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if !cli.partition {
        say(Report::HEAD);
    }
    let wire = if cli.wire { Wire::Real } else { Wire::Values };
    for &members in &cli.members {
        let progress = cli.progress.then_some(tell as fn(&str));
        let plan = Plan { members: members.max(2), seed: cli.seed, wire, changes: cli.changes.max(1), progress };
        if let Err(failure) = if cli.partition { partition(plan) } else { measure(plan) } {
            say(&format!("{members} members: {failure}"));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn measure(plan: Plan) -> Result<(), String> {
    let report = scale::measure(plan)?;
    say(&report.to_string());
    let slowest = report.slowest();
    match report.budget() {
        Some(budget) if slowest > budget => Err(format!("a change converged after {slowest:?}, not within {budget:?}")),
        _ => Ok(()),
    }
}

fn partition(plan: Plan) -> Result<(), String> {
    let Parted { time, processor, healing, biggest } = scale::partition(plan)?;
    let (seconds, healing) = (processor.as_secs_f64(), healing.as_secs_f64());
    say(&format!(
        "{} members, {time:?} with a partition: {seconds:.1} s of one core; all agree {healing:.1} s after it; \
         the biggest message has {} KiB",
        plan.members,
        biggest / 1024
    ));
    if plan.members <= 1000 && plan.wire == Wire::Values && processor > PROCESSOR_BUDGET {
        return Err(format!("that is more than {PROCESSOR_BUDGET:?}"));
    }
    Ok(())
}

fn say(line: &str) {
    // A write fails only if the reader has closed the pipe.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
