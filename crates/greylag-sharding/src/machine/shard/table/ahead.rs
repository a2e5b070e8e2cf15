//! Looking up the entities of several waiting messages side by side.
//!
//! In a shard of many entities neither the place in the index nor the slot is in the processor's caches. One after the
//! other, every message would wait for memory twice; side by side, all of them wait at the same time.
//!
//! Source: sharding §10 (cold access).

/// Messages that are looked up side by side: about as many as a processor can wait for at a time.
pub const AHEAD: usize = 16;

/// Where an entity was when it was looked up; messages handled since may have started or ended the entity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Guess {
    pub(super) hash: u64,
    pub(super) slot: Option<u32>,
}

impl Guess {
    /// The hash of the entity's id.
    pub(in crate::machine::shard) fn hash(&self) -> u64 {
        self.hash
    }
}
