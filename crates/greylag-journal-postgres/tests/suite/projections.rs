//! Projections against a real server: commits that become visible out of order, a server that is killed under load, and
//! rows that count each event exactly once.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::proxy::{Proxy, Step};
use crate::common::{Writer, config_at, id, open, settings as journal_settings, with_server};
use async_trait::async_trait;
use futures::TryStreamExt;
use futures::future::join_all;
use greylag_core::CodecId;
use greylag_journal_postgres::tokio_postgres::Transaction;
use greylag_journal_postgres::{
    PostgresHandler, PostgresJournal, PostgresJournalSettings, PostgresStates, Transactional,
};
use greylag_persistence::{
    BacktrackingSettings, BoxError, EncodedValue, Envelope, EventSource, Journal, Offset, OffsetStore, PersistenceId,
    ProjectionEnd, ProjectionHandle, ProjectionHandler, ProjectionId, ProjectionSettings, QuerySettings, ReadJournal,
    Revision, StateStore, StateWrite, WriterUuid, run_projection, run_transactional,
};
use greylag_testkit::postgres::Postgres;

/// Sequence numbers that a handler was given, by id.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<PersistenceId, Vec<u64>>>>);

impl Seen {
    fn count(&self) -> usize {
        self.0.lock().unwrap().values().map(Vec::len).sum()
    }
}

#[async_trait]
impl ProjectionHandler for Seen {
    async fn handle(&mut self, envelopes: &[Envelope]) -> Result<(), BoxError> {
        for envelope in envelopes {
            assert!(envelope.record.is_some(), "a handler gets events, not places");
            self.0.lock().unwrap().entry(envelope.id.clone()).or_default().push(envelope.seq_nr.as_u64());
        }
        Ok(())
    }
}

/// Times at which each event was acknowledged as durable and first handled, by id and sequence number.
#[derive(Clone, Default)]
struct Lags(Arc<Mutex<BTreeMap<(PersistenceId, u64), Times>>>);

#[derive(Clone, Copy, Default)]
struct Times {
    durable: Option<Instant>,
    handled: Option<Instant>,
}

impl Lags {
    fn durable(&self, id: &PersistenceId, seq_nr: u64) {
        self.0.lock().unwrap().entry((id.clone(), seq_nr)).or_default().durable = Some(Instant::now());
    }

    fn handled(&self, id: &PersistenceId, seq_nr: u64) {
        self.0.lock().unwrap().entry((id.clone(), seq_nr)).or_default().handled.get_or_insert_with(Instant::now);
    }

    /// Lags from durable to handled, shortest first: of events that became durable within one of `around`, and of the
    /// others. An event handled before its writer was answered has a lag of zero.
    fn split(&self, around: &[(Instant, Instant)]) -> [Vec<Duration>; 2] {
        let mut lags = [Vec::new(), Vec::new()];
        for times in self.0.lock().unwrap().values() {
            let (Some(durable), Some(handled)) = (times.durable, times.handled) else { continue };
            let is_around = around.iter().any(|(from, to)| (*from..=*to).contains(&durable));
            lags[usize::from(!is_around)].push(handled.saturating_duration_since(durable));
        }
        lags.each_mut().map(|lags| {
            lags.sort();
            std::mem::take(lags)
        })
    }
}

fn figures(lags: &[Duration]) -> String {
    let Some(longest) = lags.last() else { return "none".to_owned() };
    let part = |percent: usize| lags[(lags.len() * percent / 100).min(lags.len() - 1)];
    format!("{:.1?} (median), {:.1?} (p99), {longest:.1?} (longest) of {}", part(50), part(99), lags.len())
}

/// A handler that notes when it was given each event.
#[derive(Clone, Default)]
struct Noting {
    seen: Seen,
    lags: Lags,
}

#[async_trait]
impl ProjectionHandler for Noting {
    async fn handle(&mut self, envelopes: &[Envelope]) -> Result<(), BoxError> {
        for envelope in envelopes {
            self.lags.handled(&envelope.id, envelope.seq_nr.as_u64());
        }
        self.seen.handle(envelopes).await
    }
}

/// Inserts one row for each event, in the order of handling. The table has no unique key, so that a second row for an
/// event would be found.
struct Rows;

#[async_trait]
impl PostgresHandler for Rows {
    async fn handle(&mut self, transaction: &Transaction<'_>, envelopes: &[Envelope]) -> Result<(), BoxError> {
        for envelope in envelopes {
            let number = i64::try_from(envelope.seq_nr.as_u64())?;
            let sql = "insert into handled (persistence_id, seq_nr) values ($1, $2)";
            transaction.execute(sql, &[&envelope.id.as_str(), &number]).await?;
        }
        Ok(())
    }
}

const HANDLED: &str = "create table handled (place bigserial, persistence_id text, seq_nr bigint)";

fn settings() -> QuerySettings {
    let backtracking = BacktrackingSettings { behind: Duration::from_secs(3), ..BacktrackingSettings::default() };
    QuerySettings { backtracking, ..QuerySettings::test() }
}

fn projection(name: &str, slices: std::ops::RangeInclusive<u16>) -> ProjectionId {
    ProjectionId { name: name.to_owned(), entity_type: "Cart".to_owned(), slices }
}

fn stores(journal: &PostgresJournal) -> (ReadJournal, Arc<dyn OffsetStore>) {
    (ReadJournal::new(Arc::new(journal.queries()), settings()), Arc::new(journal.offsets()))
}

fn run_exactly_once(
    journal: &PostgresJournal,
    read: &ReadJournal,
    slices: std::ops::RangeInclusive<u16>,
) -> ProjectionHandle {
    let (handler, offsets) = (Transactional::new(journal.offsets(), Rows), Arc::new(journal.offsets()));
    run_transactional(projection("exactly", slices), read, offsets, handler, ProjectionSettings::test()).unwrap()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let holds = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), holds).await.unwrap_or_else(|_| panic!("{what} does not come about"));
}

fn count(server: &Postgres, sql: &str) -> u64 {
    server.psql(sql).ok().and_then(|answer| answer.trim().parse().ok()).unwrap_or(0)
}

/// Holds up the commits of appends of one id until the gate is open.
fn hold_up(server: &Postgres, id: &str) {
    let sql = format!(
        "create table gate (open boolean);
         create or replace function hold_up() returns trigger language plpgsql as $$ begin
           while not exists (select from gate) loop perform pg_sleep(0.01); end loop; return new;
         end $$;
         create or replace trigger hold_up before insert on event for each row
           when (new.persistence_id = '{id}') execute function hold_up()"
    );
    server.psql(&sql).unwrap();
}

#[test]
fn projections_on_postgresql() {
    with_server(async |mut server| {
        scenario_58_late_rows_are_found_by_backtracking(&server).await;
        late_changes_of_states_are_found_by_backtracking(&server).await;
        a_part_of_a_former_range_restarts_alone(&server).await;
        a_killed_server_loses_and_duplicates_no_event(&mut server).await;
    });
}

/// Rule persistence §5 (projections): the mark of the former, whole range stays in its first slice, which the other
/// half has. It must not keep this half from starting at its first event.
async fn a_part_of_a_former_range_restarts_alone(server: &Postgres) {
    let journal = open(server).await;
    let names: Vec<String> = (0..12).map(|n| format!("Cart|part-{n}")).collect();
    for name in &names {
        Writer::claim(&journal, id(name)).await.append(&journal, &["a"]).await.unwrap();
    }
    let (seen, (read, offsets)) = (Seen::default(), stores(&journal));
    let start = |slices| {
        let settings = ProjectionSettings::test();
        run_projection(projection("parts", slices), &read, offsets.clone(), seen.clone(), settings).unwrap()
    };
    let times = |name: &String| seen.0.lock().unwrap().get(&id(name)).map_or(0, Vec::len);
    let whole = start(0..=1023);
    until("every event", || names.iter().all(|name| times(name) == 1)).await;
    whole.stop().await;
    let upper = start(512..=1023);
    until("it reads", || upper.status().stats.is_running).await;
    upper.reset().await;
    let expected = |name: &String| if id(name).slice() < 512 { 1 } else { 2 };
    until("the upper half anew", || names.iter().all(|name| times(name) == expected(name))).await;
    upper.stop().await;
    let whole = start(0..=1023);
    let last = &names[0];
    Writer::claim(&journal, id(last)).await.append(&journal, &["b"]).await.unwrap();
    until("what follows", || times(last) == expected(last) + 1).await;
    whole.stop().await;
    assert!(names.iter().skip(1).all(|name| times(name) == expected(name)));
}

/// Scenario persistence 58, with a projection.
async fn scenario_58_late_rows_are_found_by_backtracking(server: &Postgres) {
    let journal = open(server).await;
    // Ids of different lanes (slices of different remainders), so that the slow append does not hold up the quick one.
    let even = |wanted: bool| move |name: &String| id(name).slice().is_multiple_of(2) == wanted;
    let names = || (0..).map(|n: u32| format!("Cart|{n}"));
    let (slow, quick) = (names().find(even(true)).unwrap(), names().find(even(false)).unwrap());
    let seen = Seen::default();
    let (read, offsets) = stores(&journal);
    let settings = ProjectionSettings::test();
    let running = run_projection(projection("late", 0..=1023), &read, offsets, seen.clone(), settings).unwrap();
    let mut raw = read.events_by_slices("Cart", 0..=1023, Offset::None);
    let (mut late, mut early) = (Writer::claim(&journal, id(&slow)).await, Writer::claim(&journal, id(&quick)).await);
    hold_up(server, &slow);
    let (first, second) = futures::join!(late.append(&journal, &["late"]), async {
        // The slow append began earlier, and commits later.
        let waits = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
        until("the slow one waits", || count(server, waits) > 0).await;
        let appended = early.append(&journal, &["early"]).await;
        until("the quick one is handled", || seen.count() == 1).await;
        assert_eq!(raw.try_next().await.unwrap().unwrap().id, id(&quick));
        server.psql("insert into gate values (true)").unwrap();
        appended
    });
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(first.timestamp < second.timestamp, "the late one has the older time");
    // The raw stream gives the late event without its record, and other events twice.
    let found = async {
        loop {
            let envelope = raw.try_next().await.unwrap().unwrap();
            if envelope.id == id(&slow) {
                return envelope;
            }
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(30), found).await.expect("backtracking finds it");
    assert_eq!((found.source, &found.record), (EventSource::Backtracking, &None));
    assert!(read.load_envelope(found).await.unwrap().unwrap().record.is_some());
    until("the late one is handled", || seen.count() == 2).await;
    assert_eq!(running.stop().await, ProjectionEnd::Stopped);
    server.psql("drop trigger hold_up on event").unwrap();
    journal.close().await.unwrap();
}

/// The next revision of a durable state.
async fn upsert(states: &PostgresStates, name: &str, revision: u32) {
    let (writer_uuid, revision) = (WriterUuid::from_u128(1), Revision::from(revision));
    let write = StateWrite { id: id(name), revision, generation: None, writer_uuid };
    let (manifest, payload) = ("test.state".to_owned(), revision.to_string().into());
    let value = EncodedValue { codec_id: CodecId::JSON, manifest, schema_version: 1, payload };
    states.upsert(write, value, None).await.unwrap();
}

/// Scenario persistence 58 for durable states: a transaction is open across polls, and commits behind what was read.
async fn late_changes_of_states_are_found_by_backtracking(server: &Postgres) {
    let journal = open(server).await;
    // Another journal with connections of its own, since the waiting statements take those of the first.
    let other = open(server).await;
    let (states, seen) = (journal.states(), Seen::default());
    let (read, offsets) = (ReadJournal::new(Arc::new(states.queries()), settings()), Arc::new(journal.offsets()));
    let times = ProjectionSettings::test();
    let running = run_projection(projection("late-states", 0..=1023), &read, offsets, seen.clone(), times).unwrap();
    let revisions = |name: &str| seen.0.lock().unwrap().get(&id(name)).cloned().unwrap_or_default();
    let (new, old, quick) = ("Cart|new-state", "Cart|old-state", "Cart|quick-state");
    upsert(&states, old, 1).await;
    until("the first is handled", || revisions(old) == [1]).await;
    server
        .psql(
            "create table state_gate (open boolean);
             create or replace function hold_state() returns trigger language plpgsql as $$ begin
               while not exists (select from state_gate) loop perform pg_sleep(0.01); end loop; return new;
             end $$;
             create or replace trigger hold_state before insert or update on durable_state for each row
               when (new.persistence_id like 'Cart|%-state' and new.persistence_id <> 'Cart|quick-state')
               execute function hold_state()",
        )
        .unwrap();
    futures::join!(upsert(&states, new, 1), upsert(&states, old, 2), async {
        let waits = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
        until("both wait", || count(server, waits) == 2).await;
        upsert(&other.states(), quick, 1).await;
        until("the quick one is handled", || revisions(quick) == [1]).await;
        server.psql("insert into state_gate values (true)").unwrap();
    });
    let at = async |name| states.get(&id(name)).await.unwrap().timestamp;
    assert!(at(new).await < at(quick).await && at(old).await < at(quick).await, "the late ones have older times");
    until("the late ones are handled", || revisions(new) == [1] && revisions(old) == [1, 2]).await;
    // Revision 3 is replaced before the projection reads it; revision 4 stands for both.
    upsert(&states, old, 3).await;
    upsert(&states, old, 4).await;
    until("the newest is handled", || revisions(old).ends_with(&[4])).await;
    assert!(revisions(old).is_sorted_by(|earlier, later| earlier < later), "{:?}", revisions(old));
    assert_eq!(revisions(quick), [1], "what is read again is not handled again");
    assert_eq!(running.stop().await, ProjectionEnd::Stopped);
    server.psql("drop trigger hold_state on durable_state").unwrap();
    other.close().await.unwrap();
    journal.close().await.unwrap();
}

/// Many writers, two instances, and a server that is killed: every event is handled, once and in order. Prints the lags
/// from durable to handled. Writers: `GREYLAG_WRITERS` (20), kills: `GREYLAG_KILLS` (1).
async fn a_killed_server_loses_and_duplicates_no_event(server: &mut Postgres) {
    const AROUND: Duration = Duration::from_millis(500);
    let from_env = |name: &str, usual: u64| std::env::var(name).map_or(usual, |value| value.parse().unwrap());
    let (writers, kills) = (from_env("GREYLAG_WRITERS", 20), from_env("GREYLAG_KILLS", 1));
    // Many writers pause between events; otherwise the lag would be that of a full queue.
    let (events, pause) = if writers < 100 { (12, 0) } else { (40, 200) };
    let pause = Duration::from_millis(pause);
    let journal = open(server).await;
    let journal = &journal;
    server.psql(HANDLED).unwrap();
    server.psql("delete from event; delete from entity").unwrap();
    // All three projections share a reader, once they have caught up.
    let (read, offsets) = stores(journal);
    let halves = [run_exactly_once(journal, &read, 0..=511), run_exactly_once(journal, &read, 512..=1023)];
    let noting = Noting::default();
    let (seen, lags) = (&noting.seen, &noting.lags);
    let settings = ProjectionSettings::test();
    let least = run_projection(projection("least", 0..=1023), &read, offsets, noting.clone(), settings).unwrap();
    let writing = join_all((0..writers).map(|number| async move {
        let name = id(&format!("Cart|w{number}"));
        let mut stored = 0;
        while stored < events {
            // After a failure the writer reads the stored head, as an entity does.
            let Ok(seen) = journal.head(&name).await else { continue };
            stored = seen.highest.as_u64();
            let uuid = WriterUuid::from_u128(uuid::Uuid::new_v4().as_u128());
            let Ok(claim) = journal.claim(&name, uuid, greylag_persistence::Under::Seen(seen.epoch)).await else {
                continue;
            };
            let mut writer = Writer { id: name.clone(), uuid, epoch: claim.epoch, highest: claim.highest };
            while writer.highest.as_u64() < events && writer.append(journal, &["event"]).await.is_ok() {
                lags.durable(&name, writer.highest.as_u64());
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            stored = writer.highest.as_u64();
        }
    }));
    let mut restarts = Vec::new();
    let killing = async {
        for kill in 1..=kills {
            let enough = usize::try_from(writers * events * kill / (kills + 2)).unwrap();
            until("some events are handled", || seen.count() >= enough).await;
            let killed_at = Instant::now();
            tokio::task::block_in_place(|| server.restart()).unwrap();
            // Events durable shortly before the kill or until all is at work again count as around it.
            restarts.push((killed_at - AROUND, killed_at + AROUND));
        }
    };
    futures::join!(writing, killing);
    let all = writers * events;
    until("the rows of all events", || {
        count(server, "select count(distinct (persistence_id, seq_nr)) from handled") == all
    })
    .await;
    until("all events at least once", || {
        let seen = seen.0.lock().unwrap();
        seen.len() as u64 == writers && seen.values().all(|numbers| numbers.contains(&events))
    })
    .await;
    for running in &halves {
        assert_eq!(running.stop().await, ProjectionEnd::Stopped);
    }
    assert_eq!(least.stop().await, ProjectionEnd::Stopped);
    assert_eq!(count(server, "select count(*) from handled"), all, "exactly once");
    let unordered = "select count(*) from (select seq_nr, row_number() over (partition by persistence_id order by place) \
                     as nth from handled) h where seq_nr <> nth";
    assert_eq!(count(server, unordered), 0, "in the order of each id");
    // At least once: a repeat goes back, but no event is skipped.
    for (id, numbers) in seen.0.lock().unwrap().iter() {
        let mut highest = 0;
        for number in numbers {
            assert!(*number <= highest + 1, "{id} jumps to {number}: {numbers:?}");
            highest = highest.max(*number);
        }
    }
    let [around, normal] = lags.split(&restarts);
    let told = format!(
        "lag of {writers} writers, {kills} kills: within {AROUND:?} of one {}; else {}\n",
        figures(&around),
        figures(&normal)
    );
    std::io::stdout().write_all(told.as_bytes()).unwrap();
    assert!(!around.is_empty() || !normal.is_empty(), "every event has a lag");
    // The instance that takes over starts from the offsets of the one before.
    let both = run_exactly_once(journal, &read, 0..=1023);
    let mut one_more = Writer::claim(journal, id("Cart|w0")).await;
    one_more.append(journal, &["one more"]).await.unwrap();
    until("the next event", || count(server, "select count(*) from handled") > all).await;
    until("no lag", || both.status().lag == Some(Duration::ZERO)).await;
    both.stop().await;
    assert_eq!(count(server, "select count(*) from handled"), all + 1, "nothing again");
}

/// A connection may go silent, for example when a firewall drops idle ones. A projection must not wait for an answer on
/// it for ever.
#[test]
fn a_projection_continues_after_its_connection_stops_answering() {
    with_server(async |server| {
        server.psql(HANDLED).unwrap();
        let proxy = Proxy::to(server.port()).await;
        let within = PostgresJournalSettings { call_timeout: Duration::from_secs(2), ..journal_settings() };
        let journal = PostgresJournal::open(&config_at(&server, proxy.port), within).await.unwrap();
        let (read, _) = stores(&journal);
        let running = run_exactly_once(&journal, &read, 0..=1023);
        let mut writer = Writer::claim(&journal, id("Cart|1")).await;
        for (number, silent) in [(1, false), (2, true)] {
            proxy.script("START TRANSACTION", silent.then_some(Step::Silence));
            writer.append(&journal, &["event"]).await.unwrap();
            until("the event", || count(&server, "select count(*) from handled") == number).await;
        }
        assert_eq!(proxy.left(), 0, "it fell silent");
        running.stop().await;
    });
}
