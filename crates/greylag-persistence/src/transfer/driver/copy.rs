//! Copies all records from one store to another of any backend, and verifies that two stores are equal.
//!
//! [`copy`] copies, id by id, the records that [`Export`] lists: heads with their epochs and deleted prefixes, events
//! with their numbers, times, writers, tags and checksums, snapshots, durable states and tombstones. Each id is
//! compared afterwards, record by record, so the copy is verified. A repeated run continues where an earlier run ended,
//! by comparing with the target; an id that is present and equal is skipped.
//!
//! ```text
//! for each id:  compare ─ equal ─▶ next
//!                  └ head, events, snapshots, state that are missing ─▶ compare again
//! ```
//! No other process may use either store meanwhile, nor the target before `copy` has returned: an
//! interrupted copy looks like an older state of the store. Several sources may be copied into one target, one after
//! the other, if no id is in two of them. Offsets of projections are not copied, see [`Export`].
//! Source: persistence §4.6.

mod compare;
mod counts;
mod verify;

use self::compare::{CompareError, Comparison, state_of};
use self::counts::HistoryFacts;
use super::records::{Export, Import};
use crate::contract::error::{ReadError, SnapshotError, StoreFailure};
use crate::contract::head::Head;
use crate::contract::history_part::{HistoryPart, ImportError};
use crate::contract::journal::ReadRange;
use crate::contract::records::event::SeqNr;
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::SnapshotCriteria;

pub use self::compare::{Difference, DifferenceKind, Place, Side};
pub use self::counts::Counts;
pub use self::verify::{Verified, check, verify};

/// Ids of one page; after each page the stores are checked to be still reserved.
const IDS_PER_PAGE: usize = 100;

/// The result of a copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Records written by this run.
    pub written: Counts,
    /// Ids that were in the target already, equal in everything.
    pub equal_ids: u64,
}

/// Why a copy, or a comparison, ended early. The ids copied until then are complete; follow the advice in the
/// text, and run the copy again: it continues from there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// Another process uses one of the stores, or the store cannot tell. The current id may be partly
    /// copied.
    #[error("{0}; stop the processes that use it, then run this again")]
    InUse(#[source] StoreFailure),
    /// A store cannot be read.
    #[error("reading stopped at {at}: {cause}", at = id.as_ref().map_or("the list of ids", PersistenceId::as_str))]
    Unreadable {
        /// The id being read; `None` while listing ids.
        id: Option<PersistenceId>,
        /// The store's failure.
        #[source]
        cause: StoreFailure,
    },
    /// A record is damaged. Earlier ids are copied; this id is not complete in the target.
    #[error("{0}; repair or remove it, then copy again")]
    Damaged(Difference),
    /// The target holds records of this id that the source does not have, so it is not an earlier part of
    /// the source's. Nothing of this id was changed.
    #[error("the target holds another history: {0}; copy into an empty store, or one that an earlier run made")]
    Occupied(Difference),
    /// The target refused a record.
    #[error("{id} was not imported: {cause}")]
    NotTaken {
        /// The id that the record belongs to.
        id: PersistenceId,
        /// The reason.
        #[source]
        cause: ImportError,
    },
    /// Source and target differ after the copy: one of the stores is used meanwhile, or broken.
    #[error("after copying, source and target differ: {0}; do not use the target")]
    Unequal(Difference),
}

impl CopyError {
    fn unreadable(id: &PersistenceId) -> impl FnOnce(StoreFailure) -> Self {
        |cause| Self::Unreadable { id: Some(id.clone()), cause }
    }

    fn not_taken(id: &PersistenceId) -> impl FnOnce(ImportError) -> Self {
        |cause| Self::NotTaken { id: id.clone(), cause }
    }
}

/// Copies all records of `from` that `to` lacks.
///
/// # Errors
/// [`CopyError`]; run the copy again when the cause is removed.
pub async fn copy(from: &dyn Export, to: &dyn Import) -> Result<Copied, CopyError> {
    let mut copying = Copying { from, to, copied: Copied::default() };
    let mut after = None;
    loop {
        reserve(from).await?;
        reserve(to).await?;
        let ids = ids_after(from, after.as_ref()).await?;
        for id in &ids {
            copying.id(id).await?;
        }
        match ids.into_iter().nth(IDS_PER_PAGE - 1) {
            Some(last) => after = Some(last),
            None => break,
        }
    }
    reserve(from).await?;
    reserve(to).await?;
    Ok(copying.copied)
}

async fn reserve(store: &dyn Export) -> Result<(), CopyError> {
    store.reserved().await.map_err(CopyError::InUse)
}

async fn ids_after(store: &dyn Export, after: Option<&PersistenceId>) -> Result<Vec<PersistenceId>, CopyError> {
    store.ids(after, IDS_PER_PAGE).await.map_err(|error| CopyError::Unreadable { id: None, cause: failure(error) })
}

/// The error as a store failure, for errors that do not distinguish a damaged record from an unavailable store.
fn failure(error: ReadError) -> StoreFailure {
    match error {
        ReadError::Unavailable(cause) => cause,
        ReadError::Corrupt(corrupt) => StoreFailure::new("the store", corrupt),
    }
}

/// A copy under way.
struct Copying<'a> {
    from: &'a dyn Export,
    to: &'a dyn Import,
    copied: Copied,
}

impl Copying<'_> {
    async fn id(&mut self, id: &PersistenceId) -> Result<(), CopyError> {
        if self.compare(id).await?.is_none() {
            self.copied.equal_ids += 1;
            return Ok(());
        }
        self.events(id).await?;
        self.snapshots(id).await?;
        self.state(id).await?;
        self.copied.written.ids += 1;
        match self.compare(id).await? {
            None => Ok(()),
            Some(difference) if difference.is_damage() => Err(CopyError::Damaged(difference)),
            Some(difference) => Err(CopyError::Unequal(difference)),
        }
    }

    /// The first difference between source and target.
    async fn compare(&self, id: &PersistenceId) -> Result<Option<Difference>, CopyError> {
        let mut comparison = Comparison::new(self.from, Some(self.to), 1);
        comparison.id(id).await.map_err(CopyError::unreadable(id))?;
        Ok(comparison.differences.into_iter().next())
    }

    /// Copies the events that the target lacks, once its present ones are known to be the source's.
    async fn events(&mut self, id: &PersistenceId) -> Result<(), CopyError> {
        let (source, target) = (history_facts(self.from, id).await?, history_facts(self.to, id).await?);
        let mut common = Comparison::new(self.from, Some(self.to), 1);
        common.events(id, &source.head, &target.head).await.map_err(CopyError::unreadable(id))?;
        if let Some(difference) = common.differences.into_iter().next() {
            return Err(occupied(difference));
        }
        if source == target {
            return Ok(());
        }
        let journal = self.from.stores().journal;
        let mut stored = target.head;
        loop {
            let next = stored.highest.max(source.head.deleted_to).next().unwrap_or(SeqNr::MAX);
            let range = ReadRange::new(next, source.head.highest);
            let page = journal.read(id, range).await;
            let page = page.map_err(|error| match error {
                ReadError::Corrupt(corrupt) => {
                    CopyError::Damaged(Difference::damaged(Side::First, Place::Event, corrupt))
                }
                ReadError::Unavailable(cause) => CopyError::unreadable(id)(cause),
            })?;
            let last = page.records.last();
            let highest = last.map_or(stored.highest.max(source.head.deleted_to), |event| event.seq_nr);
            let is_whole = page.next.is_none();
            let last_append = last.filter(|_| !is_whole).map_or(source.last_append, |event| event.timestamp);
            let head = Head { highest, ..source.head };
            self.copied.written.events += page.records.len() as u64;
            let part = HistoryPart { id: id.clone(), head, last_append, events: page.records };
            match self.to.import_events(part).await {
                Ok(()) => stored = head,
                Err(ImportError::NotAContinuation { stored }) => {
                    let target = HistoryFacts { head: stored, ..target };
                    let difference = compare::differing_facts(id, &source, &target).into_iter().next();
                    let cause = ImportError::NotAContinuation { stored };
                    return Err(difference.map_or_else(|| CopyError::not_taken(id)(cause), occupied));
                }
                Err(cause) => return Err(CopyError::not_taken(id)(cause)),
            }
            if is_whole {
                return Ok(());
            }
        }
    }

    /// Copies the snapshots of the source. Deletes those of the target that are older than the source's newest and that
    /// the source does not have: the source has deleted them.
    async fn snapshots(&mut self, id: &PersistenceId) -> Result<(), CopyError> {
        let (source, target) = (self.from.stores().snapshots, self.to.stores().snapshots);
        let mut upper = SeqNr::MAX;
        let mut is_newest = true;
        loop {
            let found = source.load(id, SnapshotCriteria::up_to(upper)).await.map_err(|error| unloaded(id, error))?;
            let lower = found.as_ref().map(|snapshot| snapshot.seq_nr);
            // The source has no snapshot between `lower` and `upper`.
            let between = SnapshotCriteria {
                min_seq_nr: lower.map_or(SeqNr::ZERO, |lower| lower.next().unwrap_or(SeqNr::MAX)),
                ..SnapshotCriteria::up_to(upper)
            };
            if between.min_seq_nr <= between.max_seq_nr && Some(upper) != lower {
                let foreign = target.load(id, between).await;
                match foreign.map_err(|error| unloaded(id, error))? {
                    Some(foreign) if is_newest => {
                        return Err(occupied(Difference::only(Side::Second, id, Place::Snapshot(foreign.seq_nr))));
                    }
                    Some(_) => target.delete_matching(id, between).await.map_err(|error| unloaded(id, error))?,
                    None => {}
                }
            }
            let Some(snapshot) = found else { return Ok(()) };
            let seq_nr = snapshot.seq_nr;
            let exactly = SnapshotCriteria { min_seq_nr: seq_nr, ..SnapshotCriteria::up_to(seq_nr) };
            let present = target.load(id, exactly).await;
            if !present.is_ok_and(|present| present.as_ref() == Some(&snapshot)) {
                self.to.import_snapshot(snapshot).await.map_err(CopyError::not_taken(id))?;
                self.copied.written.snapshots += 1;
            }
            if seq_nr.is_zero() {
                return Ok(());
            }
            (upper, is_newest) = (seq_nr.previous(), false);
        }
    }

    /// Copies the state of the source. A state of the target with a smaller revision and no later time counts as an
    /// earlier state of the source.
    async fn state(&mut self, id: &PersistenceId) -> Result<(), CopyError> {
        let unread = |side| {
            move |error| match error {
                ReadError::Corrupt(corrupt) => CopyError::Damaged(Difference::damaged(side, Place::state, corrupt)),
                ReadError::Unavailable(cause) => CopyError::Unreadable { id: Some(id.clone()), cause },
            }
        };
        let source = state_of(self.from, id).await.map_err(unread(Side::First))?;
        let target = state_of(self.to, id).await.map_err(unread(Side::Second))?;
        let Some(difference) = compare::states(id, &source, &target).into_iter().next() else { return Ok(()) };
        if target.revision >= source.revision || target.timestamp > source.timestamp {
            return Err(occupied(difference));
        }
        self.to.import_state(source).await.map_err(CopyError::not_taken(id))?;
        self.copied.written.states += 1;
        Ok(())
    }
}

fn occupied(difference: Difference) -> CopyError {
    if difference.is_damage() { CopyError::Damaged(difference) } else { CopyError::Occupied(difference) }
}

fn unloaded(id: &PersistenceId, error: SnapshotError) -> CopyError {
    match error {
        SnapshotError::Corrupt(corrupt) => {
            CopyError::Damaged(Difference::damaged(Side::First, Place::Snapshot, corrupt))
        }
        SnapshotError::Unavailable(cause) => CopyError::unreadable(id)(cause),
        SnapshotError::TooLarge { .. } => CopyError::unreadable(id)(StoreFailure::new("snapshots", error)),
    }
}

async fn history_facts(store: &dyn Export, id: &PersistenceId) -> Result<HistoryFacts, CopyError> {
    compare::history_facts(store, id).await.map_err(|error| match error {
        CompareError::Damaged(corrupt) => CopyError::Damaged(Difference::damaged(Side::First, Place::head, corrupt)),
        CompareError::Unreadable(cause) => CopyError::unreadable(id)(cause),
    })
}
