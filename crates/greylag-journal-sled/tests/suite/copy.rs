//! A journal on disk as either end of a copy.

use std::sync::{Arc, Mutex};

use greylag_journal_sled::{OpenError, SledJournal, SledJournalSettings};
use greylag_persistence::copy::{copy, verify};
use greylag_persistence::tck::{self, Flags};
use greylag_persistence::{Import, InMemoryArchive, Journal};

async fn open(path: &std::path::Path) -> SledJournal {
    let settings = SledJournalSettings { verify_commits: u64::MAX, ..SledJournalSettings::test() };
    SledJournal::open(path, settings).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_moves_to_the_disk_and_back() {
    let directories = Mutex::new(Vec::new());
    let factory = || async {
        let directory = tempfile::tempdir().unwrap();
        let journal = open(directory.path()).await;
        directories.lock().unwrap().push((directory, journal.clone()));
        Arc::new(journal) as Arc<dyn Import>
    };
    let report = tck::transfer(&factory, Flags::default()).await;
    report.assert_conforms();
    // Imported events are part of the chain of commits like all others: each store opens again, compares every digest,
    // and holds the same.
    for (directory, journal) in directories.into_inner().unwrap() {
        let before = InMemoryArchive::default();
        copy(&journal, &before).await.unwrap();
        journal.close().await.unwrap();
        let journal = open(directory.path()).await;
        let verified = verify(&journal, &before, 10).await.unwrap();
        assert!(verified.is_equal(), "{:?}", verified.differences);
        journal.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_another_one_has_open_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let mut settings = SledJournalSettings::test();
    settings.store.lock_retry = std::time::Duration::ZERO;
    let refused = SledJournal::open(directory.path(), settings).await.unwrap_err();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
    journal.close().await.unwrap();
    let refused = copy(&journal, &InMemoryArchive::default()).await.unwrap_err();
    assert!(refused.to_string().contains(&directory.path().display().to_string()), "{refused}");
}
