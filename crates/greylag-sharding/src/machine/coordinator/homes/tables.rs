//! Sending the whole table of homes to regions, a part in each turn.
//!
//! A table of 100,000 homes is hundreds of frames: between them the coordinator answers other regions.
//! Source: sharding §2.2 (`ShardHomes`), scenario 106.

use std::collections::VecDeque;

use crate::ids::{RegionId, ShardId};

/// Homes visited in one turn.
const TURN: usize = 2_000;

/// See the module's description.
#[derive(Debug)]
pub(in crate::machine::coordinator) struct Tables {
    /// Regions, and the last shard sent to each.
    queue: VecDeque<(RegionId, Option<ShardId>)>,
    /// Homes that may still be visited in this turn.
    left: usize,
    /// Whether the driver was asked for another turn.
    is_turn_asked: bool,
}

impl Default for Tables {
    fn default() -> Self {
        Self { queue: VecDeque::new(), left: TURN, is_turn_asked: false }
    }
}

impl Tables {
    /// Sends the region all homes, from the first on.
    pub(in crate::machine::coordinator) fn begin(&mut self, region: &RegionId) {
        self.queue.retain(|(known, _)| known != region);
        self.queue.push_back((region.clone(), None));
    }

    /// Removes a region that is gone.
    pub(in crate::machine::coordinator) fn forget(&mut self, region: &RegionId) {
        self.queue.retain(|(known, _)| known != region);
    }

    /// Begins a turn with a new input, unless another turn was asked for.
    pub(in crate::machine::coordinator) fn on_input(&mut self) {
        if !self.is_turn_asked {
            self.left = TURN;
        }
    }

    /// Begins the turn that was asked for.
    pub(in crate::machine::coordinator) fn on_turn(&mut self) {
        self.left = TURN;
        self.is_turn_asked = false;
    }

    /// Whether to ask for another turn now.
    pub(in crate::machine::coordinator) fn asks_for_turn(&mut self) -> bool {
        !self.queue.is_empty() && !std::mem::replace(&mut self.is_turn_asked, true)
    }

    /// Source: sharding §2.2.
    pub(in crate::machine::coordinator) fn check_invariants(&self) {
        debug_assert!(self.queue.is_empty() || self.is_turn_asked, "a table under way has asked for a turn");
        debug_assert!(self.left <= TURN, "a turn is bounded");
    }

    /// The regions that get a table.
    pub(in crate::machine::coordinator) fn regions(&self) -> impl Iterator<Item = &RegionId> {
        self.queue.iter().map(|(region, _)| region)
    }

    /// The next region, the shard behind which to go on, and how many homes may be visited.
    pub(in crate::machine::coordinator) fn next(&mut self, frame: usize) -> Option<(RegionId, Option<ShardId>, usize)> {
        if self.is_turn_asked || self.left == 0 {
            return None;
        }
        let (region, after) = self.queue.pop_front()?;
        Some((region, after, self.left.min(frame)))
    }

    /// Counts visited homes; there may be more behind `last`.
    pub(in crate::machine::coordinator) fn visited(&mut self, region: RegionId, count: usize, last: Option<ShardId>) {
        self.left -= count;
        if last.is_some() {
            self.queue.push_back((region, last));
        }
    }
}
