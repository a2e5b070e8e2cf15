//! Bare tonic streams as a yardstick: what a program without a transport would do, with the windows that a transport
//! has. The frames are either written and read by prost, or bytes that are not decoded.

use std::convert::Infallible;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{ClientStreamingService, Grpc, StreamingService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

/// Returns the processor time of all threads of this process so far, in nanoseconds. Unlike wall time, processor time
/// does not grow with the machine's other load. Returns 0 where the system does not tell.
pub(crate) fn processor_time() -> f64 {
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    std::fs::read_dir("/proc/self/task").map_or(0.0, |tasks| tasks.filter_map(of).sum())
}

/// Returns the median and the 99th percentile, in microseconds.
pub(crate) fn percentiles(mut trips: Vec<Duration>) -> (f64, f64) {
    trips.sort();
    let at = |part: usize| trips[(trips.len() * part / 100).min(trips.len() - 1)].as_secs_f64() * 1e6;
    (at(50), at(99))
}

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
pub(crate) struct BareBatch {
    #[prost(message, repeated, tag = "1")]
    envelopes: Vec<BareEnvelope>,
}

impl BareBatch {
    /// Makes `count` envelopes with payloads of `payload` bytes.
    pub(crate) fn of(count: usize, payload: usize) -> Self {
        let envelope = BareEnvelope {
            target_uid: u64::MAX,
            codec_id: 1000,
            payload: vec![7; payload].into(),
            path_id: 1,
            manifest_id: 2,
        };
        Self { envelopes: vec![envelope; count] }
    }
}

/// The message type of a bare stream.
pub(crate) trait BenchFrame: Clone + Send + Sync + 'static {
    fn put(self, out: &mut EncodeBuf<'_>);
    fn take(from: &mut DecodeBuf<'_>) -> Self;
}

impl BenchFrame for Bytes {
    fn put(self, out: &mut EncodeBuf<'_>) {
        BufMut::put(out, self);
    }

    fn take(from: &mut DecodeBuf<'_>) -> Self {
        from.copy_to_bytes(from.remaining())
    }
}

impl BenchFrame for BareBatch {
    fn put(self, out: &mut EncodeBuf<'_>) {
        prost::Message::encode(&self, out).expect("the buffer grows");
    }

    fn take(from: &mut DecodeBuf<'_>) -> Self {
        prost::Message::decode(from).expect("it was written by prost")
    }
}

pub(crate) struct Raw<C>(std::marker::PhantomData<fn() -> C>);

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

impl<C: BenchFrame> Codec for Raw<C> {
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

impl<C: BenchFrame> Encoder for Raw<C> {
    type Item = C;
    type Error = Status;

    fn encode(&mut self, item: C, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.put(out);
        Ok(())
    }
}

impl<C: BenchFrame> Decoder for Raw<C> {
    type Item = C;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<C>, Status> {
        Ok(Some(C::take(from)))
    }
}

#[derive(Clone)]
struct Sink<C>(Raw<C>);

impl<C: BenchFrame> Service<http::Request<Body>> for Sink<C> {
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

impl<C: BenchFrame> ClientStreamingService<C> for Sink<C> {
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

/// Sends back every frame it gets.
struct Echo;

impl<C: BenchFrame> StreamingService<C> for Echo {
    type Response = C;
    type ResponseStream = Streaming<C>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<C>>) -> Self::Future {
        Box::pin(async move { Ok(Response::new(request.into_inner())) })
    }
}

/// Sends frames of one message, one after the other, and measures each round trip.
pub(crate) async fn bare_round_trips(count: u64, payload: usize) -> Vec<Duration> {
    let (mut client, server) = bare_pair(Raw::<BareBatch>::default()).await;
    let (frames, queue) = tokio::sync::mpsc::channel(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(queue);
    let path = http::uri::PathAndQuery::from_static(ECHO);
    let response = client.streaming(Request::new(stream), path, Raw::<BareBatch>::default()).await;
    let mut echoes = response.expect("the stream opens").into_inner();
    let mut trips = Vec::new();
    for n in 0..count + 100 {
        let start = Instant::now();
        frames.send(BareBatch::of(1, payload)).await.expect("the stream is open");
        echoes.message().await.expect("the stream is open").expect("an echo");
        if n >= 100 {
            trips.push(start.elapsed());
        }
    }
    server.abort();
    trips
}

/// A client of a bare server with the windows that a transport has.
async fn bare_pair<C: BenchFrame>(codec: Raw<C>) -> (Client<tonic::transport::Channel>, tokio::task::JoinHandle<()>) {
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

/// Returns frames per second, and the processor time of each.
pub(crate) async fn bare_stream<C: BenchFrame>(frames: u64, frame: C, codec: Raw<C>) -> (f64, f64) {
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
