//! Servers, journals and writers for the tests of this crate.

pub(crate) mod proxy;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use greylag_core::CodecId;
use greylag_journal_postgres::{PostgresJournal, PostgresJournalSettings};
use greylag_persistence::{
    Append, AppendError, Appended, EventKind, Journal, NewEvent, PersistenceId, ReadRange, SeqNr, StoredEvent, Under,
    WriterEpoch, WriterUuid,
};
use greylag_testkit::postgres::Postgres;

/// Runs `test` with a server of its own. Without PostgreSQL the test is skipped, and prints so.
pub(crate) fn with_server(test: impl AsyncFnOnce(Postgres)) {
    let Some(server) = Postgres::start() else { return };
    runtime().block_on(test(server));
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The server's connection string, with another port.
pub(crate) fn config_at(server: &Postgres, port: u16) -> String {
    server.config().replace(&format!("port={}", server.port()), &format!("port={port}"))
}

/// A schema that no other journal of this process uses.
pub(crate) fn schema() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("journal_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn settings() -> PostgresJournalSettings {
    PostgresJournalSettings { append_timeout: Duration::from_secs(20), ..PostgresJournalSettings::test() }
}

pub(crate) async fn open(server: &Postgres) -> PostgresJournal {
    PostgresJournal::open(&server.config(), settings()).await.unwrap()
}

/// Parses an id.
pub(crate) fn id(id: &str) -> PersistenceId {
    PersistenceId::unique(id).unwrap()
}

/// An event with this payload.
pub(crate) fn event(payload: impl Into<Vec<u8>>) -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "test.event".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: payload.into().into(),
        metadata: [("at".to_owned(), "here".into())].into(),
        tags: ["odd".to_owned()].into(),
    }
}

/// A writer of one id that keeps its epoch and next number.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub(crate) id: PersistenceId,
    pub(crate) uuid: WriterUuid,
    pub(crate) epoch: WriterEpoch,
    /// Sequence number of its last stored event.
    pub(crate) highest: SeqNr,
}

impl Writer {
    /// Claims `id` with the epoch that is stored.
    pub(crate) async fn claim(journal: &dyn Journal, id: PersistenceId) -> Self {
        let seen = journal.head(&id).await.unwrap().epoch;
        let uuid = WriterUuid::from_u128(uuid::Uuid::new_v4().as_u128());
        let claim = journal.claim(&id, uuid, Under::Seen(seen)).await.unwrap();
        Self { id, uuid, epoch: claim.epoch, highest: claim.highest }
    }

    /// The next append with these payloads.
    pub(crate) fn next(&self, payloads: &[&str]) -> Append {
        Append {
            id: self.id.clone(),
            epoch: self.epoch,
            writer_uuid: self.uuid,
            first: self.highest.next().unwrap(),
            events: payloads.iter().map(|payload| event(*payload)).collect(),
        }
    }

    /// Appends these payloads, and raises `highest`.
    pub(crate) async fn append(&mut self, journal: &dyn Journal, payloads: &[&str]) -> Result<Appended, AppendError> {
        let append = self.next(payloads);
        let last = append.last().unwrap();
        let answer = journal.append(append).await;
        if answer.is_ok() {
            self.highest = last;
        }
        answer
    }
}

/// Every event of an id, in pages.
pub(crate) async fn read_all(journal: &dyn Journal, id: &PersistenceId) -> Vec<StoredEvent> {
    let mut all = Vec::new();
    let mut range = ReadRange { max_events: 7, ..ReadRange::all() };
    loop {
        let page = journal.read(id, range).await.unwrap();
        all.extend(page.records);
        match page.next {
            Some(next) => range.from = next,
            None => return all,
        }
    }
}

/// The payloads of these events.
pub(crate) fn payloads(events: &[StoredEvent]) -> Vec<String> {
    events.iter().map(|event| String::from_utf8(event.payload.to_vec()).unwrap()).collect()
}

/// Makes the next `times` statements that insert events run `statement`, in plpgsql, first.
pub(crate) fn at_inserts(server: &Postgres, times: u32, statement: &str) {
    let sql = format!(
        // The table is locked first, as an insert does, since an insert may still be under way.
        "lock table event in share row exclusive mode;
         drop sequence if exists inserts; create sequence inserts;
         create or replace function at_insert() returns trigger language plpgsql as $$ begin
           if nextval('inserts') <= {times} then {statement}; end if;
           return null;
         end $$;
         create or replace trigger at_insert before insert on event for each statement execute function at_insert()"
    );
    server.psql(&sql).unwrap();
}

/// SQL that replaces the server's clock by one shifted by `shift`.
pub(crate) fn set_clock(shift: &str) -> String {
    format!(
        "create or replace function greylag_clock() returns timestamptz language sql stable
         as $$ select statement_timestamp() {shift} $$"
    )
}

/// Makes every insert of an event with this payload fail with this SQLSTATE.
pub(crate) fn refuse(server: &Postgres, payload: &str, state: &str) {
    let sql = format!(
        "create or replace function refuse() returns trigger language plpgsql as $$ begin {}; end $$;
         create or replace trigger refuse before insert on event for each row
           when (new.payload = '{payload}') execute function refuse()",
        raise(state)
    );
    server.psql(&sql).unwrap();
}

/// plpgsql that fails with this SQLSTATE.
pub(crate) fn raise(state: &str) -> String {
    format!("raise exception 'as planned' using errcode = '{state}'")
}

/// Count of statements that inserted events since [`at_inserts`].
pub(crate) fn inserts(server: &Postgres) -> u32 {
    server.psql("select last_value from inserts").unwrap().trim().parse().unwrap()
}
