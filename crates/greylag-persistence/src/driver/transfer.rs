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

use crate::driver::stores::Stores;
use crate::error::{Corrupt, CorruptKind, ReadError, StoreFailure};
use crate::event::{SeqNr, StoredEvent, Timestamp};
use crate::journal::Head;
use crate::persistence_id::PersistenceId;
use crate::snapshot::Snapshot;
use crate::state::{StateHead, StoredState};

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

/// Some events of a history to import, and the head after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryPart {
    /// The id that the history belongs to.
    pub id: PersistenceId,
    /// The head after the import. `highest` is the number of the last of `events`, or unchanged if
    /// there are none; all other fields are as in the source.
    pub head: Head,
    /// As [`Export::last_append`].
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
    /// smaller revision, no if it is this very row. The rule of [`Import::import_state`].
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
    Unavailable(StoreFailure),
}
