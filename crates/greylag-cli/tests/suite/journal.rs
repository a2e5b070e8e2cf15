//! `greylag journal`: the built binary, stores on disk, and a PostgreSQL server of the test's own.

use std::path::Path;
use std::process::Output;

use crate::common::{code, json, output_text, program};
use greylag_core::CodecId;
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{
    Append, EncodedValue, EventKind, Journal, NewEvent, NewSnapshot, PersistenceId, Revision, SeqNr, SnapshotStore,
    StateStore, StateWrite, Under, WriterEpoch, WriterUuid,
};
use greylag_testkit::postgres::{PASSWORD, Postgres, USER};
use serde_json::{Value, json};

const WRITER: WriterUuid = WriterUuid::from_u128(7);

async fn journal(arguments: &[&str]) -> Output {
    let output = program().arg("journal").args(arguments).output();
    tokio::time::timeout(std::time::Duration::from_secs(60), output).await.expect("it ends").expect("it starts")
}

fn url(path: &Path) -> String {
    format!("sled:{}", path.display())
}

fn id(text: &str) -> PersistenceId {
    PersistenceId::unique(text).unwrap()
}

fn event(payload: &str) -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "account.deposited".into(),
        schema_version: 2,
        kind: EventKind::Event,
        payload: payload.to_owned().into(),
        metadata: [("note".to_owned(), "x".into())].into(),
        tags: ["red".to_owned()].into(),
    }
}

async fn open(path: &Path) -> SledJournal {
    SledJournal::open(path, SledJournalSettings::test()).await.unwrap()
}

/// Appends events to an id that has no other writer.
async fn append(journal: &SledJournal, name: &str, events: Vec<NewEvent>) {
    let id = id(name);
    let seen = journal.head(&id).await.unwrap().epoch;
    let claim = journal.claim(&id, WRITER, Under::Seen(seen)).await.unwrap();
    let first = claim.highest.next().unwrap();
    journal.append(Append { id, epoch: claim.epoch, writer_uuid: WRITER, first, events }).await.unwrap();
}

/// Three accounts, one with all its events deleted; a snapshot; a state and a tombstone.
async fn fill(path: &Path) {
    let journal = open(path).await;
    let raw = NewEvent { codec_id: CodecId::PROST, payload: vec![8, 5].into(), ..event("") };
    append(&journal, "Account|1", vec![event(r#"{"cents":5}"#), raw, event("7")]).await;
    append(&journal, "Account|gone", vec![event("1"), event("2")]).await;
    append(&journal, "Account|größe", vec![event("1"); 3]).await;
    journal.delete_to(&id("Account|gone"), WriterEpoch::from_u64(1), SeqNr::MAX).await.unwrap();
    let snapshot = NewSnapshot {
        id: id("Account|1"),
        seq_nr: SeqNr::from(2),
        codec_id: CodecId::JSON,
        manifest: "account".into(),
        schema_version: 1,
        payload: "5".into(),
        metadata: Default::default(),
    };
    journal.snapshots().save(snapshot).await.unwrap();
    for (name, deleted) in [("State|1", false), ("State|gone", true)] {
        let write = |revision| StateWrite {
            id: id(name),
            revision: Revision::from(revision),
            generation: None,
            writer_uuid: WRITER,
        };
        let value =
            EncodedValue { codec_id: CodecId::JSON, manifest: "s".into(), schema_version: 1, payload: "[1]".into() };
        journal.states().upsert(write(1), value, None).await.unwrap();
        if deleted {
            journal.states().delete(write(2)).await.unwrap();
        }
    }
    journal.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_and_an_id_are_inspected_and_events_are_printed() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path()).await;
    let store = url(directory.path());
    let totals = json(&journal(&["inspect", &store, "--ids", "1", "--json"]).await);
    assert_eq!((&totals["ids"], &totals["events"], &totals["deleted_events"]), (&json!(5), &json!(6), &json!(2)));
    assert_eq!((&totals["states"], &totals["store"]), (&json!(2), &json!(store)));
    assert_eq!(totals["listed"], json!([{ "id": "Account|1", "highest": 3, "deleted_to": 0 }]));
    let text = journal(&["inspect", &store]).await;
    assert!(output_text(&text).contains("5 ids, 6 events (2 deleted), 2 durable states"), "{}", output_text(&text));

    let one = json(&journal(&["inspect", &store, "Account|1", "--json"]).await);
    assert_eq!((&one["head"]["highest"], &one["head"]["epoch"]), (&json!(3), &json!(1)));
    assert_eq!((&one["first"]["payload"]["cents"], &one["last"]["payload"]), (&json!(5), &json!(7)));
    assert_eq!((&one["snapshots"][0]["seq_nr"], &one["state"]), (&json!(2), &Value::Null));
    let gone = json(&journal(&["inspect", &store, "Account|gone", "--json"]).await);
    assert_eq!((&gone["head"]["deleted_to"], &gone["first"]), (&json!(2), &Value::Null));
    let state = journal(&["inspect", &store, "State|gone"]).await;
    assert!(
        output_text(&state).contains("revision 2") && output_text(&state).contains("(deleted)"),
        "{}",
        output_text(&state)
    );

    let events = journal(&["replay", &store, "Account|1", "--from", "2", "--json"]).await;
    let lines: Vec<Value> = output_text(&events).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{}", output_text(&events));
    assert_eq!((&lines[0]["seq_nr"], &lines[0]["payload_hex"]), (&json!(2), &json!("0805")));
    assert_eq!((&lines[0]["tags"], &lines[0]["metadata"]), (&json!(["red"]), &json!({ "note": "78" })));
    let text = journal(&["replay", &store, "Account|1", "--to", "1"]).await;
    assert!(
        output_text(&text).starts_with("1  2")
            && output_text(&text).contains(r#"account.deposited v2  {"cents":5}  #red"#)
    );
    assert_eq!(output_text(&text).lines().count(), 1);
}

/// Each failure names the store, leaves it as it was, and has advice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_have_an_exit_code_and_a_message() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path()).await;
    let (store, missing) = (url(directory.path()), url(&directory.path().join("missing")));
    for (arguments, exit, words) in [
        (&["inspect", &missing][..], 3, "check the path"),
        (&["verify", &missing], 3, "check the path"),
        (&["copy", &missing, &store], 3, "check the path"),
        (&["inspect", "mysql://u:secret@h/x"], 2, "sled:/path/to/directory"),
        (&["inspect", &store, "Account|9"], 1, "holds nothing of Account|9"),
        (&["replay", &store, "State|1"], 1, "holds nothing of State|1"),
        (&["replay", &store, " "], 2, "persistence id"),
        (&["inspect", "postgres://127.0.0.1:1/x?connect_timeout=1"], 3, "127.0.0.1:1"),
    ] {
        let output = journal(arguments).await;
        assert_eq!(code(&output), exit, "{arguments:?}: {}", output_text(&output));
        assert!(
            output_text(&output).contains(words) && !output_text(&output).contains("secret"),
            "{arguments:?}: {}",
            output_text(&output)
        );
    }
    assert!(!directory.path().join("missing").exists(), "looking makes no store");

    let user = open(directory.path()).await;
    let target = tempfile::tempdir().unwrap();
    // Run at the same time, since each waits a while for the lock.
    let (to, empty) = (url(target.path()), url(target.path()));
    let (verify, copy_to, copy_from) = (["verify", &store], ["copy", &store, &to], ["copy", &empty, &store]);
    let outputs = tokio::join!(journal(&verify), journal(&copy_to), journal(&copy_from));
    for (output, words) in [
        (outputs.0, "stop the node that uses it"),
        (outputs.1, "stop the node that uses it"),
        (outputs.2, "check the path"),
    ] {
        assert_eq!(code(&output), 3, "{}", output_text(&output));
        assert!(output_text(&output).contains(words), "{}", output_text(&output));
    }
    user.close().await.unwrap();
}

/// A journal is copied from sled to PostgreSQL and back, and is equal at each end; an interrupted copy continues; a
/// planted difference is named; a database in use is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_moves_to_postgresql_and_back() {
    let Some(server) = Postgres::start() else { return };
    let (directory, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fill(directory.path()).await;
    let (sled, returned) = (url(directory.path()), url(back.path()));
    let postgres = format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/postgres?schema=moved", server.port());

    // A copy that fails at the third id, like an interrupted one.
    server.psql("create schema moved").unwrap();
    let made = journal(&["copy", &returned, &postgres]).await;
    assert_eq!(code(&made), 3, "there is nothing to copy yet: {}", output_text(&made));
    open(back.path()).await.close().await.unwrap();
    assert_eq!(code(&journal(&["copy", &returned, &postgres]).await), 0, "the tables are made");
    let plant = "set search_path to moved; create function stop() returns trigger language plpgsql as $$ begin \
                 raise exception 'as planned'; end $$; \
                 create trigger stop before insert on durable_state execute function stop()";
    server.psql(plant).unwrap();
    let stopped = journal(&["copy", &sled, &postgres]).await;
    assert_eq!(code(&stopped), 1, "{}", output_text(&stopped));
    assert!(
        output_text(&stopped).contains("State|1") && output_text(&stopped).contains("as planned"),
        "{}",
        output_text(&stopped)
    );
    let different = journal(&["verify", &sled, &postgres]).await;
    assert_eq!(code(&different), 5, "{}", output_text(&different));
    assert!(
        output_text(&different).contains("state of State|1: revision is 1 in the first store"),
        "{}",
        output_text(&different)
    );
    server.psql("drop trigger stop on moved.durable_state").unwrap();
    let copied = json(&journal(&["copy", &sled, &postgres, "--json"]).await);
    assert_eq!(copied["equal_ids"], 3, "it goes on after the histories: {copied}");
    assert_eq!(copied["written"], json!({ "ids": 2, "events": 0, "snapshots": 0, "states": 2 }));

    let back_again = journal(&["copy", &postgres, &returned]).await;
    assert_eq!(code(&back_again), 0, "{}", output_text(&back_again));
    for (first, second) in [(&sled, &postgres), (&postgres, &returned), (&sled, &returned)] {
        let verified = json(&journal(&["verify", first, second, "--json"]).await);
        assert_eq!((&verified["equal"], &verified["intact"]), (&json!(true), &json!(true)), "{verified}");
        assert_eq!(verified["counts"], json!({ "ids": 5, "events": 6, "snapshots": 1, "states": 2 }));
        assert!(!verified.to_string().contains(PASSWORD), "{verified}");
    }

    // Changes a byte of an event without its checksum; then a column that no checksum covers.
    server.psql("update moved.event set payload = '8' where persistence_id = 'Account|1' and seq_nr = 3").unwrap();
    let damaged = journal(&["verify", &postgres, "--json"]).await;
    let told: Value = serde_json::from_slice(&damaged.stdout).unwrap();
    assert_eq!((code(&damaged), &told["differences"][0]["place"]), (5, &json!("event 3")), "{told}");
    let refused = journal(&["copy", &postgres, &url(&back.path().join("other"))]).await;
    assert!(code(&refused) == 1 && output_text(&refused).contains("event 3 of Account|1"), "{}", output_text(&refused));
    server.psql("update moved.event set payload = '7' where persistence_id = 'Account|1' and seq_nr = 3").unwrap();
    server.psql("update moved.entity set writer_epoch = 9 where persistence_id = 'Account|gone'").unwrap();
    let different = json_of_five(&journal(&["verify", &sled, &postgres, "--json"]).await);
    assert_eq!(
        different["differences"][0]["what"],
        "head of Account|gone: epoch is 1 in the first store, and 9 in the second store"
    );

    let settings = greylag_journal_postgres::PostgresJournalSettings { schema: "moved".into(), ..Default::default() };
    let user = greylag_journal_postgres::PostgresJournal::open(&server.config(), settings).await.unwrap();
    // After this call the pool keeps a connection; opening the journal leaves none.
    user.head(&id("Account|1")).await.unwrap();
    let (verify, copy_from, copy_to) =
        (["verify", &postgres], ["copy", &postgres, &returned], ["copy", &returned, &postgres]);
    let refused = tokio::join!(journal(&verify), journal(&copy_from), journal(&copy_to));
    for refused in [refused.0, refused.1, refused.2] {
        assert_eq!(code(&refused), 1, "{}", output_text(&refused));
        assert!(output_text(&refused).contains("in use"), "{}", output_text(&refused));
    }
    assert_eq!(code(&journal(&["inspect", &postgres]).await), 0, "inspecting does not disturb the user");
    user.close().await.unwrap();
}

fn json_of_five(output: &Output) -> Value {
    assert_eq!(code(output), 5, "{}", output_text(output));
    serde_json::from_slice(&output.stdout).unwrap()
}
