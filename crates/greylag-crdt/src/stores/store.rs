//! Dot stores and their joins.
//!
//! A store holds leaves, each labelled with the dot that wrote it. Two sides `(s, c)` and `(s', c')` join leaf by leaf:
//! a leaf of one side survives unless the other side's context has seen its dot and the other side's store lacks it,
//! which means that some replica removed the leaf. All stores of an entry share one context.
//!
//! Source: ddata K5; Almeida, Shoker, Baquero, "Delta state replicated data types", 2018.

mod dot_fun;
mod dot_map;
mod dot_set;
mod dots;
mod scratch;

use std::collections::BTreeMap;
use std::fmt::Debug;

pub use dot_fun::{DotFun, Leaf};
pub(crate) use dot_map::MapPatch;
pub use dot_map::{DotMap, MapScope};
pub use dots::DotSet;
pub(crate) use scratch::with_path;

use crate::causality::context::Context;
use crate::causality::cx::UpdateCx;
use crate::causality::replica::{Dot, MAX_NUMBER, ReplicaId};
use crate::encoding::codec::{DecodeError, Decoder, Encoder};
use crate::encoding::element::Element;
use crate::encoding::hash::Digest;
use crate::encoding::tag::TypeTag;
use crate::pruning::rename::Moves;

/// Leaves labelled with dots; the value type of an [`crate::OrMap`]. Only the stores of this crate implement it: a
/// custom type goes into a map as [`crate::Plain`]. Source: ddata K5, Y7.
pub trait Store: Clone + Default + PartialEq + Debug + Send + Sync + 'static {
    /// The part of a store that a fragment speaks of.
    type Scope: Clone + PartialEq + Debug + Send + Sync + 'static;
    /// The editor that the closure of [`crate::OrMap::update`] receives.
    type Editor<'a>;
    /// The store's name as a parameter of a type tag.
    const TAG: TypeTag;

    /// The scope of a full state.
    fn everything() -> Self::Scope;

    /// The union of two scopes.
    fn join_scopes(into: &mut Self::Scope, other: &Self::Scope);

    /// What an operation puts in the place of what it sees: a whole store, or, in a map, the stores of some keys.
    type Patch: Send;

    /// The patch that puts a store in the place of everything.
    fn whole(self) -> Self::Patch;

    /// The store and the scope of the patch's fragment.
    fn content(patch: &Self::Patch) -> (Self, Self::Scope);

    /// Applies a patch in place. The result is the same as joining the patch's content together with a context of
    /// everything that the content supersedes.
    fn patch(&mut self, patch: Self::Patch, changes: &mut Changes);

    /// Joins `other` into this store, as far as `scope` reaches. Returns whether anything changed.
    fn join(&mut self, other: &Self, scope: &Self::Scope, join: &mut Join<'_>) -> bool;

    /// Whether there is no leaf.
    fn is_empty(&self) -> bool;

    /// How many leaves there are, roughly, in constant time.
    fn leaves(&self) -> usize;

    /// Calls `visit` with every dot.
    fn visit_dots(&self, visit: &mut dyn FnMut(Dot));

    /// Calls `visit` with every slot id; see [`crate::SlotCounter`].
    fn visit_slots(&self, visit: &mut dyn FnMut(Dot)) {
        let _ = visit;
    }

    /// The sum of the leaves' digests, where `path` is the canonical path to this store.
    fn digest(&self, path: &mut Vec<u8>) -> Digest;

    /// Whether users read the same in both stores, whatever the dots of their leaves. Source: ddata R16.
    fn reads_like(&self, other: &Self) -> bool;

    /// Renames dots and slot ids; leaves that meet under one dot are joined. Returns whether anything changed.
    fn rename(&mut self, moves: &Moves) -> bool;

    /// A copy in which every leaf has a fresh dot, drawn from `cx` and noted in `drawn`.
    fn with_fresh_dots(&self, cx: &mut UpdateCx<'_>, drawn: &mut Vec<Dot>) -> Self;

    /// Runs a closure with the editor of the store in `host`.
    fn edit<R>(
        host: &mut dyn Host<Self>,
        cx: &mut UpdateCx<'_>,
        f: impl FnOnce(&mut Self::Editor<'_>, &mut UpdateCx<'_>) -> R,
    ) -> R;

    /// Appends the canonical bytes.
    fn encode(&self, out: &mut Encoder);

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// [`DecodeError`].
    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError>;

    /// Appends the canonical bytes of a scope.
    fn encode_scope(scope: &Self::Scope, out: &mut Encoder);

    /// Reads what `encode_scope` wrote.
    ///
    /// # Errors
    /// [`DecodeError`].
    fn decode_scope(inp: &mut Decoder<'_>) -> Result<Self::Scope, DecodeError>;
}

/// An operation before its fragment is made: what it puts in the place of what it sees.
pub struct Edit<S: Store> {
    pub(crate) patch: S::Patch,
    /// The dots drawn for the new leaves; none for a removal.
    pub(crate) drawn: DotSet,
}

impl<S: Store> Edit<S> {
    pub(crate) fn removal(patch: S::Patch) -> Self {
        Self { patch, drawn: DotSet::default() }
    }
}

/// The place of a store: an entry itself, or a key of another store. Edits go up to the entry, which makes one fragment
/// of each edit.
pub trait Host<S: Store> {
    /// The store; `None` if it is empty.
    fn store(&self) -> Option<&S>;

    /// Makes an edit.
    fn apply(&mut self, cx: &UpdateCx<'_>, edit: Edit<S>);

    /// This replica adds to no slot at or below this number. Source: ddata Y9.
    fn slot_floor(&mut self, cx: &UpdateCx<'_>) -> u64;
}

/// A store in its place, to edit it: [`crate::OrMap::update`] hands it to its closure.
pub struct StoreMut<'a, S: Store>(pub(crate) &'a mut dyn Host<S>);

impl<S: Store> StoreMut<'_, S> {
    /// The store as it is now; `None` if it is empty.
    pub fn store(&self) -> Option<&S> {
        self.0.store()
    }
}

impl<S: Store> Debug for StoreMut<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StoreMut").field(&self.store()).finish()
    }
}

/// The two contexts of a join, and the changes so far.
#[derive(Debug)]
pub struct Join<'a> {
    pub(crate) own: &'a Context,
    pub(crate) theirs: &'a Context,
    pub(crate) changes: Changes,
}

impl<'a> Join<'a> {
    pub(crate) fn new(own: &'a Context, theirs: &'a Context, changes: Changes) -> Self {
        Self { own, theirs, changes }
    }
}

/// The effects of a join or a patch on a store, and the path to the store in its entry.
#[derive(Debug)]
pub struct Changes {
    /// The replica whose slots are watched for shrinking.
    pub(crate) watched: Option<ReplicaId>,
    pub(crate) path: Vec<u8>,
    /// The amount to add to the sum of the leaves' digests; `None` where the sum is not kept.
    pub(crate) sum: Option<Digest>,
    /// The amounts to add to the counts of slots, by replica.
    pub(crate) slots: BTreeMap<ReplicaId, i64>,
    /// Whether a slot of the watched replica shrank or vanished.
    pub(crate) shrunk: bool,
    /// The dots that a patch supersedes, where the caller asks for them.
    pub(crate) superseded: Option<Vec<Dot>>,
}

impl Changes {
    pub(crate) fn new(watched: Option<ReplicaId>, sums: bool) -> Self {
        let (sum, path) = (sums.then(Digest::default), if sums { scratch::take() } else { Vec::new() });
        Self { watched, path, sum, slots: BTreeMap::new(), shrunk: false, superseded: None }
    }

    /// Appends a key to the path. Returns the former length, for [`Changes::leave`].
    fn enter<K: Element>(&mut self, key: &K) -> usize {
        let length = self.path.len();
        if self.sum.is_some() {
            push_element(&mut self.path, key);
        }
        length
    }

    fn leave(&mut self, length: usize) {
        self.path.truncate(length);
    }

    /// Notes that a store becomes another. Slots are noted apart, by the stores that have them.
    fn note<S: Store>(&mut self, before: &S, after: &S) {
        if let Some(superseded) = &mut self.superseded {
            before.visit_dots(&mut |dot| superseded.push(dot));
        }
        if let Some(sum) = &mut self.sum {
            *sum = sum.minus(before.digest(&mut self.path)).plus(after.digest(&mut self.path));
        }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        if self.sum.is_some() {
            scratch::give_back(std::mem::take(&mut self.path));
        }
    }
}

/// Makes [`StoreMut`] the editor of a store.
macro_rules! edited_by_store_mut {
    ($store:ty) => {
        type Editor<'a> = $crate::StoreMut<'a, $store>;

        fn edit<R>(
            host: &mut dyn $crate::stores::store::Host<$store>,
            cx: &mut $crate::UpdateCx<'_>,
            f: impl FnOnce(&mut $crate::StoreMut<'_, $store>, &mut $crate::UpdateCx<'_>) -> R,
        ) -> R {
            f(&mut $crate::StoreMut(host), cx)
        }
    };
}
pub(crate) use edited_by_store_mut;

/// The scopes and patches of a store that is always changed as a whole.
macro_rules! whole_scope {
    () => {
        type Scope = Whole;
        type Patch = Self;

        fn everything() -> Whole {
            Whole
        }

        fn join_scopes(_: &mut Whole, _: &Whole) {}

        fn whole(self) -> Self {
            self
        }

        fn content(patch: &Self) -> (Self, Whole) {
            (patch.clone(), Whole)
        }

        fn encode_scope(_: &Whole, _: &mut Encoder) {}

        fn decode_scope(_: &mut Decoder<'_>) -> Result<Whole, DecodeError> {
            Ok(Whole)
        }
    };
}
use whole_scope;

/// The scope of stores that are always changed as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole;

pub(crate) fn encode_dot(dot: Dot, out: &mut Encoder) {
    out.replica(dot.replica);
    out.u64(dot.number);
}

pub(crate) fn decode_dot(inp: &mut Decoder<'_>) -> Result<Dot, DecodeError> {
    let replica = inp.replica()?;
    match inp.u64()? {
        0 => Err(DecodeError::Invalid("a dot has the number 0")),
        number if number > MAX_NUMBER => Err(DecodeError::Invalid("a dot has a number that no process draws")),
        number => Ok(Dot::new(replica, number)),
    }
}

fn push_dot(path: &mut Vec<u8>, dot: Dot) {
    path.extend_from_slice(&dot.replica.0.to_be_bytes());
    path.extend_from_slice(&dot.number.to_be_bytes());
}

/// Appends an element's canonical bytes to a path; truncate the path to its former length afterwards.
pub(crate) fn push_element<T: Element>(path: &mut Vec<u8>, element: &T) {
    let mut out = Encoder::continuing(std::mem::take(path));
    element.encode(&mut out);
    *path = out.finish();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata §9, K2: a dot with a number that no process draws cannot be decoded, wherever it stands.
    #[test]
    fn dots_that_no_process_draws_are_not_decoded() {
        for (number, is_read) in [(0, false), (1, true), (MAX_NUMBER, true), (MAX_NUMBER + 1, false), (u64::MAX, false)]
        {
            let mut out = Encoder::new();
            out.begin_replicas(vec![ReplicaId(2)]);
            encode_dot(Dot { replica: ReplicaId(2), number }, &mut out);
            let bytes = out.finish();
            let mut inp = Decoder::new(&bytes);
            inp.begin_replicas().unwrap();
            assert_eq!(decode_dot(&mut inp).is_ok(), is_read, "{number}");
        }
    }
}
