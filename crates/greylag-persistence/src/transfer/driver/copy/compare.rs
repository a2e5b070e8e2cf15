//! Compares two stores, or reads one alone, record by record: differences and damages.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::counts::{Counts, HistoryFacts};
use crate::contract::driver::journal_store::{Journal, SnapshotStore};
use crate::contract::error::{Corrupt, CorruptKind, ReadError, SnapshotError, StoreFailure};
use crate::contract::head::Head;
use crate::contract::journal::ReadRange;
use crate::contract::records::event::{SeqNr, StoredEvent};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::{Snapshot, SnapshotCriteria};
use crate::contract::records::state::StoredState;
use crate::transfer::driver::records::Export;

/// One of two stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first store; of a copy, the source.
    First,
    /// The second store; of a copy, the target.
    Second,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "the first store",
            Self::Second => "the second store",
        })
    }
}

/// The place of a record within its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The facts about the history besides its events.
    Head,
    /// The event of this number.
    Event(SeqNr),
    /// The snapshot of this number.
    Snapshot(SeqNr),
    /// The durable state.
    State,
}

impl Place {
    pub(super) fn head(_: SeqNr) -> Self {
        Self::Head
    }

    pub(super) fn state(_: SeqNr) -> Self {
        Self::State
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head => f.write_str("head"),
            Self::Event(seq_nr) => write!(f, "event {seq_nr}"),
            Self::Snapshot(seq_nr) => write!(f, "snapshot {seq_nr}"),
            Self::State => f.write_str("state"),
        }
    }
}

/// A record that differs between two stores, or that is damaged in one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The id that the record belongs to.
    pub id: PersistenceId,
    /// The place of the record.
    pub place: Place,
    /// The kind of difference.
    pub kind: DifferenceKind,
}

/// The kind of a difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DifferenceKind {
    /// The record cannot be read.
    Damaged {
        /// The store with the damaged record.
        side: Side,
        /// The kind of damage.
        kind: CorruptKind,
    },
    /// The record is missing in the other store.
    Only {
        /// The store that has the record.
        side: Side,
    },
    /// Both stores have the record, with different content.
    Field {
        /// Name of the field that differs.
        name: &'static str,
        /// The field in the first store.
        first: String,
        /// The field in the second store.
        second: String,
    },
}

impl Difference {
    pub(super) fn damaged(side: Side, place: impl FnOnce(SeqNr) -> Place, corrupt: Corrupt) -> Self {
        let Corrupt { id, seq_nr, kind } = corrupt;
        let place = if seq_nr.is_zero() { Place::Head } else { place(seq_nr) };
        Self { id, place, kind: DifferenceKind::Damaged { side, kind } }
    }

    pub(super) fn only(side: Side, id: &PersistenceId, place: Place) -> Self {
        Self { id: id.clone(), place, kind: DifferenceKind::Only { side } }
    }

    /// Whether a record cannot be read at all.
    pub fn is_damage(&self) -> bool {
        matches!(self.kind, DifferenceKind::Damaged { .. })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}: ", self.place, self.id)?;
        match &self.kind {
            DifferenceKind::Damaged { side, kind } => write!(f, "{kind} in {side}"),
            DifferenceKind::Only { side } => write!(f, "it is in {side} only"),
            DifferenceKind::Field { name, first, second } => {
                write!(f, "{name} is {first} in {}, and {second} in {}", Side::First, Side::Second)
            }
        }
    }
}

/// Collects the fields in which two records differ.
struct Fields<'a> {
    id: &'a PersistenceId,
    place: Place,
    found: Vec<Difference>,
}

impl<'a> Fields<'a> {
    fn new(id: &'a PersistenceId, place: Place) -> Self {
        Self { id, place, found: Vec::new() }
    }

    fn compare<T: PartialEq>(mut self, name: &'static str, first: &T, second: &T, show: impl Fn(&T) -> String) -> Self {
        if first != second {
            let kind = DifferenceKind::Field { name, first: show(first), second: show(second) };
            self.found.push(Difference { id: self.id.clone(), place: self.place, kind });
        }
        self
    }

    fn text<T: PartialEq + fmt::Display>(self, name: &'static str, first: &T, second: &T) -> Self {
        self.compare(name, first, second, T::to_string)
    }

    fn debug<T: PartialEq + fmt::Debug>(self, name: &'static str, first: &T, second: &T) -> Self {
        self.compare(name, first, second, |value| format!("{value:?}"))
    }

    /// Shows payloads, which may be long, by length and checksum.
    fn bytes(self, name: &'static str, first: &[u8], second: &[u8]) -> Self {
        self.compare(name, &first, &second, |bytes| format!("{} bytes ({:08x})", bytes.len(), crc32c::crc32c(bytes)))
    }
}

/// Treats "no generation" as the least one: neither refuses any writer, and some stores cannot tell the two apart.
fn generation(generation: Option<greylag_core::Generation>) -> u64 {
    generation.map_or(0, greylag_core::Generation::as_u64)
}

/// The differences between the heads of two histories.
pub(super) fn differing_facts(id: &PersistenceId, first: &HistoryFacts, second: &HistoryFacts) -> Vec<Difference> {
    let (a, b) = (&first.head, &second.head);
    Fields::new(id, Place::Head)
        .text("epoch", &a.epoch, &b.epoch)
        .text("writer", &a.writer_uuid, &b.writer_uuid)
        .text("generation", &generation(a.generation), &generation(b.generation))
        .text("the highest number", &a.highest, &b.highest)
        .text("the last number deleted", &a.deleted_to, &b.deleted_to)
        .text("the time of the last append", &first.last_append, &second.last_append)
        .found
}

fn events(first: &StoredEvent, second: &StoredEvent) -> Vec<Difference> {
    Fields::new(&first.id, Place::Event(first.seq_nr))
        .text("time", &first.timestamp, &second.timestamp)
        .text("writer", &first.writer_uuid, &second.writer_uuid)
        .text("epoch", &first.writer_epoch, &second.writer_epoch)
        .debug("codec", &first.codec_id, &second.codec_id)
        .debug("manifest", &first.manifest, &second.manifest)
        .text("schema version", &first.schema_version, &second.schema_version)
        .debug("kind", &first.kind, &second.kind)
        .bytes("payload", &first.payload, &second.payload)
        .debug("metadata", &first.metadata, &second.metadata)
        .debug("tags", &first.tags, &second.tags)
        .text("checksum", &first.crc32c, &second.crc32c)
        .found
}

fn snapshots(first: &Snapshot, second: &Snapshot) -> Vec<Difference> {
    Fields::new(&first.id, Place::Snapshot(first.seq_nr))
        .text("time", &first.timestamp, &second.timestamp)
        .debug("codec", &first.codec_id, &second.codec_id)
        .debug("manifest", &first.manifest, &second.manifest)
        .text("schema version", &first.schema_version, &second.schema_version)
        .bytes("payload", &first.payload, &second.payload)
        .debug("metadata", &first.metadata, &second.metadata)
        .text("checksum", &first.crc32c, &second.crc32c)
        .found
}

/// The differences between two states.
pub(super) fn states(id: &PersistenceId, first: &StoredState, second: &StoredState) -> Vec<Difference> {
    let content = |state: &StoredState| {
        let value = state.value.as_ref();
        value.map(|value| (value.codec_id, value.manifest.clone(), value.schema_version, value.payload.clone()))
    };
    let show = |content: &Option<_>| if content.is_some() { "another one".to_owned() } else { "none".to_owned() };
    Fields::new(id, Place::State)
        .text("revision", &first.revision, &second.revision)
        .text("generation", &generation(first.generation), &generation(second.generation))
        .text("writer", &first.writer_uuid, &second.writer_uuid)
        .text("time", &first.timestamp, &second.timestamp)
        .compare("value", &content(first), &content(second), show)
        .debug("tag", &first.tag, &second.tag)
        .debug("checksum", &first.crc32c, &second.crc32c)
        .found
}

/// Why a record was not compared.
pub(super) enum CompareError {
    Damaged(Corrupt),
    Unreadable(StoreFailure),
}

impl From<ReadError> for CompareError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Corrupt(corrupt) => Self::Damaged(corrupt),
            ReadError::Unavailable(cause) => Self::Unreadable(cause),
        }
    }
}

/// The facts that a store keeps about a history besides its events.
pub(super) async fn history_facts(store: &dyn Export, id: &PersistenceId) -> Result<HistoryFacts, CompareError> {
    let head = store.stores().journal.head(id).await?;
    Ok(HistoryFacts { head, last_append: store.last_append(id).await? })
}

/// The row of a state; absent in a store without states.
pub(super) async fn state_of(store: &dyn Export, id: &PersistenceId) -> Result<StoredState, ReadError> {
    match store.stores().states {
        Some(states) => states.get(id).await,
        None => Ok(StoredState::absent(id.clone())),
    }
}

/// A comparison of two stores, or a check of one, under way.
pub(super) struct Comparison<'a> {
    first: &'a dyn Export,
    second: Option<&'a dyn Export>,
    /// Number of differences after which the comparison ends.
    limit: usize,
    pub(super) differences: Vec<Difference>,
    /// Number of records in the first store.
    pub(super) counts: Counts,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(first: &'a dyn Export, second: Option<&'a dyn Export>, limit: usize) -> Self {
        Self { first, second, limit, differences: Vec::new(), counts: Counts::default() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.differences.len() >= self.limit
    }

    fn note(&mut self, found: impl IntoIterator<Item = Difference>) {
        let room = self.limit.saturating_sub(self.differences.len());
        self.differences.extend(found.into_iter().take(room));
    }

    /// Compares all records of one id.
    pub(super) async fn id(&mut self, id: &PersistenceId) -> Result<(), StoreFailure> {
        let counted = self.counts;
        let first = self.history_facts(Side::First, id).await?;
        let second = match self.second {
            Some(_) => self.history_facts(Side::Second, id).await?,
            None => first,
        };
        if let (Some(first), Some(second)) = (first, second) {
            self.note(differing_facts(id, &first, &second));
            self.events(id, &first.head, &second.head).await?;
        }
        if !self.is_full() {
            self.snapshots(id).await?;
        }
        if !self.is_full() {
            self.state(id).await?;
        }
        let is_empty = first.is_some_and(|first| first == HistoryFacts::default()) && counted == self.counts;
        self.counts.ids += u64::from(!is_empty);
        Ok(())
    }

    fn store(&self, side: Side) -> &'a dyn Export {
        match side {
            Side::First => self.first,
            Side::Second => self.second.unwrap_or(self.first),
        }
    }

    async fn history_facts(&mut self, side: Side, id: &PersistenceId) -> Result<Option<HistoryFacts>, StoreFailure> {
        match history_facts(self.store(side), id).await {
            Ok(facts) => Ok(Some(facts)),
            Err(CompareError::Damaged(corrupt)) => {
                self.note([Difference::damaged(side, Place::head, corrupt)]);
                Ok(None)
            }
            Err(CompareError::Unreadable(cause)) => Err(cause),
        }
    }

    /// Compares the events that both stores should have. If one history is longer, or more of it is deleted, the
    /// comparison of the heads has noted that.
    pub(super) async fn events(&mut self, id: &PersistenceId, first: &Head, second: &Head) -> Result<(), StoreFailure> {
        let from = first.deleted_to.max(second.deleted_to).next().unwrap_or(SeqNr::MAX);
        let to = first.highest.min(second.highest);
        if from > to {
            return Ok(());
        }
        let mut left = EventCursor::new(self.first.stores().journal, id, from, to);
        let mut right = self.second.map(|second| EventCursor::new(second.stores().journal, id, from, to));
        while !self.is_full() {
            let a = left.next().await?;
            let b = match &mut right {
                Some(right) => right.next().await?,
                None => a.clone(),
            };
            match (a, b) {
                (None, None) => break,
                (Some(Ok(a)), Some(Ok(b))) => {
                    self.counts.events += 1;
                    // Each cursor yields every number of the range once, so both are at the same number.
                    self.note(events(&a, &b));
                }
                (a, b) => {
                    self.counts.events += u64::from(matches!(a, Some(Ok(_))));
                    let damages =
                        [(Side::First, a), (Side::Second, b)].into_iter().take(1 + usize::from(right.is_some()));
                    for (side, found) in damages {
                        if let Some(Err(corrupt)) = found {
                            self.note([Difference::damaged(side, Place::Event, corrupt)]);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn snapshots(&mut self, id: &PersistenceId) -> Result<(), StoreFailure> {
        let mut left = SnapshotCursor::new(self.first.stores().snapshots, id);
        let mut right = self.second.map(|second| SnapshotCursor::new(second.stores().snapshots, id));
        let mut a = left.next().await?;
        let mut b = next_of(&mut right).await?;
        while !self.is_full() {
            let place = |found: &Option<Result<Snapshot, Corrupt>>| match found {
                Some(Ok(snapshot)) => Some(snapshot.seq_nr),
                Some(Err(corrupt)) => Some(corrupt.seq_nr),
                None => None,
            };
            let (at, other) = (place(&a), place(&b));
            let Some(next) = at.max(other) else { break };
            let first = if at == Some(next) { std::mem::replace(&mut a, left.next().await?) } else { None };
            let second = if other == Some(next) { std::mem::replace(&mut b, next_of(&mut right).await?) } else { None };
            self.counts.snapshots += u64::from(matches!(first, Some(Ok(_))));
            match (first, second) {
                (Some(Ok(first)), Some(Ok(second))) => self.note(snapshots(&first, &second)),
                (Some(Ok(_)), None) if right.is_some() => {
                    self.note([Difference::only(Side::First, id, Place::Snapshot(next))]);
                }
                (None, Some(Ok(_))) => self.note([Difference::only(Side::Second, id, Place::Snapshot(next))]),
                (first, second) => {
                    for (side, found) in [(Side::First, first), (Side::Second, second)] {
                        if let Some(Err(corrupt)) = found {
                            self.note([Difference::damaged(side, Place::Snapshot, corrupt)]);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn state(&mut self, id: &PersistenceId) -> Result<(), StoreFailure> {
        let first = self.read_state(Side::First, id).await?;
        self.counts.states += u64::from(first.as_ref().is_some_and(|state| !state.revision.is_none()));
        if self.second.is_some() {
            let second = self.read_state(Side::Second, id).await?;
            if let (Some(first), Some(second)) = (first, second) {
                self.note(states(id, &first, &second));
            }
        }
        Ok(())
    }

    async fn read_state(&mut self, side: Side, id: &PersistenceId) -> Result<Option<StoredState>, StoreFailure> {
        match state_of(self.store(side), id).await {
            Ok(state) => Ok(Some(state)),
            Err(ReadError::Corrupt(corrupt)) => {
                self.note([Difference::damaged(side, Place::state, corrupt)]);
                Ok(None)
            }
            Err(ReadError::Unavailable(cause)) => Err(cause),
        }
    }
}

/// Yields every event of a range in order, or the damage in its place.
struct EventCursor<'a> {
    journal: Arc<dyn Journal>,
    id: &'a PersistenceId,
    from: Option<SeqNr>,
    to: SeqNr,
    damage: Option<Corrupt>,
    page: VecDeque<StoredEvent>,
}

impl<'a> EventCursor<'a> {
    fn new(journal: Arc<dyn Journal>, id: &'a PersistenceId, from: SeqNr, to: SeqNr) -> Self {
        Self { journal, id, from: Some(from), to, damage: None, page: VecDeque::new() }
    }

    async fn next(&mut self) -> Result<Option<Result<StoredEvent, Corrupt>>, StoreFailure> {
        loop {
            if let Some(event) = self.page.pop_front() {
                return Ok(Some(Ok(event)));
            }
            let Some(from) = self.from.filter(|from| *from <= self.to) else { return Ok(None) };
            if let Some(damage) = self.damage.take_if(|damage| damage.seq_nr <= from) {
                // Damage of the head hides all later events.
                self.from = if damage.seq_nr == from { from.next() } else { None };
                return Ok(Some(Err(damage)));
            }
            // Read the events before the damage first.
            let to = self.damage.as_ref().map_or(self.to, |damage| damage.seq_nr.previous());
            match self.journal.read(self.id, ReadRange::new(from, to)).await {
                Ok(page) => {
                    self.from = page.next.or_else(|| to.next());
                    if page.records.is_empty() && page.next.is_none() {
                        let missing = Corrupt { id: self.id.clone(), seq_nr: from, kind: CorruptKind::Missing };
                        self.from = None;
                        return Ok(Some(Err(missing)));
                    }
                    self.page = page.records.into();
                }
                Err(ReadError::Corrupt(damage)) => self.damage = Some(damage),
                Err(ReadError::Unavailable(cause)) => return Err(cause),
            }
        }
    }
}

/// Yields every snapshot of an id, newest first, or the damage in its place.
struct SnapshotCursor<'a> {
    store: Arc<dyn SnapshotStore>,
    id: &'a PersistenceId,
    upper: Option<SeqNr>,
}

impl<'a> SnapshotCursor<'a> {
    fn new(store: Arc<dyn SnapshotStore>, id: &'a PersistenceId) -> Self {
        Self { store, id, upper: Some(SeqNr::MAX) }
    }

    async fn next(&mut self) -> Result<Option<Result<Snapshot, Corrupt>>, StoreFailure> {
        let Some(upper) = self.upper else { return Ok(None) };
        let below = |seq_nr: SeqNr| if seq_nr.is_zero() { None } else { Some(seq_nr.previous()) };
        match self.store.load(self.id, SnapshotCriteria::up_to(upper)).await {
            Ok(None) => {
                self.upper = None;
                Ok(None)
            }
            Ok(Some(snapshot)) => {
                self.upper = below(snapshot.seq_nr);
                Ok(Some(Ok(snapshot)))
            }
            Err(SnapshotError::Corrupt(corrupt)) => {
                self.upper = below(corrupt.seq_nr);
                Ok(Some(Err(corrupt)))
            }
            Err(SnapshotError::Unavailable(cause)) => Err(cause),
            Err(error @ SnapshotError::TooLarge { .. }) => Err(StoreFailure::new("snapshots", error)),
        }
    }
}

async fn next_of(cursor: &mut Option<SnapshotCursor<'_>>) -> Result<Option<Result<Snapshot, Corrupt>>, StoreFailure> {
    match cursor {
        Some(cursor) => cursor.next().await,
        None => Ok(None),
    }
}
