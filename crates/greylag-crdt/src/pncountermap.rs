//! A map of counters.
//!
//! Source: ddata Y9.

use std::borrow::Borrow;
use std::fmt;

use crate::causal::{Causal, causal_data, ranged_data};
use crate::context::Context;
use crate::cx::UpdateCx;
use crate::data::ReplicatedData;
use crate::element::Element;
use crate::error::CounterOverflow;
use crate::slot_counter::CounterStore;
use crate::store::{DotMap, StoreMut};
use crate::tag::TypeTag;

/// A map of counters that grow and shrink. A removed key begins at 0 again; an increment wins over a concurrent removal
/// and keeps what its replica had counted before.
///
/// ```
/// use greylag_crdt::{DotSource, PnCounterMap, ReplicaId, UpdateCx, WriterKey};
///
/// let (source, writer) = (DotSource::new(), WriterKey::new(*b"a"));
/// let mut cx = UpdateCx::new(&source, ReplicaId(1), &writer, 0);
/// let mut votes: PnCounterMap<String> = PnCounterMap::new();
/// votes.increment(&mut cx, "goose".into(), 3)?;
/// votes.decrement(&mut cx, "goose".into(), 1)?;
/// assert_eq!(votes.get("goose"), Some(2));
/// # Ok::<(), greylag_crdt::CounterOverflow>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct PnCounterMap<K: Element> {
    pub(crate) causal: Causal<DotMap<K, CounterStore>>,
}

impl<K: Element> PnCounterMap<K> {
    /// The empty map.
    pub fn new() -> Self {
        Self { causal: Causal::default() }
    }

    /// Adds to the counter of a key; a negative amount is a decrement, 0 changes nothing.
    ///
    /// # Errors
    /// [`CounterOverflow`].
    pub fn increment(&mut self, cx: &mut UpdateCx<'_>, key: K, by: i64) -> Result<(), CounterOverflow> {
        StoreMut(&mut self.causal).update(cx, key, |counter, cx| counter.increment(cx, by))
    }

    /// Takes from the counter of a key; a negative amount is an increment, 0 changes nothing.
    ///
    /// # Errors
    /// [`CounterOverflow`].
    pub fn decrement(&mut self, cx: &mut UpdateCx<'_>, key: K, by: i64) -> Result<(), CounterOverflow> {
        StoreMut(&mut self.causal).update(cx, key, |counter, cx| counter.decrement(cx, by))
    }

    /// Removes the key as far as it is seen here. Returns whether it was present.
    pub fn remove<Q: Ord + ?Sized>(&mut self, cx: &mut UpdateCx<'_>, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        StoreMut(&mut self.causal).remove(cx, key)
    }

    /// Removes everything that is seen here.
    pub fn clear(&mut self, cx: &mut UpdateCx<'_>) {
        StoreMut(&mut self.causal).clear(cx);
    }

    /// Puts every counter of another map, at its present value: how content is copied between entries.
    /// Source: ddata K12.
    pub fn extend_from(&mut self, cx: &mut UpdateCx<'_>, other: &Self) {
        for (key, counter) in other.causal.store().entries().iter() {
            StoreMut(&mut self.causal).put(cx, key.clone(), counter);
        }
    }

    /// The value of a key, within the bounds of `i128`; `None` if it is absent.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<i128>
    where
        K: Borrow<Q>,
    {
        self.causal.store().get(key).map(CounterStore::value)
    }

    /// Keys and values, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (&K, i128)> {
        self.causal.store().entries().iter().map(|(key, counter)| (key, counter.value()))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.causal.store().len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dots that this state has seen, for diagnosis.
    pub fn context(&self) -> &Context {
        self.causal.context()
    }
}

impl<K: Element> Default for PnCounterMap<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Element> fmt::Debug for PnCounterMap<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Element> ReplicatedData for PnCounterMap<K> {
    causal_data!(TypeTag::with("gl.pncountermap/1", &[&K::TAG]), DotMap<K, CounterStore>);
    ranged_data!();
}
