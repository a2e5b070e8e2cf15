//! How far ahead of this node's clock the numbers sent by other nodes may lie.
//!
//! Epochs and generations only grow, and a coordinator chooses an epoch above every one that it hears of. One forged
//! number near the end of the range would leave no room for the next epoch, so a number that no coordinator can have
//! reached is refused when it is read. Epochs begin at the Unix time in seconds; a hundred years of room are more than
//! restarts and wrong clocks use up.
//!
//! Source: sharding §2.1.

use greylag_core::Generation;

use crate::machine::message::{Attempt, Epoch};

/// A hundred years of 365 days, in seconds.
const AHEAD: u64 = 100 * 365 * 24 * 60 * 60;

/// The largest epoch that this node accepts from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon(Epoch);

impl Horizon {
    /// A hundred years after this Unix time in seconds.
    pub fn after(wall_secs: u64) -> Self {
        Self(wall_secs.saturating_add(AHEAD).min(Generation::MAX_EPOCH))
    }

    /// The epoch, if a coordinator can have reached it.
    pub fn epoch(self, epoch: Epoch) -> Option<Epoch> {
        (epoch <= self.0).then_some(epoch)
    }

    /// The generation, if a coordinator can have reached its epoch.
    pub fn generation(self, value: u64) -> Option<Generation> {
        Generation::from_u64(value).filter(|generation| generation.epoch() <= self.0)
    }

    /// The attempt, if a coordinator can have reached its epoch.
    pub fn attempt(self, value: u64) -> Option<Attempt> {
        (value >> Generation::SEQ_BITS <= self.0).then_some(Attempt(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn value(epoch: u64) -> u64 {
        Generation::new(epoch, 3).unwrap().as_u64()
    }

    #[test]
    fn a_number_up_to_a_hundred_years_ahead_is_believed() {
        let horizon = Horizon::after(NOW);
        for epoch in [0, NOW, NOW + AHEAD] {
            assert_eq!(horizon.epoch(epoch), Some(epoch));
            assert_eq!(horizon.generation(value(epoch)), Some(Generation::new(epoch, 3).unwrap()));
            assert_eq!(horizon.attempt(value(epoch)), Some(Attempt(value(epoch))));
        }
        for epoch in [NOW + AHEAD + 1, NOW + 2 * AHEAD, Generation::MAX_EPOCH - 1, Generation::MAX_EPOCH] {
            assert_eq!(horizon.epoch(epoch), None);
            assert_eq!(horizon.generation(value(epoch)), None);
            assert_eq!(horizon.attempt(value(epoch)), None);
        }
        assert_eq!(
            (horizon.epoch(u64::MAX), horizon.generation(u64::MAX), horizon.attempt(u64::MAX)),
            (None, None, None)
        );
    }

    #[test]
    fn the_horizon_ends_where_epochs_end() {
        assert_eq!(Horizon::after(u64::MAX).epoch(Generation::MAX_EPOCH), Some(Generation::MAX_EPOCH));
        assert_eq!(Horizon::after(u64::MAX).epoch(Generation::MAX_EPOCH + 1), None);
    }
}
