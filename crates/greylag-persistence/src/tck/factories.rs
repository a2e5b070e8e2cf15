//! What a backend gives the kit: how its stores are opened, and what only it can do to them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::driver::AppendFault;
use crate::driver::offset_store::OffsetStore;
use crate::driver::query_store::EventQueries;
use crate::driver::state_store::StateStore;
use crate::driver::stores::{Journal, SnapshotStore};
use crate::driver::transfer::Import;
use crate::event::SeqNr;
use crate::persistence_id::PersistenceId;

/// Opens journals for the kit. Any `Fn() -> Future<Output = Arc<dyn Journal>>` is one without hooks.
#[async_trait]
pub trait JournalFactory: Send + Sync {
    /// A journal that is empty, or at least holds no id of an earlier run.
    async fn open(&self) -> Arc<dyn Journal>;

    /// Breaks a byte of a stored event; answers whether it did.
    async fn corrupt(&self, _journal: &Arc<dyn Journal>, _id: &PersistenceId, _seq_nr: SeqNr) -> bool {
        false
    }

    /// Turns the clock of the journal back by so much, or, by zero, puts it right; answers whether it did.
    async fn turn_clock_back(&self, _journal: &Arc<dyn Journal>, _by: Duration) -> bool {
        false
    }

    /// Lets the next tries of an append to `id` meet these faults, one each; answers whether it can.
    async fn script_append(&self, _journal: &Arc<dyn Journal>, _id: &PersistenceId, _faults: &[AppendFault]) -> bool {
        false
    }
}

/// Opens snapshot stores for the kit. Any `Fn() -> Future<Output = Arc<dyn SnapshotStore>>` is one
/// without hooks.
#[async_trait]
pub trait SnapshotFactory: Send + Sync {
    /// A store that is empty, or at least holds no id of an earlier run.
    async fn open(&self) -> Arc<dyn SnapshotStore>;

    /// Breaks a byte of a stored snapshot; answers whether it did.
    async fn corrupt(&self, _store: &Arc<dyn SnapshotStore>, _id: &PersistenceId, _seq_nr: SeqNr) -> bool {
        false
    }
}

/// Opens state stores for the kit. Any `Fn() -> Future<Output = Arc<dyn StateStore>>` is one without
/// hooks.
#[async_trait]
pub trait StateFactory: Send + Sync {
    /// A store that is empty, or at least holds no id of an earlier run.
    async fn open(&self) -> Arc<dyn StateStore>;

    /// Breaks a byte of a stored state; answers whether it did.
    async fn corrupt(&self, _store: &Arc<dyn StateStore>, _id: &PersistenceId) -> bool {
        false
    }

    /// Returns when every write that was answered is visible to change queries. At once, unless
    /// the backend holds young changes back.
    async fn settle(&self, _store: &Arc<dyn StateStore>) {}
}

/// Opens offset stores for the kit. Any `Fn() -> Future<Output = Arc<dyn OffsetStore>>` is one.
#[async_trait]
pub trait OffsetFactory: Send + Sync {
    /// A store that is empty, or at least holds no projection of an earlier run.
    async fn open(&self) -> Arc<dyn OffsetStore>;
}

/// Opens stores that can be copied from and to, for the kit. Any `Fn() -> Future<Output = Arc<dyn Import>>` is
/// one.
#[async_trait]
pub trait TransferFactory: Send + Sync {
    /// An empty store, with no other users.
    async fn open(&self) -> Arc<dyn Import>;
}

/// Opens a journal with its query side. Any
/// `Fn() -> Future<Output = (Arc<dyn Journal>, Arc<dyn EventQueries>)>` is one without hooks.
#[async_trait]
pub trait QueryFactory: Send + Sync {
    /// A journal that is empty, or at least holds no id of an earlier run.
    async fn open(&self) -> (Arc<dyn Journal>, Arc<dyn EventQueries>);

    /// Waits until live pages show everything that was written so far, where a store holds back what
    /// is young.
    async fn settle(&self, _journal: &Arc<dyn Journal>) {}

    /// Breaks a byte of a stored event; answers whether it did.
    async fn corrupt(&self, _journal: &Arc<dyn Journal>, _id: &PersistenceId, _seq_nr: SeqNr) -> bool {
        false
    }
}

/// Opens state stores with the queries over their changes, for the kit. Any
/// `Fn() -> Future<Output = (Arc<dyn StateStore>, Arc<dyn EventQueries>)>` is one without hooks.
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

    /// From now on writes of `id` are begun and stay uncommitted, until [`ChangeFactory::let_go`]; answers whether
    /// it can do that. Only for stores that order by time: others show changes in the order of their commits.
    async fn hold_back(&self, _store: &Arc<dyn StateStore>, _id: &PersistenceId) -> bool {
        false
    }

    /// Returns once a write that is held back was begun.
    async fn held(&self, _store: &Arc<dyn StateStore>) {}

    /// Commits every write that is held back.
    async fn let_go(&self, _store: &Arc<dyn StateStore>) {}
}

/// Any function that opens the stores is a factory without hooks.
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

functions_are_factories! {
    JournalFactory opens Arc<dyn Journal>;
    SnapshotFactory opens Arc<dyn SnapshotStore>;
    StateFactory opens Arc<dyn StateStore>;
    OffsetFactory opens Arc<dyn OffsetStore>;
    TransferFactory opens Arc<dyn Import>;
    QueryFactory opens (Arc<dyn Journal>, Arc<dyn EventQueries>);
    ChangeFactory opens (Arc<dyn StateStore>, Arc<dyn EventQueries>);
}
