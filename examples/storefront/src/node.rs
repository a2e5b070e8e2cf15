//! A node process: it hosts customers, and does what its parent says.

use greylag::cluster::ShutdownReason;
use greylag::delivery::{ConsumerDelivery, DeliverySettings};
use greylag::journal_service::{ClientSettings, JournalClient};
use greylag::management::ManagementSettings;
use greylag::prelude::*;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::customer::{ROLE, customers};
use crate::processes::{Tell, Told};
use crate::purchases::Totals;
use crate::{CLUSTER, Failure, sharding_settings};

/// What a node process is started with.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NodeArguments {
    /// Where the journal is served.
    #[arg(long)]
    journal: String,
    /// Through whom to join.
    #[arg(long)]
    seed: String,
    #[command(flatten)]
    admin: Admin,
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
    /// The same, as a command line.
    pub(crate) fn to_command_line(journal: &str, seed: &str, admin: Admin) -> Vec<String> {
        let required = ["--journal", journal, "--seed", seed].into_iter();
        let flags = [admin.management.then_some("--management"), admin.allow_writes.then_some("--allow-writes")];
        required.chain(flags.into_iter().flatten()).map(ToOwned::to_owned).collect()
    }
}

/// Runs until the parent says otherwise, or is gone.
pub(crate) async fn run(arguments: NodeArguments) -> Result<(), Failure> {
    let journal = JournalClient::connect(&arguments.journal, ClientSettings::default()).await?;
    let node = Node::builder(CLUSTER)
        .bind("127.0.0.1", 0)
        .roles([ROLE])
        .seed_nodes([arguments.seed])
        .stores(journal.stores())
        .configure(move |settings| {
            settings.sharding = sharding_settings();
            settings.management = arguments.admin.settings();
        })
        .start()
        .await?;
    node.registry().register::<Totals>(json("storefront.totals"))?;
    let delivery = ConsumerDelivery::new(&DeliverySettings::default())?;
    let region = node.sharding().init(customers(&delivery))?;
    tell_parent(&Told::Up {
        address: node.address().to_string(),
        admin: node.management_address().map(|admin| admin.to_string()),
    })
    .await?;

    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let order = tokio::select! {
            line = orders.next_line() => line?,
            reason = node.terminated() => return end(&node, reason).await,
        };
        match order.as_deref().map(serde_json::from_str).transpose()? {
            Some(Tell::Count) => {
                tell_parent(&Told::Counted { suppressed: delivery.counters().snapshot().suppressed }).await?;
            }
            Some(Tell::Leave) => break,
            // Nobody is left to serve.
            None => return Ok(()),
        }
    }
    drop(region);
    node.shutdown().await;
    Ok(())
}

/// An operator told this node to leave, or the cluster goes on without it for a worse reason.
async fn end(node: &Node, reason: ShutdownReason) -> Result<(), Failure> {
    node.shutdown().await;
    match reason {
        ShutdownReason::Left => Ok(()),
        other => Err(format!("node {} has ended: {other}", node.address()).into()),
    }
}

async fn tell_parent(what: &Told) -> Result<(), Failure> {
    let mut line = serde_json::to_string(what)?;
    line.push('\n');
    let mut output = tokio::io::stdout();
    output.write_all(line.as_bytes()).await?;
    output.flush().await?;
    Ok(())
}
