//! The map in which the last put of a key wins.
//!
//! A put stores, under one new dot, the winner of the writes that it saw and its own write. So a put by a custom clock
//! that loses still refreshes the key against concurrent removes. Concurrent writes coexist until the next put; the
//! winner is visible.
//!
//! Source: ddata Y8.

use std::borrow::Borrow;
use std::fmt;

use crate::causality::cx::UpdateCx;
use crate::encoding::element::Element;
use crate::error::ClockExhausted;
use crate::stores::causal::{Causal, keyed};
use crate::stores::lww::{LwwCell, LwwStore};
use crate::stores::store::DotMap;

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
    /// Puts a value that wins over every write seen here.
    ///
    /// # Errors
    /// [`ClockExhausted`].
    pub fn put(&mut self, cx: &mut UpdateCx<'_>, key: K, value: V) -> Result<(), ClockExhausted> {
        self.edit().update(cx, key, |register, cx| register.set(cx, value))
    }

    /// Puts a value so that the first put wins. Returns whether this put won.
    ///
    /// # Errors
    /// [`ClockExhausted`].
    pub fn put_first(&mut self, cx: &mut UpdateCx<'_>, key: K, value: V) -> Result<bool, ClockExhausted> {
        self.edit().update(cx, key, |register, cx| register.set_first(cx, value))
    }

    /// Puts a value with the timestamp `clock(current, &value)`, where `current` is 0 for an absent key. Returns
    /// whether the value won; if not, the former one stays, and the key is refreshed against concurrent removes.
    /// Source: ddata Y8.
    pub fn put_with(&mut self, cx: &mut UpdateCx<'_>, key: K, value: V, clock: impl FnOnce(i64, &V) -> i64) -> bool {
        self.edit().update(cx, key, |register, cx| register.set_with(cx, value, clock))
    }

    /// The winning value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.winner(key).map(|cell| &cell.value)
    }

    /// The winning write's timestamp; 0 if the key is absent.
    pub fn timestamp<Q: Ord + ?Sized>(&self, key: &Q) -> i64
    where
        K: Borrow<Q>,
    {
        self.winner(key).map_or(0, |cell| cell.timestamp)
    }

    /// Keys and winning values, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let entries = self.store().entries().iter();
        entries.filter_map(|(key, register)| register.value().map(|value| (key, value)))
    }

    fn winner<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&LwwCell<V>>
    where
        K: Borrow<Q>,
    {
        self.store().get(key)?.winner()
    }
}

impl<K: Element, V: Element> fmt::Debug for LwwMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn latest<K: Element, V: Element>(store: &DotMap<K, LwwStore<V>>) -> Option<i64> {
    store.entries().iter().filter_map(|(_, register)| Some(register.winner()?.timestamp)).max()
}

keyed!("gl.lwwmap/1", LwwMap<K: Element, V: Element>, "map", key: K, DotMap<K, LwwStore<V>>, {
    fn latest_timestamp(&self) -> Option<i64> {
        latest(self.store())
    }

    fn latest_timestamp_of(delta: &Self::Delta) -> Option<i64> {
        latest(delta.store())
    }
});
