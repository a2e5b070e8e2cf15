//! Dot stores and their joins.
//!
//! A store holds leaves, each labelled with the dot that wrote it. Two sides `(s, c)` and `(s', c')`
//! join leaf by leaf: a leaf of one side survives unless the other side's context has seen its dot
//! and its store lacks it, for then somebody removed it. All stores of an entry share one context.
//!
//! Source: ddata K5; Almeida, Shoker, Baquero, "Delta state replicated data types", 2018.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use crate::codec::{DecodeError, Decoder, Encoder, ascending};
use crate::context::Context;
use crate::element::Element;
use crate::hash::Digest;
use crate::map::PersistentMap;
use crate::replica::Dot;
use crate::tag::TypeTag;

/// What a join did to a store: whether it changed, and by how much the sum of its leaves' digests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meter {
    /// Whether anything changed.
    pub changed: bool,
    /// What is to be added to the sum.
    pub sum: Digest,
}

/// Leaves labelled with dots.
pub trait Store: Clone + Default + PartialEq + Debug + Send + Sync + 'static {
    /// Which part of a store a fragment speaks of.
    type Scope: Clone + PartialEq + Debug + Send + Sync + 'static;
    /// Its name as a parameter of a type tag.
    const TAG: TypeTag;

    /// The scope of a full state.
    fn everything() -> Self::Scope;

    /// The union of two scopes.
    fn join_scopes(into: &mut Self::Scope, other: &Self::Scope);

    /// Joins `other` into this store, as far as `scope` reaches. `own` and `theirs` are the contexts
    /// of the two sides; `path` is the canonical path to this store.
    fn join(&mut self, own: &Context, other: &Self, theirs: &Context, scope: &Self::Scope, path: &mut Vec<u8>)
    -> Meter;

    /// Whether there is no leaf.
    fn is_empty(&self) -> bool;

    /// How many leaves there are, roughly, in constant time.
    fn leaves(&self) -> usize;

    /// Calls `visit` with every dot.
    fn visit_dots(&self, visit: &mut dyn FnMut(Dot));

    /// The sum of the leaves' digests.
    fn digest(&self, path: &mut Vec<u8>) -> Digest;

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

/// A lattice: values that can be joined.
pub trait Lattice: Clone + PartialEq + Debug + Send + Sync + 'static {
    /// Joins the other into this one.
    fn join(&mut self, other: &Self);
}

/// The scope of stores that are always spoken of as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole;

fn encode_dot(dot: Dot, out: &mut Encoder) {
    out.replica(dot.replica);
    out.u64(dot.number);
}

fn decode_dot(inp: &mut Decoder<'_>) -> Result<Dot, DecodeError> {
    let replica = inp.replica()?;
    match inp.u64()? {
        0 => Err(DecodeError::Invalid("a dot has the number 0")),
        number => Ok(Dot::new(replica, number)),
    }
}

fn push_dot(path: &mut Vec<u8>, dot: Dot) {
    path.extend_from_slice(&dot.replica.0.to_be_bytes());
    path.extend_from_slice(&dot.number.to_be_bytes());
}

/// Dots without values: present as long as one of them is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DotSet {
    /// Ascending.
    dots: Vec<Dot>,
}

impl DotSet {
    /// The set of one dot.
    pub fn single(dot: Dot) -> Self {
        Self { dots: vec![dot] }
    }

    /// The dots, ascending.
    pub fn dots(&self) -> &[Dot] {
        &self.dots
    }
}

impl Store for DotSet {
    type Scope = Whole;
    const TAG: TypeTag = TypeTag::new("dots");

    fn everything() -> Whole {
        Whole
    }

    fn join_scopes(_: &mut Whole, _: &Whole) {}

    fn join(&mut self, own: &Context, other: &Self, theirs: &Context, _: &Whole, path: &mut Vec<u8>) -> Meter {
        let mut dots: Vec<Dot> =
            self.dots.iter().copied().filter(|d| other.dots.contains(d) || !theirs.contains(*d)).collect();
        dots.extend(other.dots.iter().copied().filter(|d| !self.dots.contains(d) && !own.contains(*d)));
        dots.sort_unstable();
        if dots == self.dots {
            return Meter::default();
        }
        let before = self.digest(path);
        self.dots = dots;
        Meter { changed: true, sum: self.digest(path).minus(before) }
    }

    fn is_empty(&self) -> bool {
        self.dots.is_empty()
    }

    fn leaves(&self) -> usize {
        self.dots.len()
    }

    fn visit_dots(&self, visit: &mut dyn FnMut(Dot)) {
        self.dots.iter().copied().for_each(visit);
    }

    fn digest(&self, path: &mut Vec<u8>) -> Digest {
        if self.dots.is_empty() {
            return Digest::default();
        }
        let length = path.len();
        self.dots.iter().for_each(|dot| push_dot(path, *dot));
        let digest = Digest::of(path);
        path.truncate(length);
        digest
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.dots.len() as u64);
        self.dots.iter().for_each(|dot| encode_dot(*dot, out));
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut dots = Vec::new();
        ascending(inp, |inp| {
            let dot = decode_dot(inp)?;
            dots.push(dot);
            Ok(dot)
        })?;
        Ok(Self { dots })
    }

    fn encode_scope(_: &Whole, _: &mut Encoder) {}

    fn decode_scope(_: &mut Decoder<'_>) -> Result<Whole, DecodeError> {
        Ok(Whole)
    }
}

/// Dots with values; concurrent values coexist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DotFun<V> {
    values: BTreeMap<Dot, V>,
}

impl<V> Default for DotFun<V> {
    fn default() -> Self {
        Self { values: BTreeMap::new() }
    }
}

impl<V> DotFun<V> {
    /// One value under one dot.
    pub fn single(dot: Dot, value: V) -> Self {
        Self { values: BTreeMap::from([(dot, value)]) }
    }

    /// The values, by dot.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.values.values()
    }

    /// The dots, ascending.
    pub fn dots(&self) -> impl Iterator<Item = Dot> + '_ {
        self.values.keys().copied()
    }
}

impl<V: Lattice + Element> Store for DotFun<V> {
    type Scope = Whole;
    const TAG: TypeTag = TypeTag::with("dotfun", &[&V::TAG]);

    fn everything() -> Whole {
        Whole
    }

    fn join_scopes(_: &mut Whole, _: &Whole) {}

    fn join(&mut self, own: &Context, other: &Self, theirs: &Context, _: &Whole, path: &mut Vec<u8>) -> Meter {
        let mut values = BTreeMap::new();
        for (dot, value) in &self.values {
            match other.values.get(dot) {
                Some(twin) => {
                    let mut joined = value.clone();
                    joined.join(twin);
                    values.insert(*dot, joined);
                }
                None if theirs.contains(*dot) => {}
                None => drop(values.insert(*dot, value.clone())),
            }
        }
        for (dot, value) in &other.values {
            if !self.values.contains_key(dot) && !own.contains(*dot) {
                values.insert(*dot, value.clone());
            }
        }
        if values == self.values {
            return Meter::default();
        }
        let before = self.digest(path);
        self.values = values;
        Meter { changed: true, sum: self.digest(path).minus(before) }
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn leaves(&self) -> usize {
        self.values.len()
    }

    fn visit_dots(&self, visit: &mut dyn FnMut(Dot)) {
        self.values.keys().copied().for_each(visit);
    }

    fn digest(&self, path: &mut Vec<u8>) -> Digest {
        let length = path.len();
        let mut sum = Digest::default();
        for (dot, value) in &self.values {
            push_dot(path, *dot);
            let mut out = Encoder::new();
            value.encode(&mut out);
            path.extend_from_slice(&out.finish());
            sum = sum.plus(Digest::of(path));
            path.truncate(length);
        }
        sum
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.values.len() as u64);
        for (dot, value) in &self.values {
            encode_dot(*dot, out);
            value.encode(out);
        }
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut values = BTreeMap::new();
        ascending(inp, |inp| {
            let dot = decode_dot(inp)?;
            values.insert(dot, V::decode(inp)?);
            Ok(dot)
        })?;
        Ok(Self { values })
    }

    fn encode_scope(_: &Whole, _: &mut Encoder) {}

    fn decode_scope(_: &mut Decoder<'_>) -> Result<Whole, DecodeError> {
        Ok(Whole)
    }
}

/// A store per key; a key whose store is empty is absent.
#[derive(Debug, Clone, PartialEq)]
pub struct DotMap<K: Element, S: Store> {
    entries: PersistentMap<K, S>,
}

/// Which keys of a [`DotMap`] a fragment speaks of.
#[derive(Debug, Clone, PartialEq)]
pub enum MapScope<K: Ord, C> {
    /// All of them: what the fragment's context has seen and its store lacks is removed.
    All,
    /// These, each as far as its own scope reaches; the others are left alone.
    Touched(BTreeMap<K, C>),
}

impl<K: Element, S: Store> Default for DotMap<K, S> {
    fn default() -> Self {
        Self { entries: PersistentMap::new() }
    }
}

impl<K: Element, S: Store> DotMap<K, S> {
    /// The stores by key.
    pub fn entries(&self) -> &PersistentMap<K, S> {
        &self.entries
    }

    /// Puts a store under a key of a fragment that is being built.
    pub fn put(&mut self, key: K, store: S) {
        self.entries.insert(key, store);
    }

    #[expect(clippy::too_many_arguments, reason = "both sides of a join, and where it happens")]
    fn join_key(
        &mut self,
        key: &K,
        own: &Context,
        other: &Self,
        theirs: &Context,
        scope: &S::Scope,
        path: &mut Vec<u8>,
        total: &mut Meter,
    ) {
        let absent = S::default();
        let their_store = other.entries.get(key).unwrap_or(&absent);
        let mut store = self.entries.get(key).cloned().unwrap_or_default();
        let length = path.len();
        let mut out = Encoder::new();
        key.encode(&mut out);
        path.extend_from_slice(&out.finish());
        let meter = store.join(own, their_store, theirs, scope, path);
        path.truncate(length);
        if !meter.changed {
            return;
        }
        if store.is_empty() {
            self.entries.remove(key);
        } else {
            self.entries.insert(key.clone(), store);
        }
        total.changed = true;
        total.sum = total.sum.plus(meter.sum);
    }
}

impl<K: Element, S: Store> Store for DotMap<K, S> {
    type Scope = MapScope<K, S::Scope>;
    const TAG: TypeTag = TypeTag::with("dotmap", &[&K::TAG, &S::TAG]);

    fn everything() -> Self::Scope {
        MapScope::All
    }

    fn join_scopes(into: &mut Self::Scope, other: &Self::Scope) {
        let (MapScope::Touched(own), MapScope::Touched(theirs)) = (&mut *into, other) else {
            *into = MapScope::All;
            return;
        };
        for (key, scope) in theirs {
            match own.get_mut(key) {
                Some(twin) => S::join_scopes(twin, scope),
                None => drop(own.insert(key.clone(), scope.clone())),
            }
        }
    }

    fn join(
        &mut self,
        own: &Context,
        other: &Self,
        theirs: &Context,
        scope: &Self::Scope,
        path: &mut Vec<u8>,
    ) -> Meter {
        let mut total = Meter::default();
        match scope {
            MapScope::Touched(keys) => {
                for (key, scope) in keys {
                    self.join_key(key, own, other, theirs, scope, path, &mut total);
                }
            }
            MapScope::All => {
                let keys: BTreeSet<K> = self.entries.keys().chain(other.entries.keys()).cloned().collect();
                for key in &keys {
                    self.join_key(key, own, other, theirs, &S::everything(), path, &mut total);
                }
            }
        }
        total
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn leaves(&self) -> usize {
        self.entries.len()
    }

    fn visit_dots(&self, visit: &mut dyn FnMut(Dot)) {
        self.entries.iter().for_each(|(_, store)| store.visit_dots(visit));
    }

    fn digest(&self, path: &mut Vec<u8>) -> Digest {
        let length = path.len();
        let mut sum = Digest::default();
        for (key, store) in self.entries.iter() {
            let mut out = Encoder::new();
            key.encode(&mut out);
            path.extend_from_slice(&out.finish());
            sum = sum.plus(store.digest(path));
            path.truncate(length);
        }
        sum
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.entries.len() as u64);
        for (key, store) in self.entries.iter() {
            key.encode(out);
            store.encode(out);
        }
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut entries = PersistentMap::new();
        ascending(inp, |inp| {
            let key = K::decode(inp)?;
            let store = S::decode(inp)?;
            if store.is_empty() {
                return Err(DecodeError::NotCanonical("a key without a leaf"));
            }
            entries.insert(key.clone(), store);
            Ok(key)
        })?;
        Ok(Self { entries })
    }

    fn encode_scope(scope: &Self::Scope, out: &mut Encoder) {
        match scope {
            MapScope::All => out.u8(0),
            MapScope::Touched(keys) => {
                out.u8(1);
                out.u64(keys.len() as u64);
                for (key, scope) in keys {
                    key.encode(out);
                    S::encode_scope(scope, out);
                }
            }
        }
    }

    fn decode_scope(inp: &mut Decoder<'_>) -> Result<Self::Scope, DecodeError> {
        match inp.u8()? {
            0 => Ok(MapScope::All),
            1 => {
                let mut keys = BTreeMap::new();
                ascending(inp, |inp| {
                    let key = K::decode(inp)?;
                    keys.insert(key.clone(), S::decode_scope(inp)?);
                    Ok(key)
                })?;
                Ok(MapScope::Touched(keys))
            }
            _ => Err(DecodeError::Invalid("an unknown scope")),
        }
    }
}
