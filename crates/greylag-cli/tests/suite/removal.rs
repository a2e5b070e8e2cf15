//! Sharding scenario 79: `greylag shards remove-internal-data`, the built binary on a store of its own.

use std::path::Path;
use std::process::Output;

use crate::common::{code, json, output_text, program};
use greylag_core::CodecId;
use greylag_journal_sled::{SledJournal, SledJournalSettings};
use greylag_persistence::{
    Append, EventKind, Journal, NewEvent, NewSnapshot, PersistenceId, SeqNr, SnapshotStore, Under, WriterUuid,
};
use serde_json::json;

const WRITER: WriterUuid = WriterUuid::from_u128(7);

async fn remove(store: &Path, arguments: &[&str]) -> Output {
    let store = format!("sled:{}", store.display());
    let mut command = program();
    command.args(["shards", "remove-internal-data", "--store", &store]).args(arguments);
    tokio::time::timeout(std::time::Duration::from_secs(60), command.output())
        .await
        .expect("it ends")
        .expect("it starts")
}

fn id(text: &str) -> PersistenceId {
    PersistenceId::unique(text).unwrap()
}

async fn open(path: &Path) -> SledJournal {
    SledJournal::open(path, SledJournalSettings::test()).await.unwrap()
}

/// Stores one event of an id, and a snapshot if `with_snapshot`.
async fn write(journal: &SledJournal, name: &str, with_snapshot: bool) {
    let event = NewEvent {
        codec_id: CodecId::JSON,
        manifest: "x".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: "1".into(),
        metadata: Default::default(),
        tags: Default::default(),
    };
    let id = id(name);
    let claim = journal.claim(&id, WRITER, Under::Seen(Default::default())).await.unwrap();
    let first = claim.highest.next().unwrap();
    let append = Append { id: id.clone(), epoch: claim.epoch, writer_uuid: WRITER, first, events: vec![event] };
    journal.append(append).await.unwrap();
    if with_snapshot {
        let snapshot = NewSnapshot {
            id,
            seq_nr: SeqNr::FIRST,
            codec_id: CodecId::JSON,
            manifest: "x".into(),
            schema_version: 1,
            payload: "1".into(),
            metadata: Default::default(),
        };
        journal.snapshots().save(snapshot).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_79_internal_data_are_removed_type_by_type() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path()).await;
    write(&journal, "/sharding/OnlyEventsCoordinator", false).await;
    write(&journal, "/sharding/BothCoordinator", true).await;
    write(&journal, "/sharding/BothShard/1", true).await;
    write(&journal, "/sharding/BothShard/22", false).await;
    write(&journal, "/sharding/OtherShard/1", false).await;
    write(&journal, "Both|1", false).await;
    journal.close().await.unwrap();

    let usage = remove(directory.path(), &[]).await;
    assert!(code(&usage) == 2 && output_text(&usage).contains("Usage:"), "{}", output_text(&usage));
    let bad = remove(directory.path(), &["a|b"]).await;
    assert_eq!(code(&bad), 2, "{}", output_text(&bad));
    // Its coordinator wrote a moment ago, so the cluster may be running. Types named before it are removed.
    let running = remove(directory.path(), &["Nothing", "Both", "OnlyEvents"]).await;
    assert_eq!(code(&running), 1, "{}", output_text(&running));
    for wanted in ["seems to be running", "/sharding/BothCoordinator", "--force", "removed before: Nothing"] {
        assert!(output_text(&running).contains(wanted), "{wanted}: {}", output_text(&running));
    }

    let types = ["Nothing", "OnlyEvents", "Both"];
    let all = ["--force", "--remembered", "--legacy", "--json"];
    let removed = json(&remove(directory.path(), &[&all[..], &types[..]].concat()).await);
    let expected = json!([
        { "entity_type": "Nothing", "events": false, "snapshots": false, "remembered": false },
        { "entity_type": "OnlyEvents", "events": true, "snapshots": false, "remembered": false },
        { "entity_type": "Both", "events": true, "snapshots": true, "remembered": true },
    ]);
    assert_eq!(removed["removed"], expected);
    let again = remove(directory.path(), &["Both"]).await;
    assert!(code(&again) == 0 && output_text(&again).contains("Both: nothing was stored"), "{}", output_text(&again));

    let journal = open(directory.path()).await;
    for (name, is_left) in [
        ("/sharding/OnlyEventsCoordinator", false),
        ("/sharding/BothCoordinator", false),
        ("/sharding/BothShard/1", false),
        ("/sharding/BothShard/22", false),
        ("/sharding/OtherShard/1", true),
        ("Both|1", true),
    ] {
        let head = journal.head(&id(name)).await.unwrap();
        assert_eq!(head.highest > head.deleted_to, is_left, "{name}");
    }
    journal.close().await.unwrap();
}
