//! Digests: 128 bits that two replicas compare in place of their states.
//!
//! XXH3-128 with seed 0. Peers are trusted; collisions are not defended against.
//! Source: ddata K10.

use std::fmt;
use std::sync::OnceLock;

use twox_hash::{XxHash3_64, XxHash3_128};

use crate::codec::Encoder;
use crate::data::ReplicatedData;

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

/// The digest of a value, computed when first asked for. Hidden from equality.
#[derive(Debug, Clone, Default)]
pub struct CachedDigest(OnceLock<Halves>);

/// A digest in two halves: a `u128` would take more room because of its alignment.
type Halves = [u64; 2];

fn halves(digest: Digest) -> Halves {
    [(digest.0 >> 64) as u64, digest.0 as u64]
}

fn whole([upper, lower]: Halves) -> Digest {
    Digest(u128::from(upper) << 64 | u128::from(lower))
}

impl CachedDigest {
    /// The digest of `value`, which this cache is a part of.
    pub fn get<T: ReplicatedData>(&self, value: &T) -> Digest {
        self.get_or(|| {
            let mut out = Encoder::new();
            value.encode(&mut out);
            Digest::of(&out.finish())
        })
    }

    pub(crate) fn get_or(&self, compute: impl FnOnce() -> Digest) -> Digest {
        whole(*self.0.get_or_init(|| halves(compute())))
    }

    /// The digest, if it is cached.
    pub(crate) fn known(&self) -> Option<Digest> {
        self.0.get().copied().map(whole)
    }

    /// Keeps a cached sum of digests up to date. Nothing is hashed before the sum was first asked for, so a value that
    /// is still being built pays nothing.
    pub(crate) fn add(&mut self, more: impl FnOnce() -> Digest) {
        if let Some(sum) = self.0.get_mut() {
            *sum = halves(whole(*sum).plus(more()));
        }
    }

    /// Drops the digest; to be called whenever the value changes.
    #[inline]
    pub fn forget(&mut self) {
        // Look before taking: mostly no digest is cached.
        if self.0.get().is_some() {
            self.0.take();
        }
    }
}

impl PartialEq for CachedDigest {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CachedDigest {}
