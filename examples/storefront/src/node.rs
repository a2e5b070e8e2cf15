//! A node process: hosts customers or sells, and follows its parent's orders.

use std::path::PathBuf;

use greylag::cluster::ShutdownReason;
use greylag::journal_service::{ClientSettings, JournalClient};
use greylag::management::ManagementSettings;
use greylag::prelude::*;
use greylag::transport::{Tls, TlsSettings};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::customer::{CUSTOMER, ROLE, customers, customers_elsewhere};
use crate::processes::{NodeCommand, NodeReport};
use crate::seller::{self, Sale};
use crate::{CLUSTER, Failure, StoreMode, sharding_settings};

/// The role of the node that sells.
const SELLER: &str = "seller";

/// What a node process is started with.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NodeArguments {
    /// Where the journal is served.
    #[arg(long)]
    journal: String,
    /// Through whom to join.
    #[arg(long)]
    seed: String,
    /// Where the coordinator of the shards keeps their homes.
    #[arg(long, value_enum)]
    store_mode: StoreMode,
    #[command(flatten)]
    admin: Admin,
    #[command(flatten)]
    tls: TlsFiles,
    /// Sells in place of hosting customers.
    #[command(flatten)]
    sale: Sale,
}

/// By which files nodes speak TLS.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TlsFiles {
    /// The nodes speak TLS by this private key; with --tls-cert and --tls-ca.
    #[arg(long, requires = "tls_cert", requires = "tls_ca")]
    tls_key: Option<PathBuf>,
    /// The certificate of that key, for 127.0.0.1.
    #[arg(long, requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The authority whose certificates the nodes believe.
    #[arg(long, requires = "tls_key")]
    tls_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// TLS with the given files; without files, plain text on loopback only.
    pub(crate) fn settings(&self) -> Tls {
        match (&self.tls_key, &self.tls_cert, &self.tls_ca) {
            (Some(key), Some(cert), Some(ca)) => Tls::Files(TlsSettings::new(key, cert, ca)),
            _ => Tls::LoopbackOnly,
        }
    }

    fn to_command_line(&self) -> Vec<String> {
        let files = [("--tls-key", &self.tls_key), ("--tls-cert", &self.tls_cert), ("--tls-ca", &self.tls_ca)];
        let given =
            files.into_iter().filter_map(|(flag, file)| Some([flag.to_owned(), file.as_ref()?.display().to_string()]));
        given.flatten().collect()
    }
}

/// Whether nodes offer the admin service.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Admin {
    /// Every node offers the admin service on a free loopback port, for `greylag members` and the like.
    #[arg(long)]
    management: bool,
    /// Callers of it may change the cluster too, by `greylag leave` and `greylag down`.
    #[arg(long, requires = "management")]
    allow_writes: bool,
}

impl Admin {
    /// Whether an operator may end nodes that this program started.
    pub(crate) fn allows_writes(self) -> bool {
        self.allow_writes
    }

    pub(crate) fn settings(self) -> ManagementSettings {
        let address = self.management.then(|| "127.0.0.1:0".to_owned());
        ManagementSettings { address, allow_writes: self.allow_writes, ..ManagementSettings::default() }
    }
}

impl NodeArguments {
    /// The command line that parses to these arguments.
    pub(crate) fn to_command_line(
        journal: &str,
        seed: &str,
        mode: StoreMode,
        admin: Admin,
        tls: &TlsFiles,
    ) -> Vec<String> {
        let required = ["--journal", journal, "--seed", seed, "--store-mode", mode.name()].into_iter();
        let flags = [admin.management.then_some("--management"), admin.allow_writes.then_some("--allow-writes")];
        let plain = required.chain(flags.into_iter().flatten()).map(ToOwned::to_owned);
        plain.chain(tls.to_command_line()).collect()
    }
}

/// Runs until the parent orders the node to leave, or until the parent or the node has ended.
pub(crate) async fn run(arguments: NodeArguments) -> Result<(), Failure> {
    let journal = JournalClient::connect(&arguments.journal, ClientSettings::default()).await?;
    let builder =
        Node::builder(CLUSTER).bind("127.0.0.1", 0).seed_nodes([&arguments.seed]).stores(journal.stores()).configure(
            move |settings| {
                settings.sharding = sharding_settings(arguments.store_mode);
                settings.management = arguments.admin.settings();
                settings.transport.tls = arguments.tls.settings();
            },
        );
    let node = match &arguments.sale.sells {
        None => builder.roles([ROLE]).entity(customers()).start().await?,
        Some(_) => builder.roles([SELLER]).proxy(customers_elsewhere()).start().await?,
    };
    report_to_parent(&NodeReport::Up {
        address: node.address().to_string(),
        admin: node.management_address().map(|admin| admin.to_string()),
    })
    .await?;
    let selling = seller::sell(node.clone(), arguments.sale);
    let mut selling = std::pin::pin!(selling);
    let mut sells = true;
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let order = tokio::select! {
            line = orders.next_line() => line?,
            reason = node.terminated() => return end(&node, reason).await,
            sold = &mut selling, if sells => {
                sold?;
                sells = false;
                continue;
            }
        };
        match order.as_deref().map(serde_json::from_str).transpose()? {
            Some(NodeCommand::Count) => {
                let counters = node.delivery().counters(&CUSTOMER);
                let suppressed = counters.map_or(0, |counters| counters.snapshot().suppressed);
                report_to_parent(&NodeReport::Counted { suppressed }).await?;
            }
            Some(NodeCommand::Leave) => break,
            // Standard input is closed: the parent has ended, and only the parent uses this node.
            None => return Ok(()),
        }
    }
    node.shutdown().await?;
    Ok(())
}

/// Ends the process of a node that has terminated: in order if an operator told it to leave, otherwise with an error.
async fn end(node: &Node, reason: ShutdownReason) -> Result<(), Failure> {
    // Ignore the error of `shutdown`: it is `reason` once more, and the text below adds the node's address.
    node.shutdown().await.ok();
    match reason {
        ShutdownReason::Left => Ok(()),
        other => Err(format!("node {} has ended: {other}", node.address()).into()),
    }
}

/// Writes a message to the parent, as a line of JSON.
pub(crate) async fn report_to_parent(what: &NodeReport) -> Result<(), Failure> {
    let mut line = serde_json::to_string(what)?;
    line.push('\n');
    let mut output = tokio::io::stdout();
    output.write_all(line.as_bytes()).await?;
    output.flush().await?;
    Ok(())
}
