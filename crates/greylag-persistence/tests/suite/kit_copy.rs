//! Copies between stores in memory pass the kit, and forbidden copies are refused.

use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;
use greylag_persistence::copy::{CopyError, check, copy, verify};
use greylag_persistence::tck::{self, Flags};
use greylag_persistence::{
    Export, HistoryPart, Import, ImportError, InMemoryArchive, Journal, NewSnapshot, PersistenceId, ReadError, SeqNr,
    Snapshot, SnapshotStore, StoreFailure, StoredState, Stores, Timestamp, Under, WriterEpoch, WriterUuid,
};

/// Memory never waits, so no runtime is needed.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("memory never waits")
}

#[test]
fn stores_in_memory_move_everything() {
    let open = || async { Arc::new(InMemoryArchive::default()) as Arc<dyn Import> };
    let report = now(tck::transfer(&open, Flags::default()));
    report.assert_conforms();
    assert_eq!(report.skipped().count(), 0, "{report}");
}

#[test]
fn a_closed_store_is_neither_copied_nor_compared() {
    let (open, closed) = (InMemoryArchive::default(), InMemoryArchive::default());
    now(closed.journal.close()).unwrap();
    for refused in [now(copy(&closed, &open)).unwrap_err(), now(copy(&open, &closed)).unwrap_err()] {
        assert!(matches!(&refused, CopyError::InUse(_)), "{refused}");
        assert!(refused.to_string().contains("closed"), "{refused}");
    }
    assert!(matches!(now(verify(&open, &closed, 1)), Err(CopyError::InUse(_))));
}

/// A copy reads everything, so it finds the damaged event, names it by number, and does not copy it.
#[test]
fn a_damaged_event_is_named_and_not_copied() {
    let source = InMemoryArchive::default();
    let id = PersistenceId::of("Counter", "1").unwrap();
    let epoch = now(source.journal.claim(&id, WriterUuid::from_u128(1), Under::Seen(WriterEpoch::NONE))).unwrap().epoch;
    let event = greylag_persistence::NewEvent {
        codec_id: greylag_core::CodecId::JSON,
        manifest: "counted".into(),
        schema_version: 1,
        kind: greylag_persistence::EventKind::Event,
        payload: "1".into(),
        metadata: Default::default(),
        tags: Default::default(),
    };
    let writer_uuid = WriterUuid::from_u128(1);
    let events = vec![event; 5];
    let append = greylag_persistence::Append { id: id.clone(), epoch, writer_uuid, first: SeqNr::FIRST, events };
    now(source.journal.append(append)).unwrap();
    assert!(source.journal.corrupt(&id, SeqNr::from(2)) && source.journal.corrupt(&id, SeqNr::from(4)));
    let checked = now(check(&source, 10)).unwrap();
    let told: Vec<_> = checked.differences.iter().map(ToString::to_string).collect();
    let damage = |number| format!("event {number} of Counter|1: checksum mismatch in the first store");
    assert_eq!(told, [damage(2), damage(4)]);
    assert_eq!(checked.counts.events, 3, "those between are whole");
    let target = InMemoryArchive::default();
    let refused = now(copy(&source, &target)).unwrap_err();
    assert!(matches!(&refused, CopyError::Damaged(found) if found.id == id), "{refused}");
}

/// A store that acknowledges snapshots and does not store them.
struct LosesSnapshots(InMemoryArchive);

#[async_trait]
impl Export for LosesSnapshots {
    fn stores(&self) -> Stores {
        self.0.stores()
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        self.0.ids(after, limit).await
    }

    async fn last_append(&self, id: &PersistenceId) -> Result<Timestamp, ReadError> {
        self.0.last_append(id).await
    }

    async fn reserved(&self) -> Result<(), StoreFailure> {
        self.0.reserved().await
    }
}

#[async_trait]
impl Import for LosesSnapshots {
    async fn import_events(&self, part: HistoryPart) -> Result<(), ImportError> {
        self.0.import_events(part).await
    }

    async fn import_snapshot(&self, _: Snapshot) -> Result<(), ImportError> {
        Ok(())
    }

    async fn import_state(&self, state: StoredState) -> Result<(), ImportError> {
        self.0.import_state(state).await
    }
}

/// A copy is verified by reading the target back.
#[test]
fn a_copy_with_a_lost_snapshot_is_refused() {
    let source = InMemoryArchive::default();
    let snapshot = NewSnapshot {
        id: PersistenceId::of("Counter", "1").unwrap(),
        seq_nr: SeqNr::from(1),
        codec_id: greylag_core::CodecId::JSON,
        manifest: "counter".into(),
        schema_version: 1,
        payload: "1".into(),
        metadata: Default::default(),
    };
    now(source.snapshots.save(snapshot)).unwrap();
    let refused = now(copy(&source, &LosesSnapshots(InMemoryArchive::default()))).unwrap_err();
    assert!(matches!(&refused, CopyError::Unequal(_)), "{refused}");
    assert!(refused.to_string().contains("snapshot 1 of Counter|1: it is in the first store only"), "{refused}");
}

/// The ids of two stores are merged over any number of pages, whichever store has more.
#[test]
fn stores_of_many_pages_are_compared_to_the_end() {
    let (few, many) = (InMemoryArchive::default(), InMemoryArchive::default());
    for number in 0..450 {
        let id = PersistenceId::unique(&format!("{number:04}")).unwrap();
        let claim = |archive: &InMemoryArchive| {
            now(archive.journal.claim(&id, WriterUuid::from_u128(1), Under::Seen(WriterEpoch::NONE))).unwrap()
        };
        claim(&many);
        if number % 3 != 0 {
            claim(&few);
        }
    }
    let verified = now(verify(&few, &many, 1000)).unwrap();
    let ids: std::collections::BTreeSet<_> = verified.differences.iter().map(|found| found.id.to_string()).collect();
    assert_eq!((ids.len(), verified.counts.ids), (150, 300));
    assert_eq!(now(copy(&few, &many)).unwrap().equal_ids, 300, "what is there besides does not matter");
    assert_eq!(now(copy(&many, &few)).unwrap().written.ids, 150);
    assert!(now(verify(&few, &many, 1)).unwrap().is_equal());
}
