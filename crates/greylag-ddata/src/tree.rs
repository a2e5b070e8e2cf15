//! Sums over the hash space of ids, by which two replicas find what differs between them.
//!
//! A 16-ary trie over XXH3-64 of the ids. Each node holds a count and a wrapping sum of digests;
//! nodes with at most 64 keys are not split. Equal roots mean equal data, and a difference is found
//! in as many steps as the trie is deep, whatever the number of keys. Source: ddata G9.

use std::collections::BTreeMap;
use std::fmt;

use greylag_crdt::{Digest, hash64};

use crate::key::KeyId;

/// Nodes with more keys are split.
pub(crate) const LEAF_KEYS: usize = 64;
/// Sixteen levels of four bits exhaust the hash.
const MAX_DEPTH: u8 = 16;

/// A part of the hash space: all hashes that begin with these nibbles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    bits: u64,
    depth: u8,
}

impl Prefix {
    /// The whole space.
    pub const ROOT: Self = Self { bits: 0, depth: 0 };

    /// The part whose hashes begin with the first `depth` nibbles of `bits`; `None` if there are more
    /// than 16, or if bits are set below them.
    pub fn new(bits: u64, depth: u8) -> Option<Self> {
        (depth <= MAX_DEPTH && bits & !Self::mask(depth) == 0).then_some(Self { bits, depth })
    }

    /// The leading bits, all others 0.
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// How many nibbles are fixed.
    pub fn depth(self) -> u8 {
        self.depth
    }

    fn mask(depth: u8) -> u64 {
        u64::MAX.checked_shl(64 - 4 * u32::from(depth)).unwrap_or(0)
    }

    pub(crate) fn contains(self, hash: u64) -> bool {
        hash & Self::mask(self.depth) == self.bits
    }

    /// The sixteen parts of this part; none of the deepest.
    pub(crate) fn children(self) -> impl DoubleEndedIterator<Item = Self> {
        let depth = self.depth + 1;
        let children = if depth <= MAX_DEPTH { 0..16_u64 } else { 0..0 };
        children.map(move |nibble| Self { bits: self.bits | nibble << (64 - 4 * u32::from(depth)), depth })
    }

    pub(crate) fn is_deepest(self) -> bool {
        self.depth == MAX_DEPTH
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:016x}", self.bits);
        write!(f, "{}*", &hex[..usize::from(self.depth)])
    }
}

/// Any of the sixteen parts of the hash space that differ in their first nibble: what a round is about.
/// Source: ddata G13.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sixteenths(u16);

impl Sixteenths {
    /// The whole space.
    pub const ALL: Self = Self(u16::MAX);

    /// Those whose bits are set.
    pub fn of(bits: u16) -> Self {
        Self(bits)
    }

    /// A bit for each.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// One of `of` about equal shares, which are disjoint and make up the whole; `of` is 1 to 16.
    pub fn share(index: usize, of: usize) -> Self {
        let (from, to) = (16 * index / of, 16 * (index + 1) / of);
        Self((from..to).fold(0, |bits, nibble| bits | 1 << nibble))
    }

    /// Whether one of the sixteen is among them.
    pub(crate) fn contains(self, sixteenth: Prefix) -> bool {
        self.0 >> (sixteenth.bits >> 60) & 1 == 1
    }

    /// The parts, as they stand in the trie.
    pub(crate) fn prefixes(self) -> impl Iterator<Item = Prefix> {
        let parts = Prefix::ROOT.children().enumerate();
        parts.filter(move |(nibble, _)| self.0 >> nibble & 1 == 1).map(|(_, part)| part)
    }
}

impl fmt::Debug for Sixteenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016b}", self.0)
    }
}

/// How much there is in a part, and the wrapping sum of its digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// How many entries.
    pub count: u64,
    /// The sum of their digests.
    pub total: Digest,
}

/// What the trie knows of an entry: the hash of its id, its id, and its digest.
pub(crate) type Item = (u64, KeyId, Digest);

#[derive(Debug)]
enum Node {
    Leaf { sum: Sum, items: BTreeMap<(u64, KeyId), Digest> },
    Inner { sum: Sum, children: Box<[Node; 16]> },
}

impl Default for Node {
    fn default() -> Self {
        Self::Leaf { sum: Sum::default(), items: BTreeMap::new() }
    }
}

/// The trie.
#[derive(Debug, Default)]
pub(crate) struct SyncTree {
    root: Node,
}

/// The digest that a sum counts: id and entry together, so equal values under two ids differ.
fn counted(id: &str, digest: Digest) -> Digest {
    let mut bytes = Vec::with_capacity(id.len() + 17);
    bytes.extend_from_slice(id.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&digest.0.to_be_bytes());
    Digest::of(&bytes)
}

impl SyncTree {
    /// Sets the digest of an entry, or forgets it.
    pub(crate) fn set(&mut self, id: &KeyId, digest: Option<Digest>) {
        self.root.set(0, hash64(id.as_bytes()), id, digest);
    }

    /// The sum over a part.
    pub(crate) fn sum(&self, prefix: Prefix) -> Sum {
        let mut node = &self.root;
        for depth in 0..prefix.depth {
            match node {
                Node::Leaf { items, .. } => return sum_of(items, prefix),
                Node::Inner { children, .. } => node = &children[nibble(prefix.bits, depth)],
            }
        }
        node.sum()
    }

    /// The sum over several parts.
    pub(crate) fn sum_of(&self, parts: Sixteenths) -> Sum {
        if parts == Sixteenths::ALL {
            return self.root.sum();
        }
        parts
            .prefixes()
            .map(|part| self.sum(part))
            .fold(Sum::default(), |all, part| Sum { count: all.count + part.count, total: all.total.plus(part.total) })
    }

    /// The entries of a part, in the order of their hashes.
    pub(crate) fn items(&self, prefix: Prefix) -> Vec<Item> {
        let mut found = Vec::new();
        let mut node = &self.root;
        for depth in 0..prefix.depth {
            match node {
                Node::Leaf { .. } => break,
                Node::Inner { children, .. } => node = &children[nibble(prefix.bits, depth)],
            }
        }
        node.collect(prefix, &mut found);
        found
    }
}

fn nibble(hash: u64, depth: u8) -> usize {
    (hash >> (60 - 4 * u32::from(depth)) & 0xf) as usize
}

fn sum_of(items: &BTreeMap<(u64, KeyId), Digest>, prefix: Prefix) -> Sum {
    let mut sum = Sum::default();
    for ((_, id), digest) in items.iter().filter(|((hash, _), _)| prefix.contains(*hash)) {
        sum.count += 1;
        sum.total = sum.total.plus(counted(id, *digest));
    }
    sum
}

impl Node {
    fn sum(&self) -> Sum {
        match self {
            Self::Leaf { sum, .. } | Self::Inner { sum, .. } => *sum,
        }
    }

    /// Returns the sums before and after, of the part that changed.
    fn set(&mut self, depth: u8, hash: u64, id: &KeyId, digest: Option<Digest>) {
        match self {
            Self::Leaf { sum, items } => {
                let former = match digest {
                    Some(digest) => items.insert((hash, id.clone()), digest),
                    None => items.remove(&(hash, id.clone())),
                };
                if let Some(former) = former {
                    sum.count -= 1;
                    sum.total = sum.total.minus(counted(id, former));
                }
                if let Some(digest) = digest {
                    sum.count += 1;
                    sum.total = sum.total.plus(counted(id, digest));
                }
                if items.len() > LEAF_KEYS && depth < MAX_DEPTH {
                    self.split(depth);
                }
            }
            Self::Inner { sum, children } => {
                let child = &mut children[nibble(hash, depth)];
                let before = child.sum();
                child.set(depth + 1, hash, id, digest);
                let after = child.sum();
                sum.count = sum.count - before.count + after.count;
                sum.total = sum.total.minus(before.total).plus(after.total);
                if sum.count <= LEAF_KEYS as u64 {
                    self.fuse();
                }
            }
        }
    }

    fn split(&mut self, depth: u8) {
        if let Self::Leaf { sum, items } = std::mem::take(self) {
            let mut children: Box<[Self; 16]> = Box::default();
            for ((hash, id), digest) in items {
                children[nibble(hash, depth)].set(depth + 1, hash, &id, Some(digest));
            }
            *self = Self::Inner { sum, children };
        }
    }

    fn fuse(&mut self) {
        let (sum, mut found) = (self.sum(), Vec::new());
        self.collect(Prefix::ROOT, &mut found);
        let items = found.into_iter().map(|(hash, id, digest)| ((hash, id), digest)).collect();
        *self = Self::Leaf { sum, items };
    }

    fn collect(&self, prefix: Prefix, found: &mut Vec<Item>) {
        match self {
            Self::Leaf { items, .. } => {
                let inside = items.iter().filter(|((hash, _), _)| prefix.contains(*hash));
                found.extend(inside.map(|((hash, id), digest)| (*hash, id.clone(), *digest)));
            }
            Self::Inner { children, .. } => children.iter().for_each(|child| child.collect(prefix, found)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_depend_on_what_is_held_and_on_nothing_else(ops in prop::collection::vec((0..400_u32, 0..4_u8), 0..900)) {
            let mut tree = SyncTree::default();
            let mut model = BTreeMap::new();
            for (key, op) in ops {
                let id: KeyId = format!("key-{key}").into();
                if op == 0 {
                    model.remove(&id);
                    tree.set(&id, None);
                } else {
                    model.insert(id.clone(), Digest(op.into()));
                    tree.set(&id, Some(Digest(op.into())));
                }
            }
            let mut fresh = SyncTree::default();
            model.iter().for_each(|(id, digest)| fresh.set(id, Some(*digest)));
            let mut parts = vec![Prefix::ROOT];
            while let Some(part) = parts.pop() {
                let sum = tree.sum(part);
                prop_assert_eq!(sum, fresh.sum(part));
                prop_assert_eq!(sum.count as usize, tree.items(part).len());
                if sum.count > 1 && !part.is_deepest() {
                    let whole = part.children().map(|child| tree.sum(child)).fold(Sum::default(), |a, b| Sum {
                        count: a.count + b.count,
                        total: a.total.plus(b.total),
                    });
                    prop_assert_eq!(sum, whole);
                    parts.extend(part.children());
                }
            }
            prop_assert_eq!(tree.sum(Prefix::ROOT).count as usize, model.len());
        }
    }

    /// ddata G13: shares are disjoint and leave nothing out.
    #[test]
    fn shares_make_up_the_whole() {
        let mut tree = SyncTree::default();
        (0..500_u32).for_each(|key| tree.set(&format!("key-{key}").into(), Some(Digest(key.into()))));
        for of in 1..=16 {
            let shares: Vec<Sixteenths> = (0..of).map(|index| Sixteenths::share(index, of)).collect();
            assert_eq!(shares.iter().fold(0, |all, share| all ^ share.bits()), u16::MAX);
            assert_eq!(shares.iter().map(|share| tree.sum_of(*share).count).sum::<u64>(), 500);
        }
    }

    #[test]
    fn a_prefix_read_from_a_message_is_checked() {
        assert_eq!(Prefix::new(0x1000_0000_0000_0000, 1).map(|p| format!("{p:?}")), Some("1*".into()));
        assert_eq!(Prefix::new(0x0100_0000_0000_0000, 1), None);
        assert_eq!(Prefix::new(0, 17), None);
        assert!(Prefix::new(7, 16).is_some_and(Prefix::is_deepest));
    }
}
