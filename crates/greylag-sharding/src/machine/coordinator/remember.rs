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

use super::protocol::{Effect, StopReason};
use super::{Coordinator, CoordinatorState};
use crate::fingerprint::{Fingerprint, StateStoreMode};
use crate::ids::ShardId;
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
pub(super) struct RememberedShards {
    location: StoreLocation,
    known: BTreeSet<ShardId>,
    /// Shards being added to the store.
    under_way: BTreeSet<ShardId>,
    /// Whether the store has been read.
    is_read: bool,
}

impl RememberedShards {
    pub(super) fn new(fingerprint: &Fingerprint) -> Self {
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
    pub(super) fn is_on(&self) -> bool {
        self.location != StoreLocation::Nowhere
    }

    /// Whether a separate store must be read.
    pub(super) fn is_in_store(&self) -> bool {
        self.location == StoreLocation::InStore
    }

    /// Whether a shard may have a home.
    pub(super) fn allows(&self, shard: &ShardId) -> bool {
        self.location != StoreLocation::InStore || self.known.contains(shard)
    }

    /// Adds those shards to the store that are not in it yet.
    pub(super) fn add(&mut self, shards: Vec<ShardId>, out: &mut Vec<Effect>) {
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
}

impl Coordinator {
    /// Takes the remembered shards read from the store.
    pub(super) fn on_remembered(&mut self, shards: BTreeSet<ShardId>, out: &mut Vec<Effect>) {
        self.decisions.remembered.known.extend(shards);
        self.decisions.remembered.is_read = true;
        // Shards requested before the read could not be added.
        let awaited: Vec<_> = self.decisions.requests.awaited().cloned().collect();
        awaited.iter().for_each(|shard| self.decisions.requests.mark_fresh(shard));
        self.want_remembered(out);
    }

    /// Notes that these shards are durable in the store.
    pub(super) fn on_shards_remembered(&mut self, shards: Vec<ShardId>) {
        for shard in shards {
            self.decisions.remembered.under_way.remove(&shard);
            self.decisions.requests.mark_fresh(&shard);
            self.decisions.remembered.known.insert(shard);
        }
    }

    /// Ends the incarnation, since the store has failed; the next incarnation opens it again.
    pub(super) fn on_remember_stopped(&mut self, out: &mut Vec<Effect>) {
        self.stop(StopReason::RememberStoreStopped, out);
    }

    /// Updates the remembered shards from the homes, if homes are in a journal.
    pub(super) fn note_homes(&mut self) {
        if self.decisions.remembered.location == StoreLocation::WithHomes {
            self.decisions.remembered.known = self.ledger.all_durable().map(|(shard, _)| shard.clone()).collect();
        }
    }

    /// Asks for a home for every remembered shard without one, and remembers every shard with a home, including homes
    /// that a region has claimed.
    pub(super) fn want_remembered(&mut self, out: &mut Vec<Effect>) {
        if !self.decisions.remembered.is_on() || self.state != CoordinatorState::Active {
            return;
        }
        self.note_homes();
        let homeless = |shard: &&ShardId| self.ledger.decided(shard).is_none_or(|home| home.deallocated);
        let homeless: Vec<_> = self.decisions.remembered.known.iter().filter(homeless).cloned().collect();
        homeless.iter().for_each(|shard| self.decisions.requests.make_eager(shard));
        let hosted: Vec<_> = self.homes().map(|(shard, _)| shard.clone()).collect();
        self.decisions.remembered.add(hosted, out);
    }

    /// Asks for another home of a remembered shard whose region is gone.
    pub(super) fn lost_home(&mut self, shard: &ShardId) {
        if self.decisions.remembered.is_on() {
            self.decisions.requests.make_eager(shard);
        }
    }
}
