//! The register in which the last write wins.
//!
//! Source: ddata Y6.

use std::fmt;

use crate::causality::cx::UpdateCx;
use crate::causality::replica::WriterKey;
use crate::data::{Change, Grew, Lineage, ReplicatedData, Tracker};
use crate::encoding::cached_digest::CachedDigest;
use crate::encoding::codec::{DecodeError, Decoder, Encoder, FORMAT};
use crate::encoding::element::Element;
use crate::encoding::hash::Digest;
use crate::encoding::tag::TypeTag;
use crate::error::{ClockExhausted, MergeError};
use crate::stores::lww::{LwwCell, earliest, latest};
use crate::stores::store::Leaf as _;

/// A value that the winning write sets.
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
    cached: CachedDigest,
    /// The delta is the cell after the update.
    tracker: Tracker<()>,
}

impl<T: Element> LwwRegister<T> {
    /// The register that was never set.
    pub fn new() -> Self {
        Self { cell: None, cached: CachedDigest::default(), tracker: Tracker::default() }
    }

    /// The winning value; `None` if the register was never set.
    pub fn value(&self) -> Option<&T> {
        self.cell.as_ref().map(|cell| &cell.value)
    }

    /// The winning write's timestamp; 0 if the register was never set.
    pub fn timestamp(&self) -> i64 {
        self.cell.as_ref().map_or(0, |cell| cell.timestamp)
    }

    /// The winning write's writer.
    pub fn updated_by(&self) -> Option<&WriterKey> {
        self.cell.as_ref().map(|cell| &cell.writer)
    }

    /// Sets the value; it wins over every write seen here.
    ///
    /// # Errors
    /// [`ClockExhausted`].
    pub fn set(&mut self, cx: &mut UpdateCx<'_>, value: T) -> Result<(), ClockExhausted> {
        let timestamp = latest(cx.wall_ms(), self.timestamp())?;
        self.write(cx, timestamp, value);
        Ok(())
    }

    /// Sets the value so that the first write wins. Returns whether this write won.
    ///
    /// # Errors
    /// [`ClockExhausted`].
    pub fn set_first(&mut self, cx: &mut UpdateCx<'_>, value: T) -> Result<bool, ClockExhausted> {
        let timestamp = earliest(cx.wall_ms(), self.timestamp())?;
        Ok(self.write(cx, timestamp, value))
    }

    /// Sets the value with the timestamp `clock(current, &value)`, where `current` is 0 for a new register. Returns
    /// whether the value won; a losing write changes nothing.
    pub fn set_with(&mut self, cx: &mut UpdateCx<'_>, value: T, clock: impl FnOnce(i64, &T) -> i64) -> bool {
        let timestamp = clock(self.timestamp(), &value);
        self.write(cx, timestamp, value)
    }

    fn write(&mut self, cx: &mut UpdateCx<'_>, timestamp: i64, value: T) -> bool {
        let won = match &mut self.cell {
            Some(own) => own.write(cx, timestamp, value),
            unset => {
                *unset = Some(LwwCell::new(cx, timestamp, value));
                true
            }
        };
        if won {
            self.cached.forget();
            self.tracker.record((), |(), ()| {});
        }
        won
    }

    fn join(&mut self, other: &Option<LwwCell<T>>) -> bool {
        let changed = join_cells(&mut self.cell, other);
        if changed {
            self.cached.forget();
        }
        changed
    }
}

/// Keeps the winner of two cells. Returns whether the other won.
fn join_cells<T: Element>(into: &mut Option<LwwCell<T>>, other: &Option<LwwCell<T>>) -> bool {
    let Some(theirs) = other else { return false };
    let Some(own) = into else {
        into.clone_from(other);
        return true;
    };
    let wins = theirs.beats(own);
    if wins {
        own.clone_from(theirs);
    }
    wins
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

    fn latest_timestamp(&self) -> Option<i64> {
        Self::latest_timestamp_of(&self.cell)
    }

    fn latest_timestamp_of(delta: &Self::Delta) -> Option<i64> {
        delta.as_ref().map(|cell| cell.timestamp)
    }

    fn digest(&self) -> Digest {
        self.cached.get(self)
    }

    fn begin_change(&mut self, lineage: Lineage) {
        self.tracker.begin(lineage);
    }

    fn take_change(&mut self, lineage: Lineage) -> Change<Self::Delta> {
        self.tracker.take_as(lineage, |()| self.cell.clone())
    }

    fn encode(&self, out: &mut Encoder) {
        Self::encode_delta(&self.cell, out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { cell: Self::decode_delta(inp)?, ..Self::new() })
    }

    fn encode_delta(delta: &Self::Delta, out: &mut Encoder) {
        out.u8(FORMAT);
        out.u8(u8::from(delta.is_some()));
        if let Some(cell) = delta {
            cell.encode(out);
        }
    }

    fn decode_delta(inp: &mut Decoder<'_>) -> Result<Self::Delta, DecodeError> {
        inp.format()?;
        if bool::decode(inp)? { LwwCell::decode(inp).map(Some) } else { Ok(None) }
    }

    fn size_hint(&self) -> usize {
        64
    }
}
