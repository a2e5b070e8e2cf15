//! Frames as zstd.
//!
//! A compressed frame holds one other frame whole, with its size. The reader trusts the size only up to its lane's
//! limit: it never allocates more, and content of another size than announced is a broken frame. Source: cluster T36,
//! T37.

use bytes::{Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::malformed::Malformed;
use crate::generated as pb;

/// The fastest level: links within a data centre are fast, and heartbeats share the threads.
const LEVEL: i32 = 1;

/// The field number of `Frame.compressed`.
const COMPRESSED: u32 = 14;

/// The frame that holds `frame` compressed; `None` if that would not be smaller.
pub(crate) fn compress(frame: &[u8]) -> Option<Bytes> {
    let zstd = zstd::bulk::compress(frame, LEVEL).ok()?;
    let content = pb::Compressed { size: frame.len() as u64, zstd: zstd.into() };
    let len = content.encoded_len();
    let mut out = BytesMut::with_capacity(len + 6);
    encode_key(COMPRESSED, WireType::LengthDelimited, &mut out);
    encode_varint(len as u64, &mut out);
    content.encode_raw(&mut out);
    (out.len() < frame.len()).then(|| out.freeze())
}

/// Returns the bytes of the frame inside, at most `limit`.
pub(super) fn decompress(content: &pb::Compressed, limit: usize) -> Result<Bytes, Malformed> {
    let size = usize::try_from(content.size).unwrap_or(usize::MAX);
    if size > limit {
        return Err(Malformed(format!("a frame that unpacks to {size} bytes, at most {limit}")));
    }
    let frame = zstd::bulk::decompress(&content.zstd, size).map_err(|error| Malformed(error.to_string()))?;
    if frame.len() != size {
        return Err(Malformed(format!("a frame of {size} bytes unpacks to {}", frame.len())));
    }
    Ok(frame.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content(frame: Bytes) -> pb::Compressed {
        match pb::Frame::decode(frame).unwrap().content {
            Some(pb::frame::Content::Compressed(content)) => content,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn incompressible_frames_stay_uncompressed() {
        assert_eq!(compress(b"abc"), None);
        let noise: Vec<u8> = (0..5000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        assert!(compress(&noise).is_none_or(|frame| frame.len() < noise.len()));
    }

    /// Cluster T36, T37: a decompression bomb gets no more memory than the lane allows, whether it states its size or
    /// not.
    #[test]
    fn a_bomb_is_refused() {
        let bomb = content(compress(&vec![0; 64 << 20]).unwrap());
        assert!(bomb.zstd.len() < 16 << 10);
        assert!(decompress(&bomb, 320 << 10).is_err());
        let lying = pb::Compressed { size: 1000, ..bomb.clone() };
        assert!(decompress(&lying, 320 << 10).is_err());
        let boasting = pb::Compressed { size: u64::MAX, ..bomb };
        assert!(decompress(&boasting, 320 << 10).is_err());
        let short = pb::Compressed { size: 9000, ..content(compress(&vec![0; 8000]).unwrap()) };
        assert!(decompress(&short, 10_000).is_err());
        assert!(decompress(&pb::Compressed { size: 3, zstd: Bytes::from_static(b"no zstd") }, 100).is_err());
    }

    proptest! {
        #[test]
        fn compressed_frames_decompress_to_the_same_bytes(piece in prop::collection::vec(any::<u8>(), 0..100), times in 1_usize..200) {
            let frame = piece.repeat(times);
            if let Some(packed) = compress(&frame) {
                prop_assert!(packed.len() < frame.len());
                let content = content(packed);
                prop_assert_eq!(&decompress(&content, frame.len()).unwrap()[..], &frame[..]);
                prop_assert!(decompress(&content, frame.len() - 1).is_err());
            }
        }

        #[test]
        fn damaged_frames_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), size in 0_u64..20_000) {
            let mut packed = content(compress(&b"some words again and again ".repeat(400)).unwrap()).zstd.to_vec();
            let index = at.index(packed.len());
            packed[index] = byte;
            if let Ok(frame) = decompress(&pb::Compressed { size, zstd: packed.into() }, 16_384) {
                prop_assert!(frame.len() <= 16_384);
            }
        }
    }
}
