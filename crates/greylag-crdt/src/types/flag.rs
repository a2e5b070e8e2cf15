//! A flag that is switched on once.

use crate::data::{Change, Grew, Lineage, ReplicatedData, Tracker};
use crate::encoding::codec::{DecodeError, Decoder, Encoder, FORMAT};
use crate::encoding::tag::TypeTag;
use crate::error::MergeError;

/// A flag that begins off and can only be switched on. Source: ddata §1, Y2, Y5.
///
/// ```
/// use greylag_crdt::Flag;
///
/// let mut closed = Flag::new();
/// closed.switch_on();
/// assert!(closed.enabled());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flag {
    enabled: bool,
    tracker: Tracker<On>,
}

/// The delta of a flag: it was switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct On;

impl Flag {
    /// The flag that is off.
    pub fn new() -> Self {
        Self::default()
    }

    /// Switches the flag on; does nothing if it is on.
    pub fn switch_on(&mut self) {
        if !self.enabled {
            self.enabled = true;
            self.tracker.record(On, |_, _| {});
        }
    }

    /// Whether the flag is on.
    pub fn enabled(&self) -> bool {
        self.enabled
    }
}

impl ReplicatedData for Flag {
    const TAG: TypeTag = TypeTag::new("gl.flag/1");
    const CAUSAL: bool = false;
    type Delta = On;

    fn zero() -> Self {
        Self::new()
    }

    fn merge(&mut self, other: &Self) -> Result<Grew, MergeError> {
        self.tracker.merged();
        let grew = other.enabled && !self.enabled;
        self.enabled |= other.enabled;
        Ok(grew.into())
    }

    fn merge_delta(&mut self, _: &On) -> Result<Grew, MergeError> {
        self.tracker.merged();
        let grew = !self.enabled;
        self.enabled = true;
        Ok(grew.into())
    }

    fn join_deltas(_: &mut On, _: &On) {}

    fn delta_size(_: &On) -> usize {
        1
    }

    fn begin_change(&mut self, lineage: Lineage) {
        self.tracker.begin(lineage);
    }

    fn take_change(&mut self, lineage: Lineage) -> Change<On> {
        self.tracker.take(lineage)
    }

    fn encode(&self, out: &mut Encoder) {
        out.u8(FORMAT);
        out.u8(u8::from(self.enabled));
    }

    fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        inp.format()?;
        match inp.u8()? {
            0 => Ok(Self::new()),
            1 => Ok(Self { enabled: true, ..Self::new() }),
            _ => Err(DecodeError::Invalid("a flag's byte is neither 0 nor 1")),
        }
    }

    fn encode_delta(_: &On, out: &mut Encoder) {
        out.u8(FORMAT);
    }

    fn decode_delta(inp: &mut Decoder<'_>) -> Result<On, DecodeError> {
        inp.format().map(|()| On)
    }

    fn size_hint(&self) -> usize {
        2
    }
}
