//! The journal on PostgreSQL: durable events per second beside plain `INSERT` and `COPY` of the same rows, recovery,
//! and both again as the tables grow.
//!
//! ```sh
//! cargo bench -p greylag-journal-postgres                        # durable events, then recovery
//! cargo bench -p greylag-journal-postgres -- durable 1000        # at 1,000 entities only
//! cargo bench -p greylag-journal-postgres -- recovery 10000 100  # entities, events of each
//! cargo bench -p greylag-journal-postgres -- growth 1000000      # from 100,000 events to this many
//! ```
//! The server is a throw-away one on this machine that syncs every commit, in the directory for temporary
//! files; it takes about 350 bytes for an event of 100, and the log of the server up to 1 GiB.

mod bare;
mod durable;
mod growth;
mod recovery;

use bytes::Bytes;
use futures::StreamExt;
use greylag_core::CodecId;
use greylag_journal_postgres::{PostgresJournal, PostgresJournalSettings};
use greylag_persistence::{Append, EventKind, Journal, NewEvent, PersistenceId, SeqNr, Under, WriterEpoch, WriterUuid};
use greylag_testkit::postgres::Postgres;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LANES: usize = 4;

/// Claims and bulk appends that the benchmark itself has under way at once.
const AT_ONCE: usize = 64;

fn main() -> Result<(), Failure> {
    let options = [
        "fsync=on",
        "full_page_writes=on",
        "autovacuum=on",
        "shared_buffers=256MB",
        "max_wal_size=1GB",
        "max_connections=50",
    ];
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let numbers = arguments.iter().skip(1).map(|number| number.parse()).collect::<Result<Vec<u64>, _>>()?;
    let number = |place: usize, usual| numbers.get(place).copied().unwrap_or(usual);
    let Some(server) = Postgres::start_with(&options) else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match arguments.first().map(String::as_str) {
            Some("durable") => durable::run(&server, numbers.first().copied()).await,
            Some("recovery") => recovery::run(&server, number(0, 10_000), number(1, 100)).await,
            Some("growth") => growth::run(&server, number(0, 1_000_000)).await,
            None => {
                durable::run(&server, None).await?;
                recovery::run(&server, 10_000, 100).await
            }
            Some(other) => Err(format!("{other:?} is none of durable, recovery, growth").into()),
        }
    })
}

fn say(line: &str) -> Result<(), Failure> {
    Ok(std::io::Write::write_all(&mut std::io::stdout(), format!("{line}\n").as_bytes())?)
}

async fn open(server: &Postgres, schema: &str) -> Result<PostgresJournal, Failure> {
    let settings = PostgresJournalSettings { schema: schema.to_owned(), write_lanes: LANES, ..Default::default() };
    Ok(PostgresJournal::open(&server.config(), settings).await?)
}

fn id(number: u64) -> PersistenceId {
    PersistenceId::of("Customer", &number.to_string()).expect("a valid id")
}

fn event(bytes: usize) -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "bench.event".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: Bytes::from_static(&[b'x'; 1024]).slice(..bytes),
        metadata: Default::default(),
        tags: Default::default(),
    }
}

/// The writer of one id.
#[derive(Clone)]
struct Writer {
    id: PersistenceId,
    uuid: WriterUuid,
    epoch: WriterEpoch,
    highest: u64,
}

impl Writer {
    fn next(&self, events: Vec<NewEvent>) -> Append {
        let first = SeqNr::saturating(self.highest + 1);
        Append { id: self.id.clone(), epoch: self.epoch, writer_uuid: self.uuid, first, events }
    }
}

/// Claims the ids of these numbers, which were never claimed before.
async fn claim(journal: &PostgresJournal, numbers: std::ops::Range<u64>) -> Vec<Writer> {
    let claims = numbers.map(|number| async move {
        let (id, uuid) = (id(number), WriterUuid::from_u128(u128::from(number) + 1));
        let claim = journal.claim(&id, uuid, Under::Seen(WriterEpoch::NONE)).await.expect("no other writer");
        Writer { id, uuid, epoch: claim.epoch, highest: 0 }
    });
    futures::stream::iter(claims).buffer_unordered(AT_ONCE).collect().await
}

/// Every writer appends `events` events of `bytes` bytes, a hundred in each append.
async fn fill(journal: &PostgresJournal, writers: Vec<Writer>, events: u64, bytes: usize) {
    let filling = writers.into_iter().map(|mut writer| async move {
        while writer.highest < events {
            let count = (events - writer.highest).min(100);
            journal.append(writer.next((0..count).map(|_| event(bytes)).collect())).await.expect("no other writer");
            writer.highest += count;
        }
    });
    futures::stream::iter(filling).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
