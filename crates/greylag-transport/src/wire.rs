//! Frames and envelopes as protobuf, and back.
//!
//! Rare frames go through the generated types. Batches are written and read by hand, because the transport spends most
//! of its time on them: written straight into the frame's buffer, read as slices of it, with repeated paths shared.
//! Both ways conform byte for byte to `proto/transport.proto`; the tests compare them with the generated code. Readers
//! never panic and never allocate more than the frame has bytes. Source: cluster T8, T35, T36.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use greylag_core::{CodecId, EncodeError, EntityError, Manifest, NodeAddress, NotStoredReason, Uid, UniqueAddress};
use prost::Message;
use prost::encoding::{WireType, decode_varint, encode_varint, encoded_len_varint};

use crate::endpoint::{Reply, shortened};
use crate::envelope::{AskHeader, EncodedMessage, Envelope, Inbound, Payload, Recipient};
use crate::generated as pb;
use crate::hello::{Accepted, Features, Hello, HelloReply, Rejected};
use crate::lane::{Lane, LaneKind};
use crate::remoting::{QuarantineReason, RejectCode};

mod codes;
mod compression;
mod envelopes;
mod names;
mod reliable;
mod shape;
#[cfg(test)]
mod tests;

pub(crate) use compression::compress;
pub(crate) use envelopes::{Arrived, ArrivedContent, BatchPosition, BatchReader, write_envelope, write_reply};
pub(crate) use names::{NameWriter, Names};
pub(crate) use reliable::{write_reliable, write_skip};

/// The path to which answers are addressed; their lane key ends in the number of the question.
pub(crate) const REPLY_PATH: &str = "asks";

/// The bytes read do not conform to the schema; the stream is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame: {0}")]
pub(crate) struct Malformed(pub(crate) String);

impl From<prost::DecodeError> for Malformed {
    fn from(error: prost::DecodeError) -> Self {
        Self(error.to_string())
    }
}

/// The most envelopes in a frame of a control lane, since the control frames of all peers are handled in turn. Writers
/// keep to this limit, and larger frames are refused.
pub(crate) const MAX_CONTROL_BATCH: usize = 1024;
/// The longest frame of a Hello; before a Hello nothing longer is read.
pub(crate) const MAX_HELLO: usize = 16 * 1024;
/// The longest text in a Hello and in its answer; a host name has no more than 253 bytes.
const MAX_TEXT: usize = 255;
/// The most features in a Hello.
const MAX_FEATURES: usize = 32;

/// The content of one frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Hello(Hello),
    HelloReply(HelloReply),
    /// The content of a `Batch`; read by a [`BatchReader`].
    Batch(Bytes),
    /// A numbered message. `None`: everything up to the number was given up.
    Reliable {
        seq: u64,
        message: Option<Box<EncodedMessage>>,
    },
    Ack(u64),
    Nack(u64),
    Quarantined {
        from: UniqueAddress,
        to: UniqueAddress,
        reason: QuarantineReason,
    },
    Terminating {
        from: UniqueAddress,
    },
    TerminatingAck,
    Flush(u64),
    FlushAck(u64),
    Close(String),
    /// How many envelopes the other side has read from this stream.
    Received(u64),
    /// Another frame in compressed form; see [`read_frame_within`].
    Compressed(pb::Compressed),
    /// A variant of a newer version: counted and skipped.
    Unknown,
}

/// The key of `Frame.batch`: field 3, length-delimited.
const BATCH_KEY: u8 = 3 << 3 | 2;

/// Reads one frame of at most `limit` bytes, also after unpacking.
pub(crate) fn read_frame_within(bytes: Bytes, limit: usize) -> Result<Frame, Malformed> {
    if bytes.len() > limit {
        return Err(Malformed(format!("{} bytes, at most {limit}", bytes.len())));
    }
    match read_frame(bytes)? {
        Frame::Compressed(content) => match read_frame(compression::decompress(&content, limit)?)? {
            Frame::Compressed(_) => Err(Malformed("a compressed frame in a compressed frame".to_owned())),
            frame => Ok(frame),
        },
        frame => Ok(frame),
    }
}

/// Reads one frame.
pub(crate) fn read_frame(bytes: Bytes) -> Result<Frame, Malformed> {
    if let Some(batch) = sole_batch(&bytes) {
        return Ok(Frame::Batch(batch));
    }
    shape::check(&bytes)?;
    use pb::frame::Content;
    let Some(content) = pb::Frame::decode(bytes)?.content else { return Ok(Frame::Unknown) };
    Ok(match content {
        Content::Hello(hello) => Frame::Hello(read_hello(hello)?),
        Content::HelloReply(reply) => Frame::HelloReply(read_hello_reply(reply)?),
        Content::Batch(_) => return Err(Malformed("a batch beside other fields".to_owned())),
        Content::Reliable(frame) if frame.seq == u64::MAX => {
            return Err(Malformed("a number that none follows".to_owned()));
        }
        Content::Reliable(frame) => Frame::Reliable { seq: frame.seq, message: reliable::read(frame.envelope)? },
        Content::Ack(ack) => Frame::Ack(ack.seq),
        Content::Nack(nack) => Frame::Nack(nack.seq),
        Content::Quarantined(q) => match codes::quarantine_reason(q.reason) {
            Some(reason) => Frame::Quarantined { from: read_node(q.from)?, to: read_node(q.to)?, reason },
            // Skip the frame: the reason is of a newer version (cluster T36).
            None => Frame::Unknown,
        },
        Content::Terminating(terminating) => Frame::Terminating { from: read_node(terminating.from)? },
        Content::TerminatingAck(_) => Frame::TerminatingAck,
        Content::Flush(flush) => Frame::Flush(flush.id),
        Content::FlushAck(ack) => Frame::FlushAck(ack.id),
        Content::Close(close) => Frame::Close(close.reason),
        Content::Received(received) => Frame::Received(received.envelopes),
        Content::Compressed(content) => Frame::Compressed(content),
    })
}

/// Returns the batch of a frame that holds nothing else, without copying it.
fn sole_batch(bytes: &Bytes) -> Option<Bytes> {
    if bytes.first() != Some(&BATCH_KEY) {
        return None;
    }
    let mut rest = &bytes[1..];
    let len = decode_varint(&mut rest).ok()?;
    (usize::try_from(len).ok()? == rest.len()).then(|| bytes.slice(bytes.len() - rest.len()..))
}

/// Writes the bytes that precede a batch of `len` bytes in its frame.
pub(crate) fn write_batch_head(len: usize, out: &mut impl BufMut) {
    out.put_u8(BATCH_KEY);
    encode_varint(len as u64, out);
}

/// Writes any frame but a batch; numbered messages are written by [`write_reliable`].
pub(crate) fn write_frame(frame: &Frame) -> Bytes {
    use pb::frame::Content;
    let content = match frame {
        Frame::Hello(hello) => Content::Hello(write_hello(hello)),
        Frame::HelloReply(reply) => Content::HelloReply(write_hello_reply(reply)),
        Frame::Ack(seq) => Content::Ack(pb::Ack { seq: *seq }),
        Frame::Nack(seq) => Content::Nack(pb::Nack { seq: *seq }),
        Frame::Quarantined { from, to, reason } => Content::Quarantined(pb::Quarantined {
            from: Some(write_node(from)),
            to: Some(write_node(to)),
            reason: codes::write_quarantine_reason(*reason).into(),
        }),
        Frame::Terminating { from } => Content::Terminating(pb::Terminating { from: Some(write_node(from)) }),
        Frame::TerminatingAck => Content::TerminatingAck(pb::TerminatingAck {}),
        Frame::Flush(id) => Content::Flush(pb::Flush { id: *id }),
        Frame::FlushAck(id) => Content::FlushAck(pb::FlushAck { id: *id }),
        Frame::Close(reason) => Content::Close(pb::Close { reason: reason.clone() }),
        Frame::Received(envelopes) => Content::Received(pb::Received { envelopes: *envelopes }),
        Frame::Compressed(content) => Content::Compressed(content.clone()),
        Frame::Batch(batch) => {
            let mut out = BytesMut::with_capacity(batch.len() + 11);
            write_batch_head(batch.len(), &mut out);
            out.put_slice(batch);
            return out.freeze();
        }
        Frame::Reliable { .. } | Frame::Unknown => return Bytes::new(),
    };
    pb::Frame { content: Some(content) }.encode_to_vec().into()
}

fn write_node(node: &UniqueAddress) -> pb::Node {
    let address = node.address();
    pb::Node { host: address.host().to_owned(), port: address.port().into(), uid: node.uid().get() }
}

fn read_node(node: Option<pb::Node>) -> Result<UniqueAddress, Malformed> {
    let node = node.ok_or_else(|| Malformed("a node is missing".to_owned()))?;
    let uid = Uid::new(node.uid).ok_or_else(|| Malformed("a node has uid 0".to_owned()))?;
    Ok(UniqueAddress::new(read_address(&node.host, node.port)?, uid))
}

fn check_text(text: &str) -> Result<&str, Malformed> {
    if text.len() > MAX_TEXT {
        return Err(Malformed(format!("a text of {} bytes, at most {MAX_TEXT} are allowed", text.len())));
    }
    Ok(text)
}

fn read_features(names: &[String]) -> Result<Features, Malformed> {
    if names.len() > MAX_FEATURES {
        return Err(Malformed(format!("{} features, at most {MAX_FEATURES} are allowed", names.len())));
    }
    for name in names {
        check_text(name)?;
    }
    Ok(Features::from_names(names))
}

fn read_host_id(id: String) -> Result<Option<String>, Malformed> {
    check_text(&id)?;
    Ok(Some(id).filter(|id| !id.is_empty()))
}

fn read_address(host: &str, port: u32) -> Result<NodeAddress, Malformed> {
    check_text(host)?;
    let port = u16::try_from(port).map_err(|_| Malformed(format!("port {port} does not exist")))?;
    NodeAddress::new(host, port).map_err(|error| Malformed(error.to_string()))
}

fn write_cluster_id(id: Option<u128>) -> Bytes {
    id.map_or(Bytes::new(), |id| id.to_be_bytes().to_vec().into())
}

fn read_cluster_id(bytes: &[u8]) -> Option<u128> {
    bytes.try_into().ok().map(u128::from_be_bytes)
}

fn write_hello(hello: &Hello) -> pb::Hello {
    pb::Hello {
        protocol_version: hello.protocol_version,
        min_supported: hello.min_supported,
        cluster_name: hello.cluster_name.clone(),
        from: Some(write_node(&hello.from)),
        to_host: hello.to.host().to_owned(),
        to_port: hello.to.port().into(),
        expected_uid: hello.expected_uid.map_or(0, Uid::get),
        lane: codes::write_lane(hello.lane.kind()).into(),
        lane_index: hello.lane.index().into(),
        lane_count: hello.lane_count.into(),
        stream_seq: hello.stream_seq,
        features: hello.features.to_names(),
        cluster_id: write_cluster_id(hello.cluster_id),
        host_id: hello.host_id.clone().unwrap_or_default(),
    }
}

fn read_hello(hello: pb::Hello) -> Result<Hello, Malformed> {
    let index = u16::try_from(hello.lane_index).map_err(|_| Malformed("the lane index is too large".to_owned()))?;
    let lane = match codes::lane(hello.lane) {
        Some(LaneKind::Control) => Lane::CONTROL,
        Some(LaneKind::Ordinary) => Lane::ordinary(index),
        Some(LaneKind::Large) => Lane::LARGE,
        None => return Err(Malformed(format!("lane kind {} is unknown", hello.lane))),
    };
    check_text(&hello.cluster_name)?;
    Ok(Hello {
        protocol_version: hello.protocol_version,
        min_supported: hello.min_supported,
        cluster_name: hello.cluster_name,
        from: read_node(hello.from)?,
        to: read_address(&hello.to_host, hello.to_port)?,
        expected_uid: Uid::new(hello.expected_uid),
        lane,
        lane_count: u16::try_from(hello.lane_count).unwrap_or(u16::MAX),
        stream_seq: hello.stream_seq,
        features: read_features(&hello.features)?,
        cluster_id: read_cluster_id(&hello.cluster_id),
        host_id: read_host_id(hello.host_id)?,
    })
}

fn write_hello_reply(reply: &HelloReply) -> pb::HelloReply {
    use pb::hello_reply::Answer;
    let answer = match reply {
        HelloReply::Accepted(accepted) => Answer::Accepted(pb::Accepted {
            from: Some(write_node(&accepted.from)),
            version: accepted.version,
            features: accepted.features.to_names(),
            limits: Some(pb::Limits { max_frame_bytes: accepted.max_frame_bytes, max_names: accepted.max_names }),
            host_id: accepted.host_id.clone().unwrap_or_default(),
            cluster_id: write_cluster_id(accepted.cluster_id),
        }),
        HelloReply::Rejected(rejected) => Answer::Rejected(pb::Rejected {
            code: codes::write_reject(rejected.code).into(),
            detail: rejected.detail.clone(),
            retry_after_ms: rejected.retry_after.map_or(0, |after| after.as_millis().try_into().unwrap_or(u32::MAX)),
            from: rejected.from.as_ref().map(write_node),
            quarantine_reason: rejected.reason.map_or(0, |reason| codes::write_quarantine_reason(reason).into()),
            holder: rejected.holder.as_ref().map(write_node),
        }),
    };
    pb::HelloReply { answer: Some(answer) }
}

fn read_hello_reply(reply: pb::HelloReply) -> Result<HelloReply, Malformed> {
    use pb::hello_reply::Answer;
    match reply.answer {
        Some(Answer::Accepted(accepted)) => Ok(HelloReply::Accepted(Accepted {
            from: read_node(accepted.from)?,
            version: accepted.version,
            features: read_features(&accepted.features)?,
            max_frame_bytes: accepted.limits.as_ref().map_or(u64::MAX, |limits| limits.max_frame_bytes),
            max_names: accepted.limits.map_or(0, |limits| limits.max_names),
            cluster_id: read_cluster_id(&accepted.cluster_id),
            host_id: read_host_id(accepted.host_id)?,
        })),
        Some(Answer::Rejected(rejected)) => Ok(HelloReply::Rejected(Rejected {
            code: codes::reject(rejected.code),
            detail: shortened(rejected.detail),
            from: rejected.from.map(|node| read_node(Some(node))).transpose()?,
            reason: codes::quarantine_reason(rejected.quarantine_reason),
            holder: rejected.holder.map(|node| read_node(Some(node))).transpose()?,
            retry_after: Some(Duration::from_millis(rejected.retry_after_ms.into())).filter(|after| !after.is_zero()),
        })),
        None => Err(Malformed("an answer to a Hello that says neither yes nor no".to_owned())),
    }
}
