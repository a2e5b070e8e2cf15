//! The generation of a shard's ownership: a number that only grows.

use std::fmt;

/// The ownership number of one allocation of one shard.
///
/// The upper part is the epoch of the coordinator that decided, the lower 28 bits count that
/// epoch's decisions, so every allocation gets a larger generation than all earlier ones of its
/// entity type. It is checked at every hop (region, shard, journal claim); an older one changes
/// nothing. `2 * generation + 1` fits an `i64`, as the clock of the replicated homes map needs.
///
/// Source: sharding §1.1; the generation section of the specification's overview.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    /// Bits of the decision counter.
    pub const SEQ_BITS: u32 = 28;
    /// The largest epoch.
    pub const MAX_EPOCH: u64 = (1 << 34) - 1;
    /// The largest decision number of an epoch; past it a new coordinator incarnation is needed.
    pub const MAX_SEQ: u64 = (1 << Self::SEQ_BITS) - 1;

    /// The `seq`-th decision of `epoch`.
    ///
    /// # Errors
    /// [`GenerationError`] if one of the parts is past its maximum.
    pub fn new(epoch: u64, seq: u64) -> Result<Self, GenerationError> {
        if epoch > Self::MAX_EPOCH || seq > Self::MAX_SEQ {
            return Err(GenerationError { epoch, seq });
        }
        Ok(Self((epoch << Self::SEQ_BITS) | seq))
    }

    /// Reads the stored form; `None` if the epoch part is past its maximum.
    pub fn from_u64(value: u64) -> Option<Self> {
        (value >> Self::SEQ_BITS <= Self::MAX_EPOCH).then_some(Self(value))
    }

    /// The stored form.
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// The coordinator epoch that decided.
    pub fn epoch(self) -> u64 {
        self.0 >> Self::SEQ_BITS
    }

    /// The number of the decision within its epoch.
    pub fn seq(self) -> u64 {
        self.0 & Self::MAX_SEQ
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch(), self.seq())
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A part of a generation is past its maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "generation {epoch}.{seq} is out of range; epochs end at {}, decisions at {}",
    Generation::MAX_EPOCH,
    Generation::MAX_SEQ
)]
pub struct GenerationError {
    /// The epoch asked for.
    pub epoch: u64,
    /// The decision number asked for.
    pub seq: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_and_order_is_epoch_first() {
        let generation = Generation::new(5, 7).unwrap();
        assert_eq!((generation.epoch(), generation.seq()), (5, 7));
        assert_eq!(Generation::from_u64(generation.as_u64()), Some(generation));
        assert!(Generation::new(6, 0).unwrap() > Generation::new(5, Generation::MAX_SEQ).unwrap());
    }

    #[test]
    fn the_largest_fits_the_homes_clock() {
        let largest = Generation::new(Generation::MAX_EPOCH, Generation::MAX_SEQ).unwrap();
        assert!(i64::try_from(2 * u128::from(largest.as_u64()) + 1).is_ok());
        assert!(Generation::new(Generation::MAX_EPOCH + 1, 0).is_err());
        assert!(Generation::new(0, Generation::MAX_SEQ + 1).is_err());
        assert_eq!(Generation::from_u64(u64::MAX), None);
    }
}
