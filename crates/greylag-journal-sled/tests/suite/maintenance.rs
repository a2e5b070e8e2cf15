//! Verification, export and salvage of sound and damaged journals.

use crate::common;
use crate::common::sample;

use std::path::Path;
use std::process::Command;

use crate::common::{Writer, copy, id, open, payloads, read_all, snapshot, upsert};
use greylag_journal_sled::maintenance::{Failure, export, renew_guard, salvage, verify};
use greylag_journal_sled::{OpenError, SledJournal, SledJournalSettings};
use greylag_persistence::{Journal, SeqNr, SnapshotCriteria, SnapshotStore, StateStore};
use greylag_store_sled::GUARD_FILE;

/// Makes a closed journal of five rounds; answers what reading it must answer.
async fn made(path: &Path) -> sample::Answers {
    let journal = SledJournal::open(path, sample::settings()).await.unwrap();
    for round in 1..=3 {
        sample::work(&journal, round, 40).await;
    }
    // The journal is opened again, so that the engine has an index of the first rounds.
    journal.close().await.unwrap();
    let journal = SledJournal::open(path, sample::settings()).await.unwrap();
    for round in 4..=5 {
        sample::work(&journal, round, 40).await;
    }
    let answers = sample::read(&journal).await;
    journal.close().await.unwrap();
    answers
}

async fn answers(path: &Path) -> sample::Answers {
    let journal = SledJournal::open(path, sample::settings()).await.unwrap();
    let answers = sample::read(&journal).await;
    journal.close().await.unwrap();
    answers
}

fn remove(path: &Path, prefix: &str) {
    for entry in std::fs::read_dir(path).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

#[tokio::test]
async fn a_sound_journal_is_found_sound_and_exported_whole() {
    let directory = common::in_memory();
    made(directory.path()).await;
    let found = verify(directory.path()).unwrap();
    assert!(found.is_sound(), "{:?}", found.damage);
    assert_eq!((found.counts.ids, found.counts.states), (5, 5));
    let mut lines = Vec::new();
    let exported = export(directory.path(), &mut lines).unwrap();
    assert_eq!(exported.counts.events, found.counts.events);
    let lines = String::from_utf8(lines).unwrap();
    let of = |kind: &str| lines.lines().filter(|line| line.starts_with(&format!("{{\"{kind}\":"))).count() as u64;
    let kinds = ["id", "event", "snapshot", "state", "offsets", "damage"].map(of);
    let counts = found.counts;
    assert_eq!(kinds, [counts.ids, counts.events, counts.snapshots, counts.states, counts.slices, 0]);
    assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    assert!(lines.contains(&format!("\"payload\":\"{}", "353a353a323a"),), "5:5:2: in hexadecimal");
}

#[tokio::test]
async fn a_journal_in_use_or_none_at_all_is_refused() {
    let directory = common::in_memory();
    let journal = open(directory.path()).await;
    let new = common::in_memory();
    assert!(matches!(salvage(directory.path(), new.path()), Err(Failure::Open(OpenError::Locked { .. }))));
    journal.close().await.unwrap();
    assert!(matches!(salvage(directory.path(), directory.path()), Err(Failure::NotEmpty(_))));
    assert!(matches!(verify(new.path()), Err(Failure::File { .. } | Failure::Open(_))));
}

#[tokio::test]
async fn a_lost_guard_is_renewed_and_only_that() {
    let directory = common::in_memory();
    let expected = made(directory.path()).await;
    remove(directory.path(), GUARD_FILE);
    let found = verify(directory.path()).unwrap();
    assert!(found.damage.len() == 1 && found.damage[0].contains("tail guard"), "{:?}", found.damage);
    assert!(renew_guard(directory.path()).unwrap().is_sound());
    assert_eq!(answers(directory.path()).await, expected);
}

/// A damaged index of the engine loses nothing: salvage reads the log alone.
#[tokio::test]
async fn a_damaged_index_costs_nothing() {
    for (file, at) in [("snap.", 20), ("conf", 3)] {
        let directory = common::in_memory();
        let expected = made(directory.path()).await;
        let names = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let named = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(file);
        let path = names.into_iter().find(named).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let found = verify(directory.path()).unwrap();
        assert!(!found.is_sound() && found.missing.is_empty() && found.missing_commits == 0, "{found:?}");
        let new = common::in_memory();
        let saved = salvage(directory.path(), new.path()).unwrap();
        assert_eq!((saved.damage, saved.cuts), (vec![], vec![]));
        assert_eq!(answers(new.path()).await, expected, "with {file} damaged");
        // The new journal continues as the old one did.
        let journal = open(new.path()).await;
        sample::work(&journal, 6, 40).await;
        journal.close().await.unwrap();
        assert!(verify(new.path()).unwrap().is_sound());
    }
}

/// A torn log ends early. Salvage keeps what is left and tells what is lost.
#[tokio::test]
async fn what_a_torn_log_still_holds_is_saved() {
    let directory = common::in_memory();
    let expected = made(directory.path()).await;
    let path = directory.path().join("db");
    let mut db = std::fs::read(&path).unwrap();
    let used = db.iter().rposition(|byte| *byte != 0).unwrap();
    db[used - used / 3..].fill(0);
    std::fs::write(&path, db).unwrap();
    remove(directory.path(), "snap.");
    let before = std::fs::read(&path).unwrap();
    let new = common::in_memory();
    let saved = salvage(directory.path(), new.path()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), before, "the damaged journal was not touched");
    assert!(saved.counts.events > 0);
    // Every salvaged event equals the original one.
    for ((question, found), (_, expected)) in answers(new.path()).await.into_iter().zip(&expected) {
        if question.starts_with("event ") && found.as_ref().is_ok_and(|found| found.contains("payload")) {
            let expected = expected.as_ref().unwrap();
            assert!(found.as_ref() == Ok(expected) || !expected.contains("payload"), "{question}");
        }
    }
}

/// Rows cut to half their length and sealed again, so that the engine's checksum does not tell.
mod rows {
    use greylag_journal_sled::StoreError;
    use greylag_store_sled::{Batch, Planner, Reader, Request};

    pub(crate) struct Cut;
    pub(crate) struct Key(pub(crate) Vec<u8>);

    impl Request for Key {
        fn bytes(&self) -> usize {
            0
        }
    }

    impl Planner for Cut {
        type Request = Key;
        type Answer = ();

        fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
            Ok(())
        }

        fn plan(&mut self, keys: Vec<Key>, reader: &Reader, batch: &mut Batch) -> Result<Vec<()>, StoreError> {
            for Key(key) in &keys {
                let row = reader.get(key)?.expect("there is something to damage");
                batch.put(key, &row[..row.len() / 2]);
            }
            Ok(vec![(); keys.len()])
        }
    }
}

fn damage(path: &Path, key: Vec<u8>) {
    let store = greylag_store_sled::Store::open(path, greylag_journal_sled::StoreSettings::test(), rows::Cut).unwrap();
    store.submit(rows::Key(key)).unwrap().wait().unwrap();
    store.close().unwrap();
}

fn numbered(space: u8, numbers: &[u64]) -> Vec<u8> {
    [vec![space], numbers.iter().flat_map(|number| number.to_be_bytes()).collect()].concat()
}

/// A history never continues over a hole; a snapshot behind the hole may cover it.
#[tokio::test]
async fn histories_are_cut_before_damage_or_begin_behind_it() {
    let directory = common::in_memory();
    let journal = open(directory.path()).await;
    let (one, two) = (id("Counter|1"), id("Counter|2"));
    for id in [&one, &two] {
        let mut writer = Writer::claim(&journal, id.clone()).await;
        for number in 1..=6 {
            writer.append(&journal, &[&number.to_string()]).await;
        }
        upsert(&journal.states(), id, 1, &"s".repeat(100_000)).await;
    }
    journal.snapshots().save(snapshot(&two, SeqNr::from(5), vec![7; 200_000])).await.unwrap();
    journal.close().await.unwrap();
    damage(directory.path(), numbered(0x02, &[1, 4]));
    damage(directory.path(), numbered(0x02, &[2, 4]));
    damage(directory.path(), [b"\x20", one.as_str().as_bytes()].concat());
    let found = verify(directory.path()).unwrap();
    let told = ["event 4 of Counter|1", "event 4 of Counter|2", "state of Counter|1"];
    assert!(told.iter().all(|told| found.damage.iter().any(|what| what.contains(told))), "{:?}", found.damage);
    assert!(matches!(renew_guard(directory.path()), Err(Failure::Unsound(_))));

    let new = common::in_memory();
    let saved = salvage(directory.path(), new.path()).unwrap();
    let cuts: Vec<_> =
        saved.cuts.iter().map(|cut| (cut.id.as_str(), cut.deleted_to, cut.highest, cut.highest_before)).collect();
    assert_eq!(cuts, [("Counter|1", 0, 3, 6), ("Counter|2", 4, 6, 6)]);
    let journal = open(new.path()).await;
    assert_eq!(payloads(&read_all(&journal, &one).await), ["1", "2", "3"]);
    assert_eq!(payloads(&read_all(&journal, &two).await), ["5", "6"]);
    let found = journal.snapshots().load(&two, SnapshotCriteria::LATEST).await.unwrap().unwrap();
    assert_eq!((found.seq_nr, found.payload.len()), (SeqNr::from(5), 200_000));
    assert!(journal.states().get(&one).await.unwrap().revision.is_none());
    assert_eq!(journal.states().get(&two).await.unwrap().value.unwrap().payload.len(), 100_000);
    // Damages the head of this id, too: it is rebuilt from the events.
    journal.close().await.unwrap();
    damage(new.path(), [b"\x01", two.as_str().as_bytes()].concat());
    let newer = common::in_memory();
    let saved = salvage(new.path(), newer.path()).unwrap();
    assert_eq!((saved.cuts.len(), saved.cuts[0].deleted_to, saved.cuts[0].highest), (1, 4, 6));
    let journal = open(newer.path()).await;
    let mut writer = Writer::claim(&journal, two).await;
    writer.append(&journal, &["7"]).await;
    assert_eq!(writer.highest, SeqNr::from(7));
}

fn program(arguments: &[&str], directories: &[&Path]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_greylag-journal-sled"));
    let output = command.args(arguments).args(directories).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), said)
}

/// Runs the program that error texts name.
#[tokio::test]
async fn the_program_does_what_the_errors_say() {
    let directory = common::in_memory();
    made(directory.path()).await;
    let (code, said) = program(&["verify"], &[directory.path()]);
    assert!(code == 0 && said.contains("everything is sound"), "{said}");
    let (code, said) = program(&["verify", "--json"], &[directory.path()]);
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (code, found["counts"]["ids"].as_u64(), found["damage"].as_array().map(Vec::len)),
        (0, Some(5), Some(0))
    );
    let (code, said) = program(&["export"], &[directory.path()]);
    assert!(code == 0 && said.starts_with("{\"id\":"), "{said}");

    let damaged = common::in_memory();
    copy(directory.path(), damaged.path());
    std::fs::create_dir_all(damaged.path().join("blobs")).unwrap();
    damage(damaged.path(), numbered(0x02, &[1, 20]));
    remove(damaged.path(), GUARD_FILE);
    let refused = SledJournal::open(damaged.path(), SledJournalSettings::test()).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("`greylag-journal-sled verify DIRECTORY`"), "{refused}");
    let (code, said) = program(&["verify"], &[damaged.path()]);
    assert!(code == 3 && said.contains("damaged: event 20 of Sample|"), "{said}");
    let (code, said) = program(&["verify", "--renew-guard"], &[damaged.path()]);
    assert!(code == 1 && said.contains("more is damaged"), "{said}");
    let new = common::in_memory();
    let (code, said) = program(&["salvage", "--json"], &[damaged.path(), new.path()]);
    let saved: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, saved["cuts"].as_array().map(Vec::len)), (3, Some(1)), "{said}");
    assert_eq!(program(&["verify"], &[new.path()]).0, 0);
    assert_eq!(program(&["mend"], &[new.path()]).0, 2);
}
