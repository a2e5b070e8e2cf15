//! Entity id to slot: open addressing, eight bytes per place.
//!
//! The hash is seeded per process, so ids aimed at one shard cost that shard and no quadratic
//! lookups (sharding §1.4). The table is split by the hash' upper bits into parts that grow one at a
//! time, so no insert ever copies the whole of it (sharding §10). Removal shifts the places behind
//! it back, so nothing is left that lookups must step over.

const PARTS: usize = 16;
const FIRST_CAPACITY: usize = 8;
const FREE: u32 = u32::MAX;

/// A place: the hash' lower half, and the slot.
#[derive(Clone, Copy)]
struct IndexEntry {
    hash: u32,
    slot: u32,
}

#[derive(Default)]
struct Part {
    places: Vec<IndexEntry>,
    len: usize,
}

/// See the module's description. The index stores no ids: the caller of a look-up says how to compare.
#[derive(Default)]
pub(super) struct Index {
    parts: Vec<Part>,
}

impl Index {
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let part = self.parts.get(part_of(hash))?;
        let at = part.position(hash as u32, is_it)?;
        Some(part.places[at].slot)
    }

    /// Adds a slot that is not in the index.
    pub(super) fn insert(&mut self, hash: u64, slot: u32) {
        if self.parts.is_empty() {
            self.parts.resize_with(PARTS, Part::default);
        }
        self.parts[part_of(hash)].insert(IndexEntry { hash: hash as u32, slot });
    }

    /// Removes a slot.
    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        if let Some(part) = self.parts.get_mut(part_of(hash)) {
            part.remove(hash as u32, slot);
        }
    }
}

fn part_of(hash: u64) -> usize {
    (hash >> 60) as usize
}

impl Part {
    fn mask(&self) -> usize {
        self.places.len() - 1
    }

    fn position(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let mut at = hash as usize & self.mask();
        loop {
            let place = self.places[at];
            if place.slot == FREE {
                return None;
            }
            if place.hash == hash && is_it(place.slot) {
                return Some(at);
            }
            at = (at + 1) & self.mask();
        }
    }

    fn insert(&mut self, place: IndexEntry) {
        if (self.len + 1) * 8 > self.places.len() * 7 {
            self.grow();
        }
        self.put(place);
        self.len += 1;
    }

    fn put(&mut self, place: IndexEntry) {
        let mut at = place.hash as usize & self.mask();
        while self.places[at].slot != FREE {
            at = (at + 1) & self.mask();
        }
        self.places[at] = place;
    }

    fn grow(&mut self) {
        let capacity = (self.places.len() * 2).max(FIRST_CAPACITY);
        let free = IndexEntry { hash: 0, slot: FREE };
        let old = std::mem::replace(&mut self.places, vec![free; capacity]);
        for place in old.into_iter().filter(|place| place.slot != FREE) {
            self.put(place);
        }
    }

    fn remove(&mut self, hash: u32, slot: u32) {
        let Some(mut hole) = self.position(hash, |found| found == slot) else { return };
        let mask = self.mask();
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let place = self.places[at];
            if place.slot == FREE {
                break;
            }
            // A place may fill the hole unless that would put it ahead of where its probe begins.
            let home = place.hash as usize & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.places[hole] = place;
                hole = at;
            }
        }
        self.places[hole] = IndexEntry { hash: 0, slot: FREE };
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a map, with hashes that collide a lot.
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0_u64..60, any::<bool>()), 0..400)) {
            let hash = |key: u64| (key % 3) << 60 | (key % 7);
            let mut index = Index::default();
            let mut model = BTreeMap::new();
            for (key, insert) in steps {
                let slot = u32::try_from(key).unwrap();
                if insert {
                    if model.insert(key, slot).is_none() {
                        index.insert(hash(key), slot);
                    }
                } else if model.remove(&key).is_some() {
                    index.remove(hash(key), slot);
                }
                for key in 0..60 {
                    let slot = u32::try_from(key).unwrap();
                    prop_assert_eq!(index.find(hash(key), |found| found == slot), model.get(&key).copied());
                }
            }
        }
    }
}
