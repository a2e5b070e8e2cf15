//! The trait of replicated types: what a replicator asks of a type.

use std::fmt;
use std::fmt::Debug;

use crate::causality::replica::ReplicaId;
use crate::encoding::codec::{DecodeError, Decoder, Encoder, with_tag, without_tag};
use crate::encoding::hash::{Digest, hash64};
use crate::encoding::tag::TypeTag;
use crate::error::MergeError;
use crate::pruning::prune::{Markers, RemovedNodePruning};
use crate::ranges::Ranged;

/// Whether a merge added anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grew {
    /// Nothing was new.
    No,
    /// The state grew.
    Yes,
}

impl Grew {
    /// Whether anything was added.
    pub fn grew(self) -> bool {
        self == Self::Yes
    }
}

impl From<bool> for Grew {
    fn from(grew: bool) -> Self {
        if grew { Self::Yes } else { Self::No }
    }
}

/// What an update did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<D> {
    /// The value is as before.
    None,
    /// The new value is the former one joined with this delta.
    Delta(D),
    /// No delta explains the change; the full state has to travel.
    FullOnly,
}

impl<D> Change<D> {
    /// Maps the delta; other changes stay as they are.
    #[inline]
    pub fn map<E>(self, delta: impl FnOnce(D) -> E) -> Change<E> {
        match self {
            Self::None => Change::None,
            Self::Delta(collected) => Change::Delta(delta(collected)),
            Self::FullOnly => Change::FullOnly,
        }
    }
}

/// The entry that a causal value belongs to. Values of different entries refuse to merge (ddata K12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryMark(u64);

impl EntryMark {
    /// The mark of the entry with this id.
    pub fn of(id: &str) -> Self {
        Self(hash64(id.as_bytes()))
    }
}

/// The place of a value: its entry, its replica, its birth. Hidden from equality and bytes. Source: ddata K12, Y9, A9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// The entry of the value.
    pub entry: EntryMark,
    /// The replica that holds the value.
    pub replica: ReplicaId,
    /// The highest number that this replica's process had drawn when the entry last came into being here, by an update,
    /// a merge or a load. Writing to an entry draws numbers, so no two lives in which a replica wrote have one birth.
    pub born: u64,
}

/// The update that a value was handed to; drawn anew for each update. Source: ddata A4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lineage(pub u64);

/// A state that any number of replicas may change and merge, in any order, and end equal.
///
/// `merge` is commutative, associative, idempotent and inflationary; every delta is itself a
/// joinable fragment. Source: ddata §2, K8.
pub trait ReplicatedData: Clone + PartialEq + Debug + Send + Sync + 'static {
    /// The type's stable name, with version and parameters: `gl.orset/1<str>`.
    const TAG: TypeTag;
    /// Whether deltas of one origin are applied in order without gaps.
    const CAUSAL: bool;
    /// A joinable fragment produced by an update; `Infallible` for types that have none.
    type Delta: Clone + PartialEq + Debug + Send + Sync + 'static;

    /// The least state.
    fn zero() -> Self;

    /// Joins the other state into this one.
    ///
    /// # Errors
    /// [`MergeError`]; the value is unchanged.
    fn merge(&mut self, other: &Self) -> Result<Grew, MergeError>;

    /// Joins a delta into this state, which may be zero.
    ///
    /// # Errors
    /// [`MergeError`]; the value is unchanged.
    fn merge_delta(&mut self, delta: &Self::Delta) -> Result<Grew, MergeError>;

    /// Joins two deltas.
    fn join_deltas(into: &mut Self::Delta, other: &Self::Delta);

    /// How large a delta is, in leaves.
    fn delta_size(delta: &Self::Delta) -> usize;

    /// Applies all markers of the entry to a delta before the delta is joined; as [`RemovedNodePruning::cleanup`].
    /// Returns whether anything changed. Source: ddata Z7.
    fn cleanup_delta(delta: &mut Self::Delta, markers: &Markers) -> bool {
        let _ = (delta, markers);
        false
    }

    /// The latest timestamp among the writes in a state; `None` if writes carry none. It reveals a wall clock that is
    /// far ahead. Source: ddata Y6.
    fn latest_timestamp(&self) -> Option<i64> {
        None
    }

    /// As [`ReplicatedData::latest_timestamp`], of a delta.
    fn latest_timestamp_of(delta: &Self::Delta) -> Option<i64> {
        let _ = delta;
        None
    }

    /// Binds the value to its place; called once, on the zero that an entry begins with. A bound value keeps its place.
    fn bind(&mut self, home: Home) {
        let _ = home;
    }

    /// Whether a reader sees the same in this value as in `before`: the same elements, keys, winners and sums. Only
    /// what pruning changes may differ: the replica under whose name a part stands. The default compares with `==`; a
    /// type that has [`ReplicatedData::pruning`] should override it. Source: ddata R16.
    fn reads_like(&self, before: &Self) -> bool {
        self == before
    }

    /// The type's pruning of removed replicas; `None` if values name no replicas.
    fn pruning(&self) -> Option<&dyn RemovedNodePruning> {
        None
    }

    /// As [`ReplicatedData::pruning`], to change the value.
    fn pruning_mut(&mut self) -> Option<&mut dyn RemovedNodePruning> {
        None
    }

    /// The access to ranges, by which a large value is compared and sent in parts; `None` if the type has no parts.
    /// Source: ddata G12.
    fn ranged(&self) -> Option<&dyn Ranged> {
        None
    }

    /// As [`ReplicatedData::ranged`], to join parts.
    fn ranged_mut(&mut self) -> Option<&mut dyn Ranged> {
        None
    }

    /// Begins to collect changes for `lineage`.
    fn begin_change(&mut self, lineage: Lineage);

    /// Ends collecting and returns what was collected since `begin_change(lineage)`: [`Change::FullOnly`] if another
    /// value was begun with, or if this one was merged into.
    fn take_change(&mut self, lineage: Lineage) -> Change<Self::Delta>;

    /// The digest: equal for equal states only.
    fn digest(&self) -> Digest {
        let mut out = Encoder::new();
        self.encode(&mut out);
        Digest::of(&out.finish())
    }

    /// Appends the canonical bytes.
    fn encode(&self, out: &mut Encoder);

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// [`DecodeError`]; never panics, whatever the bytes.
    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError>;

    /// Appends the canonical bytes of a delta.
    fn encode_delta(delta: &Self::Delta, out: &mut Encoder);

    /// Reads what `encode_delta` wrote.
    ///
    /// # Errors
    /// [`DecodeError`]; never panics, whatever the bytes.
    fn decode_delta(inp: &mut Decoder<'_>) -> Result<Self::Delta, DecodeError>;

    /// About how many bytes the encoded state has; cheap.
    fn size_hint(&self) -> usize;

    /// The value as bytes to keep: a format version, the type's tag, and the canonical bytes. The tag keeps an
    /// `OrSet<u32>` from being read as an `OrSet<i64>`, whose bytes look the same. Source: ddata K9.
    ///
    /// ```
    /// use greylag_crdt::{DecodeError, GSet, ReplicatedData as _};
    ///
    /// let mut set = GSet::<u32>::new();
    /// set.add(7);
    /// let bytes = set.to_bytes();
    /// assert_eq!(GSet::<u32>::from_bytes(&bytes), Ok(set));
    /// assert!(matches!(GSet::<i64>::from_bytes(&bytes), Err(DecodeError::OtherType { .. })));
    /// ```
    fn to_bytes(&self) -> Vec<u8> {
        with_tag(&Self::TAG, |out| self.encode(out))
    }

    /// Reads a value that fills `bytes`: written by `to_bytes`, or by a version of it that wrote no tag.
    ///
    /// # Errors
    /// [`DecodeError`], also if bytes are left over; [`DecodeError::OtherType`] if the bytes name another type.
    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::from_untagged_bytes(without_tag(&Self::TAG, bytes)?)
    }

    /// The canonical bytes alone, for a caller that keeps the tag beside them, as a replicator does. Source: ddata K9,
    /// G17.
    fn to_untagged_bytes(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        self.encode(&mut out);
        out.finish()
    }

    /// Reads a value that fills `bytes`, which carry no tag.
    ///
    /// # Errors
    /// [`DecodeError`], also if bytes are left over.
    fn from_untagged_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut inp = Decoder::new(bytes);
        let value = Self::decode(&mut inp)?;
        inp.finish()?;
        Ok(value)
    }

    /// The canonical bytes of a delta, without a tag: a delta travels between replicas of one entry.
    fn delta_to_bytes(delta: &Self::Delta) -> Vec<u8> {
        let mut out = Encoder::new();
        Self::encode_delta(delta, &mut out);
        out.finish()
    }

    /// Reads a delta that fills `bytes`.
    ///
    /// # Errors
    /// [`DecodeError`], also if bytes are left over.
    fn delta_from_bytes(bytes: &[u8]) -> Result<Self::Delta, DecodeError> {
        let mut inp = Decoder::new(bytes);
        let delta = Self::decode_delta(&mut inp)?;
        inp.finish()?;
        Ok(delta)
    }
}

/// Collects what the operations of one update did. Hidden from equality and bytes (ddata A4, K9).
///
/// `D` is the delta, or what the delta can be made of afterwards: `()` where the value itself is its delta. A tracker
/// is filled only during an update, but takes room in every value: put a large `D` into a box.
#[derive(Clone)]
pub struct Tracker<D> {
    open: Option<(Lineage, Change<D>)>,
}

impl<D> Tracker<D> {
    /// Begins to collect.
    #[inline]
    pub fn begin(&mut self, lineage: Lineage) {
        self.open = Some((lineage, Change::None));
    }

    /// Whether an update is going on.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Adds a delta; does nothing if no update is going on.
    #[inline]
    pub fn record(&mut self, delta: D, join: impl FnOnce(&mut D, &D)) {
        if let Some((_, change)) = &mut self.open {
            match change {
                Change::None => *change = Change::Delta(delta),
                Change::Delta(collected) => join(collected, &delta),
                Change::FullOnly => {}
            }
        }
    }

    /// Notes a merge: the collected deltas no longer explain the value.
    #[inline]
    pub fn merged(&mut self) {
        if let Some((_, change)) = &mut self.open {
            *change = Change::FullOnly;
        }
    }

    /// Ends collecting, with a delta made of the collected one.
    #[inline]
    pub fn take_as<E>(&mut self, lineage: Lineage, delta: impl FnOnce(D) -> E) -> Change<E> {
        match self.take(lineage) {
            Change::None => Change::None,
            Change::Delta(collected) => Change::Delta(delta(collected)),
            Change::FullOnly => Change::FullOnly,
        }
    }

    /// Ends collecting; [`Change::FullOnly`] if another lineage, or none, was begun.
    #[inline]
    pub fn take(&mut self, lineage: Lineage) -> Change<D> {
        match self.open.take() {
            Some((own, change)) if own == lineage => change,
            _ => Change::FullOnly,
        }
    }
}

impl<D> Default for Tracker<D> {
    fn default() -> Self {
        Self { open: None }
    }
}

impl<D> PartialEq for Tracker<D> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<D> Eq for Tracker<D> {}

impl<D> Debug for Tracker<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.open.is_some() { "Tracker(open)" } else { "Tracker" })
    }
}

impl Markers {
    /// Applies all markers to a delta before the delta is joined.
    pub fn clean_delta<T: ReplicatedData>(&self, delta: &mut T::Delta) -> bool {
        T::cleanup_delta(delta, self)
    }
}
