//! The server's clock goes back, as when a server with a slow clock takes over: projections see every event, the
//! operator is warned, and while the clock is too far behind nothing is stored.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Writer, event, id, schema, set_clock, settings, with_server};
use async_trait::async_trait;
use greylag_core::CodecId;
use greylag_journal_postgres::{PostgresJournal, PostgresJournalSettings};
use greylag_persistence::{
    AppendError, BacktrackingSettings, BoxError, EncodedValue, Envelope, Health, Journal, OffsetStore, PersistenceId,
    ProjectionHandle, ProjectionHandler, ProjectionId, ProjectionSettings, QuerySettings, ReadJournal, Revision,
    StateStore, StateWrite, StateWriteError, WriterUuid, run_projection,
};
use greylag_testkit::postgres::Postgres;

/// Sequence numbers that a projection was given, by id.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<PersistenceId, Vec<u64>>>>);

impl Seen {
    fn holds(&self, id: &PersistenceId, seq_nr: u64) -> bool {
        self.0.lock().unwrap().get(id).is_some_and(|seen| seen.contains(&seq_nr))
    }
}

#[async_trait]
impl ProjectionHandler for Seen {
    async fn handle(&mut self, envelopes: &[Envelope]) -> Result<(), BoxError> {
        for envelope in envelopes {
            self.0.lock().unwrap().entry(envelope.id.clone()).or_default().push(envelope.seq_nr.as_u64());
        }
        Ok(())
    }
}

/// A schema of its own, whose clock the test sets.
struct Bench<'a> {
    server: &'a Postgres,
    schema: String,
    journal: PostgresJournal,
    read: ReadJournal,
    offsets: Arc<dyn OffsetStore>,
    /// Id and sequence number of every stored event.
    stored: Vec<(PersistenceId, u64)>,
}

impl<'a> Bench<'a> {
    async fn new(server: &'a Postgres) -> Self {
        let schema = schema();
        let settings = PostgresJournalSettings { schema: schema.clone(), ..settings() };
        let journal = PostgresJournal::open(&server.config(), settings).await.unwrap();
        // A short window: events are read twice soon, and then not again.
        let backtracking =
            BacktrackingSettings { behind: Duration::from_millis(200), ..BacktrackingSettings::default() };
        let query = QuerySettings { backtracking, ..QuerySettings::test() };
        let (read, offsets) = (ReadJournal::new(Arc::new(journal.queries()), query), Arc::new(journal.offsets()));
        Self { server, schema, journal, read, offsets, stored: Vec::new() }
    }

    fn clock(&self, shift: &str) {
        self.server.psql(&format!("set search_path to {}; {}", self.schema, set_clock(shift))).unwrap();
    }

    fn project(&self, name: &str, seen: &Seen) -> ProjectionHandle {
        let projection = ProjectionId { name: name.to_owned(), entity_type: "Cart".to_owned(), slices: 0..=1023 };
        let settings = ProjectionSettings::test();
        run_projection(projection, &self.read, self.offsets.clone(), seen.clone(), settings).unwrap()
    }

    async fn append(&mut self, writers: &mut [Writer]) {
        for writer in writers {
            writer.append(&self.journal, &["event"]).await.unwrap();
            self.stored.push((writer.id.clone(), writer.highest.as_u64()));
        }
    }

    async fn writers(&self, name: &str) -> Vec<Writer> {
        let mut writers = Vec::new();
        for number in 0..10 {
            writers.push(Writer::claim(&self.journal, id(&format!("Cart|{name}-{number}"))).await);
        }
        writers
    }

    async fn until_all(&self, what: &str, seen: &Seen) {
        let missing = || self.stored.iter().find(|(id, seq_nr)| !seen.holds(id, *seq_nr));
        let all = async {
            while missing().is_some() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let within = tokio::time::timeout(Duration::from_secs(30), all).await;
        assert!(within.is_ok(), "{what} never sees {:?}", missing());
    }
}

#[test]
fn scenario_70_projections_see_every_event_when_the_servers_clock_goes_back() {
    with_server(async |server| {
        for behind in [15, 60, 300] {
            every_projection_sees_all(Bench::new(&server).await, behind).await;
        }
    });
}

async fn every_projection_sees_all(mut bench: Bench<'_>, behind: u32) {
    let (through, restarts, paused) = (Seen::default(), Seen::default(), Seen::default());
    let runs_through = bench.project("through", &through);
    let (first_run, pauses) = (bench.project("restarts", &restarts), bench.project("paused", &paused));
    let mut before = bench.writers("before").await;
    // Enough events that every earlier one is read twice.
    for _ in 0..8 {
        bench.append(&mut before).await;
        bench.until_all("the one that runs through", &through).await;
    }
    bench.until_all("the one that restarts", &restarts).await;
    bench.until_all("the one that pauses", &paused).await;
    first_run.stop().await;
    pauses.pause().await;

    // Another server, whose clock is behind, takes over.
    bench.clock(&format!("- interval '{behind} s'"));
    let mut after = bench.writers("after").await;
    for _ in 0..3 {
        bench.append(&mut after).await;
        bench.append(&mut before).await;
    }
    let second_run = bench.project("restarts", &restarts);
    let stats = bench.journal.stats();
    assert_eq!(stats.clock_set_back, 1, "{stats:?}");
    assert!(stats.clock_behind > Duration::from_secs(u64::from(behind) - 10), "{stats:?}");
    let health = Journal::health(&bench.journal);
    assert!(matches!(&health, Health::Degraded(why) if why[0].contains("clock")), "{health:?}");

    // The clock passes the latest event.
    bench.clock("");
    bench.until_all("the one that runs through", &through).await;
    bench.until_all("the one that restarted", &restarts).await;
    bench.append(&mut after).await;
    assert_eq!(bench.journal.stats().clock_behind, Duration::ZERO);
    assert_eq!(Journal::health(&bench.journal), Health::Up);

    // The clock moves on by an hour.
    bench.clock("+ interval '1 hour'");
    pauses.resume().await;
    bench.append(&mut before).await;
    for (what, seen) in [("the one that ran", &through), ("the one that restarted", &restarts), ("paused", &paused)] {
        bench.until_all(what, seen).await;
    }
    for projection in [runs_through, second_run, pauses] {
        projection.stop().await;
    }
}

#[test]
fn scenario_70_a_clock_too_far_behind_stores_nothing_and_says_so() {
    with_server(async |server| {
        let bench = Bench::new(&server).await;
        let mut writer = Writer::claim(&bench.journal, id("Cart|1")).await;
        let states = bench.journal.states();
        let of_state = id("State|1");
        writer.append(&bench.journal, &["a"]).await.unwrap();
        upsert(&states, &of_state, Revision::FIRST).await.unwrap();
        bench.clock("- interval '601 s'");
        let refused = writer.append(&bench.journal, &["b"]).await.unwrap_err();
        assert!(
            matches!(&refused, AppendError::NotStored(cause) if cause.text().contains("max_clock_lag")),
            "{refused}"
        );
        let refused = upsert(&states, &of_state, Revision::FIRST.next().unwrap()).await.unwrap_err();
        let named = matches!(&refused, StateWriteError::NotStored(cause) if cause.text().contains("max_clock_lag"));
        assert!(named, "{refused}");
        let refused = upsert(&states, &id("State|2"), Revision::FIRST).await.unwrap_err();
        assert!(matches!(refused, StateWriteError::NotStored(_)), "{refused}");
        // Just within `max_clock_lag`.
        bench.clock("- interval '590 s'");
        let appended = writer.append(&bench.journal, &["b"]).await.unwrap();
        upsert(&states, &of_state, Revision::FIRST.next().unwrap()).await.unwrap();
        assert_eq!(states.get(&of_state).await.unwrap().revision.as_u64(), 2);
        bench.clock("");
        assert!(writer.append(&bench.journal, &["c"]).await.unwrap().timestamp > appended.timestamp);
        // A row of a connection that ended is removed at the next start; the latest time itself stays.
        let old = "insert into lane_clock values ('ended', now() - interval '2 days')";
        let count = "select count(*) from lane_clock where lane = 'ended'";
        let in_schema = |sql: &str| server.psql(&format!("set search_path to {}; {sql}", bench.schema)).unwrap();
        in_schema(old);
        bench.journal.close().await.unwrap();
        let settings = PostgresJournalSettings { schema: bench.schema.clone(), ..settings() };
        PostgresJournal::open(&server.config(), settings).await.unwrap();
        assert_eq!(in_schema(count).trim(), "0");
    });
}

async fn upsert(states: &dyn StateStore, of: &PersistenceId, revision: Revision) -> Result<(), StateWriteError> {
    let write = StateWrite { id: of.clone(), revision, generation: None, writer_uuid: WriterUuid::from_u128(1) };
    let value = EncodedValue {
        codec_id: CodecId::JSON,
        manifest: event("").manifest,
        schema_version: 1,
        payload: "value".into(),
    };
    states.upsert(write, value, None).await
}
