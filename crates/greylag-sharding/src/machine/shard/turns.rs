//! Whose turn it is: entities whose queues are not empty take turns, and one that is idle handles a message at once.
//!
//! Source: sharding §4.2.

use std::collections::VecDeque;

/// No slot.
const NONE: u32 = u32::MAX;

/// See the module's description.
#[derive(Debug)]
pub(super) struct Turns {
    ready: VecDeque<u32>,
    /// The slot that has the turn, and how many more messages it may handle.
    turn: Option<(u32, usize)>,
    /// The slot that handled the latest message straight from the inbox, and how many in a row.
    direct_run: (u32, usize),
    /// Messages behind stop requests, of all entities.
    pub(super) later: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self { ready: VecDeque::new(), turn: None, direct_run: (NONE, 0), later: 0 }
    }
}

impl Turns {
    /// Whether an entity has the turn, or waits for it.
    pub(super) fn is_pending(&self) -> bool {
        self.turn.is_some() || !self.ready.is_empty()
    }

    /// Whether an entity may run straight from the inbox. One that has handled its share while others wait must queue
    /// up like them.
    pub(super) fn may_run_at_once(&mut self, at: u32, share: usize) -> bool {
        if self.direct_run.0 != at {
            self.direct_run = (at, 1);
            return true;
        }
        self.direct_run.1 += 1;
        self.direct_run.1 <= share
    }

    /// The entity waits for its turn, behind those that do.
    pub(super) fn push(&mut self, at: u32) {
        self.ready.push_back(at);
    }

    /// The entity that has the turn, and how many messages it may handle. It may run straight from the inbox again.
    pub(super) fn next(&mut self, share: usize) -> Option<(u32, usize)> {
        let next = self.turn.take().or_else(|| Some((self.ready.pop_front()?, share)))?;
        self.direct_run = (NONE, 0);
        Some(next)
    }

    /// The entity keeps its turn for so many messages more.
    pub(super) fn go_on(&mut self, at: u32, left: usize) {
        self.turn = Some((at, left));
    }

    /// The incarnation ends, and its turn with it. Answers whether it had the turn.
    pub(super) fn end_of(&mut self, at: u32) -> bool {
        self.turn.take_if(|(turn, _)| *turn == at).is_some()
    }

    /// Nothing is left of the entity, which may have waited for its turn.
    pub(super) fn forget(&mut self, at: u32, is_ready: bool) {
        if is_ready {
            self.ready.retain(|ready| *ready != at);
        }
        if self.direct_run.0 == at {
            self.direct_run = (NONE, 0);
        }
    }

    /// No entity waits for a turn any more.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
    }
}
