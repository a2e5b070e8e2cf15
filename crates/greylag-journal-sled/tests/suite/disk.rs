//! A disk that is full or read-only: a named error, nothing lost, and the journal recovers by itself.
//!
//! Kit case `crash 4`. Source: persistence §8 (disk full).

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Writer, id, payloads, read_all};
use greylag_journal_sled::{OpenError, SledJournal, SledJournalSettings};
use greylag_persistence::{AppendError, Health, Journal, RejectReason};
use greylag_testkit::small_disk::{self, SmallDisk};

const BALLAST: &str = "greylag.ballast";

async fn open(disk: &Path, settings: SledJournalSettings) -> SledJournal {
    SledJournal::open(disk.join("journal"), settings).await.unwrap()
}

/// Appends until an append is refused; answers the error, and adds the acknowledged payloads to `stored`.
async fn append_until_refused(journal: &SledJournal, writer: &mut Writer, stored: &mut Vec<String>) -> AppendError {
    for number in 0_u32.. {
        let text = format!("{number}:{}", "x".repeat(30_000));
        let append = writer.next(&[&text]);
        let last = append.last().unwrap();
        match journal.append(append).await {
            Ok(_) => {
                writer.highest = last;
                stored.push(text);
            }
            Err(error) => return error,
        }
    }
    unreachable!("a small disk is full at some time")
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let give_up_at = Instant::now() + Duration::from_secs(30);
    while !is_so().await {
        assert!(Instant::now() < give_up_at, "{what}");
        // The store opens itself anew after pauses; asking does not make it faster.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Child process of a test below; does nothing when run as a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_with_a_watermark() {
    let Some(disk) = SmallDisk::mounted() else { return };
    let settings = SledJournalSettings { min_free_bytes: 12 << 20, ..SledJournalSettings::test() };
    let journal = open(disk.path(), settings).await;
    let mut writer = Writer::claim(&journal, id("Counter|1")).await;
    let mut stored = Vec::new();
    let filler = disk.fill(24 << 20);
    let refused = append_until_refused(&journal, &mut writer, &mut stored).await;
    assert!(matches!(refused, AppendError::Rejected(RejectReason::StorageLow(_))), "{refused}");
    assert!(matches!(journal.health(), Health::Degraded(_)));
    assert_eq!(payloads(&read_all(&journal, &writer.id).await), stored);
    std::fs::remove_file(filler).unwrap();
    writer.append(&journal, &["goes on"]).await;
    assert_eq!((journal.health(), journal.stats().poisoned), (Health::Up, 0), "the engine never met the full disk");
    journal.close().await.unwrap();
    disk.done();
}

/// Child process of a test below; does nothing when run as a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_without_a_watermark() {
    let Some(disk) = SmallDisk::mounted() else { return };
    let settings = SledJournalSettings { ballast_bytes: 8 << 20, ..SledJournalSettings::test() };
    let journal = open(disk.path(), settings).await;
    let ballast = disk.path().join("journal").join(BALLAST);
    assert!(ballast.exists());
    let mut writer = Writer::claim(&journal, id("Counter|1")).await;
    let mut stored = Vec::new();
    let filler = disk.fill(0);
    let refused = append_until_refused(&journal, &mut writer, &mut stored).await;
    assert!(matches!(refused, AppendError::Unknown(_)), "{refused}");
    // The full disk keeps the store from opening; giving up the ballast lets it open, for reading at least.
    until("it is not opened again", async || journal.head(&writer.id).await.is_ok()).await;
    assert!(!ballast.exists(), "the ballast made room for it");
    let unknown = writer.next(&["x"]).events.len();
    let read = payloads(&read_all(&journal, &writer.id).await);
    assert_eq!(read[..stored.len()], stored, "what was acknowledged");
    assert!(read.len() <= stored.len() + unknown, "what was under way may be there");
    std::fs::remove_file(filler).unwrap();
    until("space is back, and nothing is stored", async || {
        let mut writer = match journal.head(&writer.id).await {
            Ok(_) => Writer::claim(&journal, id("Counter|2")).await,
            Err(_) => return false,
        };
        let append = writer.next(&["goes on"]);
        writer.highest = append.last().unwrap();
        journal.append(append).await.is_ok()
    })
    .await;
    journal.close().await.unwrap();
    let journal = open(disk.path(), SledJournalSettings::test()).await;
    assert_eq!(payloads(&read_all(&journal, &writer.id).await)[..stored.len()], stored);
    disk.done();
}

/// Child process of a test below; does nothing when run as a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_may_not_write() {
    let Some(disk) = SmallDisk::mounted() else { return };
    let journal = open(disk.path(), SledJournalSettings::test()).await;
    let mut writer = Writer::claim(&journal, id("Counter|1")).await;
    writer.append(&journal, &["a", "b"]).await;
    journal.close().await.unwrap();
    let remount = |how: &str| {
        let status = Command::new("mount").args(["-o", how]).arg(disk.path()).status().unwrap();
        assert!(status.success());
    };
    remount("remount,ro");
    let refused = SledJournal::open(disk.path().join("journal"), SledJournalSettings::test()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Failed { .. }), "{refused:?}");
    assert!(refused.to_string().to_lowercase().contains("read-only file system"), "{refused}");
    remount("remount,rw");
    let journal = open(disk.path(), SledJournalSettings::test()).await;
    assert_eq!(payloads(&read_all(&journal, &writer.id).await), ["a", "b"]);
    writer.append(&journal, &["c"]).await;
    disk.done();
}

#[test]
fn appends_are_refused_before_the_disk_is_full_and_go_on_when_it_is_not() {
    small_disk::run("disk::child_with_a_watermark", 64);
}

#[test]
fn a_full_disk_loses_nothing_and_is_got_over() {
    small_disk::run("disk::child_without_a_watermark", 48);
}

#[test]
fn a_directory_that_may_not_be_written_is_refused_by_name() {
    small_disk::run("disk::child_that_may_not_write", 48);
}
