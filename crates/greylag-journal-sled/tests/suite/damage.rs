//! Damage to a store is found when the store opens: any missing row is noticed. Kit case `crash 7`. The effects of
//! single flipped bits and lost ends of files are tested in `mutilation`.

use std::path::Path;

use crate::common::rows::{Do, on_row};
use crate::common::{Writer, copy, id, open, snapshot, upsert, verify};
use greylag_journal_sled::{OpenError, SledJournal, SledJournalSettings, StoreError};
use greylag_persistence::{
    Cursor, EventQueries, EventsOf, FoundEvent, Journal, OffsetStore, PageQuery, Position, Processed, SeqNr,
    SnapshotStore, Visible,
};
use greylag_store_sled::GUARD_FILE;

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

fn named(space: u8, name: &str) -> Vec<u8> {
    [&[space], name.as_bytes()].concat()
}

/// Opens a damaged journal; answers the error and its text. The text must name the repair, and the guard must stay.
async fn refused(path: &Path) -> (StoreError, String) {
    let guard = std::fs::read(path.join(GUARD_FILE)).ok();
    let refused = SledJournal::open(path, SledJournalSettings::test()).await.map(drop).unwrap_err();
    assert_eq!(std::fs::read(path.join(GUARD_FILE)).ok(), guard);
    let said = refused.to_string();
    assert!(said.contains("greylag-journal-sled salvage"), "{said}");
    match refused {
        OpenError::Corrupt { source, .. } => (source, said),
        other => panic!("must be refused as corrupt, but: {other:?}"),
    }
}

#[tokio::test]
async fn holes_are_found_when_the_journal_opens() {
    for (key, expected) in [
        (numbered(0x04, &[6]), "commit 6 is missing, though commit 7 is there"),
        (numbered(0x04, &[1]), "commit 1 is missing, though commit 2 is there"),
        (numbered(0x02, &[1, 4]), "events of commit 5"),
        (vec![0x00], "no format record"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        ten_events(directory.path()).await;
        on_row(directory.path(), Do::Remove(key));
        let (error, said) = refused(directory.path()).await;
        assert!(said.contains(expected), "{expected:?} is not in {said:?}");
        assert_eq!(matches!(error, StoreError::CommitGap { .. }), expected.starts_with("commit"));
    }
}

/// The row of another event, whole but not the one that the commit stored, is found by the digest.
#[tokio::test]
async fn another_event_in_the_place_of_one_is_found_when_the_journal_opens() {
    let directory = tempfile::tempdir().unwrap();
    ten_events(directory.path()).await;
    let other = on_row(directory.path(), Do::Get(numbered(0x02, &[1, 5])));
    on_row(directory.path(), Do::Put(numbered(0x02, &[1, 4]), other));
    assert!(refused(directory.path()).await.1.contains("events of commit 5"));
}

/// The tail guard knows of every acknowledged commit, also of those that no opening has verified.
#[tokio::test]
async fn a_lost_tail_is_found_by_the_guard() {
    let directory = tempfile::tempdir().unwrap();
    ten_events(directory.path()).await;
    let mut db = std::fs::read(directory.path().join("db")).unwrap();
    let used = db.iter().rposition(|byte| *byte != 0).unwrap();
    db[used - 600..].fill(0);
    std::fs::write(directory.path().join("db"), db).unwrap();
    let (error, _) = refused(directory.path()).await;
    assert!(matches!(error, StoreError::TailLost { guard: 11, found: 1.. }), "{error}");
    // The whole log is gone.
    std::fs::write(directory.path().join("db"), []).unwrap();
    for entry in std::fs::read_dir(directory.path()).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("snap") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    assert!(matches!(refused(directory.path()).await.0, StoreError::TailLost { guard: 11, found: 0 }));
}

#[tokio::test]
async fn a_guard_that_is_gone_is_missed_and_one_torn_slot_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let guard = directory.path().join(GUARD_FILE);
    ten_events(directory.path()).await;
    let bytes = std::fs::read(&guard).unwrap();
    for slot in [0, 2048] {
        let mut torn = bytes.clone();
        torn[slot..slot + 512].fill(0);
        std::fs::write(&guard, torn).unwrap();
        verify(directory.path()).await;
    }
    std::fs::write(&guard, [0; 4096]).unwrap();
    assert!(matches!(refused(directory.path()).await.0, StoreError::GuardLost { found: 11 }));
    std::fs::remove_file(&guard).unwrap();
    assert!(matches!(refused(directory.path()).await.0, StoreError::GuardLost { found: 11 }));
    std::fs::write(&guard, &bytes[..2048]).unwrap();
    verify(directory.path()).await;
}

/// Every kind of row that is overwritten in place or has no gap-free number, with its value after the first round;
/// `None` stands for removal.
async fn rows_that_nobody_would_miss(path: &Path) -> Vec<(&'static str, Vec<u8>, Option<Vec<u8>>)> {
    let one = id("Counter|1");
    let state = [&[0x20], one.as_str().as_bytes()].concat();
    let offsets = [b"\x30sums\0", &one.slice().to_be_bytes()[..]].concat();
    let head = named(0x01, "Counter|1");
    let mut before = Vec::new();
    for round in 1..=2_u32 {
        let journal = open(path).await;
        let mut writer = Writer::claim(&journal, one.clone()).await;
        writer.append(&journal, &["a"]).await;
        let save = snapshot(&one, writer.highest, vec![7; 100]);
        journal.snapshots().save(save).await.unwrap();
        upsert(&journal.states(), &one, round, "state").await;
        let slices = one.slice()..=one.slice();
        let owned = journal.offsets().claim("sums", slices).await.unwrap();
        let position = Position::Ordinal(round.into());
        let processed = Processed { id: one.clone(), seq_nr: SeqNr::FIRST, position };
        journal.offsets().save(&owned, &[processed]).await.unwrap();
        journal.close().await.unwrap();
        if round == 1 {
            before = [&head, &state, &offsets].map(|key| on_row(path, Do::Get(key.clone()))).into();
        }
    }
    let [before_head, before_state, before_offsets] = before.try_into().unwrap();
    vec![
        ("an older head", head.clone(), Some(before_head)),
        ("head", head, None),
        ("name of an id", numbered(0x07, &[1]), None),
        ("row of a tag", numbered(0x06, &[1, 2]), None),
        ("snapshot", numbered(0x10, &[1, 2]), None),
        ("an older state", state.clone(), Some(before_state)),
        ("state", state, None),
        ("change of a state", numbered(0x21, &[3]), None),
        ("older offsets", offsets.clone(), Some(before_offsets)),
        ("offsets", offsets, None),
    ]
}

/// persistence §8, "lost page range in the middle": a hole that begins in a group loses a part of the group's rows.
#[tokio::test]
async fn whatever_a_hole_takes_from_a_group_is_missed() {
    let original = tempfile::tempdir().unwrap();
    let rows = rows_that_nobody_would_miss(original.path()).await;
    for (what, key, before) in rows {
        let directory = tempfile::tempdir().unwrap();
        copy(original.path(), directory.path());
        on_row(directory.path(), before.map_or_else(|| Do::Remove(key.clone()), |value| Do::Put(key.clone(), value)));
        let (error, said) = refused(directory.path()).await;
        assert!(matches!(error, StoreError::Corrupt(_)), "{what}: {said}");
    }
    verify(original.path()).await;
}

/// A deleted snapshot that comes back with a hole is noticed.
#[tokio::test]
async fn a_deletion_that_a_hole_takes_back_is_missed() {
    let directory = tempfile::tempdir().unwrap();
    let (one, key) = (id("Counter|1"), numbered(0x10, &[1, 1]));
    let journal = open(directory.path()).await;
    journal.snapshots().save(snapshot(&one, SeqNr::FIRST, vec![7; 100])).await.unwrap();
    journal.close().await.unwrap();
    let row = on_row(directory.path(), Do::Get(key.clone()));
    let journal = open(directory.path()).await;
    journal.snapshots().delete(&one, SeqNr::FIRST).await.unwrap();
    journal.close().await.unwrap();
    on_row(directory.path(), Do::Put(key, row));
    assert!(matches!(refused(directory.path()).await.0, StoreError::Corrupt(_)));
}

/// Commit records whose events are all deleted are merged; the sequence stays provably gap-free, and queries find the
/// live events.
#[tokio::test]
async fn commits_whose_events_are_gone_become_one() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    let mut kept = Writer::claim(&journal, id("Counter|kept")).await;
    let mut deleted = Writer::claim(&journal, id("Counter|deleted")).await;
    for number in 0..400 {
        deleted.append(&journal, &["a"]).await;
        if number % 100 == 50 {
            kept.append(&journal, &["b"]).await;
        }
    }
    journal.close().await.unwrap();
    assert_eq!(on_row(directory.path(), Do::Count(0x04)).len(), 406);
    // Only commits that an opening verified are merged.
    let journal = open(directory.path()).await;
    journal.delete_to(&deleted.id, deleted.epoch, SeqNr::MAX).await.unwrap();
    deleted.append(&journal, &["c"]).await;
    let before = live_events(&journal).await;
    assert_eq!(before.iter().map(|(_, ordinal)| *ordinal).collect::<Vec<_>>(), [51, 152, 253, 354, 404]);
    // Each group makes one step of the sweeper and one of the merger.
    let mut other = Writer::claim(&journal, id("Other|1")).await;
    for _ in 0..200 {
        other.append(&journal, &["d"]).await;
    }
    journal.close().await.unwrap();
    let later = 2 + 1 + 200;
    let left = on_row(directory.path(), Do::Count(0x04)).len() - later;
    assert!(left < 60, "{left} commit records are left of 406");
    let journal = open(directory.path()).await;
    assert_eq!(live_events(&journal).await, before);
    for after in 0..405 {
        let query = PageQuery { after: Cursor::Ordinal(after), ..slices() };
        let page = journal.queries().events(&query).await.unwrap();
        let expected = before.iter().filter(|(_, ordinal)| *ordinal > after).count();
        assert_eq!(page.events.len(), expected, "after {after}");
    }
    journal.close().await.unwrap();
    // A lost merged record is noticed like any other.
    on_row(directory.path(), Do::Remove(vec![0x00, 0x01]));
    verify(directory.path()).await;
    on_row(directory.path(), Do::Remove(vec![0x00, 0x01]));
    on_row(directory.path(), Do::Remove(numbered(0x04, &[1])));
    assert!(matches!(refused(directory.path()).await.0, StoreError::CommitGap { missing: 1, .. }));
}

fn slices() -> PageQuery {
    let of = EventsOf::Slices { entity_type: "Counter".to_owned(), slices: 0..=1023 };
    PageQuery { of, after: Cursor::Start, until: None, visible: Visible::All, limit: 100, load: true }
}

async fn live_events(journal: &SledJournal) -> Vec<(SeqNr, u64)> {
    let page = journal.queries().events(&slices()).await.unwrap();
    let place = |event: &FoundEvent| match event.position {
        Position::Ordinal(ordinal) => (event.seq_nr, ordinal),
        Position::Timestamp(_) => panic!("a foreign position"),
    };
    page.events.iter().map(place).collect()
}
