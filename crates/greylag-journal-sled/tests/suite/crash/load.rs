//! The load of the child: events, deletions, claims, snapshots, durable states and offsets, all at once.

use std::io::Write;
use std::path::Path;

use greylag_core::CodecId;
use greylag_journal_sled::SledJournal;
use greylag_persistence::{
    EncodedValue, Journal, OffsetStore, Position, Processed, Revision, SLICES, SeqNr, SnapshotCriteria, SnapshotStore,
    StateStore, StateWrite, WriterUuid,
};

use crate::common::{Writer, event, id, open, snapshot};

pub(crate) const WRITERS: usize = 8;
pub(crate) const STATES: usize = 4;
pub(crate) const SNAPSHOT_BYTES: usize = 300_000;

/// Prints a line in one write, so that lines of several tasks do not mix.
pub(crate) fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn acknowledge(what: &str, number: usize, value: u64) {
    say(&format!("ack {what} {number} {value}"));
}

/// Runs the load until the process is killed.
pub(crate) async fn run(directory: &Path) {
    say("begin open");
    let journal = open(directory).await;
    let mut tasks = Vec::new();
    for number in 0..WRITERS {
        tasks.push(tokio::spawn(append_for_ever(journal.clone(), number)));
    }
    for number in 0..STATES {
        tasks.push(tokio::spawn(write_states_for_ever(journal.clone(), number)));
    }
    tasks.push(tokio::spawn(save_offsets_for_ever(journal.clone())));
    tasks.push(tokio::spawn(save_snapshots_for_ever(journal)));
    for task in tasks {
        task.await.unwrap();
    }
}

/// The payload of event `seq_nr` of a writer.
pub(crate) fn content(number: usize, seq_nr: u64, size: usize) -> String {
    format!("{number}:{seq_nr}:{}", "x".repeat(size))
}

/// The number of events in the append that begins at `first`.
pub(crate) fn events_of_append(first: u64) -> u64 {
    first % 7 + 1
}

async fn append_for_ever(journal: SledJournal, number: usize) {
    let mut writer = Writer::claim(&journal, id(&format!("Crash|{number}"))).await;
    acknowledge("epoch", number, writer.epoch.as_u64());
    loop {
        let first = writer.highest.as_u64() + 1;
        // An append whose first number is a multiple of 50 has events of several chunks.
        let size = if first.is_multiple_of(50) { 150_000 } else { 40 };
        let mut append = writer.next(&[]);
        append.events = (first..first + events_of_append(first)).map(|at| event(content(number, at, size))).collect();
        writer.highest = append.last().unwrap();
        journal.append(append).await.unwrap();
        acknowledge("append", number, writer.highest.as_u64());
        if first.is_multiple_of(3) {
            let to = SeqNr::saturating(writer.highest.as_u64().saturating_sub(20));
            say("begin delete");
            journal.delete_to(&writer.id, writer.epoch, to).await.unwrap();
            acknowledge("delete", number, to.as_u64());
        }
    }
}

pub(crate) fn is_deletion(revision: Revision) -> bool {
    revision.as_u64().is_multiple_of(7)
}

async fn write_states_for_ever(journal: SledJournal, number: usize) {
    let (id, states) = (id(&format!("Crash|{number}")), journal.states());
    let mut revision = states.get(&id).await.unwrap().revision;
    loop {
        revision = revision.next().unwrap();
        let write = StateWrite { id: id.clone(), revision, generation: None, writer_uuid: WriterUuid::from_u128(1) };
        if is_deletion(revision) {
            states.delete(write).await.unwrap();
        } else {
            let size = if revision.as_u64().is_multiple_of(20) { 150_000 } else { 40 };
            let payload = content(number, revision.as_u64(), size).into();
            let manifest = "crash".to_owned();
            let value = EncodedValue { codec_id: CodecId::JSON, manifest, schema_version: 1, payload };
            states.upsert(write, value, Some("crash".to_owned())).await.unwrap();
        }
        acknowledge("state", number, revision.as_u64());
    }
}

pub(crate) fn ordinal_of(processed: &Processed) -> u64 {
    match processed.position {
        Position::Ordinal(ordinal) => ordinal,
        Position::Timestamp(_) => panic!("a foreign position"),
    }
}

async fn save_offsets_for_ever(journal: SledJournal) {
    let offsets = journal.offsets();
    let mut ordinal = offsets.load("crash", 0..=SLICES - 1).await.unwrap().last().map_or(0, ordinal_of);
    // A range with the slices of both ids, but without a thousand others.
    let owned = offsets.claim("crash", 0..=SLICES / 2 - 1).await.unwrap();
    let rest = offsets.claim("crash", SLICES / 2..=SLICES - 1).await.unwrap();
    acknowledge("owner", 0, owned.epochs[&0].as_u64());
    let mut all = owned;
    all.epochs.extend(rest.epochs);
    loop {
        ordinal += 1;
        let (seq_nr, position) = (SeqNr::saturating(ordinal), Position::Ordinal(ordinal));
        // Two slices in one save, which must be atomic.
        let processed = ["Crash|0", "Crash|1"].map(|name| Processed { id: id(name), seq_nr, position });
        offsets.save(&all, &processed).await.unwrap();
        acknowledge("offset", 0, ordinal);
    }
}

/// The value of every byte of the snapshot with this number.
pub(crate) fn fill(seq_nr: SeqNr) -> u8 {
    u8::try_from(seq_nr.as_u64() % 251).unwrap()
}

async fn save_snapshots_for_ever(journal: SledJournal) {
    let (id, snapshots) = (id("Crash|0"), journal.snapshots());
    let latest = snapshots.load(&id, SnapshotCriteria::LATEST).await.unwrap();
    let mut seq_nr = latest.map_or(SeqNr::FIRST, |snapshot| snapshot.seq_nr);
    loop {
        // Each number is saved twice, so that the second save replaces the first.
        for _ in 0..2 {
            say("begin save");
            snapshots.save(snapshot(&id, seq_nr, vec![fill(seq_nr); SNAPSHOT_BYTES])).await.unwrap();
            acknowledge("snapshot", 0, seq_nr.as_u64());
        }
        snapshots.delete_matching(&id, SnapshotCriteria::up_to(seq_nr.previous())).await.unwrap();
        acknowledge("forget", 0, seq_nr.previous().as_u64());
        seq_nr = seq_nr.next().unwrap();
    }
}
