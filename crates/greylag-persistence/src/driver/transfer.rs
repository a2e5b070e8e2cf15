//! What moving a store to another backend takes beyond its own traits: the list of everything that it
//! holds, and records taken over as they are.
//!
//! The ordinary traits let no caller choose a timestamp, an epoch or a writer, and rightly so. A copy
//! must: a history that moves keeps its numbers, times, writers and checksums. So [`Import`] stands
//! beside them, for [`copy`](crate::copy) alone, and asks that no other process uses the store meanwhile.
//!
//! ```text
//! Export: ids, last_append, and reading by the ordinary traits (stores)
//! Import: import_events (head and events that continue it), import_snapshot, import_state
//! ```
//! Offsets of projections stay behind: they are places in the order of one store, which no other has.
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
    /// The store by its ordinary traits.
    fn stores(&self) -> Stores;

    /// Every id of which anything is stored, ascending by bytes, those after `after` only, at most
    /// `limit`: also those that were claimed and never written, whose events were all deleted, and that
    /// have a snapshot or a durable state alone. Fewer than `limit` means that there are no more.
    ///
    /// # Errors
    /// [`ReadError`] if they cannot be read.
    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError>;

    /// When events of `id` were last stored, also if they are deleted; [`Timestamp::default`] if never.
    ///
    /// # Errors
    /// [`ReadError`] if it cannot be read.
    async fn last_append(&self, id: &PersistenceId) -> Result<Timestamp, ReadError>;

    /// Ok while no other process can use the store. The handles of this process are for its owner to
    /// know.
    ///
    /// # Errors
    /// If another process uses the store, or if that cannot be told: the error says which process or why, and what
    /// helps.
    async fn reserved(&self) -> Result<(), StoreFailure>;
}

/// A store that takes records over as another store kept them. Whatever is answered Ok is durable.
///
/// Each call is done whole or not at all. A call whose answer was lost may be repeated only after reading
/// what is stored.
#[async_trait]
pub trait Import: Export {
    /// Stores the head of a history, and events that continue what is stored of it. Events that the head
    /// calls deleted are removed. [`HistoryPart::check`] is the rule.
    ///
    /// # Errors
    /// [`ImportError`]; nothing changed, but possibly at `Unavailable`.
    async fn import_events(&self, part: HistoryPart) -> Result<(), ImportError>;

    /// Stores a snapshot with its time, in place of one of the same number.
    ///
    /// # Errors
    /// [`ImportError`]; nothing changed, but possibly at `Unavailable`.
    async fn import_snapshot(&self, snapshot: Snapshot) -> Result<(), ImportError>;

    /// Stores a state, or a tombstone, as it is, in place of one of a smaller revision. A repeat changes
    /// nothing.
    ///
    /// # Errors
    /// [`ImportError`]; nothing changed, but possibly at `Unavailable`.
    async fn import_state(&self, state: StoredState) -> Result<(), ImportError>;
}

/// Some events of a history on their way into another store, and the head that they end at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryPart {
    /// The id that the history belongs to.
    pub id: PersistenceId,
    /// What is stored afterwards. `highest` is the number of the last of `events`, or what it was if
    /// there are none; everything else is as the store has it where it comes from.
    pub head: Head,
    /// As [`Export::last_append`].
    pub last_append: Timestamp,
    /// The events begin right after what is stored and what the head calls deleted, without a hole.
    pub events: Vec<StoredEvent>,
}

impl HistoryPart {
    /// The number of the first event, if what is stored has the head `stored`.
    pub fn first(&self, stored: &Head) -> SeqNr {
        let before = stored.highest.max(self.head.deleted_to);
        before.next().unwrap_or(SeqNr::MAX)
    }

    /// Whether it continues what is stored: nothing of the head falls, and the events follow without a
    /// hole, whole, each where it was written.
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
    /// Whether this row is to be stored where one with the head `stored` stands: yes if that has a
    /// smaller revision, no if it is this one already. The rule of [`Import::import_state`].
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

/// Why a record was not taken over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// What is stored of the id is not what the part continues. Nothing changed.
    #[error(
        "it does not continue what is stored: epoch {}, events {} to {}",
        stored.epoch, stored.deleted_to.as_u64() + 1, stored.highest
    )]
    NotAContinuation {
        /// What is stored.
        stored: Head,
    },
    /// Another state of the same or a later revision is stored. Nothing changed.
    #[error("another state is stored: revision {} of writer {}", stored.revision, stored.writer_uuid)]
    Taken {
        /// What is stored.
        stored: StateHead,
    },
    /// The record was damaged on its way. Nothing changed.
    #[error(transparent)]
    Corrupt(Corrupt),
    /// The store refuses it: its words. Nothing changed.
    #[error("refused: {0}")]
    Refused(String),
    /// No answer. It may be stored; read before trying again.
    #[error("not answered by {0}")]
    Unavailable(StoreFailure),
}
