//! Looking up the entities of several waiting messages side by side.
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

/// Where an entity was when it was looked up; messages handled since may have started or ended the entity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Guess {
    pub(super) hash: u64,
    pub(super) slot: Option<u32>,
}

impl<E, P: Weigh> Shard<E, P> {
    /// Looks up the slots of the first [`AHEAD`] of these entities; unused guesses are meaningless.
    pub fn look_ahead<'a>(&self, ids: impl Iterator<Item = &'a EntityId> + Clone) -> [Guess; AHEAD] {
        let mut guesses = [Guess::default(); AHEAD];
        // All index look-ups first, then the slots: within each loop no step waits for another.
        for (guess, id) in guesses.iter_mut().zip(ids.clone()) {
            *guess = self.table.guess(id);
        }
        for (guess, id) in guesses.iter_mut().zip(ids) {
            guess.slot = self.table.find_guessed(id, *guess);
        }
        guesses
    }

    /// Delivers a message to an entity that handles it at once, and returns the slot. `None`: nothing was done, and the
    /// caller must pass the message as an [`Input::Deliver`](super::Input::Deliver).
    ///
    /// Most messages are for an idle entity. Delivered here, such a message need not be moved into an input and an
    /// effect. No effect follows: the use of an entity that is active already ends no other entity.
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
