//! Composed values: the functions that a derived type calls for all its fields.
//!
//! Fields are numbered in the order of their declaration. The amounts that a marker moved carry that number, so that
//! each counter finds its own amounts; ranges are the same for all fields. Source: ddata A2, Y4.

use std::collections::BTreeSet;

use crate::causality::replica::ReplicaId;
use crate::data::ReplicatedData;
use crate::encoding::codec::{DecodeError, Decoder, Encoder};
use crate::encoding::hash::Digest;
use crate::pruning::prune::{Markers, Performed, Range, RemovedNodePruning};

/// A part of a value; `None` if the part has nothing to prune.
pub type Part<'a> = Option<&'a dyn RemovedNodePruning>;
/// A part of a value, to change it; `None` if the part has nothing to prune.
pub type PartMut<'a> = Option<&'a mut dyn RemovedNodePruning>;

/// The markers of one removed replica, restricted to one part.
fn markers_of(markers: &[Performed], index: u16) -> Vec<Performed> {
    markers.iter().map(|marker| marker.part(index)).collect()
}

fn numbered<P>(parts: impl IntoIterator<Item = Option<P>>) -> impl Iterator<Item = (u16, P)> {
    (0..).zip(parts).filter_map(|(index, part)| Some((index, part?)))
}

/// The replicas that any part names.
pub fn modified_by(parts: &[Part<'_>]) -> BTreeSet<ReplicaId> {
    parts.iter().flatten().flat_map(|part| part.modified_by()).collect()
}

/// Whether any part needs pruning.
pub fn need_pruning(parts: &[Part<'_>], removed: ReplicaId, markers: &[Performed]) -> bool {
    numbered(parts.iter().copied()).any(|(index, part)| part.needs_pruning(removed, &markers_of(markers, index)))
}

/// The lowest and the highest number of `removed` in all parts.
pub fn numbers_of(parts: &[Part<'_>], removed: ReplicaId) -> Option<(u64, u64)> {
    let numbers = parts.iter().flatten().filter_map(|part| part.numbers_of(removed));
    numbers.reduce(|(low, high), (l, h)| (low.min(l), high.max(h)))
}

/// Prunes every part.
pub fn prune<'a>(
    parts: impl IntoIterator<Item = PartMut<'a>>,
    removed: ReplicaId,
    ranges: &[Range],
    birth: u64,
    own: &mut Performed,
) {
    for (index, part) in numbered(parts) {
        let mut marker = own.part(index);
        part.prune(removed, ranges, birth, &mut marker);
        own.set_part(index, marker);
    }
}

/// Applies markers to every part.
pub fn cleanup<'a>(parts: impl IntoIterator<Item = PartMut<'a>>, markers: &Markers) -> bool {
    let mut changed = false;
    for (index, part) in numbered(parts) {
        changed |= part.cleanup(&markers.part(index));
    }
    changed
}

/// The digest of a value from those of its parts.
pub fn digest(parts: &[Digest]) -> Digest {
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.0.to_be_bytes()).collect();
    Digest::of(&bytes)
}

/// Joins the delta of one part.
pub fn join_deltas<T: ReplicatedData>(into: &mut Option<T::Delta>, other: &Option<T::Delta>) {
    match (&mut *into, other) {
        (Some(own), Some(theirs)) => T::join_deltas(own, theirs),
        (None, _) => into.clone_from(other),
        (Some(_), None) => {}
    }
}

/// Appends the delta of one part.
pub fn encode_delta<T: ReplicatedData>(delta: &Option<T::Delta>, out: &mut Encoder) {
    out.u8(u8::from(delta.is_some()));
    if let Some(delta) = delta {
        T::encode_delta(delta, out);
    }
}

/// Reads what [`encode_delta`] wrote.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_delta<T: ReplicatedData>(inp: &mut Decoder<'_>) -> Result<Option<T::Delta>, DecodeError> {
    match inp.u8()? {
        0 => Ok(None),
        1 => T::decode_delta(inp).map(Some),
        _ => Err(DecodeError::Invalid("the presence byte of a part's delta is neither 0 nor 1")),
    }
}

/// [`RemovedNodePruning`] for a struct whose named fields have it.
macro_rules! prune_by_parts {
    ($type:ty, $($field:ident),+) => {
        impl $crate::pruning::prune::RemovedNodePruning for $type {
            fn modified_by(&self) -> std::collections::BTreeSet<$crate::ReplicaId> {
                $crate::parts::modified_by(&[$(Some(&self.$field)),+])
            }

            fn needs_pruning(&self, removed: $crate::ReplicaId, markers: &[$crate::Performed]) -> bool {
                $crate::parts::need_pruning(&[$(Some(&self.$field)),+], removed, markers)
            }

            fn numbers_of(&self, removed: $crate::ReplicaId) -> Option<(u64, u64)> {
                $crate::parts::numbers_of(&[$(Some(&self.$field)),+], removed)
            }

            fn prune(
                &mut self,
                removed: $crate::ReplicaId,
                ranges: &[$crate::pruning::prune::Range],
                birth: u64,
                own: &mut $crate::Performed,
            ) {
                let parts: Vec<$crate::parts::PartMut<'_>> = vec![$(Some(&mut self.$field)),+];
                $crate::parts::prune(parts, removed, ranges, birth, own);
            }

            fn cleanup(&mut self, markers: &$crate::pruning::prune::Markers) -> bool {
                let parts: Vec<$crate::parts::PartMut<'_>> = vec![$(Some(&mut self.$field)),+];
                $crate::parts::cleanup(parts, markers)
            }
        }
    };
}
pub(crate) use prune_by_parts;
