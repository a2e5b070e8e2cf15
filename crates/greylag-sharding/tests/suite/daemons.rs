//! Daemon processes over real clusters of nodes that live in one process. Source: sharding §6.2, scenario 80.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greylag_cluster::{Cluster, ClusterSettings, SbrSettings};
use greylag_core::{Registry, Uid, UniqueAddress};
use greylag_persistence::Ctx;
use greylag_sharding::host::Signal;
use greylag_sharding::settings::DaemonProcessSettings;
use greylag_sharding::{
    DaemonError, DaemonInit, DaemonProcesses, Entity, EntityCtx, EntityKey, EntityType, Failure, InitError, Sharding,
    ShardingSettings,
};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(300);

/// One start of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    id: String,
    node: UniqueAddress,
    revision: u64,
    count: u32,
    index: u32,
}

/// Every start of a worker, and the ids that live now.
#[derive(Debug, Default)]
struct Book {
    began: Vec<Seen>,
    alive: BTreeMap<String, u32>,
    /// Indices with more than one live worker at a time; must stay empty.
    twice: Vec<String>,
}

impl Book {
    fn alive(&self) -> Vec<String> {
        self.alive.iter().filter(|(_, lives)| **lives > 0).map(|(id, _)| id.clone()).collect()
    }

    fn began(&self, id: &str) -> usize {
        self.began.iter().filter(|seen| seen.id == id).count()
    }
}

type Shared = Arc<Mutex<Book>>;

/// A worker that does nothing, and ends when its shared flag is set.
struct Worker {
    book: Shared,
    seen: Seen,
    ends_at_once: bool,
}

impl Worker {
    fn new(book: &Shared, init: &DaemonInit, ends_at_once: bool) -> Self {
        let DaemonInit { index, count, revision, entity } = init;
        // Set the node later: it is known once the worker has begun.
        let seen = Seen {
            id: entity.id.to_string(),
            node: "none:1#1".parse().expect("an address"),
            revision: *revision,
            count: *count,
            index: *index,
        };
        Self { book: book.clone(), seen, ends_at_once }
    }
}

impl Entity for Worker {
    type Message = ();

    fn on_start(&mut self, cx: &mut Ctx<'_, ()>) {
        self.seen.node = cx.node().expect("it lives in a shard").clone();
        let mut book = self.book.lock().expect("no holder panics");
        let same = format!("|{}", self.seen.index);
        let is_same = |id: &String| *id == self.seen.index.to_string() || id.ends_with(&same);
        if let Some(other) = book.alive().into_iter().find(is_same) {
            book.twice.push(format!("{} beside {other}", self.seen.id));
        }
        *book.alive.entry(self.seen.id.clone()).or_default() += 1;
        book.began.push(self.seen.clone());
        drop(book);
        if self.ends_at_once {
            cx.stop();
        }
    }

    fn receive(&mut self, (): (), _: &mut Ctx<'_, ()>) -> Result<(), Failure> {
        Ok(())
    }

    fn on_signal(&mut self, signal: Signal, _: &mut Ctx<'_, ()>) -> Result<(), Failure> {
        if signal == Signal::PostStop {
            let mut book = self.book.lock().expect("no holder panics");
            *book.alive.entry(self.seen.id.clone()).or_default() -= 1;
        }
        Ok(())
    }
}

/// Gives each node another incarnation, since replicators are registered per process by it.
struct Node {
    address: UniqueAddress,
    cluster: Cluster,
    sharding: Sharding,
}

impl Node {
    async fn joined(network: &MemoryNetwork, address: &str, roles: &[&str]) -> Self {
        Self::joined_every(network, address, roles, INTERVAL).await
    }

    /// A node whose manager, if it runs here, sends start requests at this interval.
    async fn joined_every(network: &MemoryNetwork, address: &str, roles: &[&str], interval: Duration) -> Self {
        // `RUST_LOG=greylag=debug` shows what the nodes do.
        tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).try_init().ok();
        let uid = Uid::new(fresh_uid()).expect("not zero");
        let address = UniqueAddress::new(address.parse().expect("an address"), uid);
        let remoting = network.node(address.clone(), Arc::new(Registry::new()));
        let resolver = SbrSettings { stable_after: Duration::from_secs(3), ..SbrSettings::default() };
        let mut settings = ClusterSettings::test().with_resolver(resolver);
        settings.roles = roles.iter().map(ToString::to_string).collect();
        let cluster = Cluster::start(settings, remoting).await.expect("it starts");
        let daemon = DaemonProcessSettings {
            keep_alive_interval: interval,
            keep_alive_throttle_interval: Duration::from_millis(5),
            ..DaemonProcessSettings::default()
        };
        let settings = ShardingSettings { daemon, ..ShardingSettings::test() };
        let sharding = Sharding::start(cluster.clone(), None, settings).await.expect("valid");
        cluster.join_seed_nodes(vec!["a:1".parse().expect("an address")]).await.expect("it joins");
        cluster.wait_up().await.expect("it comes up");
        Self { address, cluster, sharding }
    }

    fn workers(&self, book: &Shared, count: u32) -> DaemonProcesses {
        let book = book.clone();
        let workers = self.sharding.daemon_process("workers", count, move |init| Ok(Worker::new(&book, init, false)));
        workers.start().expect("fresh")
    }
}

/// Waits until exactly these workers live.
async fn wait_for_workers(book: &Shared, ids: &[&str]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let alive = book.lock().expect("no holder panics").alive();
        if alive == ids {
            return;
        }
        assert!(Instant::now() < deadline, "{alive:?} live, and not {ids:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn assert_never_twice(book: &Shared) {
    assert_eq!(book.lock().expect("no holder panics").twice, Vec::<String>::new());
}

/// Scenario sharding 80: five workers with distinct indices; a worker that ends is back within the interval.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_80_each_worker_lives_once_and_comes_back() {
    let network = MemoryNetwork::new();
    let book = Shared::default();
    let mut nodes = Vec::new();
    for address in ["a:1", "b:1", "c:1"] {
        nodes.push(Node::joined(&network, address, &[]).await);
    }
    let handles: Vec<_> = nodes.iter().map(|node| node.workers(&book, 5)).collect();
    wait_for_workers(&book, &["0", "1", "2", "3", "4"]).await;
    let began = book.lock().expect("no holder panics").began.clone();
    let indices: Vec<u32> = began.iter().map(|seen| seen.index).collect();
    assert_eq!(indices.iter().collect::<BTreeSet<_>>().len(), 5, "{began:?}");
    assert!(began.iter().all(|seen| (seen.count, seen.revision) == (5, 0)));
    for handle in &handles {
        let number = handle.number_of_processes().await.expect("the manager answers");
        assert_eq!((number.count, number.revision, number.rescale_in_progress), (5, 0, false));
    }

    // Workers of a node that leaves come back on the other nodes.
    let left = nodes.pop().expect("there are three");
    left.cluster.shutdown().await;
    wait_for_workers(&book, &["0", "1", "2", "3", "4"]).await;
    let mut latest: BTreeMap<String, UniqueAddress> = BTreeMap::new();
    for seen in &book.lock().expect("no holder panics").began {
        latest.insert(seen.id.clone(), seen.node.clone());
    }
    assert!(latest.values().all(|node| *node != left.address), "{latest:?}");
    assert_never_twice(&book);

    // The same number again is accepted; another number is not.
    let again = book.clone();
    let fewer = nodes[0].sharding.daemon_process("workers", 4, move |init| Ok(Worker::new(&again, init, false)));
    assert!(matches!(fewer.start(), Err(InitError::Differs { field: "number of processes", .. })));
}

/// Scenario sharding 80: a worker that has stopped is asked to start again in the next round. Ten starts take nine
/// rounds, while at the default interval only three rounds would fit into `PATIENCE`: so rounds follow this file's
/// interval.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_80_a_stopped_worker_is_back_within_the_interval() {
    let network = MemoryNetwork::new();
    let book = Shared::default();
    let node = Node::joined(&network, "a:1", &[]).await;
    let shared = book.clone();
    let workers = node.sharding.daemon_process("workers", 2, move |init| Ok(Worker::new(&shared, init, true)));
    workers.start().expect("fresh");
    let deadline = Instant::now() + PATIENCE;
    while ["0", "1"].iter().any(|id| book.lock().expect("no holder panics").began(id) < 10) {
        assert!(Instant::now() < deadline, "{book:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_never_twice(&book);
}

/// A worker starts with its shard: the manager's next round is an hour away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_shard_moves_does_not_wait_for_the_manager() {
    let network = MemoryNetwork::new();
    let book = Shared::default();
    let hour = Duration::from_secs(3600);
    let a = Node::joined_every(&network, "a:1", &[], hour).await;
    let b = Node::joined_every(&network, "b:1", &[], hour).await;
    b.workers(&book, 4);
    a.workers(&book, 4);
    wait_for_workers(&book, &["0", "1", "2", "3"]).await;
    let began = book.lock().expect("no holder panics").began.clone();
    assert!(began.iter().any(|seen| seen.node == b.address), "no worker would move: {began:?}");
    b.cluster.shutdown().await;
    wait_for_workers(&book, &["0", "1", "2", "3"]).await;
    let book = book.lock().expect("no holder panics");
    let of_b = began.iter().filter(|seen| seen.node == b.address);
    for seen in of_b {
        let now = book.began.iter().rfind(|later| later.id == seen.id).expect("it began");
        assert_eq!(now.node, a.address, "{}", seen.id);
    }
    assert_eq!(book.twice, Vec::<String>::new());
}

/// A worker that ignores stop requests, so that its shard takes the whole deadline to stop.
struct Stubborn(Worker);

impl Entity for Stubborn {
    type Message = ();

    fn on_start(&mut self, cx: &mut Ctx<'_, ()>) {
        self.0.on_start(cx);
    }

    fn receive(&mut self, (): (), _: &mut Ctx<'_, ()>) -> Result<(), Failure> {
        Ok(())
    }

    fn on_signal(&mut self, signal: Signal, cx: &mut Ctx<'_, ()>) -> Result<(), Failure> {
        self.0.on_signal(signal, cx)
    }
}

/// Scenario sharding 80: the next manager completes a change that its predecessor began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_80_a_change_goes_on_when_its_manager_ends() {
    let network = MemoryNetwork::new();
    let book = Shared::default();
    let (a, b) = (Node::joined(&network, "a:1", &[]).await, Node::joined(&network, "b:1", &[]).await);
    let start = |node: &Node| {
        let book = book.clone();
        let workers =
            node.sharding.daemon_process("workers", 4, move |init| Ok(Stubborn(Worker::new(&book, init, false))));
        workers.stop_message(|| ()).start().expect("fresh")
    };
    let (_, at_b) = (start(&a), start(&b));
    wait_for_workers(&book, &["0", "1", "2", "3"]).await;
    let asks = at_b.clone();
    let asked = tokio::spawn(async move { asks.change_number_of_processes(2).await });
    let deadline = Instant::now() + PATIENCE;
    while at_b.number_of_processes().await.expect("it answers").revision == 0 {
        assert!(Instant::now() < deadline, "the change does not begin");
    }
    // The workers take a second to stop; their manager's node leaves meanwhile.
    a.cluster.shutdown().await;
    wait_for_workers(&book, &["1|2|0", "1|2|1"]).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let number = at_b.number_of_processes().await.expect("the next manager answers");
        assert_eq!((number.count, number.revision), (2, 1));
        if !number.rescale_in_progress {
            break;
        }
        assert!(Instant::now() < deadline, "the change does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The asker hears of the change, or that the manager has ended.
    asked.await.expect("no panic").ok();
    assert_never_twice(&book);
}

/// Scenario sharding 80: nodes without the role run no worker, but reach the manager.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_80_nodes_without_the_role_run_none() {
    let network = MemoryNetwork::new();
    let book = Shared::default();
    let web = Node::joined(&network, "a:1", &["web"]).await;
    let start = |node: &Node| {
        let book = book.clone();
        let workers = node.sharding.daemon_process("workers", 3, move |init| Ok(Worker::new(&book, init, false)));
        workers.role("worker").start().expect("fresh")
    };
    let at_web = start(&web);
    tokio::time::sleep(INTERVAL * 2).await;
    assert_eq!(book.lock().expect("no holder panics").began, [], "nobody has the role");
    let worker = Node::joined(&network, "b:1", &["worker"]).await;
    start(&worker);
    wait_for_workers(&book, &["0", "1", "2"]).await;
    at_web.change_number_of_processes(2).await.expect("the manager answers");
    wait_for_workers(&book, &["1|2|0", "1|2|1"]).await;
    let book = book.lock().expect("no holder panics");
    assert!(book.began.iter().all(|seen| seen.node == worker.address), "{book:?}");
}

/// Scenario sharding 80: four workers become two of the next revision, and no two of an index live at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_80_a_rescale_stops_all_and_starts_the_new_ones() {
    let network = MemoryNetwork::new();
    let book = Shared::default();
    let (a, b) = (Node::joined(&network, "a:1", &[]).await, Node::joined(&network, "b:1", &[]).await);
    let (at_a, at_b) = (a.workers(&book, 4), b.workers(&book, 4));
    wait_for_workers(&book, &["0", "1", "2", "3"]).await;

    assert_eq!(at_b.change_number_of_processes(4).await, Ok(()), "the same number");
    assert_eq!(at_a.number_of_processes().await.expect("it answers").revision, 0);
    let most = ShardingSettings::test().number_of_shards;
    for asked in [0, most + 1] {
        let refused = at_a.change_number_of_processes(asked).await;
        assert_eq!(refused, Err(DaemonError::OutOfRange { asked, most }));
    }

    let (first, second) = tokio::join!(at_b.change_number_of_processes(2), at_a.change_number_of_processes(6));
    // Either request may come first; the other one is refused.
    let (count, ids): (u32, &[&str]) = match (first, second) {
        (Ok(()), Err(DaemonError::RescaleInProgress)) => (2, &["1|2|0", "1|2|1"]),
        (Err(DaemonError::RescaleInProgress), Ok(())) => (6, &["1|6|0", "1|6|1", "1|6|2", "1|6|3", "1|6|4", "1|6|5"]),
        both => panic!("{both:?}"),
    };
    wait_for_workers(&book, ids).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let number = at_a.number_of_processes().await.expect("it answers");
        assert_eq!((number.count, number.revision), (count, 1));
        assert!(number.started_ms > 0);
        if !number.rescale_in_progress {
            break;
        }
        assert!(Instant::now() < deadline, "the change does not end");
    }

    // The manager's node leaves; the next manager knows the number, and can change it again.
    a.cluster.shutdown().await;
    let number = at_b.number_of_processes().await.expect("the next manager answers");
    assert_eq!((number.count, number.revision), (count, 1));
    at_b.change_number_of_processes(3).await.expect("it is changed");
    wait_for_workers(&book, &["2|3|0", "2|3|1", "2|3|2"]).await;
    assert_never_twice(&book);
}

/// Scenario sharding 80, and the complaint "daemon worker of an old revision starts": a late request for a worker of
/// the former revision runs no user code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_80_a_worker_of_an_old_revision_ends_before_it_begins() {
    let network = MemoryNetwork::new();
    let book = Shared::default();
    let a = Node::joined(&network, "a:1", &[]).await;
    let workers = a.workers(&book, 2);
    wait_for_workers(&book, &["0", "1"]).await;
    workers.change_number_of_processes(3).await.expect("it is changed");
    wait_for_workers(&book, &["1|3|0", "1|3|1", "1|3|2"]).await;
    let before = book.lock().expect("no holder panics").began.len();
    let region = a.sharding.region(EntityKey::<()>::named("sharded-daemon-process-workers")).expect("it is set up");
    for id in ["0", "1", "1|2|0", "2|3|0"] {
        // The start is acked before the worker's revision is known.
        region.start_entity(id).await.expect("it is acked");
    }
    tokio::time::sleep(INTERVAL * 2).await;
    assert_eq!(book.lock().expect("no holder panics").began.len(), before, "a worker of another revision began");
    wait_for_workers(&book, &["1|3|0", "1|3|1", "1|3|2"]).await;
    for id in ["3", "x", "1|3|3", ""] {
        assert!(region.start_entity(id).await.is_err(), "{id} is no worker");
    }
    assert_never_twice(&book);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_daemon_processes_are_refused_at_the_start() {
    let network = MemoryNetwork::new();
    let a = Node::joined(&network, "a:1", &[]).await;
    let refused = |count| {
        let book = Shared::default();
        let workers = a.sharding.daemon_process("none", count, move |init| Ok(Worker::new(&book, init, false)));
        workers.start().unwrap_err().to_string()
    };
    let words = "there must be from 1 to 12, which is number_of_shards";
    assert_eq!(refused(0), format!("daemon process none: 0 processes; {words}"));
    assert_eq!(refused(13), format!("daemon process none: 13 processes; {words}"));
    // A type that is set up under the name of a daemon process's type is not mistaken for it.
    struct Other;
    impl Entity for Other {
        type Message = u8;
        fn receive(&mut self, _: u8, _: &mut Ctx<'_, u8>) -> Result<(), Failure> {
            Ok(())
        }
    }
    let key = EntityKey::named("sharded-daemon-process-none");
    a.sharding.init(EntityType::new(key, |_| Ok(Other)).local_only()).expect("fresh");
    assert!(refused(2).contains("initialised already"));
}
