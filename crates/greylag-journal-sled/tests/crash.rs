//! Killed under load, again and again: what was acknowledged is there, nothing is torn, no number
//! is missing, and every reopening is clean.
//!
//! The child is this very test binary, started anew with the directory in an environment variable.
//! It writes as fast as it can and prints each acknowledgement; the
//! parent kills it after some of them and compares. Kit case `crash 1` and part of `crash 2`.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Writer, event, id, open, read_all};
use greylag_core::CodecId;
use greylag_persistence::{Journal, NewSnapshot, SeqNr, SnapshotCriteria, SnapshotStore};

const DIRECTORY: &str = "GREYLAG_CRASH_DIRECTORY";
const CYCLES: usize = 25;
const WRITERS: usize = 12;

/// What the child had acknowledged, by id.
#[derive(Debug, Default, Clone, Copy)]
struct Acknowledged {
    highest: u64,
    deleted_to: u64,
}

/// Not a test of its own: the child that the test below starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let journal = open(Path::new(&directory)).await;
    let writers = (0..WRITERS).map(|number| {
        let journal = journal.clone();
        tokio::spawn(async move { write_for_ever(&journal, number).await })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}

async fn write_for_ever(journal: &dyn Journal, number: usize) {
    let mut writer = Writer::claim(journal, id(&format!("Crash|{number}"))).await;
    loop {
        let first = writer.highest.as_u64() + 1;
        let count = first % 7 + 1;
        // Now and then an event of several chunks.
        let size = if first.is_multiple_of(50) { 150_000 } else { 40 };
        let mut append = writer.next(&[]);
        append.events = (first..first + count).map(|seq_nr| event(content(number, seq_nr, size))).collect();
        writer.highest = append.last().unwrap();
        journal.append(append).await.unwrap();
        acknowledge("append", number, writer.highest);
        if first.is_multiple_of(11) {
            let to = SeqNr::saturating(writer.highest.as_u64().saturating_sub(20));
            journal.delete_to(&writer.id, writer.epoch, to).await.unwrap();
            acknowledge("delete", number, to);
        }
    }
}

/// What event `seq_nr` of a writer holds, for the parent to recognise.
fn content(number: usize, seq_nr: u64, size: usize) -> String {
    format!("{number}:{seq_nr}:{}", "x".repeat(size))
}

fn acknowledge(what: &str, number: usize, seq_nr: SeqNr) {
    // One write, so that the lines of the writers do not mix.
    let line = format!("ack {what} {number} {seq_nr}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

fn start(directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Lets the child run for so many acknowledgements, kills it, and takes note of all of them.
fn run_and_kill(directory: &Path, after: usize, acknowledged: &mut BTreeMap<usize, Acknowledged>) {
    let mut child = start(directory);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut note = |line: String| {
        let mut words = line.split_whitespace();
        let (Some("ack"), Some(what), Some(number), Some(seq_nr)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return false;
        };
        // A line cut off by the kill names a smaller number, which was acknowledged too.
        let entry = acknowledged.entry(number.parse().unwrap()).or_default();
        let seq_nr: u64 = seq_nr.parse().unwrap();
        match what {
            "append" => entry.highest = entry.highest.max(seq_nr),
            "delete" => entry.deleted_to = entry.deleted_to.max(seq_nr),
            _ => return false,
        }
        true
    };
    let mut noted = 0;
    while noted < after {
        let line = lines.next().expect("the child runs until it is killed");
        noted += usize::from(note(line));
    }
    child.kill().unwrap();
    lines.for_each(|line| {
        note(line);
    });
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_under_load_it_loses_nothing_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeMap::new();
    for cycle in 0..CYCLES {
        run_and_kill(directory.path(), 40 + 37 * (cycle % 9), &mut acknowledged);
        let journal = open(directory.path()).await;
        for (number, acknowledged) in &mut acknowledged {
            let id = id(&format!("Crash|{number}"));
            let head = journal.head(&id).await.unwrap();
            assert!(head.highest.as_u64() >= acknowledged.highest, "cycle {cycle}: lost of {id}: {acknowledged:?}");
            assert!(head.deleted_to.as_u64() >= acknowledged.deleted_to, "cycle {cycle}: {id} came back");
            let events = read_all(&journal, &id).await;
            let expected = head.deleted_to.as_u64() + 1..=head.highest.as_u64();
            assert!(events.iter().map(|event| event.seq_nr.as_u64()).eq(expected), "cycle {cycle}: a hole in {id}");
            for event in &events {
                let begin = content(*number, event.seq_nr.as_u64(), 0);
                assert!(event.payload.starts_with(begin.as_bytes()), "cycle {cycle}: {id} {}", event.seq_nr);
            }
            // An append is whole or not there: the one that began at `first` has `first % 7 + 1` events.
            assert!(is_end_of_append(head.highest.as_u64()), "cycle {cycle}: {id} torn at {}", head.highest);
            acknowledged.highest = head.highest.as_u64();
        }
        journal.close().await.unwrap();
        assert_eq!(std::fs::read_dir(directory.path().join("blobs")).unwrap().count(), 0);
    }
    assert_eq!(acknowledged.len(), WRITERS);
}

fn is_end_of_append(highest: u64) -> bool {
    let mut end = 0;
    while end < highest {
        let first = end + 1;
        end += first % 7 + 1;
    }
    end == highest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_saving_snapshots_it_keeps_each_whole() {
    let directory = tempfile::tempdir().unwrap();
    let mut saved = 0;
    for cycle in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_saves_snapshots", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let acks = lines.filter_map(|line| line.strip_prefix("ack snapshot 0 ")?.parse::<u64>().ok());
        let mut acks = acks.inspect(|seq_nr| saved = saved.max(*seq_nr));
        acks.by_ref().nth(3 + cycle).expect("the child runs until it is killed");
        child.kill().unwrap();
        acks.for_each(drop);
        child.wait().unwrap();
        let journal = open(directory.path()).await;
        let found = journal.snapshots().load(&id("Crash|0"), SnapshotCriteria::LATEST).await.unwrap().unwrap();
        assert!(found.seq_nr.as_u64() >= saved, "cycle {cycle}: lost {saved}, found {}", found.seq_nr);
        assert!(found.payload.iter().all(|byte| u64::from(*byte) == found.seq_nr.as_u64() % 251), "mixed chunks");
        saved = found.seq_nr.as_u64();
        journal.close().await.unwrap();
    }
}

/// Not a test of its own: the child that the test above starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_saves_snapshots() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let snapshots = open(Path::new(&directory)).await.snapshots();
    let latest = snapshots.load(&id("Crash|0"), SnapshotCriteria::LATEST).await.unwrap();
    let mut seq_nr = latest.map_or(SeqNr::FIRST, |snapshot| snapshot.seq_nr);
    loop {
        // The same number is saved twice, the second time over the first.
        for _ in 0..2 {
            let fill = u8::try_from(seq_nr.as_u64() % 251).unwrap();
            let snapshot = NewSnapshot {
                id: id("Crash|0"),
                seq_nr,
                codec_id: CodecId::JSON,
                manifest: "state".into(),
                schema_version: 1,
                payload: vec![fill; 2_500_000].into(),
                metadata: Default::default(),
            };
            snapshots.save(snapshot).await.unwrap();
            acknowledge("snapshot", 0, seq_nr);
        }
        snapshots.delete_matching(&id("Crash|0"), SnapshotCriteria::up_to(seq_nr.previous())).await.unwrap();
        seq_nr = seq_nr.next().unwrap();
    }
}
