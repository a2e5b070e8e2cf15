//! The fragments that travel between replicas.
//!
//! Source: ddata K6, K7.

use crate::causality::context::Context;
use crate::causality::replica::ReplicaId;
use crate::encoding::codec::{DecodeError, Decoder, Encoder, FORMAT};
use crate::pruning::prune::Markers;
use crate::pruning::rename::Moves;
use crate::stores::store::{Changes, Join, Store};

/// A joinable part of a causal state: a delta, or several joined.
///
/// Every dot that a fragment's context covers concerns what the fragment touches, so a join looks at the touched keys
/// alone. The exception is a replica's first delta for an entry that it had forgotten: that delta claims numbers which
/// the replica drew in the entry's former life and no longer knows, and retires their leaves wherever they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Fragment<S: Store> {
    pub(crate) store: S,
    pub(crate) context: Context,
    pub(crate) scope: S::Scope,
    /// The claims of first deltas: a value that has seen any of these numbers joins everything, not only what is
    /// touched.
    pub(crate) forgotten: Context,
}

impl<S: Store> Fragment<S> {
    /// Joins another fragment into this one.
    pub fn join(&mut self, other: &Self) {
        let everything = S::everything();
        let scope = if other.forgotten.is_empty() { &other.scope } else { &everything };
        self.store.join(&other.store, scope, &mut Join::new(&self.context, &other.context, Changes::new(None, false)));
        self.context.union(&other.context);
        self.forgotten.union(&other.forgotten);
        S::join_scopes(&mut self.scope, &other.scope);
    }

    /// What the fragment touches.
    pub fn scope(&self) -> &S::Scope {
        &self.scope
    }

    /// The dots that the fragment has seen.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The leaves that the fragment brings.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// About how many leaves the fragment has.
    pub fn leaves(&self) -> usize {
        self.store.leaves().max(1)
    }

    /// Applies the markers of the entry before the fragment is joined. Source: ddata Z7.
    pub(crate) fn cleanup(&mut self, markers: &Markers) -> bool {
        let moves = Moves::of(markers);
        let mut concerned = self.context.is_moved_by(&moves);
        self.store.visit_slots(&mut |slot| concerned |= moves.target(slot).is_some());
        if concerned {
            self.store.rename(&moves);
            self.context.rename(&moves);
            self.forgotten.rename(&moves);
        }
        concerned
    }

    pub(crate) fn encode(&self, out: &mut Encoder) {
        out.u8(FORMAT);
        self.forgotten.encode(std::iter::empty(), out);
        self.context.encode(slot_replicas(&self.store).into_iter(), out);
        S::encode_scope(&self.scope, out);
        self.store.encode(out);
    }

    pub(crate) fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        inp.format()?;
        let (forgotten, unnumbered) = Context::decode(inp)?;
        if !unnumbered.is_empty() {
            return Err(DecodeError::NotCanonical("a replica without numbers"));
        }
        let (context, others) = Context::decode(inp)?;
        let scope = S::decode_scope(inp)?;
        let store = S::decode(inp)?;
        check(&store, &context, &others)?;
        Ok(Self { store, context, scope, forgotten })
    }
}

/// Checks that every dot of a store is in its context, on which joins rely, and that the replica table names exactly
/// the replicas of the data.
pub(crate) fn check<S: Store>(store: &S, context: &Context, others: &[ReplicaId]) -> Result<(), DecodeError> {
    let mut strays = 0;
    store.visit_dots(&mut |dot| strays += usize::from(!context.contains(dot)));
    if strays > 0 {
        return Err(DecodeError::Invalid("a leaf's dot is not in the context"));
    }
    let mut named = slot_replicas(store);
    named.retain(|replica| context.lowest(*replica).is_none());
    if named == others { Ok(()) } else { Err(DecodeError::NotCanonical("a replica that nothing names")) }
}

fn slot_replicas<S: Store>(store: &S) -> Vec<ReplicaId> {
    let mut replicas = Vec::new();
    store.visit_slots(&mut |slot| replicas.push(slot.replica));
    replicas.sort_unstable();
    replicas.dedup();
    replicas
}
