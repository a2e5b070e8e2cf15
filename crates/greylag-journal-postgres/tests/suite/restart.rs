//! The server is killed, crashed and restarted in order, all under load and again and again: acknowledged events are
//! there, once; no append is torn, no number is missing, the same handle goes on, and a new one finds everything in
//! order. Kit cases `crash 1` to `crash 3`. A long run with more restarts:
//!
//! ```sh
//! GREYLAG_RESTARTS=500 cargo test --release -p greylag-journal-postgres --test suite restart:: -- --nocapture
//! ```

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Writer, event, id, open, read_all, with_server};
use greylag_core::CodecId;
use greylag_journal_postgres::PostgresJournal;
use greylag_persistence::{
    AppendError, EncodedValue, Health, Journal, Metadata, NewSnapshot, Revision, SeqNr, SnapshotCriteria,
    SnapshotStore, StateStore, StateWrite, WriterUuid,
};
use greylag_testkit::postgres::{End, Postgres};
use tokio::sync::watch;
use tokio::task::JoinSet;

const WRITERS: usize = 12;

/// How many times the server is killed; `GREYLAG_RESTARTS` sets it for a long run.
fn cycles() -> u64 {
    std::env::var("GREYLAG_RESTARTS").ok().and_then(|cycles| cycles.parse().ok()).unwrap_or(5)
}

/// Answers that one writer got.
#[derive(Debug, Default)]
struct Written {
    /// Contents of acknowledged events, by sequence number.
    stored: BTreeMap<u64, String>,
    /// Contents of appends answered as not stored.
    refused: Vec<String>,
    deleted_to: u64,
    snapshot: u64,
    revision: u64,
}

/// Appends until told to end; after an unknown outcome claims anew, as recovery does.
async fn write(journal: PostgresJournal, number: usize, acks: watch::Sender<u64>, end: Arc<AtomicBool>) -> Written {
    let (mut written, mut tries) = (Written::default(), 0_u64);
    let mut writer = None;
    while !end.load(Ordering::Relaxed) {
        let Some(claimed) = writer.as_mut() else {
            writer = claim(&journal, number).await;
            continue;
        };
        tries += 1;
        let first = claimed.highest.as_u64() + 1;
        let contents: Vec<String> = (0..tries % 4 + 1).map(|place| format!("{number}:{tries}:{place}")).collect();
        let mut append = claimed.next(&[]);
        append.events = contents.iter().map(|content| event(content.as_str())).collect();
        let last = append.last().unwrap();
        match journal.append(append).await {
            Ok(_) => {
                claimed.highest = last;
                written.stored.extend((first..).zip(contents));
                acks.send_modify(|acks| *acks += 1);
                other_writes(&journal, claimed, &mut written).await;
            }
            Err(AppendError::Unknown(_)) => writer = None,
            Err(AppendError::NotStored(_)) => {
                written.refused.extend(contents);
                writer = None;
            }
            Err(error) => panic!("there is no other writer, and the disk has room: {error:?}"),
        }
    }
    written
}

async fn claim(journal: &PostgresJournal, number: usize) -> Option<Writer> {
    let id = id(&format!("Crash|{number}"));
    let seen = journal.head(&id).await.ok()?.epoch;
    let uuid = WriterUuid::from_u128(uuid::Uuid::new_v4().as_u128());
    let claim = journal.claim(&id, uuid, greylag_persistence::Under::Seen(seen)).await.ok()?;
    Some(Writer { id, uuid, epoch: claim.epoch, highest: claim.highest })
}

/// Deletes, saves snapshots and writes states, now and then.
async fn other_writes(journal: &PostgresJournal, writer: &Writer, written: &mut Written) {
    let highest = writer.highest.as_u64();
    if highest.is_multiple_of(5) {
        let to = SeqNr::saturating(highest.saturating_sub(20));
        if journal.delete_to(&writer.id, writer.epoch, to).await.is_ok() {
            written.deleted_to = written.deleted_to.max(to.as_u64());
        }
    }
    if highest.is_multiple_of(7) {
        let snapshot = NewSnapshot {
            id: writer.id.clone(),
            seq_nr: writer.highest,
            codec_id: CodecId::JSON,
            manifest: "state".into(),
            schema_version: 1,
            payload: vec![u8::try_from(highest % 251).unwrap(); 50_000].into(),
            metadata: Metadata::new(),
        };
        if journal.snapshots().save(snapshot).await.is_ok() {
            written.snapshot = written.snapshot.max(highest);
        }
    }
    if highest.is_multiple_of(3) {
        let states = journal.states();
        let Ok(row) = states.get(&writer.id).await else { return };
        assert!(row.revision.as_u64() >= written.revision, "an acknowledged state is lost: {row:?}, {written:?}");
        let revision = row.revision.next().unwrap_or(Revision::MAX);
        let write = StateWrite { id: writer.id.clone(), revision, generation: None, writer_uuid: writer.uuid };
        let payload = revision.to_string().into();
        let value = EncodedValue { codec_id: CodecId::JSON, manifest: "state".into(), schema_version: 1, payload };
        if states.upsert(write, value, None).await.is_ok() {
            written.revision = revision.as_u64();
        }
    }
}

#[test]
fn kills_under_load_lose_and_duplicate_no_event() {
    with_server(async |mut server| {
        let journal = open(&server).await;
        let (acks, mut acknowledged) = watch::channel(0_u64);
        let end = Arc::new(AtomicBool::new(false));
        let mut writers = JoinSet::new();
        for number in 0..WRITERS {
            let running = write(journal.clone(), number, acks.clone(), end.clone());
            writers.spawn(async move { (number, running.await) });
        }
        let (mut took, mut ends) = (Vec::new(), BTreeMap::<String, u64>::new());
        let mut restart = async |server: &mut Postgres, end: End| {
            let began_at = Instant::now();
            tokio::task::block_in_place(|| server.restart_after(end).unwrap());
            took.push(began_at.elapsed());
            *ends.entry(format!("{end:?}")).or_default() += 1;
        };
        for cycle in 0..cycles() {
            let enough = *acknowledged.borrow() + 100 + 37 * (cycle % 9);
            acknowledged.wait_for(|acks| *acks >= enough).await.unwrap();
            // The server ends in the midst of statements, now and then also while it recovers.
            let end = [End::Killed, End::Orderly, End::Crash][usize::try_from(cycle % 3).unwrap()];
            restart(&mut server, end).await;
            if cycle % 5 == 2 {
                restart(&mut server, End::Killed).await;
            }
            reopens_clean(&server, usize::try_from(cycle).unwrap() % WRITERS).await;
        }
        took.sort();
        let (half, longest) = (took[took.len() / 2], took[took.len() - 1]);
        end.store(true, Ordering::Relaxed);
        let mut stored = 0;
        while let Some(written) = writers.join_next().await {
            let (number, written) = written.unwrap();
            stored += written.stored.len();
            check(&journal, number, &written).await;
        }
        assert_eq!(journal.health(), Health::Up);
        let stats = journal.stats();
        journal.close().await.unwrap();
        let done = format!(
            "{stored} events acknowledged over {ends:?} restarts, each {half:.1?} (median), {longest:.1?} (longest), {:.1?} in all; {} \
             statements without an answer, {} appends of unknown outcome, {} certainly not stored\n",
            took.iter().sum::<Duration>(),
            stats.failed_statements,
            stats.unknown,
            stats.not_stored,
        );
        std::io::stdout().write_all(done.as_bytes()).unwrap();
    });
}

/// Another journal finds a history whole, while others are being written.
async fn reopens_clean(server: &Postgres, number: usize) {
    let journal = open(server).await;
    let id = id(&format!("Crash|{number}"));
    let head = journal.head(&id).await.unwrap();
    // Events may be deleted meanwhile, so the first number is not checked.
    let events = read_all(&journal, &id).await;
    let numbers: Vec<u64> = events.iter().map(|event| event.seq_nr.as_u64()).collect();
    assert!(numbers.is_sorted_by(|left, right| left < right), "{id}: {numbers:?}");
    assert!(numbers.last().copied().unwrap_or(0) >= head.highest.as_u64(), "{id}: {head:?}, {numbers:?}");
    journal.close().await.unwrap();
}

async fn check(journal: &PostgresJournal, number: usize, written: &Written) {
    let id = id(&format!("Crash|{number}"));
    let head = journal.head(&id).await.unwrap();
    let (highest, deleted_to) = (head.highest.as_u64(), head.deleted_to.as_u64());
    let acknowledged = written.stored.keys().next_back().copied().unwrap_or(0);
    assert!(highest >= acknowledged, "lost of {id}: {highest} is stored, {acknowledged} acknowledged");
    assert!(deleted_to >= written.deleted_to, "{id} came back");
    let events = read_all(journal, &id).await;
    assert!(events.iter().map(|event| event.seq_nr.as_u64()).eq(deleted_to + 1..=highest), "a hole in {id}");
    let mut seen = BTreeMap::new();
    for event in &events {
        let content = String::from_utf8(event.payload.to_vec()).unwrap();
        let expected = written.stored.get(&event.seq_nr.as_u64());
        assert!(expected.is_none_or(|expected| *expected == content), "{id} {}: {content}", event.seq_nr);
        assert!(!written.refused.contains(&content), "{content} was said not to be stored");
        let twice = seen.insert(content.clone(), event.seq_nr);
        assert_eq!(twice, None, "{content} is stored twice");
    }
    // Appends are atomic: the events of a try, `tries % 4 + 1` of them, stand side by side.
    for run in events.chunk_by(|left, right| tries(&left.payload) == tries(&right.payload)) {
        let whole = tries(&run[0].payload) % 4 + 1;
        let cut = run[0].seq_nr.as_u64() == deleted_to + 1;
        assert!(run.len() as u64 == whole || cut, "{id} torn at {}", run[0].seq_nr);
    }
    let snapshot = journal.snapshots().load(&id, SnapshotCriteria::LATEST).await.unwrap();
    let saved = snapshot.as_ref().map_or(0, |snapshot| snapshot.seq_nr.as_u64());
    assert!(saved >= written.snapshot, "snapshot {} of {id} is lost", written.snapshot);
    assert!(journal.states().get(&id).await.unwrap().revision.as_u64() >= written.revision);
}

fn tries(payload: &[u8]) -> u64 {
    std::str::from_utf8(payload).unwrap().split(':').nth(1).unwrap().parse().unwrap()
}
