//! Durable states and offsets under kill -9, as `crash.rs` does it for events: what was acknowledged is
//! there and whole, the feed shows the latest change of each id once, and every reopening is clean.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{id, open};
use greylag_core::CodecId;
use greylag_journal_sled::SledJournal;
use greylag_persistence::{
    ChangesOf, EncodedValue, Journal, Offset, OffsetStore, OwnerEpoch, Position, Processed, Revision, SLICES, SeqNr,
    StateStore, StateWrite, WriterUuid,
};

const DIRECTORY: &str = "GREYLAG_CRASH_STORES_DIRECTORY";
const CYCLES: usize = 12;
const STATES: usize = 6;

fn acknowledge(what: &str, number: u64) {
    // One write, so that the lines of the tasks do not mix.
    std::io::stdout().write_all(format!("ack {what} {number}\n").as_bytes()).unwrap();
}

/// Not a test of its own: the child that the test below starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let journal = open(Path::new(&directory)).await;
    let tasks = (0..STATES).map(|number| tokio::spawn(write_for_ever(journal.clone(), number)));
    let tasks: Vec<_> = tasks.chain([tokio::spawn(save_for_ever(journal.clone()))]).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn write_for_ever(journal: SledJournal, number: usize) {
    let (id, states) = (id(&format!("Crash|{number}")), journal.states());
    let mut revision = states.get(&id).await.unwrap().revision;
    loop {
        revision = revision.next().unwrap();
        let write = StateWrite { id: id.clone(), revision, generation: None, writer_uuid: WriterUuid::from_u128(1) };
        if is_deletion(revision) {
            states.delete(write).await.unwrap();
        } else {
            // Now and then a state of several chunks.
            let size = if revision.as_u64().is_multiple_of(5) { 150_000 } else { 40 };
            let payload = format!("{number}:{revision}:{}", "x".repeat(size)).into();
            let manifest = "crash".to_owned();
            let value = EncodedValue { codec_id: CodecId::JSON, manifest, schema_version: 1, payload };
            states.upsert(write, value, Some("crash".to_owned())).await.unwrap();
        }
        acknowledge(&number.to_string(), revision.as_u64());
    }
}

fn is_deletion(revision: Revision) -> bool {
    revision.as_u64().is_multiple_of(7)
}

async fn save_for_ever(journal: SledJournal) {
    let offsets = journal.offsets();
    let mut ordinal = offsets.load("crash", 0..=SLICES - 1).await.unwrap().last().map_or(0, ordinal_of);
    let owned = offsets.claim("crash", 0..=SLICES - 1).await.unwrap();
    acknowledge("epoch", owned.epochs[&0].as_u64());
    loop {
        ordinal += 1;
        let (seq_nr, position) = (SeqNr::saturating(ordinal), Position::Ordinal(ordinal));
        // Two slices in one save: both or neither.
        let ids = ["Crash|0", "Crash|1"].map(id);
        let processed = ids.map(|id| Processed { id, seq_nr, position });
        offsets.save(&owned, &processed).await.unwrap();
        acknowledge("offset", ordinal);
    }
}

fn ordinal_of(processed: &Processed) -> u64 {
    match processed.position {
        Position::Ordinal(ordinal) => ordinal,
        Position::Timestamp(_) => panic!("a foreign position"),
    }
}

/// Lets the child run for so many acknowledgements, kills it, and keeps the greatest of each kind.
fn run_and_kill(directory: &Path, after: usize, acknowledged: &mut BTreeMap<String, u64>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut acks = lines.filter_map(|line| {
        let (what, number) = line.strip_prefix("ack ")?.split_once(' ')?;
        // A line cut off by the kill names a smaller number, which was acknowledged too.
        let number: u64 = number.parse().ok()?;
        let greatest = acknowledged.entry(what.to_owned()).or_default();
        *greatest = number.max(*greatest);
        Some(())
    });
    acks.by_ref().nth(after).expect("the child runs until it is killed");
    child.kill().unwrap();
    acks.for_each(drop);
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_under_load_it_keeps_every_state_and_offset() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeMap::new();
    for cycle in 0..CYCLES {
        run_and_kill(directory.path(), 30 + 31 * (cycle % 7), &mut acknowledged);
        let journal = open(directory.path()).await;
        check_states(&journal, cycle, &acknowledged).await;
        check_offsets(&journal, cycle, &acknowledged).await;
        journal.close().await.unwrap();
        assert_eq!(std::fs::read_dir(directory.path().join("blobs")).unwrap().count(), 0);
    }
    assert_eq!(acknowledged.len(), STATES + 2);
}

async fn check_states(journal: &SledJournal, cycle: usize, acknowledged: &BTreeMap<String, u64>) {
    let states = journal.states();
    let feed = states.changes(&ChangesOf::Tag("crash".to_owned()), &Offset::None, 1000).await.unwrap();
    let mut written = 0;
    for number in 0..STATES {
        let state = states.get(&id(&format!("Crash|{number}"))).await.unwrap();
        let at_least = acknowledged.get(&number.to_string()).copied().unwrap_or_default();
        assert!(state.revision.as_u64() >= at_least, "cycle {cycle}: {number} lost {at_least}: {}", state.revision);
        if state.revision.is_none() {
            continue;
        }
        written += 1;
        let begin = (!is_deletion(state.revision)).then(|| format!("{number}:{}:", state.revision));
        let found = state.value.as_ref().map(|value| value.payload[..value.payload.len().min(20)].to_vec());
        let found = found.map(|found| String::from_utf8(found).unwrap());
        assert_eq!(found.is_some(), begin.is_some(), "cycle {cycle}: {number} at {}", state.revision);
        assert!(found.unwrap_or_default().starts_with(&begin.unwrap_or_default()), "cycle {cycle}: {number}");
        let changes: Vec<_> = feed.iter().filter(|change| change.state.id == state.id).collect();
        assert_eq!(changes.len(), 1, "cycle {cycle}: {number} in the feed");
        assert_eq!(changes[0].state, state, "cycle {cycle}");
    }
    assert_eq!(feed.len(), written, "cycle {cycle}");
}

async fn check_offsets(journal: &SledJournal, cycle: usize, acknowledged: &BTreeMap<String, u64>) {
    let offsets = journal.offsets();
    let loaded = offsets.load("crash", 0..=SLICES - 1).await.unwrap();
    let saved: Vec<_> = loaded.iter().map(ordinal_of).collect();
    let at_least = acknowledged.get("offset").copied().unwrap_or_default();
    assert!(saved.first().copied().unwrap_or_default() >= at_least, "cycle {cycle}: {saved:?} lost {at_least}");
    assert!(saved.windows(2).all(|pair| pair[0] == pair[1]), "cycle {cycle}: a save by halves: {saved:?}");
    let epoch = offsets.claim("other", 0..=0).await.unwrap().epochs[&0];
    assert_eq!(epoch, OwnerEpoch::from_u64(cycle as u64 + 1));
    let epoch = offsets.claim("crash", 0..=0).await.unwrap().epochs[&0].as_u64();
    assert!(epoch > acknowledged.get("epoch").copied().unwrap_or_default(), "cycle {cycle}: an epoch came back");
}
