//! Durable states on disk: tests that the conformance kit does not cover.

use std::path::Path;

use crate::common::{Writer, id, open, verify};
use futures::future::join_all;
use greylag_core::CodecId;
use greylag_journal_sled::{SledJournal, SledStates, StoreError, StoreSettings};
use greylag_persistence::{
    ChangesOf, Cursor, EncodedValue, EventQueries, EventsOf, Journal, Offset, PageQuery, PersistenceId, Position,
    ReadError, Revision, SLICES, StateChange, StateStore, StateWrite, StateWriteError, Visible, WriterUuid,
};
use greylag_store_sled::{Batch, Planner, Reader, Request, Store};

fn write(id: &PersistenceId, revision: u32) -> StateWrite {
    let writer_uuid = WriterUuid::from_u128(1);
    StateWrite { id: id.clone(), revision: Revision::from(revision), generation: None, writer_uuid }
}

fn value(payload: impl Into<Vec<u8>>) -> EncodedValue {
    let payload = payload.into().into();
    EncodedValue { codec_id: CodecId::JSON, manifest: "test.state".into(), schema_version: 1, payload }
}

async fn upsert(states: &SledStates, id: &PersistenceId, revision: u32, payload: &str) -> Result<(), StateWriteError> {
    states.upsert(write(id, revision), value(payload), Some("odd".to_owned())).await
}

async fn feed(states: &SledStates, offset: Offset) -> Vec<StateChange> {
    states.changes(&ChangesOf::Tag("odd".to_owned()), &offset, 1000).await.unwrap()
}

fn shown(changes: &[StateChange]) -> Vec<(&str, u64)> {
    changes.iter().map(|change| (change.state.id.as_str(), change.state.revision.as_u64())).collect()
}

/// A planner that counts, removes or cuts rows of the store while no journal has it open.
struct Rows;

enum Do {
    Count(u8),
    Remove(Vec<u8>),
    Cut(Vec<u8>),
}

impl Request for Do {
    fn bytes(&self) -> usize {
        0
    }
}

impl Planner for Rows {
    type Request = Do;
    type Answer = usize;

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(&mut self, asked: Vec<Do>, reader: &Reader, batch: &mut Batch) -> Result<Vec<usize>, StoreError> {
        let mut answer = |asked| -> Result<usize, StoreError> {
            match asked {
                Do::Count(space) => return Ok(reader.range(&[space], &[space + 1]).count()),
                Do::Remove(key) => {
                    assert!(reader.get(&key)?.is_some(), "there is nothing to remove");
                    batch.remove(&key);
                }
                Do::Cut(key) => batch.put(&key, &reader.get(&key)?.expect("there is something to cut")[..9]),
            }
            Ok(0)
        };
        asked.into_iter().map(&mut answer).collect()
    }
}

fn on_rows(path: &Path, what: Do) -> usize {
    let store = Store::open(path, StoreSettings::test(), Rows).unwrap();
    let answer = store.submit(what).unwrap().wait().unwrap();
    store.close().unwrap();
    answer
}

fn key_of(id: &PersistenceId) -> Vec<u8> {
    [b"\x20", id.as_str().as_bytes()].concat()
}

#[tokio::test]
async fn states_and_their_order_survive_a_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let (a, b) = (id("a"), id("b"));
    upsert(&journal.states(), &a, 1, "1").await.unwrap();
    upsert(&journal.states(), &b, 1, &"x".repeat(200_000)).await.unwrap();
    upsert(&journal.states(), &a, 2, "2").await.unwrap();
    journal.states().delete(write(&a, 3)).await.unwrap();
    let before = (feed(&journal.states(), Offset::None).await, journal.states().get(&b).await.unwrap());
    journal.close().await.unwrap();
    let journal = open(directory.path()).await;
    let states = journal.states();
    assert_eq!((feed(&states, Offset::None).await, states.get(&b).await.unwrap()), before);
    assert_eq!(shown(&before.0), [("b", 1), ("a", 3)]);
    assert!(matches!(upsert(&states, &a, 1, "risen").await, Err(StateWriteError::RevisionMismatch { .. })));
    upsert(&states, &a, 4, "4").await.unwrap();
    assert_eq!(shown(&feed(&states, before.0[0].offset.clone()).await), [("a", 4)]);
}

/// Each write of a group sees the earlier writes of the group; only the state after the last of them is stored.
#[tokio::test]
async fn writes_of_one_group_follow_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let states = journal.states();
    let a = id("a");
    // Polled, and therefore planned, in this order; all but the first wait for one group.
    let payloads: Vec<_> = (1..=20).map(|revision: u32| revision.to_string().repeat(70_000)).collect();
    let writes = (1..).zip(&payloads).map(|(revision, payload)| upsert(&states, &a, revision, payload));
    assert!(join_all(writes).await.iter().all(Result::is_ok));
    assert_eq!(states.get(&a).await.unwrap().value.unwrap().payload, payloads[19]);
    assert_eq!(shown(&feed(&states, Offset::None).await), [("a", 20)]);
}

/// Superseded rows do not pile up, whether the store is closed or stopped.
#[tokio::test]
async fn a_state_written_often_takes_the_room_of_one() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    for revision in 1..=30 {
        upsert(&journal.states(), &id("a"), revision, &"x".repeat(150_000)).await.unwrap();
    }
    journal.close().await.unwrap();
    // The last write is the last group, so the rows that it superseded are still there.
    assert_eq!((on_rows(directory.path(), Do::Count(0x21)), on_rows(directory.path(), Do::Count(0x22))), (2, 4));
    open(directory.path()).await.close().await.unwrap();
    assert_eq!((on_rows(directory.path(), Do::Count(0x21)), on_rows(directory.path(), Do::Count(0x22))), (1, 2));
}

/// Changes and events share one order of ordinals, each with its own, whatever else is in their group.
#[tokio::test]
async fn events_and_changes_share_one_order_without_gaps() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let ids: Vec<_> = (0..20).map(|number| id(&format!("Mixed|{number}"))).collect();
    let mut writers = Vec::new();
    for id in &ids {
        writers.push(Writer::claim(&journal, id.clone()).await);
    }
    let states = journal.states();
    for round in 1..=3 {
        let writes = join_all(ids.iter().map(|id| upsert(&states, id, round, "s")));
        let appends = join_all(writers.iter_mut().map(|writer| writer.append(&journal, &["e", "e"])));
        let (written, _) = futures::future::join(writes, appends).await;
        assert!(written.iter().all(Result::is_ok));
    }
    journal.close().await.unwrap();
    let journal = open(directory.path()).await;
    let newest = 20 * 3 * 3 - 1;
    assert_eq!(journal.queries().newest().await.unwrap(), Some(Position::Ordinal(newest)));
    let events = events_by_slices(&journal).await;
    assert_eq!(events.len(), 20 * 3 * 2);
    assert!(events.is_sorted() && events.windows(2).all(|pair| pair[0] < pair[1]));
    for change in feed(&journal.states(), Offset::None).await {
        let Offset::Ordinal(ordinal) = change.offset else { panic!("a foreign offset") };
        assert!(ordinal <= newest && !events.contains(&ordinal), "the place {ordinal} is taken twice");
    }
}

/// The ordinals of all events, read in small pages.
async fn events_by_slices(journal: &SledJournal) -> Vec<u64> {
    let of = EventsOf::Slices { entity_type: "Mixed".to_owned(), slices: 0..=SLICES - 1 };
    let visible = Visible::All;
    let mut query = PageQuery { of, after: Cursor::Start, until: None, visible, limit: 7, load: true };
    let mut found = Vec::new();
    loop {
        let page = journal.queries().events(&query).await.unwrap();
        found.extend(page.events.iter().map(|event| match event.position {
            Position::Ordinal(ordinal) => ordinal,
            other => panic!("a foreign position {other:?}"),
        }));
        query.after = page.next;
        if !page.more {
            // The cursor is past the changes, too, so that readers do not pass over them again and again.
            let newest = journal.queries().newest().await.unwrap();
            assert_eq!(
                newest.map(|newest| (newest, &query.after)),
                Some((Position::Ordinal(179), &Cursor::Ordinal(179)))
            );
            return found;
        }
    }
}

#[tokio::test]
async fn a_damaged_state_is_an_error_and_stops_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let (a, b) = (id("a"), id("b"));
    upsert(&journal.states(), &a, 1, "1").await.unwrap();
    upsert(&journal.states(), &b, 1, "1").await.unwrap();
    journal.close().await.unwrap();
    verify(directory.path()).await;
    on_rows(directory.path(), Do::Cut(key_of(&a)));
    let journal = open(directory.path()).await;
    let states = journal.states();
    assert!(matches!(states.get(&a).await, Err(ReadError::Corrupt(corrupt)) if corrupt.id == a));
    // Damage hides whether an earlier try is stored, so the answer is neither yes nor no.
    assert!(
        matches!(upsert(&states, &a, 2, "2").await, Err(StateWriteError::Unknown(cause)) if cause.text().contains('a'))
    );
    let refused = states.changes(&ChangesOf::Tag("odd".to_owned()), &Offset::None, 10).await;
    assert!(refused.is_err(), "the feed must not pass over damage, but: {refused:?}");
    assert_eq!(states.ids(None, 10).await.unwrap(), [a, b.clone()]);
    upsert(&states, &b, 2, "2").await.unwrap();
    Writer::claim(&journal, b).await.append(&journal, &["a"]).await;
}

/// A state lost to a hole in the log is found at the opening, and no reader is told "absent".
#[tokio::test]
async fn a_lost_state_is_found_when_the_journal_opens() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    upsert(&journal.states(), &id("a"), 1, "1").await.unwrap();
    journal.close().await.unwrap();
    verify(directory.path()).await;
    on_rows(directory.path(), Do::Remove(key_of(&id("a"))));
    let refused = SledJournal::open(directory.path(), greylag_journal_sled::SledJournalSettings::test()).await;
    let said = refused.map(drop).unwrap_err().to_string();
    assert!(said.contains("state of a"), "{said}");
}

#[tokio::test]
async fn the_stores_of_a_journal_keep_durable_states_too() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let (states, id) = (journal.stores().states.expect("entities with a durable state are served"), id("Counter|1"));
    states.upsert(write(&id, 1), value("1"), None).await.unwrap();
    assert_eq!(journal.states().get(&id).await.unwrap().revision, Revision::FIRST);
}
