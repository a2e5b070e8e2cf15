//! Telling regions the whole table of homes, a part in each turn.
//!
//! A table of 100,000 homes is hundreds of frames: between them the coordinator answers other regions.
//! Source: sharding §2.2 (`ShardHomes`), scenario 106.

use std::collections::VecDeque;

use crate::ids::{RegionId, ShardId};

/// Homes looked at in one turn.
const TURN: usize = 2_000;

/// See the module's description.
#[derive(Debug)]
pub(super) struct Tables {
    /// Regions, and the last shard that each was told of.
    queue: VecDeque<(RegionId, Option<ShardId>)>,
    /// Homes that may still be looked at in this turn.
    left: usize,
    /// The driver was asked for another turn.
    is_turn_asked: bool,
}

impl Default for Tables {
    fn default() -> Self {
        Self { queue: VecDeque::new(), left: TURN, is_turn_asked: false }
    }
}

impl Tables {
    /// The region is told all homes, from the first on.
    pub(super) fn begin(&mut self, region: &RegionId) {
        self.queue.retain(|(known, _)| known != region);
        self.queue.push_back((region.clone(), None));
    }

    /// The region is gone.
    pub(super) fn forget(&mut self, region: &RegionId) {
        self.queue.retain(|(known, _)| known != region);
    }

    /// An input is taken: what no turn is asked for begins a turn.
    pub(super) fn on_input(&mut self) {
        if !self.is_turn_asked {
            self.left = TURN;
        }
    }

    /// Another turn has come.
    pub(super) fn on_turn(&mut self) {
        self.left = TURN;
        self.is_turn_asked = false;
    }

    /// Whether another turn is to be asked for now.
    pub(super) fn asks_for_turn(&mut self) -> bool {
        !self.queue.is_empty() && !std::mem::replace(&mut self.is_turn_asked, true)
    }

    /// The region whose turn it is, the shard behind which it goes on, and how many homes may be looked at.
    pub(super) fn next(&mut self, frame: usize) -> Option<(RegionId, Option<ShardId>, usize)> {
        if self.is_turn_asked || self.left == 0 {
            return None;
        }
        let (region, after) = self.queue.pop_front()?;
        Some((region, after, self.left.min(frame)))
    }

    /// So many homes were looked at; there may be more behind `last`.
    pub(super) fn looked_at(&mut self, region: RegionId, count: usize, last: Option<ShardId>) {
        self.left -= count;
        if last.is_some() {
            self.queue.push_back((region, last));
        }
    }
}
