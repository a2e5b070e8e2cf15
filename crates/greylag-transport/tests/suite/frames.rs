//! Frames written by hand: a node's reaction to frames that no node of this version sends.

use crate::common;

use std::time::Duration;

use crate::common::{LONG, next, node, read, until};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use greylag_core::DeadLetterReason;
use greylag_transport::{Envelope, GrpcTransport, Recipient, Remoting, TransportSettings};
use prost::encoding::{WireType, encode_key, encode_varint};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Request, Status, Streaming};

fn settings() -> TransportSettings {
    TransportSettings::test()
}

#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        *self
    }
    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn encode(&mut self, frame: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(frame);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn decode(&mut self, frame: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(frame.copy_to_bytes(frame.remaining())))
    }
}

/// A length-delimited field; a frame is one, and so is everything in it.
fn field(number: u32, content: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    encode_key(number, WireType::LengthDelimited, &mut out);
    encode_varint(content.len() as u64, &mut out);
    out.put_slice(content);
    out.freeze()
}

fn number_field(number: u32, value: u64) -> Bytes {
    let mut out = BytesMut::new();
    encode_key(number, WireType::Varint, &mut out);
    encode_varint(value, &mut out);
    out.freeze()
}

fn uid_field(number: u32, uid: u64) -> Bytes {
    let mut out = BytesMut::new();
    encode_key(number, WireType::SixtyFourBit, &mut out);
    out.put_u64_le(uid);
    out.freeze()
}

fn hello(to: &GrpcTransport, stream_seq: u64) -> Bytes {
    let from = [field(1, b"127.0.0.1"), number_field(2, 9), uid_field(3, 77)].concat();
    let to = to.self_address().address();
    let content = [
        number_field(1, 1),
        number_field(2, 1),
        field(3, b"test"),
        field(4, &from),
        field(5, to.host().as_bytes()),
        number_field(6, to.port().into()),
        number_field(8, 2),
        number_field(10, 1),
        number_field(11, stream_seq),
    ];
    field(1, &content.concat())
}

/// A frame with one number for the inbox, its names given by text, number, or both.
fn number_for(path: &str, path_id: u64, value: u32) -> Bytes {
    let text = if path.is_empty() { Bytes::new() } else { field(1, path.as_bytes()) };
    let id = if path_id == 0 { Bytes::new() } else { number_field(12, path_id) };
    let value = value.to_string();
    let envelope = [text, number_field(5, 2), field(6, b"number"), field(7, value.as_bytes()), id].concat();
    field(3, &field(1, &envelope))
}

/// A question to the inbox whose asker waits for this many more milliseconds.
fn question(patience: u64) -> Bytes {
    let ask = [number_field(8, 5), number_field(9, patience)].concat();
    let envelope = [field(1, b"inbox"), number_field(5, 2), field(6, b"number"), field(7, b"1"), ask.into()].concat();
    field(3, &field(1, &envelope))
}

struct Raws {
    frames: mpsc::Sender<Bytes>,
    replies: Streaming<Bytes>,
}

impl Raws {
    async fn open(to: &GrpcTransport, first: Bytes) -> Result<Self, Status> {
        let address = to.self_address().address();
        let endpoint = Endpoint::from_shared(format!("http://{}:{}", address.host(), address.port())).unwrap();
        let mut client = Grpc::new(endpoint.connect().await.unwrap());
        client.ready().await.unwrap();
        let (frames, queue) = mpsc::channel(100);
        frames.send(first).await.unwrap();
        let method = PathAndQuery::from_static("/greylag.transport.v1.Transport/Open");
        let replies = client.streaming(Request::new(ReceiverStream::new(queue)), method, Raw).await?.into_inner();
        Ok(Self { frames, replies })
    }

    async fn accepted(to: &GrpcTransport, stream_seq: u64) -> Self {
        let mut raws = Self::open(to, hello(to, stream_seq)).await.unwrap();
        // An accepted HelloReply: field 2, with field 1 in it.
        let reply = raws.next().await.unwrap();
        assert_eq!((reply[0], reply[2] >> 3), (2 << 3 | 2, 1), "{reply:?}");
        raws
    }

    async fn send(&self, frame: Bytes) {
        self.frames.send(frame).await.unwrap();
    }

    /// `None` once the stream has ended.
    async fn next(&mut self) -> Option<Bytes> {
        tokio::time::timeout(LONG, self.replies.message()).await.expect("an answer or an end").ok().flatten()
    }

    /// Returns the reason with which the stream is closed.
    async fn close_reason(&mut self) -> Bytes {
        loop {
            let frame = self.next().await.expect("a reason comes before the end");
            if frame[0] == (12 << 3 | 2) {
                assert!(self.next().await.is_none(), "the stream has ended");
                return frame.slice(4..);
            }
        }
    }
}

/// Cluster T7, T8: variants of a newer version are counted and skipped, and the stream goes on.
#[tokio::test]
async fn unknown_variants_are_counted_and_skipped() {
    let mut b = node(settings()).await;
    let raws = Raws::accepted(&b.transport, 1).await;
    raws.send(field(99, b"from the future")).await;
    raws.send(number_for("inbox", 0, 5)).await;
    assert_eq!(b.next().await, 5);
    assert_eq!(b.transport.stats().skipped_frames, 1);
}

/// Cluster T16: a stream that does not begin with a Hello is refused.
#[tokio::test]
async fn envelopes_before_a_hello_reach_nobody() {
    let mut b = node(settings()).await;
    let refused = Raws::open(&b.transport, number_for("inbox", 0, 5)).await;
    let code = match refused {
        Ok(mut raws) => raws.replies.message().await.unwrap_err().code(),
        Err(status) => status.code(),
    };
    assert_eq!(code, tonic::Code::InvalidArgument);
    let raws = Raws::accepted(&b.transport, 1).await;
    raws.send(number_for("inbox", 0, 6)).await;
    assert_eq!(b.next().await, 6);
}

/// Cluster T37, T35: a number without a name is a broken frame; the stream is closed with this reason.
#[tokio::test]
async fn an_unknown_number_closes_the_stream_with_its_reason() {
    let mut b = node(settings()).await;
    let mut raws = Raws::accepted(&b.transport, 1).await;
    raws.send(number_for("inbox", 1, 5)).await;
    raws.send(number_for("", 1, 6)).await;
    assert_eq!((b.next().await, b.next().await), (5, 6));
    raws.send(number_for("", 2, 7)).await;
    assert_eq!(&raws.close_reason().await[..], b"PROTOCOL");
    assert_eq!(b.transport.stats().malformed_frames, 1);
}

/// Cluster T37: the table of names ends with its stream.
#[tokio::test]
async fn a_new_stream_begins_with_an_empty_table() {
    let mut b = node(settings()).await;
    let raws = Raws::accepted(&b.transport, 1).await;
    raws.send(number_for("inbox", 1, 5)).await;
    assert_eq!(b.next().await, 5);
    let mut again = Raws::accepted(&b.transport, 2).await;
    again.send(number_for("", 1, 6)).await;
    assert_eq!(&again.close_reason().await[..], b"PROTOCOL");
}

/// Cluster T36, T37: a frame that unpacks to more than its lane carries is refused without unpacking.
#[tokio::test]
async fn a_bomb_closes_its_stream_and_harms_nobody() {
    let mut b = node(settings()).await;
    let bomb = field(3, &field(1, &field(7, &vec![0; 16 << 20])));
    let zstd = zstd::bulk::compress(&bomb, 1).unwrap();
    for (seq, size) in [(1, bomb.len() as u64), (2, 1000)] {
        let mut raws = Raws::accepted(&b.transport, seq).await;
        raws.send(field(14, &[number_field(1, size), field(2, &zstd)].concat())).await;
        assert_eq!(&raws.close_reason().await[..], b"PROTOCOL");
    }
    let raws = Raws::accepted(&b.transport, 3).await;
    let honest = number_for("inbox", 0, 8);
    let zstd = zstd::bulk::compress(&honest, 1).unwrap();
    raws.send(field(14, &[number_field(1, honest.len() as u64), field(2, &zstd)].concat())).await;
    assert_eq!(b.next().await, 8);
}

/// Cluster T37: frames after a reconnect need nothing that was sent before.
#[tokio::test]
async fn numbers_start_over_with_each_stream_between_nodes() {
    let (a, mut b) = (node(settings()).await, node(settings()).await);
    for round in 0..3 {
        a.tell(&b.here(), round);
        // Skip messages of the round before that still arrive.
        while b.next().await != round {}
        let frames = a.transport.stats().sent_frames;
        a.transport.kill_streams(b.transport.self_address().address());
        // The stream is gone once a message that was sent on it got lost, or arrived on the next stream.
        until(|| a.transport.stats().sent_frames == frames).await;
        let arrives_again = async {
            loop {
                a.tell(&b.here(), 100 + round);
                if let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(50), b.inbox.recv()).await {
                    return read(&message);
                }
            }
        };
        assert_eq!(tokio::time::timeout(LONG, arrives_again).await, Ok(100 + round));
        while let Ok(message) = b.inbox.try_recv() {
            assert_eq!(read(&message), 100 + round);
        }
    }
    assert_eq!(b.transport.stats().malformed_frames, 0);
}

/// Cluster T37: past the limit of the table names are written out, and all messages arrive as before.
#[tokio::test]
async fn more_names_than_the_table_has_room_for() {
    let few = TransportSettings { intern_table_max: 3, ..settings() };
    let (a, b) = (node(settings()).await, node(few).await);
    let mut inboxes: Vec<_> = (0..10).map(|n| b.register(&format!("recipient-{n}"))).collect();
    for round in 0..3 {
        for (n, inbox) in inboxes.iter_mut().enumerate() {
            let recipient = Recipient::new(format!("recipient-{n}"));
            a.transport.send(&b.here(), Envelope { recipient, ..common::number(round) }).unwrap();
            assert_eq!(read(&next(inbox).await), round);
        }
    }
    assert_eq!(b.transport.stats().malformed_frames, 0);
}

/// Cluster T37: frames above the limit travel compressed on the control and large lanes, on the ordinary ones only if
/// so configured; they arrive as they were.
#[tokio::test]
async fn large_frames_travel_compressed_where_that_is_wanted() {
    for (path, compress_ordinary, expected) in
        [("control/x", false, 1), ("bulk/x", false, 1), ("x", false, 0), ("x", true, 1)]
    {
        let (a, b) = (node(TransportSettings { compress_ordinary, ..settings() }).await, node(settings()).await);
        let mut inbox = b.register(path);
        let to = |n: usize| {
            let payload = greylag_transport::Payload::Bytes("ab".repeat(n / 2).into());
            Envelope { recipient: Recipient::new(path), payload, ..common::number(0) }
        };
        for size in [100, 60_000] {
            a.transport.send(&b.here(), to(size)).unwrap();
            assert_eq!(next(&mut inbox).await.payload.len(), size);
        }
        let stats = a.transport.stats();
        assert_eq!((stats.compressed_frames, stats.sent_envelopes), (expected, 2), "{path}");
        assert_eq!(stats.sent_bytes < 20_000, expected == 1, "{path}: {} bytes", stats.sent_bytes);
        assert_eq!(a.dropped(DeadLetterReason::TooLarge), 0);
    }
}

/// Cluster T38: a question whose asker has given up by the time its turn comes is not delivered.
#[tokio::test]
async fn a_question_without_patience_left_is_not_put() {
    let mut b = node(settings()).await;
    let raws = Raws::accepted(&b.transport, 1).await;
    raws.send(question(0)).await;
    raws.send(question(60_000)).await;
    let put = next(&mut b.inbox).await;
    assert!(!put.ask.unwrap().budget.is_zero());
    assert_eq!(b.dropped(DeadLetterReason::Expired), 1);
    assert!(b.inbox.try_recv().is_err());
}

/// Cluster T36: a name has a limit of its own, below that of a frame, and long names have no number.
#[tokio::test]
async fn a_name_is_not_as_long_as_a_frame() {
    let mut b = node(settings()).await;
    for (seq, len, number) in [(1, 4097, 0), (2, 257, 1)] {
        let mut raws = Raws::accepted(&b.transport, seq).await;
        raws.send(number_for(&"x".repeat(len), number, 5)).await;
        assert_eq!(&raws.close_reason().await[..], b"PROTOCOL");
    }
    let mut long = b.register(&"x".repeat(4096));
    let raws = Raws::accepted(&b.transport, 3).await;
    raws.send(number_for(&"x".repeat(4096), 0, 6)).await;
    assert_eq!(read(&next(&mut long).await), 6);
    raws.send(number_for("inbox", 0, 7)).await;
    assert_eq!(b.next().await, 7);
}
