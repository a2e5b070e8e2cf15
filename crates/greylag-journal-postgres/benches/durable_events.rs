//! Durable events per second through the journal, beside `COPY` and multi-row `INSERT` of the same rows
//! into the same table, and the speed of replay.
//!
//! ```sh
//! cargo bench -p greylag-journal-postgres
//! ```
//! Every entity appends one event of 300 bytes, waits until it is durable, and appends the next. The rows
//! are then written once more into a table of the same columns and indexes: by `INSERT`s of 500 rows on
//! as many connections as the journal has lanes, two under way on each, and by one `COPY` on each. These
//! compare nothing, raise no head and answer nobody. The server is a throw-away one on this machine that
//! syncs every commit.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use futures::{SinkExt, TryStreamExt, pin_mut};
use greylag_core::CodecId;
use greylag_journal_postgres::tokio_postgres::Client;
use greylag_journal_postgres::{PostgresJournal, PostgresJournalSettings};
use greylag_persistence::{
    Append, EventKind, Journal, NewEvent, PersistenceId, ReadRange, SeqNr, Under, WriterEpoch, WriterUuid,
};
use greylag_postgres::Database;
use greylag_testkit::postgres::Postgres;

const LANES: usize = 4;
const PAYLOAD_BYTES: usize = 300;
const ROWS: usize = 500;
/// Entities at once, and events of each.
const LOADS: [(u64, u64); 4] = [(1, 1_000), (32, 500), (1_000, 100), (10_000, 10)];

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let server = ["fsync=on", "full_page_writes=on", "shared_buffers=256MB", "max_wal_size=4GB"];
    let Some(server) = Postgres::start_with(&server) else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let told = runtime.block_on(run(&server))?;
    std::io::Write::write_all(&mut std::io::stdout(), told.as_bytes())?;
    Ok(())
}

async fn run(server: &Postgres) -> Result<String, Failure> {
    let mut told = format!("durable events through PostgreSQL, {PAYLOAD_BYTES} byte payloads, {LANES} lanes\n");
    for (number, (entities, events)) in LOADS.into_iter().enumerate() {
        let schema = format!("bench_{number}");
        let settings = PostgresJournalSettings { schema: schema.clone(), write_lanes: LANES, ..Default::default() };
        let journal = PostgresJournal::open(&server.config(), settings).await?;
        let ours = append(&journal, entities, events).await?;
        let read = replay(&journal, entities).await?;
        let bare = Bare::connect(server, &schema).await?;
        let (insert, copy) = (bare.insert().await?, bare.copy().await?);
        told += &format!(
            "  {entities:>6} entities {ours:>9.0} events/s   INSERT {insert:>9.0} ({:.2})   COPY {copy:>9.0} ({:.2})   replay {read:>9.0}\n",
            ours / insert,
            ours / copy
        );
        journal.close().await?;
    }
    Ok(told)
}

fn event() -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "bench.event".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: Bytes::from_static(&[b'x'; PAYLOAD_BYTES]),
        metadata: Default::default(),
        tags: Default::default(),
    }
}

fn id(number: u64) -> PersistenceId {
    PersistenceId::of("Customer", &number.to_string()).expect("a valid id")
}

/// Events per second.
async fn append(journal: &PostgresJournal, entities: u64, events: u64) -> Result<f64, Failure> {
    let claims = (0..entities).map(|number| async move {
        let uuid = WriterUuid::from_u128(u128::from(number) + 1);
        let claim = journal.claim(&id(number), uuid, Under::Seen(WriterEpoch::NONE)).await?;
        Ok::<_, Failure>((id(number), uuid, claim.epoch))
    });
    // Not more at once than the pool is for.
    let mut claimed = Vec::new();
    let claims: Vec<_> = claims.collect();
    for some in chunks(claims, 64) {
        claimed.extend(try_join_all(some).await?);
    }
    let began_at = Instant::now();
    let running = claimed.into_iter().map(|(id, writer_uuid, epoch)| {
        let journal = journal.clone();
        tokio::spawn(async move {
            for number in 1..=events {
                let first = SeqNr::saturating(number);
                let append = Append { id: id.clone(), epoch, writer_uuid, first, events: vec![event()] };
                journal.append(append).await.expect("nobody else writes");
            }
        })
    });
    for entity in join_all(running.collect::<Vec<_>>()).await {
        entity?;
    }
    Ok((entities * events) as f64 / began_at.elapsed().as_secs_f64())
}

fn chunks<T>(all: Vec<T>, size: usize) -> Vec<Vec<T>> {
    let (mut chunks, mut all) = (Vec::new(), all.into_iter().peekable());
    while all.peek().is_some() {
        chunks.push(all.by_ref().take(size).collect());
    }
    chunks
}

/// Events per second, eight entities at a time.
async fn replay(journal: &PostgresJournal, entities: u64) -> Result<f64, Failure> {
    let began_at = Instant::now();
    let mut count = 0;
    for some in chunks((0..entities).collect(), 8) {
        let pages = some.into_iter().map(|number| async move { journal.read(&id(number), ReadRange::all()).await });
        count += try_join_all(pages).await?.iter().map(|page| page.records.len()).sum::<usize>();
    }
    Ok(count as f64 / began_at.elapsed().as_secs_f64())
}

/// The same rows without a journal.
struct Bare {
    clients: Vec<Client>,
    rows: usize,
}

impl Bare {
    async fn connect(server: &Postgres, schema: &str) -> Result<Self, Failure> {
        let mut clients = Vec::new();
        for _ in 0..LANES {
            let (client, _) = Database::parse(&server.config())?.connect("bench").await?;
            client.batch_execute(&format!("set search_path to {schema}")).await?;
            clients.push(client);
        }
        clients[0].batch_execute("create table bare (like event including all)").await?;
        let rows: i64 = clients[0].query_one("select count(*) from event", &[]).await?.get(0);
        Ok(Self { clients, rows: usize::try_from(rows)? })
    }

    async fn insert(&self) -> Result<f64, Failure> {
        self.clients[0].batch_execute("truncate bare").await?;
        let found = self.clients[0]
            .query("select persistence_id, seq_nr, slice, writer_uuid::text, payload, crc32c from event", &[])
            .await?;
        let rows: Arc<Vec<(String, i64, i16, String, Vec<u8>, i64)>> = Arc::new(
            found.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5))).collect(),
        );
        let sql =
            "insert into bare (persistence_id, seq_nr, slice, entity_type, db_timestamp, writer_uuid, writer_epoch,
                codec_id, manifest, schema_version, filtered, payload, crc32c)
            select pid, seq_nr, slice, 'Customer', statement_timestamp(), uuid::uuid, 1, 2, 'bench.event', 1, false,
                payload, crc32c
            from unnest($1::text[], $2::bigint[], $3::smallint[], $4::text[], $5::bytea[], $6::bigint[])
                as x(pid, seq_nr, slice, uuid, payload, crc32c)";
        let mut statements = Vec::new();
        for client in &self.clients {
            statements.push(client.prepare(sql).await?);
        }
        let began_at = Instant::now();
        let lanes = self.clients.iter().zip(&statements).enumerate().flat_map(|(lane, (client, statement))| {
            // Two under way on each connection.
            let rows = rows.clone();
            (0..2).map(move |half| {
                let rows = rows.clone();
                async move {
                    for batch in rows.chunks(ROWS).skip(lane * 2 + half).step_by(LANES * 2) {
                        let ids: Vec<&str> = batch.iter().map(|row| row.0.as_str()).collect();
                        let numbers: Vec<i64> = batch.iter().map(|row| row.1).collect();
                        let slices: Vec<i16> = batch.iter().map(|row| row.2).collect();
                        let uuids: Vec<&str> = batch.iter().map(|row| row.3.as_str()).collect();
                        let payloads: Vec<&[u8]> = batch.iter().map(|row| &row.4[..]).collect();
                        let crcs: Vec<i64> = batch.iter().map(|row| row.5).collect();
                        client.execute(statement, &[&ids, &numbers, &slices, &uuids, &payloads, &crcs]).await?;
                    }
                    Ok::<_, Failure>(())
                }
            })
        });
        try_join_all(lanes).await?;
        Ok(self.rows as f64 / began_at.elapsed().as_secs_f64())
    }

    async fn copy(&self) -> Result<f64, Failure> {
        self.clients[0].batch_execute("truncate bare").await?;
        let lines: Vec<Bytes> = self.clients[0].copy_out("copy event to stdout").await?.try_collect().await?;
        let began_at = Instant::now();
        let parts =
            self.clients.iter().zip(lines.chunks(lines.len().div_ceil(LANES))).map(|(client, lines)| async move {
                let sink = client.copy_in::<_, Bytes>("copy bare from stdin").await?;
                pin_mut!(sink);
                // In pieces, as a client that cares for speed would.
                for some in lines.chunks(ROWS) {
                    sink.feed(Bytes::from(some.concat())).await?;
                }
                sink.close().await?;
                Ok::<_, Failure>(())
            });
        try_join_all(parts).await?;
        Ok(self.rows as f64 / began_at.elapsed().as_secs_f64())
    }
}
