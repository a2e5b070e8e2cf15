//! Remembered entities in a journal that every node reaches: one history for each shard.
//!
//! An allocation of a shard claims its history under the shard's generation, which fences every older owner, and reads it.
//! Source: sharding §4.8.

use std::collections::BTreeSet;

use async_trait::async_trait;
use greylag_core::Generation;
use greylag_persistence::{AppendError, PersistenceId, Stores};
use tokio::sync::Mutex;

use super::shard_memory::{LoadError, ShardMemory, ShardSet};
use crate::driver::coordinator::store::format::Format;
use crate::driver::coordinator::store::log::{Claimed, Fold, Log, RecoverError};
use crate::driver::coordinator::store::{NotCommitted, PersistenceStore};
use crate::fingerprint::Fingerprint;
use crate::ids::{EntityId, EntityTypeName, ShardId};
use crate::machine::shard::StoreUpdate;
use crate::remember::{RememberError, ShardTerm};
use crate::settings::ShardingSettings;
use crate::wire::remembered::{self, EVENT_MANIFEST, RememberedEvent, SCHEMA_VERSION, SNAPSHOT_MANIFEST};

const FORMAT: Format = Format {
    what: "the history of remembered entities",
    event: EVENT_MANIFEST,
    snapshot: SNAPSHOT_MANIFEST,
    version: SCHEMA_VERSION,
    advice: "restore it from a copy, or stop all nodes and remove it with remove_remembered_entities; entities start with \
             their next message then",
};

/// The memory of one shard.
pub(super) struct JournalShard {
    log: Log,
    generation: Generation,
    /// Most ids in one event.
    max_updates: usize,
    /// The history that was claimed and read; `None` before, and once nothing may be appended any more.
    history: Mutex<Option<History>>,
}

struct History {
    claimed: Claimed,
    remembered: BTreeSet<EntityId>,
}

impl JournalShard {
    pub(super) fn new(term: &ShardTerm, id: PersistenceId, stores: &Stores, settings: &ShardingSettings) -> Self {
        Self {
            log: Log::new(&term.entity_type, id, FORMAT, stores, settings),
            generation: term.generation,
            max_updates: settings.remember.max_updates_per_write.get() as usize,
            history: Mutex::new(None),
        }
    }

    /// The events of an update, each with a bounded number of ids.
    fn events(&self, update: &StoreUpdate) -> Vec<RememberedEvent> {
        let started = update.starts.chunks(self.max_updates).map(|ids| RememberedEvent::Started(ids.to_vec()));
        let stopped = update.stops.chunks(self.max_updates).map(|ids| RememberedEvent::Stopped(ids.to_vec()));
        started.chain(stopped).collect()
    }

    async fn append(&self, history: &mut History, events: &[RememberedEvent]) -> Result<(), RememberError> {
        let payloads = events.iter().map(remembered::encode_event).collect();
        let last = self.log.append(&history.claimed, payloads).await.map_err(|error| match error {
            AppendError::NotStored(_) => RememberError::Unavailable(error.into()),
            // The outcome is unknown or fenced: the history must be read again.
            error => RememberError::Stopped(error.into()),
        })?;
        events.iter().for_each(|event| event.clone().apply(&mut history.remembered));
        let before = std::mem::replace(&mut history.claimed.last, last);
        if self.log.snapshots().is_due(before, last) {
            let payload = remembered::encode_snapshot(&history.remembered);
            self.log.snapshots().begin(history.claimed.epoch, last, payload, true);
        }
        Ok(())
    }
}

impl Fold for BTreeSet<EntityId> {
    fn begin_with(&mut self, snapshot: &[u8]) -> Result<(), String> {
        *self = remembered::decode_snapshot(snapshot).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn snapshot(&self) -> Vec<u8> {
        remembered::encode_snapshot(self)
    }

    fn take(&mut self, event: &[u8]) -> Result<(), (String, Option<&'static str>)> {
        let event = remembered::decode_event(event).map_err(|error| (error.to_string(), None))?;
        event.apply(self);
        Ok(())
    }
}

#[async_trait]
impl ShardMemory for JournalShard {
    async fn load(&self) -> Result<BTreeSet<EntityId>, LoadError> {
        let mut history = self.history.lock().await;
        let mut remembered = BTreeSet::new();
        let claimed = self.log.recover(Some(self.generation), &mut remembered).await.map_err(unread)?;
        if claimed.read >= self.log.snapshots().every() {
            let payload = remembered::encode_snapshot(&remembered);
            self.log.snapshots().begin(claimed.epoch, claimed.last, payload, false);
        }
        *history = Some(History { claimed, remembered: remembered.clone() });
        Ok(remembered)
    }

    async fn update(&self, update: StoreUpdate) -> Result<(), RememberError> {
        let mut guard = self.history.lock().await;
        // Put the history back only if all events are known to be stored.
        let mut history = guard.take().ok_or_else(|| RememberError::Stopped("it was not read".into()))?;
        for events in self.events(&update).chunks(self.log.max_batch().max(1)) {
            self.append(&mut history, events).await?;
        }
        *guard = Some(history);
        Ok(())
    }
}

fn unread(error: RecoverError) -> LoadError {
    match error {
        RecoverError::Unavailable(failure) => RememberError::Unavailable(failure.into()).into(),
        RecoverError::Fenced(current) => LoadError::Fenced { stored: current.generation },
        RecoverError::Unreadable(unreadable) => RememberError::Stopped(unreadable.into()).into(),
    }
}

/// The remembered shards of a type, in the history of its coordinator.
pub(super) struct JournalShards(PersistenceStore);

impl JournalShards {
    pub(super) fn new(
        name: &EntityTypeName,
        stores: &Stores,
        fingerprint: &Fingerprint,
        settings: &ShardingSettings,
    ) -> Self {
        Self(PersistenceStore::new(name, stores, fingerprint, settings))
    }
}

#[async_trait]
impl ShardSet for JournalShards {
    async fn read(&self) -> Result<BTreeSet<ShardId>, RememberError> {
        self.0.read_shards().await.map_err(|unreadable| RememberError::Stopped(unreadable.into()))
    }

    async fn add(&self, shards: Vec<ShardId>) -> Result<(), RememberError> {
        self.0.add_shards(shards).await.map_err(|not_committed| match not_committed {
            NotCommitted::NotStored => RememberError::Unavailable("the journal did not store it".into()),
            NotCommitted::Lost => {
                RememberError::Stopped("another coordinator writes, or the outcome is unknown".into())
            }
        })
    }
}

#[cfg(test)]
mod tests;
