//! The serving process is killed under load and started again: everything acknowledged is there, once and whole, and
//! clients notice only a delay.
//!
//! The child is this very test binary, started anew with directory and address in environment variables. It serves a
//! sled journal; the parent runs its clients. A long run with more kills:
//!
//! ```sh
//! GREYLAG_RESTARTS=500 cargo test --release -p greylag-journal-service --test suite crash::
//! ```

use crate::common;

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{ServedDisk, append};
use async_trait::async_trait;
use futures::future::join_all;
use greylag_codec::json;
use greylag_core::ReplyTo;
use greylag_journal_service::{ClientSettings, JournalClient};
use greylag_persistence::driver::{EntityHandle, RecoveryPermits, spawn};
use greylag_persistence::tck::{self, CrashFactory, CrashStores, Flags};
use greylag_persistence::{
    AppendError, Backoff, BreakerSettings, Ctx, Effect, EventCodecs, EventSourced, EventSourcedSettings, Guarded,
    Journal, OnFailure, Persisted, PersistenceId, ReadRange, Stores, Under, WriterEpoch, WriterUuid,
};
use greylag_testkit::stranger;
use tokio::sync::watch;
use tokio::task::{JoinHandle, block_in_place};

const DIRECTORY: &str = "GREYLAG_CRASH_DIRECTORY";
const ADDRESS: &str = "GREYLAG_CRASH_ADDRESS";
const CLIENTS: usize = 3;
const WRITERS: u128 = 40;
const KILLS: u64 = 5;
const APPENDS_BETWEEN_KILLS: u64 = 400;

/// Child process: the server that the tests below start; does nothing when run as a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_killed() {
    let (Some(directory), Ok(address)) = (std::env::var_os(DIRECTORY), std::env::var(ADDRESS)) else { return };
    let _served = ServedDisk::start(Path::new(&directory), address.parse().unwrap()).await;
    std::future::pending::<()>().await;
}

/// A server in a process of its own.
struct Process {
    directory: tempfile::TempDir,
    address: SocketAddr,
    child: Option<Child>,
}

impl Process {
    fn new() -> Self {
        let address = std::net::TcpListener::bind(common::loopback()).unwrap().local_addr().unwrap();
        Self { directory: tempfile::tempdir().unwrap(), address, child: None }
    }

    fn start(&mut self) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::server_that_is_killed", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, self.directory.path())
            .env(ADDRESS, self.address.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn();
        self.child = Some(child.unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Asserts that the server runs: it exits if it cannot open the journal that a killed one left.
    fn assert_runs(&mut self) {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
        assert_eq!(ended, None, "the server ended by itself; its own words are above");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Several clients of one server that is killed; their handles stay.
struct Killed {
    process: tokio::sync::Mutex<Process>,
    clients: tokio::sync::OnceCell<Vec<JournalClient>>,
}

impl Killed {
    fn new() -> Self {
        Self { process: tokio::sync::Mutex::new(Process::new()), clients: tokio::sync::OnceCell::new() }
    }
}

/// Append timeouts: the first two are longer than any restart, the last one is shorter.
const TIME_LIMIT: [Duration; CLIENTS] = [Duration::from_secs(60), Duration::from_secs(60), Duration::from_millis(25)];

async fn connect(address: SocketAddr, append_timeout: Duration) -> JournalClient {
    let settings = ClientSettings { append_timeout, ..ClientSettings::test() };
    JournalClient::connect(&address.to_string(), settings).await.unwrap()
}

#[async_trait]
impl CrashFactory for Killed {
    async fn start(&self) -> Vec<CrashStores> {
        let mut process = self.process.lock().await;
        process.start();
        let address = process.address;
        let connect_all = || async { join_all(TIME_LIMIT.map(|time_limit| connect(address, time_limit))).await };
        let clients = self.clients.get_or_init(connect_all).await;
        for client in clients {
            // The client refuses calls until it has connected again.
            let unclaimed = PersistenceId::unique("unclaimed").unwrap();
            while client.journal().head(&unclaimed).await.is_err() {
                process.assert_runs();
                tokio::task::yield_now().await;
            }
        }
        let stores = |client: &JournalClient| CrashStores {
            journal: Arc::new(client.journal()),
            snapshots: Arc::new(client.snapshots()),
            states: Some(Arc::new(client.states().unwrap())),
            offsets: Some(Arc::new(client.offsets().unwrap())),
        };
        clients.iter().map(stores).collect()
    }

    async fn kill(&self, after: Duration) {
        tokio::time::sleep(after).await;
        self.process.lock().await.kill();
    }

    async fn kill_while_starting(&self, after: Duration) -> bool {
        self.process.lock().await.start();
        self.kill(after).await;
        true
    }
}

/// How many times the server is killed; `GREYLAG_RESTARTS` sets it for a long run.
fn kills() -> u32 {
    std::env::var("GREYLAG_RESTARTS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(6)
}

/// Kit cases `crash` 1 to 3: appends, deletions, claims, snapshots, states and offsets of several clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_served_stores_survive_kills_under_load() {
    let began_at = Instant::now();
    let report = tck::crash(&Killed::new(), Flags { kills: kills(), ..Flags::default() }).await;
    report.assert_conforms();
    assert_eq!((report.cases.len(), report.skipped().count()), (3, 0), "{report}");
    let (kills, took) = (kills(), began_at.elapsed());
    let twice = kills / 10 + 1;
    let done = format!("{kills} kills under appends, {kills} under everything, {twice} twice, in {took:?}\n{report}");
    std::io::stdout().write_all(done.as_bytes()).unwrap();
}

/// Appends until told to stop; answers the id and its last number.
async fn write(
    journal: impl Journal,
    uuid: u128,
    done: watch::Sender<u64>,
    stop: Arc<AtomicBool>,
) -> (PersistenceId, u32) {
    let id = PersistenceId::of("Counter", &uuid.to_string()).unwrap();
    let writer_uuid = WriterUuid::from_u128(uuid);
    let claim = journal.claim(&id, writer_uuid, Under::Seen(WriterEpoch::NONE)).await.unwrap();
    let mut highest = 0;
    while !stop.load(Ordering::Relaxed) {
        let number = highest + 1;
        match journal.append(append(&id, &claim, writer_uuid, number, &number.to_string())).await {
            Ok(_) => {
                highest = number;
                done.send_modify(|done| *done += 1);
            }
            // The append is certainly not stored, so its number is still free.
            Err(AppendError::NotStored(_)) => tokio::task::yield_now().await,
            Err(other) => panic!("the server is back well before the timeout, but: {other}"),
        }
    }
    (id, highest)
}

/// persistence §4.4a: after a lost connection an append is tried again as in J10, and is Unknown only at
/// `append_timeout`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_no_acknowledged_append_and_repeats_none() {
    let mut process = Process::new();
    process.start();
    let client = connect(process.address, TIME_LIMIT[0]).await;
    let (done, stop) = (watch::Sender::new(0), Arc::new(AtomicBool::new(false)));
    let mut progress = done.subscribe();
    let writers: Vec<_> =
        (1..=WRITERS).map(|uuid| tokio::spawn(write(client.journal(), uuid, done.clone(), stop.clone()))).collect();
    for kill in 1..=KILLS {
        progress.wait_for(|done| *done >= kill * APPENDS_BETWEEN_KILLS).await.unwrap();
        process.kill();
        process.start();
    }
    stop.store(true, Ordering::Relaxed);
    let written = join_all(writers).await;
    for writer in written {
        let (id, highest) = writer.unwrap();
        let page = client.journal().read(&id, ReadRange::all()).await.unwrap();
        let stored: Vec<_> = page.records.iter().map(|record| record.payload.clone()).collect();
        let expected: Vec<bytes::Bytes> = (1..=highest).map(|number| number.to_string().into()).collect();
        assert_eq!(stored, expected, "{id}");
    }
    assert!(*progress.borrow() >= KILLS * APPENDS_BETWEEN_KILLS);
}

/// Adds one, and replies with the sum once it is stored.
struct Add(ReplyTo<u64>);

struct Sum;

impl EventSourced for Sum {
    type Command = Add;
    type Event = u64;
    type State = u64;

    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        // A back-off so long that a test that waits for it fails.
        let hour = Duration::from_secs(3600);
        let on_failure = OnFailure::RestartBackoff(Backoff { min: hour, max: hour, jitter: 0.0 });
        EventSourcedSettings { on_failure, ..node.clone() }
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Add>, _: &u64, Add(reply_to): Add) -> Effect<Self> {
        Effect::<Self>::persist(1).then_reply(reply_to, |sum| *sum)
    }

    fn apply(sum: &mut u64, number: &u64) {
        *sum += number;
    }
}

impl Sum {
    fn stored(id: PersistenceId) -> Persisted<Self, EventCodecs<Self>> {
        EventCodecs::new(json("sum.added")).of(id, Self)
    }
}

/// Far longer than the recovery takes, and far shorter than the back-off of `Sum`.
const SOON: Duration = Duration::from_secs(10);

/// The stores of a client with the breakers of a node around them.
fn guarded(client: &JournalClient) -> Stores {
    let journal = Guarded::new(Arc::new(client.journal()), "the journal", BreakerSettings::default()).unwrap();
    let snapshots = Guarded::new(Arc::new(client.snapshots()), "its snapshots", BreakerSettings::snapshots()).unwrap();
    Stores::new(Arc::new(journal), Arc::new(snapshots))
}

/// Asks once, which must fail in the outage, then five times more, in order.
async fn ask_through_outage(sum: EntityHandle<Add>) -> JoinHandle<Vec<u64>> {
    assert!(sum.ask(Add).await.is_err(), "the server is away");
    tokio::spawn(async move {
        let answers = join_all((0..5).map(|_| sum.ask(Add))).await;
        answers.into_iter().map(Result::unwrap).collect()
    })
}

/// Sharding scenario 114: after an outage, commands that wait for the journal go on at once, in order. All they wait
/// for is the client's next try to connect, which comes within a second; the time until all are done depends on what
/// else the machine does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_114_entities_continue_as_soon_as_the_server_answers() {
    let mut process = Process::new();
    process.start();
    let settings = ClientSettings { append_timeout: Duration::from_secs(4), ..ClientSettings::default() };
    let client = JournalClient::connect(&process.address.to_string(), settings).await.unwrap();
    let start = |number, stores| spawn(Sum::stored(common::id(number)), stores, RecoveryPermits::default()).unwrap();
    let ((behind, _end), (bare, _other_end)) = (start(1, guarded(&client)), start(2, client.stores()));
    assert_eq!((behind.ask(Add).await, bare.ask(Add).await), (Ok(1), Ok(1)));

    process.kill();
    // By the time a call is refused, the waits between tries to connect have their greatest length.
    let (behind, bare) = tokio::join!(ask_through_outage(behind), ask_through_outage(bare));
    let address = process.address;
    let wait = block_in_place(|| stranger::shortest_wait(address, 3, 3 * SOON)).expect("it is tried again");
    assert!(wait < Duration::from_secs(1), "the client waits for {wait:?} before it tries again");
    process.start();
    while tokio::net::TcpStream::connect(process.address).await.is_err() {
        process.assert_runs();
        tokio::task::yield_now().await;
    }
    let back_at = Instant::now();
    for waiting in [behind, bare] {
        let sums = tokio::time::timeout(SOON, waiting).await.expect("it does not wait for an hour").unwrap();
        // The outcome of the command that met the outage may be unknown.
        let first = sums[0];
        assert!(first == 2 || first == 3, "{sums:?}");
        assert!(sums.iter().copied().eq(first..first + 5), "what waited is handled in order: {sums:?}");
    }
    let took = back_at.elapsed();
    writeln!(std::io::stdout(), "answered {took:.2?} after the first accepted connection").unwrap();
    assert!(took < SOON, "{took:?}");
}
