//! Control messages longer than one frame carries: cut into pieces, and put together again.
//!
//! An inventory of 100,000 shards takes megabytes. As one frame it would be refused as too large, or hold up the
//! heartbeats behind it. A control lane is first in, first out, so pieces come in the order in which they were sent; a
//! lost piece loses the message, and every control message is repeated.
//!
//! ```text
//! message of 150 KiB  ->  Part{7, 0 of 3}  Part{7, 1 of 3}  Part{7, 2 of 3}  ->  message
//! message of 2 KiB    ->  itself                                             ->  itself
//! ```
//!
//! Source: sharding §2.1 (frames of at most 64 KiB), scenario 98.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use greylag_core::{DecodeError, UniqueAddress};
use prost::Message;

use crate::error::ReadError;
use crate::generated::Part;
use crate::wire::MANIFESTS;

/// Manifest of a piece.
pub const PART_MANIFEST: &str = "greylag.sharding.part";

/// Most bytes of a message that is a frame of its own, and of a piece: with a piece's header and the envelope's a frame
/// stays below 64 KiB.
const PIECE: usize = 63 * 1024;

/// Most bytes of a joined message: an inventory of a million shards with their ids of at most 64 bytes.
const LONGEST: usize = 96 * 1024 * 1024;

/// Cuts the control messages of one sender into frames.
#[derive(Debug, Default)]
pub struct Cutter {
    /// Messages cut so far; tells the pieces of one message from those of the next.
    cut: AtomicU64,
}

impl Cutter {
    /// The frames that carry a message, in the order in which they must be sent.
    pub fn frames(&self, manifest: &'static str, message: Bytes) -> Vec<(&'static str, Bytes)> {
        if message.len() <= PIECE {
            return vec![(manifest, message)];
        }
        let number = self.cut.fetch_add(1, Ordering::Relaxed);
        let count = u32::try_from(message.len().div_ceil(PIECE)).expect("messages have fewer than 2^32 pieces");
        let piece = |index: u32| {
            let from = index as usize * PIECE;
            let piece = message.slice(from..message.len().min(from + PIECE));
            let part = Part { number, index, count, manifest: manifest.to_owned(), piece };
            (PART_MANIFEST, part.encode_to_vec().into())
        };
        (0..count).map(piece).collect()
    }
}

/// The pieces of a message received so far.
#[derive(Debug)]
struct Open {
    number: u64,
    count: u32,
    next: u32,
    bytes: BytesMut,
}

/// Joins the control messages of all senders: of each node at most one message of each manifest at a time.
#[derive(Debug, Default)]
pub struct Joiner {
    open: BTreeMap<(UniqueAddress, &'static str), Open>,
}

impl Joiner {
    /// Takes a piece from a node. Returns the whole message with its manifest, if this was the last piece.
    ///
    /// # Errors
    /// [`ReadError::Malformed`] if the bytes are no piece, or belong to no message whose other pieces came before. The
    /// message is given up.
    pub fn take(&mut self, from: &UniqueAddress, piece: Bytes) -> Result<Option<(&'static str, Bytes)>, ReadError> {
        let malformed = |why: &str| DecodeError::malformed(PART_MANIFEST, why);
        let part = Part::decode(piece).map_err(|error| malformed(&error.to_string()))?;
        let known = MANIFESTS.iter().find(|manifest| **manifest == part.manifest);
        let manifest = *known.ok_or_else(|| malformed("its message is of an unknown kind"))?;
        let key = (from.clone(), manifest);
        let begun = self.open.remove(&key);
        if part.piece.is_empty() || part.piece.len() > PIECE || part.index >= part.count {
            return Err(malformed("its size or number makes no sense").into());
        }
        let mut open = match begun {
            _ if part.index == 0 => Open { number: part.number, count: part.count, next: 0, bytes: BytesMut::new() },
            Some(open) if (open.number, open.count, open.next) == (part.number, part.count, part.index) => open,
            _ => return Err(malformed("the pieces before it are missing").into()),
        };
        if open.bytes.len() + part.piece.len() > LONGEST {
            return Err(malformed("its message is too long").into());
        }
        open.bytes.extend_from_slice(&part.piece);
        open.next += 1;
        if open.next == open.count {
            return Ok(Some((manifest, open.bytes.freeze())));
        }
        self.open.insert(key, open);
        Ok(None)
    }

    /// Gives up the pieces of nodes that are no members any more.
    pub fn retain(&mut self, is_member: impl Fn(&UniqueAddress) -> bool) {
        self.open.retain(|(node, _), _| is_member(node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{COORDINATOR_MANIFEST, REGION_MANIFEST};

    fn peer(host: &str) -> UniqueAddress {
        format!("{host}:1#1").parse().unwrap()
    }

    fn message(length: usize) -> Bytes {
        (0..length).map(|index| (index % 251) as u8).collect()
    }

    #[test]
    fn scenario_98_a_long_message_comes_back_from_frames_below_64_kib() {
        let cutter = Cutter::default();
        for length in [0, 1, PIECE, PIECE + 1, 3 * PIECE, 10_000_000] {
            let frames = cutter.frames(REGION_MANIFEST, message(length));
            assert_eq!(frames.len(), length.div_ceil(PIECE).max(1));
            let mut joiner = Joiner::default();
            let mut whole = None;
            for (index, (manifest, frame)) in frames.iter().enumerate() {
                assert!(frame.len() < 64 * 1024 - 256, "an envelope fits around it: {}", frame.len());
                whole = if *manifest == PART_MANIFEST {
                    joiner.take(&peer("a"), frame.clone()).unwrap()
                } else {
                    Some((*manifest, frame.clone()))
                };
                assert_eq!(whole.is_some(), index + 1 == frames.len());
            }
            assert_eq!(whole, Some((REGION_MANIFEST, message(length))));
            assert!(joiner.open.is_empty());
        }
    }

    #[test]
    fn pieces_of_other_nodes_and_kinds_may_come_in_between() {
        let (ours, theirs) = (Cutter::default(), Cutter::default());
        let one = ours.frames(REGION_MANIFEST, message(2 * PIECE));
        let other = ours.frames(COORDINATOR_MANIFEST, message(2 * PIECE + 9));
        let third = theirs.frames(REGION_MANIFEST, message(PIECE + 3));
        let mut joiner = Joiner::default();
        let mut take = |from: &str, frames: &[(&str, Bytes)], index: usize| {
            joiner.take(&peer(from), frames[index].1.clone()).unwrap().map(|(manifest, bytes)| (manifest, bytes.len()))
        };
        assert_eq!(take("a", &one, 0), None);
        assert_eq!(take("b", &third, 0), None);
        assert_eq!(take("a", &other, 0), None);
        assert_eq!(take("a", &one, 1), Some((REGION_MANIFEST, 2 * PIECE)));
        assert_eq!(take("b", &third, 1), Some((REGION_MANIFEST, PIECE + 3)));
        assert_eq!(take("a", &other, 1), None);
        assert_eq!(take("a", &other, 2), Some((COORDINATOR_MANIFEST, 2 * PIECE + 9)));
    }

    #[test]
    fn a_lost_piece_loses_its_message_and_no_other() {
        let cutter = Cutter::default();
        let lost = cutter.frames(REGION_MANIFEST, message(3 * PIECE));
        let next = cutter.frames(REGION_MANIFEST, message(3 * PIECE));
        let mut joiner = Joiner::default();
        let mut take = |frame: &(&str, Bytes)| joiner.take(&peer("a"), frame.1.clone());
        assert_eq!(take(&lost[0]), Ok(None));
        assert!(take(&lost[2]).is_err(), "piece 1 did not come");
        assert!(take(&lost[1]).is_err(), "what came before was given up");
        assert_eq!(take(&lost[0]), Ok(None));
        assert_eq!(take(&lost[1]), Ok(None));
        assert!(take(&next[2]).is_err(), "a piece of another message completes nothing");
        assert_eq!(take(&lost[0]), Ok(None));
        assert_eq!(take(&next[0]), Ok(None), "a first piece starts anew");
        assert_eq!(take(&next[1]), Ok(None));
        assert!(matches!(take(&next[2]), Ok(Some((REGION_MANIFEST, whole))) if whole.len() == 3 * PIECE));
    }

    #[test]
    fn pieces_that_make_no_sense_are_refused_and_nothing_grows_without_end() {
        let good = Part { number: 1, index: 0, count: 2, manifest: REGION_MANIFEST.into(), piece: message(9) };
        let take = |joiner: &mut Joiner, part: &Part| joiner.take(&peer("a"), part.encode_to_vec().into());
        for bad in [
            Part { manifest: "another".into(), ..good.clone() },
            Part { manifest: PART_MANIFEST.into(), ..good.clone() },
            Part { index: 2, ..good.clone() },
            Part { count: 0, ..good.clone() },
            Part { piece: Bytes::new(), ..good.clone() },
            Part { piece: message(PIECE + 1), ..good.clone() },
        ] {
            assert!(take(&mut Joiner::default(), &bad).is_err(), "{} of {}", bad.index, bad.count);
        }
        assert!(Joiner::default().take(&peer("a"), Bytes::from_static(b"\xff")).is_err());
        let mut joiner = Joiner::default();
        let endless = Part { count: u32::MAX, piece: message(PIECE), ..good };
        let refused = (0..2000).find(|index| take(&mut joiner, &Part { index: *index, ..endless.clone() }).is_err());
        assert_eq!(refused, Some((LONGEST / PIECE) as u32));
        assert!(joiner.open.is_empty());
    }

    #[test]
    fn pieces_of_a_removed_node_are_dropped() {
        let frames = Cutter::default().frames(REGION_MANIFEST, message(PIECE + 1));
        let mut joiner = Joiner::default();
        for from in ["a", "b"] {
            assert_eq!(joiner.take(&peer(from), frames[0].1.clone()), Ok(None));
        }
        joiner.retain(|node| *node == peer("b"));
        assert!(joiner.take(&peer("a"), frames[1].1.clone()).is_err());
        assert!(joiner.take(&peer("b"), frames[1].1.clone()).unwrap().is_some());
    }
}
