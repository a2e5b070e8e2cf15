//! The hash of the table of peers, which is on the path of every message.

use std::hash::{BuildHasher, Hasher, RandomState};

use twox_hash::XxHash3_64;

/// Hashes addresses, which are short, at a fifth of the standard hash's cost. The seed is random, so a peer cannot
/// choose addresses that collide.
#[derive(Debug, Clone)]
pub(crate) struct RandomAddressHash {
    seed: u64,
}

impl Default for RandomAddressHash {
    fn default() -> Self {
        Self { seed: RandomState::new().hash_one(0) }
    }
}

impl BuildHasher for RandomAddressHash {
    type Hasher = AddressHasher;

    fn build_hasher(&self) -> AddressHasher {
        AddressHasher(self.seed)
    }
}

/// See [`RandomAddressHash`].
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = XxHash3_64::oneshot_with_seed(self.0, bytes);
    }

    // Mix numbers in as they are: each follows a text, so being different suffices.
    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(ODD);
    }

    fn finish(&self) -> u64 {
        // Fold: the table takes its place from the low bits and its tag from the high ones.
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use greylag_core::NodeAddress;

    use super::*;

    #[test]
    fn addresses_of_one_host_or_one_port_spread() {
        let hash = RandomAddressHash::default();
        let addresses = (1..=100_u16).flat_map(|host| (1..=100_u16).map(move |port| format!("10.0.0.{host}:{port}")));
        let hashes: HashSet<u64> = addresses.map(|text| hash.hash_one(text.parse::<NodeAddress>().unwrap())).collect();
        assert_eq!(hashes.len(), 10_000);
        let places: HashSet<u64> = hashes.iter().map(|hash| hash % 4096).collect();
        assert!(places.len() > 3500, "10,000 at random meet about 3,740 of 4,096 places: {}", places.len());
        assert_ne!(hash.hash_one(1_u64), RandomAddressHash::default().hash_one(1_u64), "the seed is chance");
    }
}
