//! The main job, from reading the file to the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::stream::StreamExt;
use greylag::prelude::*;
use greylag::sharding::{Event, RegionEvent};

use crate::customer::{ASKED, CustomerMessage, Query, customers_elsewhere};
use crate::fault::FaultInjection;
use crate::journal::ServedJournal;
use crate::node::{Admin, NodeArguments, TlsFiles};
use crate::processes::{NodeProcess, NodeReport, Sales};
use crate::progress::{Progress, say};
use crate::purchases::{Purchases, Totals};
use crate::report::{Report, thousands};
use crate::seller::Sale;
use crate::{CLUSTER, Failure, RunArguments, StoreMode, sharding_settings};

/// Count of node processes at the start, without the selling one.
const NODES: usize = 3;
/// Count of customers that are asked at a time.
const ASKED_AT_ONCE: usize = 256;
/// The time limit for a customer's answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the main job; returns whether all totals match.
pub(crate) async fn run(arguments: RunArguments) -> Result<bool, Failure> {
    let input =
        arguments.input.clone().unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("cdnow_purchases.csv"));
    let purchases = Purchases::read(&input, arguments.skip_bad_lines)?;
    say(&format!("{}: {} purchases", input.display(), thousands(purchases.lines.len() as u64)));
    let directory = DataDirectory::new(arguments.data_dir.as_deref())?;
    let sale = Sale::of(input, arguments.skip_bad_lines, arguments.pace);
    let mut shop = Shop::open(&directory.path, &arguments, sale).await?;
    let report = shop.serve(&purchases, &arguments).await;
    if let Ok(report) = &report {
        say(&report.to_string());
        if arguments.stay {
            say("The cluster goes on; Ctrl-C ends it.");
            tokio::signal::ctrl_c().await?;
        }
    }
    shop.close().await?;
    let report = report?;
    Ok(report.matches())
}

/// The journal's directory; a temporary one is deleted when this value is dropped.
struct DataDirectory {
    path: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl DataDirectory {
    fn new(wanted: Option<&Path>) -> Result<Self, Failure> {
        if let Some(path) = wanted {
            std::fs::create_dir_all(path).map_err(|error| format!("--data-dir {}: {error}", path.display()))?;
            return Ok(Self { path: path.to_path_buf(), _temporary: None });
        }
        let temporary = tempfile::Builder::new().prefix("greylag-storefront").tempdir()?;
        Ok(Self { path: temporary.path().to_path_buf(), _temporary: Some(temporary) })
    }
}

/// All parts of the running cluster: the journal, this process's own node, and the node processes.
pub(crate) struct Shop {
    journal: ServedJournal,
    /// This process's own node, which hosts nothing.
    pub(crate) node: Node,
    /// The own node's proxy region for customers.
    pub(crate) region: Region<CustomerMessage>,
    mode: StoreMode,
    /// Whether nodes offer the admin service, and whether operators may change the cluster.
    admin: Admin,
    tls: TlsFiles,
    /// The node processes that host customers, newest last.
    pub(crate) processes: Vec<NodeProcess>,
    sale: Sale,
    /// The selling process, if one runs.
    pub(crate) seller: Option<NodeProcess>,
    /// The latest figures of the sale, those of earlier selling processes included.
    sales: Sales,
    earlier_sales: Sales,
}

impl Shop {
    async fn open(directory: &Path, arguments: &RunArguments, sale: Sale) -> Result<Self, Failure> {
        let (mode, admin, tls) = (arguments.store_mode, arguments.admin, arguments.tls.clone());
        let own_tls = tls.settings();
        let journal = ServedJournal::open(directory).await?;
        let node = Node::builder(CLUSTER)
            .bind("127.0.0.1", 0)
            .roles(["frontend"])
            .configure(move |settings| {
                settings.sharding = sharding_settings(mode);
                settings.management = admin.settings();
                settings.transport.tls = own_tls;
            })
            .start()
            .await?;
        let region = node.sharding().init_proxy(customers_elsewhere())?;
        if let Some(at) = node.management_address() {
            say(&format!("node {} (this process) can be asked: greylag --address {at} members", node.address()));
        }
        let (processes, seller, sales) = (Vec::new(), None, Sales::default());
        let earlier_sales = Sales::default();
        let mut shop = Self { journal, node, region, mode, admin, tls, processes, sale, seller, sales, earlier_sales };
        let command_line = shop.command_line();
        let starting = (0..NODES).map(|_| NodeProcess::start(&command_line));
        shop.processes = futures::future::try_join_all(starting).await?;
        for process in &shop.processes {
            let admin = process.admin.as_ref().map(|admin| format!(", admin service at {admin}")).unwrap_or_default();
            say(&format!("node {} runs as process {}{admin}", process.address, process.pid()));
        }
        Ok(shop)
    }

    /// The command line of a node process that hosts customers.
    pub(crate) fn command_line(&self) -> Vec<String> {
        let (journal, seed) = (self.journal.address(), self.node.address().to_string());
        NodeArguments::to_command_line(&journal, &seed, self.mode, self.admin, &self.tls)
    }

    /// The command line of the selling process.
    pub(crate) fn sellers_command_line(&self) -> Vec<String> {
        [self.command_line(), self.sale.to_command_line()].concat()
    }

    /// Lets another process sell from now on, and keeps the figures of the earlier ones.
    pub(crate) fn take_seller(&mut self, seller: NodeProcess) {
        self.earlier_sales = self.sales;
        self.seller = Some(seller);
    }

    /// Waits for the next message of the selling process and takes over its figures; without such a process, waits
    /// forever.
    async fn read_sales(&mut self) -> Result<(), Failure> {
        let Some(seller) = &mut self.seller else { return std::future::pending().await };
        match seller.next_report().await? {
            NodeReport::Sold(sales) => {
                let Sales { confirmed, sent_again, longest_silence, slowest_purchase, is_over } = sales;
                let earlier = &self.earlier_sales;
                self.sales = Sales {
                    confirmed: confirmed.max(earlier.confirmed),
                    sent_again: sent_again + earlier.sent_again,
                    longest_silence: longest_silence.max(earlier.longest_silence),
                    slowest_purchase: slowest_purchase.max(earlier.slowest_purchase),
                    is_over,
                };
                Ok(())
            }
            other => Err(format!("the process that sells said {other:?}").into()),
        }
    }

    /// One customer for each shard that has customers.
    fn one_of_each_shard(&self, customers: &BTreeMap<u32, Totals>) -> Vec<u32> {
        let mut shards = BTreeSet::new();
        let mut is_first =
            |customer: &u32| self.region.shard_of(&customer.to_string()).is_some_and(|shard| shards.insert(shard));
        customers.keys().copied().filter(|customer| is_first(customer)).collect()
    }

    /// Lets every purchase be sold, with the fault on the way, and then asks every customer for its totals.
    async fn serve(&mut self, purchases: &Purchases, arguments: &RunArguments) -> Result<Report, Failure> {
        let expected = purchases.totals();
        let ids = || expected.keys().map(|id| PersistenceId::of("Customer", &id.to_string()).expect("a number"));
        let before = self.journal.events(ids()).await?;
        let moves = count_moves(&self.region);
        let seller = NodeProcess::start(&self.sellers_command_line()).await?;
        say(&format!("node {} sells, as process {}", seller.address, seller.pid()));
        self.take_seller(seller);
        let looking = AbortOnDrop(tokio::spawn(keep_looking(self.node.clone(), self.one_of_each_shard(&expected))));
        let begun = Instant::now();
        let mut progress = Progress::new(purchases.lines.len() as u64, arguments.plain);
        let mut fault = FaultInjection::new(arguments, purchases.lines.len());
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        while !self.sales.is_over {
            tokio::select! {
                heard = self.read_sales() => heard?,
                _ = tick.tick() => {
                    let confirmed = self.sales.confirmed;
                    progress.show(confirmed, &self.region.shard_homes());
                    fault.advance(self, confirmed, &progress).await?;
                }
            }
        }
        let elapsed = begun.elapsed();
        fault.settle(self, &progress).await?;
        progress.end();
        drop(looking);
        let answered = ask_all(&self.node, expected.keys().copied()).await?;
        let after = self.journal.events(ids()).await?;
        let mut suppressed = 0;
        for process in &mut self.processes {
            suppressed += process.count().await?;
        }
        Ok(Report {
            answered,
            expected,
            skipped_lines: purchases.skipped,
            newly_applied: after - before,
            sent_again: self.sales.sent_again,
            suppressed,
            shards_moved: moves.end(),
            longest_silence: self.sales.longest_silence,
            slowest_purchase: self.sales.slowest_purchase,
            elapsed,
            incident: fault.summary(),
        })
    }

    async fn close(self) -> Result<(), Failure> {
        let Self { journal, node, region, processes, seller, admin, .. } = self;
        let all = seller.into_iter().chain(processes);
        let left = futures::future::join_all(all.map(NodeProcess::leave)).await;
        drop(region);
        node.shutdown().await?;
        journal.close().await?;
        for error in left.into_iter().filter_map(Result::err) {
            if !admin.allows_writes() {
                return Err(error.into());
            }
            say(&format!("{error}; an operator may have ended it"));
        }
        Ok(())
    }
}

/// Asks these customers again and again, so that this node's region learns the homes of their shards.
async fn keep_looking(node: Node, customers: Vec<u32>) {
    loop {
        let ask = |customer: &u32| {
            let question = |reply_to| Query::Totals { reply_to };
            node.entity_ref(ASKED, customer.to_string()).ask(question).timeout(Duration::from_secs(1)).send()
        };
        // Ignore errors: a customer that is being moved does not answer, and is asked again.
        futures::future::join_all(customers.iter().map(ask)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Aborts the task when dropped.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Asks every customer for its totals.
async fn ask_all(node: &Node, customers: impl Iterator<Item = u32>) -> Result<BTreeMap<u32, Totals>, Failure> {
    futures::stream::iter(customers)
        .map(|customer| ask(node, customer))
        .buffer_unordered(ASKED_AT_ONCE)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect()
}

/// Asks one customer, again and again while its shard moves: a query changes nothing.
async fn ask(node: &Node, customer: u32) -> Result<(u32, Totals), Failure> {
    let entity = node.entity_ref(ASKED, customer.to_string());
    let begun = Instant::now();
    loop {
        let question = |reply_to| Query::Totals { reply_to };
        match entity.ask(question).timeout(Duration::from_secs(5)).await {
            Ok(totals) => return Ok((customer, totals)),
            Err(error) if begun.elapsed() > TIMEOUT => {
                return Err(format!("customer {customer} did not answer: {error}").into());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Counts the shard moves that this node's region learns of.
fn count_moves(region: &Region<CustomerMessage>) -> Moves {
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = count.clone();
    let mut events = region.subscribe();
    let task = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if matches!(event, Event::Region(RegionEvent::ShardMoved { .. })) {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    });
    Moves { count, task }
}

struct Moves {
    count: std::sync::Arc<std::sync::atomic::AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Moves {
    /// Stops counting; returns the count of moves.
    fn end(self) -> u64 {
        self.task.abort();
        self.count.load(std::sync::atomic::Ordering::Relaxed)
    }
}
