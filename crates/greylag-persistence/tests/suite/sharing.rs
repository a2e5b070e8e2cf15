//! Scenario persistence 59: the projections of a node share a reader. Transcripts of both machines, and
//! projections over stores that count, or commit late.
//!
//! In transcripts an envelope is a time in seconds, an id and a number; time stands still but for `advance`.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::record::record;
use crate::support::timed::Timed;
use async_trait::async_trait;
use greylag_persistence::{
    BoxError, ConsumerId, Cursor, Envelope, EventPage, EventSource, EventsOf, Follower, FollowerEffect, FollowerInput,
    FoundEvent, HandleError, InMemoryOffsets, Offset, OffsetKind, OffsetStore, OwnedSlices, PageQuery, PersistenceId,
    Position, Processed, ProjectionHandle, ProjectionHandler, ProjectionId, ProjectionSettings, QueryError,
    QuerySettings, ReadError, ReadJournal, Scope, SeqNr, SharedAnswer, SharedReader, SharedReaderEffect,
    SharedReaderInput, SharingSettings, StoreFailure, Timestamp, TransactionalHandler, Visible, run_projection,
    run_transactional,
};
use greylag_testkit::transcript::{self, Case};
use tokio::sync::Semaphore;

const ALL: RangeInclusive<u16> = 0..=1023;

fn cart(name: &str) -> PersistenceId {
    PersistenceId::of("Cart", name).unwrap()
}

// ---- Transcripts -------------------------------------------------------------------------------

#[test]
fn transcripts_of_the_shared_reader() {
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shared_reader_protocol"), || {
        let mut world = ReaderWorld { now: Instant::now(), reader: None };
        move |case: &Case<'_>| world.run(case)
    });
}

#[test]
fn transcripts_of_a_follower() {
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/follower_protocol"), || {
        let mut world = FollowerWorld { now: Instant::now(), kind: OffsetKind::Timestamp, follower: None };
        move |case: &Case<'_>| world.run(case)
    });
}

fn seconds(text: &str) -> Timestamp {
    Timestamp::from_micros((text.parse::<f64>().unwrap() * 1e6) as u64)
}

fn short(position: Position) -> String {
    match position {
        Position::Timestamp(timestamp) => format!("{}s", timestamp.as_micros() as f64 / 1e6),
        Position::Ordinal(ordinal) => ordinal.to_string(),
    }
}

fn settings(case: &Case<'_>) -> QuerySettings {
    let size = |key, usual| NonZeroUsize::new(case.parse(key).unwrap_or(usual)).unwrap();
    let sharing = SharingSettings { fanout_buffer: size("buffer", 256), ..SharingSettings::default() };
    QuerySettings { page: size("page", 100), sharing, ..QuerySettings::default() }
}

fn page(case: &Case<'_>, kind: OffsetKind) -> EventPage {
    let load = !case.flag("back");
    let found = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = SeqNr::from(words[2].parse::<u32>().unwrap());
        let position = match kind {
            OffsetKind::Timestamp => Position::Timestamp(seconds(words[0])),
            OffsetKind::Ordinal => Position::Ordinal(words[0].parse().unwrap()),
        };
        let event = record(cart(words[1]), number, Timestamp::default());
        FoundEvent { id: cart(words[1]), seq_nr: number, position, event: load.then_some(event) }
    };
    let events: Vec<FoundEvent> = case.input.lines().map(found).collect();
    let next = match events.last().map(|last| (last.position, last)) {
        Some((Position::Timestamp(timestamp), last)) => {
            Cursor::Row { timestamp, id: Some(last.id.clone()), seq_nr: last.seq_nr }
        }
        Some((Position::Ordinal(ordinal), _)) => Cursor::Ordinal(ordinal),
        None => match (kind, case.arg("at")) {
            (OffsetKind::Timestamp, at) => Cursor::at(seconds(at.unwrap_or("0"))),
            (OffsetKind::Ordinal, Some(at)) => Cursor::Ordinal(at.parse().unwrap()),
            (OffsetKind::Ordinal, None) => Cursor::Start,
        },
    };
    EventPage { events, next, more: case.flag("more") }
}

fn query(query: &PageQuery) -> String {
    let at = match &query.after {
        Cursor::Row { timestamp, .. } => short(Position::Timestamp(*timestamp)),
        other => other.to_string(),
    };
    let back = if matches!(query.visible, Visible::Older(_)) { "back " } else { "" };
    format!("query {back}after {at}")
}

fn places(envelopes: &[Envelope]) -> String {
    let place = |envelope: &Envelope| {
        let back = if envelope.source == EventSource::Backtracking { " again" } else { "" };
        format!("{} {}{back}", envelope.id.entity_id(), envelope.seq_nr)
    };
    envelopes.iter().map(place).collect::<Vec<_>>().join(", ")
}

fn reached(offset: &Offset) -> String {
    match offset {
        Offset::None => "start".to_owned(),
        Offset::Ordinal(ordinal) => ordinal.to_string(),
        Offset::Timestamp { timestamp, .. } => short(Position::Timestamp(*timestamp)),
    }
}

fn failed(case: &Case<'_>) -> QueryError {
    if case.flag("damaged") {
        let kind = greylag_persistence::CorruptKind::Checksum;
        return QueryError::Read(ReadError::Corrupt(greylag_persistence::Corrupt {
            id: cart("a"),
            seq_nr: SeqNr::FIRST,
            kind,
        }));
    }
    QueryError::Read(ReadError::Unavailable(StoreFailure::new("store", "away")))
}

struct ReaderWorld {
    now: Instant,
    reader: Option<SharedReader>,
}

impl ReaderWorld {
    fn run(&mut self, case: &Case<'_>) -> String {
        let mut out = Vec::new();
        let id = || ConsumerId(case.positional(0).unwrap().parse().unwrap());
        let input = match case.command {
            "start" => {
                let kind = OffsetKind::Timestamp;
                self.reader = Some(SharedReader::start("Cart", kind, settings(case), self.now, &mut out));
                return self.show(&out);
            }
            "newest" => SharedReaderInput::Newest(match case.positional(0) {
                Some("away") => Err(ReadError::Unavailable(StoreFailure::new("store", "away"))),
                Some(at) => Ok(Some(Position::Timestamp(seconds(at)))),
                None => Ok(None),
            }),
            "join" => SharedReaderInput::Join(
                id(),
                case.arg("of").map_or(ALL, |of| {
                    let slice = cart(of).slice();
                    slice..=slice
                }),
            ),
            "demand" => SharedReaderInput::Demand(id()),
            "leave" => SharedReaderInput::Leave(id()),
            "page" => SharedReaderInput::Page(Ok(page(case, OffsetKind::Timestamp))),
            "fail" => SharedReaderInput::Page(Err(failed(case))),
            "hint" => SharedReaderInput::Hint,
            "advance" => {
                self.now += transcript::duration(case.positional(0).unwrap()).unwrap();
                SharedReaderInput::Tick
            }
            other => panic!("unknown command {other}"),
        };
        self.reader.as_mut().unwrap().handle(self.now, input, &mut out);
        self.show(&out)
    }

    fn show(&self, out: &[SharedReaderEffect]) -> String {
        let show = |effect: &SharedReaderEffect| match effect {
            SharedReaderEffect::AskNewest => "ask for the newest".to_owned(),
            SharedReaderEffect::Query(page) => query(page),
            SharedReaderEffect::Tell(ConsumerId(id), SharedAnswer::Joined) => format!("{id}: joined"),
            SharedReaderEffect::Tell(ConsumerId(id), SharedAnswer::Events { envelopes, reached: at }) => {
                format!("{id}: {}; reached {}", places(envelopes), reached(at))
            }
            SharedReaderEffect::Tell(ConsumerId(id), SharedAnswer::Dismissed(at)) => {
                format!("{id}: dismissed, to go on after {}", at.as_ref().map_or("what it has".to_owned(), reached))
            }
            SharedReaderEffect::Trouble(cause) => format!("trouble: {cause}"),
            SharedReaderEffect::Idle => "idle".to_owned(),
            SharedReaderEffect::Broken(_) => "broken".to_owned(),
        };
        let mut lines: Vec<String> = out.iter().map(show).collect();
        let reader = self.reader.as_ref().unwrap();
        if let Some(deadline) = reader.next_deadline().filter(|_| lines.is_empty()) {
            lines.push(format!("wait {:?}", deadline - self.now));
        }
        if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
    }
}

struct FollowerWorld {
    now: Instant,
    kind: OffsetKind,
    follower: Option<Follower>,
}

impl FollowerWorld {
    fn run(&mut self, case: &Case<'_>) -> String {
        let input = match case.command {
            "start" => {
                self.kind = if case.flag("ordinal") { OffsetKind::Ordinal } else { OffsetKind::Timestamp };
                let of = EventsOf::Slices { entity_type: "Cart".into(), slices: ALL };
                let shares = !case.flag("alone");
                let follower = Follower::new(of, &Offset::None, self.kind, settings(case), shares, self.now);
                self.follower = Some(follower.unwrap());
                return String::new();
            }
            "demand" => FollowerInput::Demand,
            "page" => FollowerInput::Page(Ok(page(case, self.kind))),
            "fail" => FollowerInput::Page(Err(failed(case))),
            "joined" => FollowerInput::Shared(SharedAnswer::Joined),
            "dismissed" => FollowerInput::Shared(SharedAnswer::Dismissed(None)),
            "given" => FollowerInput::Shared(self.given(case)),
            "hint" => FollowerInput::Hint,
            "advance" => {
                self.now += transcript::duration(case.positional(0).unwrap()).unwrap();
                FollowerInput::Tick
            }
            other => panic!("unknown command {other}"),
        };
        let mut out = Vec::new();
        let follower = self.follower.as_mut().unwrap();
        follower.handle(self.now, input, &mut out);
        let show = |effect: &FollowerEffect| match effect {
            FollowerEffect::Query(page) => query(page),
            FollowerEffect::Join => "join".to_owned(),
            FollowerEffect::Pull => "pull".to_owned(),
            FollowerEffect::Deliver(envelopes) => format!("deliver {}", places(envelopes)),
            FollowerEffect::Failed(error) => format!("failed: {error}"),
        };
        let mut lines: Vec<String> = out.iter().map(show).collect();
        if let Some(deadline) = follower.next_deadline().filter(|_| lines.is_empty()) {
            lines.push(format!("wait {:?}", deadline - self.now));
        }
        if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
    }

    fn given(&self, case: &Case<'_>) -> SharedAnswer {
        let source = if case.flag("back") { EventSource::Backtracking } else { EventSource::Live };
        let envelopes: Vec<Envelope> = page(case, self.kind)
            .events
            .into_iter()
            .map(|found| {
                let event = record(found.id.clone(), found.seq_nr, Timestamp::default());
                Envelope::of_record(event, found.position, source)
            })
            .collect();
        let reached = envelopes.last().map(Envelope::offset).unwrap_or_default();
        SharedAnswer::Events { envelopes, reached }
    }
}

// ---- Over stores -------------------------------------------------------------------------------

/// The envelopes that a projection got, by id; waits for a permit before each envelope, if it has a gate.
#[derive(Clone, Default)]
struct Seen {
    all: Arc<Mutex<BTreeMap<PersistenceId, Vec<u64>>>>,
    gate: Option<Arc<Semaphore>>,
    takes: Duration,
}

impl Seen {
    fn count(&self) -> usize {
        self.all.lock().unwrap().values().map(Vec::len).sum()
    }

    /// The last number of each id.
    fn newest(&self) -> BTreeMap<PersistenceId, u64> {
        let all = self.all.lock().unwrap();
        all.iter().filter_map(|(id, numbers)| Some((id.clone(), *numbers.last()?))).collect()
    }

    /// Checks that every number came once, and in order.
    fn assert_in_order(&self) {
        for (id, numbers) in &*self.all.lock().unwrap() {
            assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "{id}: {numbers:?}");
        }
    }
}

#[async_trait]
impl ProjectionHandler for Seen {
    async fn handle(&mut self, envelopes: &[Envelope]) -> Result<(), BoxError> {
        for envelope in envelopes {
            if let Some(gate) = &self.gate {
                gate.acquire().await?.forget();
            }
            if !self.takes.is_zero() {
                tokio::time::sleep(self.takes).await;
            }
            self.all.lock().unwrap().entry(envelope.id.clone()).or_default().push(envelope.seq_nr.as_u64());
        }
        Ok(())
    }
}

/// A handler that saves its offsets in the same step. Nothing wakes such a projection to save them later.
struct InOneStep {
    seen: Seen,
    offsets: InMemoryOffsets,
}

#[async_trait]
impl TransactionalHandler for InOneStep {
    async fn handle_and_save(
        &mut self,
        envelopes: &[Envelope],
        owned: &OwnedSlices,
        processed: &[Processed],
    ) -> Result<(), HandleError> {
        self.offsets.save(owned, processed).await.map_err(HandleError::Offsets)?;
        self.seen.handle(envelopes).await.map_err(|error| HandleError::Handler(error.to_string()))
    }
}

fn run(read: &ReadJournal, name: &str, slices: RangeInclusive<u16>, seen: &Seen) -> ProjectionHandle {
    let id = ProjectionId { name: name.to_owned(), entity_type: "Cart".to_owned(), slices };
    let offsets = Arc::new(InMemoryOffsets::new(Scope::Process, OffsetKind::Timestamp));
    run_projection(id, read, offsets, seen.clone(), ProjectionSettings::default()).unwrap()
}

fn run_in_one_step(read: &ReadJournal, name: &str, slices: RangeInclusive<u16>, seen: &Seen) -> ProjectionHandle {
    let id = ProjectionId { name: name.to_owned(), entity_type: "Cart".to_owned(), slices };
    let offsets = InMemoryOffsets::new(Scope::Process, OffsetKind::Timestamp);
    let handler = InOneStep { seen: seen.clone(), offsets: offsets.clone() };
    run_transactional(id, read, Arc::new(offsets), handler, ProjectionSettings::default()).unwrap()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{what} does not come about");
}

/// Rule persistence §5 (one reader): any number of projections cost about the queries of
/// one; those that do not share cost as many times more.
#[tokio::test(start_paused = true)]
async fn scenario_59_many_projections_cost_the_queries_of_one() {
    let mut costs = Vec::new();
    for (projections, share_reader) in [(1, true), (10, true), (10, false)] {
        let store = Timed::new(Duration::ZERO);
        let read = ReadJournal::new(Arc::new(store.clone()), QuerySettings::default());
        let seen: Vec<Seen> = (0..projections).map(|_| Seen::default()).collect();
        let start = |(number, seen): (usize, &Seen)| {
            let id = ProjectionId { name: number.to_string(), entity_type: "Cart".to_owned(), slices: ALL };
            let settings = ProjectionSettings { share_reader, ..ProjectionSettings::default() };
            run_projection(
                id,
                &read,
                Arc::new(InMemoryOffsets::new(Scope::Process, OffsetKind::Timestamp)),
                seen.clone(),
                settings,
            )
            .unwrap()
        };
        let running: Vec<_> = seen.iter().enumerate().map(start).collect();
        let mut written = 0;
        let mut asked = 0;
        for second in 0..240 {
            written += store.write(&format!("{}", second % 7));
            if second == 120 {
                asked = store.asked();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        until("every event", || seen.iter().all(|seen| seen.count() == written)).await;
        seen.iter().for_each(Seen::assert_in_order);
        costs.push(store.asked() - asked);
        drop(running);
    }
    let [one, shared, apart] = costs[..] else { unreachable!("three were measured") };
    assert!(shared <= one + one / 4, "ten that share must cost about as one: {costs:?}");
    assert!(apart >= 8 * one, "what is measured is what sharing saves: {costs:?}");
}

/// Rule persistence §5 (one reader): a projection that holds the buffer for long is dismissed, the others go on, and
/// the dismissed one catches up by itself.
#[tokio::test(start_paused = true)]
async fn scenario_59_a_slow_projection_delays_the_others_only_briefly() {
    let store = Timed::new(Duration::ZERO);
    let sharing = SharingSettings { fanout_buffer: NonZeroUsize::new(16).unwrap(), ..SharingSettings::default() };
    let read = ReadJournal::new(Arc::new(store.clone()), QuerySettings { sharing, ..QuerySettings::default() });
    let gate = Arc::new(Semaphore::new(0));
    let (quick, slow) = (Seen::default(), Seen { gate: Some(gate.clone()), ..Seen::default() });
    let running = [run(&read, "quick", ALL, &quick), run(&read, "slow", ALL, &slow)];
    // Long enough for both projections to be fed only by the shared reader.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut written = 0;
    for _ in 0..30 {
        for name in 0..10 {
            written += store.write(&name.to_string());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    until("the quick one is not held up", || quick.count() == written).await;
    assert_eq!(slow.count(), 0);
    gate.add_permits(Semaphore::MAX_PERMITS);
    until("the slow one catches up", || slow.count() == written).await;
    // Both projections are fed by the shared reader again.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked = store.asked();
    written += store.write("more");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(store.asked() - asked < 40, "two would ask {} times", store.asked() - asked);
    assert_eq!((quick.count(), slow.count()), (written, written));
    for seen in [quick, slow] {
        seen.assert_in_order();
    }
    drop(running);
}

/// Rule persistence §5 (one reader): after the last projection has ended, a new one works, while the reader lingers and
/// later.
#[tokio::test(start_paused = true)]
async fn scenario_59_a_new_projection_works_after_the_last_left() {
    let store = Timed::new(Duration::ZERO);
    let read = ReadJournal::new(Arc::new(store.clone()), QuerySettings::default());
    let mut written = 0;
    for pause in [0, 20, 39, 40, 41, 300] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let seen = Seen::default();
        let running = run(&read, "one", ALL, &seen);
        for _ in 0..30 {
            written += store.write("a");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        until("every event", || seen.count() == written).await;
        seen.assert_in_order();
        running.stop().await;
    }
    // No query is sent after the reader has ended its lingering.
    tokio::time::sleep(Duration::from_secs(50)).await;
    let asked = store.asked();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(store.asked(), asked);
}

/// Number of runs; `GREYLAG_SEEDS` for long runs.
fn seeds() -> u64 {
    std::env::var("GREYLAG_SEEDS").map_or(3, |seeds| seeds.parse().unwrap())
}

/// Rule persistence §5 (one reader): in a store whose commits become visible late and out of order, no
/// projection misses an event or gets one twice, however slow it is and whenever it joins.
#[tokio::test(start_paused = true)]
async fn scenario_59_nothing_is_lost_between_readers_where_commits_come_late() {
    for seed in 0..seeds() {
        let store = Timed::seeded(Duration::from_secs(8), seed);
        let sharing = SharingSettings {
            fanout_buffer: NonZeroUsize::new(8).unwrap(),
            linger: Duration::from_secs(5),
            ..SharingSettings::default()
        };
        let page = NonZeroUsize::new(20).unwrap();
        let read =
            ReadJournal::new(Arc::new(store.clone()), QuerySettings { sharing, page, ..QuerySettings::default() });
        let mut running = Vec::new();
        for step in 0..400_u32 {
            for name in store.draw(3) {
                let name = format!("{}", name % 12);
                store.write(&name);
            }
            if step % 40 == 0 {
                let slices = [ALL, 0..=511, 512..=1023][step as usize / 40 % 3].clone();
                let takes = Duration::from_millis([0, 50, 700][step as usize / 40 % 3]);
                let seen = Seen { takes, ..Seen::default() };
                let start = if step / 40 % 2 == 0 { run } else { run_in_one_step };
                let handle = start(&read, &step.to_string(), slices.clone(), &seen);
                running.push((slices, seen, handle));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        for (slices, seen, handle) in &running {
            let meant = store.count(slices);
            until("every event", || seen.count() >= meant).await;
            tokio::time::sleep(Duration::from_secs(100)).await;
            assert_eq!(seen.count(), meant, "seed {seed}: {:?}", handle.status());
            seen.assert_in_order();
        }
    }
}

/// Rule persistence §5 (b), changes of states: no projection misses the newest revision of an id, or gets one
/// twice or after a later one, however late commits become visible, however slow it is and whenever it joins.
#[tokio::test(start_paused = true)]
async fn the_newest_state_of_each_id_is_found_where_commits_come_late() {
    for seed in 0..seeds() {
        let store = Timed::states(Duration::from_secs(8), seed);
        let page = NonZeroUsize::new(20).unwrap();
        let read = ReadJournal::new(Arc::new(store.clone()), QuerySettings { page, ..QuerySettings::default() });
        let mut running = Vec::new();
        for step in 0..400_u32 {
            for name in store.draw(3) {
                store.write(&format!("{}", name % 40));
            }
            if step % 40 == 0 {
                let slices = [ALL, 0..=511, 512..=1023][step as usize / 40 % 3].clone();
                let takes = Duration::from_millis([0, 50, 700][step as usize / 40 % 3]);
                let seen = Seen { takes, ..Seen::default() };
                let start = if step / 40 % 2 == 0 { run } else { run_in_one_step };
                let handle = start(&read, &step.to_string(), slices.clone(), &seen);
                running.push((slices, seen, handle));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        for (slices, seen, handle) in &running {
            let newest = store.newest(slices);
            until("the newest of each", || seen.newest() == newest).await;
            tokio::time::sleep(Duration::from_secs(100)).await;
            let all = seen.all.lock().unwrap();
            let rise = all.values().all(|numbers| numbers.is_sorted_by(|earlier, later| earlier < later));
            assert!(rise, "seed {seed}: {:?}: {all:?}", handle.status());
        }
    }
}

/// Rule persistence §9: durations of zero are errors that name their key.
#[test]
fn the_settings_of_sharing_are_checked() {
    let usual = SharingSettings::default;
    for (key, sharing) in [
        ("query.catchup_overlap", SharingSettings { catchup_overlap: Duration::ZERO, ..usual() }),
        ("query.linger", SharingSettings { linger: Duration::ZERO, ..usual() }),
        ("query.slow_consumer_lag", SharingSettings { slow_consumer_lag: Duration::ZERO, ..usual() }),
        ("query.abort_after", SharingSettings { abort_after: Duration::ZERO, ..usual() }),
    ] {
        let error = QuerySettings { sharing, ..QuerySettings::default() }.validate().unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}
