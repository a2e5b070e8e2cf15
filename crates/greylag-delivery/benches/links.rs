//! Point to point, work pulling and large messages between two nodes over real sockets, compared with raw tells on the
//! same connection in the same run.
//!
//! `cargo bench -p greylag-delivery --bench links`, or a part of it with `-- point-to-point`, `-- work` or `-- chunks`.
//! A message counts once it is confirmed. Both nodes are in this process.

#![allow(clippy::print_stdout, missing_docs)]

#[path = "../../greylag-sharding/benches/as_is/mod.rs"]
mod as_is;
#[path = "../../greylag-sharding/benches/figures/mod.rs"]
mod figures;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use as_is::AsIs;
use bytes::Bytes;
use figures::{is_measured, report};
use greylag_core::{CodecId, Registry};
use greylag_delivery::{
    ConsumerController, Dedupe, DeliverySettings, LocalWorkerDirectory, Producer, ProducerController, ProducerId,
    ServiceKey, WorkPullingProducer,
};
use greylag_transport::{
    Destination, Envelope, GrpcTransport, Inbound, Receiver, Recipient, Remoting, SendError, TransportSettings,
};
use tokio::task::JoinHandle;

const ROUNDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(120);
/// Concurrent senders; each waits until its message is accepted.
const SENDERS: u64 = 64;
const WORKERS: usize = 8;
const LARGE: usize = 10 << 20;

/// Counts messages that arrive without delivery.
#[derive(Default)]
struct Received(AtomicU64);

impl Receiver for Received {
    fn receive(&self, _: Inbound) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Two nodes, and the counter of raw tells at the second.
struct Nodes {
    transports: [Arc<GrpcTransport>; 2],
    received: Arc<Received>,
}

/// A producer and a consumer that confirms every delivery at once.
struct Link {
    producer: Producer<Bytes>,
    _ends: (ProducerController<Bytes>, ConsumerController<Bytes>),
    consuming: JoinHandle<()>,
}

impl Nodes {
    async fn start() -> Self {
        let bind = async || GrpcTransport::bind(TransportSettings::test(), Arc::new(Registry::new())).await;
        let transports = [bind().await.expect("it binds"), bind().await.expect("it binds")];
        let received = Arc::<Received>::default();
        transports[1].register("raw", received.clone());
        Self { transports, received }
    }

    fn node(&self, index: usize) -> Arc<dyn Remoting> {
        self.transports[index].clone()
    }

    /// Raw tells of this size per second, sent as fast as the lane takes them.
    async fn tells(&self, size: usize, messages: u64) -> f64 {
        let to = Destination::Incarnation(self.transports[1].self_address().clone());
        let payload = Bytes::from(vec![7; size]);
        let (first, start) = (self.received.0.load(Ordering::Relaxed), Instant::now());
        for _ in 0..messages {
            let mut envelope = Envelope::new(Recipient::new("raw"), CodecId::FIRST_USER, "bench.tell", payload.clone());
            while let Err(rejected) = self.transports[0].send(&to, envelope) {
                assert_eq!(rejected.error, SendError::QueueFull);
                envelope = *rejected.envelope;
                tokio::task::yield_now().await;
            }
        }
        while self.received.0.load(Ordering::Relaxed) < first + messages {
            tokio::task::yield_now().await;
        }
        messages as f64 / start.elapsed().as_secs_f64()
    }

    fn link(&self, settings: &DeliverySettings) -> Link {
        let id = ProducerId::new("bench").expect("a name");
        let producer = ProducerController::builder(id, AsIs).settings(settings.clone()).spawn(&self.node(0));
        let consumer = ConsumerController::builder(AsIs).settings(settings.clone()).spawn(&self.node(1));
        let ends = (producer.expect("valid settings"), consumer.expect("valid settings"));
        ends.0.register_consumer(ends.1.reference());
        let mut deliveries = ends.1.start(Dedupe::none());
        let consuming = tokio::spawn(async move {
            while let Some(delivery) = deliveries.next().await {
                delivery.confirm();
            }
        });
        Link { producer: ends.0.start(), _ends: ends, consuming }
    }

    async fn end(self) {
        for transport in self.transports {
            transport.shutdown().await;
        }
    }
}

impl Link {
    /// Confirmed messages per second.
    async fn confirmed(&self, size: usize, messages: u64, senders: u64) -> f64 {
        let payload = Bytes::from(vec![7; size]);
        let start = Instant::now();
        let sending = (0..senders).map(|sender| {
            let (producer, payload) = (self.producer.clone(), payload.clone());
            tokio::spawn(async move {
                for _ in (sender..messages).step_by(senders as usize) {
                    producer.send(payload.clone()).await.expect("it is accepted");
                }
            })
        });
        for sender in sending.collect::<Vec<_>>() {
            sender.await.expect("it ends");
        }
        self.producer.drain(PATIENCE).await.expect("all are confirmed");
        messages as f64 / start.elapsed().as_secs_f64()
    }

    /// The 99th percentile of `asks` asks, one per millisecond, in microseconds.
    async fn ask_p99(&self, asks: usize) -> f64 {
        let mut took = Vec::new();
        for _ in 0..asks {
            let start = Instant::now();
            self.producer.ask(Bytes::from_static(&[7; 100])).await.expect("it is confirmed");
            took.push(start.elapsed().as_secs_f64() * 1e6);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        took.sort_by(f64::total_cmp);
        took[took.len() * 99 / 100]
    }

    async fn end(self) {
        self.producer.close().await;
        self.consuming.abort();
    }
}

/// One link with messages of 100 bytes and a window of 1,024.
async fn point_to_point(nodes: &Nodes, scale: u64) {
    let mut settings = DeliverySettings::default();
    settings.consumer.flow_control_window = 1024;
    settings.consumer.max_outstanding_deliveries = 1024;
    let (mut rates, mut parts) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let tells = nodes.tells(100, 500_000 / scale).await;
        let link = nodes.link(&settings);
        let rate = link.confirmed(100, 300_000 / scale, SENDERS).await;
        link.end().await;
        rates.push(rate);
        parts.push(rate / tells);
    }
    report("point to point, 100 bytes, window 1,024: confirmed/s", rates);
    report("point to point: part of the rate of raw tells", parts);
}

/// Eight workers on the other node.
async fn work(nodes: &Nodes, scale: u64) {
    let (mut rates, mut parts) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let tells = nodes.tells(100, 500_000 / scale).await;
        let (directory, key) = (Arc::new(LocalWorkerDirectory::new()), ServiceKey::new("bench").expect("a name"));
        let mut workers = Vec::new();
        for _ in 0..WORKERS {
            let worker = ConsumerController::builder(AsIs).service_key(key.clone(), directory.clone());
            let worker = worker.spawn(&nodes.node(1)).expect("valid settings");
            let mut jobs = worker.start(Dedupe::none());
            let consuming = tokio::spawn(async move {
                while let Some(job) = jobs.next().await {
                    job.confirm();
                }
            });
            workers.push((worker, consuming));
        }
        let id = ProducerId::new(format!("bench-{round}")).expect("a name");
        let producer = WorkPullingProducer::builder(id, AsIs, key, directory).spawn(&nodes.node(0));
        let producer = producer.expect("valid settings");
        let (jobs, start) = (200_000 / scale, Instant::now());
        let sending = (0..SENDERS).map(|sender| {
            let producer = producer.clone();
            tokio::spawn(async move {
                for _ in (sender..jobs).step_by(SENDERS as usize) {
                    producer.send(Bytes::from_static(&[7; 100])).await.expect("it is accepted");
                }
            })
        });
        for sender in sending.collect::<Vec<_>>() {
            sender.await.expect("it ends");
        }
        producer.drain(PATIENCE).await.expect("all are confirmed");
        let rate = jobs as f64 / start.elapsed().as_secs_f64();
        producer.close().await;
        workers.into_iter().for_each(|(_, consuming)| consuming.abort());
        rates.push(rate);
        parts.push(rate / tells);
    }
    report("work pulling, 100 bytes, 8 workers: confirmed/s", rates);
    report("work pulling: part of the rate of raw tells", parts);
}

/// Messages of 10 MiB in chunks, and their effect on other links.
async fn chunks(nodes: &Nodes, scale: u64) {
    let settings = DeliverySettings::default();
    let slice = settings.producer.chunk_large_messages;
    let (small, large) = (nodes.link(&DeliverySettings::default()), nodes.link(&settings));
    let (mut rates, mut parts, mut quiet, mut busy) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let messages = if scale == 1 { 20 } else { 1 };
    for _ in 0..ROUNDS {
        let tells = nodes.tells(slice, messages * (LARGE / slice) as u64).await * slice as f64;
        let rate = large.confirmed(LARGE, messages, 2).await * LARGE as f64;
        rates.push(rate / f64::from(1 << 20));
        parts.push(rate / tells);
        quiet.push(small.ask_p99(1_000 / scale as usize).await);
        let load = async {
            loop {
                large.confirmed(LARGE, 2, 2).await;
            }
        };
        busy.push(tokio::select! { p99 = small.ask_p99(1_000 / scale as usize) => p99, () = load => unreachable!("it loads for ever") });
    }
    report("messages of 10 MiB in chunks: MiB confirmed/s", rates);
    report("messages of 10 MiB in chunks: part of the bytes of raw tells", parts);
    report("asks of 100 bytes on another link: p99 in microseconds", quiet);
    report("asks of 100 bytes beside messages of 10 MiB: p99 in microseconds", busy);
    small.end().await;
    large.end().await;
}

fn main() {
    let scale = if is_measured() { 1 } else { 100 };
    let parts = ["point-to-point", "work", "chunks"];
    let wanted = |part: &str| !std::env::args().any(|arg| arg != part && parts.contains(&&*arg));
    tokio::runtime::Runtime::new().expect("a runtime starts").block_on(async {
        let nodes = Nodes::start().await;
        if wanted("point-to-point") {
            point_to_point(&nodes, scale).await;
        }
        if wanted("work") {
            work(&nodes, scale).await;
        }
        if wanted("chunks") {
            chunks(&nodes, scale).await;
        }
        nodes.end().await;
    });
}
