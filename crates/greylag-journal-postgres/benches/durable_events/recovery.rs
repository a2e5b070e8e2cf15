//! Recovery of many entities: claim, snapshot, and every page, as an entity's recovery asks for them, fifty at a time;
//! then the pages alone, and their memory.

use std::time::{Duration, Instant};

use futures::StreamExt;
use greylag_journal_postgres::PostgresJournal;
use greylag_persistence::{Journal, ReadRange, SnapshotCriteria, SnapshotStore, Under, WriterUuid};
use greylag_testkit::postgres::Postgres;

use crate::{Failure, claim, fill, id, open, say};

const PAYLOAD_BYTES: usize = 100;
/// Recoveries under way at once (`max_concurrent_recoveries`).
const AT_ONCE: usize = 50;

pub(crate) async fn run(server: &Postgres, entities: u64, events: u64) -> Result<(), Failure> {
    let journal = open(server, "recovery").await?;
    fill(&journal, claim(&journal, 0..entities).await, events, PAYLOAD_BYTES).await;
    let all = (entities * events) as f64;
    let before = memory("VmRSS")?;
    let (took, times, peak) = recover_all(&journal, entities, events).await?;
    say(&format!(
        "recovery of {entities} entities of {events} events of {PAYLOAD_BYTES} bytes, {AT_ONCE} at a time: {took:.1?}, \
         {:.0} entities/s, {:.0} events/s; one takes {:.1?} (median), {:.1?} (p99); resident set {} MiB at the most, {} before",
        entities as f64 / took.as_secs_f64(),
        all / took.as_secs_f64(),
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        peak >> 20,
        before >> 20,
    ))?;
    let replayed_at = Instant::now();
    let pages = (0..entities).map(|number| read_all(&journal, number));
    let read: u64 = futures::stream::iter(pages).buffer_unordered(AT_ONCE).collect::<Vec<u64>>().await.iter().sum();
    say(&format!("replay alone: {:.0} events/s", read as f64 / replayed_at.elapsed().as_secs_f64()))?;
    one_long_history(&journal, entities).await?;
    Ok(journal.close().await?)
}

/// Recovers all; answers the time in all, the time of each, and the largest resident set.
async fn recover_all(
    journal: &PostgresJournal,
    entities: u64,
    events: u64,
) -> Result<(Duration, Vec<Duration>, usize), Failure> {
    std::fs::write("/proc/self/clear_refs", "5")?;
    let began_at = Instant::now();
    let recoveries = (0..entities).map(|number| async move {
        let (id, uuid, began_at) = (id(number), WriterUuid::from_u128(1 << 100), Instant::now());
        let seen = journal.head(&id).await.expect("it is there").epoch;
        let claim = journal.claim(&id, uuid, Under::Seen(seen)).await.expect("no other writer");
        assert_eq!(claim.highest.as_u64(), events);
        let snapshot = journal.snapshots().load(&id, SnapshotCriteria::LATEST).await;
        assert_eq!(snapshot.expect("the table is there"), None);
        assert_eq!(read_all(journal, number).await, events);
        began_at.elapsed()
    });
    let mut times: Vec<Duration> = futures::stream::iter(recoveries).buffer_unordered(AT_ONCE).collect().await;
    let took = began_at.elapsed();
    times.sort();
    Ok((took, times, memory("VmHWM")?))
}

async fn one_long_history(journal: &PostgresJournal, number: u64) -> Result<(), Failure> {
    const EVENTS: u64 = 200_000;
    fill(journal, claim(journal, number..number + 1).await, EVENTS, PAYLOAD_BYTES).await;
    let before = memory("VmRSS")?;
    std::fs::write("/proc/self/clear_refs", "5")?;
    let began_at = Instant::now();
    let read = read_all(journal, number).await;
    say(&format!(
        "replay of one history of {read} events, page by page: {:.0} events/s; resident set {} MiB at the most, {} before",
        read as f64 / began_at.elapsed().as_secs_f64(),
        memory("VmHWM")? >> 20,
        before >> 20,
    ))
}

/// Reads every page of one history, keeping none; answers the number of events.
async fn read_all(journal: &PostgresJournal, number: u64) -> u64 {
    let (id, mut count, mut range) = (id(number), 0, ReadRange::all());
    (range.max_events, range.max_bytes) = (1000, 1 << 20);
    loop {
        let page = journal.read(&id, range).await.expect("it is there");
        count += page.records.len() as u64;
        match page.next {
            Some(next) => range.from = next,
            None => return count,
        }
    }
}

/// The value of a line of `/proc/self/status`, in bytes.
fn memory(name: &str) -> Result<usize, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).ok_or("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? << 10)
}
