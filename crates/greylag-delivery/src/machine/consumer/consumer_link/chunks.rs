//! Joins the chunks of one message.
//!
//! A peer declares how many bytes its message has. Kept bytes grow only with arriving chunks, and never exceed the
//! declared size, this node's limit, or a fixed number of chunks. A message that violates one of these limits, or whose
//! chunks do not belong together, keeps its place in the order: its last chunk yields an undecodable delivery with the
//! first chunk alone.
//!
//! Source: delivery K2 to K4.

use crate::ids::SeqNr;
use crate::message::{Content, Frame, Frames};

/// Maximum number of chunks of one message; each uses some memory besides its bytes.
pub(crate) const MAX_CHUNKS: usize = 1 << 16;

/// A message whose last chunk has not arrived.
#[derive(Debug, Clone)]
pub(super) struct Assembly<P> {
    /// The `first` flag of the message's first chunk.
    pub(super) first: bool,
    total: SeqNr,
    parts: Vec<P>,
    bytes: u64,
    max_bytes: u64,
    /// No more chunks are kept: the message is undecodable in any case.
    broken: bool,
}

impl<P: Content> Assembly<P> {
    /// Begins with a first chunk.
    pub(super) fn begin(first: bool, frame: Frame<P>, max_message_bytes: u64) -> Self {
        let declared = frame.payload.total_len();
        let max_bytes = declared.unwrap_or(max_message_bytes).min(max_message_bytes);
        let bytes = frame.payload.size();
        let broken = bytes > max_bytes || declared.is_some_and(|declared| declared > max_message_bytes);
        Self { first, total: frame.total, parts: vec![frame.payload], bytes, max_bytes, broken }
    }

    /// Starts with a chunk that has no first chunk before it.
    pub(super) fn torn(first: bool, frame: Frame<P>) -> Self {
        Self { first, total: frame.total, parts: vec![frame.payload], bytes: 0, max_bytes: 0, broken: true }
    }

    /// Adds the next chunk.
    pub(super) fn add(&mut self, frame: Frame<P>) {
        let size = frame.payload.size();
        self.bytes = self.bytes.saturating_add(size);
        let fits = size > 0 && self.bytes <= self.max_bytes && self.parts.len() < MAX_CHUNKS;
        if self.broken || !fits || frame.total != self.total {
            self.broken = true;
            self.parts.truncate(1);
        } else {
            self.parts.push(frame.payload);
        }
    }

    /// The chunks kept.
    pub(super) fn into_frames(self) -> Frames<P> {
        Frames::Chunks(self.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk with the declared size of its message, and its own size.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Chunk(Option<u64>, u64);

    impl Content for Chunk {
        fn size(&self) -> u64 {
            self.1
        }

        fn total_len(&self) -> Option<u64> {
            self.0
        }
    }

    fn frame(total: u64, total_len: Option<u64>, size: u64) -> Frame<Chunk> {
        let (ack, first_chunk, last_chunk) = (false, total_len.is_some(), false);
        Frame { seq_nr: 1, total: SeqNr(total), ack, first_chunk, last_chunk, payload: Chunk(total_len, size) }
    }

    fn kept(assembly: Assembly<Chunk>) -> usize {
        match assembly.into_frames() {
            Frames::Chunks(parts) => parts.len(),
            Frames::Whole(_) => panic!("a whole message"),
        }
    }

    /// delivery 101: the bytes kept of a message follow the chunks that arrived, not the size that the peer declared.
    #[test]
    fn chunk_buffer_stays_within_the_declared_length_and_the_limit() {
        let of = |declared, sizes: &[u64]| {
            let mut assembly = Assembly::begin(true, frame(1, Some(declared), 10), 100);
            sizes.iter().for_each(|size| assembly.add(frame(1, None, *size)));
            (kept(assembly.clone()), assembly.broken)
        };
        assert_eq!(of(30, &[10, 10]), (3, false));
        assert_eq!(of(30, &[10, 11]), (1, true), "more than was said");
        assert_eq!(of(101, &[10, 10]), (1, true), "more than is taken");
        assert_eq!(of(u64::MAX, &[u64::MAX, 1]), (1, true));
        assert_eq!(of(0, &[]), (1, true), "a message of no bytes has no chunks");
        assert_eq!(of(30, &[0, 10]), (1, true), "empty chunks could go on for ever");
    }

    #[test]
    fn chunks_of_two_messages_are_no_message() {
        let mut assembly = Assembly::begin(true, frame(1, Some(30), 10), 100);
        assembly.add(frame(2, None, 10));
        assembly.add(frame(1, None, 10));
        assert_eq!(kept(assembly), 1);
        let mut torn = Assembly::torn(false, frame(1, None, 10));
        torn.add(frame(1, None, 10));
        assert_eq!(kept(torn), 1);
    }

    #[test]
    fn number_of_chunks_is_limited() {
        let of = |count: usize| {
            let mut assembly = Assembly::begin(true, frame(1, Some(1 << 40), 1), 1 << 40);
            (1..count).for_each(|_| assembly.add(frame(1, None, 1)));
            kept(assembly)
        };
        assert_eq!((of(MAX_CHUNKS), of(MAX_CHUNKS + 1)), (MAX_CHUNKS, 1));
    }
}
