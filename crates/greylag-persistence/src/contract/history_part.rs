//! Records that are moved from store to store as they are, and the rule of when a store takes one.
//!
//! Source: persistence §4.6.

use super::error::{Corrupt, CorruptKind, StoreFailure};
use super::head::Head;
use super::records::event::{SeqNr, StoredEvent, Timestamp};
use super::records::persistence_id::PersistenceId;
use super::records::revision::StateHead;
use super::records::state::StoredState;

/// Some events of a history to import, and the head after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryPart {
    /// The id that the history belongs to.
    pub id: PersistenceId,
    /// The head after the import. `highest` is the number of the last of `events`, or unchanged if
    /// there are none; all other fields are as in the source.
    pub head: Head,
    /// As [`Export::last_append`](crate::Export::last_append).
    pub last_append: Timestamp,
    /// The events: the first follows the stored ones and those that the head calls deleted, without a gap.
    pub events: Vec<StoredEvent>,
}

impl HistoryPart {
    /// The number of the first event, if the stored head is `stored`.
    pub fn first(&self, stored: &Head) -> SeqNr {
        let before = stored.highest.max(self.head.deleted_to);
        before.next().unwrap_or(SeqNr::MAX)
    }

    /// Checks that the part continues the stored history: no field of the head falls, and the events follow without a
    /// gap, undamaged, each under its own key.
    ///
    /// # Errors
    /// [`ImportError::NotAContinuation`], [`ImportError::Corrupt`].
    pub fn check(&self, stored: &Head) -> Result<(), ImportError> {
        let mut expected = self.first(stored);
        let head = &self.head;
        let falls = head.epoch < stored.epoch
            || head.generation < stored.generation
            || head.deleted_to < stored.deleted_to
            || (head.epoch == stored.epoch && head.writer_uuid != stored.writer_uuid);
        let ends_at = expected.as_u64() - 1 + self.events.len() as u64;
        if falls || ends_at != head.highest.as_u64() {
            return Err(ImportError::NotAContinuation { stored: *stored });
        }
        for event in &self.events {
            if event.seq_nr != expected || event.id != self.id {
                return Err(ImportError::NotAContinuation { stored: *stored });
            }
            if !event.is_intact() {
                let (id, seq_nr) = (self.id.clone(), event.seq_nr);
                return Err(ImportError::Corrupt(Corrupt { id, seq_nr, kind: CorruptKind::Checksum }));
            }
            expected = expected.next().unwrap_or(SeqNr::MAX);
        }
        Ok(())
    }
}

impl StoredState {
    /// Whether this row is to replace a row with the head `stored`: yes if that has a
    /// smaller revision, no if it is this very row. The rule of [`Import::import_state`](crate::Import::import_state).
    ///
    /// # Errors
    /// [`ImportError::Taken`], [`ImportError::Corrupt`].
    pub fn replaces(&self, stored: &StateHead) -> Result<bool, ImportError> {
        if !self.is_intact() {
            let (id, seq_nr) = (self.id.clone(), SeqNr::saturating(self.revision.as_u64()));
            return Err(ImportError::Corrupt(Corrupt { id, seq_nr, kind: CorruptKind::Checksum }));
        }
        if stored.revision < self.revision {
            return Ok(true);
        }
        if *stored == self.head() { Ok(false) } else { Err(ImportError::Taken { stored: *stored }) }
    }
}

/// Why a record was not imported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The part does not continue the stored history. Nothing changed.
    #[error(
        "the part does not continue the stored history: epoch {}, events {} to {}",
        stored.epoch, stored.deleted_to.as_u64() + 1, stored.highest
    )]
    NotAContinuation {
        /// The stored head.
        stored: Head,
    },
    /// Another state of the same or a later revision is stored. Nothing changed.
    #[error("another state is stored: revision {} of writer {}", stored.revision, stored.writer_uuid)]
    Taken {
        /// The stored head.
        stored: StateHead,
    },
    /// The record was damaged on its way. Nothing changed.
    #[error(transparent)]
    Corrupt(Corrupt),
    /// The store refuses the record; the text is the store's. Nothing changed.
    #[error("refused: {0}")]
    Refused(String),
    /// No answer. The record may be stored; read before trying again.
    #[error("not answered by {0}")]
    Unavailable(#[source] StoreFailure),
}
