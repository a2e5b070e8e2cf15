//! Every outcome of the table in persistence §4.4, and scenarios 61 to 65 and 69, on a real server.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::proxy::{Proxy, Step};
use crate::common::{
    Writer, at_inserts, config_at, event, id, inserts, open, payloads, raise, read_all, refuse, settings, with_server,
};
use futures::StreamExt as _;
use greylag_core::{CodecId, Generation};
use greylag_journal_postgres::{PostgresJournal, PostgresJournalSettings};
use greylag_persistence::{
    Append, AppendError, ChangesOf, ClaimError, DeleteError, EncodedValue, EventQueries, Head, Health, InMemoryJournal,
    Journal, Offset, ReadRange, RejectReason, Revision, SeqNr, SnapshotCriteria, SnapshotStore, StateStore, StateWrite,
    StateWriteError, Under, WriterEpoch, WriterUuid,
};
use greylag_testkit::postgres::Postgres;

/// A journal behind a proxy, with a short timeout of appends.
async fn behind(proxy: &Proxy, server: &Postgres, append_timeout: Duration) -> PostgresJournal {
    let settings = PostgresJournalSettings { append_timeout, ..settings() };
    PostgresJournal::open(&config_at(server, proxy.port), settings).await.unwrap()
}

/// The sources of an error, from the outermost on.
fn sources(error: &dyn Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |&source| source.source())
}

/// The code of the server's error that led to `error`.
fn code_of(error: &dyn Error) -> Option<String> {
    let mut found = sources(error).filter_map(|source| source.downcast_ref::<tokio_postgres::Error>()?.code());
    found.next().map(|code| code.code().to_owned())
}

fn generation(seq: u64) -> Generation {
    Generation::new(1, seq).unwrap()
}

fn state_write(name: &str, revision: u32, writer: u128) -> StateWrite {
    let (revision, writer_uuid) = (Revision::from(revision), WriterUuid::from_u128(writer));
    StateWrite { id: id(name), revision, generation: None, writer_uuid }
}

fn state(payload: &'static str) -> EncodedValue {
    EncodedValue { codec_id: CodecId::JSON, manifest: "state".into(), schema_version: 1, payload: payload.into() }
}

/// 40001 and 40P01 are certain rollbacks, and tried again until they pass.
#[test]
fn rollbacks_are_tried_again() {
    with_server(async |server| {
        let journal = open(&server).await;
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        for (state, times) in [("40001", 1), ("40P01", 5)] {
            at_inserts(&server, times, &raise(state));
            writer.append(&journal, &["x"]).await.unwrap();
            assert_eq!(inserts(&server), times + 1, "{state}: so often was it tried");
        }
        assert_eq!(payloads(&read_all(&journal, &writer.id).await), ["x", "x"], "and stored once each");
    });
}

/// After three tries each id goes alone, so that an id that always fails stops no other (J11).
#[test]
fn an_id_that_always_rolls_back_blocks_no_other() {
    with_server(async |server| {
        let settings = PostgresJournalSettings {
            write_lanes: 1,
            pipeline: 1,
            append_timeout: Duration::from_secs(4),
            ..settings()
        };
        let journal = PostgresJournal::open(&server.config(), settings).await.unwrap();
        let bad = Writer::claim(&journal, id("bad")).await;
        let good = Writer::claim(&journal, id("good")).await;
        server
            .psql(
                "create function at_bad() returns trigger language plpgsql as $$ begin
                   if new.persistence_id = 'bad' then raise exception 'as planned' using errcode = '40001'; end if;
                   return new;
                 end $$;
                 create trigger at_bad before insert on event for each row execute function at_bad()",
            )
            .unwrap();
        let (bad, good) = tokio::join!(journal.append(bad.next(&["x"])), journal.append(good.next(&["x"])));
        // Unknown if a try is under way at the end.
        assert!(matches!(&bad, Err(AppendError::NotStored(_) | AppendError::Unknown(_))), "{bad:?}");
        assert!(good.is_ok(), "{good:?}");
    });
}

/// Scenario persistence 61, the certain half: the first try meets a full disk, or is refused.
#[test]
fn scenario_61_a_refusal_at_a_first_try_is_certain() {
    with_server(async |server| {
        let journal = open(&server).await;
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        at_inserts(&server, 1, &raise("53100"));
        let low = writer.append(&journal, &["x"]).await.unwrap_err();
        let is_low = matches!(&low, AppendError::Rejected(RejectReason::StorageLow(words)) if words.contains("53100"));
        assert!(is_low, "{low:?}");
        at_inserts(&server, 1, &raise("42501"));
        let refused = writer.append(&journal, &["x"]).await.unwrap_err();
        assert!(matches!(&refused, AppendError::NotStored(failure) if failure.text().contains("42501")), "{refused:?}");
        assert_eq!(code_of(&refused).as_deref(), Some("42501"), "it keeps the server's error");
        at_inserts(&server, 1, &raise("XX000"));
        assert!(matches!(writer.append(&journal, &["x"]).await, Err(AppendError::NotStored(_))));
        writer.append(&journal, &["x"]).await.unwrap();
        assert_eq!(read_all(&journal, &writer.id).await.len(), 1, "and nothing of the others");
    });
}

/// Scenario persistence 61: try 1 loses its answer, stored or not; an error of try 2 does not prove that nothing is
/// stored.
#[test]
fn scenario_61_a_refusal_after_an_unanswered_try_is_not() {
    with_server(async |server| {
        let proxy = Proxy::to(server.port()).await;
        let journal = behind(&proxy, &server, Duration::from_secs(20)).await;
        let server = Arc::new(server);
        for (number, state) in ["53100", "42501", "23505"].into_iter().enumerate() {
            for carried in [true, false] {
                let mut writer = Writer::claim(&journal, id(&format!("full-{number}-{carried}"))).await;
                let full = server.clone();
                let fill = Step::Before(Box::new(move || at_inserts(&full, 1, &raise(state))));
                proxy.script(writer.id.as_str(), [Step::Break { carried }, fill]);
                let answer = writer.append(&journal, &["x"]).await;
                assert!(matches!(answer, Err(AppendError::Unknown(_))), "{state} {carried}: {answer:?}");
                assert_eq!(proxy.left(), 0);
                // Recovery finds the event once or not at all, and the writer continues.
                let mut next = Writer::claim(&journal, writer.id.clone()).await;
                assert_eq!(read_all(&journal, &writer.id).await.len(), usize::from(carried));
                next.append(&journal, &["y"]).await.unwrap();
            }
        }
    });
}

/// Scenario persistence 61: try 2 loses its server. 57P0x counts as a loss, and so does a broken connection.
#[test]
fn scenario_61_a_lost_server_leaves_unknown_or_not_stored() {
    with_server(async |mut server| {
        let proxy = Proxy::to(server.port()).await;
        let journal = behind(&proxy, &server, Duration::from_secs(2)).await;
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        // The server ends the connection in the midst of the statement.
        at_inserts(&server, 2, "perform pg_terminate_backend(pg_backend_pid())");
        writer.append(&journal, &["x"]).await.unwrap();
        assert_eq!(inserts(&server), 3, "tried until it passed");
        // The state is set for good, since a last try may still be under way when the append is answered.
        refuse(&server, "y", "57P01");
        let unknown = writer.append(&journal, &["y"]).await.unwrap_err();
        assert!(matches!(&unknown, AppendError::Unknown(failure) if failure.text().contains("57P01")), "{unknown:?}");
        let mut writer = Writer::claim(&journal, writer.id).await;
        server.stop();
        // An append that never left this process is certainly not stored.
        let began = Instant::now();
        let away = loop {
            match writer.append(&journal, &["z"]).await.unwrap_err() {
                AppendError::NotStored(failure) => break failure,
                error @ AppendError::Unknown(_) if began.elapsed() < Duration::from_secs(30) => drop(error),
                error => panic!("{error:?}"),
            }
        };
        assert!(away.text().contains("not sent within 2s"), "{away}");
        assert!(sources(&away).any(<dyn Error>::is::<tokio_postgres::Error>), "it keeps the last error: {away}");
        assert_ne!(journal.health(), Health::Up);
        server.restart().unwrap();
        let mut writer = Writer::claim(&journal, writer.id).await;
        writer.append(&journal, &["z"]).await.unwrap();
        assert_eq!(journal.health(), Health::Up);
        assert_eq!(payloads(&read_all(&journal, &writer.id).await), ["x", "z"]);
    });
}

/// Scenario persistence 62: an append is stored and unanswered, and its event is deleted by its own writer before the
/// second try.
#[test]
fn scenario_62_deleted_between_two_tries_is_unknown() {
    with_server(async |server| {
        let proxy = Proxy::to(server.port()).await;
        let journal = behind(&proxy, &server, Duration::from_secs(20)).await;
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        let server = Arc::new(server);
        // Also Unknown if another writer has claimed since: Fenced would say that the append was not stored.
        for claimed in ["", ", writer_epoch = writer_epoch + 1"] {
            let behind_our_back = server.clone();
            let delete = Step::Before(Box::new(move || {
                let sql = format!("update entity set deleted_to = highest_seq_nr{claimed}; delete from event");
                behind_our_back.psql(&sql).unwrap();
            }));
            let before = journal.head(&writer.id).await.unwrap().highest;
            proxy.script("a|1", [Step::Break { carried: true }, delete]);
            let answer = writer.append(&journal, &["x"]).await;
            assert!(matches!(answer, Err(AppendError::Unknown(_))), "{answer:?}");
            let highest = journal.head(&writer.id).await.unwrap().highest;
            assert_eq!(Some(highest), before.next(), "it was stored");
            writer.highest = highest;
        }
    });
}

/// 23505: an event stands beyond the head's number. Nothing is stored, and the error names the id and the numbers.
#[test]
fn an_event_beyond_its_head_is_reported_as_corrupt() {
    with_server(async |server| {
        let journal = open(&server).await;
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        writer.append(&journal, &["x"]).await.unwrap();
        server.psql("update entity set highest_seq_nr = 0").unwrap();
        writer.highest = SeqNr::ZERO;
        let other = Writer::claim(&journal, id("a|2")).await;
        let (corrupt, fine) = tokio::join!(journal.append(writer.next(&["other"])), journal.append(other.next(&["x"])));
        let text = corrupt.unwrap_err().to_string();
        assert!(text.contains("stored data of a|1 is corrupt") && text.contains("23505"), "{text}");
        assert!(fine.is_ok(), "{fine:?}");
        // An append of the very same content is a repeat of the stored one.
        journal.append(writer.next(&["x"])).await.unwrap_err();
    });
}

/// Scenario persistence 63: the answer to a claim is lost; both copies answer one epoch, and appends go on.
/// A late copy under a generation takes the id back; its writer finds its own uuid and recovers again.
#[test]
fn scenario_63_a_late_copy_of_a_claim() {
    with_server(async |server| {
        let proxy = Proxy::to(server.port()).await;
        let journal = behind(&proxy, &server, Duration::from_secs(20)).await;
        let (history, uuid) = (id("a|1"), WriterUuid::from_u128(1));
        proxy.script("a|1", [Step::Break { carried: true }]);
        let claim = journal.claim(&history, uuid, Under::Generation(generation(1))).await.unwrap();
        assert_eq!((claim.epoch, proxy.left()), (WriterEpoch::from_u64(1), 0), "the repeat raised nothing");
        let mut first = Writer { id: history.clone(), uuid, epoch: claim.epoch, highest: claim.highest };
        first.append(&journal, &["x"]).await.unwrap();

        let mut second = Writer::claim(&journal, history.clone()).await;
        second.append(&journal, &["y"]).await.unwrap();
        let late = journal.claim(&history, uuid, Under::Generation(generation(1))).await.unwrap();
        assert_eq!((late.epoch.as_u64(), late.highest.as_u64()), (3, 2));
        let fenced = first.append(&journal, &["zombie"]).await.unwrap_err();
        assert!(matches!(fenced, AppendError::Fenced { current } if current.is_held_by(uuid)), "{fenced:?}");
        let again = journal.claim(&history, uuid, Under::Generation(generation(1))).await.unwrap();
        let mut first = Writer { epoch: again.epoch, highest: again.highest, ..first };
        first.append(&journal, &["z"]).await.unwrap();
        assert_eq!(payloads(&read_all(&journal, &history).await), ["x", "y", "z"], "one history");
    });
}

/// Scenario persistence 64: `upsert` is stored, its answer is lost, and its repeat answers Ok: one change.
#[test]
fn scenario_64_a_state_write_is_repeated() {
    with_server(async |server| {
        let proxy = Proxy::to(server.port()).await;
        let journal = behind(&proxy, &server, Duration::from_secs(20)).await;
        let states = journal.states();
        let tag = || Some("tag".to_owned());
        for carried in [true, false] {
            for revision in 1..=3 {
                let name = format!("s|{carried}");
                proxy.script(&name, [Step::Break { carried }]);
                let write = state_write(&name, revision, 7);
                match revision {
                    3 => states.delete(write).await.unwrap(),
                    _ => states.upsert(write, state("v"), tag()).await.unwrap(),
                }
                assert_eq!(proxy.left(), 0);
                assert_eq!(states.get(&id(&name)).await.unwrap().revision, Revision::from(revision));
            }
        }
        let is_old = "select max(db_timestamp) < clock_timestamp() - interval '100 ms' from durable_state";
        while server.psql(is_old).unwrap().trim() != "t" {}
        let changes = states.changes(&ChangesOf::Tag("tag".to_owned()), &Offset::None, 10).await.unwrap();
        assert_eq!(changes.len(), 2, "one of each id: {changes:?}");

        // A full disk at a first try, and after an unanswered try; a later revision hides the outcome of the earlier
        // try.
        let other = states.upsert(state_write("s|true", 9, 7), state("v"), None).await.unwrap_err();
        assert!(matches!(other, StateWriteError::RevisionMismatch { .. }), "{other:?}");
        let server = Arc::new(server);
        let meanwhile = server.clone();
        let overtaken = Step::Before(Box::new(move || {
            meanwhile.psql("update durable_state set revision = revision + 1, crc32c = 1").unwrap();
        }));
        proxy.script("s|true", [Step::Break { carried: true }, overtaken]);
        let hidden = states.upsert(state_write("s|true", 4, 7), state("w"), None).await.unwrap_err();
        assert!(matches!(hidden, StateWriteError::Unknown(_)), "{hidden:?}");
    });
}

/// Scenario persistence 65: writer W0, without a generation, is answered Unknown; W1 claims and appends. The head that
/// W0 reads then fences it, and its claim under the epoch that it knew changes nothing.
#[test]
fn scenario_65_a_restart_without_a_generation() {
    with_server(async |server| {
        let proxy = Proxy::to(server.port()).await;
        let journal = behind(&proxy, &server, Duration::from_secs(2)).await;
        let mut w0 = Writer::claim(&journal, id("a|1")).await;
        refuse(&server, "w0", "57P01");
        assert!(matches!(w0.append(&journal, &["w0"]).await, Err(AppendError::Unknown(_))));
        let mut w1 = Writer::claim(&journal, w0.id.clone()).await;
        w1.append(&journal, &["w1"]).await.unwrap();
        let head = journal.head(&w0.id).await.unwrap();
        assert!(!head.is_held_by(w0.uuid) && head.epoch != w0.epoch, "{head:?}");
        let stale = journal.claim(&w0.id, WriterUuid::from_u128(99), Under::Seen(w0.epoch)).await;
        assert_eq!(stale, Err(ClaimError::Fenced { current: head }));
        w1.append(&journal, &["w1 again"]).await.unwrap();
        // A claim under an epoch that was seen elsewhere does not create the row either.
        let nowhere = journal.claim(&id("a|2"), w0.uuid, Under::Seen(w0.epoch)).await;
        assert_eq!(nowhere, Err(ClaimError::Fenced { current: Head::default() }));
        assert_eq!(payloads(&read_all(&journal, &w1.id).await), ["w1", "w1 again"]);
    });
}

/// One step of a writer; the server's answer is compared with that of the journal in memory.
#[derive(Debug, Clone, Copy)]
enum Move {
    Look,
    Claim,
    Append,
    Delete,
}

/// A writer's knowledge, from the answers that it got.
#[derive(Debug, Clone)]
struct Knows {
    writer: Writer,
    seen: WriterEpoch,
    under: Option<Generation>,
}

impl Knows {
    async fn make(&mut self, step: Move, journal: &dyn Journal) -> String {
        let id = self.writer.id.clone();
        match step {
            Move::Look => {
                let head = journal.head(&id).await.unwrap();
                self.seen = head.epoch;
                format!("{head:?}")
            }
            Move::Claim => {
                let under = self.under.map_or(Under::Seen(self.seen), Under::Generation);
                let claim = journal.claim(&id, self.writer.uuid, under).await;
                if let Ok(claim) = &claim {
                    (self.writer.epoch, self.writer.highest) = (claim.epoch, claim.highest);
                }
                format!("{claim:?}")
            }
            Move::Append => {
                let append = Append { events: vec![event(self.writer.uuid.to_string())], ..self.writer.next(&[]) };
                let answer = journal.append(append).await.map(drop);
                if answer.is_ok() {
                    self.writer.highest = self.writer.highest.next().unwrap();
                }
                format!("{answer:?}")
            }
            Move::Delete => {
                let answer: Result<SeqNr, DeleteError> = journal.delete_to(&id, self.writer.epoch, SeqNr::MAX).await;
                format!("{answer:?}")
            }
        }
    }
}

/// All ways to merge two lists of these lengths; true takes from the left one.
fn interleavings(left: usize, right: usize) -> Vec<Vec<bool>> {
    if left == 0 || right == 0 {
        return vec![std::iter::repeat_n(true, left).chain(std::iter::repeat_n(false, right)).collect()];
    }
    let begun_by = |is_left, rest: Vec<Vec<bool>>| {
        rest.into_iter().map(move |rest| std::iter::once(is_left).chain(rest).collect())
    };
    let (first, second) = (interleavings(left - 1, right), interleavings(left, right - 1));
    begun_by(true, first).chain(begun_by(false, second)).collect()
}

/// Scenario persistence 69, J3, J4: two writers, each with a look, a claim, an append and a late copy of the claim, in
/// every order, then a deletion by each, with generations and without. The server answers as the journal in memory
/// does, whose histories the model check has shown to be one; and afterwards a new writer can append.
#[test]
fn scenario_69_two_writers_in_every_order() {
    const MOVES: [Move; 4] = [Move::Look, Move::Claim, Move::Append, Move::Claim];
    with_server(async |server| {
        let (journal, memory) = (open(&server).await, InMemoryJournal::default());
        let kinds = [(None, None), (Some(generation(1)), Some(generation(2))), (Some(generation(1)), None)];
        let orders = interleavings(MOVES.len(), MOVES.len());
        let runs = kinds.into_iter().enumerate().flat_map(|(kind, under)| {
            let (journal, memory) = (&journal, &memory);
            orders.iter().enumerate().map(move |(number, order)| async move {
                let id = id(&format!("{kind}-{number}"));
                let knows = |uuid, under| Knows {
                    writer: Writer {
                        id: id.clone(),
                        uuid: WriterUuid::from_u128(uuid),
                        epoch: WriterEpoch::NONE,
                        highest: SeqNr::ZERO,
                    },
                    seen: WriterEpoch::NONE,
                    under,
                };
                let mut on_server = [knows(1, under.0), knows(2, under.1)];
                let mut in_memory = on_server.clone();
                let mut at = [0, 0];
                // At the end both writers delete all they may.
                let ends = [true, false].map(|is_left| (is_left, Move::Delete));
                let moves = order.iter().map(|is_left| {
                    at[usize::from(!is_left)] += 1;
                    (*is_left, MOVES[at[usize::from(!is_left)] - 1])
                });
                for (is_left, step) in moves.chain(ends) {
                    let who = usize::from(!is_left);
                    let answer = on_server[who].make(step, journal).await;
                    let expected = in_memory[who].make(step, memory).await;
                    assert_eq!(
                        answer, expected,
                        "{step:?} of writer {who} in order {number} of kind {kind}: {order:?}"
                    );
                }
                assert_eq!(journal.head(&id).await.unwrap(), memory.head(&id).await.unwrap());
                let mut last = Writer::claim(journal, id).await;
                last.append(journal, &["last"]).await.unwrap();
            })
        });
        futures::stream::iter(runs).buffer_unordered(16).collect::<Vec<()>>().await;
    });
}

/// Closing a reserved journal does not wait for a connection that has gone silent.
#[test]
fn a_reserved_journal_closes_although_its_connection_does_not_answer() {
    with_server(async |server| {
        let proxy = Proxy::to(server.port()).await;
        let settings = PostgresJournalSettings { connect_timeout: Duration::from_secs(2), ..settings() };
        let journal = PostgresJournal::open_exclusive(&config_at(&server, proxy.port), settings).await.unwrap();
        proxy.script("pg_advisory_unlock_all", [Step::Silence]);
        let closed = tokio::time::timeout(Duration::from_secs(20), journal.close()).await;
        assert!(matches!(closed, Ok(Ok(()))), "{closed:?}");
        assert_eq!(proxy.left(), 0, "it fell silent");
    });
}

/// Two stores of one database are closed at once: the second `close` must not cut off what the first waits for.
#[test]
fn closing_two_stores_at_once_answers_waiting_appends() {
    with_server(async |mut server| {
        let journal = PostgresJournal::open(&server.config(), settings()).await.unwrap();
        let writer = Writer::claim(&journal, id("a|1")).await;
        tokio::task::block_in_place(|| server.stop());
        let (one, append) = (journal.clone(), writer.next(&["x"]));
        let appending = tokio::spawn(async move { one.append(append).await });
        // Time for the append to begin.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (one, other) = (journal.clone(), journal.snapshots());
        let closing = [
            tokio::spawn(async move { one.close().await }),
            tokio::spawn(async move { SnapshotStore::close(&other).await }),
        ];
        tokio::time::sleep(Duration::from_millis(500)).await;
        tokio::task::block_in_place(|| server.restart()).unwrap();
        appending.await.unwrap().unwrap();
        for closed in closing {
            closed.await.unwrap().unwrap();
        }
        assert_eq!(server.psql("select count(*) from event").unwrap().trim(), "1");
    });
}

/// A standby takes connections but no appends. Waiting lanes must not connect to it without pauses.
#[test]
fn a_standby_is_asked_again_with_waits_that_grow() {
    with_server(async |server| {
        let journal = PostgresJournal::open(&server.config(), settings()).await.unwrap();
        let mut writer = Writer::claim(&journal, id("a|1")).await;
        server.psql("alter database postgres set default_transaction_read_only = on").unwrap();
        let others = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()";
        server.psql(&format!("select pg_terminate_backend(pid) {others}")).unwrap();
        let sessions = || {
            let counted = server.psql("select sessions from pg_stat_database where datname = 'postgres'").unwrap();
            counted.trim().parse::<u64>().unwrap()
        };
        let before = sessions();
        let (appended, ()) = futures::join!(writer.append(&journal, &["x"]), async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let health = journal.health();
            assert!(matches!(&health, Health::Down(why) if why.contains("name the primary")), "{health:?}");
            let back = "begin read write; alter database postgres reset default_transaction_read_only; commit";
            server.psql(back).unwrap();
        });
        appended.unwrap();
        let asked = sessions() - before;
        assert!(asked < 50, "{asked} connections within three seconds");
    });
}

/// A standby, which may lag, must not answer an entity that recovers, proves that it still owns a history, or reads a
/// state (persistence §4.4). It may answer queries.
#[test]
fn recovery_and_proof_of_ownership_read_the_primary_alone() {
    with_server(async |server| {
        let soon = Duration::from_secs(1);
        let settings = PostgresJournalSettings { call_timeout: soon, snapshot_timeout: soon, ..settings() };
        let journal = PostgresJournal::open(&server.config(), settings).await.unwrap();
        let (mut writer, states) = (Writer::claim(&journal, id("a|1")).await, journal.states());
        writer.append(&journal, &["x"]).await.unwrap();
        server.psql("alter database postgres set default_transaction_read_only = on").unwrap();
        let others = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()";
        server.psql(&format!("select pg_terminate_backend(pid) {others}")).unwrap();

        let told = |what: &str, answer: String| {
            assert!(answer.contains("name the primary"), "{what} was answered by a standby: {answer}");
        };
        told("a look at the head", format!("{:?}", journal.head(&writer.id).await));
        told("a replay", format!("{:?}", journal.read(&writer.id, ReadRange::all()).await));
        let latest = SnapshotCriteria::LATEST;
        told("the load of a snapshot", format!("{:?}", journal.snapshots().load(&writer.id, latest).await));
        told("the look at a state", format!("{:?}", states.get(&writer.id).await));
        let ids = journal.queries().persistence_ids(None, None, 10).await;
        assert_eq!(ids.unwrap(), [writer.id], "a query is");
    });
}
