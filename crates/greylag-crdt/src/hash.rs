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

    /// What `plus(other)` undoes.
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

/// 64 bits of the same family, where something is placed rather than compared.
pub fn hash64(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// The digest of a value's canonical bytes, computed when it is first asked for. Hidden from equality.
#[derive(Debug, Clone, Default)]
pub struct CachedDigest(OnceLock<Halves>);

/// A digest in two halves: a `u128` would take more room, for its alignment.
type Halves = [u64; 2];

fn halves(digest: Digest) -> Halves {
    [(digest.0 >> 64) as u64, digest.0 as u64]
}

fn whole([upper, lower]: Halves) -> Digest {
    Digest(u128::from(upper) << 64 | u128::from(lower))
}

impl CachedDigest {
    /// The digest; `value` is the one that this is part of.
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

    /// The digest, if it was asked for before.
    pub(crate) fn known(&self) -> Option<Digest> {
        self.0.get().copied().map(whole)
    }

    /// Keeps a sum of digests up to date: adds to it, if it was asked for before. A value that is not compared, because
    /// it is still being built for example, pays for no hash.
    pub(crate) fn add(&mut self, more: impl FnOnce() -> Digest) {
        if let Some(sum) = self.0.get_mut() {
            *sum = halves(whole(*sum).plus(more()));
        }
    }

    /// To be called whenever the value changes.
    #[inline]
    pub fn forget(&mut self) {
        // Mostly the digest was not asked for, and there is nothing to take.
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
