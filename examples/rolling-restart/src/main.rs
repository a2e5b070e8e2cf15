//! A rolling restart under load: nodes are replaced one after another while a client sends requests. Nothing is lost.
//!
//! Three nodes host counters. A fourth node, the client, hosts none and sends requests all the time. Each of the three
//! leaves in order, and a new one takes its place; the newest leaves first and the oldest last, so that the coordinator
//! moves once. Shards are handed over, requests wait for them, and each is handled once: every answer is the next
//! number of its counter. At the end the log is empty, since a correct restart logs no warnings.
#![expect(clippy::print_stdout, reason = "a program that shows what happens")]

use std::io::{Write, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use greylag::prelude::*;
use tracing_subscriber::filter::LevelFilter;

const COUNTER: EntityKey<Increment> = EntityKey::new("Counter");
const COUNTERS: usize = 50;
/// The time limit for an answer, also on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

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

/// Counts the log lines at WARN and above, and passes them on to standard error.
#[derive(Clone, Default)]
struct Log(Arc<AtomicUsize>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.fetch_add(1, Ordering::Relaxed);
        stderr().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        stderr().flush()
    }
}

/// Starts a node that hosts counters, or with the role `client` only sends to them.
async fn start(role: &str, others: &[&Node], stores: &Stores) -> Result<Node, greylag::StartError> {
    let seeds = others.iter().map(|node| node.address().to_string());
    let builder = Node::builder("rolling").bind("127.0.0.1", 0).roles([role]).seed_nodes(seeds);
    // Log no slow handlers: they would only show that the machine is busy with other programs.
    let builder = builder.configure(|settings| settings.sharding.runtime.slow_handler_threshold = TIME_LIMIT);
    let builder = if role == "client" {
        builder.proxy(COUNTER.proxy().role("host").commands(json("increment")))
    } else {
        let counters = EntityType::event_sourced(COUNTER, |_| Ok(Counter))
            .role("host")
            .commands(json("increment"))
            .events(json("incremented"));
        builder.stores(stores.clone()).entity(counters)
    };
    builder.start().await
}

/// Asks one counter after the other until it is told to end; returns the count of answers.
async fn ask_all_the_time(client: Node, ends: Arc<AtomicBool>) -> greylag::Result<u64> {
    let mut counts = [0; COUNTERS];
    while !ends.load(Ordering::Relaxed) {
        for (id, count) in counts.iter_mut().enumerate() {
            let counter = client.entity_ref(COUNTER, id.to_string());
            let counted = counter.ask(|reply_to| Increment { reply_to }).timeout(TIME_LIMIT).await?;
            *count += 1;
            if counted != *count {
                return Err(greylag::Error::new(format!("counter {id} is at {counted} after {count} questions")));
            }
        }
    }
    Ok(counts.iter().sum())
}

#[tokio::main]
async fn main() -> greylag::Result {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_writer(move || writer.clone()).init();

    // The journal outlives the nodes; a real program would use PostgreSQL, for example.
    let stores = Stores::in_memory_shared();
    let mut hosts: Vec<Node> = Vec::new();
    for _ in 0..3 {
        hosts.push(start("host", &hosts.iter().collect::<Vec<_>>(), &stores).await?);
    }
    let client = start("client", &hosts.iter().collect::<Vec<_>>(), &stores).await?;
    let ends = Arc::new(AtomicBool::new(false));
    let asking = tokio::spawn(ask_all_the_time(client.clone(), ends.clone()));

    for _ in 0..3 {
        let leaving = hosts.pop().expect("there are three");
        leaving.shutdown().await?;
        // Insert at the front: the older hosts still have to leave, and `pop` takes them from the end.
        let coming = start("host", &[&client], &stores).await?;
        println!("{} has left, {} has come", leaving.address(), coming.address());
        hosts.insert(0, coming);
    }
    ends.store(true, Ordering::Relaxed);
    let answered = asking.await.expect("it does not panic")?;
    println!("{answered} questions, {answered} answers");

    client.shutdown().await?;
    for host in &hosts {
        host.shutdown().await?;
    }
    match log.0.load(Ordering::Relaxed) {
        0 => Ok(()),
        lines => Err(greylag::Error::new(format!("{lines} lines were logged at WARN or above"))),
    }
}
