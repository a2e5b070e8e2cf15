use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{CodecId, Generation};
use greylag_persistence::{
    Append, AppendFault, EventKind, FaultyJournal, FaultySnapshots, InMemoryJournal, InMemorySnapshots, Journal,
    JournalOp, Metadata, NewEvent, SnapshotOp, StoreFault, Tags, Under, WriterUuid,
};

use super::*;
use crate::fingerprint::StateStoreMode;
use crate::ids::{RegionId, ShardId};
use crate::machine::coordinator::{Meta, StoredHome};
use crate::machine::message::CoordinatorId;
use crate::settings::StateJournalSettings;

/// The stores of a test, with the faults around them.
struct World {
    journal: InMemoryJournal,
    snapshots: InMemorySnapshots,
    faulty: Arc<FaultyJournal>,
    faulty_snapshots: Arc<FaultySnapshots>,
    settings: ShardingSettings,
}

impl World {
    fn new() -> Self {
        let (journal, snapshots) = (InMemoryJournal::default(), InMemorySnapshots::default());
        let faulty = Arc::new(FaultyJournal::new(Arc::new(journal.clone())));
        let faulty_snapshots = Arc::new(FaultySnapshots::new(Arc::new(snapshots.clone())));
        let journal_settings = StateJournalSettings {
            snapshot_every: NonZeroU64::new(10).unwrap(),
            keep_n_snapshots: NonZeroU32::new(2).unwrap(),
            ..StateJournalSettings::default()
        };
        let settings = ShardingSettings { journal: journal_settings, ..ShardingSettings::test() };
        Self { journal, snapshots, faulty, faulty_snapshots, settings }
    }

    fn strict(mut self) -> Self {
        self.settings.journal.strict_recovery = true;
        self
    }

    /// The store of a new incarnation.
    fn store(&self) -> PersistenceStore {
        let stores = Stores::new(self.faulty.clone(), self.faulty_snapshots.clone());
        PersistenceStore::new(&name(), &stores, &fingerprint("own"), &self.settings)
    }

    /// Writes raw records, bypassing any coordinator.
    async fn append(&self, records: Vec<(&str, u32, Vec<u8>)>) {
        let (id, uuid) = (id(), WriterUuid::from_u128(7));
        let head = self.journal.head(&id).await.unwrap();
        let claim = self.journal.claim(&id, uuid, Under::Seen(head.epoch)).await.unwrap();
        let event = |(manifest, version, payload): (&str, u32, Vec<u8>)| NewEvent {
            codec_id: CodecId::PROST,
            manifest: manifest.to_owned(),
            schema_version: version,
            kind: EventKind::Event,
            payload: payload.into(),
            metadata: Metadata::new(),
            tags: Tags::new(),
        };
        let events = records.into_iter().map(event).collect();
        let first = claim.highest.next().unwrap();
        self.journal.append(Append { id, epoch: claim.epoch, writer_uuid: uuid, first, events }).await.unwrap();
    }

    fn saved(&self) -> Vec<u64> {
        self.snapshots.snapshots(&id()).iter().map(|snapshot| snapshot.seq_nr.as_u64()).collect()
    }

    fn kept(&self) -> Vec<u64> {
        self.journal.events(&id()).iter().map(|event| event.seq_nr.as_u64()).collect()
    }

    /// A history of 43 events, with every snapshot saved and all needless events and snapshots deleted.
    async fn long(&self) -> StoredState {
        let store = self.store();
        store.read().await.unwrap();
        store.commit(beginning()).await.unwrap();
        for seq in 1..=20 {
            store.commit(vec![home(1, seq, false)]).await.unwrap();
            store.commit(vec![home(1, seq, true)]).await.unwrap();
            // Wait for the save: a snapshot that falls due during one would be left out.
            wait_until(|| !store.log.snapshots().is_saving()).await;
        }
        let state = self.store().read().await.unwrap();
        assert_eq!(state.homes[&ShardId::from_index(1)].generation, generation(20));
        state
    }
}

fn name() -> EntityTypeName {
    EntityTypeName::new("Größe").unwrap()
}

fn id() -> PersistenceId {
    persistence_id(&name())
}

fn fingerprint(role: &str) -> Fingerprint {
    Fingerprint {
        protocol_major: 1,
        type_name: "Cart".into(),
        extractor: ("HashV1".into(), 1),
        number_of_shards: 12,
        remember_entities: false,
        remember_entities_store: "ddata".into(),
        state_store_mode: StateStoreMode::Persistence,
        role: role.into(),
        codec: Vec::new(),
    }
}

fn region() -> RegionId {
    RegionId { node: "a:1#1".parse().unwrap(), incarnation: 1 }
}

fn generation(seq: u64) -> Generation {
    Generation::new(5, seq).unwrap()
}

fn epoch(epoch: u64) -> StateEvent {
    let coordinator = CoordinatorId { node: region().node, incarnation: epoch };
    StateEvent::EpochStarted(Meta { epoch, coordinator, fingerprint: fingerprint("first") })
}

/// The first three events of a history.
fn beginning() -> Vec<StateEvent> {
    vec![StateEvent::FingerprintRecorded(fingerprint("first")), epoch(5), StateEvent::RegionRegistered(region())]
}

fn home(shard: u32, seq: u64, deallocated: bool) -> StateEvent {
    let (region, generation) = (region(), generation(seq));
    let home = StoredHome { region, generation, deallocated, previous: None, leftovers_from: None };
    StateEvent::Home { shard: ShardId::from_index(shard), home }
}

async fn wait_until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "it never comes");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn text(unreadable: &Unreadable) -> String {
    unreadable.to_string()
}

#[tokio::test]
async fn committed_state_is_read_by_the_next_incarnation_and_fences_the_previous_one() {
    let world = World::new();
    assert_eq!(id().as_str(), "/sharding/Gr%C3%B6%C3%9FeCoordinator");
    let first = world.store();
    assert_eq!(first.commit(beginning()).await, Err(NotCommitted::Lost), "nothing is claimed yet");
    assert_eq!(first.read().await.unwrap(), StoredState::default());
    first.commit(beginning()).await.unwrap();
    first.commit(vec![StateEvent::Initialized, home(1, 1, false)]).await.unwrap();
    let second = world.store();
    let state = second.read().await.unwrap();
    assert_eq!(state.homes.len(), 1);
    assert_eq!(state.regions, [region()].into());
    assert_eq!(state.meta.unwrap().fingerprint, fingerprint("first"));
    assert!(state.initialized);
    assert_eq!(first.commit(vec![home(2, 2, false)]).await, Err(NotCommitted::Lost), "it is fenced");
    second.commit(vec![home(2, 3, false)]).await.unwrap();
    assert_eq!(world.kept().len(), 6, "nothing of the one that is fenced is stored");
}

/// An append based on another history than the present one stores nothing.
#[tokio::test]
async fn events_appended_by_another_writer_are_never_overwritten() {
    let world = World::new();
    let store = world.store();
    store.read().await.unwrap();
    store.commit(beginning()).await.unwrap();
    let event = history::encode_event(&HistoryEvent::Initialized);
    world.append(vec![(EVENT_MANIFEST, 1, event)]).await;
    assert_eq!(store.commit(vec![epoch(5)]).await, Err(NotCommitted::Lost));
    assert_eq!(store.commit(vec![epoch(5)]).await, Err(NotCommitted::Lost), "it has to be read again first");
    assert_eq!(world.kept(), [1, 2, 3, 4]);
}

/// sharding §2.14: a write is repeated only if it was certainly not stored.
#[tokio::test]
async fn a_write_that_was_not_stored_can_be_tried_again_and_no_other() {
    let world = World::new();
    let store = world.store();
    store.read().await.unwrap();
    world.journal.script_append(&id(), [AppendFault::Unavailable, AppendFault::Unavailable]);
    for _ in 0..2 {
        assert_eq!(store.commit(beginning()).await, Err(NotCommitted::NotStored));
    }
    store.commit(beginning()).await.unwrap();
    assert_eq!(world.kept(), [1, 2, 3]);
    for fault in [
        StoreFault::Rejected,
        StoreFault::AnswerLost { done: true },
        StoreFault::AnswerLost { done: false },
        StoreFault::Hang { done: true },
    ] {
        let store = world.store();
        store.read().await.unwrap();
        world.faulty.plan(None, JournalOp::Append, 0, fault);
        assert_eq!(store.commit(vec![epoch(5)]).await, Err(NotCommitted::Lost), "{fault:?}");
        assert_eq!(store.commit(vec![epoch(5)]).await, Err(NotCommitted::Lost), "{fault:?}: it was not read again");
    }
    assert_eq!(world.kept(), [1, 2, 3, 4, 5], "lost answers of two that were stored");
}

#[tokio::test]
async fn a_journal_that_does_not_answer_is_read_once_it_does() {
    let world = World::new();
    let store = world.store();
    for op in [JournalOp::Head, JournalOp::Claim, JournalOp::Read] {
        world.faulty.plan(None, op, 0, StoreFault::Unavailable);
        world.faulty.plan(None, op, 0, StoreFault::Hang { done: true });
    }
    world.faulty_snapshots.plan(None, SnapshotOp::Load, 0, StoreFault::Unavailable);
    world.append(vec![(EVENT_MANIFEST, 1, history::encode_event(&HistoryEvent::Initialized))]).await;
    assert!(store.read().await.unwrap().initialized);
    store.commit(beginning()).await.unwrap();
}

#[tokio::test]
async fn bytes_that_cannot_be_read_stop_the_coordinator_and_the_message_names_the_tool() {
    let event = || history::encode_event(&HistoryEvent::Initialized);
    for (manifest, version, payload) in
        [(EVENT_MANIFEST, 1, vec![0xff]), ("cart.event", 1, event()), (EVENT_MANIFEST, 2, event())]
    {
        let world = World::new();
        world.append(vec![(EVENT_MANIFEST, 1, event()), (manifest, version, payload)]).await;
        let refused = text(&world.store().read().await.unwrap_err());
        assert!(refused.contains("event 2") && refused.contains("remove_internal_sharding_data"), "{refused}");
        assert!(refused.contains(id().as_str()), "{refused}");
    }
    let world = World::new();
    world.append(vec![(EVENT_MANIFEST, 1, event())]).await;
    assert!(world.journal.corrupt(&id(), SeqNr::FIRST));
    let refused = text(&world.store().read().await.unwrap_err());
    assert!(refused.contains("checksum") && refused.contains("remove_internal_sharding_data"), "{refused}");
}

#[tokio::test]
async fn a_contradiction_is_repaired_once_for_all_unless_reading_is_strict() {
    let contradicting = || {
        let events = [beginning(), vec![StateEvent::RegionRegistered(region()), home(1, 1, false)]].concat();
        let bytes = events.into_iter().map(|event| history::encode_event(&HistoryEvent::from(event)));
        bytes.map(|bytes| (EVENT_MANIFEST, 1, bytes)).collect::<Vec<_>>()
    };
    let world = World::new();
    world.append(contradicting()).await;
    let counted = Arc::<Coordinated>::default();
    assert_eq!(world.store().counting(counted.clone()).read().await.unwrap().homes.len(), 1);
    assert_eq!(counted.metrics(true).recovery_repairs, 1);
    wait_until(|| world.saved() == [5]).await;
    let strict = world.strict();
    assert_eq!(strict.store().read().await.unwrap().homes.len(), 1, "the snapshot stands for what was repaired");
    let strict = World::new().strict();
    strict.append(contradicting()).await;
    let refused = text(&strict.store().read().await.unwrap_err());
    assert!(refused.contains("event 4") && refused.contains("strict_recovery"), "{refused}");
}

#[tokio::test]
async fn snapshots_are_taken_and_what_they_make_needless_goes() {
    let world = World::new();
    world.long().await;
    assert_eq!(world.saved(), [20, 30, 40], "and those that begin before the oldest event are gone");
    assert_eq!(world.kept(), (21..=43).collect::<Vec<_>>());
}

/// A long history without a snapshot gets one when it is read.
#[tokio::test]
async fn a_long_history_is_read_once() {
    let mut world = World::new();
    world.settings.journal.snapshot_every = NonZeroU64::MAX;
    world.long().await;
    assert_eq!(world.saved(), [0; 0]);
    world.settings.journal.snapshot_every = NonZeroU64::new(10).unwrap();
    let state = world.store().read().await.unwrap();
    wait_until(|| world.saved() == [43]).await;
    assert_eq!(world.store().read().await.unwrap(), state);
    assert_eq!(world.kept().len(), 43, "nothing is deleted by reading");
}

#[tokio::test]
async fn a_snapshot_that_fails_costs_nothing_but_a_longer_history() {
    let world = World::new();
    for op in [SnapshotOp::Save, SnapshotOp::Delete] {
        (0..40).for_each(|_| world.faulty_snapshots.plan(None, op, 0, StoreFault::Unavailable));
    }
    world.long().await;
    assert_eq!(world.kept().len(), 43, "what no snapshot stands for is kept");
    let world = World::new();
    (0..40).for_each(|_| world.faulty.plan(None, JournalOp::Delete, 0, StoreFault::Unavailable));
    world.long().await;
    assert_eq!((world.saved(), world.kept().len()), (vec![10, 20, 30, 40], 43));
}

#[tokio::test]
async fn a_damaged_snapshot_is_passed_over_as_long_as_another_way_leads_to_the_state() {
    let world = World::new();
    let state = world.long().await;
    for (damaged, consistent) in [(40, true), (30, false)] {
        assert!(world.snapshots.damage(&id(), damaged.into(), consistent));
        assert_eq!(world.store().read().await.unwrap(), state, "an older one");
    }
    assert!(world.snapshots.damage(&id(), 20.into(), true));
    let refused = text(&world.store().read().await.unwrap_err());
    assert!(refused.contains("events up to 20 are deleted"), "{refused}");
    world.snapshots.clear();
    let refused = text(&world.store().read().await.unwrap_err());
    assert!(refused.contains("events up to 20 are deleted"), "{refused}");
}

/// persistence §2.5: a foreign snapshot may begin an empty history; beside events it is refused.
#[tokio::test]
async fn numbers_go_on_behind_a_snapshot_whose_journal_is_new() {
    let world = World::new();
    let state = world.long().await;
    world.journal.clear();
    world.store().read().await.unwrap();
    let store = world.store();
    assert_eq!(store.read().await.unwrap().regions, state.regions);
    store.commit(vec![epoch(6)]).await.unwrap();
    assert_eq!(world.kept(), [41]);
    world.journal.forget(&id());
    world.append(vec![(EVENT_MANIFEST, 1, history::encode_event(&HistoryEvent::Initialized))]).await;
    let refused = text(&world.store().read().await.unwrap_err());
    assert!(refused.contains("reflects event 40") && refused.contains("the last is 1"), "{refused}");
}

/// sharding 79: removed data are reported, and the next coordinator begins without homes.
#[tokio::test]
async fn scenario_79_removed_data_are_named_and_leave_an_empty_history() {
    let world = World::new();
    let stores = Stores::new(Arc::new(world.journal.clone()), Arc::new(world.snapshots.clone()));
    let removed = async |force: bool| {
        let removed = crate::remove_internal_sharding_data(&stores, &["Größe"], force).await?;
        assert_eq!(removed[0].entity_type, "Größe");
        Ok::<_, crate::RemovalError>((removed[0].events, removed[0].snapshots))
    };
    assert_eq!(removed(false).await.unwrap(), (false, false));
    let store = world.store();
    store.read().await.unwrap();
    store.commit(beginning()).await.unwrap();
    let refused = removed(false).await.unwrap_err();
    assert!(matches!(refused, crate::RemovalError::ClusterSeemsRunning { .. }), "{refused}");
    assert_eq!(world.kept().len(), 3);
    assert_eq!(removed(true).await.unwrap(), (true, false));
    assert_eq!(store.commit(vec![epoch(5)]).await, Err(NotCommitted::Lost), "what still runs is fenced");
    assert_eq!(world.store().read().await.unwrap(), StoredState::default());
    world.long().await;
    assert_eq!(removed(true).await.unwrap(), (true, true));
    assert_eq!(world.store().read().await.unwrap(), StoredState::default());
    assert_eq!(removed(false).await.unwrap(), (false, true), "what is empty is not running, and a snapshot says it is");
    assert_eq!(world.long().await.regions, [region()].into(), "numbers go on");
    // An unreadable history is removed too, as the tool must do.
    world.append(vec![(EVENT_MANIFEST, 1, vec![0xff])]).await;
    assert!(world.store().read().await.is_err());
    assert_eq!(removed(true).await.unwrap(), (true, true));
    assert_eq!(world.store().read().await.unwrap(), StoredState::default());
}

/// sharding §6.3: a coordinator that was silent for a minute does not run.
#[tokio::test]
async fn an_old_history_is_removed_without_force() {
    let mut world = World::new();
    let long_ago = || greylag_persistence::Timestamp::from_micros(1);
    world.journal = InMemoryJournal::new(greylag_persistence::Scope::Shared, long_ago);
    world.append(vec![(EVENT_MANIFEST, 1, history::encode_event(&HistoryEvent::Initialized))]).await;
    let stores = Stores::new(Arc::new(world.journal.clone()), Arc::new(world.snapshots.clone()));
    let removed = crate::remove_internal_sharding_data(&stores, &["Größe", "Cart"], false).await.unwrap();
    assert_eq!(
        removed.iter().map(|one| (one.events, one.snapshots)).collect::<Vec<_>>(),
        [(true, false), (false, false)]
    );
    assert!(crate::remove_internal_sharding_data(&stores, &["a|b"], false).await.is_err());
}

/// After a removal, later coordinators can read the next coordinator's events.
#[tokio::test]
async fn a_removed_history_goes_on() {
    let world = World::new();
    world.long().await;
    let stores = Stores::new(Arc::new(world.journal.clone()), Arc::new(world.snapshots.clone()));
    crate::remove_internal_sharding_data(&stores, &["Größe"], true).await.unwrap();
    let next = world.store();
    assert_eq!(next.read().await.unwrap(), StoredState::default());
    next.commit([beginning(), vec![home(1, 1, false)]].concat()).await.unwrap();
    let read = world.store().read().await.unwrap();
    assert_eq!(read.homes.keys().collect::<Vec<_>>(), [&ShardId::from_index(1)]);
}

/// Sharding scenario 76, by the store: shards that had a home, and added shards, are remembered, and a coordinator that
/// looks for homes learns that there are none any more.
#[tokio::test]
async fn scenario_76_remembered_shards_stay_and_homes_are_not_looked_for_any_more() {
    let world = World::new();
    let with_homes = world.store();
    with_homes.read().await.unwrap();
    with_homes.commit(beginning()).await.unwrap();
    let decided = [home(1, 1, false), home(2, 2, false), home(3, 3, false), home(2, 2, true)];
    with_homes.commit(decided.to_vec()).await.unwrap();

    let shards = |shards: &[u32]| shards.iter().map(|shard| ShardId::from_index(*shard)).collect::<BTreeSet<_>>();
    let remembering = world.store();
    assert_eq!(
        remembering.add_shards(vec![ShardId::from_index(9)]).await,
        Err(NotCommitted::Lost),
        "nothing is read yet"
    );
    assert_eq!(remembering.read_shards().await.unwrap(), shards(&[1, 2, 3]));
    assert_eq!(with_homes.commit(vec![home(4, 4, false)]).await, Err(NotCommitted::Lost), "it was fenced");
    remembering.add_shards(vec![ShardId::from_index(4)]).await.unwrap();
    assert_eq!(world.store().read_shards().await.unwrap(), shards(&[1, 2, 3, 4]));
    let marked = world.kept().len();
    assert_eq!(world.store().read_shards().await.unwrap(), shards(&[1, 2, 3, 4]));
    assert_eq!(world.kept().len(), marked, "there is one marker");

    let back = text(&world.store().read().await.unwrap_err());
    assert!(back.contains("MigratedStore") && back.contains("/sharding/Gr%C3%B6%C3%9FeCoordinator"), "{back}");
}
