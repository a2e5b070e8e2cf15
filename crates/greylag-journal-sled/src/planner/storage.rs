//! The disk of a journal, and the failures that name the journal.

use std::sync::Arc;

use greylag_persistence::{Corrupt, StoreFailure};
use greylag_store_sled::{Room, Watermark};

/// The disk room of the group in hand, and the name of the journal in failures.
pub(super) struct Storage {
    name: String,
    watermark: Arc<Watermark>,
    /// Disk room as it was when the group in hand began.
    room: Room,
}

impl Storage {
    /// The disk of the journal that failures call `name`.
    pub(super) fn new(name: String, watermark: Arc<Watermark>) -> Self {
        Self { name, watermark, room: Room::Enough }
    }

    /// Asks for the room that the group in hand has.
    pub(super) fn begin_group(&mut self) {
        self.room = self.watermark.room();
    }

    /// Why changes that only add are refused.
    pub(super) fn is_low(&self) -> Option<&str> {
        self.room.is_low()
    }

    /// Why small and needed changes are refused, too.
    fn is_exhausted(&self) -> Option<&str> {
        self.room.is_exhausted()
    }

    /// [`Storage::is_low`] as a failure.
    pub(super) fn low(&self) -> Option<StoreFailure> {
        self.is_low().map(|why| self.refused(why))
    }

    /// [`Storage::is_exhausted`] as a failure.
    pub(super) fn exhausted(&self) -> Option<StoreFailure> {
        self.is_exhausted().map(|why| self.refused(why))
    }

    /// The failure of a request that needs a damaged record.
    pub(super) fn damaged(&self, corrupt: Corrupt) -> StoreFailure {
        StoreFailure::refusal(&self.name, corrupt)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn refused(&self, why: &str) -> StoreFailure {
        StoreFailure::refusal(&self.name, format!("storage is low: {why}"))
    }
}
