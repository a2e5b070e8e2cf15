//! The writer: under which names this replica's own updates are made.

use greylag_core::UniqueAddress;
use greylag_crdt::{DotSource, Home, ReplicaId, UpdateCx, WriterKey};

use crate::api::settings::ReplicatorSettings;
use crate::api::settings::omissions::Clause;
use crate::pruning::Ranges;

/// The names of this replica, and the source of the numbers that it draws.
#[derive(Debug)]
pub(super) struct Writer {
    own: UniqueAddress,
    replica: ReplicaId,
    key: WriterKey,
    /// The process's one source. Source: ddata K2.
    numbers: DotSource,
    /// The last number drawn by earlier replicators of this process; this replicator claims nothing up to it.
    start_floor: u64,
}

impl Writer {
    pub(super) fn new(own: UniqueAddress, numbers: DotSource) -> Self {
        let (replica, key) = (ReplicaId(own.uid().get()), WriterKey::new(own.order_bytes()));
        Self { replica, key, start_floor: numbers.last(), numbers, own }
    }

    pub(super) fn own(&self) -> &UniqueAddress {
        &self.own
    }

    pub(super) fn replica(&self) -> ReplicaId {
        self.replica
    }

    pub(super) fn numbers(&self) -> &DotSource {
        &self.numbers
    }

    /// Draws the next number.
    pub(super) fn draw(&self) -> u64 {
        self.numbers.draw()
    }

    /// The last number drawn.
    pub(super) fn last(&self) -> u64 {
        self.numbers.last()
    }

    /// The context of an update of an entry with this home.
    pub(super) fn context<'a>(
        &'a self,
        settings: &ReplicatorSettings,
        ranges: &'a Ranges,
        home: Home,
        wall_ms: i64,
    ) -> UpdateCx<'a> {
        let cx = UpdateCx::new(&self.numbers, self.replica, &self.key, wall_ms);
        let reserved = if settings.omits(Clause::Reserved) { &[] } else { ranges.reserved() };
        cx.for_entry(home, self.start_floor, reserved).omitting(settings.omissions.of_updates())
    }
}
