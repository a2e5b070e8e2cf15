//! A page of the store that has become unreadable, and that no opening reads: records on it are refused by name, and
//! nothing else suffers: neither calls for other ids meanwhile, nor a later opening of the journal (J1, J11).

use crate::common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::log::{SEGMENT, places_of, segment_number};
use crate::common::{Writer, event, id, open, payloads, snapshot, upsert, verify};
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{
    AppendError, Head, Journal, NewEvent, PersistenceId, ReadError, ReadRange, SeqNr, SnapshotCriteria, SnapshotError,
    SnapshotStore, StateWriteError,
};

/// How many ids there are of each kind; so many that those in the middle share no page with the last ones.
const IDS: u64 = 40;
/// The number of the id whose records are damaged.
const DAMAGED: u64 = 19;
/// An event larger than what one row holds.
const LARGE: usize = 66 << 10;

fn counter(number: u64) -> PersistenceId {
    id(&format!("Counter|{number:02}"))
}

fn state(number: u64) -> PersistenceId {
    id(&format!("State|{number:02}"))
}

/// The sequence number after which the events of an id begin: a recognizable one, so that they are found in the log.
fn start(number: u64) -> SeqNr {
    SeqNr::saturating(0x5eed_0000_0000 + (number << 8))
}

/// The bytes of the tag row for event `event` of an id, as they stand in the log: length of the value with its
/// checksum, then the id's number and the sequence number. Ids are numbered in the order of claims, `last` first. (Keys
/// hold both numbers, too.)
fn tag_row(number: u64, event: u64) -> Vec<u8> {
    let (pid, seq_nr) = (number + 2, start(number).as_u64() + event);
    [&[20][..], &pid.to_be_bytes(), &seq_nr.to_be_bytes()].concat()
}

/// The bytes of the first change of a state, as they stand in the log: version, id, and no superseded change.
fn change_row(number: u64) -> Vec<u8> {
    let id = state(number).to_string();
    [&[1, u8::try_from(id.len()).unwrap()][..], id.as_bytes(), &[0]].concat()
}

fn tagged(tag: &str, payload: String) -> NewEvent {
    NewEvent { tags: [tag.to_owned()].into(), ..event(payload) }
}

/// Makes a journal of many ids with events, snapshots and states, and [buries](bury) the copies of `mark`.
async fn populated(path: &Path, mark: &[u8]) {
    let journal = open(path).await;
    // This tag gets the first number, so that its later rows lie far from those of the other tags.
    Writer::claim(&journal, last()).await.append(&journal, &["first"]).await;
    for number in 0..IDS {
        let mut writer = Writer::claim(&journal, counter(number)).await;
        journal.advance(&writer.id, writer.epoch, start(number)).await.unwrap();
        writer.highest = start(number);
        let mut append = writer.next(&[]);
        let tag = if number <= DAMAGED { "a" } else { "b" };
        let large = format!("{}chunk of {number}", "x".repeat(LARGE));
        append.events = vec![tagged(tag, format!("event of {number}")), tagged(tag, large)];
        journal.append(append).await.unwrap();
        let payload = format!("snapshot of {number}").into();
        journal.snapshots().save(snapshot(&writer.id, start(number), payload)).await.unwrap();
        upsert(&journal.states(), &state(number), 1, &format!("state of {number}")).await;
    }
    bury(journal, path, mark).await;
}

/// Appends events of another id until no copy of `mark` lies in the part of the log that sled reads whole when it
/// opens: sled takes damage there for a torn end, not for a damaged page.
///
/// One round is enough on an idle machine. On a busy one sled finds the time to move pages out of old segments to the
/// end of its log, once or twice each, so the function looks where the copies lie after each round.
async fn bury(mut journal: SledJournal, path: &Path, mark: &[u8]) {
    for _ in 0..10 {
        let mut last = Writer::claim(&journal, last()).await;
        for _ in 0..200 {
            last.append(&journal, &[&"x".repeat(60 << 10)]).await;
        }
        journal.close().await.unwrap();
        verify(path).await;
        if is_buried(path, mark) {
            return;
        }
        journal = open(path).await;
    }
    panic!("sled moves a page to the end of its log again and again");
}

/// Whether all copies of `mark` lie in segments before the one in which sled's index of its log ends. An opening reads
/// that segment and all later ones whole.
fn is_buried(path: &Path, mark: &[u8]) -> bool {
    let index_end = std::fs::read_dir(path).unwrap().find_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.strip_prefix("snap.").map(|end| u64::from_str_radix(end, 16).unwrap())
    });
    let read_whole = index_end.expect("an opening has written an index") / SEGMENT as u64;
    let log = std::fs::read(path.join("db")).unwrap();
    places_of(mark, &log).iter().all(|at| segment_number(&log, at / SEGMENT) < read_whole)
}

/// An id that must not be affected by the damage.
fn last() -> PersistenceId {
    id("Last|one")
}

/// Flips a bit in every copy of `mark` in the log. The journal must be closed, since sled moves pages of an open one.
fn damage(path: &Path, mark: &[u8]) {
    assert!(is_buried(path, mark));
    let path = path.join("db");
    let log = std::fs::read(&path).unwrap();
    let places = places_of(mark, &log);
    assert!(!places.is_empty(), "the mark is in the log");
    let file = File::options().write(true).open(path).unwrap();
    let ends = places.iter().map(|at| at + mark.len() - 1);
    ends.for_each(|at| file.write_all_at(&[log[at] ^ 1], at as u64).unwrap());
}

/// A journal as [`populated`] makes it, with damage in every copy of `mark`.
async fn damaged(path: &Path, mark: &[u8]) {
    populated(path, mark).await;
    damage(path, mark);
}

/// Opens a journal with the least verification.
async fn open_blindly(path: &Path) -> SledJournal {
    let settings = SledJournalSettings { verify_commits: 1, ..SledJournalSettings::test() };
    SledJournal::open(path, settings).await.unwrap()
}

/// Appends some events to another id, which must succeed.
async fn others_write(journal: &SledJournal) {
    let mut writer = Writer::claim(journal, last()).await;
    for _ in 0..10 {
        writer.append(journal, &["one more"]).await;
    }
}

/// Closes the journal and opens it again, with appends to another id before and after, which must succeed.
async fn is_sound(journal: SledJournal, path: &Path) {
    others_write(&journal).await;
    journal.close().await.unwrap();
    let journal = open_blindly(path).await;
    others_write(&journal).await;
    journal.close().await.unwrap();
}

#[tokio::test]
async fn an_append_to_a_damaged_page_is_refused() {
    let directory = common::in_memory();
    damaged(directory.path(), format!("event of {DAMAGED}").as_bytes()).await;
    let journal = open_blindly(directory.path()).await;
    let (writer, mut other) = (Writer::claim(&journal, counter(DAMAGED)).await, Writer::claim(&journal, last()).await);
    let read = journal.read(&writer.id, ReadRange::all()).await;
    assert!(matches!(read, Err(ReadError::Corrupt(_))), "{read:?}");
    for round in 0..10 {
        // Both are asked for together, so that they are one group.
        let append = other.next(&["beside it"]);
        other.highest = append.last().unwrap();
        let (refused, stored) = tokio::join!(journal.append(writer.next(&["one more"])), journal.append(append));
        assert!(
            matches!(&refused, Err(AppendError::NotStored(failure)) if failure.is_answer()),
            "round {round}: {refused:?}"
        );
        stored.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    let Head { highest, .. } = journal.head(&writer.id).await.unwrap();
    assert_eq!(highest, writer.highest);
    is_sound(journal, directory.path()).await;
}

#[tokio::test]
async fn an_event_with_the_first_of_its_tags_is_refused_if_their_page_is_damaged() {
    let directory = common::in_memory();
    damaged(directory.path(), &tag_row(IDS - 1, 2)).await;
    let journal = open_blindly(directory.path()).await;
    let writer = Writer::claim(&journal, counter(0)).await;
    for round in 0..3 {
        let mut append = writer.next(&[]);
        append.events = vec![tagged("new", "one more".into())];
        let refused = journal.append(append).await;
        assert!(
            matches!(&refused, Err(AppendError::NotStored(failure)) if failure.is_answer()),
            "round {round}: {refused:?}"
        );
        others_write(&journal).await;
    }
    is_sound(journal, directory.path()).await;
}

#[tokio::test]
async fn a_large_state_beside_damaged_chunks_is_refused_and_a_small_one_is_not() {
    let directory = common::in_memory();
    let mark = format!("chunk of state {DAMAGED}");
    populated(directory.path(), mark.as_bytes()).await;
    let journal = open(directory.path()).await;
    let large = "x".repeat(LARGE);
    for number in 0..IDS {
        upsert(&journal.states(), &state(number), 2, &format!("{large}chunk of state {number}")).await;
    }
    bury(journal, directory.path(), mark.as_bytes()).await;
    damage(directory.path(), mark.as_bytes());
    let journal = open_blindly(directory.path()).await;
    let states = journal.states();
    for round in 0..3 {
        let refused = common::try_upsert(&states, &state(DAMAGED), 3, &large).await;
        assert!(matches!(refused, Err(StateWriteError::NotStored(_))), "round {round}: {refused:?}");
        others_write(&journal).await;
    }
    upsert(&states, &state(DAMAGED), 3, "small").await;
    upsert(&states, &state(IDS - 1), 3, &large).await;
    is_sound(journal, directory.path()).await;
}

/// An opening must succeed although the page that it would write to, or look up a row in, is damaged.
#[tokio::test]
async fn a_journal_opens_although_its_last_page_is_damaged() {
    let directory = common::in_memory();
    damaged(directory.path(), &change_row(IDS - 1)).await;
    let journal = open_blindly(directory.path()).await;
    assert_eq!(payloads(&common::read_all(&journal, &counter(0)).await)[0], "event of 0");
    // The change of this state would be written to the damaged page, too.
    let refused = common::try_upsert(&journal.states(), &state(0), 2, "later").await;
    assert!(matches!(refused, Err(StateWriteError::NotStored(_))), "{refused:?}");
    is_sound(journal, directory.path()).await;
}

#[tokio::test]
async fn deleted_events_on_damaged_pages_stay_and_stop_nobody() {
    for mark in ["event", "chunk"] {
        let directory = common::in_memory();
        damaged(directory.path(), format!("{mark} of {DAMAGED}").as_bytes()).await;
        let journal = open_blindly(directory.path()).await;
        for number in [DAMAGED, DAMAGED + 1, IDS - 1] {
            let writer = Writer::claim(&journal, counter(number)).await;
            assert_eq!(journal.delete_to(&writer.id, writer.epoch, SeqNr::MAX).await.unwrap(), writer.highest);
            others_write(&journal).await;
            assert_eq!(payloads(&common::read_all(&journal, &writer.id).await), [""; 0]);
        }
        is_sound(journal, directory.path()).await;
    }
}

/// sled merges pages that have become nearly empty into the page before. When it cannot read such a page, some hundreds
/// of pages cannot be read any more.
#[tokio::test]
async fn what_is_deleted_behind_a_damaged_page_takes_nobody_with_it() {
    let directory = common::in_memory();
    damaged(directory.path(), format!("event of {DAMAGED}").as_bytes()).await;
    let journal = open_blindly(directory.path()).await;
    for number in DAMAGED + 1..IDS {
        let writer = Writer::claim(&journal, counter(number)).await;
        // Deleted one by one, so that every page is nearly empty at some time.
        for deleted_to in start(number).as_u64() + 1..=writer.highest.as_u64() {
            journal.delete_to(&writer.id, writer.epoch, SeqNr::saturating(deleted_to)).await.unwrap();
            others_write(&journal).await;
        }
    }
    is_sound(journal, directory.path()).await;
    let journal = open_blindly(directory.path()).await;
    let mut lost = 0;
    for number in 0..IDS {
        lost += usize::from(journal.read(&counter(number), ReadRange::all()).await.is_err());
    }
    assert!((1..=8).contains(&lost), "{lost} of {IDS} cannot be read");
    journal.close().await.unwrap();
}

#[tokio::test]
async fn snapshots_on_a_damaged_page_are_corrupt_and_not_out_of_reach() {
    let directory = common::in_memory();
    damaged(directory.path(), format!("snapshot of {DAMAGED}").as_bytes()).await;
    let journal = open_blindly(directory.path()).await;
    let (snapshots, damaged) = (journal.snapshots(), counter(DAMAGED));
    let loaded = snapshots.load(&damaged, SnapshotCriteria::LATEST).await.map(drop);
    let saved = snapshots.save(snapshot(&damaged, start(DAMAGED), b"again".to_vec())).await.map(drop);
    let deleted = snapshots.delete_matching(&damaged, SnapshotCriteria::LATEST).await;
    for refused in [loaded, saved, deleted] {
        assert!(matches!(refused, Err(SnapshotError::Corrupt(_))), "{refused:?}");
    }
    let sound = snapshots.load(&counter(0), SnapshotCriteria::LATEST).await.unwrap().unwrap();
    assert_eq!(sound.payload, "snapshot of 0");
    is_sound(journal, directory.path()).await;
}

/// The superseded change is removed with the next group, and if there is none, when the journal opens.
#[tokio::test]
async fn a_change_that_was_written_over_stays_if_its_page_is_damaged() {
    for others_follow in [true, false] {
        let directory = common::in_memory();
        damaged(directory.path(), &change_row(DAMAGED)).await;
        let journal = open_blindly(directory.path()).await;
        upsert(&journal.states(), &state(DAMAGED), 2, "later").await;
        if others_follow {
            upsert(&journal.states(), &state(IDS - 1), 2, "later").await;
            others_write(&journal).await;
        }
        is_sound(journal, directory.path()).await;
    }
}

/// An iteration over a damaged page never gets past it.
#[test]
fn opening_ends_although_a_page_of_tags_is_damaged() {
    let (opened, is_open) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (directory, mark) = (common::in_memory(), tag_row(DAMAGED, 1));
            populated(directory.path(), &mark).await;
            loop {
                let journal = open_blindly(directory.path()).await;
                let writer = Writer::claim(&journal, counter(DAMAGED)).await;
                let mut append = writer.next(&[]);
                append.events = vec![tagged("a", "one more".into())];
                journal.append(append).await.unwrap();
                journal.close().await.unwrap();
                // The new row goes to the page of the marked one, so sled may have moved that page or written it anew.
                if is_buried(directory.path(), &mark) {
                    break;
                }
                bury(open(directory.path()).await, directory.path(), &mark).await;
            }
            damage(directory.path(), &mark);
            is_sound(open_blindly(directory.path()).await, directory.path()).await;
        });
        opened.send(()).unwrap();
    });
    // A hang shows as a timeout; a panic of the thread closes the channel.
    is_open.recv_timeout(Duration::from_secs(120)).unwrap();
}
