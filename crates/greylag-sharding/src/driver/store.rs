//! Stores of the coordinators' state behind one trait: replicated data, or a journal that every node reaches.
//!
//! A store belongs to one incarnation of the coordinator, so that unfinished work of an earlier incarnation cannot be
//! mistaken for the work of its successor. Source: sharding §2.14, §2.15.

mod ddata;
pub(crate) mod failures;
pub(crate) mod log;
mod persistence;
mod snapshots;

use std::sync::Arc;

use async_trait::async_trait;
use greylag_ddata::Replicator;
use greylag_persistence::Stores;

use self::ddata::DdataStore;
pub(crate) use self::persistence::{PersistenceStore, persistence_id};
use super::coordinated::Coordinated;
use crate::fingerprint::Fingerprint;
use crate::ids::EntityTypeName;
use crate::machine::coordinator::{StateEvent, StoredState};
use crate::settings::ShardingSettings;

/// Reads and writes the state of one incarnation.
#[async_trait]
pub(crate) trait StateStore: Send + Sync + 'static {
    /// Most events that are written atomically.
    fn max_batch(&self) -> usize;

    /// Reads all durable state; repeated until the store answers.
    ///
    /// # Errors
    /// [`Unreadable`]: the store answers, and trying again would not help.
    async fn read(&self) -> Result<StoredState, Unreadable>;

    /// Makes events durable, all or none. They count only if no other incarnation has written since the last read.
    ///
    /// # Errors
    /// [`NotCommitted`] tells whether events are stored.
    async fn commit(&self, events: Vec<StateEvent>) -> Result<(), NotCommitted>;
}

/// Why events are not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotCommitted {
    /// Nothing was written, and the same events may be committed again.
    NotStored,
    /// Another incarnation writes, or the outcome is unknown: only another read can tell.
    Lost,
}

/// The stored state is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} under {id} cannot be read: {cause}; {advice}")]
pub(crate) struct Unreadable {
    /// The kind of data, for the error's text.
    what: &'static str,
    /// The persistence id.
    id: String,
    /// The fault, and its place.
    cause: String,
    /// The step by which an operator makes the store readable again, for the error's text.
    advice: &'static str,
}

/// The kind of store of a node's coordinators.
pub(crate) enum Backend {
    /// Replicated among the nodes that may run the coordinator.
    Ddata(Replicator),
    /// In this journal, with these snapshots.
    Persistence(Stores),
}

impl Backend {
    /// Opens the store of a new incarnation.
    pub(crate) fn open(
        &self,
        name: &EntityTypeName,
        fingerprint: &Fingerprint,
        settings: &ShardingSettings,
        coordinated: &Arc<Coordinated>,
    ) -> Arc<dyn StateStore> {
        match self {
            Self::Ddata(replicator) => Arc::new(DdataStore::new(name, replicator.clone(), settings)),
            Self::Persistence(stores) => {
                Arc::new(PersistenceStore::new(name, stores, fingerprint, settings).counting(coordinated.clone()))
            }
        }
    }
}
