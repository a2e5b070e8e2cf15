//! The places of the members of one membership: in the order of their addresses, and on the ring.
//!
//! Places are made once for each list of addresses, and all data about these members shares them: statuses change
//! without new places, and a set of members is one bit for each place. A member is found by its uid, so that no texts
//! are compared on the way. Places that differ by some members are derived from the ones before and share the other
//! entries with them, so that comparing or merging two lists costs a comparison of references for each member. Source:
//! cluster F2, M4, C5.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use greylag_core::UniqueAddress;
use twox_hash::XxHash3_64;

use crate::testing::side_by_side::shared_side_by_side;

/// One address, shared by all memberships that it is part of.
#[derive(Debug, PartialEq, Eq)]
struct PlacedAddress {
    address: UniqueAddress,
    /// The digest of the address.
    hash: u64,
}

/// The place of each member.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// Sorted by address.
    entries: Vec<Arc<PlacedAddress>>,
    /// Places in the order of the ring: by uid, then by place, which is by address.
    ring: Vec<u32>,
}

impl Places {
    /// The number of members.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn uid(&self, place: u32) -> u64 {
        self.address(place as usize).uid().get()
    }

    /// The place of an address.
    pub(crate) fn find(&self, address: &UniqueAddress) -> Option<usize> {
        let uid = address.uid().get();
        let begin = self.ring.partition_point(|place| self.uid(*place) < uid);
        let same_uid = self.ring[begin..].iter().take_while(|place| self.uid(**place) == uid);
        same_uid.map(|place| *place as usize).find(|place| self.address(*place) == address)
    }

    /// The address at this place.
    pub(crate) fn address(&self, place: usize) -> &UniqueAddress {
        &self.entries[place].address
    }

    /// The digest of the address at this place.
    pub(crate) fn hash(&self, place: usize) -> u64 {
        self.entries[place].hash
    }

    /// The addresses, in order.
    pub(crate) fn addresses(&self) -> impl ExactSizeIterator<Item = &UniqueAddress> {
        self.entries.iter().map(|entry| &entry.address)
    }

    /// Whether both have the same members.
    pub(crate) fn are(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || self.entries == other.entries
    }

    /// All others, once around the ring, beginning after `node`.
    pub(crate) fn after<'a>(&'a self, node: &'a UniqueAddress) -> impl Iterator<Item = &'a UniqueAddress> {
        let begin = self.ring.partition_point(|place| self.ring_order(*place, node) != Ordering::Greater);
        let around = self.ring[begin..].iter().chain(&self.ring[..begin]);
        around.map(|place| self.address(*place as usize)).filter(move |other| *other != node)
    }

    fn ring_order(&self, place: u32, node: &UniqueAddress) -> Ordering {
        self.uid(place).cmp(&node.uid().get()).then_with(|| self.address(place as usize).cmp(node))
    }

    /// The places of sorted addresses without duplicates.
    pub(crate) fn of_sorted<'a>(addresses: impl Iterator<Item = &'a UniqueAddress>) -> Self {
        let mut bytes = Vec::new();
        Self::of_entries(addresses.map(|address| Arc::new(PlacedAddress::new(address.clone(), &mut bytes))).collect())
    }

    fn of_entries(entries: Vec<Arc<PlacedAddress>>) -> Self {
        let mut ring: Vec<(u64, u32)> = entries.iter().map(|entry| entry.address.uid().get()).zip(0..).collect();
        ring.sort_unstable();
        Self { entries, ring: ring.into_iter().map(|(_, place)| place).collect() }
    }

    /// A copy with one more address, at `place`.
    pub(crate) fn with(&self, place: usize, address: &UniqueAddress) -> Self {
        let new = number(place);
        let mut entries = Vec::with_capacity(self.len() + 1);
        entries.extend_from_slice(&self.entries[..place]);
        entries.push(Arc::new(PlacedAddress::new(address.clone(), &mut Vec::new())));
        entries.extend_from_slice(&self.entries[place..]);
        let begin = self.ring.partition_point(|other| self.ring_order(*other, address) == Ordering::Less);
        let moved = |place: &u32| place + u32::from(*place >= new);
        let mut ring = Vec::with_capacity(entries.len());
        ring.extend(self.ring[..begin].iter().map(moved));
        ring.push(new);
        ring.extend(self.ring[begin..].iter().map(moved));
        Self { entries, ring }
    }

    /// A copy without the addresses at whose places `keep` returns false.
    pub(crate) fn retained(&self, keep: impl Fn(usize) -> bool) -> Self {
        let kept = (0..self.len()).filter(|place| keep(*place)).map(|place| self.entries[place].clone());
        Self::of_entries(kept.collect())
    }

    /// The addresses of both sides. Returns one side itself if it has all of them.
    pub(crate) fn merged(one: &Arc<Self>, other: &Arc<Self>) -> Arc<Self> {
        if Arc::ptr_eq(one, other) {
            return one.clone();
        }
        let both = walk(one, other).count();
        if both == one.len() {
            return one.clone();
        } else if both == other.len() {
            return other.clone();
        }
        let mut entries: Vec<Arc<PlacedAddress>> = Vec::with_capacity(both);
        let (mut from_one, mut from_other) = (Vec::with_capacity(one.len()), Vec::with_capacity(other.len()));
        for (left, right) in walk(one, other) {
            let place = number(entries.len());
            from_one.extend(left.map(|_| place));
            from_other.extend(right.map(|_| place));
            entries.extend(left.or(right).cloned());
        }
        let ring = merge_rings(&entries, [(&one.ring, &from_one), (&other.ring, &from_other)]);
        Arc::new(Self { entries, ring })
    }

    /// For each address that is in both: its place here and its place there.
    pub(crate) fn moves_to<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (usize, usize)> + 'a {
        let (mut here, mut there) = (0, 0);
        walk(self, other).filter_map(move |(left, right)| {
            let places = (here, there);
            here += usize::from(left.is_some());
            there += usize::from(right.is_some());
            (left.is_some() && right.is_some()).then_some(places)
        })
    }
}

impl PlacedAddress {
    fn new(address: UniqueAddress, bytes: &mut Vec<u8>) -> Self {
        bytes.clear();
        address.write_order_bytes(bytes);
        Self { hash: XxHash3_64::oneshot(bytes), address }
    }
}

fn number(place: usize) -> u32 {
    u32::try_from(place).expect("fewer members than 2^32")
}

/// Walks both lists side by side, by address.
fn walk<'a>(
    left: &'a Places,
    right: &'a Places,
) -> impl Iterator<Item = (Option<&'a Arc<PlacedAddress>>, Option<&'a Arc<PlacedAddress>>)> {
    shared_side_by_side(&left.entries, &right.entries, |left, right| left.address.cmp(&right.address))
}

/// Merges two rings, each given with the new places of its members.
fn merge_rings(entries: &[Arc<PlacedAddress>], [one, other]: [(&[u32], &[u32]); 2]) -> Vec<u32> {
    let places = |(ring, moved): (&'_ [u32], &'_ [u32])| ring.iter().map(|place| moved[*place as usize]).collect();
    let (one, other): (Vec<u32>, Vec<u32>) = (places(one), places(other));
    let key = |place: u32| (entries[place as usize].address.uid().get(), place);
    let mut ring = Vec::with_capacity(entries.len());
    let (mut one, mut other) = (one.into_iter().peekable(), other.into_iter().peekable());
    loop {
        let order = match (one.peek(), other.peek()) {
            (None, None) => return ring,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(one), Some(other)) if one == other => Ordering::Equal,
            (Some(one), Some(other)) => key(*one).cmp(&key(*other)),
        };
        let from_one = if order.is_le() { one.next() } else { None };
        let from_other = if order.is_ge() { other.next() } else { None };
        ring.extend(from_one.or(from_other));
    }
}

impl FromIterator<UniqueAddress> for Places {
    fn from_iter<I: IntoIterator<Item = UniqueAddress>>(addresses: I) -> Self {
        let addresses: BTreeSet<_> = addresses.into_iter().collect();
        Self::of_sorted(addresses.iter())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(text: &str) -> UniqueAddress {
        text.parse().unwrap()
    }

    /// An address that shares its uid with some others.
    fn numbered(number: &u8) -> UniqueAddress {
        node(&format!("n{number}:1#{}", number % 23 + 1))
    }

    fn places(numbers: &BTreeSet<u8>) -> Arc<Places> {
        Arc::new(numbers.iter().map(numbered).collect())
    }

    proptest! {
        /// Places derived from other places equal places made from the addresses alone.
        #[test]
        fn derived_places_equal_places_made_from_addresses(
            one in prop::collection::btree_set(0u8..60, 0..40),
            other in prop::collection::btree_set(0u8..60, 0..40),
        ) {
            let mut grown = Places::default();
            for address in one.iter().map(numbered) {
                let place = grown.addresses().position(|before| *before > address).unwrap_or(grown.len());
                grown = grown.with(place, &address);
            }
            prop_assert_eq!(&grown, &*places(&one));
            let (left, right) = (Arc::new(grown), places(&other));
            let merged = Places::merged(&left, &right);
            prop_assert_eq!(&merged, &places(&one.union(&other).copied().collect()));
            prop_assert_eq!(Arc::ptr_eq(&merged, &left), one.is_superset(&other));
            let addresses: Vec<_> = merged.addresses().cloned().collect();
            let kept = merged.retained(|place| left.find(&addresses[place]).is_some());
            prop_assert_eq!(&kept, &*left);
            for (here, there) in left.moves_to(&right) {
                prop_assert_eq!(left.address(here), right.address(there));
            }
            prop_assert_eq!(left.moves_to(&right).count(), one.intersection(&other).count());
        }
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
