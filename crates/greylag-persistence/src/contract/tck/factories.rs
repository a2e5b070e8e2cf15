//! The factories that a backend gives the kit: they open its stores, and offer hooks that only the backend has.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::contract::driver::journal_store::{Journal, SnapshotStore};
use crate::contract::driver::memory::AppendFault;
use crate::contract::driver::offset_store::OffsetStore;
use crate::contract::driver::query_store::EventQueries;
use crate::contract::driver::state_store::StateStore;
use crate::contract::records::event::SeqNr;
use crate::contract::records::persistence_id::PersistenceId;

/// Opens journals for the kit. Any `Fn() -> Future<Output = Arc<dyn Journal>>` is a factory without hooks.
#[async_trait]
pub trait JournalFactory: Send + Sync {
    /// A journal that is empty, or at least holds no id of an earlier run.
    async fn open(&self) -> Arc<dyn Journal>;

    /// Breaks a byte of a stored event; returns whether it did.
    async fn corrupt(&self, _journal: &Arc<dyn Journal>, _id: &PersistenceId, _seq_nr: SeqNr) -> bool {
        false
    }

    /// Turns the clock of the journal back by this time, or, by zero, sets it right; returns whether it did.
    async fn turn_clock_back(&self, _journal: &Arc<dyn Journal>, _by: Duration) -> bool {
        false
    }

    /// Makes the next tries of an append to `id` meet these faults, one each; returns whether the factory can do that.
    async fn script_append(&self, _journal: &Arc<dyn Journal>, _id: &PersistenceId, _faults: &[AppendFault]) -> bool {
        false
    }
}

/// Opens snapshot stores for the kit. Any `Fn() -> Future<Output = Arc<dyn SnapshotStore>>` is a factory
/// without hooks.
#[async_trait]
pub trait SnapshotFactory: Send + Sync {
    /// A store that is empty, or at least holds no id of an earlier run.
    async fn open(&self) -> Arc<dyn SnapshotStore>;

    /// Breaks a byte of a stored snapshot; returns whether it did.
    async fn corrupt(&self, _store: &Arc<dyn SnapshotStore>, _id: &PersistenceId, _seq_nr: SeqNr) -> bool {
        false
    }
}

/// Opens state stores for the kit. Any `Fn() -> Future<Output = Arc<dyn StateStore>>` is a factory without
/// hooks.
#[async_trait]
pub trait StateFactory: Send + Sync {
    /// A store that is empty, or at least holds no id of an earlier run.
    async fn open(&self) -> Arc<dyn StateStore>;

    /// Breaks a byte of a stored state; returns whether it did.
    async fn corrupt(&self, _store: &Arc<dyn StateStore>, _id: &PersistenceId) -> bool {
        false
    }

    /// Returns when every answered write is visible to change queries. At once, unless
    /// the backend holds young changes back.
    async fn settle(&self, _store: &Arc<dyn StateStore>) {}
}

/// Opens offset stores for the kit. Any `Fn() -> Future<Output = Arc<dyn OffsetStore>>` is a factory.
#[async_trait]
pub trait OffsetFactory: Send + Sync {
    /// A store that is empty, or at least holds no projection of an earlier run.
    async fn open(&self) -> Arc<dyn OffsetStore>;
}

/// Opens a journal with its query side. Any
/// `Fn() -> Future<Output = (Arc<dyn Journal>, Arc<dyn EventQueries>)>` is a factory without hooks.
#[async_trait]
pub trait QueryFactory: Send + Sync {
    /// A journal that is empty, or at least holds no id of an earlier run.
    async fn open(&self) -> (Arc<dyn Journal>, Arc<dyn EventQueries>);

    /// Waits until live pages show all events written so far, if the store holds young events back.
    async fn settle(&self, _journal: &Arc<dyn Journal>) {}

    /// Breaks a byte of a stored event; returns whether it did.
    async fn corrupt(&self, _journal: &Arc<dyn Journal>, _id: &PersistenceId, _seq_nr: SeqNr) -> bool {
        false
    }
}

/// Opens state stores with the queries over their changes, for the kit. Any
/// `Fn() -> Future<Output = (Arc<dyn StateStore>, Arc<dyn EventQueries>)>` is a factory without hooks.
#[async_trait]
pub trait ChangeFactory: Send + Sync {
    /// A store that is empty, or at least holds no id of an earlier run.
    async fn open(&self) -> (Arc<dyn StateStore>, Arc<dyn EventQueries>);

    /// As [`QueryFactory::settle`].
    async fn settle(&self, _store: &Arc<dyn StateStore>) {}

    /// As [`StateFactory::corrupt`].
    async fn corrupt(&self, _store: &Arc<dyn StateStore>, _id: &PersistenceId) -> bool {
        false
    }

    /// Makes later writes of `id` begin and stay uncommitted, until [`ChangeFactory::commit_held`]; returns whether
    /// the factory can do that. Only for stores that order by time: others show changes in the order of their commits.
    async fn hold_back(&self, _store: &Arc<dyn StateStore>, _id: &PersistenceId) -> bool {
        false
    }

    /// Returns once a write is begun and held back.
    async fn held(&self, _store: &Arc<dyn StateStore>) {}

    /// Commits all writes that are held back.
    async fn commit_held(&self, _store: &Arc<dyn StateStore>) {}
}

/// Implements the factory traits, without hooks, for functions that open the stores.
macro_rules! functions_are_factories {
    ($($factory:ident opens $opened:ty;)*) => {$(
        #[async_trait]
        impl<F, O> $factory for F
        where
            F: Fn() -> O + Send + Sync,
            O: Future<Output = $opened> + Send,
        {
            async fn open(&self) -> $opened {
                self().await
            }
        }
    )*};
}

pub(crate) use functions_are_factories;

functions_are_factories! {
    JournalFactory opens Arc<dyn Journal>;
    SnapshotFactory opens Arc<dyn SnapshotStore>;
    StateFactory opens Arc<dyn StateStore>;
    OffsetFactory opens Arc<dyn OffsetStore>;
    QueryFactory opens (Arc<dyn Journal>, Arc<dyn EventQueries>);
    ChangeFactory opens (Arc<dyn StateStore>, Arc<dyn EventQueries>);
}
