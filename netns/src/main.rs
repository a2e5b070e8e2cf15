//! Real nodes, one process each, in network namespaces that this program creates and removes.
//!
//! Simulation tests the state machines; this program tests them with real sockets, kernels and schedulers.
//! Each scenario builds its own hosts, breaks one thing, and reads what the nodes report: lines of
//! JSON, stamped by the one clock of this machine. Where entities are hosted, clients on every node write and read
//! them, and their answers are checked: see [`judge`]. Needs root, `ip` (iproute2), `nft` (nftables) and PostgreSQL.
//!
//! Source: cluster scenarios 44, 60, 61, 76, 85; cluster S14, S20 and F9 for kills, cuts and pauses; sharding I1, §4.1, §5,
//! scenarios 20, 21 and 22.

mod judge;
mod lab;
mod node;
mod process;
mod record;
mod report;
mod scenario;
mod sharded;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::scenario::SCENARIOS;

/// Real nodes in network namespaces.
#[derive(Parser)]
#[command(name = "cargo xtask netns")]
struct Cli {
    #[command(subcommand)]
    task: Option<Task>,
    /// Which scenarios, by name; all of them if none is named.
    only: Vec<String>,
    /// The short form that the gate runs: fewer kills, no long pauses.
    #[arg(long)]
    quick: bool,
    /// List the scenarios and end.
    #[arg(long)]
    list: bool,
    /// One after another. Otherwise those that measure no time of their own run beside each other.
    #[arg(long)]
    serial: bool,
}

#[derive(Subcommand)]
enum Task {
    /// One node; started by the scenarios.
    #[command(hide = true)]
    Node(node::Arguments),
    /// One node with entities and clients; started by the scenarios.
    #[command(hide = true)]
    ShardNode(sharded::Arguments),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.task {
        Some(Task::Node(arguments)) => return node::run(arguments),
        Some(Task::ShardNode(arguments)) => return sharded::run(arguments),
        None => {}
    }
    if cli.list {
        SCENARIOS.iter().for_each(|scenario| say(&format!("{:<25} {}", scenario.name, scenario.about)));
        return ExitCode::SUCCESS;
    }
    if let Some(name) = cli.only.iter().find(|name| SCENARIOS.iter().all(|scenario| scenario.name != **name)) {
        let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        say(&format!("there is no scenario {name:?}; there are {}", names.join(", ")));
        return ExitCode::from(2);
    }
    if let Err(missing) = lab::check_tools() {
        say(&format!("netns: {missing}"));
        return ExitCode::FAILURE;
    }
    let chosen: Vec<_> = SCENARIOS
        .iter()
        .filter(|scenario| cli.only.is_empty() || cli.only.iter().any(|name| name == scenario.name))
        .filter(|scenario| !cli.quick || scenario.in_quick)
        .collect();
    let outcomes = scenario::run_all(&chosen, cli.quick, cli.serial);
    say(&report::table(&outcomes));
    let failed = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count();
    if failed == 0 {
        say(&format!("netns: {} scenarios, all as promised", outcomes.len()));
        return ExitCode::SUCCESS;
    }
    say(&format!("netns: {failed} of {} scenarios failed", outcomes.len()));
    ExitCode::FAILURE
}

fn say(line: &str) {
    // Ignore errors, since the reader may close the pipe.
    let _ = writeln!(std::io::stdout(), "{line}");
}
