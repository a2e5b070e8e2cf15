//! The coordinator's state in a journal that every node reaches.
//!
//! An incarnation claims the history of its type, which fences all earlier ones, and reads it. From then on each batch
//! is one append that continues the events read, so a batch is stored only if no other incarnation has claimed or
//! written since.
//!
//! If homes are replicated data and entities are remembered in a journal, the same history lists the remembered shards.
//! The first such record is a marker, behind which no coordinator finds homes in the history any more.
//!
//! ```text
//! read:   Log::recover --> Replay --> StoredState
//! commit: Log::append --> Ok | NotStored: again | anything else: read anew
//! ```
//! Source: sharding §2.14, §4.8.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{AppendError, PersistenceId, SeqNr, StoreFailure, Stores};
use tokio::sync::Mutex;

use super::failures::Failures;
use super::format::Format;
use super::log::{Claimed, Fold, Log, RecoverError};
use super::state_store::{NotCommitted, StateStore, Unreadable};
use crate::driver::coordinator::coordinated::Coordinated;
use crate::driver::node::services::horizon;
use crate::fingerprint::Fingerprint;
use crate::ids::{EntityTypeName, ShardId};
use crate::machine::coordinator::replay::{HistoryEvent, Replay};
use crate::machine::coordinator::{StateEvent, StoredState};
use crate::settings::ShardingSettings;
use crate::wire::history::{self, EVENT_MANIFEST, SCHEMA_VERSION, SNAPSHOT_MANIFEST};

/// Hint for an operator if the journal does not answer.
const HINT: &str = "does this node reach the journal?";
/// Advice for an operator about a contradictory history.
const ADVICE_STRICT: &str = "with sharding.strict_recovery = false it is repaired";
/// Advice for an operator about a history without homes.
const ADVICE_MIGRATED: &str = "go on with sharding.state_store_mode = \"ddata\", or stop all nodes and remove it with \
                               remove_internal_sharding_data; entities keep their own events";

const FORMAT: Format = Format {
    what: "the coordinator's history",
    event: EVENT_MANIFEST,
    snapshot: SNAPSHOT_MANIFEST,
    version: SCHEMA_VERSION,
    advice: "restore it from a copy, or stop all nodes and remove it with remove_internal_sharding_data; entities keep \
             their own events",
};

/// Homes were moved to replicated data by an earlier run: the journal does not know any more where shards live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("MigratedStore: homes of shards were migrated to replicated data")]
struct MigratedStore;

/// The persistence id of the coordinator of a type.
pub(crate) fn persistence_id(name: &EntityTypeName) -> PersistenceId {
    PersistenceId::unique(&format!("/sharding/{}Coordinator", name.encoded())).expect("type names are short")
}

/// See the module's description.
pub(crate) struct PersistenceStore {
    name: EntityTypeName,
    fingerprint: Fingerprint,
    log: Log,
    strict: bool,
    coordinated: Arc<Coordinated>,
    /// The base of the next append; `None` before the first read, and once nothing may be appended any more.
    history: Mutex<Option<History>>,
}

/// A history that was claimed and read.
struct History {
    claimed: Claimed,
    replay: Replay,
    failures: Failures,
}

/// Reads the records of a coordinator's history.
struct Reading {
    replay: Replay,
    strict: bool,
}

impl Fold for Reading {
    fn begin_with(&mut self, snapshot: &[u8]) -> Result<(), String> {
        let state = history::decode_snapshot(snapshot, horizon()).map_err(|error| error.to_string())?;
        self.replay = Replay::from_snapshot(state, self.strict);
        Ok(())
    }

    fn snapshot(&self) -> Vec<u8> {
        history::encode_snapshot(&self.replay.recorded())
    }

    fn take(&mut self, event: &[u8]) -> Result<(), (String, Option<&'static str>)> {
        let event = history::decode_event(event, horizon()).map_err(|error| (error.to_string(), None))?;
        self.replay.apply(event).map_err(|contradiction| (contradiction.to_string(), Some(ADVICE_STRICT)))
    }
}

impl PersistenceStore {
    pub(crate) fn new(
        name: &EntityTypeName,
        stores: &Stores,
        fingerprint: &Fingerprint,
        settings: &ShardingSettings,
    ) -> Self {
        Self {
            name: name.clone(),
            fingerprint: fingerprint.clone(),
            log: Log::new(name, persistence_id(name), FORMAT, stores, settings),
            strict: settings.journal.strict_recovery,
            coordinated: Arc::default(),
            history: Mutex::new(None),
        }
    }

    /// Counts repairs in `coordinated`.
    pub(crate) fn counting(self, coordinated: Arc<Coordinated>) -> Self {
        Self { coordinated, ..self }
    }

    /// Claims the history and reads it whole.
    async fn recover(&self) -> Result<(History, StoredState), RecoverError> {
        let mut reading = Reading { replay: Replay::new(self.strict), strict: self.strict };
        let claimed = self.log.recover(None, &mut reading).await?;
        let mut replay = reading.replay;
        let strict = |contradiction| RecoverError::Unreadable(self.log.unreadable(&contradiction, ADVICE_STRICT));
        let state = replay.state(&self.fingerprint).map_err(strict)?;
        if let Some(first) = replay.first_repair() {
            let (name, recovery_repairs) = (&self.name, replay.repairs());
            tracing::warn!(entity_type = %name, recovery_repairs, %first, "the coordinator's history was repaired");
            self.coordinated.repaired(recovery_repairs);
        }
        let Claimed { epoch, last, read } = claimed;
        tracing::debug!(entity_type = %self.name, %last, %epoch, %replay, "coordinator state was read");
        // Save a snapshot, so that a repaired history is not repaired again, and a long one not read again.
        if replay.repairs() > 0 || read >= self.log.snapshots().every() {
            self.log.snapshots().begin(epoch, last, history::encode_snapshot(&state), false);
        }
        let failures = Failures::new(&self.name, self.log.patience().1, HINT);
        let replay = Replay::from_snapshot(state.clone(), false);
        Ok((History { claimed, replay, failures }, state))
    }

    /// Reads the history; repeated until the journal answers.
    async fn read_again(&self) -> Result<StoredState, Unreadable> {
        let mut failures = Failures::new(&self.name, self.log.patience().0, HINT);
        let mut history = self.history.lock().await;
        loop {
            match self.recover().await {
                Ok((read, state)) => {
                    *history = Some(read);
                    return Ok(state);
                }
                Err(RecoverError::Unavailable(failure)) => failures.report("read", &failure).await,
                Err(RecoverError::Fenced(current)) => {
                    let reason = format!("another coordinator has claimed it as {}", current.epoch);
                    failures.report("read", &StoreFailure::new("journal", reason)).await;
                }
                Err(RecoverError::Unreadable(unreadable)) => return Err(unreadable),
            }
        }
    }

    /// Makes events durable, all or none.
    async fn append(&self, events: Vec<HistoryEvent>) -> Result<(), NotCommitted> {
        let mut guard = self.history.lock().await;
        let mut history = guard.take().ok_or(NotCommitted::Lost)?;
        let payloads = events.iter().map(history::encode_event).collect();
        let error = match self.log.append(&history.claimed, payloads).await {
            Ok(last) => {
                history.failures.end();
                self.committed(&mut history, last, events);
                *guard = Some(history);
                return Ok(());
            }
            Err(error @ AppendError::NotStored(_)) => {
                history.failures.report("write", &error).await;
                *guard = Some(history);
                return Err(NotCommitted::NotStored);
            }
            Err(error) => error,
        };
        tracing::warn!(entity_type = %self.name, %error, "coordinator state: a write failed; the history is read again");
        Err(NotCommitted::Lost)
    }

    /// Applies durable events.
    fn committed(&self, history: &mut History, append_last: SeqNr, events: Vec<HistoryEvent>) {
        for event in events {
            // An incarnation's own events are never contradictory, as the simulation checks.
            drop(history.replay.apply(event));
        }
        let before = std::mem::replace(&mut history.claimed.last, append_last);
        if self.log.snapshots().is_due(before, append_last)
            && let Ok(state) = history.replay.state(&self.fingerprint)
        {
            let epoch = history.claimed.epoch;
            self.log.snapshots().begin(epoch, append_last, history::encode_snapshot(&state), true);
        }
    }

    // --- remembered shards, where homes are replicated data ---

    /// The remembered shards: those that had a home while homes were in the journal, and those that were added.
    pub(crate) async fn read_shards(&self) -> Result<BTreeSet<ShardId>, Unreadable> {
        loop {
            let state = self.read_again().await?;
            if state.migrated {
                return Ok(state.remembered);
            }
            let remembered = state.remembered.into_iter().chain(state.homes.into_keys()).collect();
            // Append the marker: behind it a coordinator that looks for homes finds none.
            if self.append(vec![HistoryEvent::Migrated]).await.is_ok() {
                return Ok(remembered);
            }
        }
    }

    /// Adds remembered shards.
    pub(crate) async fn add_shards(&self, shards: Vec<ShardId>) -> Result<(), NotCommitted> {
        self.append(vec![HistoryEvent::ShardsRemembered(shards.into_iter().collect())]).await
    }
}

#[async_trait]
impl StateStore for PersistenceStore {
    fn max_batch(&self) -> usize {
        self.log.max_batch()
    }

    async fn read(&self) -> Result<StoredState, Unreadable> {
        let state = self.read_again().await?;
        if state.migrated {
            *self.history.lock().await = None;
            return Err(self.log.unreadable(&MigratedStore, ADVICE_MIGRATED));
        }
        Ok(state)
    }

    async fn commit(&self, events: Vec<StateEvent>) -> Result<(), NotCommitted> {
        self.append(events.into_iter().map(HistoryEvent::from).collect()).await
    }
}

#[cfg(test)]
mod tests;
