//! Prints how membership behaves as a cluster grows; see `greylag_simulation::scale`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use greylag_simulation::scale::{self, Report};

/// Big clusters on virtual time.
#[derive(Parser)]
#[command(name = "cargo xtask scale")]
struct Cli {
    /// The sizes to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000])]
    members: Vec<usize>,
    /// Where chance begins.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead: sixty virtual seconds with a partition, at these sizes.
    #[arg(long)]
    partition: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if !cli.partition {
        say(Report::HEAD);
    }
    for &members in &cli.members {
        let line = if cli.partition {
            scale::partition(members, cli.seed).map(|(virtual_time, took)| {
                format!("{members} members, {virtual_time:?} with a partition: {:.1} s of one core", took.as_secs_f64())
            })
        } else {
            scale::measure(members, cli.seed).map(|report| report.to_string())
        };
        match line {
            Ok(line) => say(&line),
            Err(failure) => {
                say(&format!("{members} members: {failure}"));
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn say(line: &str) {
    // A closed pipe is the reader's choice.
    let _ = writeln!(std::io::stdout(), "{line}");
}
