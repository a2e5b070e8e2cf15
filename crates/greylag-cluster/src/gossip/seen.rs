//! The set of members that have seen a state.
//!
//! The set is one bit for each place in the sorted list of members: this part of a state differs on every node, and
//! changes with every exchange. Its digest is updated with each change. Source: cluster M4, M11, C5.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use greylag_core::UniqueAddress;

use crate::membership::places::Places;

/// A set of members.
#[derive(Clone, Default)]
pub struct Seen {
    places: Arc<Places>,
    bits: Vec<u64>,
    len: usize,
    digest: u64,
}

impl Seen {
    /// The empty set, with room for the members in `places`.
    pub(crate) fn none_of(places: &Arc<Places>) -> Self {
        Self { places: places.clone(), bits: vec![0; places.len().div_ceil(64)], len: 0, digest: 0 }
    }

    /// How many members have seen the state.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no member has seen the state.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether this member is in the set.
    pub fn contains(&self, address: &UniqueAddress) -> bool {
        self.places.find(address).is_some_and(|place| self.has(place))
    }

    /// Adds a member. True if it was not in the set.
    pub fn insert(&mut self, address: UniqueAddress) -> bool {
        let place = self.places.find(&address).unwrap_or_else(|| {
            let all = self.places.addresses().cloned().chain([address.clone()]).collect();
            self.move_to(Arc::new(all));
            self.places.find(&address).expect("it was just given a place")
        });
        self.set(place)
    }

    /// Removes a member. True if it was in the set.
    pub fn remove(&mut self, address: &UniqueAddress) -> bool {
        match self.places.find(address) {
            Some(place) if self.has(place) => {
                self.bits[place / 64] &= !(1 << (place % 64));
                self.len -= 1;
                self.digest = self.digest.wrapping_sub(self.places.hash(place));
                true
            }
            _ => false,
        }
    }

    /// Adds all members of another set.
    pub fn union(&mut self, other: &Self) {
        if !self.places.are(&other.places) {
            let places = Places::merged(&self.places, &other.places);
            let mut others = other.clone();
            others.move_to(places.clone());
            self.move_to(places);
            return self.union(&others);
        }
        for word in 0..self.bits.len() {
            let mut news = other.bits[word] & !self.bits[word];
            self.bits[word] |= news;
            self.len += news.count_ones() as usize;
            while news != 0 {
                let place = word * 64 + news.trailing_zeros() as usize;
                self.digest = self.digest.wrapping_add(self.places.hash(place));
                news &= news - 1;
            }
        }
    }

    /// Keeps the members that `keep` accepts.
    pub fn retain(&mut self, keep: impl Fn(&UniqueAddress) -> bool) {
        let gone: Vec<UniqueAddress> = self.iter().filter(|address| !keep(address)).cloned().collect();
        for address in gone {
            self.remove(&address);
        }
    }

    /// The members of the set, in order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = &UniqueAddress> {
        let has = |(place, address)| self.has(place).then_some(address);
        self.places.addresses().enumerate().filter_map(has)
    }

    /// The members as an ordinary set.
    pub fn to_set(&self) -> BTreeSet<UniqueAddress> {
        self.iter().cloned().collect()
    }

    /// The sum of the XXH3 digests of the addresses, equal for equal sets. A sum does not depend on the order, so that
    /// adding one member costs one addition.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Whether this set was made for exactly these places; then no member of it is a stranger.
    pub(crate) fn uses_places(&self, places: &Arc<Places>) -> bool {
        Arc::ptr_eq(&self.places, places)
    }

    /// Whether all members of the set have a place in `places`.
    pub(crate) fn fits(&self, places: &Places) -> bool {
        self.places.are(places) || self.places.moves_to(places).filter(|(here, _)| self.has(*here)).count() == self.len
    }

    /// Moves the set to other places. Members without a place there are dropped.
    pub(crate) fn move_to(&mut self, places: Arc<Places>) {
        if self.places.are(&places) {
            self.places = places;
            return;
        }
        let mut moved = Self::none_of(&places);
        for (_, there) in self.places.moves_to(&places).filter(|(here, _)| self.has(*here)) {
            moved.set(there);
        }
        *self = moved;
    }

    /// The bits of the places, 64 to a word, the first place lowest.
    pub(crate) fn bits(&self) -> &[u64] {
        &self.bits
    }

    /// Whether the member at this place is in the set.
    pub(crate) fn has(&self, place: usize) -> bool {
        self.bits[place / 64] & (1 << (place % 64)) != 0
    }

    fn set(&mut self, place: usize) -> bool {
        if self.has(place) {
            return false;
        }
        self.bits[place / 64] |= 1 << (place % 64);
        self.len += 1;
        self.digest = self.digest.wrapping_add(self.places.hash(place));
        true
    }
}

impl Extend<UniqueAddress> for Seen {
    fn extend<I: IntoIterator<Item = UniqueAddress>>(&mut self, addresses: I) {
        let addresses: Vec<_> = addresses.into_iter().collect();
        let known = |address: &UniqueAddress| self.places.find(address).is_some();
        if !addresses.iter().all(known) {
            let all = self.places.addresses().chain(&addresses).cloned().collect();
            self.move_to(Arc::new(all));
        }
        for address in addresses {
            self.insert(address);
        }
    }
}

impl FromIterator<UniqueAddress> for Seen {
    fn from_iter<I: IntoIterator<Item = UniqueAddress>>(addresses: I) -> Self {
        let mut seen = Self::default();
        seen.extend(addresses);
        seen
    }
}

impl PartialEq for Seen {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len
            && self.digest == other.digest
            && ((Arc::ptr_eq(&self.places, &other.places) && self.bits == other.bits) || self.iter().eq(other.iter()))
    }
}

impl Eq for Seen {}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn node(number: u8) -> UniqueAddress {
        format!("n{number}:1#{}", u64::from(number) + 1).parse().unwrap()
    }

    proptest! {
        /// After any operations the set equals an ordinary set, and its digest that of an equal set.
        #[test]
        fn seen_equals_a_btree_set(steps in prop::collection::vec((0u8..4, 0u8..90), 0..60)) {
            let mut seen = Seen::none_of(&Arc::new((0..40).map(node).collect()));
            let mut set = BTreeSet::new();
            for (what, number) in steps {
                match what {
                    0 | 1 => prop_assert_eq!(seen.insert(node(number)), set.insert(node(number))),
                    2 => prop_assert_eq!(seen.remove(&node(number)), set.remove(&node(number))),
                    _ => {
                        let mut others: Seen = (number / 2..number).map(node).collect();
                        // Half of the sets share the places, and are united word by word.
                        if number % 2 == 0 {
                            others.move_to(seen.places.clone());
                        }
                        seen.union(&others);
                        set.extend(others.to_set());
                    }
                }
                let again: Seen = set.iter().cloned().collect();
                prop_assert_eq!(&seen, &again);
                prop_assert_eq!((seen.digest(), seen.len()), (again.digest(), set.len()));
                prop_assert_eq!(seen.to_set(), set.clone());
                prop_assert_eq!(seen.contains(&node(number)), set.contains(&node(number)));
            }
        }
    }
}
