//! A cluster that starts, works, moves its shards and stops in order logs no warnings. A test program of its own, since
//! a process has only one log subscriber.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use greylag::cluster::{MemberStatus, Singleton};
use greylag::crdt::GCounter;
use greylag::ddata::{Key, TypeTable, WriteLevel};
use greylag::prelude::*;
use greylag::sharding::fingerprint::StateStoreMode;
use greylag_testkit::port;
use tokio::task::JoinHandle;

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The log of this process. The tests that read it hold the lock in turns.
static LOG: LazyLock<tokio::sync::Mutex<Log>> = LazyLock::new(|| tokio::sync::Mutex::new(Log::keep()));

/// The warnings and errors of this process, in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nothing panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn keep() -> Self {
        let log = Self::default();
        let writer = log.clone();
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
            .with_writer(move || writer.clone())
            .init();
        log
    }

    fn warnings(&self) -> Vec<String> {
        let text = self.0.lock().expect("nothing panics").clone();
        String::from_utf8(text).expect("text").lines().map(ToOwned::to_owned).collect()
    }
}

#[derive(Serialize, Deserialize)]
struct Take {
    reply_to: ReplyTo<u64>,
}

#[derive(Default)]
struct Ticket(u64);

impl Entity for Ticket {
    type Message = Take;

    fn receive(&mut self, take: Take, _: &mut Ctx<'_, Take>) -> Result<(), Failure> {
        self.0 += 1;
        take.reply_to.reply(self.0);
        Ok(())
    }
}

async fn start(port: u16, seeds: &[String]) -> Node {
    let node = Node::builder("quiet").bind("127.0.0.1", port).seed_nodes(seeds).start().await.expect("it joins");
    let job = Singleton::job("job", |_, mut stop| async move { stop.stopped().await });
    node.cluster().singleton(job).expect("it starts");
    node
}

/// Asks entities on every node from every node, and increments a counter on every node.
async fn work(nodes: &[Node]) {
    let mut regions = Vec::new();
    let mut replicators = Vec::new();
    for node in nodes {
        let tickets = EntityType::new(EntityKey::new("Ticket"), |_| Ok(Ticket::default())).codec(json("take"));
        regions.push(node.sharding().init(tickets).expect("it starts"));
        replicators.push(node.replicator(TypeTable::new().with::<GCounter>()).expect("it starts"));
    }
    for round in 1..=3 {
        for id in 0..30 {
            let region = &regions[(id + round) % regions.len()];
            let ticket = region.entity_ref(id.to_string());
            let taken = ticket.ask(|reply_to| Take { reply_to }).timeout(TIME_LIMIT).await.expect("it answers");
            assert_eq!(taken, round as u64);
        }
    }
    let votes = Key::<GCounter>::new("votes").expect("a key");
    for replicator in &replicators {
        let vote = |votes: &mut GCounter, cx: &mut greylag::crdt::UpdateCx<'_>| votes.increment(cx, 1);
        let level = WriteLevel::Majority { min_cap: None, timeout: TIME_LIMIT };
        replicator.update(&votes, level, GCounter::new, vote).await.expect("most hear of it");
    }
}

async fn all_up(nodes: &[Node]) {
    for node in nodes {
        let up = node.cluster().wait_for(|view| {
            view.members.iter().filter(|member| member.status == MemberStatus::Up).count() == nodes.len()
        });
        tokio::time::timeout(TIME_LIMIT, up).await.expect("all are Up").expect("it stays");
    }
}

/// Three nodes with one list of seeds start at once, work, and stop: one after the other, and all together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_normal_start_and_stop_log_no_warning() {
    let log = LOG.lock().await;
    for together in [false, true] {
        let ports = [port::unused().port(), port::unused().port(), port::unused().port()];
        let seeds = ports.map(|port| format!("127.0.0.1:{port}"));
        let [one, two, three] = ports;
        let (one, two, three) = tokio::join!(start(one, &seeds), start(two, &seeds), start(three, &seeds));
        let nodes = [one, two, three];
        all_up(&nodes).await;
        work(&nodes).await;
        if together {
            let [one, two, three] = &nodes;
            let ended = tokio::try_join!(one.shutdown(), two.shutdown(), three.shutdown());
            ended.expect("they leave in order");
        } else {
            for node in &nodes {
                node.shutdown().await.expect("it leaves in order");
            }
        }
        drop(nodes);
        assert_eq!(log.warnings(), Vec::<String>::new(), "together: {together}");
    }
}

const COUNTER: EntityKey<Increment> = EntityKey::new("Counter");
const PLACED: EntityKey<Take> = EntityKey::new("Placed");
/// How long dials may fail before a warning.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Shards of each type, and number of entities that are asked.
const SHARDS: usize = 30;

#[derive(Serialize, Deserialize)]
struct Increment {
    reply_to: ReplyTo<u64>,
}

#[derive(Serialize, Deserialize)]
struct Incremented;

struct Counter;

impl EventSourced for Counter {
    type Command = Increment;
    type Event = Incremented;
    type State = u64;

    fn on_command(&mut self, _: &mut Ctx<'_, Increment>, _: &u64, Increment { reply_to }: Increment) -> Effect<Self> {
        Effect::<Self>::persist(Incremented).then_reply(reply_to, |count| *count)
    }

    fn apply(count: &mut u64, _: &Incremented) {
        *count += 1;
    }
}

/// A node with two types: the strategy places the shards of one, the test those of the other.
async fn host(seeds: &[String], mode: StateStoreMode, stores: &Stores) -> Node {
    let counters = EntityType::event_sourced(COUNTER, |_| Ok(Counter)).commands(json("increment"));
    let placed = EntityType::new(PLACED, |_| Ok(Ticket::default())).codec(json("take"));
    let builder = Node::builder("moving").bind("127.0.0.1", 0).stores(stores.clone());
    let builder = builder.seed_nodes(seeds).configure(move |settings| {
        settings.transport.handshake_timeout = DIAL_TIMEOUT;
        settings.sharding.state_store_mode = mode;
        settings.sharding.number_of_shards = SHARDS as u32;
        settings.sharding.rebalance_interval = Duration::from_millis(500);
        // A machine busy with other tests may delay any handler.
        settings.sharding.runtime.slow_handler_threshold = TIME_LIMIT;
    });
    let builder = builder.entity(counters.events(json("incremented")));
    builder.entity(placed.allocation(ExternalAllocation::default())).start().await.expect("it joins")
}

/// Asks every entity from one node, again and again; each answer must be one more than the one before.
struct Load {
    ends: Arc<AtomicBool>,
    asking: JoinHandle<u64>,
}

impl Load {
    /// `by` distinguishes its counters from those of other loads.
    fn begin(node: &Node, by: usize) -> Self {
        let (node, ends) = (node.clone(), Arc::new(AtomicBool::new(false)));
        let told = ends.clone();
        let asking = tokio::spawn(async move {
            let mut rounds = 0;
            while !told.load(Ordering::Relaxed) {
                rounds += 1;
                for id in 0..SHARDS {
                    let counter = node.entity_ref(COUNTER, format!("{by}-{id}"));
                    let counted = counter.ask(|reply_to| Increment { reply_to }).timeout(TIME_LIMIT).await;
                    assert_eq!(counted, Ok(rounds), "counter {by}-{id}");
                    let ticket = node.entity_ref(PLACED, format!("{by}-{id}"));
                    let taken = ticket.ask(|reply_to| Take { reply_to }).timeout(TIME_LIMIT).await;
                    assert!(taken.is_ok_and(|taken| taken <= rounds), "ticket {by}-{id}");
                }
            }
            rounds
        });
        Self { ends, asking }
    }

    /// Stops the load and waits for its end; every question must have been answered.
    async fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        assert!(self.asking.await.expect("all is answered, in order") > 0);
    }
}

/// Waits until a condition on the homes of shards holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIME_LIMIT, waiting).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// Whether a node has its share of the counters' shards: at least four fifths of an equal share among `of` nodes.
fn has_its_share(node: &Node, of: usize) -> bool {
    let homes = node.sharding().region(COUNTER).expect("set up").shard_homes();
    let own = homes.get(node.unique_address()).copied().unwrap_or(0);
    own > 0 && own * of * 5 >= homes.values().sum::<usize>() * 4
}

/// Moves every shard of the placed type to a node, by the program's command.
async fn move_all(asked: &Node, to: &Node) {
    let region = asked.sharding().region(PLACED).expect("set up");
    let shards: Vec<_> = (0..SHARDS as u32).map(greylag::sharding::ids::ShardId::from_index).collect();
    let wanted: Vec<_> = shards.iter().map(|shard| (shard.clone(), to.address().clone())).collect();
    asked.sharding().external_shards(&PLACED).update_shard_locations(wanted).await.expect("it is written");
    let homed = || shards.iter().filter_map(|shard| region.shard_home(shard));
    until("placed shards move", || homed().count() > 0 && homed().all(|home| home == *to.unique_address())).await;
}

/// Under load nodes start, shards move by command and by rebalance, the oldest node leaves, another joins, and
/// all stop; every question is answered in order, and nothing is logged at WARN or above.
async fn run_heavy_use(mode: StateStoreMode) {
    let log = LOG.lock().await;
    let stores = Stores::in_memory_shared();
    let one = host(&[], mode, &stores).await;
    let of_one = Load::begin(&one, 1);
    let mut seeds = vec![one.address().to_string()];
    let two = host(&seeds, mode, &stores).await;
    let of_two = Load::begin(&two, 2);
    until("the second node gets its share", || has_its_share(&two, 2)).await;
    let three = host(&seeds, mode, &stores).await;
    let of_three = Load::begin(&three, 3);
    until("the third node gets its share", || has_its_share(&three, 3)).await;
    assert_eq!(log.warnings(), Vec::<String>::new(), "start and rebalance, {mode}");

    for to in [&two, &three] {
        move_all(&two, to).await;
    }
    assert_eq!(log.warnings(), Vec::<String>::new(), "move, {mode}");

    of_one.end().await;
    one.shutdown().await.expect("it leaves in order");
    // A seed node that has left before a new node contacts it would be worth a warning, so it is not named any more.
    seeds = [&two, &three].map(|node| node.address().to_string()).to_vec();
    let four = host(&seeds, mode, &stores).await;
    until("the fourth node gets its share", || has_its_share(&four, 3)).await;
    // The other nodes still dial their seed, the first node, in search of other clusters.
    tokio::time::sleep(DIAL_TIMEOUT * 3 / 2).await;
    assert_eq!(log.warnings(), Vec::<String>::new(), "the oldest leaves and another comes, {mode}");

    of_two.end().await;
    two.shutdown().await.expect("it leaves in order");
    of_three.end().await;
    let ended = tokio::try_join!(three.shutdown(), four.shutdown());
    ended.expect("they leave in order");
    assert_eq!(log.warnings(), Vec::<String>::new(), "stop, {mode}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_use_logs_no_warning_with_homes_in_replicated_data() {
    run_heavy_use(StateStoreMode::Ddata).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_use_logs_no_warning_with_homes_in_a_journal() {
    run_heavy_use(StateStoreMode::Persistence).await;
}
