//! Messages too large for one frame: cut into fragments and reassembled.
//!
//! Fragments travel over the bulk mailbox. A transfer that loses one is dropped after half a minute without progress,
//! like a message lost on the network; the replicator that needed it asks again. The memory that a peer may occupy here
//! is bounded. Source: ddata G11.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use greylag_core::UniqueAddress;
use greylag_crdt::Digest;

/// How long a transfer may rest before it is dropped.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most transfers under way per peer.
const PER_PEER: usize = 4;
/// The number of aborted transfers that are remembered.
const ABORTED: usize = 64;

/// A fragment of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) transfer: u64,
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) total_bytes: u64,
    pub(crate) digest: Digest,
    pub(crate) data: Bytes,
}

/// Cuts a message into fragments of at most `size` bytes.
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

/// All fragments of a transfer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pieces {
    pieces: BTreeMap<u32, Bytes>,
    total_bytes: u64,
    digest: Digest,
}

impl Pieces {
    /// The message, if its length and digest are as announced.
    pub(crate) fn join(self) -> Option<Bytes> {
        let mut whole = BytesMut::with_capacity(self.pieces.values().map(Bytes::len).sum());
        self.pieces.values().for_each(|piece| whole.extend_from_slice(piece));
        let is_right = whole.len() as u64 == self.total_bytes && Digest::of(&whole) == self.digest;
        is_right.then(|| whole.freeze())
    }
}

/// The outcome of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// Other fragments are missing, or the transfer was aborted before.
    InPart,
    /// The fragment was the last one.
    Whole(Pieces),
    /// The transfer is aborted: the fragment contradicts earlier ones, came twice, or exceeds a bound.
    Aborted,
}

/// The incomplete transfers.
#[derive(Debug)]
pub(crate) struct Transfers {
    under_way: BTreeMap<(UniqueAddress, u64), Transfer>,
    /// Transfers aborted lately, the newest last, so that their remaining fragments do not begin them again.
    aborted: VecDeque<(UniqueAddress, u64)>,
    max_bytes: u64,
}

impl Transfers {
    /// Accepts messages, and in sum per peer, of at most `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { under_way: BTreeMap::new(), aborted: VecDeque::new(), max_bytes: max_bytes as u64 }
    }

    /// Takes a fragment. A malformed one aborts its transfer.
    pub(crate) fn accept(&mut self, now: Instant, from: &UniqueAddress, fragment: Fragment) -> Accepted {
        self.tidy(now, |_| true);
        let key = (from.clone(), fragment.transfer);
        if self.aborted.contains(&key) {
            return Accepted::InPart;
        }
        if !self.under_way.contains_key(&key) {
            let of_peer = self.under_way.iter().filter(|((peer, _), _)| peer == from);
            let occupied: u64 = of_peer.clone().map(|(_, transfer)| transfer.total_bytes).sum();
            if of_peer.count() >= PER_PEER || occupied.saturating_add(fragment.total_bytes) > self.max_bytes {
                return self.abort(key);
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
        let Some(transfer) = self.under_way.get_mut(&key) else { return Accepted::InPart };
        let size = fragment.data.len() as u64;
        let same = (fragment.count, fragment.total_bytes, fragment.digest)
            == (transfer.count, transfer.total_bytes, transfer.digest);
        let fits = fragment.index < fragment.count && size > 0 && transfer.held_bytes + size <= transfer.total_bytes;
        if !same || !fits || transfer.pieces.contains_key(&fragment.index) {
            return self.abort(key);
        }
        transfer.pieces.insert(fragment.index, fragment.data);
        transfer.held_bytes += size;
        transfer.progress_at = now;
        if transfer.pieces.len() < transfer.count as usize {
            return Accepted::InPart;
        }
        match self.under_way.remove(&key) {
            Some(Transfer { pieces, total_bytes, digest, .. }) => {
                Accepted::Whole(Pieces { pieces, total_bytes, digest })
            }
            None => Accepted::InPart,
        }
    }

    /// Drops transfers that have rested for too long, and those of peers that `counts` rejects.
    pub(crate) fn tidy(&mut self, now: Instant, counts: impl Fn(&UniqueAddress) -> bool) {
        self.under_way.retain(|(peer, _), transfer| transfer.progress_at + PATIENCE > now && counts(peer));
    }

    fn abort(&mut self, key: (UniqueAddress, u64)) -> Accepted {
        self.under_way.remove(&key);
        self.aborted.push_back(key);
        if self.aborted.len() > ABORTED {
            self.aborted.pop_front();
        }
        Accepted::Aborted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> UniqueAddress {
        "a:1#1".parse().unwrap()
    }

    fn message() -> Bytes {
        Bytes::from((0..=255_u8).cycle().take(1_000).collect::<Vec<_>>())
    }

    /// ddata G11: fragments in any order make the message.
    #[test]
    fn pieces_in_any_order_make_the_message() {
        let mut pieces = cut(7, &message(), 300);
        assert_eq!(pieces.len(), 4);
        pieces.reverse();
        let mut transfers = Transfers::new(10_000);
        let now = Instant::now();
        let accepted = pieces.into_iter().map(|piece| transfers.accept(now, &peer(), piece));
        let whole: Vec<Pieces> = accepted
            .filter_map(|accepted| match accepted {
                Accepted::Whole(pieces) => Some(pieces),
                Accepted::InPart => None,
                Accepted::Aborted => panic!("nothing is wrong"),
            })
            .collect();
        assert_eq!(whole.into_iter().map(Pieces::join).collect::<Vec<_>>(), [Some(message())]);
        assert!(transfers.under_way.is_empty());
    }

    /// ddata G11: a fragment out of range, sent twice, of another message, or too large aborts its transfer once; no
    /// fragment is kept.
    #[test]
    fn a_malformed_fragment_aborts_its_transfer() {
        let now = Instant::now();
        let pieces = cut(7, &message(), 300);
        let odd = [
            Fragment { index: 9, ..pieces[1].clone() },
            pieces[0].clone(),
            Fragment { total_bytes: 1_001, ..pieces[1].clone() },
            Fragment { digest: Digest(1), ..pieces[1].clone() },
            Fragment { data: Bytes::from(vec![0; 1_000]), ..pieces[1].clone() },
            Fragment { data: Bytes::new(), ..pieces[1].clone() },
        ];
        for odd in odd {
            let mut transfers = Transfers::new(10_000);
            assert_eq!(transfers.accept(now, &peer(), pieces[0].clone()), Accepted::InPart);
            assert_eq!(transfers.accept(now, &peer(), odd), Accepted::Aborted);
            assert_eq!(transfers.accept(now, &peer(), pieces[1].clone()), Accepted::InPart, "told once");
            assert!(transfers.under_way.is_empty());
        }
        let whole = Fragment { count: 1, digest: Digest(1), ..cut(7, &message(), 1_000)[0].clone() };
        let Accepted::Whole(lie) = Transfers::new(10_000).accept(now, &peer(), whole) else { panic!("it is whole") };
        assert_eq!(lie.join(), None, "not what it was said to be");
    }

    /// ddata G11: the memory that a peer may occupy, and the time, are bounded.
    #[test]
    fn unfinished_transfers_are_bounded_and_dropped() {
        let now = Instant::now();
        let first = |transfer| Fragment { transfer, ..cut(7, &message(), 300)[0].clone() };
        assert_eq!(Transfers::new(999).accept(now, &peer(), first(1)), Accepted::Aborted, "too large");
        let mut transfers = Transfers::new(3_500);
        let accepted: Vec<Accepted> = (1..=4).map(|n| transfers.accept(now, &peer(), first(n))).collect();
        assert_eq!(accepted[2..], [Accepted::InPart, Accepted::Aborted], "too much at a time");
        let mut transfers = Transfers::new(1_000_000);
        let accepted: Vec<Accepted> = (1..=5).map(|n| transfers.accept(now, &peer(), first(n))).collect();
        assert_eq!(accepted[3..], [Accepted::InPart, Accepted::Aborted], "four at a time");
        (1..=200).for_each(|n| _ = transfers.accept(now, &peer(), first(n)));
        assert!(transfers.aborted.len() <= ABORTED);
        transfers.accept(now + PATIENCE, &peer(), first(900));
        assert_eq!(transfers.under_way.len(), 1, "the stalled ones are gone");
        transfers.tidy(now + PATIENCE, |_| false);
        assert!(transfers.under_way.is_empty(), "and so are transfers of an unknown peer");
        transfers.accept(now, &peer(), first(901));
        transfers.tidy(now + PATIENCE, |_| true);
        assert!(transfers.under_way.is_empty(), "though nothing more arrives");
    }
}
