//! Durable events per second through the journal at 1,000 concurrent entities, and through the bare
//! engine with the same batches.
//!
//! ```sh
//! cargo bench -p greylag-journal-sled
//! ```
//! Every entity appends one event of 100 bytes, waits until it is durable, and appends the next.
//! The bare engine then writes batches of the same number of keys and bytes, as many as the journal
//! made, one after the other, each synced: what the disk and sled leave no journal on them to beat.
//! Both run in the same process on the same disk, alternating; the medians of five runs are printed.
//! `GREYLAG_BENCH_DIR` chooses the disk (default: the build directory's).

use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::join_all;
use greylag_core::CodecId;
use greylag_journal_sled::{SledJournal, SledJournalSettings, StoreError, StoreSettings, StoreStats};
use greylag_persistence::{Append, EventKind, Journal, NewEvent, PersistenceId, SeqNr, Under, WriterEpoch, WriterUuid};
use greylag_store_sled::{Batch, Planner, Reader, Request, Store};

const ENTITIES: u64 = 1_000;
const EVENTS_PER_ENTITY: u64 = 100;
const PAYLOAD_BYTES: usize = 100;
const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::var("GREYLAG_BENCH_DIR").unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (mut journal, mut bare) = (Vec::new(), Vec::new());
    let mut shape = Shape::default();
    for run in 0..=RUNS {
        let scratch = tempfile::tempdir_in(&directory)?;
        let (rate, stats) = runtime.block_on(journal_run(scratch.path()))?;
        drop(scratch);
        let scratch = tempfile::tempdir_in(&directory)?;
        let bare_rate = bare_run(scratch.path(), &stats)?;
        // The first run warms caches and the allocator.
        if run > 0 {
            journal.push(rate);
            bare.push(bare_rate);
            shape = Shape::of(&stats);
        }
    }
    let (journal, bare) = (median(&mut journal), median(&mut bare));
    let mut out = String::new();
    out += &format!("durable events through sled, {ENTITIES} concurrent entities, {PAYLOAD_BYTES} byte payloads,\n");
    out += &format!("median of {RUNS} runs of {} events, in {directory}\n", ENTITIES * EVENTS_PER_ENTITY);
    out += &format!("  journal       {journal:>9.0} events/s\n");
    out += &format!("  bare engine   {bare:>9.0} events/s   the same batches, no journal\n");
    out += &format!("  ratio         {:>9.2}\n", journal / bare);
    out += &format!(
        "  a group       {:>9.0} events, {:.1} keys and {:.0} bytes an event\n",
        shape.events, shape.keys, shape.bytes
    );
    std::io::Write::write_all(&mut std::io::stdout(), out.as_bytes())?;
    Ok(())
}

/// What an average group of a run held.
#[derive(Default)]
struct Shape {
    events: f64,
    keys: f64,
    bytes: f64,
}

impl Shape {
    fn of(stats: &StoreStats) -> Self {
        let events = (ENTITIES * EVENTS_PER_ENTITY) as f64;
        Self {
            events: events / stats.groups as f64,
            keys: stats.keys as f64 / events,
            bytes: stats.bytes as f64 / events,
        }
    }
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn rate(began_at: Instant) -> f64 {
    let took: Duration = began_at.elapsed();
    (ENTITIES * EVENTS_PER_ENTITY) as f64 / took.as_secs_f64()
}

/// Events per second, and what the committer did for them.
async fn journal_run(path: &Path) -> Result<(f64, StoreStats), Box<dyn std::error::Error>> {
    let journal = SledJournal::open(path, SledJournalSettings::default()).await?;
    let claims = (0..ENTITIES).map(|number| {
        let journal = journal.clone();
        async move {
            let id = PersistenceId::of("Customer", &number.to_string()).expect("a valid id");
            let uuid = WriterUuid::from_u128(u128::from(number) + 1);
            let claim = journal.claim(&id, uuid, Under::Seen(WriterEpoch::NONE)).await;
            (id, uuid, claim.expect("a fresh id").epoch)
        }
    });
    let claimed = join_all(claims).await;
    let before = journal.stats();
    let began_at = Instant::now();
    let entities = claimed.into_iter().map(|(id, writer_uuid, epoch)| {
        let journal = journal.clone();
        tokio::spawn(async move {
            for number in 1..=EVENTS_PER_ENTITY {
                let append = Append {
                    id: id.clone(),
                    epoch,
                    writer_uuid,
                    first: SeqNr::saturating(number),
                    events: vec![event()],
                };
                journal.append(append).await.expect("nobody else writes");
            }
        })
    });
    for entity in join_all(entities).await {
        entity?;
    }
    let rate = rate(began_at);
    let mut stats = journal.stats();
    stats.groups -= before.groups;
    stats.keys -= before.keys;
    stats.bytes -= before.bytes;
    journal.close().await?;
    Ok((rate, stats))
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

/// Writes batches as they are: no heads, no checks, no answers to a thousand tasks.
struct Bare;

/// So many keys, each with a value of so many bytes.
struct Keys {
    first: u64,
    count: u64,
    value_bytes: usize,
}

impl Request for Keys {
    fn bytes(&self) -> usize {
        0
    }
}

impl Planner for Bare {
    type Request = Keys;
    type Answer = ();

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(&mut self, requests: Vec<Keys>, _: &Reader, batch: &mut Batch) -> Result<Vec<()>, StoreError> {
        for keys in &requests {
            for number in keys.first..keys.first + keys.count {
                // Half of the keys come back, as heads do; the other half are new, as events are.
                let key = if number % 2 == 0 { number % (2 * ENTITIES) } else { number };
                batch.put_owned(&[&[1], &key.to_be_bytes()[..]].concat(), vec![7; keys.value_bytes]);
            }
        }
        Ok(vec![(); requests.len()])
    }
}

fn bare_run(path: &Path, shape: &StoreStats) -> Result<f64, Box<dyn std::error::Error>> {
    const KEY_AND_CHECKSUM_BYTES: u64 = 9 + 4;
    let store = Store::open(path, StoreSettings::default(), Bare)?;
    let count = shape.keys / shape.groups;
    let value_bytes = usize::try_from((shape.bytes / shape.keys).saturating_sub(KEY_AND_CHECKSUM_BYTES))?;
    let began_at = Instant::now();
    for group in 0..shape.groups {
        store.submit(Keys { first: group * count, count, value_bytes })?.wait()?;
    }
    let rate = rate(began_at);
    store.close()?;
    Ok(rate)
}
