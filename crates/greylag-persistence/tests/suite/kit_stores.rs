//! State and offset stores in memory pass their kits, as do all faulty wrappers without scripted faults;
//! and the kits find planted bugs.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::FutureExt;
use greylag_persistence::tck::{self, Flags, OffsetFactory, Report, StateFactory};
use greylag_persistence::{
    ChangesOf, CloseError, EncodedValue, FaultyJournal, FaultyOffsets, FaultySnapshots, FaultyStates, Health,
    InMemoryJournal, InMemoryOffsets, InMemorySnapshots, InMemoryStates, Journal, Offset, OffsetCaps, OffsetError,
    OffsetKind, OffsetStore, OwnedSlices, PersistenceId, Position, Processed, QueryError, ReadError, Scope,
    SnapshotStore, StateCaps, StateChange, StateStore, StateWrite, StateWriteError, StoredState, WriterUuid,
};

/// Memory never waits, so no runtime is needed.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("memory never waits")
}

// ---- States -----------------------------------------------------------------------------------

/// Opens in-memory state stores, as they are or with a bug, with the hook of the kit.
struct States {
    wrap: fn(InMemoryStates) -> Arc<dyn StateStore>,
    opened: Mutex<Vec<InMemoryStates>>,
}

impl States {
    fn new(wrap: fn(InMemoryStates) -> Arc<dyn StateStore>) -> Self {
        Self { wrap, opened: Mutex::default() }
    }
}

#[async_trait]
impl StateFactory for States {
    async fn open(&self) -> Arc<dyn StateStore> {
        let store = InMemoryStates::default();
        self.opened.lock().unwrap().push(store.clone());
        (self.wrap)(store)
    }

    async fn corrupt(&self, _: &Arc<dyn StateStore>, id: &PersistenceId) -> bool {
        self.opened.lock().unwrap().iter().any(|store| store.corrupt(id))
    }
}

#[test]
fn the_in_memory_states_conform() {
    let report = now(tck::states(&States::new(|store| Arc::new(store)), Flags::default()));
    report.assert_conforms();
    assert_eq!((report.cases.len(), report.skipped().count()), (18, 0), "{report}");
}

#[test]
fn faulty_wrappers_without_a_plan_conform() {
    let faulty = |store: InMemoryStates| Arc::new(FaultyStates::new(Arc::new(store))) as Arc<dyn StateStore>;
    now(tck::states(&States::new(faulty), Flags::default())).assert_conforms();
    let open = || async { Arc::new(FaultyOffsets::new(Arc::new(InMemoryOffsets::default()))) as Arc<dyn OffsetStore> };
    now(tck::offsets(&open, Flags::default())).assert_conforms();
    let few = || Flags { concurrent_ids: 50, largest: false, ..Flags::default() };
    let open = || async { Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default()))) as Arc<dyn Journal> };
    now(tck::journal(&open, few())).assert_conforms();
    let open =
        || async { Arc::new(FaultySnapshots::new(Arc::new(InMemorySnapshots::default()))) as Arc<dyn SnapshotStore> };
    now(tck::snapshots(&open, few())).assert_conforms();
}

/// A rule of the state contract that is left out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum StateBug {
    RevisionUnchecked,
    GenerationUnchecked,
    RepeatRefused,
    AnyRepeatPasses,
    DeleteForgets,
    TombstoneHidden,
    CorruptIsAbsent,
    TagsLost,
    OffsetIgnored,
    LimitIgnored,
    TombstonesNotListed,
    ForeignOffsetTaken,
}

struct BrokenStates(StateBug, InMemoryStates);

impl BrokenStates {
    /// The write, changed to follow the newest row.
    async fn forced(&self, write: StateWrite) -> StateWrite {
        let row = self.1.get(&write.id).await.unwrap();
        StateWrite { revision: row.revision.next().unwrap(), generation: row.generation, ..write }
    }

    /// The write with the bug, or an error with the answer to give without a write.
    async fn bent(&self, write: StateWrite) -> Result<StateWrite, Result<(), StateWriteError>> {
        let Ok(row) = self.1.get(&write.id).await else { return Ok(write) };
        match self.0 {
            StateBug::RevisionUnchecked => Ok(self.forced(write).await),
            StateBug::GenerationUnchecked => Ok(StateWrite { generation: row.generation, ..write }),
            StateBug::RepeatRefused if row.revision == write.revision => {
                Err(Err(StateWriteError::RevisionMismatch { current: row.head() }))
            }
            StateBug::AnyRepeatPasses if row.revision == write.revision => Err(Ok(())),
            _ => Ok(write),
        }
    }
}

#[async_trait]
impl StateStore for BrokenStates {
    fn caps(&self) -> StateCaps {
        self.1.caps()
    }

    async fn get(&self, id: &PersistenceId) -> Result<StoredState, ReadError> {
        match (self.0, self.1.get(id).await) {
            (StateBug::CorruptIsAbsent, Err(ReadError::Corrupt(_))) => Ok(StoredState::absent(id.clone())),
            (StateBug::TombstoneHidden, Ok(row)) if row.value.is_none() => Ok(StoredState::absent(id.clone())),
            (_, answer) => answer,
        }
    }

    async fn upsert(&self, write: StateWrite, value: EncodedValue, tag: Option<String>) -> Result<(), StateWriteError> {
        let tag = tag.filter(|_| self.0 != StateBug::TagsLost);
        match self.bent(write).await {
            Ok(write) => self.1.upsert(write, value, tag).await,
            Err(answer) => answer,
        }
    }

    async fn delete(&self, write: StateWrite) -> Result<(), StateWriteError> {
        if self.0 == StateBug::DeleteForgets {
            self.1.delete(write).await?;
            self.1.clear();
            return Ok(());
        }
        match self.bent(write).await {
            Ok(write) => self.1.delete(write).await,
            Err(answer) => answer,
        }
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        let limit = if self.0 == StateBug::LimitIgnored { 1000 } else { limit };
        let mut ids = self.1.ids(after, limit).await?;
        if self.0 == StateBug::TombstonesNotListed {
            ids.retain(|id| self.1.row(id).is_some_and(|row| row.value.is_some()));
        }
        Ok(ids)
    }

    async fn changes(&self, of: &ChangesOf, offset: &Offset, limit: usize) -> Result<Vec<StateChange>, QueryError> {
        let offset = match (self.0, offset) {
            (StateBug::OffsetIgnored, Offset::Ordinal(_)) => return self.1.changes(of, &Offset::None, 1).await,
            (StateBug::ForeignOffsetTaken, Offset::Timestamp { .. }) => &Offset::None,
            (_, offset) => offset,
        };
        self.1.changes(of, offset, limit).await
    }

    fn health(&self) -> Health {
        self.1.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.1.close().await
    }
}

fn failed(report: &Report, case: &str) -> bool {
    report.failed().any(|name| name.starts_with(case))
}

#[test]
fn every_planted_state_bug_is_found() {
    macro_rules! found {
        ($($bug:ident => $case:literal;)*) => {$(
            let wrap = |store| Arc::new(BrokenStates(StateBug::$bug, store)) as Arc<dyn StateStore>;
            let flags = Flags { only: Some($case.to_owned()), ..Flags::default() };
            let report = now(tck::states(&States::new(wrap), flags));
            assert!(failed(&report, $case), "{} must fail case {}:\n{report}", stringify!($bug), $case);
        )*};
    }
    found! {
        RevisionUnchecked => "07";
        RevisionUnchecked => "08";
        RevisionUnchecked => "09";
        RevisionUnchecked => "16";
        GenerationUnchecked => "13";
        RepeatRefused => "14";
        AnyRepeatPasses => "14";
        AnyRepeatPasses => "16";
        DeleteForgets => "04";
        DeleteForgets => "06";
        TombstoneHidden => "04";
        CorruptIsAbsent => "11";
        TagsLost => "10";
        TagsLost => "15";
        OffsetIgnored => "10";
        ForeignOffsetTaken => "10";
        LimitIgnored => "12";
        TombstonesNotListed => "12";
    }
}

/// A case that needs a faulty wrapper: a writer whose answer was lost repeats its write.
#[test]
fn a_writer_that_lost_an_answer_asks_again() {
    let faulty = FaultyStates::new(Arc::new(InMemoryStates::default()));
    let id: PersistenceId = "Counter|1".parse().unwrap();
    let lost = greylag_persistence::StoreFault::AnswerLost { done: true };
    faulty.plan(Some(id.clone()), greylag_persistence::StateOp::Upsert, 0, lost);
    let write = StateWrite {
        id: id.clone(),
        revision: greylag_persistence::Revision::FIRST,
        generation: None,
        writer_uuid: WriterUuid::from_u128(1),
    };
    let value = EncodedValue {
        codec_id: greylag_core::CodecId::JSON,
        manifest: "counter".into(),
        schema_version: 1,
        payload: "{}".into(),
    };
    let first = now(faulty.upsert(write.clone(), value.clone(), None));
    assert!(matches!(first, Err(StateWriteError::Unknown(_))), "{first:?}");
    assert_eq!(now(faulty.upsert(write, value, None)), Ok(()));
    assert_eq!(now(faulty.get(&id)).unwrap().revision, greylag_persistence::Revision::FIRST);
}

// ---- Offsets ----------------------------------------------------------------------------------

#[test]
fn the_in_memory_offsets_conform() {
    for kind in [OffsetKind::Ordinal, OffsetKind::Timestamp] {
        let open = move || async move { Arc::new(InMemoryOffsets::new(Scope::Process, kind)) as Arc<dyn OffsetStore> };
        let report = now(tck::offsets(&open, Flags::default()));
        report.assert_conforms();
        assert_eq!((report.cases.len(), report.skipped().count()), (19, 0), "{report}");
    }
}

/// A rule of the offset contract that is left out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum OffsetBug {
    Unfenced,
    ClaimKeepsEpoch,
    OnlyLastSaved,
    HalfSaved,
    NumberFalls,
    SlicesIgnored,
    NamesIgnored,
    ForgetsNewest,
    ResetForgetsNothing,
    OneOfEachSlice,
    ResetForgetsStarts,
}

/// A store with a bug; its fields: the bug, the store, the first claim, and whether there was a reset.
struct BrokenOffsets(OffsetBug, InMemoryOffsets, Mutex<Option<OwnedSlices>>, AtomicBool);

#[async_trait]
impl OffsetStore for BrokenOffsets {
    fn caps(&self) -> OffsetCaps {
        self.1.caps()
    }

    async fn claim(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<OwnedSlices, OffsetError> {
        let projection = if self.0 == OffsetBug::NamesIgnored && !projection.is_empty() { "same" } else { projection };
        if self.0 == OffsetBug::ClaimKeepsEpoch {
            let first = self.2.lock().unwrap().clone().filter(|first| first.projection == projection);
            if let Some(first) = first {
                return Ok(first);
            }
        }
        let owned = self.1.claim(projection, slices).await?;
        *self.2.lock().unwrap() = Some(owned.clone());
        Ok(owned)
    }

    async fn load(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<Vec<Processed>, OffsetError> {
        let projection = if self.0 == OffsetBug::NamesIgnored { "same" } else { projection };
        let slices = if self.0 == OffsetBug::SlicesIgnored { 0..=1023 } else { slices };
        let mut loaded = self.1.load(projection, slices).await?;
        if self.0 == OffsetBug::OneOfEachSlice {
            // Keep only the newest row of each slice, as a store of ordinals may, but drop marks too, as it must not.
            loaded.reverse();
            let mut seen = std::collections::BTreeSet::new();
            loaded.retain(|processed| seen.insert(processed.id.slice()));
            loaded.reverse();
        }
        if self.0 == OffsetBug::ResetForgetsStarts && self.3.load(Ordering::Relaxed) {
            loaded.retain(|processed| !processed.is_start());
        }
        Ok(loaded)
    }

    async fn save(&self, owned: &OwnedSlices, processed: &[Processed]) -> Result<(), OffsetError> {
        match self.0 {
            OffsetBug::Unfenced => {
                let owned = self.1.claim(&owned.projection, 0..=1023).await?;
                self.1.save(&owned, processed).await
            }
            OffsetBug::OnlyLastSaved => self.1.save(owned, &processed[processed.len().saturating_sub(1)..]).await,
            OffsetBug::HalfSaved => {
                for processed in processed {
                    self.1.save(owned, std::slice::from_ref(processed)).await?;
                }
                Ok(())
            }
            OffsetBug::NumberFalls => {
                let wanted = processed.iter().map(|processed| processed.id.clone()).collect::<Vec<_>>();
                let kept = self.1.load(&owned.projection, 0..=1023).await?;
                let kept: Vec<_> = kept.into_iter().filter(|kept| !wanted.contains(&kept.id)).collect();
                self.1.reset(owned).await?;
                self.1.save(owned, &kept).await?;
                self.1.save(owned, processed).await
            }
            _ => self.1.save(owned, processed).await,
        }
    }

    async fn forget_before(&self, owned: &OwnedSlices, position: Position) -> Result<(), OffsetError> {
        if self.0 == OffsetBug::ForgetsNewest {
            let kept = self.1.load(&owned.projection, 0..=1023).await?;
            let kept: Vec<_> = kept.into_iter().filter(|kept| kept.position >= position).collect();
            self.1.reset(owned).await?;
            return self.1.save(owned, &kept).await;
        }
        self.1.forget_before(owned, position).await
    }

    async fn reset(&self, owned: &OwnedSlices) -> Result<(), OffsetError> {
        self.3.store(true, Ordering::Relaxed);
        if self.0 == OffsetBug::ResetForgetsNothing { Ok(()) } else { self.1.reset(owned).await }
    }

    fn health(&self) -> Health {
        self.1.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.1.close().await
    }
}

struct BrokenOffsetsFactory(OffsetBug);

#[async_trait]
impl OffsetFactory for BrokenOffsetsFactory {
    async fn open(&self) -> Arc<dyn OffsetStore> {
        let inner = InMemoryOffsets::new(Scope::Process, OffsetKind::Timestamp);
        Arc::new(BrokenOffsets(self.0, inner, Mutex::default(), AtomicBool::default()))
    }
}

#[test]
fn every_planted_offset_bug_is_found() {
    for (bug, case) in [
        (OffsetBug::Unfenced, "08"),
        (OffsetBug::Unfenced, "10"),
        (OffsetBug::ClaimKeepsEpoch, "07"),
        (OffsetBug::ClaimKeepsEpoch, "15"),
        (OffsetBug::OnlyLastSaved, "04"),
        (OffsetBug::HalfSaved, "08"),
        (OffsetBug::NumberFalls, "03"),
        (OffsetBug::SlicesIgnored, "05"),
        (OffsetBug::NamesIgnored, "06"),
        (OffsetBug::ForgetsNewest, "11"),
        (OffsetBug::ResetForgetsNothing, "12"),
        (OffsetBug::ResetForgetsNothing, "16"),
        (OffsetBug::OneOfEachSlice, "18"),
        (OffsetBug::ResetForgetsStarts, "19"),
    ] {
        let flags = Flags { only: Some(case.to_owned()), ..Flags::default() };
        let report = now(tck::offsets(&BrokenOffsetsFactory(bug), flags));
        assert!(failed(&report, case), "{bug:?} must fail case {case}:\n{report}");
    }
}
