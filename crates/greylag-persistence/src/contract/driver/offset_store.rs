//! The contract of offset stores.
//!
//! `greylag_persistence::tck::offsets` (feature `tck`) checks a backend against it in one call.

use std::ops::RangeInclusive;

use async_trait::async_trait;

use crate::contract::error::{CloseError, OffsetError};
use crate::contract::journal::Health;
use crate::contract::offset::{OffsetCaps, OwnedSlices, Position, Processed};

/// Keeps the progress of projections, by id, under a fence for each slice.
///
/// A backend whose projections write into the same database also offers to save within the
/// transaction of the handler; the fence is compared there in the same way. Source: persistence §5.
#[async_trait]
pub trait OffsetStore: Send + Sync + 'static {
    /// The store's capabilities and limits; the same at every call.
    fn caps(&self) -> OffsetCaps;

    /// Makes the caller the owner of these slices: raises the epoch of each by one, durably, and
    /// returns the epochs. From then on nothing is saved under an earlier epoch. Two concurrent claims of a
    /// slice get different epochs. Claiming again after a lost answer is harmless.
    ///
    /// # Errors
    /// [`OffsetError::InvalidName`], [`OffsetError::Corrupt`] if a stored epoch cannot be read, or
    /// [`OffsetError::Unavailable`]; nothing was raised, except possibly with the last.
    async fn claim(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<OwnedSlices, OffsetError>;

    /// The progress in these slices: for each id its greatest processed number, unless it was
    /// [forgotten](OffsetStore::forget_before); a store of ordinals may keep only the newest
    /// position of each slice, and every [mark](Processed::is_mark), since a mark concerns other
    /// slices too. Ordered by position, then id. An empty answer means the start.
    ///
    /// # Errors
    /// [`OffsetError::Corrupt`] instead of wrong data, or [`OffsetError::Unavailable`].
    async fn load(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<Vec<Processed>, OffsetError>;

    /// Saves all entries or none, if every slice concerned is still owned under its epoch; Ok means
    /// durable. A number at or below the one saved for its id changes nothing, so saving again is
    /// harmless.
    ///
    /// # Errors
    /// [`OffsetError::StaleOwner`] or [`OffsetError::NotOwned`]; nothing was saved then.
    async fn save(&self, owned: &OwnedSlices, processed: &[Processed]) -> Result<(), OffsetError>;

    /// Forgets, in every owned slice, the entries before `position`, but never the slice's newest, nor a
    /// [start](Processed::is_start).
    ///
    /// # Errors
    /// As for [`OffsetStore::save`].
    async fn forget_before(&self, owned: &OwnedSlices, position: Position) -> Result<(), OffsetError>;

    /// Forgets all entries of the owned slices but [starts](Processed::is_start): the projection starts
    /// over. The epochs stay.
    ///
    /// # Errors
    /// As for [`OffsetStore::save`].
    async fn reset(&self, owned: &OwnedSlices) -> Result<(), OffsetError>;

    /// The store's health.
    fn health(&self) -> Health;

    /// Finishes the calls under way; later calls answer unavailable.
    ///
    /// # Errors
    /// [`CloseError`] if it did not finish cleanly.
    async fn close(&self) -> Result<(), CloseError>;
}
