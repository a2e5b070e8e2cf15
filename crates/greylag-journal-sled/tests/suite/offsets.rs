//! Offsets of projections on disk: tests that the conformance kit does not cover.

use std::ops::RangeInclusive;
use std::path::Path;

use crate::common::{Writer, id, open, verify};
use futures::future::{join, join_all};
use greylag_journal_sled::{SledOffsets, StoreError, StoreSettings};
use greylag_persistence::{
    CorruptKind, Journal, OffsetError, OffsetStore, OwnedSlices, OwnerEpoch, PersistenceId, Position, Processed,
    SLICES, SeqNr,
};
use greylag_store_sled::{Batch, Planner, Reader, Request, Store};

const ALL: RangeInclusive<u16> = 0..=SLICES - 1;

fn processed(id: &PersistenceId, ordinal: u64) -> Processed {
    Processed { id: id.clone(), seq_nr: SeqNr::saturating(ordinal + 1), position: Position::Ordinal(ordinal) }
}

#[tokio::test]
async fn owners_and_offsets_survive_a_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let zombie = journal.offsets().claim("sums", ALL).await.unwrap();
    let owned = journal.offsets().claim("sums", ALL).await.unwrap();
    let saved = [processed(&id("Counter|1"), 7), processed(&id("Counter|2"), 9)];
    journal.offsets().save(&owned, &saved).await.unwrap();
    journal.close().await.unwrap();
    let journal = open(directory.path()).await;
    let offsets = journal.offsets();
    assert_eq!(offsets.load("sums", ALL).await.unwrap(), saved);
    assert!(matches!(offsets.save(&zombie, &saved).await, Err(OffsetError::StaleOwner { .. })));
    offsets.save(&owned, &[processed(&id("Counter|1"), 11)]).await.unwrap();
    let next = offsets.claim("sums", 0..=0).await.unwrap();
    assert_eq!(next.epochs[&0], OwnerEpoch::from_u64(3));
}

/// A projection costs no sync of its own while others write.
#[tokio::test]
async fn offsets_share_the_group_commits_of_events() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let owned = journal.offsets().claim("sums", ALL).await.unwrap();
    let mut writers = Vec::new();
    for number in 0..50 {
        writers.push(Writer::claim(&journal, id(&format!("Counter|{number}"))).await);
    }
    let before = journal.stats().groups;
    let offsets = journal.offsets();
    let appends = join_all(writers.iter().map(|writer| journal.append(writer.next(&["a"]))));
    let saves = join_all((0..50).map(|number| {
        let (offsets, owned) = (&offsets, &owned);
        async move { offsets.save(owned, &[processed(&id(&format!("Counter|{number}")), number)]).await }
    }));
    let (appended, saved) = join(appends, saves).await;
    assert!(appended.iter().all(Result::is_ok) && saved.iter().all(Result::is_ok));
    let groups = journal.stats().groups - before;
    // The number depends on when the requests arrive; with a commit for each save it would be 50 more.
    assert!(groups <= 20, "100 requests took {groups} group commits");
}

/// Of two owners in one group only the later one can save, and the later one sees the earlier changes of the group.
#[tokio::test]
async fn requests_of_one_group_see_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let offsets = journal.offsets();
    let first = offsets.claim("sums", 0..=3).await.unwrap();
    let raised = |owned: &OwnedSlices| OwnedSlices {
        epochs: owned.epochs.iter().map(|(slice, epoch)| (*slice, epoch.raised())).collect(),
        ..owned.clone()
    };
    let second = raised(&first);
    let ids = (0..).map(|number: u32| id(&format!("Counter|{number}")));
    let id = ids.into_iter().find(|id| id.slice() <= 3).unwrap();
    let (old, new) = ([processed(&id, 1)], [processed(&id, 2)]);
    // Polled, and therefore planned, in this order; all but the first wait for one group.
    let (before, claimed, stale, saved, again) = futures::join!(
        offsets.save(&first, &old),
        offsets.claim("sums", 0..=3),
        offsets.save(&first, &new),
        offsets.save(&second, &new),
        offsets.claim("sums", 0..=3),
    );
    assert_eq!((before, claimed.unwrap(), saved), (Ok(()), second.clone(), Ok(())));
    assert!(matches!(stale, Err(OffsetError::StaleOwner { .. })));
    assert_eq!(again.unwrap(), raised(&second));
    assert_eq!(offsets.load("sums", ALL).await.unwrap(), new);
}

/// Cuts a row and seals it again, so that the engine's checksum does not tell.
struct Damage;

struct Row {
    key: Vec<u8>,
    cut: bool,
}

impl Request for Row {
    fn bytes(&self) -> usize {
        self.key.len()
    }
}

impl Planner for Damage {
    type Request = Row;
    type Answer = ();

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(&mut self, rows: Vec<Row>, reader: &Reader, batch: &mut Batch) -> Result<Vec<()>, StoreError> {
        for row in &rows {
            let mut value = reader.get(&row.key)?.expect("there is nothing to damage").to_vec();
            value.truncate(if row.cut { 5 } else { value.len() });
            batch.put(&row.key, &value);
        }
        Ok(vec![(); rows.len()])
    }
}

fn damage(path: &Path, row: Row) {
    let store = Store::open(path, StoreSettings::test(), Damage).unwrap();
    store.submit(row).unwrap().wait().unwrap();
    store.close().unwrap();
}

fn key(projection: &str, slice: u16) -> Vec<u8> {
    [b"\x30", projection.as_bytes(), b"\0", &slice.to_be_bytes()].concat()
}

async fn refusals(offsets: &SledOffsets, owned: &OwnedSlices, slice: u16) -> Vec<OffsetError> {
    let ids = (0..).map(|number: u32| id(&format!("Counter|{number}")));
    let id = ids.into_iter().find(|id| id.slice() == slice).unwrap();
    vec![
        offsets.load("sums", ALL).await.unwrap_err(),
        offsets.claim("sums", ALL).await.unwrap_err(),
        offsets.save(owned, &[processed(&id, 50)]).await.unwrap_err(),
        offsets.reset(owned).await.unwrap_err(),
    ]
}

/// Every request that needs a damaged row names the row in its error; no other request fails.
#[tokio::test]
async fn a_damaged_row_is_an_error_and_stops_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let one = id("Counter|1");
    let owned = journal.offsets().claim("sums", ALL).await.unwrap();
    let others = journal.offsets().claim("others", ALL).await.unwrap();
    journal.offsets().save(&owned, &[processed(&one, 1)]).await.unwrap();
    journal.close().await.unwrap();
    verify(directory.path()).await;

    damage(directory.path(), Row { key: key("sums", one.slice()), cut: true });
    let journal = open(directory.path()).await;
    let offsets = journal.offsets();
    let corrupt = OffsetError::Corrupt { projection: "sums".into(), kind: CorruptKind::Unreadable };
    assert!(refusals(&offsets, &owned, one.slice()).await.iter().all(|error| *error == corrupt));
    // A refused request changed no slice, not even the sound ones.
    let whole = if one.slice() == 0 { 1..=1 } else { 0..=0 };
    assert_eq!(offsets.claim("sums", whole.clone()).await.unwrap().epochs[whole.start()], OwnerEpoch::from_u64(2));
    offsets.save(&others, &[processed(&one, 1)]).await.unwrap();
    Writer::claim(&journal, one).await.append(&journal, &["a"]).await;
}
