//! Durable events per second through the service: four clients with 1,000 entities between them,
//! over gRPC on loopback, sled behind.
//!
//! ```sh
//! cargo bench -p greylag-journal-service
//! ```
//! Every entity appends one event of 100 bytes, waits until it is durable, and appends the next.
//! Clients and server share this process and its cores. The median of five runs is printed.
//! `GREYLAG_BENCH_DIR` chooses the disk (default: the build directory's).

use std::path::Path;
use std::time::Instant;

use futures::future::join_all;
use greylag_core::CodecId;
use greylag_journal_service::{ClientSettings, JournalClient, JournalServer, ServerSettings};
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{Append, EventKind, Journal, NewEvent, PersistenceId, SeqNr, Under, WriterEpoch, WriterUuid};

type Failure = Box<dyn std::error::Error>;

const CLIENTS: usize = 4;
const ENTITIES: usize = 1_000;
const EVENTS_PER_ENTITY: u64 = 50;
const PAYLOAD_BYTES: usize = 100;
const RUNS: usize = 5;

fn main() -> Result<(), Failure> {
    let directory = std::env::var("GREYLAG_BENCH_DIR").unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut runs = Vec::new();
    for run in 0..=RUNS {
        let scratch = tempfile::tempdir_in(&directory)?;
        let result = runtime.block_on(one_run(scratch.path()))?;
        // The first run warms caches and the allocator.
        if run > 0 {
            runs.push(result);
        }
    }
    runs.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (rate, events_per_group) = runs[runs.len() / 2];
    let out = format!(
        "durable events through the journal service, {CLIENTS} clients, {ENTITIES} concurrent entities,\n\
         {PAYLOAD_BYTES} byte payloads, median of {RUNS} runs of {} events, in {directory}\n\
         \x20 service       {rate:>9.0} events/s\n\
         \x20 a group       {events_per_group:>9.0} events\n",
        ENTITIES as u64 * EVENTS_PER_ENTITY
    );
    std::io::Write::write_all(&mut std::io::stdout(), out.as_bytes())?;
    Ok(())
}

/// Runs once; answers events per second, and events in an average group commit.
async fn one_run(path: &Path) -> Result<(f64, f64), Failure> {
    let disk = SledJournal::open(path, SledJournalSettings::default()).await?;
    let server = JournalServer::bind("127.0.0.1:0".parse()?, disk.stores(), ServerSettings::default()).await?;
    let address = server.local_address().to_string();
    let connecting = (0..CLIENTS).map(|_| JournalClient::connect(&address, ClientSettings::default()));
    let clients = join_all(connecting).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let claims = (0..ENTITIES).map(|number| {
        let journal = clients[number % CLIENTS].journal();
        async move {
            let id = PersistenceId::of("Customer", &number.to_string())?;
            let uuid = WriterUuid::from_u128(number as u128 + 1);
            let epoch = journal.claim(&id, uuid, Under::Seen(WriterEpoch::NONE)).await?.epoch;
            Ok::<_, Failure>((journal, id, uuid, epoch))
        }
    });
    let claimed = join_all(claims).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let groups_before = disk.stats().groups;
    let began_at = Instant::now();
    let entities = claimed.into_iter().map(|(journal, id, writer_uuid, epoch)| {
        tokio::spawn(async move {
            for number in 1..=EVENTS_PER_ENTITY {
                let first = SeqNr::saturating(number);
                let append = Append { id: id.clone(), epoch, writer_uuid, first, events: vec![event()] };
                journal.append(append).await.expect("no other writer");
            }
        })
    });
    for entity in join_all(entities).await {
        entity?;
    }
    let events = (ENTITIES as u64 * EVENTS_PER_ENTITY) as f64;
    let rate = events / began_at.elapsed().as_secs_f64();
    let groups = disk.stats().groups - groups_before;
    drop(clients);
    server.shutdown().await;
    disk.close().await?;
    Ok((rate, events / groups as f64))
}

fn event() -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "purchased".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: vec![7; PAYLOAD_BYTES].into(),
        metadata: Default::default(),
        tags: Default::default(),
    }
}
