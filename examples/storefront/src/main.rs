//! The storefront: real purchases through a cluster that loses a node.
//!
//! The program starts three node processes of itself on loopback, and a fourth that sells. It serves the journal to them
//! and is itself a member that hosts nothing. Every line of the purchases file becomes a message that
//! is delivered reliably to one customer, an event-sourced entity somewhere in the cluster. Half-way
//! one node is killed outright. At the end every customer is asked for its totals, and the answers
//! are compared with sums made straight from the file, to the cent.

mod customer;
mod fault;
mod journal;
mod node;
mod processes;
mod progress;
mod purchases;
mod report;
mod run;
mod seller;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use greylag::sharding::ShardingSettings;
use greylag::sharding::fingerprint::StateStoreMode;

/// The cluster name of all nodes.
const CLUSTER: &str = "storefront";

/// Any error; ends the run and is printed.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sends every purchase of a file through a cluster that loses a node, and compares to the cent.
#[derive(Debug, Clone, Parser)]
#[command(name = "storefront", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    run: RunArguments,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Clone, Subcommand)]
enum Role {
    /// A node process; the program starts these itself.
    #[command(hide = true)]
    Node(node::NodeArguments),
}

/// How the main job runs.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RunArguments {
    /// The purchases: customer_id,date,quantity,amount_usd. Default: the file beside the example.
    #[arg(long)]
    input: Option<PathBuf>,
    /// Leave lines out that are not purchases, and count them.
    #[arg(long)]
    skip_bad_lines: bool,
    /// Which node process is killed outright on the way.
    #[arg(long, value_enum, default_value_t = Kill::Region)]
    kill: Kill,
    /// When it is killed: after so many per cent of the purchases.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    kill_at: u8,
    /// Where the coordinator of the shards keeps their homes.
    #[arg(long, value_enum, default_value_t)]
    store_mode: StoreMode,
    /// Where the journal lies. Default: a new directory that goes away at the end.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Sends so many purchases a second. Default: as many as go.
    #[arg(long)]
    pace: Option<NonZeroU32>,
    #[command(flatten)]
    admin: node::Admin,
    #[command(flatten)]
    tls: node::TlsFiles,
    /// The cluster goes on after the report, until Ctrl-C: for looking at it in peace.
    #[arg(long)]
    stay: bool,
    /// Lines of text in place of a progress bar.
    #[arg(long)]
    plain: bool,
}

/// Which node is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kill {
    /// The node that hosts most shards and is not the coordinator's.
    Region,
    /// The node of the shard coordinator.
    Coordinator,
    /// The node that sells.
    Producer,
    /// No node.
    None,
}

/// Where the coordinator of the shards keeps their homes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreMode {
    /// In replicated data of the nodes.
    #[default]
    Ddata,
    /// In the journal that is served to the nodes.
    Persistence,
}

impl StoreMode {
    /// The mode's name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ddata => "ddata",
            Self::Persistence => "persistence",
        }
    }
}

/// Few shards and short rebalance rounds, so that a new node gets its share within seconds; the cluster itself
/// runs at its default settings.
pub(crate) fn sharding_settings(mode: StoreMode) -> ShardingSettings {
    let state_store_mode = match mode {
        StoreMode::Ddata => StateStoreMode::Ddata,
        StoreMode::Persistence => StateStoreMode::Persistence,
    };
    let mut settings = ShardingSettings { number_of_shards: 60, state_store_mode, ..ShardingSettings::default() };
    settings.rebalance_interval = Duration::from_secs(1);
    settings
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("GREYLAG_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("error")),
        )
        .with_writer(std::io::stderr)
        .init();
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let outcome = match cli.role {
        Some(Role::Node(arguments)) => runtime.block_on(node::run(arguments)).map(|()| true),
        None => runtime.block_on(run::run(cli.run)),
    };
    // Wait at most a second for tasks that still block, such as a closing journal or a read of standard input.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => failed(&*failure),
    }
}

fn failed(failure: &(dyn std::error::Error + 'static)) -> ExitCode {
    use std::io::Write as _;
    // Ignore errors: if standard error is closed too, the exit code still tells the result.
    let _ = writeln!(std::io::stderr(), "storefront: {failure}");
    ExitCode::FAILURE
}
