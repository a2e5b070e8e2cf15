//! Durable events per second. Every entity appends one event, waits until it is durable, and appends the
//! next. The rows are then written once more without a journal; see [`Bare`].

use std::time::Instant;

use futures::future::join_all;
use greylag_journal_postgres::{PostgresJournal, PostgresStats};
use greylag_persistence::Journal;
use greylag_testkit::postgres::Postgres;

use crate::bare::{Bare, Kind};
use crate::{Failure, LANES, claim, event, median, open, say};

const PAYLOAD_BYTES: usize = 300;
/// Pairs of entities at once and events of each: enough events that new connections and empty tables matter little.
const LOADS: [(u64, u64); 4] = [(1, 5_000), (32, 2_000), (1_000, 300), (10_000, 30)];
const RUNS: usize = 9;

pub(crate) async fn run(server: &Postgres, only: Option<u64>) -> Result<(), Failure> {
    say(&format!(
        "durable events through PostgreSQL, {PAYLOAD_BYTES} byte payloads, {LANES} lanes; medians of {RUNS} runs"
    ))?;
    for (entities, events) in LOADS.into_iter().filter(|(entities, _)| only.is_none_or(|only| only == *entities)) {
        let mut runs = Vec::new();
        for run in 0..RUNS {
            runs.push(one(server, &format!("durable_{entities}_{run}"), entities, events).await?);
        }
        let of = |figure: fn(&Run) -> f64| median(&mut runs.iter().map(figure).collect::<Vec<_>>());
        say(&format!(
            "  {entities:>6} entities {:>7.0} events/s   INSERT VALUES {:>7.0} ({:.2})   INSERT of arrays {:>7.0} ({:.2})   COPY {:>7.0} \
             ({:.2})   {:.0} appends a statement of {:.1} ms",
            of(|run| run.ours),
            of(|run| run.values),
            of(|run| run.ours / run.values),
            of(|run| run.arrays),
            of(|run| run.ours / run.arrays),
            of(|run| run.copy),
            of(|run| run.ours / run.copy),
            of(|run| run.stats.appends_per_statement()),
            of(|run| run.stats.mean_commit().as_secs_f64() * 1e3),
        ))?;
    }
    Ok(())
}

/// Events per second of one run, by each way of writing.
struct Run {
    ours: f64,
    values: f64,
    arrays: f64,
    copy: f64,
    stats: PostgresStats,
}

async fn one(server: &Postgres, schema: &str, entities: u64, events: u64) -> Result<Run, Failure> {
    let journal = open(server, schema).await?;
    let (ours, stats) = append(&journal, entities, events).await?;
    let bare = Bare::connect(server, schema, entities).await?;
    let rows = stats.appends_per_statement().round() as usize;
    let values = bare.insert(Kind::Values, rows).await?;
    let arrays = bare.insert(Kind::Arrays, rows).await?;
    let copy = bare.copy().await?;
    journal.close().await?;
    server.psql(&format!("drop schema {schema} cascade"))?;
    Ok(Run { ours, values, arrays, copy, stats })
}

/// Appends by the journal; answers events per second and the journal's counters.
pub(crate) async fn append(
    journal: &PostgresJournal,
    entities: u64,
    events: u64,
) -> Result<(f64, PostgresStats), Failure> {
    let writers = claim(journal, 0..entities).await;
    let began_at = Instant::now();
    let running = writers.into_iter().map(|mut writer| {
        let journal = journal.clone();
        tokio::spawn(async move {
            for number in 0..events {
                writer.highest = number;
                journal.append(writer.next(vec![event(PAYLOAD_BYTES)])).await.expect("no other writer");
            }
        })
    });
    for entity in join_all(running.collect::<Vec<_>>()).await {
        entity?;
    }
    Ok(((entities * events) as f64 / began_at.elapsed().as_secs_f64(), journal.stats()))
}
