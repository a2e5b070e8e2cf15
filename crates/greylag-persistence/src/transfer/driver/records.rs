//! The interface for moving a store to another backend: a list of all its records, and writes that keep
//! records as they are.
//!
//! The ordinary traits let no caller choose a timestamp, an epoch or a writer, and must not. A copy
//! has to: a history that moves keeps its numbers, times, writers and checksums. So [`Import`] is a separate
//! trait, for [`copy`](crate::copy) alone, and requires that no other process uses the store meanwhile.
//!
//! ```text
//! Export: ids, last_append, and reading by the ordinary traits (stores)
//! Import: import_events (head and events that continue it), import_snapshot, import_state
//! ```
//! Offsets of projections are not moved: they are positions in the order of one store, which no other store has.
//! Source: persistence §4.6.

use async_trait::async_trait;

use crate::contract::error::{ReadError, StoreFailure};
use crate::contract::history_part::{HistoryPart, ImportError};
use crate::contract::records::event::Timestamp;
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::Snapshot;
use crate::contract::records::state::StoredState;
use crate::entities::driver::stores::Stores;

/// A store whose whole content can be listed and read.
#[async_trait]
pub trait Export: Send + Sync + 'static {
    /// The store as its ordinary traits.
    fn stores(&self) -> Stores;

    /// Every id with any record, ascending by bytes, only those after `after`, at most
    /// `limit`: also ids that were claimed and never written, whose events were all deleted, or that
    /// have only a snapshot or a durable state. Fewer than `limit` means that there are no more.
    ///
    /// # Errors
    /// [`ReadError`] if they cannot be read.
    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError>;

    /// When events of `id` were last stored, also if they are deleted; [`Timestamp::default`] if never.
    ///
    /// # Errors
    /// [`ReadError`] if it cannot be read.
    async fn last_append(&self, id: &PersistenceId) -> Result<Timestamp, ReadError>;

    /// Ok while no other process can use the store. Handles within this process are the owner's
    /// responsibility.
    ///
    /// # Errors
    /// If another process uses the store, or if the store cannot tell: the error names the process or the reason, and
    /// the remedy.
    async fn reserved(&self) -> Result<(), StoreFailure>;
}

/// A store that accepts records as another store kept them. Every write answered Ok is durable.
///
/// Each call is carried out whole or not at all. A call whose answer was lost may be repeated only after reading
/// the stored records.
#[async_trait]
pub trait Import: Export {
    /// Stores the head of a history, and events that continue the stored ones. Events that the head
    /// calls deleted are removed. [`HistoryPart::check`] is the rule.
    ///
    /// # Errors
    /// [`ImportError`]; nothing changed, except possibly with `Unavailable`.
    async fn import_events(&self, part: HistoryPart) -> Result<(), ImportError>;

    /// Stores a snapshot with its time, in place of one of the same number.
    ///
    /// # Errors
    /// [`ImportError`]; nothing changed, except possibly with `Unavailable`.
    async fn import_snapshot(&self, snapshot: Snapshot) -> Result<(), ImportError>;

    /// Stores a state, or a tombstone, as it is, in place of one of a smaller revision. A repeat changes
    /// nothing.
    ///
    /// # Errors
    /// [`ImportError`]; nothing changed, except possibly with `Unavailable`.
    async fn import_state(&self, state: StoredState) -> Result<(), ImportError>;
}
