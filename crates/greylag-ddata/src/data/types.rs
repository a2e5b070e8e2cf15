//! Types by their tags, so that received values can be decoded without naming the type.

use std::any::{Any, TypeId, type_name};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use greylag_crdt::{
    DecodeError, Digest, Flag, GCounter, GSet, Grew, Home, LwwMap, LwwRegister, Markers, MergeError, MvRegister,
    OrMultiMap, OrSet, PNCounter, PnCounterMap, Ranged, RemovedNodePruning, ReplicatedData,
};

/// A value of an erased type, known by its tag.
pub trait AnyData: Any + fmt::Debug + Send + Sync {
    /// The type's tag.
    fn tag(&self) -> Arc<str>;
    /// Whether deltas of one origin are applied in order without gaps.
    fn is_causal(&self) -> bool;
    /// Joins a value of the same type.
    ///
    /// # Errors
    /// [`MergeError`], also if `other` has another type.
    fn merge(&mut self, other: &dyn AnyData) -> Result<Grew, MergeError>;
    /// The digest.
    fn digest(&self) -> Digest;
    /// The canonical bytes, without the tag.
    fn encoded(&self) -> Vec<u8>;
    /// A copy; cheap for types with shared structure.
    fn boxed_clone(&self) -> Box<dyn AnyData>;
    /// Replaces this value by another one of the same type.
    ///
    /// # Errors
    /// The other value, if it has another type.
    fn replace(&mut self, other: Box<dyn AnyData>) -> Result<(), Box<dyn AnyData>>;
    /// About how many bytes the encoded value has.
    fn size_hint(&self) -> usize;
    /// Whether a reader sees the same in this value as in `before`.
    fn reads_like(&self, before: &dyn AnyData) -> bool;
    /// Binds the value to its home.
    fn bind(&mut self, home: Home);
    /// The type's pruning of removed replicas.
    fn pruning(&self) -> Option<&dyn RemovedNodePruning>;
    /// The type's pruning of removed replicas, to change the value.
    fn pruning_mut(&mut self) -> Option<&mut dyn RemovedNodePruning>;
    /// The latest timestamp among the writes in the value.
    fn latest_timestamp(&self) -> Option<i64>;
    /// The access to ranges, by which a large value is compared and sent in parts.
    fn ranged(&self) -> Option<&dyn Ranged>;
    /// The access to ranges, to join parts.
    fn ranged_mut(&mut self) -> Option<&mut dyn Ranged>;
    /// For downcasts.
    fn as_any(&self) -> &dyn Any;
    /// For downcasts.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<T: ReplicatedData> AnyData for T {
    fn tag(&self) -> Arc<str> {
        T::TAG.to_string().into()
    }

    fn is_causal(&self) -> bool {
        T::CAUSAL
    }

    fn merge(&mut self, other: &dyn AnyData) -> Result<Grew, MergeError> {
        match other.as_any().downcast_ref::<T>() {
            Some(other) => ReplicatedData::merge(self, other),
            None => Err(MergeError::Incompatible(format!("a {} is not a {}", other.tag(), type_name::<T>()))),
        }
    }

    fn digest(&self) -> Digest {
        ReplicatedData::digest(self)
    }

    fn encoded(&self) -> Vec<u8> {
        self.to_untagged_bytes()
    }

    fn boxed_clone(&self) -> Box<dyn AnyData> {
        Box::new(self.clone())
    }

    fn replace(&mut self, mut other: Box<dyn AnyData>) -> Result<(), Box<dyn AnyData>> {
        match other.as_any_mut().downcast_mut::<T>() {
            Some(value) => {
                std::mem::swap(self, value);
                Ok(())
            }
            None => Err(other),
        }
    }

    fn size_hint(&self) -> usize {
        ReplicatedData::size_hint(self)
    }

    fn reads_like(&self, before: &dyn AnyData) -> bool {
        before.as_any().downcast_ref::<T>().is_some_and(|before| ReplicatedData::reads_like(self, before))
    }

    fn bind(&mut self, home: Home) {
        ReplicatedData::bind(self, home);
    }

    fn pruning(&self) -> Option<&dyn RemovedNodePruning> {
        ReplicatedData::pruning(self)
    }

    fn pruning_mut(&mut self) -> Option<&mut dyn RemovedNodePruning> {
        ReplicatedData::pruning_mut(self)
    }

    fn latest_timestamp(&self) -> Option<i64> {
        ReplicatedData::latest_timestamp(self)
    }

    fn ranged(&self) -> Option<&dyn Ranged> {
        ReplicatedData::ranged(self)
    }

    fn ranged_mut(&mut self) -> Option<&mut dyn Ranged> {
        ReplicatedData::ranged_mut(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// The tags of types met so far, so that no tag is formatted for every change of a value.
#[derive(Debug, Default)]
pub(crate) struct Tags(BTreeMap<TypeId, (Arc<str>, Digest)>);

impl Tags {
    /// The tag of a value's type, and its digest.
    pub(crate) fn of(&mut self, value: &dyn AnyData) -> &(Arc<str>, Digest) {
        self.0.entry(value.as_any().type_id()).or_insert_with(|| {
            let tag = value.tag();
            let digest = Digest::of(tag.as_bytes());
            (tag, digest)
        })
    }
}

/// Operations on encoded values and deltas of one type.
pub(crate) trait AnyType: Send + Sync {
    fn zero(&self) -> Box<dyn AnyData>;
    fn decode(&self, bytes: &[u8]) -> Result<Box<dyn AnyData>, DecodeError>;
    /// Joins an encoded delta into a value of this type, cleaned with the markers. Returns also the latest timestamp in
    /// the delta.
    fn merge_delta(
        &self,
        value: &mut dyn AnyData,
        delta: &[u8],
        markers: &Markers,
    ) -> Result<(Grew, Option<i64>), Refused>;
    /// Whether the markers change an encoded delta.
    fn is_cleaned_by(&self, delta: &[u8], markers: &Markers) -> bool;
    /// Joins encoded deltas. Returns also the number of leaves of the result.
    fn join_deltas(&self, deltas: &[&[u8]]) -> Result<(Vec<u8>, usize), DecodeError>;
}

/// Why an encoded delta was not joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    Undecodable(DecodeError),
    Merge(MergeError),
}

struct TypeOf<T>(std::marker::PhantomData<fn() -> T>);

impl<T: ReplicatedData> AnyType for TypeOf<T> {
    fn zero(&self) -> Box<dyn AnyData> {
        Box::new(T::zero())
    }

    fn decode(&self, bytes: &[u8]) -> Result<Box<dyn AnyData>, DecodeError> {
        Ok(Box::new(T::from_untagged_bytes(bytes)?))
    }

    fn merge_delta(
        &self,
        value: &mut dyn AnyData,
        delta: &[u8],
        markers: &Markers,
    ) -> Result<(Grew, Option<i64>), Refused> {
        let mut delta = T::delta_from_bytes(delta).map_err(Refused::Undecodable)?;
        if !markers.is_empty() {
            markers.clean_delta::<T>(&mut delta);
        }
        let value = value.as_any_mut().downcast_mut::<T>();
        let other = || Refused::Merge(MergeError::Incompatible(format!("the value is not a {}", type_name::<T>())));
        let grew = value.ok_or_else(other)?.merge_delta(&delta).map_err(Refused::Merge)?;
        Ok((grew, T::latest_timestamp_of(&delta)))
    }

    fn is_cleaned_by(&self, delta: &[u8], markers: &Markers) -> bool {
        T::delta_from_bytes(delta).is_ok_and(|mut delta| markers.clean_delta::<T>(&mut delta))
    }

    fn join_deltas(&self, deltas: &[&[u8]]) -> Result<(Vec<u8>, usize), DecodeError> {
        let mut joined: Option<T::Delta> = None;
        for bytes in deltas {
            let delta = T::delta_from_bytes(bytes)?;
            match &mut joined {
                Some(joined) => T::join_deltas(joined, &delta),
                None => joined = Some(delta),
            }
        }
        let joined = joined.ok_or(DecodeError::Truncated)?;
        Ok((T::delta_to_bytes(&joined), T::delta_size(&joined)))
    }
}

/// The types that a replicator can read, by tag.
///
/// Using a type locally adds it; list here the types that only peers may use. A value with an unknown tag is refused
/// and not stored. Source: ddata A5, O4.
#[derive(Clone)]
pub struct TypeTable {
    types: BTreeMap<Arc<str>, Arc<dyn AnyType>>,
    /// The types in the table, so that adding a type at every update is cheap.
    known: BTreeSet<TypeId>,
}

impl TypeTable {
    /// A table of every type of greylag-crdt without parameters, and of those with parameters that are texts.
    pub fn new() -> Self {
        Self::empty()
            .with::<Flag>()
            .with::<GCounter>()
            .with::<PNCounter>()
            .with::<GSet<String>>()
            .with::<OrSet<String>>()
            .with::<LwwRegister<String>>()
            .with::<MvRegister<String>>()
            .with::<LwwMap<String, String>>()
            .with::<OrMultiMap<String, String>>()
            .with::<PnCounterMap<String>>()
    }

    /// A table without types.
    pub(crate) fn empty() -> Self {
        Self { types: BTreeMap::new(), known: BTreeSet::new() }
    }

    /// Adds the types of another table. Returns the tags of all of them.
    pub(crate) fn join(&mut self, other: &Self) -> Vec<Arc<str>> {
        self.known.extend(&other.known);
        for (tag, of_type) in &other.types {
            self.types.entry(tag.clone()).or_insert_with(|| of_type.clone());
        }
        other.types.keys().cloned().collect()
    }

    /// The table with one more type.
    #[must_use]
    pub fn with<T: ReplicatedData>(mut self) -> Self {
        self.add::<T>();
        self
    }

    /// Adds a type; does nothing if it is there.
    pub fn add<T: ReplicatedData>(&mut self) {
        if self.known.insert(TypeId::of::<T>()) {
            let of_type = || Arc::new(TypeOf::<T>(std::marker::PhantomData)) as Arc<dyn AnyType>;
            self.types.entry(T::TAG.to_string().into()).or_insert_with(of_type);
        }
    }

    pub(crate) fn find(&self, tag: &str) -> Option<&Arc<dyn AnyType>> {
        self.types.get(tag)
    }
}

impl Default for TypeTable {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TypeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.types.keys()).finish()
    }
}
