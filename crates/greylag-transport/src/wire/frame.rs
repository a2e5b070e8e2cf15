//! One frame: what it can hold, and how it is read and written.

use bytes::{BufMut, Bytes, BytesMut};
use greylag_core::UniqueAddress;
use prost::Message;
use prost::encoding::{decode_varint, encode_varint};

use super::handshake::{read_hello, read_hello_reply, write_hello, write_hello_reply};
use super::malformed::Malformed;
use super::nodes::{read_node, write_node};
use super::{codes, compression, reliable, shape};
use crate::generated as pb;
use crate::messages::envelope::EncodedMessage;
use crate::messages::hello::{Hello, HelloReply};
use crate::remoting::QuarantineReason;

/// The content of one frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Hello(Hello),
    HelloReply(HelloReply),
    /// The content of a `Batch`; read by a [`BatchReader`](super::BatchReader).
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

/// Writes any frame but a batch; numbered messages are written by [`write_reliable`](super::write_reliable).
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
