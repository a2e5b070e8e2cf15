//! Tells of 100 bytes and asks between two nodes in one process over loopback, and, in the same run, bare tonic streams
//! with the same frames for comparison: once as messages that prost writes and reads, as a program without a transport
//! would do, and once as bytes that are not decoded, which is the most that the socket can do. Asks are compared with
//! frames that a bare stream echoes.
//!
//! `cargo bench -p greylag-transport --features grpc --bench remote_tells`

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

mod bare;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bare::{BareBatch, Raw, bare_round_trips, bare_stream, percentiles, processor_time};
use bytes::Bytes;
use greylag_codec::json;
use greylag_core::{CodecId, Registry, ReplyAddress, ReplyPort, ReplyTo};
use greylag_transport::{
    Destination, Envelope, GrpcTransport, Inbound, Receiver, Recipient, Remoting, TransportSettings,
};
use tokio::runtime::Runtime;

const MESSAGES: u64 = 1_000_000;
const PAYLOAD: usize = 100;
const ROUNDS: usize = 5;

fn main() {
    // `cargo test` runs benchmarks too, to see that they work.
    let messages = if std::env::args().any(|arg| arg == "--bench") { MESSAGES } else { 10_000 };
    let runtime = Runtime::new().expect("a runtime starts");
    let (mut ours, mut bare, mut socket) = (Vec::new(), Vec::new(), Vec::new());
    let (mut our_cost, mut bare_cost) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (rate, cost, stats) = runtime.block_on(tells(messages));
        let per_frame = stats.sent_envelopes / stats.sent_frames.max(1);
        let frame_bytes = usize::try_from(stats.sent_bytes / stats.sent_frames.max(1)).unwrap_or(0);
        let frames = messages / per_frame.max(1);
        let batch = BareBatch::of(usize::try_from(per_frame).unwrap_or(1), PAYLOAD);
        let per_message = |(rate, cost): (f64, f64)| (rate * per_frame as f64, cost / per_frame as f64);
        let (bare_rate, bare_time) =
            per_message(runtime.block_on(bare_stream(frames, batch, Raw::<BareBatch>::default())));
        let bytes = Bytes::from(vec![7; frame_bytes]);
        let (socket_rate, _) = per_message(runtime.block_on(bare_stream(frames, bytes, Raw::<Bytes>::default())));
        println!(
            "round {round}: {rate:>8.0} tells/s ({per_frame} a frame of {frame_bytes} bytes); \
             bare prost stream {bare_rate:>8.0}/s; bytes alone {socket_rate:>8.0}/s"
        );
        our_cost.push(cost);
        bare_cost.push(bare_time);
        ours.push(rate);
        bare.push(bare_rate);
        socket.push(socket_rate);
    }
    let (ours, bare, socket) = (median(&mut ours), median(&mut bare), median(&mut socket));
    println!(
        "remote tells of {PAYLOAD} bytes: {ours:.0}/s; bare tonic stream {bare:.0}/s, ratio {:.2}; \
         its bytes alone {socket:.0}/s, ratio {:.2}",
        ours / bare,
        ours / socket
    );
    println!(
        "processor time of a tell: {:.0} ns; of the bare tonic stream {:.0} ns",
        median(&mut our_cost),
        median(&mut bare_cost)
    );
    let asks = messages / 100;
    let trips = [runtime.block_on(ask_round_trips(asks)), runtime.block_on(bare_round_trips(asks, PAYLOAD))];
    let [(p50, p99), (bare_p50, bare_p99)] = trips.map(percentiles);
    println!(
        "ask and answer, one at a time: p50 {p50:.0} us, p99 {p99:.0} us; \
         a bare tonic stream there and back: p50 {bare_p50:.0} us, p99 {bare_p99:.0} us"
    );
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Counts messages, and reports when the last one came.
struct Counter {
    left: AtomicU64,
    done: mpsc::Sender<()>,
}

impl Receiver for Counter {
    fn receive(&self, message: Inbound) {
        assert_eq!(message.payload.len(), PAYLOAD);
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.done.send(()).ok();
        }
    }
}

async fn nodes() -> (Arc<GrpcTransport>, Arc<GrpcTransport>) {
    let bind = || GrpcTransport::bind(TransportSettings::test(), Arc::new(Registry::new()));
    (bind().await.expect("binds"), bind().await.expect("binds"))
}

/// Sends tells as fast as the queue takes them. Returns how many were received per second until the last one, and the
/// processor time of each.
async fn tells(messages: u64) -> (f64, f64, greylag_transport::TransportStats) {
    let (a, b) = nodes().await;
    let (done, finished) = mpsc::channel();
    let warmed_up = 1000;
    b.register("counter", Arc::new(Counter { left: AtomicU64::new(warmed_up), done: done.clone() }));
    let to = Destination::from(b.self_address().clone());
    send_all(a.clone(), to.clone(), warmed_up).await;
    finished.recv().expect("the warm-up arrives");
    b.register("counter", Arc::new(Counter { left: AtomicU64::new(messages), done }));
    let (start, before) = (Instant::now(), processor_time());
    let sender = tokio::spawn(send_all(a.clone(), to, messages));
    tokio::task::spawn_blocking(move || finished.recv()).await.expect("it waits").expect("all arrive");
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    let cost = (processor_time() - before) / messages as f64;
    sender.await.expect("the sender ends");
    let stats = a.stats();
    a.shutdown().await;
    b.shutdown().await;
    (rate, cost, stats)
}

/// Sends like a program that may be faster than the socket: at once while there is room, else waiting for room.
async fn send_all(from: Arc<GrpcTransport>, to: Destination, messages: u64) {
    let payload = Bytes::from_static(&[7; PAYLOAD]);
    let recipient = Recipient::new("counter");
    for _ in 0..messages {
        let envelope = Envelope::new(recipient.clone(), CodecId::FIRST_USER, "bench.tell", payload.clone());
        if let Err(rejected) = from.send(&to, envelope) {
            from.send_async(&to, *rejected.envelope, None).await.expect("there will be room");
        }
    }
}

/// Answers every question with a number.
struct Answers(Arc<dyn ReplyPort>);

impl Receiver for Answers {
    fn receive(&self, message: Inbound) {
        if let Some(ask) = message.ask {
            ReplyTo::new(ReplyAddress { node: message.from, ask_id: ask.id }, self.0.clone()).reply(ask.id);
        }
    }
}

/// One ask after the other, each from the question's sending to its decoded answer.
async fn ask_round_trips(count: u64) -> Vec<Duration> {
    let registry = Arc::new(Registry::new());
    registry.register::<u64>(json("bench.answer")).expect("the first of its name");
    let bind = || GrpcTransport::bind(TransportSettings::test(), registry.clone());
    let (a, b) = (bind().await.expect("binds"), bind().await.expect("binds"));
    b.register("answers", Arc::new(Answers(b.reply_port())));
    let to = Destination::from(b.self_address().clone());
    let mut trips = Vec::new();
    for n in 0..count + 100 {
        let start = Instant::now();
        let ask = a.open_ask(PATIENCE);
        let question = Envelope::new(Recipient::new("answers"), CodecId::FIRST_USER, "bench.ask", vec![7; PAYLOAD]);
        a.send(&to, question.asking(ask.address.ask_id, PATIENCE)).expect("there is room for one");
        ask.answer.await.expect("an answer");
        if n >= 100 {
            trips.push(start.elapsed());
        }
    }
    a.shutdown().await;
    b.shutdown().await;
    trips
}

const PATIENCE: Duration = Duration::from_secs(10);
