//! Measures whole nodes in one process, over loopback.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{NodeAddress, Registry};
use greylag_crdt::{ClockExhausted, LwwRegister, UpdateCx};
use greylag_ddata::{Key, Membership, ReadLevel, Replicator, ReplicatorSettings, TypeTable, WriteLevel};
use greylag_transport::{GrpcTransport, Remoting, TransportSettings};
use tokio::runtime::Runtime;

use crate::cores;
use crate::measure::{percentiles, processor_time};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A transport with a port of its own, on which no replicator runs yet.
pub(crate) async fn transport(registry: Arc<Registry>) -> Arc<GrpcTransport> {
    let settings = TransportSettings {
        maximum_large_frame_size: 4 * 1024 * 1024,
        fault_injection: false,
        ..TransportSettings::test()
    };
    GrpcTransport::bind(settings, registry).await.expect("binds")
}

pub(crate) async fn transports(count: usize) -> Vec<Arc<GrpcTransport>> {
    transports_with(count, &Arc::new(Registry::new())).await
}

pub(crate) async fn transports_with(count: usize, registry: &Arc<Registry>) -> Vec<Arc<GrpcTransport>> {
    let mut transports = Vec::new();
    for _ in 0..count {
        transports.push(transport(registry.clone()).await);
    }
    transports
}

/// Starts a replicator that knows the addresses of the others.
pub(crate) fn start(settings: ReplicatorSettings, at: &Arc<GrpcTransport>, all: &[Arc<GrpcTransport>]) -> Replicator {
    let addresses: Vec<NodeAddress> = all.iter().map(|node| node.self_address().address().clone()).collect();
    Replicator::start(settings, TypeTable::new(), at.clone(), Membership::fixed(addresses)).expect("starts")
}

pub(crate) fn set(
    value: String,
) -> impl FnOnce(&mut LwwRegister<String>, &mut UpdateCx<'_>) -> Result<(), ClockExhausted> {
    move |register, cx| register.set(cx, value).map(drop)
}

pub(crate) fn key(n: u32) -> Key<LwwRegister<String>> {
    Key::new(format!("key-{n:08}")).expect("a key")
}

/// Fills a node with entries, several at a time, as fast as one replicator takes them.
async fn fill(node: &Replicator, count: u32) {
    let tasks = (0..8_u32).map(|task| {
        let node = node.clone();
        tokio::spawn(async move {
            for n in (task..count).step_by(8) {
                let value = set("x".repeat(100));
                node.update(&key(n), WriteLevel::Local, LwwRegister::new, value).await.expect("an update");
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        task.await.expect("filled");
    }
}

async fn has(node: &Replicator, count: u32) {
    while node.metrics().await.map_or(0, |metrics| metrics.keys) < count as usize {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Updates one key locally, one update after the other, until told to stop.
pub(crate) async fn local_updates(node: Replicator, mut stop: tokio::sync::watch::Receiver<bool>) -> Vec<Duration> {
    let (key, mut times) = (Key::<LwwRegister<String>>::new("other").expect("a key"), Vec::new());
    while !*stop.borrow_and_update() {
        let start = Instant::now();
        node.update(&key, WriteLevel::Local, LwwRegister::new, set("y".into())).await.expect("an update");
        times.push(start.elapsed());
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    times
}

/// A node with its own threads, as in a process of its own. Its port is known before it starts.
pub(crate) struct Node {
    pub(crate) runtime: Runtime,
    pub(crate) replicator: Replicator,
    transport: Arc<GrpcTransport>,
}

/// The number of threads that run a node's tasks.
const WORKERS: usize = 2;

/// Free ports of this machine.
pub(crate) fn addresses(count: usize) -> Vec<NodeAddress> {
    let listen = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken: Vec<_> = (0..count).map(|_| listen()).collect();
    let address = |port: &std::net::TcpListener| format!("{}", port.local_addr().expect("an address")).parse();
    taken.iter().map(|port| address(port).expect("an address")).collect()
}

impl Node {
    pub(crate) fn start(settings: ReplicatorSettings, own: &NodeAddress, all: &[NodeAddress]) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(WORKERS).thread_name(thread_name(own)).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let (transport, replicator) = runtime.block_on(async {
            let of_transport = TransportSettings {
                maximum_large_frame_size: 4 * 1024 * 1024,
                fault_injection: false,
                canonical_host: Some(own.host().to_string()),
                canonical_port: own.port(),
                bind_port: None,
                ..TransportSettings::test()
            };
            let transport = GrpcTransport::bind(of_transport, Arc::new(Registry::new())).await.expect("binds");
            let membership = Membership::fixed(all.to_vec());
            let replicator = Replicator::start(settings, TypeTable::new(), transport.clone(), membership);
            (transport, replicator.expect("starts"))
        });
        Self { runtime, replicator, transport }
    }

    /// The longest step so far, in milliseconds.
    pub(crate) fn longest_step(&self) -> f64 {
        let metrics = self.runtime.block_on(self.replicator.metrics());
        metrics.map_or(0.0, |metrics| metrics.longest_step.as_secs_f64() * 1e3)
    }

    pub(crate) fn stop(self) {
        self.runtime.block_on(self.transport.shutdown());
        self.runtime.shutdown_background();
    }
}

/// The name of a node's threads.
fn thread_name(own: &NodeAddress) -> String {
    format!("node-{}", own.port())
}

/// A node starts while `sources` others hold `count` entries of 100 bytes. If `apart`, the new node has a core of its
/// own, as on a machine of its own, and so have its sources.
pub(crate) fn catch_up(count: u32, sources: usize, apart: bool) {
    let all = addresses(sources + 1);
    let settings = ReplicatorSettings::default;
    let nodes: Vec<Node> = all[..sources].iter().map(|own| Node::start(settings(), own, &all)).collect();
    let source = &nodes[0];
    source.runtime.block_on(fill(&source.replicator, count));
    for node in &nodes {
        node.runtime.block_on(has(&node.replicator, count));
    }
    // Wait until the sources have nothing more to send to each other.
    source.runtime.block_on(async {
        while source.replicator.metrics().await.map_or(1, |metrics| metrics.log_records) > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    });
    if apart && !all[..sources].iter().all(|own| cores::keep(&thread_name(own), WORKERS, 0)) {
        return println!("apart: skipped, threads cannot be kept on their cores here");
    }
    let measure = || {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        (stop, source.runtime.spawn(local_updates(source.replicator.clone(), stopped)))
    };
    let (stop, before) = measure();
    std::thread::sleep(Duration::from_millis(500));
    stop.send_replace(true);
    let before = source.runtime.block_on(before).expect("measured");
    let filling = source.longest_step();
    let (stop, during) = measure();
    let begun = Instant::now();
    let new = Node::start(settings(), &all[sources], &all);
    assert!(!apart || cores::keep(&thread_name(&all[sources]), WORKERS, 1), "a core of its own");
    new.runtime.block_on(has(&new.replicator, count));
    let took = begun.elapsed();
    stop.send_replace(true);
    let during = source.runtime.block_on(during).expect("measured");
    let all_of_it = new.runtime.block_on(async {
        assert!(new.replicator.wait_synced(PATIENCE).await, "the new node has caught up");
        let all_of_it = begun.elapsed();
        let found = new.replicator.get(&key(count - 1), ReadLevel::Local).await.expect("an answer").found();
        assert_eq!(found.and_then(|register| register.value().cloned()), Some("x".repeat(100)));
        all_of_it
    });
    let received = new.runtime.block_on(new.replicator.metrics()).expect("metrics").received;
    let kilobytes = ["Gossip", "DeltaBatch"].map(|kind| received.of(kind).1 / 1_000);
    println!(
        "catch-up: {count:>8} entries of 100 bytes from {sources}{}: all there after {:.2} s, caught up after {:.2} s; \
         {kilobytes:?} kB in rounds and from logs; local updates at the source before: {}; during: {}; longest steps: \
         of the source while it was filled {filling:.1}, with catching up {:.1}, of the new node {:.1} ms",
        if apart { ", on a core of its own" } else { "" },
        took.as_secs_f64(),
        all_of_it.as_secs_f64(),
        percentiles(before),
        percentiles(during),
        source.longest_step(),
        new.longest_step(),
    );
    nodes.into_iter().chain([new]).for_each(Node::stop);
}

/// Two idle nodes that hold the same entries.
pub(crate) async fn idle(count: u32, seconds: u64) {
    let transports = transports(2).await;
    let nodes: Vec<Replicator> =
        transports.iter().map(|at| start(ReplicatorSettings::default(), at, &transports)).collect();
    fill(&nodes[0], count).await;
    has(&nodes[1], count).await;
    for node in &nodes {
        assert!(node.wait_synced(PATIENCE).await, "caught up");
    }
    // Wait until the log is empty, and differences found meanwhile are exchanged.
    while nodes[0].metrics().await.map_or(1, |metrics| metrics.log_records) > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    let sent = || transports.iter().map(|at| at.stats().sent_bytes).sum::<u64>();
    let rounds = |metrics: &greylag_ddata::Metrics| metrics.stats.rounds_opened;
    let opened = [nodes[0].metrics().await.expect("metrics"), nodes[1].metrics().await.expect("metrics")];
    let (bytes, time) = (sent(), processor_time());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let (bytes, time) = (sent() - bytes, processor_time() - time);
    let closed = [nodes[0].metrics().await.expect("metrics"), nodes[1].metrics().await.expect("metrics")];
    let count_of: u64 = opened.iter().zip(&closed).map(|(before, after)| rounds(after) - rounds(before)).sum();
    println!(
        "idle: {count:>8} entries: {} bytes/s of both nodes on the wire, pings of the fixed list included, {:.0} us/s \
         of processor of the process; {count_of} rounds in {seconds} s",
        bytes / seconds,
        time.as_secs_f64() * 1e6 / seconds as f64
    );
    for transport in transports {
        transport.shutdown().await;
    }
}
