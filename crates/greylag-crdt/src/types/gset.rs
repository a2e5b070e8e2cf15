//! A set that only grows.

mod added;
mod ranges;

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;

pub use added::Added;

use crate::data::{Change, Grew, Lineage, ReplicatedData, Tracker};
use crate::encoding::cached_digest::CachedDigest;
use crate::encoding::codec::{DecodeError, Decoder, Encoder, FORMAT, ascending};
use crate::encoding::element::Element;
use crate::encoding::hash::Digest;
use crate::encoding::tag::TypeTag;
use crate::error::MergeError;
use crate::stores::map::PersistentMap;
use crate::stores::store::{push_element, with_path};

/// A set whose elements can never be removed. Source: ddata §1, Y2, Y5.
///
/// ```
/// use greylag_crdt::GSet;
///
/// let mut seen = GSet::new();
/// seen.add("goose".to_owned());
/// assert!(seen.contains("goose"));
/// ```
#[derive(Clone)]
pub struct GSet<T: Element> {
    elements: PersistentMap<T, ()>,
    /// The sum of the elements' digests, kept up with every change since it was asked for.
    sum: CachedDigest,
    tracker: Tracker<Added<T>>,
}

impl<T: Element> GSet<T> {
    /// The empty set.
    pub fn new() -> Self {
        Self { elements: PersistentMap::new(), sum: CachedDigest::default(), tracker: Tracker::default() }
    }

    /// Adds an element; does nothing if it is present.
    pub fn add(&mut self, element: T) {
        let delta = self.tracker.is_open().then(|| Added::one(element.clone()));
        if self.insert(element)
            && let Some(delta) = delta
        {
            self.tracker.record(delta, Added::join);
        }
    }

    /// Inserts an element. Returns whether it was absent.
    fn insert(&mut self, element: T) -> bool {
        let sum = &mut self.sum;
        self.elements.insert_absent(element, |element| sum.add(|| digest_of(element)))
    }

    /// Inserts elements one by one. Returns whether any was absent.
    fn insert_all<'a>(&mut self, elements: impl Iterator<Item = &'a T>) -> bool {
        let before = self.len();
        for element in elements {
            if !self.contains(element) {
                self.insert(element.clone());
            }
        }
        self.len() > before
    }

    /// Inserts many elements, which are absent and ascend, by rebuilding the set in one pass.
    fn rebuild_with(&mut self, missing: Vec<T>) {
        self.sum.add(|| sum_of(missing.iter()));
        let mut all = Vec::with_capacity(self.len() + missing.len());
        let mut missing = missing.into_iter().peekable();
        for own in self.elements.keys() {
            while let Some(next) = missing.next_if(|next| next < own) {
                all.push((next, ()));
            }
            all.push((own.clone(), ()));
        }
        all.extend(missing.map(|element| (element, ())));
        self.elements = PersistentMap::from_ascending(all);
    }

    /// Whether the element is present.
    pub fn contains<Q: Ord + ?Sized>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.elements.get(element).is_some()
    }

    /// The elements, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.elements.keys()
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }
}

/// Merging with fewer elements looks each up; merging with more, unless far fewer than the set has, walks along
/// both sets.
const LOOKUP_LIMIT: usize = 16;

fn sum_of<'a, T: Element>(elements: impl Iterator<Item = &'a T>) -> Digest {
    elements.map(digest_of).fold(Digest::default(), Digest::plus)
}

fn digest_of<T: Element>(element: &T) -> Digest {
    with_path(|path| {
        push_element(path, element);
        Digest::of(path)
    })
}

impl<T: Element> Default for GSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Element> PartialEq for GSet<T> {
    fn eq(&self, other: &Self) -> bool {
        let digests = self.sum.known().zip(other.sum.known());
        digests.is_none_or(|(own, theirs)| own == theirs) && self.elements == other.elements
    }
}

impl<T: Element> fmt::Debug for GSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl<T: Element> ReplicatedData for GSet<T> {
    const TAG: TypeTag = TypeTag::with("gl.gset/1", &[&T::TAG]);
    const CAUSAL: bool = false;
    type Delta = Added<T>;

    fn zero() -> Self {
        Self::new()
    }

    fn merge(&mut self, other: &Self) -> Result<Grew, MergeError> {
        self.tracker.merged();
        if self.elements.is_shared_with(&other.elements) {
            return Ok(Grew::No);
        }
        if self.is_empty() {
            self.elements = other.elements.clone();
            self.sum.clone_from(&other.sum);
            return Ok((!other.is_empty()).into());
        }
        if other.len() < LOOKUP_LIMIT.max(self.len() / 8) {
            return Ok(self.insert_all(other.iter()).into());
        }
        let mut missing = Vec::with_capacity(other.len());
        let mut own = self.elements.keys();
        let mut next = own.next();
        for element in other.iter() {
            let order = loop {
                match next.map(|own| own.cmp(element)) {
                    Some(Ordering::Less) => next = own.next(),
                    order => break order,
                }
            };
            match order {
                Some(Ordering::Equal) => next = own.next(),
                _ => missing.push(element.clone()),
            }
        }
        drop(own);
        let grew = !missing.is_empty();
        if missing.len() > self.len() / 8 {
            self.rebuild_with(missing);
        } else {
            missing.into_iter().for_each(|element| _ = self.insert(element));
        }
        Ok(grew.into())
    }

    fn merge_delta(&mut self, delta: &Added<T>) -> Result<Grew, MergeError> {
        self.tracker.merged();
        Ok(self.insert_all(delta.iter()).into())
    }

    fn join_deltas(into: &mut Added<T>, other: &Added<T>) {
        into.join(other);
    }

    fn delta_size(delta: &Added<T>) -> usize {
        delta.len()
    }

    fn ranged(&self) -> Option<&dyn crate::ranges::Ranged> {
        Some(self)
    }

    fn ranged_mut(&mut self) -> Option<&mut dyn crate::ranges::Ranged> {
        Some(self)
    }

    fn begin_change(&mut self, lineage: Lineage) {
        self.tracker.begin(lineage);
    }

    fn take_change(&mut self, lineage: Lineage) -> Change<Added<T>> {
        self.tracker.take(lineage)
    }

    fn digest(&self) -> Digest {
        self.sum.get_or(|| sum_of(self.iter()))
    }

    fn encode(&self, out: &mut Encoder) {
        out.u8(FORMAT);
        out.u64(self.len() as u64);
        self.iter().for_each(|element| element.encode(out));
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        inp.format()?;
        let mut elements = Vec::new();
        ascending(inp, |inp| {
            let element = T::decode(inp)?;
            elements.push((element.clone(), ()));
            Ok(element)
        })?;
        Ok(Self { elements: PersistentMap::from_ascending(elements), ..Self::new() })
    }

    fn encode_delta(delta: &Added<T>, out: &mut Encoder) {
        out.u8(FORMAT);
        delta.encode(out);
    }

    fn decode_delta(inp: &mut Decoder<'_>) -> Result<Added<T>, DecodeError> {
        inp.format()?;
        Added::decode(inp)
    }

    fn size_hint(&self) -> usize {
        8 + self.len() * 16
    }
}
