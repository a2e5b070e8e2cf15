//! The entities of messages that wait, looked up side by side.
//!
//! In a shard of many entities neither the place in the index nor the slot is in the processor's caches. One after the
//! other, every message would wait for memory twice; side by side, all of them wait at the same time.
//!
//! Source: sharding §10 (cold access).

use std::time::Instant;

use super::Shard;
use super::protocol::{SlotId, Weigh};
use crate::ids::EntityId;

/// Messages that are looked up side by side: about as many as a processor can wait for at a time.
pub const AHEAD: usize = 16;

/// Where an entity was before the messages ahead of its own were handled, any of which may have started or ended it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Guess {
    pub(super) hash: u64,
    pub(super) slot: Option<u32>,
}

impl<E, P: Weigh> Shard<E, P> {
    /// Looks up where the first [`AHEAD`] of these entities are; what stands behind the last of them says nothing.
    pub fn look_ahead<'a>(&self, ids: impl Iterator<Item = &'a EntityId> + Clone) -> [Guess; AHEAD] {
        let mut guesses = [Guess::default(); AHEAD];
        // The index for all of them first, then the slots: within each loop no step waits for another.
        for (guess, id) in guesses.iter_mut().zip(ids.clone()) {
            *guess = self.table.guess(id);
        }
        for (guess, id) in guesses.iter_mut().zip(ids) {
            guess.slot = self.table.find_guessed(id, *guess);
        }
        guesses
    }

    /// Delivers a message to an entity that handles it at once, and tells where that is. `None`: nothing was done, and the
    /// message is an [`Input::Deliver`](super::Input::Deliver).
    ///
    /// Most messages are for an idle entity. Delivered here, such a message is not moved into an input and an effect, each of
    /// which would hold it once. No effect follows: an entity that is active and used keeps other entities from their place no
    /// more than before.
    pub fn deliver_at_once(&mut self, now: Instant, (id, guess): (&EntityId, Guess), activity: bool) -> Option<SlotId> {
        let at = self.table.find_guessed(id, guess)?;
        if !self.table.get(at).is_idle() || !self.turns.may_run_at_once(at, self.settings.entity_throughput) {
            return None;
        }
        if activity {
            self.note_use(now, (at, guess.hash), true);
        }
        Some(SlotId(at))
    }
}
