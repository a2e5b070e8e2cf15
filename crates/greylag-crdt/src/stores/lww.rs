//! Last writer wins: one write, and the order of writes.
//!
//! Every write carries a timestamp, its writer's key and a number of the writer's process. The
//! greater timestamp wins; then the smaller writer key; then the greater number, so one node's later
//! write wins; then the greater canonical bytes, which makes the order total. With a single writer
//! no clock has to be right: each write's timestamp exceeds the one that it replaces.
//!
//! Source: ddata Y6, Y8.

use std::cmp::Ordering;

use crate::causality::cx::UpdateCx;
use crate::causality::replica::WriterKey;
use crate::encoding::codec::{DecodeError, Decoder, Encoder};
use crate::encoding::element::Element;
use crate::encoding::tag::TypeTag;
use crate::error::ClockExhausted;
use crate::stores::store::{DotFun, DotSet, Edit, Leaf, StoreMut, edited_by_store_mut};

/// One write: a value and what decides whether it wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LwwCell<V> {
    pub(crate) timestamp: i64,
    pub(crate) writer: WriterKey,
    seq: u64,
    pub(crate) value: V,
}

impl<V: Element> LwwCell<V> {
    pub(crate) fn new(cx: &mut UpdateCx<'_>, timestamp: i64, value: V) -> Self {
        Self { timestamp, writer: cx.writer().clone(), seq: cx.draw(), value }
    }

    /// Replaces this cell by a later write, if that wins. Returns whether it does.
    pub(crate) fn write(&mut self, cx: &mut UpdateCx<'_>, timestamp: i64, value: V) -> bool {
        if timestamp > self.timestamp {
            self.timestamp = timestamp;
            // Compare first: mostly the writer is the same, and cloning its key is saved.
            if self.writer != *cx.writer() {
                self.writer = cx.writer().clone();
            }
            (self.seq, self.value) = (cx.draw(), value);
            return true;
        }
        let cell = Self::new(cx, timestamp, value);
        let won = cell.beats(self);
        if won {
            *self = cell;
        }
        won
    }

    /// Whether this write wins over the other. Equal writes do not.
    pub(crate) fn beats(&self, other: &Self) -> bool {
        self.cmp(other).is_gt()
    }

    /// The value.
    pub fn value(&self) -> &V {
        &self.value
    }

    /// The write's timestamp.
    pub fn timestamp(&self) -> i64 {
        self.timestamp
    }
}

/// The greater cell wins.
impl<V: Element> Ord for LwwCell<V> {
    fn cmp(&self, other: &Self) -> Ordering {
        let bytes = |cell: &Self| {
            let mut out = Encoder::new();
            cell.value.encode(&mut out);
            out.finish()
        };
        let by_time = self.timestamp.cmp(&other.timestamp);
        if by_time.is_ne() {
            return by_time;
        }
        let by_writer = other.writer.cmp(&self.writer);
        let by_number = by_writer.then(self.seq.cmp(&other.seq));
        // Do not compare bytes of equal values: mostly both are the same write.
        if by_number.is_ne() || self.value == other.value {
            return by_number;
        }
        bytes(self).cmp(&bytes(other))
    }
}

impl<V: Element> PartialOrd for LwwCell<V> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn encode<V: Element>(cell: &LwwCell<V>, out: &mut Encoder) {
    out.i64(cell.timestamp);
    out.bytes(cell.writer.as_bytes());
    out.u64(cell.seq);
    cell.value.encode(out);
}

fn decode<V: Element>(inp: &mut Decoder<'_>) -> Result<LwwCell<V>, DecodeError> {
    let (timestamp, writer) = (inp.i64()?, WriterKey::new(inp.bytes()?));
    Ok(LwwCell { timestamp, writer, seq: inp.u64()?, value: V::decode(inp)? })
}

impl<V: Element> Leaf for LwwCell<V> {
    const TAG: TypeTag = TypeTag::with("lww", &[&V::TAG]);

    edited_by_store_mut!(DotFun<Self>);

    fn join(&mut self, other: &Self) {
        if other.beats(self) {
            self.clone_from(other);
        }
    }

    fn encode(&self, out: &mut Encoder) {
        encode(self, out);
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decode(inp)
    }
}

/// The timestamp of a wall-clock write that has to win over `current`.
pub(crate) fn latest(wall_ms: i64, current: i64) -> Result<i64, ClockExhausted> {
    let next = current.checked_add(1).ok_or(ClockExhausted { timestamp: current })?;
    Ok(wall_ms.max(next))
}

/// The timestamp of a write that loses to every earlier one.
pub(crate) fn earliest(wall_ms: i64, current: i64) -> Result<i64, ClockExhausted> {
    let next = current.checked_sub(1).ok_or(ClockExhausted { timestamp: current })?;
    Ok(wall_ms.saturating_neg().min(next))
}

/// A register inside a map: the winner of the concurrent writes counts. See [`crate::LwwMap`].
pub type LwwStore<V> = DotFun<LwwCell<V>>;

impl<V: Element> DotFun<LwwCell<V>> {
    /// The winning write; `None` if there is none.
    pub fn winner(&self) -> Option<&LwwCell<V>> {
        self.values().max()
    }

    /// The winning value; `None` if the register was never set.
    pub fn value(&self) -> Option<&V> {
        self.winner().map(LwwCell::value)
    }
}

impl<V: Element> StoreMut<'_, LwwStore<V>> {
    /// The winning value; `None` if the register was never set.
    pub fn value(&self) -> Option<&V> {
        self.store()?.value()
    }

    /// The winning write's timestamp; 0 if the register was never set.
    pub fn timestamp(&self) -> i64 {
        self.store().and_then(DotFun::winner).map_or(0, LwwCell::timestamp)
    }

    /// Sets a value that wins over every write seen here.
    ///
    /// # Errors
    /// [`ClockExhausted`].
    pub fn set(&mut self, cx: &mut UpdateCx<'_>, value: V) -> Result<(), ClockExhausted> {
        let timestamp = latest(cx.wall_ms(), self.timestamp())?;
        self.write(cx, timestamp, value);
        Ok(())
    }

    /// Sets a value so that the first write wins. Returns whether this write won.
    ///
    /// # Errors
    /// [`ClockExhausted`].
    pub fn set_first(&mut self, cx: &mut UpdateCx<'_>, value: V) -> Result<bool, ClockExhausted> {
        let timestamp = earliest(cx.wall_ms(), self.timestamp())?;
        Ok(self.write(cx, timestamp, value))
    }

    /// Sets a value with the timestamp `clock(current, &value)`, where `current` is 0 if there is none yet. Returns
    /// whether the value won; if not, the former one stays, and is refreshed against concurrent removals. Source: ddata
    /// Y8.
    pub fn set_with(&mut self, cx: &mut UpdateCx<'_>, value: V, clock: impl FnOnce(i64, &V) -> i64) -> bool {
        let timestamp = clock(self.timestamp(), &value);
        self.write(cx, timestamp, value)
    }

    fn write(&mut self, cx: &mut UpdateCx<'_>, timestamp: i64, value: V) -> bool {
        let cell = LwwCell::new(cx, timestamp, value);
        let dot = cx.draw_dot();
        let observed = self.store().and_then(DotFun::winner);
        let won = observed.is_none_or(|observed| cell.beats(observed));
        let kept = if won { cell } else { observed.cloned().unwrap_or(cell) };
        self.0.apply(cx, Edit { patch: DotFun::single(dot, kept), drawn: DotSet::single(dot) });
        won
    }
}
