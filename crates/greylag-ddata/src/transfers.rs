//! Messages too large for one frame, cut into pieces and put together again.
//!
//! Pieces travel over the bulk mailbox. A transfer that loses one is dropped after half a minute
//! without progress, like a message lost on the network; whoever needed it asks again. What a peer may
//! occupy here is bounded. Source: ddata G11.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use greylag_core::UniqueAddress;
use greylag_crdt::Digest;

/// A transfer without progress for so long is dropped.
const PATIENCE: Duration = Duration::from_secs(30);
/// Transfers under way per peer.
const PER_PEER: usize = 4;

/// A piece of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) transfer: u64,
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) total_bytes: u64,
    pub(crate) digest: Digest,
    pub(crate) data: Bytes,
}

/// Cuts a message into pieces of at most `size` bytes.
pub(crate) fn cut(transfer: u64, message: &Bytes, size: usize) -> Vec<Fragment> {
    let digest = Digest::of(message);
    let count = message.len().div_ceil(size) as u32;
    let piece = |index: u32| {
        let start = index as usize * size;
        message.slice(start..(start + size).min(message.len()))
    };
    let total_bytes = message.len() as u64;
    (0..count).map(|index| Fragment { transfer, index, count, total_bytes, digest, data: piece(index) }).collect()
}

#[derive(Debug)]
struct Transfer {
    count: u32,
    total_bytes: u64,
    digest: Digest,
    pieces: BTreeMap<u32, Bytes>,
    held_bytes: u64,
    progress_at: Instant,
}

/// Transfers that are not complete.
#[derive(Debug)]
pub(crate) struct Transfers {
    under_way: BTreeMap<(UniqueAddress, u64), Transfer>,
    max_bytes: u64,
}

impl Transfers {
    /// Takes messages, and in sum per peer, of at most `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { under_way: BTreeMap::new(), max_bytes: max_bytes as u64 }
    }

    /// Takes a piece, and returns the message if it was the last one missing. A piece that contradicts
    /// its transfer aborts it.
    pub(crate) fn accept(&mut self, now: Instant, from: &UniqueAddress, fragment: Fragment) -> Option<Bytes> {
        self.under_way.retain(|_, transfer| transfer.progress_at + PATIENCE > now);
        let key = (from.clone(), fragment.transfer);
        if !self.under_way.contains_key(&key) {
            let of_peer = self.under_way.iter().filter(|((peer, _), _)| peer == from);
            let occupied: u64 = of_peer.clone().map(|(_, transfer)| transfer.total_bytes).sum();
            if of_peer.count() >= PER_PEER || occupied.saturating_add(fragment.total_bytes) > self.max_bytes {
                return None;
            }
            let transfer = Transfer {
                count: fragment.count,
                total_bytes: fragment.total_bytes,
                digest: fragment.digest,
                pieces: BTreeMap::new(),
                held_bytes: 0,
                progress_at: now,
            };
            self.under_way.insert(key.clone(), transfer);
        }
        let transfer = self.under_way.get_mut(&key)?;
        let size = fragment.data.len() as u64;
        let same = (fragment.count, fragment.total_bytes, fragment.digest)
            == (transfer.count, transfer.total_bytes, transfer.digest);
        let fits = fragment.index < fragment.count && size > 0 && transfer.held_bytes + size <= transfer.total_bytes;
        if transfer.pieces.contains_key(&fragment.index) {
            return None;
        }
        if !same || !fits {
            self.under_way.remove(&key);
            return None;
        }
        transfer.pieces.insert(fragment.index, fragment.data);
        transfer.held_bytes += size;
        transfer.progress_at = now;
        if transfer.pieces.len() < transfer.count as usize {
            return None;
        }
        let transfer = self.under_way.remove(&key)?;
        let mut whole = BytesMut::with_capacity(transfer.held_bytes as usize);
        transfer.pieces.values().for_each(|piece| whole.extend_from_slice(piece));
        (Digest::of(&whole) == transfer.digest).then(|| whole.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> UniqueAddress {
        "a:1#1".parse().unwrap()
    }

    #[test]
    fn pieces_in_any_order_and_number_make_the_message() {
        let message = Bytes::from((0..=255_u8).cycle().take(1_000).collect::<Vec<_>>());
        let mut pieces = cut(7, &message, 300);
        assert_eq!(pieces.len(), 4);
        pieces.reverse();
        pieces.insert(1, pieces[0].clone());
        let mut transfers = Transfers::new(10_000);
        let now = Instant::now();
        let whole: Vec<Bytes> = pieces.into_iter().filter_map(|p| transfers.accept(now, &peer(), p)).collect();
        assert_eq!(whole, [message]);
        assert!(transfers.under_way.is_empty());
    }

    #[test]
    fn what_contradicts_or_exceeds_is_refused_and_what_stalls_is_dropped() {
        let message = Bytes::from(vec![1; 1_000]);
        let pieces = cut(7, &message, 300);
        let now = Instant::now();
        assert_eq!(Transfers::new(999).accept(now, &peer(), pieces[0].clone()), None);
        let mut transfers = Transfers::new(10_000);
        transfers.accept(now, &peer(), pieces[0].clone());
        transfers.accept(now, &peer(), Fragment { index: 9, ..pieces[1].clone() });
        assert!(transfers.under_way.is_empty(), "out of range aborts");
        transfers.accept(now, &peer(), pieces[0].clone());
        transfers.accept(now + PATIENCE, &peer(), Fragment { transfer: 8, ..pieces[0].clone() });
        assert_eq!(transfers.under_way.len(), 1, "the stalled one is gone");
    }
}
