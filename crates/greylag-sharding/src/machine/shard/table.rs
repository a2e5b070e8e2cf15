//! The entities of a shard, by id and by slot, and the numbers of their incarnations.
//!
//! Source: sharding §1.4 (the seed), §4.1, §4.11 (`direct_ref`).

mod ahead;
mod entity_scan;
mod index;
mod slab;

use std::collections::BTreeMap;

use twox_hash::XxHash3_64;

pub use self::ahead::{AHEAD, Guess};
pub(crate) use self::entity_scan::EntityScan;
use self::index::Index;
use self::slab::Slab;
pub(super) use self::slab::{Extra, IncarnationPhase, Item, ReceiveTimeout, Slot, StartDelay, Timer};
use crate::ids::EntityId;

/// See the module's description.
pub(super) struct Table<E, P> {
    slots: Slab<E, P>,
    index: Index,
    hash_seed: u64,
    /// Upper half of every incarnation number of this shard; the lower half is counted up.
    incarnations: u64,
    last_incarnation: u32,
    /// Incarnations with a direct address, and their slots.
    direct: BTreeMap<u32, u32>,
}

impl<E, P> Table<E, P> {
    pub(super) fn new(hash_seed: u64, serial: u32) -> Self {
        Self {
            slots: Slab::default(),
            index: Index::default(),
            hash_seed,
            incarnations: u64::from(serial) << 32,
            last_incarnation: 0,
            direct: BTreeMap::new(),
        }
    }

    pub(super) fn get(&self, at: u32) -> &Slot<E, P> {
        self.slots.get(at)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> &mut Slot<E, P> {
        self.slots.get_mut(at)
    }

    /// An upper bound of the slot numbers.
    pub(super) fn bound(&self) -> u32 {
        self.slots.bound()
    }

    /// Entities that have a slot.
    pub(super) fn live(&self) -> usize {
        self.slots.live()
    }

    pub(super) fn hash(&self, id: &EntityId) -> u64 {
        XxHash3_64::oneshot_with_seed(self.hash_seed, id.as_bytes())
    }

    /// The slot of an entity.
    pub(super) fn find(&self, id: &EntityId) -> Option<u32> {
        self.find_hashed(id, self.hash(id))
    }

    /// The slot of an entity whose hash is known.
    pub(super) fn find_hashed(&self, id: &EntityId, hash: u64) -> Option<u32> {
        self.index.find(hash, |slot| self.slots.get(slot).id.as_ref() == Some(id))
    }

    /// Guesses the slot of an entity by its hash; ids are not compared.
    fn guess(&self, id: &EntityId) -> Guess {
        let hash = self.hash(id);
        Guess { hash, slot: self.index.find(hash, |_| true) }
    }

    /// The slot of an entity, tried at the guess first.
    pub(super) fn find_guessed(&self, id: &EntityId, guess: Guess) -> Option<u32> {
        let is_it = |slot: &u32| self.slots.get(*slot).id.as_ref() == Some(id);
        guess.slot.filter(is_it).or_else(|| self.find_hashed(id, guess.hash))
    }

    /// Adds a slot for an entity that has none.
    pub(super) fn add(&mut self, id: EntityId, hash: u64) -> u32 {
        let at = self.slots.insert(id);
        self.index.insert(hash, at);
        at
    }

    /// Removes the slot of an entity.
    pub(super) fn remove(&mut self, at: u32) {
        let Some(hash) = self.slots.get(at).id.as_ref().map(|id| self.hash(id)) else { return };
        self.index.remove(hash, at);
        self.slots.remove(at);
    }

    /// Checks that the slot of an entity is found by its id, and that direct addresses are those of incarnations that
    /// live; for debug builds of small shards. Source: sharding §4.1, §4.11.
    pub(super) fn check_invariants(&self) {
        for at in 0..self.bound() {
            let id = self.get(at).id.as_ref();
            assert!(id.is_none_or(|id| self.find(id) == Some(at)), "an entity is found by its id");
        }
        for (incarnation, at) in &self.direct {
            let slot = self.get(*at);
            assert!(
                slot.id.is_some() && slot.incarnation == *incarnation,
                "a direct address ends with its incarnation"
            );
        }
    }

    /// Gives the slot a new incarnation number.
    pub(super) fn begin_incarnation(&mut self, at: u32) {
        self.last_incarnation += 1;
        self.slots.get_mut(at).incarnation = self.last_incarnation;
    }

    /// The number of the slot's incarnation, unique in this process.
    pub(super) fn number(&self, at: u32) -> u64 {
        self.incarnations | u64::from(self.slots.get(at).incarnation)
    }

    /// Whether this incarnation is the one in the slot.
    pub(super) fn is_current(&self, at: u32, incarnation: u64) -> bool {
        at < self.bound() && self.get(at).id.is_some() && self.number(at) == incarnation
    }

    /// A number from 0 to 1, drawn from the incarnation's number, so that a run of the machine can be repeated.
    pub(super) fn chance(&self, at: u32) -> f64 {
        let drawn = XxHash3_64::oneshot_with_seed(self.hash_seed, &self.get(at).incarnation.to_be_bytes());
        (drawn >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Gives the incarnation a direct address.
    pub(super) fn give_address(&mut self, at: u32) {
        self.direct.insert(self.slots.get(at).incarnation, at);
    }

    /// Removes the incarnation's direct address.
    pub(super) fn end_address(&mut self, at: u32) {
        self.direct.remove(&self.slots.get(at).incarnation);
    }

    /// The slot of an incarnation that has a direct address.
    pub(super) fn addressed(&self, incarnation: u64) -> Option<u32> {
        let is_own = incarnation & !u64::from(u32::MAX) == self.incarnations;
        let count = (incarnation & u64::from(u32::MAX)) as u32;
        is_own.then(|| self.direct.get(&count).copied()).flatten()
    }

    /// Looks up the slots of the first [`AHEAD`] of these entities; unused guesses are meaningless.
    pub(super) fn look_ahead<'a>(&self, ids: impl Iterator<Item = &'a EntityId> + Clone) -> [Guess; AHEAD] {
        let mut guesses = [Guess::default(); AHEAD];
        // All index look-ups first, then the slots: within each loop no step waits for another.
        for (guess, id) in guesses.iter_mut().zip(ids.clone()) {
            *guess = self.guess(id);
        }
        for (guess, id) in guesses.iter_mut().zip(ids) {
            guess.slot = self.find_guessed(id, *guess);
        }
        guesses
    }
}
