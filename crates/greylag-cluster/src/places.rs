//! Where the members of one membership stand: in the order of their addresses, and on the ring.
//!
//! Made once for each list of addresses and shared by all that is about these members: statuses
//! change without it, and who has seen a state is one bit for each place. A member is found by its
//! uid, so that no texts are compared on the way. Source: cluster F2, M4, C5.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use greylag_core::UniqueAddress;
use twox_hash::XxHash3_64;

/// Where each member stands.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// Sorted.
    addresses: Vec<UniqueAddress>,
    /// The digest of each.
    hashes: Vec<u64>,
    /// By uid, then by place, which is by address: the order of the ring.
    ring: Vec<(u64, u32)>,
}

impl Places {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Where it stands.
    pub(crate) fn find(&self, address: &UniqueAddress) -> Option<usize> {
        let uid = address.uid().get();
        let begin = self.ring.partition_point(|(other, _)| *other < uid);
        let same_uid = self.ring[begin..].iter().take_while(|(other, _)| *other == uid);
        same_uid.map(|(_, place)| *place as usize).find(|place| self.addresses[*place] == *address)
    }

    /// Who stands there.
    pub(crate) fn address(&self, place: usize) -> &UniqueAddress {
        &self.addresses[place]
    }

    /// The digest of who stands there.
    pub(crate) fn hash(&self, place: usize) -> u64 {
        self.hashes[place]
    }

    /// They, in order.
    pub(crate) fn addresses(&self) -> &[UniqueAddress] {
        &self.addresses
    }

    /// All others, once around the ring, beginning after `node`.
    pub(crate) fn after<'a>(&'a self, node: &'a UniqueAddress) -> impl Iterator<Item = &'a UniqueAddress> {
        let begin = self.ring.partition_point(|(uid, place)| {
            uid.cmp(&node.uid().get()).then_with(|| self.addresses[*place as usize].cmp(node)) != Ordering::Greater
        });
        let around = self.ring[begin..].iter().chain(&self.ring[..begin]);
        around.map(|(_, place)| &self.addresses[*place as usize]).filter(move |other| *other != node)
    }

    /// Of addresses that are sorted, and each of them there once.
    pub(crate) fn of_sorted(addresses: Vec<UniqueAddress>) -> Self {
        let mut bytes = Vec::new();
        let mut hash = |address: &UniqueAddress| {
            bytes.clear();
            address.write_order_bytes(&mut bytes);
            XxHash3_64::oneshot(&bytes)
        };
        let hashes = addresses.iter().map(&mut hash).collect();
        let mut ring: Vec<(u64, u32)> = addresses.iter().map(|address| address.uid().get()).zip(0..).collect();
        ring.sort_unstable();
        Self { addresses, hashes, ring }
    }
}

impl FromIterator<UniqueAddress> for Places {
    fn from_iter<I: IntoIterator<Item = UniqueAddress>>(addresses: I) -> Self {
        let addresses: BTreeSet<_> = addresses.into_iter().collect();
        Self::of_sorted(addresses.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> UniqueAddress {
        text.parse().unwrap()
    }

    /// cluster F2.
    #[test]
    fn the_ring_goes_around_by_uid_and_leaves_the_node_itself_out() {
        let (a, b, c) = (node("a:1#3"), node("b:1#1"), node("c:1#2"));
        let places: Places = [a.clone(), b.clone(), c.clone()].into_iter().collect();
        assert_eq!(places.after(&c).collect::<Vec<_>>(), [&a, &b]);
        assert_eq!(places.after(&a).collect::<Vec<_>>(), [&b, &c]);
        assert_eq!(places.after(&node("z:1#2")).collect::<Vec<_>>(), [&a, &b, &c], "also for one who is not on it");
    }

    #[test]
    fn processes_with_one_uid_at_different_addresses_are_told_apart() {
        let places: Places = [node("b:1#7"), node("a:1#7"), node("a:1#8")].into_iter().collect();
        assert_eq!(places.find(&node("a:1#7")), Some(0));
        assert_eq!(places.find(&node("a:1#8")), Some(1));
        assert_eq!(places.find(&node("b:1#7")), Some(2));
        assert_eq!(places.find(&node("b:1#8")), None);
        assert_eq!(places.after(&node("a:1#7")).collect::<Vec<_>>(), [&node("b:1#7"), &node("a:1#8")]);
    }
}
