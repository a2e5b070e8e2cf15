//! Durable producers over a queue of a store: duration of one append, confirmed messages per second, calls of the
//! queue, and the time until the first of many recovered messages is delivered.

#[path = "../../../greylag-sharding/benches/as_is/mod.rs"]
mod as_is;
#[path = "../../../greylag-sharding/benches/figures/mod.rs"]
mod figures;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use as_is::AsIs;
use async_trait::async_trait;
use bytes::Bytes;
use figures::{is_measured, report};
use greylag_core::{CodecId, Encoded, Registry};
use greylag_delivery::queue::{Confirmation, MessageSent, QueueError, QueueState};
use greylag_delivery::{
    ConsumerController, ControllerRef, Dedupe, Deliveries, DeliverySettings, DurableProducerQueue, ProducerController,
    ProducerId, SeqNr,
};
use greylag_transport::Remoting;
use greylag_transport::memory::MemoryNetwork;

const PAYLOAD: usize = 100;
const ROUNDS: usize = 5;
/// Concurrent senders; each waits until its message is stored.
const SENDERS: u64 = 512;
const PATIENCE: Duration = Duration::from_secs(300);

type Queue = Box<dyn DurableProducerQueue<Encoded>>;

/// Counts of the calls that change a queue.
#[derive(Default)]
struct Calls {
    sent: AtomicU64,
    confirmed: AtomicU64,
}

struct Counted(Queue, Arc<Calls>);

#[async_trait]
impl DurableProducerQueue<Encoded> for Counted {
    async fn load(&mut self, controller: &ControllerRef) -> Result<QueueState<Encoded>, QueueError> {
        self.0.load(controller).await
    }

    async fn store_message_sent(&mut self, batch: Vec<MessageSent<Encoded>>) -> Result<SeqNr, QueueError> {
        self.1.sent.fetch_add(1, Ordering::Relaxed);
        self.0.store_message_sent(batch).await
    }

    async fn store_message_confirmed(&mut self, confirmations: Vec<Confirmation>) -> Result<(), QueueError> {
        self.1.confirmed.fetch_add(1, Ordering::Relaxed);
        self.0.store_message_confirmed(confirmations).await
    }

    fn max_message_bytes(&self) -> usize {
        self.0.max_message_bytes()
    }
}

/// Measures queues made by `open`, each with a name of its own.
pub(crate) async fn measure(store: &str, open: impl AsyncFn(String) -> Queue) {
    let scale = if is_measured() { 1 } else { 100 };
    let mut appends = Vec::new();
    let (mut rates, mut ratios, mut stored, mut confirmations) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let append = append_seconds(open(format!("alone-{round}")).await, 200 / scale).await;
        appends.push(append * 1e6);
        let (messages, calls) = (20_000 / scale, Arc::<Calls>::default());
        let queue = Counted(open(format!("busy-{round}")).await, calls.clone());
        let rate = confirmed_a_second(queue, messages).await;
        rates.push(rate);
        ratios.push(rate * append);
        stored.push(messages as f64 / calls.sent.load(Ordering::Relaxed) as f64);
        confirmations.push(calls.confirmed.load(Ordering::Relaxed) as f64 / messages as f64);
    }
    report(&format!("{store}: one append alone, in microseconds"), appends);
    report(&format!("{store}: durable messages confirmed/s, {PAYLOAD} bytes, {SENDERS} senders"), rates);
    report(&format!("{store}: durable messages confirmed in the time of one append"), ratios);
    report(&format!("{store}: messages in one append"), stored);
    report(&format!("{store}: appends of confirmations for each message"), confirmations);
    let (mut loads, mut firsts) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let name = format!("recovered-{round}");
        let (load, first) = recovered(&open, name, 100_000 / scale).await;
        loads.push(load);
        firsts.push(first);
    }
    let count = 100_000 / scale;
    report(&format!("{store}: seconds of a load of {count} unconfirmed messages"), loads);
    report(&format!("{store}: seconds from a producer's start to its first delivery of those"), firsts);
}

fn controller(instance: u64) -> ControllerRef {
    ControllerRef { node: "bench:1#1".parse().expect("an address"), path: "bench".into(), instance }
}

fn message(number: u64) -> MessageSent<Encoded> {
    let payload = Bytes::from_static(&[7; PAYLOAD]);
    let message = Encoded { codec: CodecId::FIRST_USER, manifest: "bench.tell".into(), payload };
    MessageSent { seq_nr: SeqNr(number), message, ack: false, qualifier: "".into(), timestamp_ms: 1 }
}

/// The median duration of appends of one message each, one after the other.
async fn append_seconds(mut queue: Queue, count: u64) -> f64 {
    queue.load(&controller(1)).await.expect("it loads");
    let mut took = Vec::new();
    for number in 1..=count {
        let start = Instant::now();
        queue.store_message_sent(vec![message(number)]).await.expect("it stores");
        took.push(start.elapsed().as_secs_f64());
    }
    took.sort_by(f64::total_cmp);
    took[took.len() / 2]
}

struct Pair {
    producer: ProducerController<Bytes>,
    deliveries: Deliveries<Bytes>,
    _nodes: [Arc<dyn Remoting>; 2],
    _consumer: ConsumerController<Bytes>,
}

/// A producer over this queue, and its consumer on another node of the same process.
fn pair(queue: impl DurableProducerQueue<Encoded> + 'static) -> Pair {
    let network = MemoryNetwork::new();
    let node = |name: &str| network.node(name.parse().expect("an address"), Arc::new(Registry::new()));
    let nodes = [node("a:1#1"), node("b:1#2")];
    let consumer = ConsumerController::builder(AsIs).spawn(&nodes[1]).expect("valid settings");
    let deliveries = consumer.start(Dedupe::none());
    let id = ProducerId::new("bench").expect("a name");
    let producer = ProducerController::builder(id, AsIs).settings(DeliverySettings::default()).durable(queue);
    let producer = producer.spawn(&nodes[0]).expect("valid settings");
    producer.register_consumer(consumer.reference());
    Pair { producer, deliveries, _nodes: nodes, _consumer: consumer }
}

async fn confirmed_a_second(queue: impl DurableProducerQueue<Encoded> + 'static, messages: u64) -> f64 {
    let Pair { producer, mut deliveries, _nodes, _consumer } = pair(queue);
    let consuming = tokio::spawn(async move {
        while let Some(delivery) = deliveries.next().await {
            delivery.confirm();
        }
    });
    let (handle, start) = (producer.start(), Instant::now());
    let senders = (0..SENDERS).map(|sender| {
        let handle = handle.clone();
        tokio::spawn(async move {
            for _ in (sender..messages).step_by(SENDERS as usize) {
                handle.send(Bytes::from_static(&[7; PAYLOAD])).await.expect("it is accepted");
            }
        })
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.await.expect("it ends");
    }
    handle.drain(PATIENCE).await.expect("all are confirmed");
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    handle.close().await;
    consuming.abort();
    rate
}

/// The duration of a load, and the time until a producer's consumer has the first message.
async fn recovered(open: &impl AsyncFn(String) -> Queue, name: String, messages: u64) -> (f64, f64) {
    let mut queue = open(name.clone()).await;
    queue.load(&controller(1)).await.expect("it loads");
    for first in (1..=messages).step_by(1_000) {
        let batch = (first..first + 1_000.min(messages + 1 - first)).map(message).collect();
        queue.store_message_sent(batch).await.expect("it stores");
    }
    let mut queue = open(name.clone()).await;
    let start = Instant::now();
    queue.load(&controller(2)).await.expect("it loads");
    let load = start.elapsed().as_secs_f64();
    let (queue, start) = (open(name).await, Instant::now());
    let Pair { producer, mut deliveries, _nodes, _consumer } = pair(queue);
    let handle = producer.start();
    let delivery = deliveries.next().await.expect("it is delivered");
    let first = start.elapsed().as_secs_f64();
    delivery.confirm();
    drop(deliveries);
    handle.close().await;
    (load, first)
}
