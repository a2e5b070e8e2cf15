//! Draws random members.
//!
//! Gossip goes to a random one of all members but a few. With one bit per member, a draw costs one word per 64 members,
//! once a second. Source: cluster M11, C5.

use greylag_core::UniqueAddress;
use rand::{Rng, RngExt};

use crate::gossip::seen::Seen;
use crate::membership::places::Places;

/// A subset of the members in `places`.
pub(crate) struct MemberSubset<'a> {
    places: &'a Places,
    bits: Vec<u64>,
    len: usize,
}

impl<'a> MemberSubset<'a> {
    /// All members in `places` but `others`.
    pub(crate) fn all_but<'b>(places: &'a Places, others: impl Iterator<Item = &'b UniqueAddress>) -> Self {
        let mut bits = vec![u64::MAX; places.len().div_ceil(64)];
        if let Some(last) = bits.last_mut() {
            *last >>= (64 - places.len() % 64) % 64;
        }
        let mut len = places.len();
        for place in others.filter_map(|other| places.find(other)) {
            let bit = 1 << (place % 64);
            len -= usize::from(bits[place / 64] & bit != 0);
            bits[place / 64] &= !bit;
        }
        Self { places, bits, len }
    }

    /// The chosen members that are not in `seen`, which has the same places.
    pub(crate) fn without(&self, seen: &Seen) -> Self {
        let bits: Vec<u64> = self.bits.iter().zip(seen.bits()).map(|(ours, theirs)| ours & !theirs).collect();
        let len = bits.iter().map(|word| word.count_ones() as usize).sum();
        Self { places: self.places, bits, len }
    }

    /// Whether no member is chosen.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Draws one of the chosen members.
    pub(crate) fn draw(&self, rng: &mut impl Rng) -> Option<&'a UniqueAddress> {
        if self.is_empty() {
            return None;
        }
        let mut nth = rng.random_range(..self.len);
        for (index, word) in self.bits.iter().enumerate() {
            let ones = word.count_ones() as usize;
            if nth < ones {
                let lowest_cleared = (0..nth).fold(*word, |word, _| word & (word - 1));
                return Some(self.places.address(index * 64 + lowest_cleared.trailing_zeros() as usize));
            }
            nth -= ones;
        }
        unreachable!("there are as many bits as are counted")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rand::SeedableRng;
    use rand::seq::IndexedRandom;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn node(number: u64) -> UniqueAddress {
        format!("n{number:03}:1#{}", number * 7919 % 1009 + 1).parse().unwrap()
    }

    /// cluster M11: a draw yields the same as a draw from a list of the same members, at any size.
    #[test]
    fn a_draw_is_that_of_a_list() {
        for members in [0, 1, 2, 63, 64, 65, 128, 200] {
            let places: Arc<Places> = Arc::new((0..members).map(node).collect());
            let but = [node(0), node(3), node(63), node(64), node(999)];
            let mut seen = Seen::none_of(&places);
            seen.union(&(0..members).filter(|number| number % 3 == 0).map(node).collect());
            let all = MemberSubset::all_but(&places, but.iter());
            let rest = all.without(&seen);
            let all_list: Vec<_> = places.addresses().filter(|address| !but.contains(address)).collect();
            let rest_list: Vec<_> = all_list.iter().copied().filter(|address| !seen.contains(address)).collect();
            let (mut rng, mut same) = (ChaCha8Rng::seed_from_u64(members), ChaCha8Rng::seed_from_u64(members));
            for _ in 0..300 {
                assert_eq!(all.draw(&mut rng), all_list.choose(&mut same).copied());
                assert_eq!(rest.draw(&mut rng), rest_list.choose(&mut same).copied());
            }
        }
    }
}
