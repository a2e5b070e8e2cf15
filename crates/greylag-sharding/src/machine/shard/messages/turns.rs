//! Turns: entities whose queues are not empty take turns, and an idle entity handles a message at once.
//!
//! Source: sharding §4.2.

use std::collections::VecDeque;

/// No slot.
const NONE: u32 = u32::MAX;

/// See the module's description.
#[derive(Debug)]
pub(in crate::machine::shard) struct Turns {
    ready: VecDeque<u32>,
    /// The slot that has the turn, and how many more messages it may handle.
    turn: Option<(u32, usize)>,
    /// The slot that handled the latest message straight from the inbox, and how many it handled in a row.
    direct_run: (u32, usize),
    /// Messages behind stop requests, of all entities.
    pub(in crate::machine::shard) later: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self { ready: VecDeque::new(), turn: None, direct_run: (NONE, 0), later: 0 }
    }
}

impl Turns {
    /// Whether an entity has the turn, or waits for it.
    pub(in crate::machine::shard) fn is_pending(&self) -> bool {
        self.turn.is_some() || !self.ready.is_empty()
    }

    /// Whether an entity may run straight from the inbox. An entity that has handled its share while others wait must
    /// queue up like them.
    pub(in crate::machine::shard) fn may_run_at_once(&mut self, at: u32, share: usize) -> bool {
        if self.direct_run.0 != at {
            self.direct_run = (at, 1);
            return true;
        }
        self.direct_run.1 += 1;
        self.direct_run.1 <= share
    }

    /// Queues the entity for a turn, behind all others that wait.
    pub(in crate::machine::shard) fn push(&mut self, at: u32) {
        self.ready.push_back(at);
    }

    /// The entity that has the turn, and how many messages it may handle. Ends the current run straight from the inbox.
    pub(in crate::machine::shard) fn next(&mut self, share: usize) -> Option<(u32, usize)> {
        let next = self.turn.take().or_else(|| Some((self.ready.pop_front()?, share)))?;
        self.direct_run = (NONE, 0);
        Some(next)
    }

    /// Lets the entity keep its turn for `left` more messages.
    pub(in crate::machine::shard) fn go_on(&mut self, at: u32, left: usize) {
        self.turn = Some((at, left));
    }

    /// Ends the turn of an incarnation that ends. Returns whether it had the turn.
    pub(in crate::machine::shard) fn end_of(&mut self, at: u32) -> bool {
        self.turn.take_if(|(turn, _)| *turn == at).is_some()
    }

    /// Removes an entity of which nothing is left; `is_ready` if it waits for its turn.
    pub(in crate::machine::shard) fn forget(&mut self, at: u32, is_ready: bool) {
        if is_ready {
            self.ready.retain(|ready| *ready != at);
        }
        if self.direct_run.0 == at {
            self.direct_run = (NONE, 0);
        }
    }

    /// The slots that have the turn, or wait for it.
    pub(in crate::machine::shard) fn pending(&self) -> impl Iterator<Item = u32> {
        self.turn.iter().map(|(at, _)| *at).chain(self.ready.iter().copied())
    }

    /// Removes all entities that wait for a turn.
    pub(in crate::machine::shard) fn clear(&mut self) {
        self.ready.clear();
    }
}
