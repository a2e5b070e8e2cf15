//! What all orders do: a set of slots, and which of them goes next.

use std::fmt::Debug;

use super::entries::Entries;

/// A set of slots in the order in which they would go. The caller keeps the limit.
pub(in crate::passivation) trait Order: Debug + Send {
    /// Number of slots.
    fn len(&self) -> usize;

    /// Inserts a slot that is in no order.
    fn insert(&mut self, entries: &mut Entries, slot: u32);

    /// Notes a use of a slot in this order.
    fn touch(&mut self, entries: &mut Entries, slot: u32);

    /// Removes a slot that has ended.
    fn remove(&mut self, entries: &mut Entries, slot: u32);

    /// Removes the slot that was named the next victim, to passivate it or to move it to another order.
    fn evict(&mut self, entries: &mut Entries, slot: u32) {
        self.remove(entries, slot);
    }

    /// The slot that would go next, of the slots under no veto.
    fn victim(&mut self, entries: &mut Entries) -> Option<u32>;

    /// Puts a parked slot back whose veto was lifted.
    fn readmit(&mut self, entries: &mut Entries, slot: u32);

    /// Sets the limit, for orders that divide it.
    fn set_limit(&mut self, _entries: &mut Entries, _limit: usize) {}
}

/// A proportion of a limit, in whole entities.
pub(in crate::passivation) fn share(proportion: f64, limit: usize) -> usize {
    // Add a little: 0.29 in floating point is slightly too small, and 0.29 of 100 would be 28.
    (proportion * limit as f64 + 1e-9) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_what_a_reader_expects() {
        for (proportion, limit, expected) in [(0.29, 100, 29), (0.8, 5, 4), (0.01, 99, 0), (1.0, 7, 7), (0.0, 7, 0)] {
            assert_eq!(share(proportion, limit), expected, "{proportion} of {limit}");
        }
    }
}
