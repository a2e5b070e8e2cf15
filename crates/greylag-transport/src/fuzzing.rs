//! Properties that must hold for every sequence of bytes that a peer may send; for `fuzz/` and the tests.
//!
//! A function here panics only if a property is violated. Not part of the public API.

use bytes::{Bytes, BytesMut};
use greylag_core::{CodecId, Uid, UniqueAddress};
use prost::Message;

use crate::endpoints::endpoint::Reply;
use crate::generated as pb;
use crate::messages::envelope::{EncodedMessage, Envelope, Inbound, Payload, Recipient};
use crate::messages::hello::tests::hello as a_hello;
use crate::remoting::QuarantineReason;
use crate::wire::{self, Arrived, ArrivedContent, BatchReader, Frame, NameWriter, Names};

/// The limits of a frame on each lane, by default: control, ordinary, large.
const LIMITS: [usize; 3] = [128 * 1024, 320 * 1024, 2112 * 1024];
/// Names with numbers per stream.
const MAX_NAMES: usize = 16;

/// Reads a frame as a stream does, content included: the first byte chooses the lane.
///
/// A frame that was read, written and read again must be the same.
pub fn frame(input: &[u8]) {
    let Some((lane, bytes)) = input.split_first() else { return };
    let limit = LIMITS[usize::from(*lane) % LIMITS.len()];
    let Ok(frame) = wire::read_frame_within(Bytes::copy_from_slice(bytes), limit) else { return };
    match frame {
        Frame::Batch(content) => {
            assert!(content.len() <= limit, "a batch of {} bytes from a lane of {limit}", content.len());
            batch(&content);
        }
        Frame::Unknown => {}
        // Numbered messages are written from the encoded message that their sender keeps.
        Frame::Reliable { seq, message: None } => {
            assert_eq!(wire::read_frame(wire::write_skip(seq)), Ok(Frame::Reliable { seq, message: None }));
        }
        Frame::Reliable { seq, message: Some(message) } => {
            let again = wire::write_reliable(seq, &message);
            assert_eq!(wire::read_frame(again), Ok(Frame::Reliable { seq, message: Some(message) }));
        }
        frame => assert_eq!(wire::read_frame(wire::write_frame(&frame)).as_ref(), Ok(&frame)),
    }
}

/// Reads a Hello, or the answer to one; the first byte chooses.
pub fn hello(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    use pb::frame::Content;
    let content = if kind % 2 == 0 {
        pb::Hello::decode(bytes).map(Content::Hello)
    } else {
        pb::HelloReply::decode(bytes).map(Content::HelloReply)
    };
    let Ok(content) = content else { return };
    let bytes = pb::Frame { content: Some(content) }.encode_to_vec();
    frame(&[[0].as_slice(), &bytes].concat());
}

/// Reads the content of two batches of one stream, one after the other: the first two bytes are the length of the
/// first.
pub fn batches(input: &[u8]) {
    let Some((len, bytes)) = input.split_first_chunk::<2>() else { return };
    let (first, second) = bytes.split_at(bytes.len().min(usize::from(u16::from_le_bytes(*len))));
    let mut names = Names::new(MAX_NAMES);
    for content in [first, second] {
        let from = origin();
        let arrived = BatchReader::new(&from, Bytes::copy_from_slice(content), &mut names);
        if rewrite(arrived.map_while(Result::ok)) > content.len() {
            panic!("more envelopes than bytes");
        }
    }
}

fn origin() -> UniqueAddress {
    "a:1#1".parse().expect("it is an address")
}

fn batch(content: &Bytes) {
    rewrite(BatchReader::new(&origin(), content.clone(), &mut Names::new(MAX_NAMES)).map_while(Result::ok));
}

/// Writes the envelopes that arrived, reads them again and compares; returns how many there were.
fn rewrite(arrived: impl Iterator<Item = Arrived>) -> usize {
    let mut count = 0;
    for arrived in arrived {
        count += 1;
        let Some(batch) = write(&arrived) else { continue };
        let again: Vec<_> = BatchReader::new(&origin(), batch.freeze(), &mut Names::new(MAX_NAMES)).collect();
        assert_eq!(again, [Ok(arrived)]);
    }
    count
}

fn write(arrived: &Arrived) -> Option<BytesMut> {
    let (mut names, mut scratch, mut batch) = (NameWriter::default(), BytesMut::new(), BytesMut::new());
    match &arrived.content {
        ArrivedContent::Message(Inbound { recipient, codec, manifest, payload, ask, .. }) => {
            let mut envelope = Envelope::new(recipient.clone(), *codec, manifest.clone(), payload.clone());
            (envelope.target_uid, envelope.ask) = (arrived.target_uid, *ask);
            wire::write_envelope(&envelope, &mut names, &mut scratch, &mut batch).ok()?;
        }
        // An answer must be for one incarnation; this node never writes one without.
        ArrivedContent::Reply { ask_id, reply } => {
            wire::write_reply(arrived.target_uid?, *ask_id, reply, &mut names, &mut batch);
        }
    }
    Some(batch)
}

/// Valid inputs for [`frame`].
pub fn frames() -> Vec<Vec<u8>> {
    let node = |text: &str| text.parse().expect("it is an address");
    let (from, to) = (node("a:1#1"), node("b:2#5"));
    let small = batch_of(&[0; 3]);
    let large = batch_of(&[7; 9000]);
    let mut frames: Vec<Bytes> = [
        Frame::Hello(a_hello("a:1#1", "b:2")),
        Frame::Quarantined { from: node("a:1#1"), to, reason: QuarantineReason::Manual },
        Frame::Terminating { from },
        Frame::TerminatingAck,
        Frame::Flush(300),
        Frame::FlushAck(1),
        Frame::Close("PROTOCOL".to_owned()),
        Frame::Received(70_000),
        Frame::Batch(small),
    ]
    .iter()
    .map(wire::write_frame)
    .collect();
    frames.push(wire::write_skip(300));
    let numbered = Envelope::new(Recipient::new("control/watch"), CodecId::JSON, "w", &b"{}"[..]);
    frames.extend(EncodedMessage::new(&numbered).map(|message| wire::write_reliable(7, &message)));
    frames.extend(wire::compress(&wire::write_frame(&Frame::Batch(large))));
    let lanes = frames.iter().zip([0, 1, 2].into_iter().cycle());
    lanes.map(|(frame, lane)| [[lane].as_slice(), frame].concat()).collect()
}

/// Valid inputs for [`hello`].
pub fn hellos() -> Vec<Vec<u8>> {
    let content = |frame: &Frame| pb::Frame::decode(wire::write_frame(frame)).expect("we wrote it").content;
    let Some(pb::frame::Content::Hello(hello)) = content(&Frame::Hello(a_hello("a:1#1", "b:2"))) else { return vec![] };
    let accepted = pb::Accepted { from: hello.from.clone(), version: 1, host_id: "h".to_owned(), ..Default::default() };
    let rejected = pb::Rejected { code: 4, detail: "d".to_owned(), quarantine_reason: 1, ..Default::default() };
    let reply = |answer| pb::HelloReply { answer: Some(answer) }.encode_to_vec();
    vec![
        [vec![0], hello.encode_to_vec()].concat(),
        [vec![1], reply(pb::hello_reply::Answer::Accepted(accepted))].concat(),
        [vec![1], reply(pb::hello_reply::Answer::Rejected(rejected))].concat(),
    ]
}

/// Valid inputs for [`batches`].
pub fn pairs_of_batches() -> Vec<Vec<u8>> {
    let (first, second) = (batch_of(b"abc"), batch_of(b""));
    let len = u16::try_from(first.len()).expect("it is short").to_le_bytes();
    vec![[&len, first.as_ref(), second.as_ref()].concat()]
}

fn batch_of(payload: &[u8]) -> Bytes {
    let (mut names, mut scratch, mut batch) = (NameWriter::default(), BytesMut::new(), BytesMut::new());
    let recipient = Recipient::new("sharding/Customer").with_sub_path("17").with_instance(3);
    let payload = Payload::Bytes(Bytes::copy_from_slice(payload));
    let mut envelope = Envelope::new(recipient, CodecId::JSON, "customer.purchase", Bytes::new());
    envelope.payload = payload;
    for _ in 0..2 {
        wire::write_envelope(&envelope, &mut names, &mut scratch, &mut batch).expect("bytes are written as they are");
    }
    let uid = Uid::new(4).expect("4 is not 0");
    let reply = Reply::Entity(greylag_core::EntityError::NoReply);
    wire::write_reply(uid, 5, &reply, &mut names, &mut batch);
    batch.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use greylag_testkit::mutations::damaged;

    const RUNS: u32 = 20_000;

    /// Cluster T35, T36; issue "Done when" 7, in short.
    #[test]
    fn damaged_frames_are_refused_or_read_and_nothing_else() {
        damaged(&frames(), RUNS, 1, frame);
    }

    #[test]
    fn damaged_hellos_are_refused_or_read_and_nothing_else() {
        damaged(&hellos(), RUNS, 2, hello);
    }

    #[test]
    fn damaged_batches_are_refused_or_read_and_nothing_else() {
        damaged(&pairs_of_batches(), RUNS, 3, batches);
    }
}
