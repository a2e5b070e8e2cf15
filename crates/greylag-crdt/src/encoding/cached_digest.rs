//! Digests that are kept as long as their values do not change.

use std::sync::OnceLock;

use crate::data::ReplicatedData;
use crate::encoding::codec::Encoder;
use crate::encoding::hash::Digest;

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
