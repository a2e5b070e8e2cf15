//! Sharding scenario 71, by the store alone: updates are loaded again, in one event for each hundred ids, and no older
//! owner writes once a newer one has loaded.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use greylag_persistence::{
    FaultyJournal, InMemoryJournal, InMemorySnapshots, JournalOp, Scope, SnapshotCaps, StoreFault,
};

use super::*;
use crate::driver::remember::store::shard_persistence_id;
use crate::settings::StateJournalSettings;

struct World {
    journal: InMemoryJournal,
    snapshots: InMemorySnapshots,
    faulty: Arc<FaultyJournal>,
    settings: ShardingSettings,
}

impl World {
    fn new(snapshot_every: u64) -> Self {
        let clock = || greylag_persistence::Timestamp::from_micros(1);
        let journal = InMemoryJournal::new(Scope::Shared, clock);
        let snapshots = InMemorySnapshots::new(SnapshotCaps::full(Scope::Shared), clock);
        let faulty = Arc::new(FaultyJournal::new(Arc::new(journal.clone())));
        let journal_settings = StateJournalSettings {
            snapshot_every: NonZeroU64::new(snapshot_every).unwrap(),
            keep_n_snapshots: NonZeroU32::new(1).unwrap(),
            ..StateJournalSettings::default()
        };
        let settings = ShardingSettings {
            journal: journal_settings,
            updating_state_timeout: Duration::from_millis(50),
            ..ShardingSettings::test()
        };
        Self { journal, snapshots, faulty, settings }
    }

    /// The store of a new allocation.
    fn owner(&self, seq: u64) -> JournalShard {
        let stores = Stores::new(self.faulty.clone(), Arc::new(self.snapshots.clone()));
        let entity_type = EntityTypeName::new("Größe").unwrap();
        let generation = Generation::new(5, seq).unwrap();
        let term = ShardTerm { entity_type, shard: ShardId::from_index(7), generation };
        JournalShard::new(&term, id(), &stores, &self.settings)
    }

    fn events(&self) -> Vec<u64> {
        self.journal.events(&id()).iter().map(|event| event.seq_nr.as_u64()).collect()
    }
}

fn id() -> PersistenceId {
    shard_persistence_id(&EntityTypeName::new("Größe").unwrap(), &ShardId::from_index(7)).unwrap()
}

fn ids(ids: impl IntoIterator<Item = u32>) -> Vec<EntityId> {
    ids.into_iter().map(|id| EntityId::new(format!("{id:04}")).unwrap()).collect()
}

fn update(starts: impl IntoIterator<Item = u32>, stops: impl IntoIterator<Item = u32>) -> StoreUpdate {
    StoreUpdate { starts: ids(starts), stops: ids(stops) }
}

#[tokio::test]
async fn scenario_71_the_next_owner_loads_what_the_updates_left() {
    let world = World::new(1_000);
    assert_eq!(id().as_str(), "/sharding/Gr%C3%B6%C3%9FeShard/7");
    let store = world.owner(1);
    assert_eq!(store.load().await.unwrap(), BTreeSet::new());
    for change in [update([1, 2, 3], []), update([4, 5, 6], [2, 3]), update([], [6]), update([2], [])] {
        store.update(change).await.unwrap();
    }
    let left: BTreeSet<_> = ids([1, 2, 4, 5]).into_iter().collect();
    assert_eq!(store.load().await.unwrap(), left, "a load is idempotent");
    assert_eq!(world.owner(2).load().await.unwrap(), left);
}

#[tokio::test]
async fn scenario_71_a_large_update_is_split_and_loaded_whole() {
    let world = World::new(1_000);
    let store = world.owner(1);
    store.load().await.unwrap();
    store.update(update(0..1_000, [])).await.unwrap();
    assert_eq!(world.events().len(), 10, "of a hundred ids each");
    store.update(update(1_000..2_000, 0..1_000)).await.unwrap();
    assert_eq!(world.events().len(), 30);
    assert_eq!(world.owner(2).load().await.unwrap(), ids(1_000..2_000).into_iter().collect());
}

#[tokio::test]
async fn an_older_owner_writes_nothing_once_a_newer_one_has_loaded() {
    let world = World::new(1_000);
    let (old, new) = (world.owner(1), world.owner(2));
    old.load().await.unwrap();
    new.load().await.unwrap();
    let refused = old.update(update([1], [])).await.unwrap_err();
    assert!(matches!(refused, RememberError::Stopped(_)), "{refused}");
    let refused = old.load().await.unwrap_err();
    let newest = Generation::new(5, 2).ok();
    assert!(matches!(refused, LoadError::Fenced { stored } if stored == newest), "{refused}");
    new.update(update([2], [])).await.unwrap();
    assert_eq!(
        world.owner(2).load().await.unwrap(),
        ids([2]).into_iter().collect(),
        "the same generation, started anew"
    );
}

#[tokio::test]
async fn a_write_that_failed_or_was_not_answered_is_written_only_after_another_load() {
    for fault in [StoreFault::Unavailable, StoreFault::AnswerLost { done: true }, StoreFault::Hang { done: false }] {
        let world = World::new(1_000);
        let store = world.owner(1);
        store.load().await.unwrap();
        world.faulty.plan(None, JournalOp::Append, 0, fault);
        assert!(store.update(update([1], [])).await.is_err(), "{fault:?}");
        assert!(store.update(update([2], [])).await.is_err(), "{fault:?}: what is stored is not known");
        store.load().await.unwrap();
        store.update(update([3], [])).await.unwrap();
        let loaded = world.owner(2).load().await.unwrap();
        let stored = matches!(fault, StoreFault::AnswerLost { .. });
        assert_eq!(loaded, ids(if stored { vec![1, 3] } else { vec![3] }).into_iter().collect(), "{fault:?}");
    }
}

#[tokio::test]
async fn snapshots_stand_for_the_events_that_retention_deletes() {
    let world = World::new(10);
    let store = world.owner(1);
    store.load().await.unwrap();
    for n in 0..25 {
        store.update(update([n], n.checked_sub(1))).await.unwrap();
        for _ in 0..1_000 {
            if !store.log.snapshots().is_saving() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert!(world.events()[0] > 1, "{:?}", world.events());
    assert_eq!(world.owner(2).load().await.unwrap(), ids([24]).into_iter().collect());
}

#[tokio::test]
async fn a_history_that_cannot_be_read_says_what_to_do() {
    let world = World::new(1_000);
    let store = world.owner(1);
    store.load().await.unwrap();
    store.update(update([1], [])).await.unwrap();
    world.faulty.plan(None, JournalOp::Read, 0, StoreFault::Corrupt);
    let text = world.owner(2).load().await.unwrap_err().to_string();
    assert!(text.contains("remove_remembered_entities") && text.contains("/sharding/Gr%C3%B6%C3%9FeShard/7"), "{text}");
}

/// A history that was removed by the function named in the error is empty, and the next owner continues it.
#[tokio::test]
async fn a_removed_history_is_loaded_empty() {
    let world = World::new(2);
    let store = world.owner(1);
    store.load().await.unwrap();
    for n in 0..5 {
        store.update(update([n], [])).await.unwrap();
    }
    let stores = Stores::new(world.faulty.clone(), Arc::new(world.snapshots.clone()));
    let other = shard_persistence_id(&EntityTypeName::new("Other").unwrap(), &ShardId::from_index(7)).unwrap();
    let removed = crate::remove_remembered_entities(&stores, "Größe", &[other, id()]).await.unwrap();
    assert!(removed.events);
    let next = world.owner(2);
    assert_eq!(next.load().await.unwrap(), BTreeSet::new());
    next.update(update([9], [])).await.unwrap();
    assert_eq!(world.owner(3).load().await.unwrap(), ids([9]).into_iter().collect());
}
