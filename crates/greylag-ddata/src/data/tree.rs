//! Parts of the hash space of ids, and sums over them, by which two replicas find their differences.
//!
//! A 16-ary trie over XXH3-64 of the ids. Each node holds a count and a wrapping sum of digests;
//! nodes with at most 64 keys are not split. Equal roots mean equal data, and a difference is found
//! in as many steps as the trie is deep, whatever the number of keys. Source: ddata G9.

mod trie;

use std::fmt;

use greylag_crdt::Digest;

#[cfg(test)]
pub(crate) use trie::touched;
pub(crate) use trie::{Placed, SyncTree};

/// The most keys of a node that is not split.
pub(crate) const LEAF_KEYS: usize = 64;
/// The depth at which sixteen levels of four bits exhaust the hash.
const MAX_DEPTH: u8 = 16;

/// A part of the hash space: all hashes that begin with certain nibbles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    bits: u64,
    depth: u8,
}

impl Prefix {
    /// The whole space.
    pub const ROOT: Self = Self { bits: 0, depth: 0 };

    /// The part whose hashes begin with the first `depth` nibbles of `bits`; `None` if `depth` exceeds 16, or if bits
    /// below those nibbles are set.
    pub fn new(bits: u64, depth: u8) -> Option<Self> {
        (depth <= MAX_DEPTH && bits & !Self::mask(depth) == 0).then_some(Self { bits, depth })
    }

    /// The leading nibbles; all other bits are 0.
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// The number of leading nibbles.
    pub fn depth(self) -> u8 {
        self.depth
    }

    fn mask(depth: u8) -> u64 {
        u64::MAX.checked_shl(64 - 4 * u32::from(depth)).unwrap_or(0)
    }

    pub(crate) fn contains(self, hash: u64) -> bool {
        hash & Self::mask(self.depth) == self.bits
    }

    /// The sixteen parts of this part; none if it is of the deepest level.
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

/// The part of the hash space that a round covers: any of the sixteen parts that differ in their first nibble. Source:
/// ddata G13.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sixteenths(u16);

impl Sixteenths {
    /// The whole space.
    pub const ALL: Self = Self(u16::MAX);
    /// No part: such a round only shows both standings. Source: ddata Z11.
    pub const NONE: Self = Self(0);

    /// The sixteenths whose bits are set.
    pub fn of(bits: u16) -> Self {
        Self(bits)
    }

    /// A bit for each sixteenth.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Share `index` of `of` about equal shares, which are disjoint and make up the whole; `of` is 1 to 16.
    pub fn share(index: usize, of: usize) -> Self {
        let (from, to) = (16 * index / of, 16 * (index + 1) / of);
        Self((from..to).fold(0, |bits, nibble| bits | 1 << nibble))
    }

    /// Whether one of the sixteen parts is included.
    pub(crate) fn contains(self, sixteenth: Prefix) -> bool {
        self.0 >> (sixteenth.bits >> 60) & 1 == 1
    }

    /// The included parts as prefixes.
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

/// The number of entries in a part, and the wrapping sum of their digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// The number of entries.
    pub count: u64,
    /// The sum of their digests.
    pub total: Digest,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_read_from_a_message_is_checked() {
        assert_eq!(Prefix::new(0x1000_0000_0000_0000, 1).map(|p| format!("{p:?}")), Some("1*".into()));
        assert_eq!(Prefix::new(0x0100_0000_0000_0000, 1), None);
        assert_eq!(Prefix::new(0, 17), None);
        assert!(Prefix::new(7, 16).is_some_and(Prefix::is_deepest));
    }
}
