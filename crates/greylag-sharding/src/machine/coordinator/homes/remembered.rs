//! Remembered shards: each is made durable before it gets a home, and keeps a home for good.
//!
//! If homes are in a journal, a shard that ever had one is remembered. Otherwise a separate store lists the shards: a
//! shard is added to it before its first home is decided, hence before any region hosts it. All remembered shards get a
//! home as soon as a region is there, even if no message waits.
//!
//! ```text
//! requested --> ShardsToRemember --Remember--> store --ShardsRemembered--> strategy --> home
//! ReadRemembered --RememberedShards--> those without a home: strategy --> home
//! ```
//! Source: sharding §2.12, §4.8.

use std::collections::BTreeSet;

use crate::fingerprint::{Fingerprint, StateStoreMode};
use crate::ids::ShardId;
use crate::machine::coordinator::protocol::Effect;
use crate::remember::RememberStore;

/// Where the remembered shards are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreLocation {
    /// The type does not remember its entities.
    Nowhere,
    /// A shard that ever had a home is remembered.
    WithHomes,
    /// In a separate store.
    InStore,
}

/// See the module's description.
#[derive(Debug)]
pub(in crate::machine::coordinator) struct RememberedShards {
    location: StoreLocation,
    known: BTreeSet<ShardId>,
    /// Shards being added to the store.
    under_way: BTreeSet<ShardId>,
    /// Whether the store has been read.
    is_read: bool,
}

impl RememberedShards {
    pub(in crate::machine::coordinator) fn new(fingerprint: &Fingerprint) -> Self {
        let with_homes = fingerprint.state_store_mode == StateStoreMode::Persistence
            && fingerprint.remember_entities_store == RememberStore::EventSourced.name();
        let location = match fingerprint.remember_entities {
            false => StoreLocation::Nowhere,
            true if with_homes => StoreLocation::WithHomes,
            true => StoreLocation::InStore,
        };
        Self {
            location,
            known: BTreeSet::new(),
            under_way: BTreeSet::new(),
            is_read: location != StoreLocation::InStore,
        }
    }

    /// Whether the type remembers its entities.
    pub(in crate::machine::coordinator) fn is_on(&self) -> bool {
        self.location != StoreLocation::Nowhere
    }

    /// Whether a separate store must be read.
    pub(in crate::machine::coordinator) fn is_in_store(&self) -> bool {
        self.location == StoreLocation::InStore
    }

    /// Whether a shard may have a home.
    pub(in crate::machine::coordinator) fn allows(&self, shard: &ShardId) -> bool {
        self.location != StoreLocation::InStore || self.known.contains(shard)
    }

    /// Adds those shards to the store that are not in it yet.
    pub(in crate::machine::coordinator) fn add(&mut self, shards: Vec<ShardId>, out: &mut Vec<Effect>) {
        if self.location != StoreLocation::InStore || !self.is_read {
            return;
        }
        let new = |shard: &ShardId| !self.known.contains(shard) && !self.under_way.contains(shard);
        let shards: Vec<_> = shards.into_iter().filter(new).collect();
        self.under_way.extend(shards.iter().cloned());
        if !shards.is_empty() {
            out.push(Effect::Remember { shards });
        }
    }

    /// Takes the shards read from the store.
    pub(in crate::machine::coordinator) fn on_read(&mut self, shards: BTreeSet<ShardId>) {
        self.known.extend(shards);
        self.is_read = true;
    }

    /// Notes that the shard is durable in the store.
    pub(in crate::machine::coordinator) fn on_added(&mut self, shard: ShardId) {
        self.under_way.remove(&shard);
        self.known.insert(shard);
    }

    /// Updates the remembered shards from the homes, if homes are in a journal.
    pub(in crate::machine::coordinator) fn note_homes(&mut self, homes: impl Iterator<Item = ShardId>) {
        if self.location == StoreLocation::WithHomes {
            self.known = homes.collect();
        }
    }

    /// The remembered shards.
    pub(in crate::machine::coordinator) fn shards(&self) -> impl Iterator<Item = &ShardId> {
        self.known.iter()
    }
}
