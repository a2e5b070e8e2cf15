//! A store with its context, and the fragments that travel between replicas.
//!
//! Every change is made as a [`Fragment`]: a small store, the dots that it has seen, and the scope
//! that it speaks of. The changed value is exactly the old one joined with the fragment, so a delta
//! can never say anything else than what happened here. Joins are total, in any order and any
//! number; delivering deltas in order is a matter of consistency, never of safety.
//!
//! Source: ddata K6, K7, K8, K12.

use std::fmt;

use crate::codec::{DecodeError, Decoder, Encoder, FORMAT};
use crate::context::Context;
use crate::cx::UpdateCx;
use crate::data::{Change, Grew, Home, Lineage, Tracker};
use crate::error::MergeError;
use crate::hash::Digest;
use crate::replica::Dot;
use crate::store::Store;

/// A joinable part of a causal state: a delta, or several joined. Source: ddata K6.
#[derive(Debug, Clone, PartialEq)]
pub struct Fragment<S: Store> {
    store: S,
    context: Context,
    scope: S::Scope,
}

impl<S: Store> Fragment<S> {
    /// Joins another fragment into this one.
    pub fn join(&mut self, other: &Self) {
        self.store.join(&self.context, &other.store, &other.context, &other.scope, &mut Vec::new());
        self.context.union(&other.context);
        S::join_scopes(&mut self.scope, &other.scope);
    }

    /// The scope that it speaks of.
    pub fn scope(&self) -> &S::Scope {
        &self.scope
    }

    /// The dots that it has seen.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// About how many leaves it has.
    pub fn leaves(&self) -> usize {
        self.store.leaves().max(1)
    }

    pub(crate) fn encode(&self, out: &mut Encoder) {
        out.u8(FORMAT);
        self.context.encode(out);
        S::encode_scope(&self.scope, out);
        self.store.encode(out);
    }

    pub(crate) fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        inp.format()?;
        let context = Context::decode(inp)?;
        let scope = S::decode_scope(inp)?;
        let store = S::decode(inp)?;
        check_dots(&store, &context)?;
        Ok(Self { store, context, scope })
    }
}

/// What an operation adds and what that supersedes, before its fragment is made.
#[derive(Debug)]
pub(crate) struct Edit<S: Store> {
    /// The new leaves.
    pub(crate) store: S,
    /// The dots drawn for them, ascending; none for a removal.
    pub(crate) drawn: Vec<Dot>,
    /// The dots that are superseded or removed.
    pub(crate) superseded: Vec<Dot>,
    /// What it speaks of.
    pub(crate) scope: S::Scope,
}

/// A store, the dots it has seen, and what is kept beside them without being part of the value.
#[derive(Clone)]
pub struct Causal<S: Store> {
    store: S,
    context: Context,
    /// The sum of the leaves' digests, kept up with every change.
    sum: Digest,
    home: Option<Home>,
    /// Whether this replica has drawn dots for the entry since it was last absent here.
    drawn: bool,
    tracker: Tracker<Fragment<S>>,
}

impl<S: Store> Causal<S> {
    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The dots that were seen.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Makes an edit: builds its fragment, joins that, and collects it.
    pub(crate) fn apply(&mut self, cx: &UpdateCx<'_>, edit: Edit<S>) {
        let fragment = self.fragment(cx, edit);
        self.join_fragment(&fragment);
        self.tracker.record(&fragment, Fragment::join);
    }

    /// The context of a delta is what it supersedes, as single dots, and the claim `(prev, last]`:
    /// this replica knows that it issued nothing else for the entry in between, which keeps contexts
    /// compact although numbers have gaps. A value that is not the entry's own claims nothing, since
    /// it does not know what the entry holds.
    fn fragment(&mut self, cx: &UpdateCx<'_>, edit: Edit<S>) -> Fragment<S> {
        let mut context = Context::new();
        let mut scope = edit.scope;
        if let (Some(last), Some(floor)) = (edit.drawn.last(), cx.start_floor(self.home.map(|home| home.entry))) {
            let own = cx.replica();
            if self.drawn {
                context.insert_range(own, self.context.highest(own).max(floor) + 1, last.number);
            } else {
                // The first since the entry was absent: everything of ours that is not live here was
                // forgotten here, and goes everywhere.
                context.insert_range(own, floor + 1, last.number);
                self.store.visit_dots(&mut |dot| {
                    if dot.replica == own {
                        context.remove_range(own, dot.number, dot.number);
                    }
                });
                scope = S::everything();
                self.drawn = true;
            }
            for (above, up_to) in cx.reserved() {
                context.remove_range(own, above + 1, *up_to);
            }
        }
        edit.drawn.iter().chain(&edit.superseded).for_each(|dot| context.insert(*dot));
        Fragment { store: edit.store, context, scope }
    }

    fn join_fragment(&mut self, fragment: &Fragment<S>) -> Grew {
        self.join_parts(&fragment.store, &fragment.context, &fragment.scope)
    }

    fn join_parts(&mut self, store: &S, context: &Context, scope: &S::Scope) -> Grew {
        let meter = self.store.join(&self.context, store, context, scope, &mut Vec::new());
        self.sum = self.sum.plus(meter.sum);
        let seen_more = self.context.union(context);
        (meter.changed || seen_more).into()
    }

    /// Joins another state.
    ///
    /// # Errors
    /// [`MergeError::ForeignEntry`].
    pub(crate) fn merge(&mut self, other: &Self) -> Result<Grew, MergeError> {
        if let (Some(own), Some(theirs)) = (self.home, other.home)
            && own.entry != theirs.entry
        {
            return Err(MergeError::ForeignEntry);
        }
        self.home = self.home.or(other.home);
        self.tracker.merged();
        Ok(self.join_parts(&other.store, &other.context, &S::everything()))
    }

    /// Joins a fragment.
    pub(crate) fn merge_delta(&mut self, delta: &Fragment<S>) -> Grew {
        self.tracker.merged();
        self.join_fragment(delta)
    }

    pub(crate) fn bind(&mut self, home: Home) {
        self.home.get_or_insert(home);
    }

    pub(crate) fn begin_change(&mut self, lineage: Lineage) {
        self.tracker.begin(lineage);
    }

    pub(crate) fn take_change(&mut self, lineage: Lineage) -> Change<Fragment<S>> {
        self.tracker.take(lineage)
    }

    /// The sum over leaves and context. Source: ddata K10.
    pub(crate) fn digest(&self) -> Digest {
        debug_assert!(
            self.store.leaves() > 64 || self.sum == self.store.digest(&mut Vec::new()),
            "the kept digest is the digest of the leaves"
        );
        let mut out = Encoder::new();
        self.context.encode(&mut out);
        self.sum.plus(Digest::of(&out.finish()))
    }

    pub(crate) fn encode(&self, out: &mut Encoder) {
        out.u8(FORMAT);
        self.context.encode(out);
        self.store.encode(out);
    }

    pub(crate) fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        inp.format()?;
        let context = Context::decode(inp)?;
        let store = S::decode(inp)?;
        check_dots(&store, &context)?;
        let sum = store.digest(&mut Vec::new());
        Ok(Self { store, context, sum, ..Self::default() })
    }
}

/// Every dot of a store is in its context; the joins rest on it.
fn check_dots<S: Store>(store: &S, context: &Context) -> Result<(), DecodeError> {
    let mut strays = 0;
    store.visit_dots(&mut |dot| strays += usize::from(!context.contains(dot)));
    if strays == 0 { Ok(()) } else { Err(DecodeError::Invalid("a leaf's dot is not in the context")) }
}

impl<S: Store> Default for Causal<S> {
    fn default() -> Self {
        Self {
            store: S::default(),
            context: Context::new(),
            sum: Digest::default(),
            home: None,
            drawn: false,
            tracker: Tracker::default(),
        }
    }
}

impl<S: Store> PartialEq for Causal<S> {
    fn eq(&self, other: &Self) -> bool {
        self.sum == other.sum && self.context == other.context && self.store == other.store
    }
}

impl<S: Store> fmt::Debug for Causal<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Causal").field("store", &self.store).field("context", &self.context).finish()
    }
}

/// The part of [`crate::ReplicatedData`] that is the same for every type with a field `causal`.
macro_rules! causal_data {
    () => {
        fn zero() -> Self {
            Self::new()
        }

        fn merge(&mut self, other: &Self) -> Result<Grew, MergeError> {
            self.causal.merge(&other.causal)
        }

        fn merge_delta(&mut self, delta: &Self::Delta) -> Result<Grew, MergeError> {
            Ok(self.causal.merge_delta(delta))
        }

        fn join_deltas(into: &mut Self::Delta, other: &Self::Delta) {
            into.join(other);
        }

        fn delta_size(delta: &Self::Delta) -> usize {
            delta.leaves()
        }

        fn bind(&mut self, home: Home) {
            self.causal.bind(home);
        }

        fn begin_change(&mut self, lineage: Lineage) {
            self.causal.begin_change(lineage);
        }

        fn take_change(&mut self, lineage: Lineage) -> Change<Self::Delta> {
            self.causal.take_change(lineage)
        }

        fn digest(&self) -> Digest {
            self.causal.digest()
        }

        fn encode(&self, out: &mut Encoder) {
            self.causal.encode(out);
        }

        fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
            Causal::decode(inp).map(|causal| Self { causal })
        }

        fn encode_delta(delta: &Self::Delta, out: &mut Encoder) {
            delta.encode(out);
        }

        fn decode_delta(inp: &mut Decoder<'_>) -> Result<Self::Delta, DecodeError> {
            Fragment::decode(inp)
        }

        fn size_hint(&self) -> usize {
            32 + self.causal.store().leaves() * 32
        }
    };
}
pub(crate) use causal_data;
