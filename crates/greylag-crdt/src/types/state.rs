//! Custom replicated types that supply a merge and no deltas.

use std::convert::Infallible;
use std::fmt;
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};

use crate::data::{Change, Grew, Lineage, ReplicatedData};
use crate::encoding::cached_digest::CachedDigest;
use crate::encoding::codec::{DecodeError, Decoder, Encoder};
use crate::encoding::hash::Digest;
use crate::encoding::tag::TypeTag;
use crate::error::MergeError;

/// The least that a custom type supplies: a merge, a least state, and canonical bytes. Replicate it as [`State`].
/// Source: ddata A1.
pub trait StateData: Clone + PartialEq + Debug + Send + Sync + 'static {
    /// The type's stable name, with version.
    const TAG: TypeTag;

    /// The least state.
    fn zero() -> Self;

    /// Joins `other` into this state: commutative, associative, idempotent.
    ///
    /// # Errors
    /// [`MergeError`]; the half-merged value is dropped.
    fn merge(&mut self, other: &Self) -> Result<(), MergeError>;

    /// Appends the canonical bytes.
    fn encode(&self, out: &mut Encoder);

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// [`DecodeError`].
    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError>;

    /// The digest: equal for equal states. The default is that of the canonical bytes.
    fn digest(&self) -> Digest {
        let mut out = Encoder::new();
        self.encode(&mut out);
        Digest::of(&out.finish())
    }
}

/// A state-only replicated type: every change travels as the full state. Derefs to the type itself.
///
/// ```
/// use greylag_crdt::{DecodeError, Decoder, Element, Encoder, MergeError, ReplicatedData, State, StateData, TypeTag};
///
/// /// The highest mark ever reached.
/// #[derive(Clone, Debug, PartialEq)]
/// struct HighWater(u64);
///
/// impl StateData for HighWater {
///     const TAG: TypeTag = TypeTag::new("doc.high-water/1");
///     fn zero() -> Self { Self(0) }
///     fn merge(&mut self, other: &Self) -> Result<(), MergeError> { self.0 = self.0.max(other.0); Ok(()) }
///     fn encode(&self, out: &mut Encoder) { out.u64(self.0); }
///     fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> { inp.u64().map(Self) }
/// }
///
/// let (mut here, mut there) = (State::<HighWater>::zero(), State::<HighWater>::zero());
/// here.0 = 3;
/// there.0 = 5;
/// here.merge(&there)?;
/// assert_eq!(here.0, 5);
/// # Ok::<(), MergeError>(())
/// ```
#[derive(Clone)]
pub struct State<S> {
    value: S,
    cached: CachedDigest,
    /// The value with which the current update began; `None` in the pair after a merge.
    base: Option<(Lineage, Option<S>)>,
}

impl<S: StateData> State<S> {
    /// Wraps a value as a replicated one.
    pub fn new(value: S) -> Self {
        Self { value, cached: CachedDigest::default(), base: None }
    }
}

impl<S> Deref for State<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.value
    }
}

impl<S> DerefMut for State<S> {
    fn deref_mut(&mut self) -> &mut S {
        self.cached.forget();
        &mut self.value
    }
}

impl<S: StateData> Default for State<S> {
    fn default() -> Self {
        Self::new(S::zero())
    }
}

impl<S: PartialEq> PartialEq for State<S> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<S: Debug> Debug for State<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<S: StateData> ReplicatedData for State<S> {
    const TAG: TypeTag = S::TAG;
    const CAUSAL: bool = false;
    type Delta = Infallible;

    fn zero() -> Self {
        Self::default()
    }

    fn merge(&mut self, other: &Self) -> Result<Grew, MergeError> {
        let mut joined = self.value.clone();
        joined.merge(&other.value)?;
        if let Some((_, base)) = &mut self.base {
            *base = None;
        }
        let grew = joined != self.value;
        if grew {
            self.value = joined;
            self.cached.forget();
        }
        Ok(grew.into())
    }

    fn merge_delta(&mut self, delta: &Infallible) -> Result<Grew, MergeError> {
        match *delta {}
    }

    fn join_deltas(into: &mut Infallible, _: &Infallible) {
        match *into {}
    }

    fn delta_size(delta: &Infallible) -> usize {
        match *delta {}
    }

    fn begin_change(&mut self, lineage: Lineage) {
        self.base = Some((lineage, Some(self.value.clone())));
    }

    fn take_change(&mut self, lineage: Lineage) -> Change<Infallible> {
        match self.base.take() {
            Some((own, Some(base))) if own == lineage && base == self.value => Change::None,
            _ => Change::FullOnly,
        }
    }

    fn digest(&self) -> Digest {
        self.cached.get_or(|| self.value.digest())
    }

    fn encode(&self, out: &mut Encoder) {
        self.value.encode(out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        S::decode(inp).map(Self::new)
    }

    fn encode_delta(delta: &Infallible, _: &mut Encoder) {
        match *delta {}
    }

    fn decode_delta(_: &mut Decoder<'_>) -> Result<Infallible, DecodeError> {
        Err(DecodeError::Invalid("the type has no deltas"))
    }

    fn size_hint(&self) -> usize {
        let mut out = Encoder::new();
        self.value.encode(&mut out);
        out.len()
    }
}
