//! The journal's counters, and how its appends share statements.

use crate::common;

use std::time::Duration;

use crate::common::{Writer, event, id, open, raise, read_all, settings, with_server};
use greylag_core::CodecId;
use greylag_journal_postgres::{PostgresJournal, PostgresJournalSettings};
use greylag_persistence::{AppendError, Journal, NewEvent, NewSnapshot, SeqNr, SnapshotStore};

/// Persistence §10.16: appends, events, batch size, latency, pending bytes, and every kind of refusal are counted.
#[test]
fn outcomes_of_appends_are_counted() {
    with_server(async |server| {
        let journal = open(&server).await;
        assert_eq!(journal.stats(), Default::default());
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        writer.append(&journal, &["one", "two"]).await.unwrap();
        writer.append(&journal, &["three"]).await.unwrap();
        let old = writer.clone();
        let mut empty = writer.next(&[]);
        empty.events.clear();
        assert!(matches!(journal.append(empty).await, Err(AppendError::Rejected(_))));
        let mut ahead = writer.next(&["hole"]);
        ahead.first = SeqNr::saturating(9);
        assert!(matches!(journal.append(ahead).await, Err(AppendError::Conflict { .. })));
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        assert!(matches!(journal.append(old.next(&["late"])).await, Err(AppendError::Fenced { .. })));
        common::at_inserts(&server, 1, &raise("42501"));
        assert!(matches!(writer.append(&journal, &["refused"]).await, Err(AppendError::NotStored(_))));
        writer.append(&journal, &["four"]).await.unwrap();
        let snapshot = NewSnapshot {
            id: id("a|1"),
            seq_nr: writer.highest,
            codec_id: CodecId::JSON,
            manifest: "state".into(),
            schema_version: 1,
            payload: vec![7; 500].into(),
            metadata: Default::default(),
        };
        journal.snapshots().save(snapshot).await.unwrap();
        let stats = journal.stats();
        assert_eq!((stats.appends, stats.events), (3, 4));
        let refused = (stats.rejected, stats.conflicts, stats.fenced, stats.not_stored, stats.unknown);
        assert_eq!(refused, (1, 1, 1, 1, 0), "{stats:?}");
        // A statement whose appends did not match their heads counts as answered, too.
        assert_eq!((stats.statements, stats.carried, stats.largest_batch), (5, 5, 1));
        assert_eq!(stats.failed_statements, 1);
        assert!(stats.bytes > 15 && stats.longest_commit > Duration::ZERO, "{stats:?}");
        assert!(stats.mean_commit() <= stats.longest_commit);
        assert_eq!((stats.snapshots, stats.snapshot_bytes, stats.failed_snapshots), (1, 500, 0));
        assert_eq!(stats.pending_bytes, 0, "nothing waits");
        // Every handle gives the same numbers.
        assert_eq!(journal.clone().stats(), stats);
    });
}

/// Bytes of appends are counted as pending while the appends wait.
#[test]
fn pending_bytes_are_counted() {
    with_server(async |server| {
        let journal = open(&server).await;
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        server.psql("create table gate (open boolean)").unwrap();
        common::at_inserts(&server, 1, "while not exists (select from gate) loop perform pg_sleep(0.01); end loop");
        let (appended, ()) = futures::join!(writer.append(&journal, &["waits"]), async {
            while journal.stats().pending_bytes == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(journal.stats().appends, 0);
            server.psql("insert into gate values (true)").unwrap();
        });
        appended.unwrap();
        assert_eq!((journal.stats().pending_bytes, journal.stats().appends), (0, 1));
    });
}

/// Persistence §4.4: one statement carries many ids, in whatever order they arrive, with tags and without.
#[test]
fn events_with_and_without_tags_share_a_statement() {
    with_server(async |server| {
        let one_lane = PostgresJournalSettings { write_lanes: 1, pipeline: 1, ..settings() };
        let journal = PostgresJournal::open(&server.config(), one_lane).await.unwrap();
        let mut writers = Vec::new();
        for name in ["z|1", "a|2", "m|3", "b|4"] {
            writers.push(Writer::claim(&journal, id(name)).await);
        }
        let bare =
            |payload: &str| NewEvent { tags: Default::default(), metadata: Default::default(), ..event(payload) };
        let tagged = |payload: &str| NewEvent { tags: ["x".to_owned(), "y".to_owned()].into(), ..event(payload) };
        let mixes: [&[NewEvent]; 4] =
            [&[bare("1"), tagged("2")], &[tagged("3")], &[bare("4")], &[bare("5"), bare("6")]];
        // The first goes at once, the rest wait and go together.
        let appends = writers.iter().zip(mixes).map(|(writer, events)| {
            let mut append = writer.next(&[]);
            append.events = events.to_vec();
            journal.append(append)
        });
        for answer in futures::future::join_all(appends).await {
            answer.unwrap();
        }
        let stats = journal.stats();
        assert_eq!((stats.appends, stats.events), (4, 6));
        assert!(stats.statements <= 2 && stats.largest_batch >= 3, "{stats:?}");
        for (writer, events) in writers.iter().zip(mixes) {
            let stored = read_all(&journal, &writer.id).await;
            assert_eq!(stored.len(), events.len(), "{}", writer.id);
            for (stored, event) in stored.iter().zip(events) {
                assert_eq!(
                    (&stored.payload, &stored.tags, &stored.metadata),
                    (&event.payload, &event.tags, &event.metadata)
                );
                assert_eq!(stored.writer_uuid, writer.uuid);
            }
        }
        assert_eq!(server.psql("select count(*) from event_tag").unwrap().trim(), "4");
        assert_eq!(server.psql("select count(*) from event where tags is null").unwrap().trim(), "4");
    });
}

/// A plan made while the tables were small must not read a whole large table for ever.
#[test]
fn appends_run_with_a_generic_plan_and_without_sequential_scans() {
    with_server(async |server| {
        let journal = open(&server).await;
        server
            .psql(
                "create function planned() returns trigger language plpgsql as $$ begin
                   if current_setting('enable_seqscan') <> 'off' or current_setting('plan_cache_mode') <> 'force_generic_plan'
                   then raise exception 'planned anew'; end if;
                   return null;
                 end $$;
                 create trigger planned before insert on event for each statement execute function planned()",
            )
            .unwrap();
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        writer.append(&journal, &["x"]).await.unwrap();
    });
}
