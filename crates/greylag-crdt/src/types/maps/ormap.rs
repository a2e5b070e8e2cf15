//! A map of stores: removing a key removes what its caller saw under the key, and nothing else.
//!
//! All values share the entry's one context, so there are no tombstones, and a removed value never returns.
//!
//! Source: ddata Y7.

use std::borrow::Borrow;
use std::fmt;

use crate::causality::cx::UpdateCx;
use crate::encoding::element::Element;
use crate::stores::causal::{Causal, keyed};
use crate::stores::store::{DotMap, DotSet, Store};

/// A map inside a map, with the semantics of [`OrMap`].
pub type OrMapStore<K, S> = DotMap<K, S>;

/// A flag inside a map; enabling wins over a concurrent disabling. A disabled flag is absent.
pub type FlagStore = DotSet;

/// A map whose values are stores: [`crate::OrSetStore`], [`OrMapStore`], [`crate::LwwStore`], [`crate::CounterStore`],
/// [`FlagStore`], or any replicated type as [`crate::Plain`].
///
/// An update of a key wins over its concurrent removal. A store that can be split keeps exactly what the remover had
/// not seen (reset-remove); a `Plain` or a counter is kept whole (update wins).
///
/// ```
/// use greylag_crdt::{DotSource, OrMap, OrSetStore, ReplicaId, ReplicatedData, UpdateCx, WriterKey};
///
/// let (source, writer) = (DotSource::new(), WriterKey::new(*b"a"));
/// let mut cx = UpdateCx::new(&source, ReplicaId(1), &writer, 0);
/// let mut tags: OrMap<String, OrSetStore<String>> = OrMap::new();
/// tags.update(&mut cx, "goose".into(), |set, cx| set.add_all(cx, ["grey".into(), "loud".into()]));
/// tags.put(&mut cx, "duck".into(), &OrSetStore::of_elements(["small".into()]));
/// tags.update(&mut cx, "goose".into(), |set, cx| assert!(set.remove(cx, "loud")));
/// let of_goose: Vec<_> = tags.get("goose").into_iter().flat_map(|set| set.iter()).collect();
/// assert_eq!(of_goose, ["grey"]);
/// ```
#[derive(Clone, PartialEq)]
pub struct OrMap<K: Element, S: Store> {
    pub(crate) causal: Causal<DotMap<K, S>>,
}

impl<K: Element, S: Store> OrMap<K, S> {
    /// Edits the value of a key in place, an empty value if the key is absent. A key whose value is empty afterwards is
    /// absent.
    pub fn update<R>(
        &mut self,
        cx: &mut UpdateCx<'_>,
        key: K,
        f: impl FnOnce(&mut S::Editor<'_>, &mut UpdateCx<'_>) -> R,
    ) -> R {
        self.edit().update(cx, key, f)
    }

    /// Puts a copy of `value` in the place of everything seen under the key. The value may come from another key or
    /// another entry. An empty one removes the key.
    pub fn put(&mut self, cx: &mut UpdateCx<'_>, key: K, value: &S) {
        self.edit().put(cx, key, value);
    }

    /// Puts everything that another map holds: the way to copy content between entries. Source: ddata K12.
    pub fn extend_from(&mut self, cx: &mut UpdateCx<'_>, other: &Self) {
        other.iter().for_each(|(key, value)| self.put(cx, key.clone(), value));
    }

    /// The value of a key; `None` if the key is absent.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&S>
    where
        K: Borrow<Q>,
    {
        self.store().get(key)
    }

    /// Keys and values, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &S)> {
        self.store().entries().iter()
    }
}

impl<K: Element, S: Store> fmt::Debug for OrMap<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

keyed!("gl.ormap/1", OrMap<K: Element, S: Store>, "map", key: K, DotMap<K, S>);
