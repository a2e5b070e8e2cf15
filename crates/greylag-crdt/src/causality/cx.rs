//! The context of an update: what a closure may ask of the replica that it runs on.

use crate::causality::omissions::{Clause, Omissions};
use crate::causality::replica::{Dot, DotSource, ReplicaId, SlotId, WriterKey};
use crate::data::{EntryMark, Home};

/// Handed to update closures. Apart from it, a closure must be pure. Source: ddata A6.
#[derive(Debug)]
pub struct UpdateCx<'a> {
    source: &'a DotSource,
    replica: ReplicaId,
    writer: &'a WriterKey,
    wall_ms: i64,
    /// Where the updated value lives, and the start floor: the source's value when this replicator started.
    entry: Option<(Home, u64)>,
    reserved: &'a [(u64, u64)],
    omissions: Omissions,
}

impl<'a> UpdateCx<'a> {
    /// A context for updates outside of a replicator: dots are drawn, no other number is claimed.
    pub fn new(source: &'a DotSource, replica: ReplicaId, writer: &'a WriterKey, wall_ms: i64) -> Self {
        Self { source, replica, writer, wall_ms, entry: None, reserved: &[], omissions: Omissions::default() }
    }

    /// A context for an update of one entry, in a replicator whose process had drawn `start_floor` numbers when it
    /// started. `home` is the one that the value was bound with. `reserved` are the own numbers `(above, up to]` that
    /// pruning reserved for renaming ([`crate::Range::reserved`]); they are never claimed until the removed replicas
    /// are forgotten. Source: ddata K7, Y9.
    #[must_use]
    pub fn for_entry(mut self, home: Home, start_floor: u64, reserved: &'a [(u64, u64)]) -> Self {
        debug_assert_eq!(home.replica, self.replica, "a value is updated where it lives");
        self.entry = Some((home, start_floor));
        self.reserved = reserved;
        self
    }

    /// Omits clauses, in simulations.
    #[doc(hidden)]
    #[must_use]
    pub fn omitting(mut self, omissions: Omissions) -> Self {
        self.omissions = omissions;
        self
    }

    pub(crate) fn omits(&self, clause: Clause) -> bool {
        self.omissions.has(clause)
    }

    /// The replica that updates.
    #[inline]
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    /// The slot that this replica counts in, named by the present life of the entry, so that no other replica or life
    /// adds to it. A type with one amount per replica, of which the greater counts, must use this slot. Source: ddata
    /// A6, Y4.
    #[inline]
    pub fn slot(&self) -> SlotId {
        let birth = if self.omits(Clause::Birth) { 0 } else { self.actor().1 };
        SlotId::new(self.replica, birth)
    }

    /// The key of this replica in ties between two writers.
    #[inline]
    pub fn writer(&self) -> &WriterKey {
        self.writer
    }

    /// The wall clock in milliseconds since 1970, as it was when the update began.
    #[inline]
    pub fn wall_ms(&self) -> i64 {
        self.wall_ms
    }

    /// A new dot of this replica.
    #[inline]
    pub fn draw_dot(&mut self) -> Dot {
        Dot::new(self.replica, self.source.draw())
    }

    /// A number that this process has never used.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.source.draw()
    }

    /// A name for this replica's writes to types that number their writes themselves: the replica, and when the entry
    /// came into being here. An entry that was dropped and created again has another actor, so numbers that began anew
    /// are not mistaken for old ones. Source: ddata A9.
    pub fn actor(&self) -> (ReplicaId, u64) {
        (self.replica, self.entry.map_or(0, |(home, _)| home.born))
    }

    /// The highest number that this process has drawn.
    #[inline]
    pub(crate) fn last_drawn(&self) -> u64 {
        self.source.last()
    }

    /// The start floor, if `entry` is the updated one.
    #[inline]
    pub(crate) fn start_floor(&self, entry: Option<EntryMark>) -> Option<u64> {
        let (own, floor) = self.entry?;
        (entry == Some(own.entry)).then_some(floor)
    }

    /// Whether an own number is reserved as the image of a removed replica's number.
    pub(crate) fn is_reserved(&self, number: u64) -> bool {
        self.reserved.iter().any(|(above, up_to)| *above < number && number <= *up_to)
    }

    #[inline]
    pub(crate) fn reserved(&self) -> &[(u64, u64)] {
        self.reserved
    }
}
