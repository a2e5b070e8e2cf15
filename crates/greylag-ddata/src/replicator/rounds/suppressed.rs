//! Suppressed differences: exchanging the entries does not end them, for example because this replica does not know
//! their type. They are left alone for some rounds. Source: ddata G14.

use std::collections::BTreeMap;

use greylag_core::UniqueAddress;
use greylag_crdt::Digest;

/// A difference that an exchange with a peer did not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Difference {
    own: Option<Digest>,
    /// The peer's digest, learned from the first list after the refusal.
    theirs: Option<Digest>,
    /// When the entry, which arrived expired, was last used; a use since then ends the suppression.
    used_ms: Option<i64>,
    rounds_left: u32,
}

impl Difference {
    pub(super) fn new(own: Option<Digest>, used_ms: Option<i64>, rounds_left: u32) -> Self {
        Self { own, theirs: None, used_ms, rounds_left }
    }

    /// Whether two listed entries are still this difference.
    pub(super) fn is_same(&mut self, own: Option<Digest>, theirs: Option<Digest>, used_ms: Option<i64>) -> bool {
        let same = self.own == own
            && (self.theirs.is_none() || self.theirs == theirs)
            && (self.used_ms.is_none() || used_ms <= self.used_ms);
        self.theirs = theirs;
        same
    }
}

/// The suppressed differences, by peer and by the hash of the key.
#[derive(Debug, Default)]
pub(super) struct SuppressedDifferences(BTreeMap<UniqueAddress, BTreeMap<u64, Difference>>);

/// The most differences per peer. Further ones are exchanged in every round, which costs traffic and no memory.
const PER_PEER: usize = 65_536;

impl SuppressedDifferences {
    pub(super) fn add(&mut self, peer: &UniqueAddress, hash: u64, difference: Difference) {
        let known = self.0.entry(peer.clone()).or_default();
        if known.len() < PER_PEER || known.contains_key(&hash) {
            known.insert(hash, difference);
        }
    }

    pub(super) fn get_mut(&mut self, peer: &UniqueAddress, hash: u64) -> Option<&mut Difference> {
        self.0.get_mut(peer)?.get_mut(&hash)
    }

    /// Counts a round with the peer.
    pub(super) fn on_round(&mut self, peer: &UniqueAddress) {
        let Some(known) = self.0.get_mut(peer) else { return };
        known.retain(|_, difference| {
            difference.rounds_left = difference.rounds_left.saturating_sub(1);
            difference.rounds_left > 0
        });
        if known.is_empty() {
            self.0.remove(peer);
        }
    }

    /// Forgets a peer that is gone.
    pub(super) fn forget(&mut self, peer: &UniqueAddress) {
        self.0.remove(peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata G14: a peer that differs in everything neither fills the memory nor takes the room of other peers.
    #[test]
    fn suppressed_differences_are_bounded_by_peer() {
        let mut left = SuppressedDifferences::default();
        let peers: [UniqueAddress; 2] = ["b:1#2".parse().unwrap(), "c:1#3".parse().unwrap()];
        for hash in 0..PER_PEER as u64 + 9 {
            left.add(&peers[0], hash, Difference::new(None, None, 1));
        }
        assert_eq!(left.0[&peers[0]].len(), PER_PEER);
        let renewed = Difference::new(None, None, 7);
        left.add(&peers[0], 3, renewed);
        assert_eq!(left.get_mut(&peers[0], 3), Some(&mut renewed.clone()), "what is known is renewed");
        left.add(&peers[1], PER_PEER as u64 + 1, renewed);
        assert!(left.get_mut(&peers[1], PER_PEER as u64 + 1).is_some(), "another peer has room of its own");
        left.on_round(&peers[0]);
        assert_eq!(left.0[&peers[0]].len(), 1, "after its rounds it is exchanged again");
    }
}
