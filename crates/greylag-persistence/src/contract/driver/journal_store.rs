//! The contract of journals and snapshot stores.
//!
//! The contract is J1 to J13 of the specification; `greylag_persistence::tck` (feature `tck`) checks
//! a backend against it in one call. Drivers await these traits; machines only get the answers.

use async_trait::async_trait;

use super::store_returns::StoreReturns;
use crate::contract::breaker::Breakers;
use crate::contract::error::{
    AdvanceError, AppendError, ClaimError, CloseError, DeleteError, ReadError, SnapshotError,
};
use crate::contract::head::{Claim, Head, Under};
use crate::contract::journal::{Append, Appended, Caps, Health, Page, ReadRange};
use crate::contract::records::event::{SeqNr, Timestamp, WriterEpoch, WriterUuid};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::{NewSnapshot, Snapshot, SnapshotCaps, SnapshotCriteria};

/// Keeps the events of many ids, each history fenced by its own epoch.
///
/// All methods may be dropped at any await: a write that was begun is finished or not begun (J13). Answers
/// of different ids have no order among each other (J11). Source: persistence §4.
#[async_trait]
pub trait Journal: Send + Sync + 'static {
    /// The journal's capabilities and limits; the same at every call.
    fn caps(&self) -> Caps;

    /// Makes `writer_uuid` the one writer of `id`: raises the epoch by one, durably, and returns
    /// it with the head. Waits for all appends to this id that are under way, on any node. A repeat
    /// with the stored uuid returns the stored epoch and raises nothing. Source: persistence J4.
    ///
    /// # Errors
    /// [`ClaimError::Fenced`] by the rules of [`Under`]; nothing changed then.
    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError>;

    /// Makes the numbers of an empty history begin after `to`, as if the events up to `to` had been
    /// deleted: `highest` and `deleted_to` become `to`. For ids whose snapshot was imported. A
    /// repeat with the same `to` before the first append is harmless. Source: persistence §2.5.
    ///
    /// # Errors
    /// [`AdvanceError::NotEmpty`] if an event was ever stored or `to` is not above the highest.
    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError>;

    /// Stores all events or none, if the epoch is the stored one and `first` is `highest + 1`; Ok
    /// means durable and readable everywhere (J1, J3, J5, J6). Repeating the same append answers
    /// Ok if it was stored, fenced or not (J10). Dropping the future does not undo the append (J13).
    ///
    /// # Errors
    /// [`AppendError`] says for each variant what is stored.
    async fn append(&self, append: Append) -> Result<Appended, AppendError>;

    /// One page of the events `from..=to`, ascending, without the deleted prefix. Source: J2, J8.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] instead of wrong or partial data.
    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError>;

    /// The head of `id`; [`Head::default`] if it was never claimed. Writes nothing.
    ///
    /// # Errors
    /// [`ReadError`] if it cannot be read.
    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError>;

    /// Deletes the events up to `to`, inclusive, clamped to the highest; [`SeqNr::MAX`] means all.
    /// Returns the number up to which all are deleted now, which never falls. Source: J9.
    ///
    /// # Errors
    /// [`DeleteError::Fenced`] unless the epoch is the stored one; nothing changed then.
    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError>;

    /// The store's health.
    fn health(&self) -> Health;

    /// State and counts of the store's breakers; `None` by default, since only [`Guarded`](crate::Guarded) has
    /// breakers.
    fn breakers(&self) -> Option<Breakers> {
        None
    }

    /// Counts the store's returns after outages. Default: none, and entities that back off because of the store wait
    /// until their back-off has passed.
    fn store_returns(&self) -> Option<&StoreReturns> {
        None
    }

    /// Finishes the calls under way and releases every resource; later calls answer unavailable.
    ///
    /// # Errors
    /// [`CloseError`] if it did not finish cleanly.
    async fn close(&self) -> Result<(), CloseError>;
}

/// Keeps snapshots of many ids, at most one for each number.
///
/// May be another store than the journal; no transaction has to span both, and nothing is
/// fenced, since a snapshot reflects durable events only. Source: persistence §4.1, §10.10.
#[async_trait]
pub trait SnapshotStore: Send + Sync + 'static {
    /// The store's capabilities and limits; the same at every call.
    fn caps(&self) -> SnapshotCaps;

    /// The snapshot of the highest number that matches.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] with the number of the damaged snapshot, so that the caller can ask
    /// for an older one; never a silent "none".
    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError>;

    /// Saves whole and durably, or not at all; replaces a snapshot of the same number. Returns the time
    /// that the store gave it.
    ///
    /// # Errors
    /// [`SnapshotError::TooLarge`] or [`SnapshotError::Unavailable`].
    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError>;

    /// Deletes the snapshot of this number, if there is one.
    ///
    /// # Errors
    /// [`SnapshotError::Unavailable`].
    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError>;

    /// Deletes all snapshots that match.
    ///
    /// # Errors
    /// [`SnapshotError::Unavailable`].
    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError>;

    /// The store's health.
    fn health(&self) -> Health;

    /// State and counts of the store's breakers; `None` by default, since only [`Guarded`](crate::Guarded) has
    /// breakers.
    fn breakers(&self) -> Option<Breakers> {
        None
    }

    /// Counts the store's returns after outages. Default: none, and entities that back off because of the store wait
    /// until their back-off has passed.
    fn store_returns(&self) -> Option<&StoreReturns> {
        None
    }

    /// Finishes the calls under way; later calls answer unavailable.
    ///
    /// # Errors
    /// [`CloseError`] if it did not finish cleanly.
    async fn close(&self) -> Result<(), CloseError>;
}
