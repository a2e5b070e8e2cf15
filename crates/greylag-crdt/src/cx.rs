//! What an update may ask of the replica that it runs on.

use crate::data::EntryMark;
use crate::replica::{Dot, DotSource, ReplicaId, WriterKey};

/// Handed to update closures. Apart from it, a closure must be pure. Source: ddata A6.
#[derive(Debug)]
pub struct UpdateCx<'a> {
    source: &'a DotSource,
    replica: ReplicaId,
    writer: &'a WriterKey,
    wall_ms: i64,
    /// The entry that is updated, and the source's value when this replicator started.
    entry: Option<(EntryMark, u64)>,
    reserved: &'a [(u64, u64)],
}

impl<'a> UpdateCx<'a> {
    /// A context for updates outside of a replicator: dots are drawn and nothing else is claimed.
    pub fn new(source: &'a DotSource, replica: ReplicaId, writer: &'a WriterKey, wall_ms: i64) -> Self {
        Self { source, replica, writer, wall_ms, entry: None, reserved: &[] }
    }

    /// A context for an update of one entry, in a replicator whose process had drawn `start_floor`
    /// numbers when it started. `reserved`: ranges `(above, up to]` of the own numbers that pruning
    /// reserved for renaming; they are never claimed. Source: ddata K7.
    #[must_use]
    pub fn for_entry(mut self, entry: EntryMark, start_floor: u64, reserved: &'a [(u64, u64)]) -> Self {
        self.entry = Some((entry, start_floor));
        self.reserved = reserved;
        self
    }

    /// The replica that updates.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    /// Its key in ties between two writers.
    pub fn writer(&self) -> &WriterKey {
        self.writer
    }

    /// The wall clock in milliseconds since 1970, as it was when the update began.
    pub fn wall_ms(&self) -> i64 {
        self.wall_ms
    }

    /// A new dot of this replica.
    pub fn draw_dot(&mut self) -> Dot {
        Dot::new(self.replica, self.source.draw())
    }

    /// A number that this process has never used.
    pub fn draw(&mut self) -> u64 {
        self.source.draw()
    }

    /// The start floor, if the entry updated is this one.
    pub(crate) fn start_floor(&self, entry: Option<EntryMark>) -> Option<u64> {
        let (own, floor) = self.entry?;
        (entry == Some(own)).then_some(floor)
    }

    pub(crate) fn reserved(&self) -> &[(u64, u64)] {
        self.reserved
    }
}
