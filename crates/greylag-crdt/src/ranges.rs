//! Values compared and sent in parts, because the whole is too large for one message.
//!
//! A part is a range of top-level keys. Two replicas compare sums over ranges, split those that differ, and send the
//! stores of the small ones; the context of the whole value is sent once. A part is joined store against store, with
//! both contexts for comparison, so what one side has removed is removed and what one side has not seen stays. Between
//! the first part and [`Ranged::finish_parts`] the value is a draft: its context does not cover yet what its store
//! holds.
//!
//! Parts are ranges in the order of keys, not of hashes: the ordered map finds a range without reading anything else.
//! Source: ddata G12.

use crate::causality::context::Context;
use crate::encoding::codec::{DecodeError, Decoder, Encoder};
use crate::encoding::element::Element;
use crate::encoding::hash::Digest;

/// How many keys a range has, and the wrapping sum of the digests of their leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RangeSum {
    /// The number of keys.
    pub count: u64,
    /// The sum of the leaves' digests.
    pub total: Digest,
}

impl RangeSum {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { count: self.count + other.count, total: self.total.plus(other.total) }
    }
}

/// The keys at or above `from` and below `to`, as canonical bytes; `None` is no bound.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct KeyRange {
    /// The first key that may be in the range.
    pub from: Option<Vec<u8>>,
    /// The first key beyond the range.
    pub to: Option<Vec<u8>>,
}

impl KeyRange {
    /// All keys.
    pub const ALL: Self = Self { from: None, to: None };

    pub(crate) fn decode<K: Element>(&self) -> Result<(Option<K>, Option<K>), DecodeError> {
        let key = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| from_bytes::<K>(bytes)).transpose();
        let (from, to) = (key(&self.from)?, key(&self.to)?);
        match (&from, &to) {
            (Some(from), Some(to)) if from >= to => Err(DecodeError::Invalid("a range is empty")),
            _ => Ok((from, to)),
        }
    }
}

/// The stores of a range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The range of the part: every key that the value has within it is in the part.
    pub range: KeyRange,
    /// The canonical bytes of the keys and stores.
    pub bytes: Vec<u8>,
}

/// A value that can be compared and joined range by range.
pub trait Ranged: Send + Sync {
    /// How many top-level keys the value has.
    fn keys(&self) -> usize;

    /// The sum over all keys; returns at once.
    fn whole(&self) -> RangeSum;

    /// Computes sums ahead of their use, over about `most` keys. Returns whether all are known.
    fn compute_sums(&self, most: usize) -> bool;

    /// The sum over a range; fast once the sums of the nodes are known.
    ///
    /// # Errors
    /// [`DecodeError`] if the bounds are no keys, or in the wrong order.
    fn sum(&self, range: &KeyRange) -> Result<RangeSum, DecodeError>;

    /// Splits `range` into at most `most` ranges of about equally many keys, and returns them with their sums.
    ///
    /// # Errors
    /// As [`Ranged::sum`].
    fn split(&self, range: &KeyRange, most: usize) -> Result<Vec<(KeyRange, RangeSum)>, DecodeError>;

    /// The canonical bytes of the context.
    fn context_bytes(&self) -> Vec<u8>;

    /// The first keys of a range with their stores: as many as take about `max_bytes`, but at least one.
    ///
    /// # Errors
    /// As [`Ranged::sum`].
    fn part(&self, range: &KeyRange, max_bytes: usize) -> Result<Part, DecodeError>;

    /// Joins a part of a state whose context is `theirs` into this draft.
    ///
    /// # Errors
    /// [`DecodeError`]; the draft is then unchanged.
    fn join_part(&mut self, theirs: &Context, part: &Part) -> Result<(), DecodeError>;

    /// Ends a draft: all parts that differ were joined, so everything that `theirs` has seen counts as seen here.
    fn finish_parts(&mut self, theirs: &Context);
}

/// Reads what [`Ranged::context_bytes`] wrote.
///
/// # Errors
/// [`DecodeError`].
pub fn context_from_bytes(bytes: &[u8]) -> Result<Context, DecodeError> {
    let mut inp = Decoder::new(bytes);
    let (context, others) = Context::decode(&mut inp)?;
    inp.finish()?;
    if others.is_empty() { Ok(context) } else { Err(DecodeError::NotCanonical("a replica without numbers")) }
}

pub(crate) fn context_to_bytes(context: &Context) -> Vec<u8> {
    let mut out = Encoder::new();
    context.encode(std::iter::empty(), &mut out);
    out.finish()
}

pub(crate) fn to_bytes<K: Element>(key: &K) -> Vec<u8> {
    let mut out = Encoder::new();
    key.encode(&mut out);
    out.finish()
}

fn from_bytes<K: Element>(bytes: &[u8]) -> Result<K, DecodeError> {
    let mut inp = Decoder::new(bytes);
    let key = K::decode(&mut inp)?;
    inp.finish()?;
    Ok(key)
}

/// Checks that ascending keys all lie within bounds.
pub(crate) fn check_bounds<'a, K: Ord + 'a>(
    mut keys: impl DoubleEndedIterator<Item = &'a K>,
    from: Option<&K>,
    to: Option<&K>,
) -> Result<(), DecodeError> {
    let first = keys.next();
    let last = keys.next_back().or(first);
    let is_outside =
        from.zip(first).is_some_and(|(from, first)| first < from) || to.zip(last).is_some_and(|(to, last)| to <= last);
    if is_outside { Err(DecodeError::Invalid("a key lies outside its range")) } else { Ok(()) }
}

/// Cuts a range into `most` pieces. The range has `count` keys and `before` keys precede it; `key_at` returns the key
/// of a rank.
pub(crate) fn cuts<K: Element>(
    range: &KeyRange,
    (before, count): (u64, u64),
    most: usize,
    key_at: impl Fn(u64) -> Option<K>,
) -> Vec<KeyRange> {
    let pieces = (most as u64).min(count).max(1);
    let mut bounds = vec![range.from.clone()];
    // Cut at keys that are present, above the first one, so that every piece has a key.
    bounds.extend(
        (1..pieces).filter_map(|piece| key_at(before + count * piece / pieces)).map(|key| Some(to_bytes(&key))),
    );
    bounds.push(range.to.clone());
    bounds.windows(2).map(|pair| KeyRange { from: pair[0].clone(), to: pair[1].clone() }).collect()
}
