//! The conformance kit against a real server, with every hook.

use std::sync::Arc;
use std::time::Duration;

use crate::common::proxy::{Proxy, Step};
use crate::common::{config_at, schema, set_clock, settings, with_server};
use async_trait::async_trait;
use greylag_journal_postgres::PostgresJournal;
use greylag_persistence::tck::{
    self, ChangeFactory, Flags, JournalFactory, OffsetFactory, QueryFactory, SnapshotFactory, StateFactory,
};
use greylag_persistence::{
    AppendFault, EventQueries, Journal, OffsetStore, PersistenceId, SeqNr, SnapshotStore, StateStore,
};
use greylag_testkit::postgres::Postgres;

/// Factory of journals in schemas of their own; the kit's hooks act on the journal that was opened first.
struct Server {
    postgres: Arc<Postgres>,
    proxy: Proxy,
    schema: String,
    is_open: std::sync::atomic::AtomicBool,
}

impl Server {
    async fn new(postgres: Postgres) -> Self {
        let proxy = Proxy::to(postgres.port()).await;
        Self { postgres: Arc::new(postgres), proxy, schema: schema(), is_open: false.into() }
    }

    async fn journal(&self) -> PostgresJournal {
        let first = !self.is_open.swap(true, std::sync::atomic::Ordering::Relaxed);
        let schema = if first { self.schema.clone() } else { schema() };
        let settings = greylag_journal_postgres::PostgresJournalSettings {
            schema,
            // The kit turns the clock back by an hour, and expects that later events are stored.
            max_clock_lag: Duration::from_secs(7200),
            ..settings()
        };
        PostgresJournal::open(&config_at(&self.postgres, self.proxy.port), settings).await.unwrap()
    }

    fn psql(&self, sql: &str) -> String {
        self.postgres.psql(&format!("set search_path to {}; {sql}", self.schema)).unwrap()
    }

    fn flip(&self, table: &str, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        let sql = format!(
            "update {table} set payload = set_byte(payload, 0, get_byte(payload, 0) # 1) \
             where persistence_id = '{id}' and seq_nr = {seq_nr} returning 1"
        );
        self.psql(&sql).trim() == "1"
    }

    fn flip_state(&self, id: &PersistenceId) -> bool {
        let sql = format!(
            "update durable_state set payload = set_byte(payload, 0, get_byte(payload, 0) # 1) \
             where persistence_id = '{id}' returning 1"
        );
        self.psql(&sql).trim() == "1"
    }

    /// Waits until live pages show all rows of the table.
    fn settle(&self, table: &str) {
        let is_old = format!("select max(db_timestamp) < clock_timestamp() - interval '100 ms' from {table}");
        while self.psql(&is_old).trim() != "t" {}
    }

    /// A step of the proxy that first runs `sql` on the server.
    fn before(&self, sql: String) -> Step {
        let (postgres, schema) = (self.postgres.clone(), self.schema.clone());
        Step::Before(Box::new(move || {
            postgres.psql(&format!("set search_path to {schema}; {sql}")).unwrap();
        }))
    }

    /// A step that makes the next insertion of events fail with this SQLSTATE, once.
    fn fail_next_insert(&self, state: &str) -> Step {
        self.before(format!(
            "create sequence if not exists failures; select setval('failures', 1, false);
             create or replace function fail() returns trigger language plpgsql as $$ begin
               if nextval('{schema}.failures') = 1 then raise exception 'as planned' using errcode = '{state}'; end if;
               return null;
             end $$;
             create or replace trigger fail before insert on event for each statement execute function fail()",
            schema = self.schema
        ))
    }
}

#[async_trait]
impl JournalFactory for Server {
    async fn open(&self) -> Arc<dyn Journal> {
        Arc::new(self.journal().await)
    }

    async fn corrupt(&self, _: &Arc<dyn Journal>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.flip("event", id, seq_nr)
    }

    async fn turn_clock_back(&self, _: &Arc<dyn Journal>, by: Duration) -> bool {
        self.psql(&set_clock(&format!("- interval '{} s'", by.as_secs())));
        true
    }

    async fn script_append(&self, _: &Arc<dyn Journal>, id: &PersistenceId, faults: &[AppendFault]) -> bool {
        let steps: Vec<Step> = faults
            .iter()
            .map(|fault| match fault {
                AppendFault::LoseAnswer { stored } => Step::Break { carried: *stored },
                AppendFault::StorageLow => self.fail_next_insert("53100"),
                AppendFault::Unavailable => self.fail_next_insert("57P03"),
                AppendFault::DeleteAllBefore => self.before(format!(
                    "update entity set deleted_to = highest_seq_nr where persistence_id = '{id}';
                     delete from event where persistence_id = '{id}'"
                )),
            })
            .collect();
        self.proxy.script(id.as_str(), steps);
        true
    }
}

#[async_trait]
impl SnapshotFactory for Server {
    async fn open(&self) -> Arc<dyn SnapshotStore> {
        Arc::new(self.journal().await.snapshots())
    }

    async fn corrupt(&self, _: &Arc<dyn SnapshotStore>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.flip("snapshot", id, seq_nr)
    }
}

#[async_trait]
impl StateFactory for Server {
    async fn open(&self) -> Arc<dyn StateStore> {
        Arc::new(self.journal().await.states())
    }

    async fn corrupt(&self, _: &Arc<dyn StateStore>, id: &PersistenceId) -> bool {
        self.flip_state(id)
    }

    async fn settle(&self, _: &Arc<dyn StateStore>) {
        Self::settle(self, "durable_state");
    }
}

#[async_trait]
impl OffsetFactory for Server {
    async fn open(&self) -> Arc<dyn OffsetStore> {
        Arc::new(self.journal().await.offsets())
    }
}

#[async_trait]
impl QueryFactory for Server {
    async fn open(&self) -> (Arc<dyn Journal>, Arc<dyn EventQueries>) {
        let journal = self.journal().await;
        (Arc::new(journal.clone()), Arc::new(journal.queries()))
    }

    async fn corrupt(&self, _: &Arc<dyn Journal>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.flip("event", id, seq_nr)
    }

    async fn settle(&self, _: &Arc<dyn Journal>) {
        Self::settle(self, "event");
    }
}

#[async_trait]
impl ChangeFactory for Server {
    async fn open(&self) -> (Arc<dyn StateStore>, Arc<dyn EventQueries>) {
        let states = self.journal().await.states();
        (Arc::new(states.clone()), Arc::new(states.queries()))
    }

    async fn settle(&self, _: &Arc<dyn StateStore>) {
        Self::settle(self, "durable_state");
    }

    async fn corrupt(&self, _: &Arc<dyn StateStore>, id: &PersistenceId) -> bool {
        self.flip_state(id)
    }

    async fn hold_back(&self, _: &Arc<dyn StateStore>, id: &PersistenceId) -> bool {
        self.psql(&format!(
            "create table gate (open boolean);
             create function hold() returns trigger language plpgsql as $$ begin
               while not exists (select from {schema}.gate) loop perform pg_sleep(0.01); end loop; return new;
             end $$;
             create trigger hold before insert or update on durable_state for each row
               when (new.persistence_id = '{id}') execute function hold()",
            schema = self.schema
        ));
        true
    }

    async fn held(&self, _: &Arc<dyn StateStore>) {
        while self.psql("select count(*) from pg_stat_activity where wait_event = 'PgSleep'").trim() != "1" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn commit_held(&self, _: &Arc<dyn StateStore>) {
        self.psql("insert into gate values (true)");
    }
}

#[test]
fn the_changes_conform() {
    with_server(async |postgres| {
        let server = Server::new(postgres).await;
        let report = tck::changes(&server, Flags::default()).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "{report}");
    });
}

#[test]
fn the_queries_conform() {
    with_server(async |postgres| {
        let server = Server::new(postgres).await;
        let report = tck::queries(&server, Flags::default()).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "{report}");
    });
}

#[test]
fn the_journal_conforms() {
    with_server(async |postgres| {
        let server = Server::new(postgres).await;
        let report = tck::journal(&server, Flags::default()).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "{report}");
    });
}

#[test]
fn the_snapshots_conform() {
    with_server(async |postgres| {
        let server = Server::new(postgres).await;
        let report = tck::snapshots(&server, Flags::default()).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "{report}");
    });
}

#[test]
fn the_states_conform() {
    with_server(async |postgres| {
        let server = Server::new(postgres).await;
        let report = tck::states(&server, Flags::default()).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "{report}");
    });
}

#[test]
fn the_offsets_conform() {
    with_server(async |postgres| {
        let server = Server::new(postgres).await;
        let report = tck::offsets(&server, Flags::default()).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "{report}");
    });
}

/// Scenarios persistence 63, 65, 68 and 69 on a real server.
#[test]
fn two_writers_have_one_history() {
    with_server(async |postgres| {
        let server = Server::new(postgres).await;
        let report = tck::writers(&server, &server, Flags { interleavings: 60, ..Flags::default() }).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "{report}");
    });
}
