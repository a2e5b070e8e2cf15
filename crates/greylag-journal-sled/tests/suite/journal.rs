//! Tests that the conformance kit does not cover: the state of the disk after a reopening, and the order in which
//! changes become visible.

use crate::common;

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Writer, event, id, open, payloads, read_all, upsert};
use futures::future::join_all;
use greylag_journal_sled::{Clock, Disk, OpenError, SledJournal, SledJournalSettings, StoreSettings};
use greylag_persistence::{
    Append, AppendError, ClaimError, DeleteError, Health, Journal, NewSnapshot, OffsetError, OffsetStore, ReadError,
    ReadRange, RejectReason, Revision, SeqNr, SnapshotCriteria, SnapshotError, SnapshotStore, StateRejectReason,
    StateStore, StateWrite, StateWriteError, Timestamp, Under, WriterUuid,
};
use greylag_store_sled::Refused;

#[tokio::test]
async fn everything_survives_a_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let mut writer = Writer::claim(&journal, id("Counter|1")).await;
    writer.append(&journal, &["a"]).await;
    writer.append(&journal, &["b", "c"]).await;
    let before = read_all(&journal, &writer.id).await;
    journal.close().await.unwrap();
    assert!(matches!(journal.health(), Health::Down(_)));
    let closed = journal.append(writer.next(&["x"])).await.unwrap_err();
    let AppendError::NotStored(failure) = &closed else { panic!("{closed:?}") };
    assert_eq!(closed.source().map(ToString::to_string), Some(failure.to_string()));
    assert!(
        failure.source().is_some_and(<dyn std::error::Error>::is::<Refused>),
        "it keeps the store's error: {failure:?}"
    );

    let journal = open(directory.path()).await;
    assert_eq!(read_all(&journal, &writer.id).await, before);
    assert_eq!(payloads(&before), ["a", "b", "c"]);
    writer.append(&journal, &["d"]).await;
    let head = journal.head(&writer.id).await.unwrap();
    assert_eq!((head.highest, head.epoch, head.writer_uuid), (SeqNr::from(4), writer.epoch, writer.uuid));
}

#[tokio::test]
async fn an_older_epoch_is_fenced_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let mut old = Writer::claim(&journal, id("Counter|1")).await;
    old.append(&journal, &["a"]).await;
    let mut new = Writer::claim(&journal, id("Counter|1")).await;
    journal.close().await.unwrap();
    let journal = open(directory.path()).await;
    for _ in 0..2 {
        let refused = journal.append(old.next(&["b"])).await.unwrap_err();
        assert!(matches!(refused, AppendError::Fenced { current } if current.writer_uuid == new.uuid));
    }
    assert!(matches!(journal.delete_to(&old.id, old.epoch, SeqNr::MAX).await, Err(DeleteError::Fenced { .. })));
    new.append(&journal, &["c"]).await;
    assert_eq!(payloads(&read_all(&journal, &new.id).await), ["a", "c"]);
}

#[tokio::test]
async fn a_repeated_append_is_answered_from_the_disk_and_from_the_same_group() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let writer = Writer::claim(&journal, id("Counter|1")).await;
    let append = writer.next(&["a", "b"]);
    // All tries wait together, so most share a group with the first.
    let tries = join_all((0..20).map(|_| journal.append(append.clone()))).await;
    let first = tries[0].clone().unwrap();
    assert!(tries.into_iter().all(|answer| answer == Ok(first)));
    let other = Writer::claim(&journal, id("Counter|1")).await;
    assert_eq!(journal.append(append.clone()).await, Ok(first), "stored, so not fenced");
    assert_eq!(other.highest, SeqNr::from(2));
    // A part or a variant of the stored append is another append.
    let mut part = append.clone();
    part.events.truncate(1);
    assert!(matches!(journal.append(part).await, Err(AppendError::Fenced { .. })));
    let mut tail = append.clone();
    (tail.first, tail.events) = (SeqNr::from(2), vec![event("b")]);
    assert!(matches!(journal.append(tail).await, Err(AppendError::Fenced { .. })));
    let mut variant = append;
    variant.events[0] = event("c");
    assert!(matches!(journal.append(variant).await, Err(AppendError::Fenced { .. })));
    assert_eq!(payloads(&read_all(&journal, &writer.id).await), ["a", "b"]);
}

#[tokio::test]
async fn deleted_events_are_gone_at_once_and_swept_from_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let mut writer = Writer::claim(&journal, id("Counter|1")).await;
    let large = "x".repeat(200_000);
    for number in 1..=30 {
        let text = number.to_string();
        writer.append(&journal, &[if number == 5 { &large } else { &text }]).await;
    }
    assert_eq!(journal.delete_to(&writer.id, writer.epoch, SeqNr::from(20)).await, Ok(SeqNr::from(20)));
    assert_eq!(read_all(&journal, &writer.id).await[0].seq_nr, SeqNr::from(21));
    // The journal is closed in the middle of the sweep, which the next opening continues.
    journal.close().await.unwrap();
    let journal = open(directory.path()).await;
    assert_eq!(read_all(&journal, &writer.id).await.len(), 10);
    assert_eq!(journal.delete_to(&writer.id, writer.epoch, SeqNr::MAX).await, Ok(SeqNr::from(30)));
    assert_eq!(journal.delete_to(&writer.id, writer.epoch, SeqNr::from(3)).await, Ok(SeqNr::from(30)));
    assert_eq!(read_all(&journal, &writer.id).await, []);
    writer.append(&journal, &["later"]).await;
    assert_eq!(writer.highest, SeqNr::from(31));
    assert_eq!(payloads(&read_all(&journal, &writer.id).await), ["later"]);
}

#[tokio::test]
async fn timestamps_rise_when_the_clock_goes_back() {
    let directory = tempfile::tempdir().unwrap();
    let now = Arc::new(AtomicU64::new(1000));
    let read = now.clone();
    let clock = Clock::new(move || Timestamp::from_micros(read.load(Ordering::Relaxed)));
    let settings = SledJournalSettings { clock, ..SledJournalSettings::test() };
    let journal = SledJournal::open(directory.path(), settings).await.unwrap();
    let mut writer = Writer::claim(&journal, id("Counter|1")).await;
    writer.append(&journal, &["a", "a"]).await;
    now.store(500, Ordering::Relaxed);
    writer.append(&journal, &["b"]).await;
    let stamps: Vec<_> = read_all(&journal, &writer.id).await.iter().map(|event| event.timestamp.as_micros()).collect();
    assert_eq!(stamps, [1000, 1000, 1001]);
}

/// persistence §4.3, disk: a nearly full disk refuses appends first, claims later, reads and deletions never.
#[tokio::test]
async fn a_disk_that_is_nearly_full_refuses_what_adds_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let free = Arc::new(AtomicU64::new(1000));
    let read = free.clone();
    let disk = Disk::new(move |_| Ok(read.load(Ordering::Relaxed)));
    let settings = SledJournalSettings { disk, min_free_bytes: 100, ..SledJournalSettings::test() };
    let journal = SledJournal::open(directory.path(), settings).await.unwrap();
    let (states, offsets) = (journal.states(), journal.offsets());
    let mut writer = Writer::claim(&journal, id("Counter|1")).await;
    writer.append(&journal, &["a", "b"]).await;
    let stored = Append { first: SeqNr::FIRST, ..writer.next(&["a", "b"]) };
    upsert(&states, &writer.id, 1, "state").await;

    free.store(99, Ordering::Relaxed);
    assert!(matches!(journal.health(), Health::Degraded(why) if why[0].contains("99 bytes are free")));
    let low = AppendError::Rejected(RejectReason::StorageLow(String::new()));
    let is_low = |error: AppendError| std::mem::discriminant(&error) == std::mem::discriminant(&low);
    assert!(is_low(journal.append(writer.next(&["c"])).await.unwrap_err()));
    assert!(journal.append(stored).await.is_ok(), "it is stored: J10 wins");
    let large = common::snapshot(&writer.id, SeqNr::FIRST, vec![1; 200_000]);
    for snapshot in [common::snapshot(&writer.id, SeqNr::FIRST, vec![1]), large] {
        let refused = journal.snapshots().save(snapshot).await.unwrap_err();
        assert!(
            matches!(refused, SnapshotError::Unavailable(cause) if cause.is_answer() && cause.text().contains("storage is low"))
        );
    }
    let write = |revision: u32| StateWrite {
        id: writer.id.clone(),
        revision: Revision::from(revision),
        generation: None,
        writer_uuid: WriterUuid::from_u128(1),
    };
    let value = states.get(&writer.id).await.unwrap().value.unwrap();
    let refused = states.upsert(write(2), value, None).await.unwrap_err();
    assert!(matches!(refused, StateWriteError::Rejected(StateRejectReason::StorageLow(_))));
    states.delete(write(2)).await.unwrap();
    assert_eq!(journal.delete_to(&writer.id, writer.epoch, SeqNr::FIRST).await, Ok(SeqNr::FIRST));
    let mut writer = Writer::claim(&journal, id("Counter|1")).await;
    assert_eq!(payloads(&read_all(&journal, &writer.id).await), ["b"]);
    offsets.claim("sums", 0..=0).await.unwrap();

    free.store(49, Ordering::Relaxed);
    let claim = journal.claim(&writer.id, WriterUuid::from_u128(7), Under::Seen(writer.epoch)).await;
    assert!(
        matches!(claim, Err(ClaimError::Unavailable(cause)) if cause.is_answer() && cause.text().contains("storage is low"))
    );
    assert!(matches!(offsets.claim("sums", 0..=0).await, Err(OffsetError::Unavailable(_))));
    let again = journal.claim(&writer.id, writer.uuid, Under::Seen(writer.epoch)).await.unwrap();
    assert_eq!(again.epoch, writer.epoch, "a claim that is stored already takes no space");
    assert_eq!(journal.delete_to(&writer.id, writer.epoch, SeqNr::MAX).await, Ok(SeqNr::from(2)));

    free.store(199, Ordering::Relaxed);
    assert!(is_low(journal.append(writer.next(&["c"])).await.unwrap_err()), "until there is twice as much");
    free.store(200, Ordering::Relaxed);
    writer.append(&journal, &["c"]).await;
    assert_eq!(journal.health(), Health::Up);
}

#[tokio::test]
async fn heads_that_left_the_cache_are_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let settings = SledJournalSettings { heads_cached: 2, ..SledJournalSettings::test() };
    let journal = SledJournal::open(directory.path(), settings).await.unwrap();
    let ids: Vec<_> = (0..100).map(|n| id(&format!("Counter|{n}"))).collect();
    let mut writers = join_all(ids.iter().map(|id| Writer::claim(&journal, id.clone()))).await;
    for round in 0..3 {
        let round = round.to_string();
        let text = [round.as_str()];
        join_all(writers.iter_mut().map(|writer| writer.append(&journal, &text))).await;
    }
    for id in &ids {
        assert_eq!(payloads(&read_all(&journal, id).await), ["0", "1", "2"]);
    }
}

#[tokio::test]
async fn a_foreign_or_locked_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let mut settings = SledJournalSettings::test();
    settings.store.lock_retry = std::time::Duration::from_millis(20);
    let second = SledJournal::open(directory.path(), settings).await;
    assert!(matches!(second.unwrap_err(), OpenError::Locked { .. }));
    drop(journal);
    open(directory.path()).await;
}

fn snapshot(of: &str, seq_nr: u32, payload: Vec<u8>) -> NewSnapshot {
    NewSnapshot {
        id: id(of),
        seq_nr: seq_nr.into(),
        codec_id: greylag_core::CodecId::JSON,
        manifest: "test.state".into(),
        schema_version: 2,
        payload: payload.into(),
        metadata: [("gl.delivery".to_owned(), "marks".into())].into(),
    }
}

#[tokio::test]
async fn snapshots_of_every_size_survive_and_are_replaced_whole() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let snapshots = journal.snapshots();
    for (seq_nr, size) in [(1, 0), (2, 65_000), (3, 70_000), (4, 5 << 20)] {
        let saved = snapshots.save(snapshot("Counter|1", seq_nr, vec![1; size])).await.unwrap();
        let found = snapshots.load(&id("Counter|1"), SnapshotCriteria::LATEST).await.unwrap().unwrap();
        assert_eq!(found, snapshot("Counter|1", seq_nr, vec![1; size]).stored(saved));
    }
    let saved = snapshots.save(snapshot("Counter|1", 4, vec![2; 3 << 20])).await.unwrap();
    journal.close().await.unwrap();
    let journal = open(directory.path()).await;
    let snapshots = journal.snapshots();
    let found = snapshots.load(&id("Counter|1"), SnapshotCriteria::LATEST).await.unwrap().unwrap();
    assert_eq!(found, snapshot("Counter|1", 4, vec![2; 3 << 20]).stored(saved));
    snapshots.delete(&id("Counter|1"), SeqNr::from(4)).await.unwrap();
    let up_to_two = SnapshotCriteria::up_to(SeqNr::from(2));
    snapshots.delete_matching(&id("Counter|1"), up_to_two).await.unwrap();
    assert_eq!(snapshots.load(&id("Counter|1"), up_to_two).await, Ok(None));
    let found = snapshots.load(&id("Counter|1"), SnapshotCriteria::LATEST).await.unwrap().unwrap();
    assert_eq!(found.seq_nr, SeqNr::from(3));
    assert_eq!(std::fs::read_dir(directory.path().join("blobs")).unwrap().count(), 0, "blobs are never synced");
}

#[tokio::test]
async fn an_id_with_a_snapshot_only_is_claimed_like_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    journal.snapshots().save(snapshot("Counter|1", 4711, vec![1])).await.unwrap();
    let head = journal.head(&id("Counter|1")).await.unwrap();
    assert_eq!(head, greylag_persistence::Head::default());
    let uuid = WriterUuid::from_u128(5);
    let claim = journal.claim(&id("Counter|1"), uuid, Under::Seen(head.epoch)).await.unwrap();
    journal.advance(&id("Counter|1"), claim.epoch, SeqNr::from(4711)).await.unwrap();
    assert_eq!(journal.head(&id("Counter|1")).await.unwrap().highest, SeqNr::from(4711));
    let page = journal.read(&id("Counter|1"), ReadRange::all()).await;
    assert!(matches!(page, Ok(page) if page.records.is_empty() && page.next.is_none()), "nothing is missing");
}

#[tokio::test]
async fn a_closed_journal_answers_unavailable() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    journal.close().await.unwrap();
    journal.close().await.unwrap();
    assert!(matches!(journal.head(&id("a")).await, Err(ReadError::Unavailable(_))));
    assert!(journal.snapshots().load(&id("a"), SnapshotCriteria::LATEST).await.is_err());
}

/// Requests that arrive while a group is being written share the next group. Source: persistence §7.
#[tokio::test]
async fn a_thousand_entities_share_twenty_commits() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let claims = (0..1000).map(|n| Writer::claim(&journal, id(&format!("Counter|{n}"))));
    let mut writers = join_all(claims).await;
    let before = journal.stats().groups;
    join_all(writers.iter_mut().map(|writer| writer.append(&journal, &["1"]))).await;
    let groups = journal.stats().groups - before;
    assert!(groups <= 20, "1000 events of 1000 entities took {groups} commits");
}

/// persistence §7: beyond `max_pending_bytes` an append waits instead of failing, also one larger than the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_wait_for_room_and_none_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let test = SledJournalSettings::test();
    let store = StoreSettings { max_pending_bytes: 8 << 10, max_group_requests: 3, ..test.store };
    let journal = SledJournal::open(directory.path(), SledJournalSettings { store, ..test }).await.unwrap();
    let claims = (0..40).map(|number| Writer::claim(&journal, id(&format!("Counter|{number}"))));
    let text = "x".repeat(2000);
    let write = async |mut writer: Writer| {
        for _ in 0..5 {
            writer.append(&journal, &[&text]).await;
        }
        writer.append(&journal, &[&"y".repeat(100_000)]).await;
        read_all(&journal, &writer.id).await.len()
    };
    assert_eq!(join_all(join_all(claims).await.into_iter().map(write)).await, [6; 40]);
    assert_eq!(journal.health(), Health::Up);
    journal.close().await.unwrap();
}
