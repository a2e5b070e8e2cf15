//! Last writer wins: the order of writes, the register, and the map of registers.
//!
//! Every write carries a timestamp, its writer's key and a number of the writer's process. The
//! greater timestamp wins; then the smaller writer key; then the greater number, so one node's later
//! write wins; then the greater canonical bytes, which makes the order total. With a single writer
//! no clock has to be right: each write's timestamp exceeds the one that it replaces.
//!
//! Source: ddata Y6, Y8.

use std::cmp::{Ordering, Reverse};
use std::fmt;

use crate::causal::{Causal, Edit, Fragment};
use crate::codec::{DecodeError, Decoder, Encoder, FORMAT};
use crate::context::Context;
use crate::cx::UpdateCx;
use crate::data::{Change, Grew, Home, Lineage, ReplicatedData, Tracker};
use crate::element::Element;
use crate::error::{ClockExhausted, MergeError};
use crate::hash::Digest;
use crate::replica::WriterKey;
use crate::store::{DotFun, DotMap, Lattice, MapScope, Store, Whole};
use crate::tag::TypeTag;

/// One write: a value and what decides whether it wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LwwCell<V> {
    timestamp: i64,
    writer: WriterKey,
    seq: u64,
    value: V,
}

impl<V: Element> LwwCell<V> {
    fn new(cx: &mut UpdateCx<'_>, timestamp: i64, value: V) -> Self {
        Self { timestamp, writer: cx.writer().clone(), seq: cx.draw(), value }
    }

    /// Whether this write wins over the other. Equal writes do not.
    fn beats(&self, other: &Self) -> bool {
        self.cmp(other).is_gt()
    }
}

/// The greater one wins.
impl<V: Element> Ord for LwwCell<V> {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |cell: &Self| (cell.timestamp, Reverse(cell.writer.clone()), cell.seq);
        let bytes = |cell: &Self| {
            let mut out = Encoder::new();
            cell.value.encode(&mut out);
            out.finish()
        };
        rank(self).cmp(&rank(other)).then_with(|| bytes(self).cmp(&bytes(other)))
    }
}

impl<V: Element> PartialOrd for LwwCell<V> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<V: Element> Lattice for LwwCell<V> {
    fn join(&mut self, other: &Self) {
        if other.beats(self) {
            self.clone_from(other);
        }
    }
}

impl<V: Element> Element for LwwCell<V> {
    const TAG: TypeTag = V::TAG;

    fn encode(&self, out: &mut Encoder) {
        out.i64(self.timestamp);
        out.bytes(self.writer.as_bytes());
        out.u64(self.seq);
        self.value.encode(out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            timestamp: inp.i64()?,
            writer: WriterKey::new(inp.bytes()?),
            seq: inp.u64()?,
            value: V::decode(inp)?,
        })
    }
}

/// The timestamp of a write by wall clock that has to win over `current`.
fn latest(wall_ms: i64, current: i64) -> Result<i64, ClockExhausted> {
    let next = current.checked_add(1).ok_or(ClockExhausted { timestamp: current })?;
    Ok(wall_ms.max(next))
}

/// The timestamp of a write that loses to every earlier one.
fn earliest(wall_ms: i64, current: i64) -> Result<i64, ClockExhausted> {
    let next = current.checked_sub(1).ok_or(ClockExhausted { timestamp: current })?;
    Ok(wall_ms.saturating_neg().min(next))
}

/// A value that the winning write decides.
///
/// ```
/// use greylag_crdt::{DotSource, LwwRegister, ReplicaId, UpdateCx, WriterKey};
///
/// let (source, writer) = (DotSource::new(), WriterKey::new(*b"a"));
/// let mut cx = UpdateCx::new(&source, ReplicaId(1), &writer, 1_000);
/// let mut leader = LwwRegister::new();
/// assert!(leader.set_with(&mut cx, "n1".to_owned(), |_, _| 7), "epoch 7 as the timestamp");
/// assert!(!leader.set_with(&mut cx, "n2".to_owned(), |_, _| 6), "an older epoch changes nothing");
/// assert_eq!(leader.value().map(String::as_str), Some("n1"));
/// ```
#[derive(Clone, PartialEq)]
pub struct LwwRegister<T: Element> {
    cell: Option<LwwCell<T>>,
    tracker: Tracker<Option<LwwCell<T>>>,
}

impl<T: Element> LwwRegister<T> {
    /// The register that was never set.
    pub fn new() -> Self {
        Self { cell: None, tracker: Tracker::default() }
    }

    /// The winning value; `None` if it was never set.
    pub fn value(&self) -> Option<&T> {
        self.cell.as_ref().map(|cell| &cell.value)
    }

    /// The winning write's timestamp; 0 if it was never set.
    pub fn timestamp(&self) -> i64 {
        self.cell.as_ref().map_or(0, |cell| cell.timestamp)
    }

    /// The winning write's writer.
    pub fn updated_by(&self) -> Option<&WriterKey> {
        self.cell.as_ref().map(|cell| &cell.writer)
    }

    /// Sets the value; it wins over what is seen here.
    ///
    /// # Errors
    /// [`ClockExhausted`].
    pub fn set(&mut self, cx: &mut UpdateCx<'_>, value: T) -> Result<(), ClockExhausted> {
        let timestamp = latest(cx.wall_ms(), self.timestamp())?;
        self.write(cx, timestamp, value);
        Ok(())
    }

    /// Sets the value so that the first write wins. Returns whether this one was it.
    ///
    /// # Errors
    /// [`ClockExhausted`].
    pub fn set_first(&mut self, cx: &mut UpdateCx<'_>, value: T) -> Result<bool, ClockExhausted> {
        let timestamp = earliest(cx.wall_ms(), self.timestamp())?;
        Ok(self.write(cx, timestamp, value))
    }

    /// Sets the value with a timestamp of the caller's: `clock(current, &value)`, where `current` is
    /// 0 for a new register. Returns whether it won; a losing write changes nothing.
    pub fn set_with(&mut self, cx: &mut UpdateCx<'_>, value: T, clock: impl FnOnce(i64, &T) -> i64) -> bool {
        let timestamp = clock(self.timestamp(), &value);
        self.write(cx, timestamp, value)
    }

    fn write(&mut self, cx: &mut UpdateCx<'_>, timestamp: i64, value: T) -> bool {
        let cell = Some(LwwCell::new(cx, timestamp, value));
        let won = self.join(&cell);
        if won {
            self.tracker.record(&cell, join_cells);
        }
        won
    }

    fn join(&mut self, other: &Option<LwwCell<T>>) -> bool {
        let before = self.cell.clone();
        join_cells(&mut self.cell, other);
        before != self.cell
    }
}

fn join_cells<T: Element>(into: &mut Option<LwwCell<T>>, other: &Option<LwwCell<T>>) {
    match (&mut *into, other) {
        (Some(own), Some(theirs)) => own.join(theirs),
        (None, _) => into.clone_from(other),
        (Some(_), None) => {}
    }
}

impl<T: Element> Default for LwwRegister<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Element> fmt::Debug for LwwRegister<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cell {
            Some(cell) => write!(f, "{:?} @{}", cell.value, cell.timestamp),
            None => f.write_str("unset"),
        }
    }
}

impl<T: Element> ReplicatedData for LwwRegister<T> {
    const TAG: TypeTag = TypeTag::with("gl.lwwreg/1", &[&T::TAG]);
    const CAUSAL: bool = false;
    type Delta = Option<LwwCell<T>>;

    fn zero() -> Self {
        Self::new()
    }

    fn merge(&mut self, other: &Self) -> Result<Grew, MergeError> {
        self.tracker.merged();
        Ok(self.join(&other.cell).into())
    }

    fn merge_delta(&mut self, delta: &Self::Delta) -> Result<Grew, MergeError> {
        self.tracker.merged();
        Ok(self.join(delta).into())
    }

    fn join_deltas(into: &mut Self::Delta, other: &Self::Delta) {
        join_cells(into, other);
    }

    fn delta_size(_: &Self::Delta) -> usize {
        1
    }

    fn begin_change(&mut self, lineage: Lineage) {
        self.tracker.begin(lineage);
    }

    fn take_change(&mut self, lineage: Lineage) -> Change<Self::Delta> {
        self.tracker.take(lineage)
    }

    fn encode(&self, out: &mut Encoder) {
        Self::encode_delta(&self.cell, out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { cell: Self::decode_delta(inp)?, tracker: Tracker::default() })
    }

    fn encode_delta(delta: &Self::Delta, out: &mut Encoder) {
        out.u8(FORMAT);
        delta.encode(out);
    }

    fn decode_delta(inp: &mut Decoder<'_>) -> Result<Self::Delta, DecodeError> {
        inp.format()?;
        Element::decode(inp)
    }

    fn size_hint(&self) -> usize {
        64
    }
}

/// A map of registers: a put wins over concurrent removes; concurrent puts are decided by timestamp.
#[derive(Clone, PartialEq)]
pub struct LwwMap<K: Element, V: Element> {
    causal: Causal<DotMap<K, DotFun<LwwCell<V>>>>,
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
        let timestamp = latest(cx.wall_ms(), self.timestamp(&key))?;
        self.write(cx, key, timestamp, value);
        Ok(())
    }

    /// Puts a value so that the first put wins. Returns whether this one was it.
    ///
    /// # Errors
    /// [`ClockExhausted`].
    pub fn put_first(&mut self, cx: &mut UpdateCx<'_>, key: K, value: V) -> Result<bool, ClockExhausted> {
        let timestamp = earliest(cx.wall_ms(), self.timestamp(&key))?;
        Ok(self.write(cx, key, timestamp, value))
    }

    /// Puts a value with a timestamp of the caller's: `clock(current, &value)`, where `current` is 0
    /// for an absent key. Returns whether it won; if not, the former value stays, and the key is
    /// refreshed against concurrent removes. Source: ddata Y8.
    pub fn put_with(&mut self, cx: &mut UpdateCx<'_>, key: K, value: V, clock: impl FnOnce(i64, &V) -> i64) -> bool {
        let timestamp = clock(self.timestamp(&key), &value);
        self.write(cx, key, timestamp, value)
    }

    fn write(&mut self, cx: &mut UpdateCx<'_>, key: K, timestamp: i64, value: V) -> bool {
        let cell = LwwCell::new(cx, timestamp, value);
        let dot = cx.draw_dot();
        let observed = self.winner(&key);
        let won = observed.is_none_or(|observed| cell.beats(observed));
        let kept = if won { cell } else { observed.cloned().unwrap_or(cell) };
        let mut store = DotMap::default();
        store.put(key.clone(), DotFun::single(dot, kept));
        let superseded = self.causal.store().entries().get(&key).map(|fun| fun.dots().collect()).unwrap_or_default();
        let scope = MapScope::Touched([(key, Whole)].into());
        self.causal.apply(cx, Edit { store, drawn: vec![dot], superseded, scope });
        won
    }

    /// Removes the key as far as it is seen here. Returns whether it was present.
    pub fn remove<Q: Ord + ?Sized>(&mut self, cx: &mut UpdateCx<'_>, key: &Q) -> bool
    where
        K: std::borrow::Borrow<Q>,
    {
        let Some((key, fun)) = self.causal.store().entries().get_key_value(key) else { return false };
        let scope = MapScope::Touched([(key.clone(), Whole)].into());
        let superseded = fun.dots().collect();
        self.causal.apply(cx, Edit { store: DotMap::default(), drawn: Vec::new(), superseded, scope });
        true
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
        entries.filter_map(|(key, fun)| fun.values().max().map(|cell| (key, &cell.value)))
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
        self.causal.store().entries().get(key)?.values().max()
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
    const TAG: TypeTag = TypeTag::with("gl.lwwmap/1", &[&K::TAG, &V::TAG]);
    const CAUSAL: bool = true;
    type Delta = Fragment<DotMap<K, DotFun<LwwCell<V>>>>;

    crate::causal::causal_data!();
}
