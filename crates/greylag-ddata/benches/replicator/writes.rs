//! Measures writes to a majority of three, compared with a bare ask over the transport.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_codec::json;
use greylag_core::{CodecId, Registry, ReplyAddress, ReplyPort, ReplyTo};
use greylag_crdt::{CounterOverflow, GCounter, UpdateCx};
use greylag_ddata::{Key, Replicator, ReplicatorSettings, WriteLevel};
use greylag_transport::{Destination, Envelope, GrpcTransport, Inbound, Receiver, Recipient, Remoting};

use crate::measure::{percentiles, processor_time};
use crate::nodes::{PATIENCE, start, transports_with};

/// Answers every ask.
struct Answers(Arc<dyn ReplyPort>);

impl Receiver for Answers {
    fn receive(&self, message: Inbound) {
        if let Some(ask) = message.ask {
            ReplyTo::new(ReplyAddress { node: message.from, ask_id: ask.id }, self.0.clone()).reply(ask.id);
        }
    }
}

fn increment(counter: &mut GCounter, cx: &mut UpdateCx<'_>) -> Result<(), CounterOverflow> {
    counter.increment(cx, 1)
}

async fn one_by_one(node: &Replicator, count: u32, level: WriteLevel) -> Vec<Duration> {
    let mut times = Vec::new();
    for n in 0..count {
        let key = Key::new(format!("counter-{}", n % 100)).expect("a key");
        let start = Instant::now();
        node.update(&key, level, GCounter::new, increment).await.expect("an update");
        times.push(start.elapsed());
    }
    times
}

/// Makes updates, as many at a time as fit the mailbox.
async fn pipelined(node: &Replicator, count: u32, level: WriteLevel) -> f64 {
    let start = Instant::now();
    let tasks = (0..64).map(|task| {
        let node = node.clone();
        tokio::spawn(async move {
            for n in 0..count / 64 {
                let key = Key::new(format!("counter-{}", (task * 31 + n) % 1_000)).expect("a key");
                node.update(&key, level, GCounter::new, increment).await.expect("an update");
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        task.await.expect("done");
    }
    f64::from(count / 64 * 64) / start.elapsed().as_secs_f64()
}

async fn asks(a: &Arc<GrpcTransport>, b: &Arc<GrpcTransport>, count: u32) -> Vec<Duration> {
    let to = Destination::from(b.self_address().clone());
    let mut times = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        let ask = a.open_ask(PATIENCE);
        let question = Envelope::new(Recipient::new("answers"), CodecId::FIRST_USER, "bench.ask", vec![7; 100]);
        a.send(&to, question.asking(ask.address.ask_id, PATIENCE)).expect("there is room for one");
        ask.answer.await.expect("an answer");
        times.push(start.elapsed());
    }
    times
}

/// Measures local updates of a node without peers, from call to answer.
async fn alone(many: u32) {
    let transports = transports_with(1, &Arc::new(Registry::new())).await;
    let node = start(ReplicatorSettings::default(), &transports[0], &transports);
    assert!(node.wait_synced(PATIENCE).await);
    pipelined(&node, many / 10, WriteLevel::Local).await;
    let time = processor_time();
    let rate = pipelined(&node, many, WriteLevel::Local).await;
    let micros = (processor_time() - time).as_secs_f64() * 1e6 / f64::from(many);
    println!("writes: local, pipelined by 64 tasks, one node alone: {rate:.0}/s, {micros:.2} us of processor each");
    transports[0].shutdown().await;
}

pub(crate) async fn writes(one: u32, many: u32) {
    let registry = Arc::new(Registry::new());
    registry.register::<u64>(json("bench.answer")).expect("the first of its name");
    let transports = transports_with(3, &registry).await;
    for transport in &transports {
        transport.register("answers", Arc::new(Answers(transport.reply_port())));
    }
    let nodes: Vec<Replicator> =
        transports.iter().map(|at| start(ReplicatorSettings::default(), at, &transports)).collect();
    for node in &nodes {
        node.replicas().wait_for(|replicas| replicas.unmet.is_empty()).await.expect("they meet");
        assert!(node.wait_synced(PATIENCE).await);
    }
    let majority = WriteLevel::majority(PATIENCE);
    asks(&transports[0], &transports[1], 200).await;
    one_by_one(&nodes[0], 200, majority).await;
    println!("writes: bare ask, one at a time: {}", percentiles(asks(&transports[0], &transports[1], one).await));
    println!("writes: majority of 3, one at a time: {}", percentiles(one_by_one(&nodes[0], one, majority).await));
    println!("writes: local, one at a time: {}", percentiles(one_by_one(&nodes[0], one, WriteLevel::Local).await));
    println!("writes: majority of 3, pipelined: {:.0}/s", pipelined(&nodes[0], many, majority).await);
    println!("writes: local, pipelined by 64 tasks: {:.0}/s", pipelined(&nodes[0], many, WriteLevel::Local).await);
    for transport in transports {
        transport.shutdown().await;
    }
    alone(many * 10).await;
}
