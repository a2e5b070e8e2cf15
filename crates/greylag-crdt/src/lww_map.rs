//! The map in which the last put of a key wins.
//!
//! A put stores, under one new dot, the winner of what it saw and its own write; so the loser of a
//! put by a custom clock is refreshed against concurrent removes. Concurrent writes coexist until the
//! next put, and the winner shows.
//!
//! Source: ddata Y8.

use std::fmt;

use crate::causal::{Causal, causal_data, ranged_data};
use crate::context::Context;
use crate::cx::UpdateCx;
use crate::data::ReplicatedData;
use crate::element::Element;
use crate::error::ClockExhausted;
use crate::lww::{LwwCell, LwwStore};
use crate::store::{DotMap, StoreMut};
use crate::tag::TypeTag;

/// A map of registers: a put wins over concurrent removes; concurrent puts are decided by timestamp.
///
/// ```
/// use greylag_crdt::{DotSource, LwwMap, ReplicaId, UpdateCx, WriterKey};
///
/// let (source, writer) = (DotSource::new(), WriterKey::new(*b"a"));
/// let mut cx = UpdateCx::new(&source, ReplicaId(1), &writer, 1_000);
/// let mut prices = LwwMap::new();
/// prices.put(&mut cx, "egg".to_owned(), 3_u32)?;
/// prices.put(&mut cx, "egg".to_owned(), 4)?;
/// assert_eq!(prices.get("egg"), Some(&4));
/// # Ok::<(), greylag_crdt::ClockExhausted>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct LwwMap<K: Element, V: Element> {
    pub(crate) causal: Causal<DotMap<K, LwwStore<V>>>,
}

impl<K: Element, V: Element> LwwMap<K, V> {
    /// The empty map.
    pub fn new() -> Self {
        Self { causal: Causal::default() }
    }

    /// Puts a value that wins over what is seen here.
    ///
    /// # Errors
    /// [`ClockExhausted`].
    pub fn put(&mut self, cx: &mut UpdateCx<'_>, key: K, value: V) -> Result<(), ClockExhausted> {
        self.as_store().update(cx, key, |register, cx| register.set(cx, value))
    }

    /// Puts a value so that the first put wins. Returns whether this one was it.
    ///
    /// # Errors
    /// [`ClockExhausted`].
    pub fn put_first(&mut self, cx: &mut UpdateCx<'_>, key: K, value: V) -> Result<bool, ClockExhausted> {
        self.as_store().update(cx, key, |register, cx| register.set_first(cx, value))
    }

    /// Puts a value with a timestamp of the caller's: `clock(current, &value)`, where `current` is 0
    /// for an absent key. Returns whether it won; if not, the former value stays, and the key is
    /// refreshed against concurrent removes. Source: ddata Y8.
    pub fn put_with(&mut self, cx: &mut UpdateCx<'_>, key: K, value: V, clock: impl FnOnce(i64, &V) -> i64) -> bool {
        self.as_store().update(cx, key, |register, cx| register.set_with(cx, value, clock))
    }

    /// Removes the key as far as it is seen here. Returns whether it was present.
    pub fn remove<Q: Ord + ?Sized>(&mut self, cx: &mut UpdateCx<'_>, key: &Q) -> bool
    where
        K: std::borrow::Borrow<Q>,
    {
        self.as_store().remove(cx, key)
    }

    /// The winning value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.winner(key).map(|cell| &cell.value)
    }

    /// The winning write's timestamp; 0 if the key is absent.
    pub fn timestamp<Q: Ord + ?Sized>(&self, key: &Q) -> i64
    where
        K: std::borrow::Borrow<Q>,
    {
        self.winner(key).map_or(0, |cell| cell.timestamp)
    }

    /// Whether the key is present.
    pub fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: std::borrow::Borrow<Q>,
    {
        self.winner(key).is_some()
    }

    /// Keys and winning values, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let entries = self.causal.store().entries().iter();
        entries.filter_map(|(key, register)| register.value().map(|value| (key, value)))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.causal.store().entries().len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dots that this state has seen, for diagnosis.
    pub fn context(&self) -> &Context {
        self.causal.context()
    }

    fn winner<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&LwwCell<V>>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.causal.store().get(key)?.winner()
    }

    fn as_store(&mut self) -> StoreMut<'_, DotMap<K, LwwStore<V>>> {
        StoreMut(&mut self.causal)
    }
}

impl<K: Element, V: Element> Default for LwwMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Element, V: Element> fmt::Debug for LwwMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Element, V: Element> ReplicatedData for LwwMap<K, V> {
    causal_data!(TypeTag::with("gl.lwwmap/1", &[&K::TAG, &V::TAG]), DotMap<K, LwwStore<V>>);
    ranged_data!();

    fn latest_timestamp(&self) -> Option<i64> {
        latest(self.causal.store())
    }

    fn latest_timestamp_of(delta: &Self::Delta) -> Option<i64> {
        latest(delta.store())
    }
}

fn latest<K: Element, V: Element>(store: &DotMap<K, LwwStore<V>>) -> Option<i64> {
    store.entries().iter().filter_map(|(_, register)| Some(register.winner()?.timestamp)).max()
}
