//! The main job, from the file to the verdict.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};
use greylag::delivery::{
    ConsumerDelivery, DeliverySettings, Epoch, ProducerId, ProducerIdentity, ShardingProducer, StreamId, WithDelivery,
};
use greylag::persistence::WriterUuid;
use greylag::prelude::*;
use greylag::sharding::{Event, RegionEvent};

use crate::customer::{CustomerMessage, Purchase, Query, customers, purchase_codec};
use crate::journal::ServedJournal;
use crate::mischief::Mischief;
use crate::node::{Admin, NodeArguments, TlsFiles};
use crate::processes::NodeProcess;
use crate::progress::{Progress, say};
use crate::purchases::{PurchaseLine, Purchases, Totals};
use crate::report::{Report, thousands};
use crate::{CLUSTER, Failure, RunArguments, StoreMode, sharding_settings};

/// Node processes at the start.
const NODES: usize = 3;
/// Purchases that may be on their way at a time.
const IN_FLIGHT: usize = 1024;
/// Customers that are asked at a time.
const ASKED_AT_ONCE: usize = 256;
/// How long the run waits for anything that must happen, before it gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the main job. Whether everything matches is the answer.
pub(crate) async fn run(arguments: RunArguments) -> Result<bool, Failure> {
    let input =
        arguments.input.clone().unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("cdnow_purchases.csv"));
    let purchases = Purchases::read(&input, arguments.skip_bad_lines)?;
    say(&format!("{}: {} purchases", input.display(), thousands(purchases.lines.len() as u64)));
    let directory = DataDirectory::new(arguments.data_dir.as_deref())?;
    let mut shop = Shop::open(&directory.path, &arguments).await?;
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

/// Where the journal lies; a temporary one goes away with this.
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

/// Everything that runs: the journal, this process's own node, and the node processes.
pub(crate) struct Shop {
    journal: ServedJournal,
    /// This process's own node, which hosts nothing.
    pub(crate) node: Node,
    /// Its way to the customers.
    pub(crate) region: Region<CustomerMessage>,
    mode: StoreMode,
    /// What operators may do with every node.
    admin: Admin,
    tls: TlsFiles,
    /// The node processes, the newest last.
    pub(crate) processes: Vec<NodeProcess>,
}

impl Shop {
    async fn open(directory: &Path, arguments: &RunArguments) -> Result<Self, Failure> {
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
        // This node has not the customers' role, so its region only routes.
        let region = node.sharding().init(customers(&ConsumerDelivery::new(&DeliverySettings::default())?))?;
        if let Some(at) = node.management_address() {
            say(&format!("node {} (this process) can be asked: greylag --address {at} members", node.address()));
        }
        let mut shop = Self { journal, node, region, mode, admin, tls, processes: Vec::new() };
        let command_line = shop.command_line();
        let starting = (0..NODES).map(|_| NodeProcess::start(&command_line));
        shop.processes = futures::future::try_join_all(starting).await?;
        for process in &shop.processes {
            let admin = process.admin.as_ref().map(|admin| format!(", admin service at {admin}")).unwrap_or_default();
            say(&format!("node {} runs as process {}{admin}", process.address, process.pid()));
        }
        Ok(shop)
    }

    /// What a node process is started with.
    pub(crate) fn command_line(&self) -> Vec<String> {
        let (journal, seed) = (self.journal.address(), self.node.address().to_string());
        NodeArguments::to_command_line(&journal, &seed, self.mode, self.admin, &self.tls)
    }

    /// Sends every purchase, does its mischief on the way, and asks every customer for its totals in the end.
    async fn serve(&mut self, purchases: &Purchases, arguments: &RunArguments) -> Result<Report, Failure> {
        let expected = purchases.totals();
        let ids = || expected.keys().map(|id| PersistenceId::of("Customer", &id.to_string()).expect("a number"));
        let before = self.journal.events(ids()).await?;
        let moves = count_moves(&self.region);
        let producer = self.producer(purchases).await?;
        let begun = Instant::now();
        let mut progress = Progress::new(purchases.lines.len() as u64, arguments.plain);
        let mut mischief = Mischief::new(arguments, purchases.lines.len());
        let mut sending = tokio::spawn(send_all(producer.clone(), purchases.lines.clone(), arguments.pace));
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        loop {
            tokio::select! {
                sent = &mut sending => break sent??,
                _ = tick.tick() => {
                    let confirmed = producer.stats().confirmed;
                    progress.show(confirmed, &self.region.shard_homes());
                    mischief.advance(self, confirmed, &progress).await?;
                }
            }
        }
        let elapsed = begun.elapsed();
        mischief.settle(self, &progress).await?;
        progress.end();
        let answered = ask_all(&self.region, expected.keys().copied()).await?;
        let stats = producer.stats();
        let after = self.journal.events(ids()).await?;
        let mut suppressed = 0;
        for process in &mut self.processes {
            suppressed += process.count().await?;
        }
        producer.close().await;
        Ok(Report {
            answered,
            expected,
            skipped_lines: purchases.skipped,
            newly_applied: after - before,
            sent_again: stats.resent,
            suppressed,
            shards_moved: moves.end(),
            longest_silence: stats.longest_silence,
            slowest_purchase: stats.slowest_confirmation,
            elapsed,
            incident: mischief.told(),
        })
    }

    /// The producer's stream is the file: the same file again is the same stream, so what is there
    /// already is recognised. Its epoch is a claim in the journal, so of two programs that send the
    /// same file only the later one is heard.
    async fn producer(&self, purchases: &Purchases) -> Result<ShardingProducer<Purchase>, Failure> {
        let stream = purchases.stream_id();
        let id = PersistenceId::of("Storefront", &format!("{stream:032x}"))?;
        let writer = WriterUuid::from_u128(u128::from(self.node.unique_address().uid().get()));
        let epoch = self.journal.claim(&id, writer).await?;
        let identity =
            ProducerIdentity::stable(ProducerId::new("storefront")?, StreamId(stream), Epoch(epoch.as_u64()));
        let settings = DeliverySettings::default();
        Ok(ShardingProducer::start(self.node.sharding(), identity, self.region.clone(), purchase_codec(), settings)?)
    }

    async fn close(self) -> Result<(), Failure> {
        let Self { journal, node, region, processes, admin, mode: _, tls: _ } = self;
        let left = futures::future::join_all(processes.into_iter().map(NodeProcess::leave)).await;
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

/// Sends the lines in their order, so that a line's place is its number in the stream.
async fn send_all(
    producer: ShardingProducer<Purchase>,
    lines: Vec<PurchaseLine>,
    pace: Option<NonZeroU32>,
) -> Result<(), Failure> {
    let mut on_their_way = FuturesUnordered::new();
    let mut turns = pace.map(|pace| tokio::time::interval(Duration::from_secs(1) / pace.get()));
    for line in &lines {
        if let Some(turns) = &mut turns {
            turns.tick().await;
        }
        let sent = producer.send(line.customer.to_string(), Purchase::from(line)).await?;
        on_their_way.push(sent.confirmed());
        if on_their_way.len() >= IN_FLIGHT {
            on_their_way.next().await.transpose()?;
        }
    }
    while let Some(confirmed) = on_their_way.next().await {
        confirmed?;
    }
    Ok(())
}

/// Asks every customer what it bought.
async fn ask_all(
    region: &Region<CustomerMessage>,
    customers: impl Iterator<Item = u32>,
) -> Result<BTreeMap<u32, Totals>, Failure> {
    futures::stream::iter(customers)
        .map(|customer| ask(region, customer))
        .buffer_unordered(ASKED_AT_ONCE)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect()
}

/// Asks one customer, and again while it is on the move: a question changes nothing.
async fn ask(region: &Region<CustomerMessage>, customer: u32) -> Result<(u32, Totals), Failure> {
    let entity = region.entity_ref(customer.to_string());
    let begun = Instant::now();
    loop {
        let question = |reply_to| WithDelivery::Bypass(Query::Totals { reply_to });
        match entity.ask(question).timeout(Duration::from_secs(5)).await {
            Ok(totals) => return Ok((customer, totals)),
            Err(error) if begun.elapsed() > PATIENCE => {
                return Err(format!("customer {customer} did not answer: {error}").into());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Counts shards that change their home, as this node's region hears of it.
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
    /// Stops counting; how many there were.
    fn end(self) -> u64 {
        self.task.abort();
        self.count.load(std::sync::atomic::Ordering::Relaxed)
    }
}
