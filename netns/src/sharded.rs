//! The process under test where entities are hosted: a node of the facade with four entity types and clients.
//!
//! ```text
//! scenario ── order (standard input) ──▶ node: go | newcomers | round | stop | survey
//! scenario ◀── lines (standard output) ── node: Served{round}, ClientsStopped, Surveyed, and what node.rs tells
//! node ── every call, answer and life ──▶ its file in the directory (record.rs)
//! ```

mod clients;
mod entity;

use std::io::BufRead as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use greylag::prelude::NodeSettings;
use greylag::{JournalKind, Node, Secret};
use greylag_transport::Tls;
use tokio::sync::mpsc;

use clients::Clients;
pub(crate) use entity::KINDS;

use crate::node::{NodeOptions, print_events, run_to_end, tell};
use crate::record::Record;
use crate::report::NodeEvent;

/// One node with entities and clients.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: NodeOptions,
    /// The database that keeps the journal, as for libpq.
    #[arg(long)]
    database: String,
    /// Where it writes down what happens.
    #[arg(long)]
    directory: PathBuf,
}

/// The interval at which the node checks whether all clients were answered.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Runs until the node or the scenario ends.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    run_to_end(live(arguments))
}

async fn live(arguments: Arguments) -> Result<(), String> {
    let Arguments { place, database, directory } = arguments;
    let record = Arc::new(Record::create(&directory)?);
    let builder = Node::builder("lab").bind(place.host.clone(), place.port).seed_nodes([&place.seed]);
    let builder = builder.configure(move |settings| configure(settings, &place, database));
    let builder = KINDS.iter().fold(builder, |builder, kind| kind.set_up(builder, &record));
    let node = builder.start().await.map_err(|error| error.to_string())?;
    tokio::spawn(print_events(node.cluster().clone()));
    let mut clients = Clients::new(node.clone(), record);
    let mut orders = orders();
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut terminated = std::pin::pin!(node.terminated());
    loop {
        tokio::select! {
            reason = &mut terminated => {
                tell(NodeEvent::Ended { reason: format!("{reason:?}") });
                return Ok(());
            }
            order = orders.recv() => match order {
                Some(order) => handle_orders(&order, &mut clients).await?,
                // Standard input is closed: the scenario has ended.
                None => return Ok(()),
            },
            _ = look.tick() => clients.served().into_iter().for_each(|round| tell(NodeEvent::Served { round })),
        }
    }
}

fn configure(settings: &mut NodeSettings, place: &NodeOptions, database: String) {
    settings.cluster = place.adapt(settings.cluster.clone());
    // No TLS: the lab's network has no hosts other than the nodes.
    settings.transport.tls = Tls::None;
    settings.journal.kind = JournalKind::Postgres;
    let journal = &mut settings.journal.pg;
    journal.url = Secret::new(database);
    // Keep the pools small: several nodes share the connections of one small server.
    journal.settings.write_lanes = 2;
    journal.settings.pool_write = 2;
    journal.settings.pool_read = 4;
    journal.settings.pool_query = 1;
}

async fn handle_orders(order: &str, clients: &mut Clients) -> Result<(), String> {
    match order {
        "go" => clients.go().await,
        "newcomers" => clients.go_to_newcomers(),
        "round" => clients.next_round(),
        "stop" => {
            clients.stop().await;
            tell(NodeEvent::ClientsStopped);
        }
        "survey" => {
            clients.survey().await;
            tell(NodeEvent::Surveyed);
        }
        other => return Err(format!("there is no order {other:?}")),
    }
    Ok(())
}

/// The orders of the scenario, one per line; the channel closes when the scenario ends.
fn orders() -> mpsc::UnboundedReceiver<String> {
    let (give, take) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if give.send(line).is_err() {
                return;
            }
        }
    });
    take
}
