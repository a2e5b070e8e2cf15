//! The revision that an entity knows, and what another revision in the store means.
//!
//! A write names the revision that it makes, so it is refused if another writer wrote since this entity read.
//! Source: persistence §3, §10.5.

use greylag_core::Generation;

use crate::contract::records::event::WriterUuid;
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::revision::{Revision, StateHead};
use crate::contract::records::state::{StateWrite, StoredState};
use crate::entities::lifecycle::writers::{Owner, Writers};

/// The revisions of one machine, across its incarnations.
pub(super) struct RevisionFence {
    generation: Option<Generation>,
    writers: Writers,
    /// The greatest revision that any incarnation of this machine knew to be stored.
    known: Option<Revision>,
}

impl RevisionFence {
    /// `generation`: that of the entity's shard; without one, revisions alone fence.
    pub(super) fn new(generation: Option<Generation>) -> Self {
        Self { generation, writers: Writers::default(), known: None }
    }

    /// Begins an incarnation.
    pub(super) fn begin(&mut self, writer: WriterUuid) {
        self.writers.begin(writer);
    }

    /// Whether another writer owns this state now. With a generation, the stored generation decides. Without one,
    /// a first start accepts any row; a restarted machine that finds another writer's later write must not
    /// write over it, which would fence that rightful successor.
    pub(super) fn is_superseded(&self, row: &StoredState) -> bool {
        match (self.generation, self.known) {
            (Some(_), _) => row.generation > self.generation,
            (None, Some(known)) => row.revision > known && !self.writers.is_own(row.writer_uuid),
            (None, None) => false,
        }
    }

    /// Records that this revision is stored: only a higher revision of another writer supersedes the entity from now on.
    pub(super) fn on_stored(&mut self, revision: Revision) {
        self.known = self.known.max(Some(revision));
    }

    /// The key of a write that makes this revision.
    pub(super) fn write(&self, id: PersistenceId, revision: Revision) -> StateWrite {
        StateWrite { id, revision, generation: self.generation, writer_uuid: self.writers.current() }
    }

    /// A write is sent.
    pub(super) fn on_sent(&mut self) {
        self.writers.on_sent();
    }

    /// Whose revision the store shows, of an entity that knows `revision`.
    pub(super) fn owner_of(&self, head: &StateHead, revision: Revision) -> Owner {
        if head.revision == revision && (self.generation.is_none() || head.generation <= self.generation) {
            Owner::Current
        } else {
            self.owner_after_refusal(head)
        }
    }

    /// Whose revision refused a write.
    pub(super) fn owner_after_refusal(&self, head: &StateHead) -> Owner {
        if self.writers.is_own(head.writer_uuid) { Owner::Own } else { Owner::Other }
    }

    pub(super) fn check_invariants(&self, revision: Revision) {
        debug_assert!(revision.is_none() || self.known >= Some(revision), "what is read is known");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> PersistenceId {
        PersistenceId::of("Account", "1").unwrap()
    }

    fn revision(number: u64) -> Revision {
        Revision::new(number).unwrap()
    }

    fn head(number: u64, writer: u128) -> StateHead {
        StateHead {
            revision: revision(number),
            generation: None,
            writer_uuid: WriterUuid::from_u128(writer),
            crc32c: None,
        }
    }

    #[test]
    fn a_revision_of_another_writer_supersedes_only_what_is_known() {
        let mut fence = RevisionFence::new(None);
        fence.begin(WriterUuid::from_u128(1));
        let row = |number, writer: u128| StoredState {
            revision: revision(number),
            writer_uuid: WriterUuid::from_u128(writer),
            ..StoredState::absent(id())
        };
        assert!(!fence.is_superseded(&row(7, 9)), "a first start accepts any row");
        fence.on_stored(revision(7));
        fence.on_sent();
        let superseded = [row(7, 9), row(8, 9), row(8, 1)].map(|row| fence.is_superseded(&row));
        assert_eq!(superseded, [false, true, false]);
    }

    #[test]
    fn a_head_shows_whose_write_is_the_newest() {
        let mut fence = RevisionFence::new(None);
        fence.begin(WriterUuid::from_u128(1));
        fence.on_sent();
        let owners = [head(7, 9), head(8, 1), head(8, 9)].map(|head| fence.owner_of(&head, revision(7)));
        assert_eq!(owners, [Owner::Current, Owner::Own, Owner::Other]);
        let write = fence.write(id(), revision(8));
        assert_eq!((write.revision, write.writer_uuid), (revision(8), WriterUuid::from_u128(1)));
    }
}
