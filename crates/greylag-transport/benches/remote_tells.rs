//! Tells of 100 bytes and asks between two nodes in one process over loopback, and beside them, in
//! the same run, bare tonic streams with the same frames: once as messages that prost writes and
//! reads, which is what a program without a transport would do, and once as bytes that are not decoded,
//! which is what the socket can do at most. Asks stand beside frames that a bare stream echoes.
//!
//! `cargo bench -p greylag-transport --features grpc --bench remote_tells`

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use greylag_codec::json;
use greylag_core::{CodecId, Registry, ReplyAddress, ReplyPort, ReplyTo};
use greylag_transport::{
    Destination, Envelope, GrpcTransport, Inbound, Receiver, Recipient, Remoting, TransportSettings,
};
use tokio::runtime::Runtime;
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{ClientStreamingService, Grpc, StreamingService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

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
        let batch = BareBatch::of(usize::try_from(per_frame).unwrap_or(1));
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
    let trips = [runtime.block_on(ask_round_trips(asks)), runtime.block_on(bare_round_trips(asks))];
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

/// Counts, and says when the last one came.
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

/// What all threads of this process have run so far, in nanoseconds. Unlike the clock's, this time does not
/// grow with what else the machine does; nought where the system does not tell.
fn processor_time() -> f64 {
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    std::fs::read_dir("/proc/self/task").map_or(0.0, |tasks| tasks.filter_map(of).sum())
}

/// Tells as fast as the queue takes them: how many a second until the last one is received, and the
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

/// As a program sends that may be faster than the socket: at once where there is room, else when there is.
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

/// Microseconds: the median, and what one in a hundred exceeds.
fn percentiles(mut trips: Vec<Duration>) -> (f64, f64) {
    trips.sort();
    let at = |part: usize| trips[(trips.len() * part / 100).min(trips.len() - 1)].as_secs_f64() * 1e6;
    (at(50), at(99))
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

// The bare streams: tonic with the same windows, and nothing else.

#[derive(Clone, PartialEq, prost::Message)]
struct BareEnvelope {
    #[prost(fixed64, tag = "4")]
    target_uid: u64,
    #[prost(uint32, tag = "5")]
    codec_id: u32,
    #[prost(bytes = "bytes", tag = "7")]
    payload: Bytes,
    #[prost(uint32, tag = "12")]
    path_id: u32,
    #[prost(uint32, tag = "14")]
    manifest_id: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct BareBatch {
    #[prost(message, repeated, tag = "1")]
    envelopes: Vec<BareEnvelope>,
}

impl BareBatch {
    fn of(count: usize) -> Self {
        let envelope = BareEnvelope {
            target_uid: u64::MAX,
            codec_id: 1000,
            payload: Bytes::from_static(&[7; PAYLOAD]),
            path_id: 1,
            manifest_id: 2,
        };
        Self { envelopes: vec![envelope; count] }
    }
}

/// What a bare stream carries.
trait Cargo: Clone + Send + Sync + 'static {
    fn put(self, out: &mut EncodeBuf<'_>);
    fn take(from: &mut DecodeBuf<'_>) -> Self;
}

impl Cargo for Bytes {
    fn put(self, out: &mut EncodeBuf<'_>) {
        BufMut::put(out, self);
    }

    fn take(from: &mut DecodeBuf<'_>) -> Self {
        from.copy_to_bytes(from.remaining())
    }
}

impl Cargo for BareBatch {
    fn put(self, out: &mut EncodeBuf<'_>) {
        prost::Message::encode(&self, out).expect("the buffer grows");
    }

    fn take(from: &mut DecodeBuf<'_>) -> Self {
        prost::Message::decode(from).expect("it was written by prost")
    }
}

struct Raw<C>(std::marker::PhantomData<fn() -> C>);

impl<C> Clone for Raw<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Raw<C> {}

impl<C> Default for Raw<C> {
    fn default() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<C: Cargo> Codec for Raw<C> {
    type Encode = C;
    type Decode = C;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl<C: Cargo> Encoder for Raw<C> {
    type Item = C;
    type Error = Status;

    fn encode(&mut self, item: C, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.put(out);
        Ok(())
    }
}

impl<C: Cargo> Decoder for Raw<C> {
    type Item = C;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<C>, Status> {
        Ok(Some(C::take(from)))
    }
}

#[derive(Clone)]
struct Sink<C>(Raw<C>);

impl<C: Cargo> Service<http::Request<Body>> for Sink<C> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(this.0);
            if request.uri().path() == ECHO {
                return Ok(grpc.streaming(Echo, request).await);
            }
            Ok(grpc.client_streaming(this, request).await)
        })
    }
}

impl<C: Cargo> ClientStreamingService<C> for Sink<C> {
    type Response = C;
    type Future = BoxFuture<Response<C>, Status>;

    fn call(&mut self, request: Request<Streaming<C>>) -> Self::Future {
        Box::pin(async move {
            let mut frames = request.into_inner();
            let mut last = None;
            while let Some(frame) = frames.message().await? {
                last = Some(frame);
            }
            last.map(Response::new).ok_or_else(|| Status::not_found("no frame came"))
        })
    }
}

const ECHO: &str = "/bench/Echo";

/// Sends back what comes.
struct Echo;

impl<C: Cargo> StreamingService<C> for Echo {
    type Response = C;
    type ResponseStream = Streaming<C>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<C>>) -> Self::Future {
        Box::pin(async move { Ok(Response::new(request.into_inner())) })
    }
}

/// One frame of one message after the other, there and back.
async fn bare_round_trips(count: u64) -> Vec<Duration> {
    let (mut client, server) = bare_pair(Raw::<BareBatch>::default()).await;
    let (frames, queue) = tokio::sync::mpsc::channel(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(queue);
    let path = http::uri::PathAndQuery::from_static(ECHO);
    let response = client.streaming(Request::new(stream), path, Raw::<BareBatch>::default()).await;
    let mut echoes = response.expect("the stream opens").into_inner();
    let mut trips = Vec::new();
    for n in 0..count + 100 {
        let start = Instant::now();
        frames.send(BareBatch::of(1)).await.expect("the stream is open");
        echoes.message().await.expect("the stream is open").expect("an echo");
        if n >= 100 {
            trips.push(start.elapsed());
        }
    }
    server.abort();
    trips
}

/// A client of a bare server with the windows that a transport has.
async fn bare_pair<C: Cargo>(codec: Raw<C>) -> (Client<tonic::transport::Channel>, tokio::task::JoinHandle<()>) {
    const WINDOW: u32 = 1 << 20;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = Server::builder()
        .initial_stream_window_size(4 * WINDOW)
        .initial_connection_window_size(4 * WINDOW)
        .max_frame_size(256 * 1024)
        .serve_with_incoming(Sink(codec), incoming);
    let server = tokio::spawn(async move { drop(server.await) });
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a valid uri").tcp_nodelay(true);
    let mut client = Client::new(endpoint.connect().await.expect("connects"));
    client.ready().await.expect("ready");
    (client, server)
}

/// Frames per second, and the processor time of each.
async fn bare_stream<C: Cargo>(frames: u64, frame: C, codec: Raw<C>) -> (f64, f64) {
    let (mut client, server) = bare_pair(codec).await;
    let path = http::uri::PathAndQuery::from_static("/bench/Sink");
    let (start, before) = (Instant::now(), processor_time());
    let stream = tokio_stream::iter((0..frames.max(1)).map(move |_| frame.clone()));
    client.client_streaming(Request::new(stream), path, codec).await.expect("all arrive");
    let rate = frames as f64 / start.elapsed().as_secs_f64();
    let cost = (processor_time() - before) / frames as f64;
    server.abort();
    (rate, cost)
}
