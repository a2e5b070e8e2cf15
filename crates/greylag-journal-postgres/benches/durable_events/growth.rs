//! The same work on tables that grow tenfold at each step: appends of 1,000 entities, and recoveries of
//! entities of 100 events that were written long ago.

use std::time::{Duration, Instant};

use futures::StreamExt;
use greylag_journal_postgres::PostgresJournal;
use greylag_persistence::{Journal, ReadRange};
use greylag_testkit::postgres::Postgres;

use crate::{Failure, Writer, claim, event, fill, id, open, say};

const PAYLOAD_BYTES: usize = 100;
const EVENTS_EACH: u64 = 100;
const SMALLEST: u64 = 100_000;
const WRITERS: u64 = 1_000;
const APPENDS_EACH: u64 = 40;
const READS: u64 = 2_000;

pub(crate) async fn run(server: &Postgres, largest: u64) -> Result<(), Failure> {
    let journal = open(server, "growth").await?;
    let (mut entities, mut size) = (0, SMALLEST);
    loop {
        let size_now = size.min(largest);
        let wanted = size_now / EVENTS_EACH;
        let filled_at = Instant::now();
        let writers = claim(&journal, entities..wanted).await;
        let filled = writers.len() as u64 * EVENTS_EACH;
        fill(&journal, writers, EVENTS_EACH, PAYLOAD_BYTES).await;
        entities = wanted;
        let filling = filled as f64 / filled_at.elapsed().as_secs_f64();
        server.psql("checkpoint")?;
        let disk = disk(server)?;
        // The measured appends go to new ids after those that are read. Their few events stay.
        let base = 1_000_000_000 + size_now;
        let appending = append(&journal, claim(&journal, base..base + WRITERS).await).await?;
        let (reading, median) = read(&journal, entities).await;
        say(&format!(
            "  {size_now:>9} events: {appending:>7.0} events/s by {WRITERS} entities; {reading:>7.0} events/s replayed, an entity of \
             {EVENTS_EACH} in {median:.1?} (median); filled at {filling:.0} events/s; disk {disk}",
        ))?;
        if size >= largest {
            return Ok(journal.close().await?);
        }
        size *= 10;
    }
}

async fn append(journal: &PostgresJournal, writers: Vec<Writer>) -> Result<f64, Failure> {
    let began_at = Instant::now();
    let running: Vec<_> = writers
        .into_iter()
        .map(|mut writer| {
            let journal = journal.clone();
            tokio::spawn(async move {
                for number in 0..APPENDS_EACH {
                    writer.highest = number;
                    journal.append(writer.next(vec![event(PAYLOAD_BYTES)])).await.expect("no other writer");
                }
            })
        })
        .collect();
    for writer in running {
        writer.await?;
    }
    Ok((WRITERS * APPENDS_EACH) as f64 / began_at.elapsed().as_secs_f64())
}

/// Replays histories spread over all ids, fifty at a time.
async fn read(journal: &PostgresJournal, entities: u64) -> (f64, Duration) {
    let reads = READS.min(entities);
    let began_at = Instant::now();
    let reading = (0..reads).map(|place| async move {
        let asked_at = Instant::now();
        let page = journal.read(&id(place * (entities / reads)), ReadRange::all()).await.expect("it is there");
        assert_eq!(page.records.len() as u64, EVENTS_EACH);
        asked_at.elapsed()
    });
    let mut times: Vec<Duration> = futures::stream::iter(reading).buffer_unordered(50).collect().await;
    times.sort();
    ((reads * EVENTS_EACH) as f64 / began_at.elapsed().as_secs_f64(), times[times.len() / 2])
}

fn disk(server: &Postgres) -> Result<String, Failure> {
    let sql = "select pg_size_pretty(pg_table_size('growth.event')) || ' of events, ' ||
        pg_size_pretty(pg_indexes_size('growth.event')) || ' of their indexes, ' ||
        pg_size_pretty(pg_total_relation_size('growth.entity')) || ' of heads'";
    Ok(server.psql(sql)?.trim().to_owned())
}
