//! A map of counters.
//!
//! Source: ddata Y9.

use std::borrow::Borrow;
use std::fmt;

use crate::causality::cx::UpdateCx;
use crate::encoding::element::Element;
use crate::error::CounterOverflow;
use crate::stores::causal::{Causal, keyed};
use crate::stores::slot_counter::CounterStore;
use crate::stores::store::DotMap;

/// A map of counters that grow and shrink. A removed key begins at 0 again; an increment wins over a concurrent
/// removal, and the key keeps what the incrementing replica had counted before.
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
    /// Adds to the counter of a key; a negative amount is a decrement, 0 changes nothing.
    ///
    /// # Errors
    /// [`CounterOverflow`].
    pub fn increment(&mut self, cx: &mut UpdateCx<'_>, key: K, by: i64) -> Result<(), CounterOverflow> {
        self.edit().update(cx, key, |counter, cx| counter.increment(cx, by))
    }

    /// Subtracts from the counter of a key; a negative amount is an increment, 0 changes nothing.
    ///
    /// # Errors
    /// [`CounterOverflow`].
    pub fn decrement(&mut self, cx: &mut UpdateCx<'_>, key: K, by: i64) -> Result<(), CounterOverflow> {
        self.edit().update(cx, key, |counter, cx| counter.decrement(cx, by))
    }

    /// Puts every counter of another map, at its present value: the way to copy content between entries. Source: ddata
    /// K12.
    pub fn extend_from(&mut self, cx: &mut UpdateCx<'_>, other: &Self) {
        for (key, counter) in other.store().entries().iter() {
            self.edit().put(cx, key.clone(), counter);
        }
    }

    /// The value of a key, within the bounds of `i128`; `None` if the key is absent.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<i128>
    where
        K: Borrow<Q>,
    {
        self.store().get(key).map(CounterStore::value)
    }

    /// Keys and values, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (&K, i128)> {
        self.store().entries().iter().map(|(key, counter)| (key, counter.value()))
    }
}

impl<K: Element> fmt::Debug for PnCounterMap<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

keyed!("gl.pncountermap/1", PnCounterMap<K: Element>, "map", key: K, DotMap<K, CounterStore>);
