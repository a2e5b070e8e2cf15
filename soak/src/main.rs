//! Saturates the data lanes for minutes and checks that the membership does not react.
//!
//! Several node processes on the loopback interface flood each other over ordinary and large lanes,
//! faster than the receivers can handle, on any number of processors; now and then the handlers of
//! one node block outright. Meanwhile probes take the path of heartbeats, and their round trips are
//! recorded. The run fails if any member ever finds another one unreachable. `cargo xtask soak` runs it.
//!
//! Source: cluster T5, T6, T39, C7.

mod load;
mod node;
mod probe;
mod report;

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use report::{NodeReport, Report, say};

/// Any error; ends the run and is printed.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The time limit of each step; a step that works takes less.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Parser)]
#[command(name = "greylag-soak", about = "Floods the data lanes and watches the heartbeats")]
struct Arguments {
    /// How long the load lasts.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// How many node processes.
    #[arg(long, default_value_t = 4)]
    nodes: usize,
    /// How long the handlers of one node after the other block; 0 for never.
    #[arg(long, default_value_t = 5)]
    stall_seconds: u64,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// One node; started by the program itself.
    #[command(hide = true)]
    Node {
        /// The node through which to join; none for the first node.
        #[arg(long)]
        seed: Option<String>,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.role {
        Some(Role::Node { seed }) => node::run(seed.as_deref()).await,
        None => soak(&arguments).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&format!("soak: {failure}"));
            ExitCode::FAILURE
        }
    }
}

/// One node process as its parent sees it; the process ends with its parent.
struct Process {
    address: String,
    child: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    async fn start(seed: Option<&str>) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("node").args(seed.iter().flat_map(|seed| ["--seed", seed]));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let orders = child.stdin.take().ok_or("no way to talk to a node")?;
        let lines = BufReader::new(child.stdout.take().ok_or("no way to hear a node")?).lines();
        let mut process = Self { address: String::new(), child, orders, lines };
        match process.next_report().await? {
            NodeReport::Up { address } => process.address = address,
            other => return Err(format!("a node began with {other:?}").into()),
        }
        Ok(process)
    }

    async fn order(&mut self, order: &str) -> Result<(), Failure> {
        Ok(self.orders.write_all(format!("{order}\n").as_bytes()).await?)
    }

    async fn next_report(&mut self) -> Result<NodeReport, Failure> {
        let line = tokio::time::timeout(TIMEOUT, self.lines.next_line()).await??;
        Ok(serde_json::from_str(&line.ok_or("a node ended")?)?)
    }
}

/// Runs the whole soak: starts the nodes, floods, collects the reports and judges them.
async fn soak(arguments: &Arguments) -> Result<(), Failure> {
    let first = Process::start(None).await?;
    let seed = first.address.clone();
    let mut nodes = vec![first];
    while nodes.len() < arguments.nodes.max(2) {
        nodes.push(Process::start(Some(&seed)).await?);
    }
    let addresses: Vec<_> = nodes.iter().map(|node| node.address.clone()).collect();
    for node in &mut nodes {
        let others: Vec<_> = addresses.iter().filter(|address| **address != node.address).cloned().collect();
        node.order(&format!("flood {}", others.join(" "))).await?;
    }
    say(&format!("{} nodes flood each other for {} s", nodes.len(), arguments.seconds));
    stall_in_turn(&mut nodes, arguments).await?;
    let mut reports = Vec::new();
    for node in &mut nodes {
        node.order("report").await?;
        match node.next_report().await? {
            NodeReport::Report(report) => reports.push(*report),
            other => return Err(format!("in place of a report: {other:?}").into()),
        }
    }
    for mut node in nodes {
        drop(node.orders);
        tokio::time::timeout(TIMEOUT, node.child.wait()).await??;
    }
    Report::judge(&reports, Duration::from_secs(arguments.seconds))
}

/// Waits until the load has lasted as configured; meanwhile blocks the handlers of one node after the other.
async fn stall_in_turn(nodes: &mut [Process], arguments: &Arguments) -> Result<(), Failure> {
    let end = tokio::time::Instant::now() + Duration::from_secs(arguments.seconds);
    let stall = Duration::from_secs(arguments.stall_seconds);
    if stall.is_zero() {
        tokio::time::sleep_until(end).await;
        return Ok(());
    }
    // A stall begins every four stall lengths: for most of the run, the flood alone is tested.
    let mut turn = 0;
    while tokio::time::Instant::now() + stall < end {
        nodes[turn].order(&format!("stall {}", stall.as_millis())).await?;
        turn = (turn + 1) % nodes.len();
        tokio::time::sleep_until(end.min(tokio::time::Instant::now() + 4 * stall)).await;
    }
    tokio::time::sleep_until(end).await;
    Ok(())
}
