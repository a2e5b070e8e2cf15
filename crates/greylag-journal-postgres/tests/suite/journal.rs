//! The journal from its operator's view: opening, schema, TLS, health, pools, sweeping, closing.

use crate::common;

use std::sync::Arc;
use std::time::Duration;

use crate::common::proxy::Proxy;
use crate::common::{Writer, config_at, id, open, payloads, read_all, runtime, schema, settings, with_server};
use futures::TryStreamExt;
use greylag_core::CodecId;
use greylag_journal_postgres::{
    MIGRATIONS, Migrate, OpenError, PostgresJournal, PostgresJournalSettings, SCHEMA_TABLE,
};
use greylag_persistence::{
    AppendError, ChangesOf, ClaimError, EncodedValue, Health, Journal, NewEvent, NewSnapshot, Offset, OffsetError,
    OffsetStore, PersistenceId, Position, Processed, QuerySettings, ReadError, ReadJournal, ReadRange, RejectReason,
    Revision, SeqNr, SnapshotCriteria, SnapshotStore, StateStore, StateWrite, Timestamp, Under, WriterUuid,
};
use greylag_postgres::Database;
use greylag_testkit::certificates::Authority;
use greylag_testkit::postgres::{PASSWORD, Postgres, ServerTls};

async fn open_error(config: &str, settings: PostgresJournalSettings) -> String {
    PostgresJournal::open(config, settings).await.unwrap_err().to_string()
}

/// Waits until a condition holds, which the journal brings about by itself.
async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it never comes about");
}

#[test]
fn opening_reports_a_wrong_setup_and_what_to_do() {
    with_server(async |server| {
        let config = server.config();
        for (config, words) in [
            (config.replace(PASSWORD, "wrong"), "check user and password"),
            (config.replace("dbname=postgres", "dbname=missing"), "create the database"),
            (config.replace(&format!("port={}", server.port()), "port=1"), "check host, port and network"),
            (format!("{config} sslmode=require"), "set ssl = on"),
        ] {
            let error = open_error(&config, settings()).await;
            assert!(error.contains(words) && !error.contains(PASSWORD), "{error}");
        }
        let none = PostgresJournalSettings { write_lanes: 0, ..settings() };
        assert!(matches!(PostgresJournal::lazy(&config, none), Err(OpenError::Settings(_))));
        assert!(matches!(PostgresJournal::lazy("port=no", settings()), Err(OpenError::Config(_))));
        let file = server.socket_directory().join("secret");
        std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
        let without = config.replace(&format!("password={PASSWORD}"), "");
        let journal = PostgresJournal::lazy_with_password_file(&without, &file, settings()).unwrap();
        journal.probe().await.unwrap();
    });
}

#[test]
fn concurrent_openings_migrate_a_schema_once_and_a_newer_schema_is_refused() {
    with_server(async |server| {
        let config = server.config();
        let named = |migrate| PostgresJournalSettings { schema: "odd \"name\"".to_owned(), migrate, ..settings() };
        let refused = open_error(&config, named(Migrate::Refuse)).await;
        assert!(refused.contains("version 0, this program needs 2"), "{refused}");
        let opened = futures::future::join_all((0..6).map(|_| PostgresJournal::open(&config, named(Migrate::Apply))));
        for journal in opened.await {
            let mut writer = Writer::claim(&journal.unwrap(), id("a|1")).await;
            writer.highest = SeqNr::ZERO;
        }
        let applied = server.psql("select version, name from \"odd \"\"name\"\"\".greylag_schema").unwrap();
        assert_eq!(applied.trim(), "1|journal\n2|clock");
        PostgresJournal::open(&config, named(Migrate::Refuse)).await.unwrap();
        server.psql("insert into \"odd \"\"name\"\"\".greylag_schema values (99, 'future')").unwrap();
        let newer = open_error(&config, named(Migrate::Apply)).await;
        assert!(newer.contains("version 99, and this program knows versions up to 2"), "{newer}");
    });
}

/// A journal waits for another node's migration longer than any statement may take.
#[test]
fn a_migration_waits_for_the_lock_longer_than_statement_timeout() {
    with_server(async |server| {
        let (other, _) = Database::parse(&server.config()).unwrap().connect("test").await.unwrap();
        other.batch_execute("begin; select pg_advisory_xact_lock(29117702755606887)").await.unwrap();
        let settings = PostgresJournalSettings { statement_timeout: Duration::from_millis(50), ..settings() };
        let config = server.config();
        let opening = tokio::spawn(async move { PostgresJournal::open(&config, settings).await });
        let has_waited_long = || {
            let sql = "select count(*) from pg_stat_activity
                       where wait_event_type = 'Lock' and query_start < clock_timestamp() - interval '150 ms'";
            server.psql(sql).unwrap().trim() == "1"
        };
        until(has_waited_long).await;
        other.batch_execute("commit").await.unwrap();
        opening.await.unwrap().unwrap();
    });
}

/// The database's superuser makes the tables, and grants their use.
#[test]
fn a_user_without_create_permission_works_on_existing_tables() {
    with_server(async |server| {
        server.psql("create role app login password 'app'; revoke create on schema public from public").unwrap();
        let config = server.config().replace("user=postgres", "user=app").replace(PASSWORD, "app");
        let error = open_error(&config, settings()).await;
        assert!(error.contains("apply the migrations for it"), "{error}");
        let by_hand: Vec<String> = MIGRATIONS
            .iter()
            .map(|step| {
                format!(
                    "{}; insert into greylag_schema (version, name) values ({}, '{}')",
                    step.sql, step.version, step.name
                )
            })
            .collect();
        let grant = "grant select, insert, update, delete on all tables in schema public to app";
        server.psql(&format!("begin; {SCHEMA_TABLE}; {}; commit; {grant}", by_hand.join("; "))).unwrap();
        let settings = PostgresJournalSettings { migrate: Migrate::Refuse, ..settings() };
        let journal = PostgresJournal::open(&config, settings).await.unwrap();
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        writer.append(&journal, &["x"]).await.unwrap();
        journal.delete_to(&writer.id, writer.epoch, SeqNr::MAX).await.unwrap();
        until(|| server.psql("select count(*) from event").unwrap().trim() == "0").await;
    });
}

/// A journal connects by itself when its server appears, whether it was opened before or has lost the server.
#[test]
fn health_follows_the_server_without_calls() {
    with_server(async |mut server| {
        let config = server.config();
        server.stop();
        let journal = PostgresJournal::lazy(&config, settings()).unwrap();
        until(|| matches!(journal.health(), Health::Down(_))).await;
        let down = journal.health().to_string();
        assert!(down.contains("check host, port and network"), "{down}");
        let short = PostgresJournalSettings { call_timeout: Duration::from_millis(300), ..settings() };
        let impatient = PostgresJournal::lazy(&config, short).unwrap();
        let error = impatient.head(&id("a|1")).await.unwrap_err();
        assert!(
            matches!(&error, ReadError::Unavailable(failure) if failure.text().contains("within 300ms")),
            "{error:?}"
        );
        server.restart().unwrap();
        until(|| journal.health() == Health::Up).await;
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        writer.append(&journal, &["x"]).await.unwrap();
        server.stop();
        until(|| matches!(journal.health(), Health::Down(_))).await;
        server.restart().unwrap();
        until(|| journal.health() == Health::Up).await;
        writer.append(&journal, &["y"]).await.unwrap();
        assert_eq!(payloads(&read_all(&journal, &writer.id).await), ["x", "y"]);
    });
}

/// A server without free connections degrades the journal, but does not make it unreachable.
#[test]
fn too_few_connections_do_not_take_an_open_store_down() {
    let Some(server) = Postgres::start_with(&["max_connections=5", "superuser_reserved_connections=1"]) else { return };
    runtime().block_on(async {
        server.psql("create role app login password 'app'; grant all on schema public to app").unwrap();
        let config = server.config().replace("user=postgres", "user=app").replace(PASSWORD, "app");
        let journal = PostgresJournal::open(&config, settings()).await.unwrap();
        // Two lanes, one connection to read, one to write: the server has no more for this user.
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        let heads = (0..8).map(|_| journal.head(&writer.id));
        for head in futures::future::join_all(heads).await {
            head.unwrap();
        }
        writer.append(&journal, &["x"]).await.unwrap();
        assert!(!matches!(journal.health(), Health::Down(_)), "{}", journal.health());
        let short = PostgresJournalSettings { call_timeout: Duration::from_millis(300), ..settings() };
        let late = PostgresJournal::lazy(&config, short).unwrap();
        until(|| matches!(late.health(), Health::Down(_))).await;
        let error = late.head(&writer.id).await.unwrap_err().to_string();
        assert!(error.contains("raise max_connections"), "{error}");
    });
}

/// TLS is set by the words of the connection string, as for the lease.
#[test]
fn verify_full_checks_the_authority() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let (files, root) = (authority.sign("server", &["127.0.0.1"]), authority.sign("root", &["a"]).ca);
    let tls = ServerTls { key: &files.key, cert: &files.cert, clients: None };
    let Some(server) = Postgres::start_with_tls(tls) else { return };
    runtime().block_on(async {
        let with = |root: &std::path::Path| format!("{} sslmode=verify-full sslrootcert={}", server.config(), root.display());
        let journal = PostgresJournal::open(&with(&root), settings()).await.unwrap();
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        writer.append(&journal, &["x"]).await.unwrap();
        let sql = "select bool_and(ssl) from pg_stat_ssl join pg_stat_activity using (pid) where application_name <> 'psql' \
                   and backend_type = 'client backend'";
        assert_eq!(server.psql(sql).unwrap().trim(), "t", "lanes and pools alike");
        let error = open_error(&with(&foreign.sign("root", &["a"]).ca), settings()).await;
        assert!(error.contains("check sslrootcert"), "{error}");
    });
}

/// J5: `synchronous_commit` is on for every connection, whatever the database's default is.
#[test]
fn commits_are_synchronous_on_every_connection() {
    with_server(async |server| {
        server.psql("alter database postgres set synchronous_commit = off").unwrap();
        let journal = open(&server).await;
        server
            .psql(
                "create function must_sync() returns trigger language plpgsql as $$ begin
                   if current_setting('synchronous_commit') <> 'on' then raise exception 'not durable'; end if;
                   return null;
                 end $$;
                 create trigger must_sync before insert or update on entity for each statement execute function must_sync();
                 create trigger must_sync before insert on event for each statement execute function must_sync();
                 create trigger must_sync before insert on snapshot for each statement execute function must_sync()",
            )
            .unwrap();
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        writer.append(&journal, &["x"]).await.unwrap();
        journal.delete_to(&writer.id, writer.epoch, SeqNr::FIRST).await.unwrap();
    });
}

#[test]
fn deleting_events_deletes_their_tags() {
    with_server(async |server| {
        let journal = open(&server).await;
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        for _ in 0..7 {
            writer.append(&journal, &["x"; 5]).await.unwrap();
        }
        let other = Writer::claim(&journal, id("a|2")).await;
        journal.append(other.next(&["kept"])).await.unwrap();
        // More events than one statement removes (`sweep_events` is 10).
        journal.delete_to(&writer.id, writer.epoch, SeqNr::from(33)).await.unwrap();
        assert_eq!(read_all(&journal, &writer.id).await.len(), 2, "at once, for readers");
        let left = "select (select count(*) from event), (select count(*) from event_tag)";
        until(|| server.psql(left).unwrap().trim() == "3|3").await;
        let tagged =
            "select string_agg(persistence_id || ' ' || seq_nr, ',' order by persistence_id, seq_nr) from event_tag";
        assert_eq!(server.psql(tagged).unwrap().trim(), "a|1 34,a|1 35,a|2 1");
    });
}

/// Persistence §4.4: events left by a process that ended amid a deletion are not read, and go with the next deletion.
#[test]
fn unswept_deleted_events_are_not_read_and_are_removed_by_the_next_deletion() {
    with_server(async |server| {
        let journal = open(&server).await;
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        writer.append(&journal, &["x"; 5]).await.unwrap();
        journal.close().await.unwrap();
        server.psql("update entity set deleted_to = 3 where persistence_id = 'a|1'").unwrap();
        let journal = open(&server).await;
        let writer = Writer::claim(&journal, id("a|1")).await;
        assert_eq!(read_all(&journal, &writer.id).await.len(), 2);
        // Queries do not show events of the last moment yet.
        let read = ReadJournal::new(Arc::new(journal.queries()), QuerySettings::test());
        let mut found = Vec::new();
        while found.len() < 2 {
            let events = read.current_events_by_slices("a", 0..=1023, Offset::None);
            found = events.map_ok(|event| event.seq_nr).try_collect().await.unwrap();
        }
        assert_eq!(found, [SeqNr::from(4), SeqNr::from(5)]);
        assert_eq!(server.psql("select count(*) from event").unwrap().trim(), "5", "the rows are there, and deleted");
        journal.delete_to(&writer.id, writer.epoch, SeqNr::from(4)).await.unwrap();
        let left = "select (select string_agg(seq_nr::text, ',') from event), (select count(*) from event_tag)";
        until(|| server.psql(left).unwrap().trim() == "5|1").await;
    });
}

/// The server cuts a page of large events: events that do not fit into the page are not transferred.
#[test]
fn a_page_transfers_only_the_events_that_fit() {
    with_server(async |server| {
        let proxy = Proxy::to(server.port()).await;
        let journal = PostgresJournal::open(&config_at(&server, proxy.port), settings()).await.unwrap();
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        let large = "x".repeat(100_000);
        writer.append(&journal, &[large.as_str(); 20]).await.unwrap();
        let before = proxy.answered();
        let range = ReadRange { max_bytes: 250_000, ..ReadRange::all() };
        let page = journal.read(&writer.id, range).await.unwrap();
        assert_eq!((page.records.len(), page.next), (2, Some(SeqNr::from(3))));
        let travelled = proxy.answered() - before;
        assert!(travelled < 300_000, "{travelled} bytes for a page of 200,000");
    });
}

/// Change queries hold back changes younger than `behind_current_time`, and show older ones.
#[test]
fn young_changes_are_held_back() {
    with_server(async |server| {
        let (held, max_clock_lag) = (Duration::from_secs(3600), Duration::from_secs(7200));
        let held = PostgresJournalSettings { behind_current_time: held, max_clock_lag, ..settings() };
        let held = PostgresJournal::open(&server.config(), held).await.unwrap().states();
        let at_once = PostgresJournalSettings { behind_current_time: Duration::ZERO, ..settings() };
        let at_once = PostgresJournal::open(&server.config(), at_once).await.unwrap().states();
        let value =
            EncodedValue { codec_id: CodecId::JSON, manifest: "s".into(), schema_version: 1, payload: "v".into() };
        let (id, revision, writer_uuid) = (id("s|1"), Revision::FIRST, WriterUuid::from_u128(1));
        let write = StateWrite { id, revision, generation: None, writer_uuid };
        held.upsert(write, value, Some("tag".to_owned())).await.unwrap();
        for of in
            [ChangesOf::Tag("tag".to_owned()), ChangesOf::Slices { entity_type: "s".to_owned(), slices: 0..=1023 }]
        {
            assert_eq!(held.changes(&of, &Offset::None, 10).await.unwrap(), []);
            assert_eq!(at_once.changes(&of, &Offset::None, 10).await.unwrap().len(), 1);
        }
    });
}

/// J4, J11: a call that waits for a row lock, in a pool or a lane, does not hold up other ids or kinds of work.
#[test]
fn a_locked_row_blocks_its_own_lane_and_no_reader() {
    with_server(async |server| {
        let journal = open(&server).await;
        let locked = Writer::claim(&journal, id("locked")).await;
        let far = (0..).map(|number| id(&format!("far|{number}"))).find(|id| id.slice() % 2 != locked.id.slice() % 2);
        let mut far = Writer::claim(&journal, far.unwrap()).await;
        let (client, _) = Database::parse(&server.config()).unwrap().connect("test").await.unwrap();
        client.batch_execute("begin; select * from entity where persistence_id = 'locked' for update").await.unwrap();
        let (one, two) = (journal.clone(), journal.clone());
        let append = locked.next(&["x"]);
        let appending = tokio::spawn(async move { one.append(append).await });
        let waiting_in_server = || {
            let sql = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
            server.psql(sql).unwrap().trim() == "1"
        };
        until(waiting_in_server).await;
        let claimed = locked.id.clone();
        let claiming = tokio::spawn(async move { Writer::claim(&two, claimed).await });
        far.append(&journal, &["other lane"]).await.unwrap();
        assert_eq!(journal.head(&locked.id).await.unwrap().highest, SeqNr::ZERO, "readers see what is committed");
        assert_eq!(read_all(&journal, &far.id).await.len(), 1);
        assert!(!appending.is_finished() && !claiming.is_finished());
        client.batch_execute("commit").await.unwrap();
        appending.await.unwrap().unwrap();
        assert_eq!(claiming.await.unwrap().highest, SeqNr::FIRST, "the claim waited for the append");
    });
}

/// Persistence §4.4: each kind of work has connections of its own. While one kind waits on all of its connections, the
/// others go on.
#[test]
fn a_pool_with_all_connections_busy_blocks_no_other_pool() {
    with_server(async |server| {
        let limit = Duration::from_secs(60);
        let (statement_timeout, call_timeout, snapshot_timeout) = (limit, limit, limit);
        let patient = PostgresJournalSettings { statement_timeout, call_timeout, snapshot_timeout, ..settings() };
        let journal = PostgresJournal::open(&server.config(), patient).await.unwrap();
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        let (client, _) = Database::parse(&server.config()).unwrap().connect("test").await.unwrap();
        for (kind, table) in [("writes", "snapshot"), ("replay", "snapshot"), ("queries", "projection_owner")] {
            client.batch_execute(&format!("begin; lock table {table} in access exclusive mode")).await.unwrap();
            let wait = async |journal: PostgresJournal| match kind {
                "writes" => {
                    journal.snapshots().save(snapshot(id("a|1"))).await.unwrap();
                }
                "replay" => {
                    journal.snapshots().load(&id("a|1"), SnapshotCriteria::up_to(SeqNr::MAX)).await.unwrap();
                }
                _ => {
                    journal.offsets().claim("waits", 0..=1).await.unwrap();
                }
            };
            // As many waiting calls as each pool has connections.
            let waiting = futures::future::join(wait(journal.clone()), wait(journal.clone()));
            let others = async {
                let sql = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
                until(|| server.psql(sql).unwrap().trim() == "2").await;
                writer.append(&journal, &["x"]).await.unwrap();
                if kind != "writes" {
                    journal.claim(&writer.id, writer.uuid, Under::Seen(writer.epoch)).await.unwrap();
                }
                if kind != "replay" {
                    read_all(&journal, &writer.id).await;
                }
                if kind != "queries" {
                    journal.offsets().claim("goes on", 0..=1).await.unwrap();
                }
                assert_eq!(server.psql(sql).unwrap().trim(), "2", "{kind} wait still");
                client.batch_execute("commit").await.unwrap();
            };
            let others = async {
                tokio::time::timeout(limit / 2, others).await.unwrap_or_else(|_| panic!("{kind} hold up other work"));
            };
            futures::future::join(waiting, others).await;
        }
        assert_eq!(read_all(&journal, &writer.id).await.len(), 3);
    });
}

fn snapshot(id: PersistenceId) -> NewSnapshot {
    NewSnapshot {
        id,
        seq_nr: SeqNr::FIRST,
        codec_id: CodecId::JSON,
        manifest: "s".into(),
        schema_version: 1,
        payload: "v".into(),
        metadata: Default::default(),
    }
}

/// A call whose caller has stopped waiting does not leave a busy connection in the pool, on which others would wait.
#[test]
fn a_dropped_call_blocks_no_other_call() {
    with_server(async |server| {
        // A call on the connection of a waiting statement would take this long.
        let limit = Duration::from_secs(60);
        let patient = PostgresJournalSettings { statement_timeout: limit, call_timeout: limit, ..settings() };
        let journal = PostgresJournal::open(&server.config(), patient).await.unwrap();
        let locked = Writer::claim(&journal, id("locked")).await;
        let (client, _) = Database::parse(&server.config()).unwrap().connect("test").await.unwrap();
        client.batch_execute("begin; select * from entity where persistence_id = 'locked' for update").await.unwrap();
        // As many waiting calls as the pool has connections.
        for waiting in 1..=2 {
            let (journal, id) = (journal.clone(), locked.id.clone());
            let deleting = tokio::spawn(async move { journal.delete_to(&id, locked.epoch, SeqNr::FIRST).await });
            let sql = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
            until(|| server.psql(sql).unwrap().trim() == waiting.to_string()).await;
            deleting.abort();
            assert!(deleting.await.unwrap_err().is_cancelled());
        }
        let claiming = Writer::claim(&journal, id("free"));
        tokio::time::timeout(limit / 2, claiming).await.expect("a new connection is made");
        client.batch_execute("commit").await.unwrap();
    });
}

/// J13, and the limit of pending appends.
#[test]
fn appends_wait_for_room_and_close_answers_waiting_appends() {
    with_server(async |server| {
        let small = PostgresJournalSettings { max_pending_bytes: 4096, max_append_bytes: 64 << 10, ..settings() };
        let journal = PostgresJournal::open(&server.config(), small).await.unwrap();
        let mut writers = Vec::new();
        for number in 0..20 {
            writers.push(Writer::claim(&journal, id(&format!("w|{number}"))).await);
        }
        let text = "x".repeat(3000);
        let appends = writers.iter().map(|writer| journal.append(writer.next(&[&text])));
        for answer in futures::future::join_all(appends).await {
            answer.unwrap();
        }
        let large = "x".repeat(70_000);
        let refused = journal.append(writers[0].next(&[&large])).await;
        assert!(matches!(refused, Err(AppendError::Rejected(RejectReason::Other(_)))), "{refused:?}");
        let zero = NewEvent { manifest: "a\0b".to_owned(), ..common::event("x") };
        let mut append = writers[1].next(&[]);
        append.events = vec![zero];
        assert!(matches!(journal.append(append).await, Err(AppendError::Rejected(_))));

        let last = Writer::claim(&journal, id("last")).await;
        let (one, append) = (journal.clone(), last.next(&["x"]));
        let appending = async move { one.append(append).await };
        let (appended, closed) = tokio::join!(appending, journal.close());
        appended.unwrap();
        closed.unwrap();
        journal.close().await.unwrap();
        let after = journal.append(last.next(&["y"])).await;
        assert!(matches!(after, Err(AppendError::NotStored(_))), "{after:?}");
        let claim = journal.claim(&last.id, last.uuid, Under::Seen(last.epoch)).await;
        assert!(matches!(claim, Err(ClaimError::Unavailable(_))), "{claim:?}");
        assert!(SnapshotStore::health(&journal.snapshots()) == Health::Down("closed".to_owned()));
        let connections = "select count(*) from pg_stat_activity where backend_type = 'client backend' and \
                           application_name <> 'psql'";
        until(|| server.psql(connections).unwrap().trim() == "0").await;
    });
}

/// The table of a projection and its offsets are written in one transaction: each change counts exactly once.
#[test]
fn offsets_are_saved_in_the_transaction_of_the_handler() {
    with_server(async |server| {
        let settings = PostgresJournalSettings { schema: schema(), ..settings() };
        let journal = PostgresJournal::open(&server.config(), settings).await.unwrap();
        let offsets = journal.offsets();
        server.psql("create table total (amount bigint); insert into total values (0)").unwrap();
        let (mut client, _) = Database::parse(&server.config()).unwrap().connect("test").await.unwrap();
        let processed = |seq_nr: u32| {
            let position = Position::Timestamp(Timestamp::from_micros(u64::from(seq_nr)));
            [Processed { id: id("a|1"), seq_nr: SeqNr::from(seq_nr), position }]
        };
        let owned = offsets.claim("totals", 0..=1023).await.unwrap();
        for (seq_nr, commits) in [(1, true), (2, false), (2, true)] {
            let transaction = client.transaction().await.unwrap();
            transaction.execute("update total set amount = amount + 10", &[]).await.unwrap();
            offsets.save_within(&transaction, &owned, &processed(seq_nr)).await.unwrap();
            if commits {
                transaction.commit().await.unwrap();
            } else {
                transaction.rollback().await.unwrap();
            }
        }
        assert_eq!(offsets.load("totals", 0..=1023).await.unwrap(), processed(2));
        // A claim waits for the transaction that checked the fence; then the former owner is refused.
        let transaction = client.transaction().await.unwrap();
        offsets.save_within(&transaction, &owned, &processed(3)).await.unwrap();
        let successor = offsets.clone();
        let claiming = tokio::spawn(async move { successor.claim("totals", 0..=1023).await });
        let waits = || {
            server.psql("select count(*) from pg_stat_activity where wait_event_type = 'Lock'").unwrap().trim() == "1"
        };
        until(waits).await;
        transaction.commit().await.unwrap();
        let next = claiming.await.unwrap().unwrap();
        let transaction = client.transaction().await.unwrap();
        let stale = offsets.save_within(&transaction, &owned, &processed(4)).await;
        assert!(matches!(stale, Err(OffsetError::StaleOwner { .. })), "{stale:?}");
        transaction.rollback().await.unwrap();
        offsets.save(&next, &processed(5)).await.unwrap();
        assert_eq!(server.psql("select amount from total").unwrap().trim(), "20");
        assert_eq!(offsets.load("totals", 0..=1023).await.unwrap(), processed(5));
    });
}

/// Many writers share few commits: 1000 entities append an event each, at once.
#[test]
fn a_thousand_entities_share_few_commits() {
    with_server(async |server| {
        let journal = Arc::new(open(&server).await);
        let claims = (0..1000).map(|number| {
            let journal = journal.clone();
            async move { Writer::claim(&*journal, id(&format!("w|{number}"))).await }
        });
        let writers = futures::future::join_all(claims).await;
        common::at_inserts(&server, 0, "null");
        let appends = writers.iter().map(|writer| journal.append(writer.next(&["x"])));
        for answer in futures::future::join_all(appends).await {
            answer.unwrap();
        }
        let statements = common::inserts(&server);
        assert!(statements <= 20, "1000 appends took {statements} statements");
    });
}
