//! Digests: 128 bits that two replicas compare in place of their states.
//!
//! XXH3-128 with seed 0. Peers are trusted; collisions are not defended against.
//! Source: ddata K10.

use std::fmt;

use twox_hash::{XxHash3_64, XxHash3_128};

/// The digest of a state. Sums of digests wrap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub u128);

impl Digest {
    /// The digest of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(bytes))
    }

    /// The wrapping sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }

    /// The inverse of [`Digest::plus`].
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0.wrapping_sub(other.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A hash of 64 bits of the same family, for placing values rather than comparing them.
pub fn hash64(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}
