//! A map from keys to sets.
//!
//! Source: ddata Y10.

use std::borrow::Borrow;
use std::fmt;

use crate::causality::cx::UpdateCx;
use crate::encoding::element::Element;
use crate::stores::causal::{Causal, keyed};
use crate::stores::store::DotMap;
use crate::types::orset::OrSetStore;

/// A map from keys to sets of values. Bindings are added and removed one by one; a key without a binding is absent.
///
/// An added binding wins over a concurrent removal of itself or of its key.
///
/// ```
/// use greylag_crdt::{DotSource, OrMultiMap, ReplicaId, UpdateCx, WriterKey};
///
/// let (source, writer) = (DotSource::new(), WriterKey::new(*b"a"));
/// let mut cx = UpdateCx::new(&source, ReplicaId(1), &writer, 0);
/// let mut cart: OrMultiMap<String, String> = OrMultiMap::new();
/// cart.add_binding(&mut cx, "fruit".into(), "apple".into());
/// cart.add_binding(&mut cx, "fruit".into(), "pear".into());
/// cart.remove_binding(&mut cx, "fruit", "apple");
/// assert!(cart.get("fruit").is_some_and(|fruit| fruit.contains("pear") && fruit.len() == 1));
/// ```
#[derive(Clone, PartialEq)]
pub struct OrMultiMap<K: Element, V: Element> {
    pub(crate) causal: Causal<DotMap<K, OrSetStore<V>>>,
}

impl<K: Element, V: Element> OrMultiMap<K, V> {
    /// The same as [`OrMultiMap::new`]: the type has one form only, with deltas of values.
    pub fn with_value_deltas() -> Self {
        Self::new()
    }

    /// Binds a value to a key. Also a change if the binding exists: it then survives removals that have not seen this
    /// add.
    pub fn add_binding(&mut self, cx: &mut UpdateCx<'_>, key: K, value: V) {
        self.edit().update(cx, key, |values, cx| values.add(cx, value));
    }

    /// Removes a binding as far as this replica sees it. Returns whether the binding existed.
    pub fn remove_binding<Q, R>(&mut self, cx: &mut UpdateCx<'_>, key: &Q, value: &R) -> bool
    where
        K: Borrow<Q>,
        V: Borrow<R>,
        Q: Ord + ?Sized,
        R: Ord + ?Sized,
    {
        let Some((key, _)) = self.store().entries().get_key_value(key) else { return false };
        let key = key.clone();
        self.edit().update(cx, key, |values, cx| values.remove(cx, value))
    }

    /// Binds `new` in the place of `old`; does nothing if they are equal.
    pub fn replace_binding(&mut self, cx: &mut UpdateCx<'_>, key: K, old: &V, new: V) {
        if *old != new {
            self.edit().update(cx, key, |values, cx| {
                values.add(cx, new);
                values.remove(cx, old);
            });
        }
    }

    /// Puts a set of values in the place of everything seen under the key; an empty set removes the key.
    pub fn put(&mut self, cx: &mut UpdateCx<'_>, key: K, values: impl IntoIterator<Item = V>) {
        self.edit().put(cx, key, &OrSetStore::of_elements(values));
    }

    /// Binds everything that another map binds: the way to copy content between entries. Source: ddata K12.
    pub fn extend_from(&mut self, cx: &mut UpdateCx<'_>, other: &Self) {
        for (key, values) in other.iter() {
            self.edit().update(cx, key.clone(), |own, cx| own.add_all(cx, values.iter().cloned()));
        }
    }

    /// The values of a key; `None` if the key is absent.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&OrSetStore<V>>
    where
        K: Borrow<Q>,
    {
        self.store().get(key)
    }

    /// The values of a key; `absent` if the key is absent.
    pub fn get_or<'a, Q: Ord + ?Sized>(&'a self, key: &Q, absent: &'a OrSetStore<V>) -> &'a OrSetStore<V>
    where
        K: Borrow<Q>,
    {
        self.get(key).unwrap_or(absent)
    }

    /// Whether a value is bound to a key.
    pub fn contains_binding<Q, R>(&self, key: &Q, value: &R) -> bool
    where
        K: Borrow<Q>,
        V: Borrow<R>,
        Q: Ord + ?Sized,
        R: Ord + ?Sized,
    {
        self.get(key).is_some_and(|values| values.contains(value))
    }

    /// Keys and their values, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &OrSetStore<V>)> {
        self.store().entries().iter()
    }
}

impl<K: Element, V: Element> fmt::Debug for OrMultiMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sets = self.iter().map(|(key, values)| (key, values.iter().collect::<std::collections::BTreeSet<_>>()));
        f.debug_map().entries(sets).finish()
    }
}

keyed!("gl.ormultimap/1", OrMultiMap<K: Element, V: Element>, "map", key: K, DotMap<K, OrSetStore<V>>);
