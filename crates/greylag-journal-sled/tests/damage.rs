//! A damaged store is found out: at opening, or by the read that meets the damage. Kit cases
//! `crash 6` and, without the tail guard, part of `crash 7`.

mod common;

use std::path::Path;

use common::{Writer, id, open, payloads, read_all};
use greylag_journal_sled::{OpenError, SledJournal, SledJournalSettings, StoreError, StoreSettings};
use greylag_persistence::Journal;
use greylag_store_sled::{Batch, Planner, Reader, Request, Store};
use rand::{RngExt, SeedableRng};

/// Removes keys, as a hole in the log would.
struct Remove;

struct Key(Vec<u8>);

impl Request for Key {
    fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl Planner for Remove {
    type Request = Key;
    type Answer = ();

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(&mut self, keys: Vec<Key>, reader: &Reader, batch: &mut Batch) -> Result<Vec<()>, StoreError> {
        for key in &keys {
            assert!(reader.get(&key.0)?.is_some(), "there is nothing to remove");
            batch.remove(&key.0);
        }
        Ok(vec![(); keys.len()])
    }
}

fn remove(path: &Path, keys: Vec<Vec<u8>>) {
    let store = Store::open(path, StoreSettings::test(), Remove).unwrap();
    let pending: Vec<_> = keys.into_iter().map(|key| store.submit(Key(key)).unwrap()).collect();
    pending.into_iter().for_each(|pending| pending.wait().unwrap());
    store.close().unwrap();
}

/// A journal of one id whose commits 1 to 11 are a claim and ten appends of one event.
async fn ten_events(path: &Path) {
    let journal = open(path).await;
    let mut writer = Writer::claim(&journal, id("Counter|1")).await;
    for number in 1..=10 {
        writer.append(&journal, &[&number.to_string()]).await;
    }
    journal.close().await.unwrap();
}

fn numbered(space: u8, numbers: &[u64]) -> Vec<u8> {
    [vec![space], numbers.iter().flat_map(|number| number.to_be_bytes()).collect()].concat()
}

async fn refused(path: &Path) -> String {
    match SledJournal::open(path, SledJournalSettings::test()).await {
        Err(OpenError::Failed { source, .. }) if source.is_corruption() => source.to_string(),
        other => panic!("must be refused as corrupt, but: {other:?}"),
    }
}

#[tokio::test]
async fn holes_are_found_when_the_journal_opens() {
    for (keys, expected) in [
        (vec![numbered(0x04, &[6])], "commit 6 is missing"),
        (vec![numbered(0x04, &[1])], "commit 1 is missing"),
        (vec![numbered(0x02, &[1, 4])], "events of commit 5"),
        (vec![vec![0x00]], "no format record"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        ten_events(directory.path()).await;
        remove(directory.path(), keys);
        let said = refused(directory.path()).await;
        assert!(said.contains(expected), "{expected:?} is not in {said:?}");
    }
}

#[tokio::test]
async fn a_lost_tail_is_found_as_far_as_it_was_verified() {
    let directory = tempfile::tempdir().unwrap();
    ten_events(directory.path()).await;
    // Opening verifies, and takes note of, all eleven commits.
    open(directory.path()).await.close().await.unwrap();
    remove(directory.path(), vec![numbered(0x04, &[10]), numbered(0x04, &[11])]);
    assert!(refused(directory.path()).await.contains("commits 10 to 11 are lost"));
}

/// Whatever byte of the file is wrong, nobody reads wrong data, and no hole is read over. (That a
/// lost *tail* can go unnoticed until the tail guard is there, is why a prefix is accepted.)
#[tokio::test]
async fn flipped_bits_never_become_wrong_data() {
    let original = tempfile::tempdir().unwrap();
    ten_events(original.path()).await;
    let expected: Vec<_> = (1..=10).map(|number| number.to_string()).collect();
    let db = std::fs::read(original.path().join("db")).unwrap();
    let used = db.iter().rposition(|byte| *byte != 0).unwrap();
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let mut found_out = 0;
    for flip in 0..60 {
        let directory = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(original.path()).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
            }
        }
        let mut damaged = db.clone();
        let at = rng.random_range(0..=used);
        damaged[at] ^= 1 << rng.random_range(0..8);
        std::fs::write(directory.path().join("db"), damaged).unwrap();
        let Ok(journal) = SledJournal::open(directory.path(), SledJournalSettings::test()).await else {
            found_out += 1;
            continue;
        };
        let id = id("Counter|1");
        let Ok(_) = journal.head(&id).await else {
            found_out += 1;
            continue;
        };
        let read = payloads(&read_all(&journal, &id).await);
        assert_eq!(read, expected[..read.len()], "flip {flip} at byte {at}");
        found_out += usize::from(read.len() < expected.len());
    }
    assert!(found_out > 0, "no flip met anything that matters");
}
