//! The frames of a shard's data lane: messages behind a header, and marks.
//!
//! This is the hot part of the wire format, so it is bytes and not protobuf: a frame is written and read without an
//! allocation except for the entity id. Integers are big-endian; texts are a `u16` length and UTF-8. A reader refuses
//! versions and tags that it does not know.
//!
//! ```text
//! message  version=1 | flags | digest u32 | generation u64 | origin incarnation u64
//!          | if flags.forwarded: hops u8 | first u64 | origin node text | entity id text | message
//! mark     version=1 | tag | fields of the mark
//! direct   version=1 | instance u64 | message
//! ```
//! Straight from its origin (`hops` 0, `first` = `generation`) the origin's node is the link's peer
//! and is not written. Codec and manifest of the message are those of its envelope.
//!
//! Source: sharding §2.1.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use greylag_core::{DecodeError, Generation, UniqueAddress};

use crate::error::ReadError;
use crate::horizon::Horizon;
use crate::ids::{EntityId, RegionId};
use crate::machine::message::{Mark, Stamp};

/// Manifest of marks; their codec is the internal one.
pub(crate) const MARK_MANIFEST: &str = "greylag.sharding.mark";

const VERSION: u8 = 1;
const LEFTOVER: u8 = 1;
const FORWARDED: u8 = 2;

/// The header of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Digest of the sender's fingerprint.
    pub(crate) digest: u32,
    /// The generation of the route that the last sender used.
    pub(crate) generation: Generation,
    /// The incarnation of the region in its origin's process that the message was submitted to.
    pub(crate) incarnation: u64,
    /// Whether the message was returned by the shard's former owner.
    leftover: bool,
    forwarded: Option<Forwarded>,
    pub(crate) id: EntityId,
}

/// The additional header fields of a message that did not come straight from its origin.
#[derive(Debug, PartialEq, Eq)]
struct Forwarded {
    hops: u8,
    first: Generation,
    node: UniqueAddress,
}

impl Header {
    /// Whether the message came by its first route straight from the region it was submitted to, at the other end of
    /// the link.
    pub(crate) fn is_straight(&self) -> bool {
        !self.leftover && self.forwarded.is_none()
    }

    /// The stamp of a message that came by the link of `peer`, and the entity that it is for.
    pub(crate) fn into_stamp(self, peer: &UniqueAddress) -> (Stamp, EntityId) {
        let Self { generation, incarnation, leftover, forwarded, id, .. } = self;
        let Forwarded { hops, first, node } =
            forwarded.unwrap_or_else(|| Forwarded { hops: 0, first: generation, node: peer.clone() });
        let stamp = Stamp { generation, origin: RegionId { node, incarnation }, first, hops, leftover };
        (stamp, id)
    }
}

/// Appends a header; the message follows.
pub(crate) fn put_header(buffer: &mut BytesMut, stamp: &Stamp, digest: u32, id: &EntityId) {
    let forwarded = stamp.hops > 0 || stamp.leftover || stamp.first != stamp.generation;
    let flags = (u8::from(stamp.leftover) * LEFTOVER) | (u8::from(forwarded) * FORWARDED);
    put_begin(buffer, flags, digest, stamp.generation, stamp.origin.incarnation);
    if forwarded {
        buffer.put_u8(stamp.hops);
        buffer.put_u64(stamp.first.as_u64());
        put_text(buffer, &stamp.origin.node.to_string());
    }
    put_bytes(buffer, id.as_bytes());
}

/// Appends the header of a message that leaves the region it was submitted to by its first route.
pub(crate) fn put_straight(
    buffer: &mut BytesMut,
    generation: Generation,
    incarnation: u64,
    digest: u32,
    id: &EntityId,
) {
    put_begin(buffer, 0, digest, generation, incarnation);
    put_bytes(buffer, id.as_bytes());
}

/// Appends the common begin of all headers.
fn put_begin(buffer: &mut BytesMut, flags: u8, digest: u32, generation: Generation, incarnation: u64) {
    let mut begin = [0; 22];
    (begin[0], begin[1]) = (VERSION, flags);
    begin[2..6].copy_from_slice(&digest.to_be_bytes());
    begin[6..14].copy_from_slice(&generation.as_u64().to_be_bytes());
    begin[14..].copy_from_slice(&incarnation.to_be_bytes());
    buffer.put_slice(&begin);
}

/// Reads the header at the front of `bytes`, and returns its length too; the rest is the message. Reads in place, as
/// every message passes here.
pub(crate) fn read_header(bytes: &[u8], horizon: Horizon) -> Result<(Header, usize), ReadError> {
    let rest = &mut &*bytes;
    version(rest)?;
    let flags = take_u8(rest)?;
    if flags & !(LEFTOVER | FORWARDED) != 0 {
        return Err(malformed("unknown flags"));
    }
    let digest = if rest.remaining() >= 4 { rest.get_u32() } else { return Err(malformed("it is cut short")) };
    let generation = take_generation(rest, horizon)?;
    let incarnation = take_u64(rest)?;
    let forwarded = if flags & FORWARDED == 0 {
        None
    } else {
        Some(Forwarded { hops: take_u8(rest)?, first: take_generation(rest, horizon)?, node: take_node(rest)? })
    };
    let id = EntityId::new(take_text(rest)?).map_err(|_| malformed("the entity id is empty or too long"))?;
    let header = Header { digest, generation, incarnation, leftover: flags & LEFTOVER != 0, forwarded, id };
    Ok((header, bytes.len() - rest.len()))
}

/// A mark as bytes.
pub(crate) fn encode_mark(mark: &Mark) -> Bytes {
    let mut buffer = BytesMut::with_capacity(64);
    buffer.put_u8(VERSION);
    match mark {
        Mark::Flush { generation, attempt, from } => {
            buffer.put_u8(1);
            buffer.put_u64(generation.as_u64());
            buffer.put_u64(attempt.0);
            put_region(&mut buffer, from);
        }
        Mark::Probe { nonce, stamp } => {
            buffer.put_u8(2);
            buffer.put_u64(*nonce);
            buffer.put_u64(stamp.generation.as_u64());
            put_region(&mut buffer, &stamp.origin);
            buffer.put_u64(stamp.first.as_u64());
            buffer.put_u8(stamp.hops);
            buffer.put_u8(u8::from(stamp.leftover));
        }
        Mark::Leftover { generation, from } => {
            buffer.put_u8(3);
            buffer.put_u64(generation.as_u64());
            put_region(&mut buffer, from);
        }
    }
    buffer.freeze()
}

/// Reads a mark.
pub(crate) fn decode_mark(bytes: &[u8], horizon: Horizon) -> Result<Mark, ReadError> {
    let bytes = &mut &*bytes;
    version(bytes)?;
    let mark = match take_u8(bytes)? {
        1 => Mark::Flush {
            generation: take_generation(bytes, horizon)?,
            attempt: horizon.attempt(take_u64(bytes)?).ok_or(ReadError::BeyondReach("attempt"))?,
            from: take_region(bytes)?,
        },
        2 => Mark::Probe {
            nonce: take_u64(bytes)?,
            stamp: Stamp {
                generation: take_generation(bytes, horizon)?,
                origin: take_region(bytes)?,
                first: take_generation(bytes, horizon)?,
                hops: take_u8(bytes)?,
                leftover: take_u8(bytes)? != 0,
            },
        },
        3 => Mark::Leftover { generation: take_generation(bytes, horizon)?, from: take_region(bytes)? },
        _ => return Err(malformed("unknown mark")),
    };
    Ok(mark)
}

/// Appends the header of a message to one incarnation.
pub(crate) fn put_direct(buffer: &mut BytesMut, instance: u64) {
    buffer.put_u8(VERSION);
    buffer.put_u64(instance);
}

/// Reads the instance of a direct message; the rest of the bytes is the message.
pub(crate) fn take_direct(bytes: &mut Bytes) -> Result<u64, ReadError> {
    let rest = &mut &bytes[..];
    version(rest)?;
    let instance = take_u64(rest)?;
    bytes.advance(bytes.len() - rest.len());
    Ok(instance)
}

fn malformed(reason: &str) -> ReadError {
    DecodeError::malformed("sharding frame", reason).into()
}

fn version(bytes: &mut &[u8]) -> Result<(), ReadError> {
    if take_u8(bytes)? == VERSION { Ok(()) } else { Err(malformed("unknown version")) }
}

fn take_u8(bytes: &mut &[u8]) -> Result<u8, ReadError> {
    if bytes.has_remaining() { Ok(bytes.get_u8()) } else { Err(malformed("it is cut short")) }
}

fn take_u64(bytes: &mut &[u8]) -> Result<u64, ReadError> {
    if bytes.remaining() >= 8 { Ok(bytes.get_u64()) } else { Err(malformed("it is cut short")) }
}

fn take_generation(bytes: &mut &[u8], horizon: Horizon) -> Result<Generation, ReadError> {
    horizon.generation(take_u64(bytes)?).ok_or(ReadError::BeyondReach("generation"))
}

fn put_text(buffer: &mut BytesMut, text: &str) {
    put_bytes(buffer, text.as_bytes());
}

/// Appends the bytes of a text.
fn put_bytes(buffer: &mut BytesMut, bytes: &[u8]) {
    buffer.put_u16(u16::try_from(bytes.len()).expect("ids and addresses are shorter than 64 KiB"));
    buffer.put_slice(bytes);
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Result<&'a str, ReadError> {
    if bytes.remaining() < 2 {
        return Err(malformed("it is cut short"));
    }
    let length = usize::from(bytes.get_u16());
    let text = bytes.split_off(..length).ok_or_else(|| malformed("it is cut short"))?;
    Ok(std::str::from_utf8(text).map_err(|error| DecodeError::malformed("sharding frame", error))?)
}

fn take_node(bytes: &mut &[u8]) -> Result<UniqueAddress, ReadError> {
    Ok(take_text(bytes)?.parse().map_err(|error| DecodeError::malformed("sharding frame", error))?)
}

fn put_region(buffer: &mut BytesMut, region: &RegionId) {
    put_text(buffer, &region.node.to_string());
    buffer.put_u64(region.incarnation);
}

fn take_region(bytes: &mut &[u8]) -> Result<RegionId, ReadError> {
    Ok(RegionId { node: take_node(bytes)?, incarnation: take_u64(bytes)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn horizon() -> Horizon {
        Horizon::after(1_800_000_000)
    }

    /// A generation that no coordinator can have reached.
    fn beyond() -> Generation {
        Generation::new(Generation::MAX_EPOCH - 1, 1).unwrap()
    }
    use crate::machine::message::Attempt;
    use proptest::prelude::*;

    fn generation(seq: u64) -> Generation {
        Generation::new(3, seq).unwrap()
    }

    fn region(node: &str) -> RegionId {
        RegionId { node: node.parse().unwrap(), incarnation: 7 }
    }

    fn stamps() -> Vec<Stamp> {
        let straight = Stamp {
            generation: generation(2),
            origin: region("a:1#1"),
            first: generation(2),
            hops: 0,
            leftover: false,
        };
        let forwarded = Stamp { first: generation(1), hops: 3, origin: region("b:2#2"), ..straight.clone() };
        let leftover = Stamp { leftover: true, ..forwarded.clone() };
        vec![straight, forwarded, leftover]
    }

    #[test]
    fn headers_come_back_and_leave_the_message() {
        for stamp in stamps() {
            let id = EntityId::new("customer-42").unwrap();
            let mut buffer = BytesMut::new();
            put_header(&mut buffer, &stamp, 0xdead_beef, &id);
            buffer.put_slice(b"message");
            let (header, length) = read_header(&buffer, horizon()).unwrap();
            assert_eq!((header.digest, header.is_straight()), (0xdead_beef, stamp.hops == 0));
            assert_eq!(header.into_stamp(&"a:1#1".parse().unwrap()), (stamp, id));
            assert_eq!(&buffer[length..], b"message");
        }
    }

    /// Fixes the bytes: a change of them is a change of the protocol.
    #[test]
    fn the_straight_header_is_as_documented() {
        let mut buffer = BytesMut::new();
        put_header(&mut buffer, &stamps()[0], 0xdead_beef, &EntityId::new("c").unwrap());
        let expected = [
            &[1, 0, 0xde, 0xad, 0xbe, 0xef][..],
            &[0, 0, 0, 0, 0x30, 0, 0, 2],
            &[0, 0, 0, 0, 0, 0, 0, 7],
            &[0, 1, b'c'],
        ];
        assert_eq!(&buffer[..], expected.concat());
        buffer.clear();
        put_straight(&mut buffer, generation(2), 7, 0xdead_beef, &EntityId::new("c").unwrap());
        assert_eq!(&buffer[..], expected.concat());
    }

    /// Sharding scenario 103: frames and marks with a number that no coordinator can have reached.
    #[test]
    fn scenario_103_numbers_beyond_the_horizon_are_refused() {
        let straight = stamps().remove(0);
        for stamp in [
            Stamp { generation: beyond(), first: beyond(), ..straight.clone() },
            Stamp { first: beyond(), hops: 1, ..straight.clone() },
        ] {
            let mut buffer = BytesMut::new();
            put_header(&mut buffer, &stamp, 1, &EntityId::new("c").unwrap());
            let taken = read_header(&buffer, horizon());
            assert!(matches!(taken, Err(ReadError::BeyondReach(_))), "{taken:?}");
            let probe = decode_mark(&encode_mark(&Mark::Probe { nonce: 1, stamp }), horizon());
            assert!(matches!(probe, Err(ReadError::BeyondReach(_))), "{probe:?}");
        }
        let (from, attempt) = (region("a:1#1"), Attempt(beyond().as_u64()));
        for mark in [
            Mark::Flush { generation: beyond(), attempt: Attempt(9), from: from.clone() },
            Mark::Flush { generation: generation(1), attempt, from: from.clone() },
            Mark::Leftover { generation: beyond(), from },
        ] {
            let read = decode_mark(&encode_mark(&mark), horizon());
            assert!(matches!(read, Err(ReadError::BeyondReach(_))), "{read:?}");
        }
    }

    #[test]
    fn marks_come_back() {
        let mut marks = vec![
            Mark::Flush { generation: generation(1), attempt: Attempt(9), from: region("a:1#1") },
            Mark::Leftover { generation: generation(1), from: region("a:1#1") },
        ];
        marks.extend(stamps().into_iter().map(|stamp| Mark::Probe { nonce: 5, stamp }));
        for mark in marks {
            assert_eq!(decode_mark(&encode_mark(&mark), horizon()), Ok(mark));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = read_header(&bytes, horizon());
            let _ = decode_mark(&bytes, horizon());
            let _ = take_direct(&mut bytes.into());
        }
    }
}
