//! The handshakes under way at a listener; when there are too many, the oldest is ended.
//!
//! A silent caller occupies a place until its time is up. So places are limited, and one caller more takes the place of
//! the caller that has had the most time: silent callers, however many, keep no honest caller out whose handshake ends
//! before as many others have come as there are places.

use std::collections::VecDeque;

/// Handshakes under way, each as a handle that ends it. Pure: the driver ends those that are returned to it.
#[derive(Debug)]
pub(super) struct Handshakes<H> {
    /// Oldest first.
    under_way: VecDeque<H>,
    most: usize,
}

impl<H> Handshakes<H> {
    /// No handshakes yet, and never more than `most`, which is raised to one.
    pub(super) fn new(most: usize) -> Self {
        Self { under_way: VecDeque::new(), most: most.max(1) }
    }

    /// Adds a handshake. Returns the oldest, which the driver must end, if there is no place for both.
    #[must_use]
    pub(super) fn begin(&mut self, handshake: H) -> Option<H> {
        let gives_way = if self.under_way.len() >= self.most { self.under_way.pop_front() } else { None };
        self.under_way.push_back(handshake);
        gives_way
    }

    /// Frees the places of handshakes that have ended.
    pub(super) fn forget(&mut self, has_ended: impl Fn(&H) -> bool) {
        self.under_way.retain(|handshake| !has_ended(handshake));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cluster §7: of 256 handshakes the oldest gives way to one more, one for one and in their order, and none
    /// before there is one more.
    #[test]
    fn the_oldest_of_too_many_gives_way() {
        let mut handshakes = Handshakes::new(256);
        let gave_way: Vec<u32> = (0..1000).filter_map(|number| handshakes.begin(number)).collect();
        assert_eq!(gave_way, (0..744).collect::<Vec<_>>());
        assert_eq!(handshakes.under_way, (744..1000).collect::<Vec<_>>());
    }

    /// An ended handshake frees its place; the next one that gives way is the oldest of those that are left.
    #[test]
    fn an_ended_handshake_frees_its_place() {
        let mut handshakes = Handshakes::new(3);
        assert!([0, 1, 2].into_iter().all(|number| handshakes.begin(number).is_none()));
        handshakes.forget(|number| *number == 0);
        assert_eq!(handshakes.begin(3), None, "the place of one that ended");
        assert_eq!(handshakes.begin(4), Some(1));
        handshakes.forget(|number| *number != 4);
        assert_eq!((handshakes.begin(5), handshakes.begin(6), handshakes.begin(7)), (None, None, Some(4)));
    }

    /// A caller is accepted while fewer others come during its handshake than there are places, however many came
    /// before.
    #[test]
    fn an_honest_caller_gets_through_a_crowd_that_says_nothing() {
        let mut handshakes = Handshakes::new(256);
        let mut ended = Vec::new();
        for number in 0..10_000 {
            ended.extend(handshakes.begin(number));
        }
        ended.extend(handshakes.begin(u32::MAX));
        (0..255).for_each(|number| ended.extend(handshakes.begin(20_000 + number)));
        assert!(!ended.contains(&u32::MAX));
        assert_eq!(handshakes.begin(30_000), Some(u32::MAX));
    }
}
