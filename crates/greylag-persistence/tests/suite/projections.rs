//! Transcripts of a projection, and projections over stores in memory.
//!
//! In transcripts all answers are given by hand. An envelope is a time in seconds, an id and a number;
//! an envelope from backtracking has no record. Time stands still but for `advance`.

use crate::support;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use greylag_core::CodecId;
use greylag_persistence::{
    Append, Backoff, BoxError, Cursor, Envelope, EventKind, EventPage, EventSource, FaultyOffsets, FoundEvent,
    Guarantee, HandleError, InMemoryJournal, InMemoryOffsets, Journal, Metadata, NewEvent, OffsetError, OffsetKind,
    OffsetOp, OffsetStore, OnPoison, OwnedSlices, OwnerEpoch, Page, PageQuery, PersistenceId, Position, Processed,
    Projection, ProjectionAnswer, ProjectionEffect, ProjectionEnd, ProjectionHandler, ProjectionId, ProjectionInput,
    ProjectionSettings, QueryCaps, QuerySettings, ReadError, ReadJournal, ReadRange, Scope, SeqNr, SharedAnswer, Shows,
    StoreFailure, StoreFault, StoredEvent, Tags, Timestamp, Under, Visible, WriterUuid, run_projection,
};
use greylag_testkit::transcript::{self, Case};

#[test]
fn transcripts() {
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/projection_protocol"), || {
        let mut world = World { now: Instant::now(), projection: None };
        move |case: &Case<'_>| world.run(case)
    });
}

struct World {
    now: Instant,
    projection: Option<Projection>,
}

const SLICES: std::ops::RangeInclusive<u16> = 0..=1023;

fn away() -> StoreFailure {
    StoreFailure::new("store", "away")
}

fn cart(name: &str) -> PersistenceId {
    PersistenceId::of("Cart", name).unwrap()
}

fn seconds(text: &str) -> Timestamp {
    Timestamp::from_micros((text.parse::<f64>().unwrap() * 1e6) as u64)
}

fn record(name: &str, seq_nr: &str, timestamp: Timestamp) -> StoredEvent {
    support::record::record(cart(name), SeqNr::from(seq_nr.parse::<u32>().unwrap()), timestamp)
}

fn owned() -> OwnedSlices {
    OwnedSlices { projection: "carts".into(), epochs: SLICES.map(|slice| (slice, OwnerEpoch::from_u64(1))).collect() }
}

impl World {
    fn run(&mut self, case: &Case<'_>) -> String {
        let mut out = Vec::new();
        let run = self.projection.as_ref().map_or(0, Projection::run);
        let stale = || OffsetError::StaleOwner {
            projection: "carts".into(),
            slice: 7,
            own: OwnerEpoch::from_u64(1),
            current: OwnerEpoch::from_u64(2),
        };
        let offset_result = || match case.positional(0) {
            Some("away") => Err(OffsetError::Unavailable(away())),
            Some("stale") => Err(stale()),
            _ => Ok(()),
        };
        let answer = |answer| ProjectionInput::Answer(run, answer);
        let input = match case.command {
            "start" => return self.start(case),
            "claimed" => answer(ProjectionAnswer::Claimed(offset_result().map(|()| owned()))),
            "loaded" => answer(ProjectionAnswer::Loaded(offset_result().map(|()| rows(case.input)))),
            "page" => answer(ProjectionAnswer::Page(Ok(page(case)))),
            "joined" => answer(ProjectionAnswer::Shared(SharedAnswer::Joined)),
            "dismissed" => answer(ProjectionAnswer::Shared(SharedAnswer::Dismissed(None))),
            "given" => answer(ProjectionAnswer::Shared(given(case))),
            "read" => answer(ProjectionAnswer::Read(match case.flag("away") {
                true => Err(ReadError::Unavailable(away())),
                false => Ok(history(case)),
            })),
            "handled" => answer(ProjectionAnswer::Handled(match case.positional(0) {
                Some("badly") => Err(HandleError::Handler("bad event".into())),
                Some("stale") => Err(HandleError::Offsets(stale())),
                Some("perhaps") => Err(HandleError::Unknown("the connection is lost".into())),
                _ => Ok(()),
            })),
            "saved" => answer(ProjectionAnswer::Saved(offset_result())),
            "reset-done" => answer(ProjectionAnswer::WasReset(offset_result())),
            "late" => ProjectionInput::Answer(run - 1, ProjectionAnswer::Handled(Ok(()))),
            "pause" => ProjectionInput::Pause,
            "resume" => ProjectionInput::Resume,
            "reset" => ProjectionInput::Reset,
            "stop" => ProjectionInput::Stop,
            "advance" => {
                self.now += transcript::duration(case.positional(0).unwrap()).unwrap();
                ProjectionInput::Tick
            }
            other => panic!("unknown command {other}"),
        };
        self.projection.as_mut().unwrap().handle(self.now, input, &mut out);
        self.show(&out)
    }

    fn start(&mut self, case: &Case<'_>) -> String {
        let query = QuerySettings { page: NonZeroUsize::new(100).unwrap(), ..QuerySettings::default() };
        let settings = ProjectionSettings {
            share_reader: case.flag("share"),
            group: NonZeroUsize::new(case.parse("group").unwrap_or(1)).unwrap(),
            save_after_n: NonZeroUsize::new(case.parse("save").unwrap_or(100)).unwrap(),
            max_retries: case.parse("retries").unwrap_or(1),
            on_poison: if case.flag("skip") { OnPoison::Skip } else { OnPoison::Fail },
            backoff: Backoff { jitter: 0.0, ..Backoff::default() },
            ..ProjectionSettings::default()
        };
        let guarantee = if case.flag("exactly") { Guarantee::ExactlyOnce } else { Guarantee::AtLeastOnce };
        let id = ProjectionId { name: "carts".into(), entity_type: "Cart".into(), slices: SLICES };
        let mut out = Vec::new();
        let shows = if case.flag("states") { Shows::Newest } else { Shows::Every };
        let caps = QueryCaps { scope: Scope::Shared, kind: OffsetKind::Timestamp, shows };
        self.projection = Some(Projection::start(id, guarantee, caps, query, settings, [7; 32], &mut out).unwrap());
        let mut shown = self.show(&out);
        if case.flag("reading") {
            let projection = self.projection.as_mut().unwrap();
            let mut out = Vec::new();
            let run = projection.run();
            for answer in [ProjectionAnswer::Claimed(Ok(owned())), ProjectionAnswer::Loaded(Ok(rows(case.input)))] {
                out.clear();
                projection.handle(self.now, ProjectionInput::Answer(run, answer), &mut out);
            }
            shown = self.show(&out);
        }
        shown
    }

    fn show(&self, out: &[ProjectionEffect]) -> String {
        let mut lines: Vec<String> = out.iter().map(show).collect();
        let projection = self.projection.as_ref().unwrap();
        if let Some(deadline) = projection.next_deadline().filter(|_| lines.is_empty()) {
            lines.push(format!("wait {:?}", deadline - self.now));
        }
        if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
    }
}

fn rows(input: &str) -> Vec<Processed> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // The mark of the whole range is an id of the library's own.
        let id = match words[1] {
            "mark" => own_row("0-1023"),
            "mark@1" => own_row("0-1023@1"),
            "start" => own_row("!0-1023"),
            name => cart(name),
        };
        let position = Position::Timestamp(seconds(words[0]));
        Processed { id, seq_nr: SeqNr::from(words[2].parse::<u32>().unwrap()), position }
    };
    input.lines().map(row).collect()
}

fn own_row(text: &str) -> PersistenceId {
    let ids = (0..).map(|n: u32| PersistenceId::of("gl.projection", &format!("{text}/{n}")).unwrap());
    ids.into_iter().find(|id| id.slice() == 0).unwrap()
}

fn page(case: &Case<'_>) -> EventPage {
    let load = !case.flag("back");
    let found = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let record = record(words[1], words[2], seconds(words[0]));
        let position = Position::Timestamp(record.timestamp);
        FoundEvent { id: record.id.clone(), seq_nr: record.seq_nr, position, event: load.then_some(record) }
    };
    let events: Vec<FoundEvent> = case.input.lines().map(found).collect();
    let next = events.last().map_or(Cursor::Start, |last| match last.position {
        Position::Timestamp(timestamp) => Cursor::Row { timestamp, id: Some(last.id.clone()), seq_nr: last.seq_nr },
        Position::Ordinal(ordinal) => Cursor::Ordinal(ordinal),
    });
    let next = if events.is_empty() { Cursor::at(seconds(case.arg("at").unwrap_or("0"))) } else { next };
    EventPage { events, next, more: case.flag("more") }
}

fn given(case: &Case<'_>) -> SharedAnswer {
    let envelope = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let record = record(words[1], words[2], seconds(words[0]));
        let position = Position::Timestamp(record.timestamp);
        let source = if case.flag("back") { EventSource::Backtracking } else { EventSource::Live };
        Envelope::of_record(record, position, source)
    };
    let envelopes: Vec<Envelope> = case.input.lines().map(envelope).collect();
    let reached = envelopes.last().map(Envelope::offset).unwrap_or_default();
    SharedAnswer::Events { envelopes, reached }
}

fn history(case: &Case<'_>) -> Page {
    let record = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        record(words[1], words[2], seconds(words[0]))
    };
    let next = case.parse::<u32>("next").map(SeqNr::from);
    Page { records: case.input.lines().map(record).collect(), next }
}

fn show(effect: &ProjectionEffect) -> String {
    match effect {
        ProjectionEffect::Claim(_) => "claim".to_owned(),
        ProjectionEffect::Load(_) => "load".to_owned(),
        ProjectionEffect::Query(_, PageQuery { after, until, visible, .. }) => {
            let at = after.timestamp().map_or("start".to_owned(), |at| short(Position::Timestamp(at)));
            let until = until.map(|until| format!(" until {}", short(until))).unwrap_or_default();
            let back = if matches!(visible, Visible::Older(_)) { "back " } else { "" };
            format!("query {back}after {at}{until}")
        }
        ProjectionEffect::Read(_, id, ReadRange { from, to, .. }) => {
            format!("read {} {from}..={to}", id.entity_id())
        }
        ProjectionEffect::Join(_) => "join".to_owned(),
        ProjectionEffect::Pull => "pull".to_owned(),
        ProjectionEffect::Leave => "leave".to_owned(),
        ProjectionEffect::Handle(_, envelopes) => format!("handle {}", places(envelopes)),
        ProjectionEffect::Commit(_, envelopes, _, processed) => {
            format!("handle {} and save {} in one", places(envelopes), saved(processed))
        }
        ProjectionEffect::Save(_, _, processed) => format!("save {}", saved(processed)),
        ProjectionEffect::Forget(_, before) => format!("forget what is before {}", short(*before)),
        ProjectionEffect::Reset(..) => "reset".to_owned(),
        ProjectionEffect::Skipped(envelope, cause) => {
            format!("skipped {} {}: {cause}", envelope.id.entity_id(), envelope.seq_nr)
        }
        ProjectionEffect::Trouble(cause) => format!("trouble: {cause}"),
        ProjectionEffect::Ended(end) => format!("ended: {end}"),
    }
}

fn short(position: Position) -> String {
    match position {
        Position::Timestamp(timestamp) => format!("{}s", timestamp.as_micros() as f64 / 1e6),
        Position::Ordinal(ordinal) => ordinal.to_string(),
    }
}

fn places(envelopes: &[Envelope]) -> String {
    let place = |envelope: &Envelope| {
        assert!(envelope.record.is_some(), "a handler gets events, not places");
        format!("{} {}", envelope.id.entity_id(), envelope.seq_nr)
    };
    envelopes.iter().map(place).collect::<Vec<_>>().join(", ")
}

fn saved(processed: &[Processed]) -> String {
    let row = |row: &Processed| match row.id.entity_type() {
        "Cart" => format!("{} {}", row.id.entity_id(), row.seq_nr),
        _ if row.is_start() => format!("start {}", row.seq_nr),
        _ => format!("mark {}", short(row.position)),
    };
    processed.iter().map(row).collect::<Vec<_>>().join(", ")
}

// ---- Over stores in memory ---------------------------------------------------------------------

async fn write(journal: &InMemoryJournal, name: &str, count: u32) {
    let writer_uuid = WriterUuid::from_u128(1);
    let seen = journal.head(&cart(name)).await.unwrap().epoch;
    let claim = journal.claim(&cart(name), writer_uuid, Under::Seen(seen)).await.unwrap();
    for number in 1..=count {
        let first = SeqNr::saturating(claim.highest.as_u64() + u64::from(number));
        let event = NewEvent {
            codec_id: CodecId::JSON,
            manifest: "test".into(),
            schema_version: 1,
            kind: EventKind::Event,
            payload: Bytes::from_static(b"{}"),
            metadata: Metadata::new(),
            tags: Tags::new(),
        };
        let append = Append { id: cart(name), epoch: claim.epoch, writer_uuid, first, events: vec![event] };
        journal.append(append).await.unwrap();
    }
}

/// The numbers that a projection got, by id.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<PersistenceId, Vec<u64>>>>);

impl Seen {
    fn count(&self) -> usize {
        self.0.lock().unwrap().values().map(Vec::len).sum()
    }

    fn of(&self, name: &str) -> Vec<u64> {
        self.0.lock().unwrap().get(&cart(name)).cloned().unwrap_or_default()
    }
}

#[async_trait]
impl ProjectionHandler for Seen {
    async fn handle(&mut self, envelopes: &[Envelope]) -> Result<(), BoxError> {
        let mut seen = self.0.lock().unwrap();
        for envelope in envelopes {
            if envelope.id == cart("poison") {
                return Err("cannot be processed".into());
            }
            if envelope.id == cart("panic") {
                drop(seen);
                panic!("on purpose");
            }
            seen.entry(envelope.id.clone()).or_default().push(envelope.seq_nr.as_u64());
        }
        Ok(())
    }
}

fn read(journal: &InMemoryJournal) -> ReadJournal {
    ReadJournal::new(Arc::new(journal.queries()), QuerySettings::test())
}

fn projection(slices: std::ops::RangeInclusive<u16>) -> ProjectionId {
    ProjectionId { name: "carts".into(), entity_type: "Cart".into(), slices }
}

/// Waits until `holds` returns `true`; time is paused, so the wait takes none.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} does not come about");
}

#[tokio::test(start_paused = true)]
async fn each_event_once_in_order_and_across_restarts() {
    let (journal, offsets, seen) = (InMemoryJournal::default(), InMemoryOffsets::default(), Seen::default());
    let read = read(&journal);
    for round in 1..=3 {
        for name in ["a", "b", "c"] {
            write(&journal, name, 5).await;
        }
        let store = Arc::new(offsets.clone());
        let settings = ProjectionSettings::test();
        let running = run_projection(projection(0..=1023), &read, store, seen.clone(), settings).unwrap();
        until("every event", || seen.count() == 15 * round).await;
        until("no lag", || running.status().lag == Some(Duration::ZERO)).await;
        assert_eq!(running.stop().await, ProjectionEnd::Stopped);
    }
    assert_eq!(seen.of("b"), (1..=15).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn ranges_share_the_work_and_may_be_cut_anew() {
    let (journal, offsets, seen) = (InMemoryJournal::default(), InMemoryOffsets::default(), Seen::default());
    let read = read(&journal);
    let names: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    for (round, ranges) in [(1, vec![0..=511, 512..=1023]), (2, vec![0..=1023]), (3, vec![0..=255, 256..=1023])] {
        for name in &names {
            write(&journal, name, 2).await;
        }
        let start = |slices| {
            let store = Arc::new(offsets.clone());
            run_projection(projection(slices), &read, store, seen.clone(), ProjectionSettings::test()).unwrap()
        };
        let running: Vec<_> = ranges.into_iter().map(start).collect();
        until("every event", || seen.count() == 80 * round).await;
        for running in running {
            running.stop().await;
        }
    }
    assert!(names.iter().all(|name| seen.of(name) == [1, 2, 3, 4, 5, 6]));
}

/// A handler that never finishes its first group.
struct HangingHandler;

#[async_trait]
impl ProjectionHandler for HangingHandler {
    async fn handle(&mut self, _: &[Envelope]) -> Result<(), BoxError> {
        std::future::pending().await
    }
}

/// Persistence §10.16: the lag of a stuck projection grows without any input.
#[tokio::test(start_paused = true)]
async fn the_lag_grows_while_the_handler_is_stuck() {
    let journal = InMemoryJournal::default();
    write(&journal, "a", 1).await;
    let (read, store) = (read(&journal), Arc::new(InMemoryOffsets::default()));
    let running =
        run_projection(projection(0..=1023), &read, store, HangingHandler, ProjectionSettings::test()).unwrap();
    until("an event in hand", || running.status().lag > Some(Duration::ZERO)).await;
    until("a lag beyond the one told last", || {
        let told = running.watch().borrow().lag;
        running.status().lag > told
    })
    .await;
}

/// Rule persistence §5 (projections): a stale owner ends, and its offsets are refused.
#[tokio::test(start_paused = true)]
async fn a_second_owner_ends_the_first() {
    let (journal, offsets) = (InMemoryJournal::default(), InMemoryOffsets::default());
    let read = read(&journal);
    let start = |seen: &Seen| {
        let store = Arc::new(offsets.clone());
        run_projection(projection(0..=1023), &read, store, seen.clone(), ProjectionSettings::test()).unwrap()
    };
    let (first_seen, second_seen) = (Seen::default(), Seen::default());
    let first = start(&first_seen);
    write(&journal, "a", 3).await;
    until("the first handles", || first_seen.count() == 3).await;
    until("the first saves", || first.status().stats.saves > 0).await;
    let second = start(&second_seen);
    until("the second reads", || second.status().stats.is_running).await;
    write(&journal, "a", 1).await;
    assert!(matches!(first.ended().await, ProjectionEnd::Fenced(OffsetError::StaleOwner { .. })));
    until("the second handles", || second_seen.of("a") == [4]).await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_started_over() {
    let (journal, seen) = (InMemoryJournal::default(), Seen::default());
    let offsets = Arc::new(FaultyOffsets::new(Arc::new(InMemoryOffsets::default())));
    for op in [OffsetOp::Claim, OffsetOp::Load, OffsetOp::Save] {
        offsets.plan(None, op, 0, StoreFault::Unavailable);
    }
    write(&journal, "a", 3).await;
    let store: Arc<dyn OffsetStore> = offsets;
    let settings = ProjectionSettings::test();
    let read = read(&journal);
    let running = run_projection(projection(0..=1023), &read, store, seen.clone(), settings).unwrap();
    until("offsets are saved", || running.status().stats.saves > 0).await;
    assert_eq!(running.status().stats.restarts, 3);
    // The save failed, so its events are handled twice: at least once, and in order.
    assert_eq!(seen.of("a"), [1, 2, 3, 1, 2, 3]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn poison_ends_a_projection_or_is_skipped() {
    support::panics::quiet();
    for (poison, on_poison) in [("poison", OnPoison::Fail), ("poison", OnPoison::Skip), ("panic", OnPoison::Skip)] {
        let (journal, seen) = (InMemoryJournal::default(), Seen::default());
        for name in ["a", poison, "b"] {
            write(&journal, name, 1).await;
        }
        let (read, store) = (read(&journal), Arc::new(InMemoryOffsets::default()));
        let group = NonZeroUsize::new(10).unwrap();
        let settings = ProjectionSettings { on_poison, group, max_retries: 2, ..ProjectionSettings::test() };
        let running = run_projection(projection(0..=1023), &read, store, seen.clone(), settings).unwrap();
        if on_poison == OnPoison::Fail {
            let end = running.ended().await;
            assert!(matches!(&end, ProjectionEnd::Poisoned { id, .. } if *id == cart(poison)), "{end:?}");
            assert_eq!(seen.of("b"), [] as [u64; 0], "nothing is passed over");
        } else {
            until("what follows", || !seen.of("b").is_empty()).await;
            assert_eq!(running.status().stats.skipped, 1);
            running.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn paused_resumed_and_reset() {
    let (journal, offsets, seen) = (InMemoryJournal::default(), InMemoryOffsets::default(), Seen::default());
    let (read, store) = (read(&journal), Arc::new(offsets));
    let settings = ProjectionSettings::test();
    let running = run_projection(projection(0..=1023), &read, store, seen.clone(), settings).unwrap();
    write(&journal, "a", 2).await;
    until("both", || seen.of("a") == [1, 2]).await;
    running.pause().await;
    until("it pauses", || running.status().lag.is_none()).await;
    write(&journal, "a", 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(seen.of("a"), [1, 2]);
    running.resume().await;
    until("it goes on", || seen.of("a") == [1, 2, 3]).await;
    running.reset().await;
    until("it starts over", || seen.of("a") == [1, 2, 3, 1, 2, 3]).await;
    running.stop().await;
}

/// Rule persistence §5 (projections): a remaining mark of a wider range must not keep a part of that range
/// from starting over from the first event.
#[tokio::test(start_paused = true)]
async fn a_part_of_a_former_range_starts_over_alone() {
    let (journal, offsets, seen) = (InMemoryJournal::default(), InMemoryOffsets::default(), Seen::default());
    let read = read(&journal);
    let names: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    let (low, high): (Vec<_>, Vec<_>) = names.iter().partition(|name| cart(name).slice() < 512);
    let start = |slices| {
        let store = Arc::new(offsets.clone());
        run_projection(projection(slices), &read, store, seen.clone(), ProjectionSettings::test()).unwrap()
    };
    for name in &names {
        write(&journal, name, 2).await;
    }
    let whole = start(0..=1023);
    until("every event", || seen.count() == 80).await;
    whole.stop().await;
    let (lower, upper) = (start(0..=511), start(512..=1023));
    until("both read", || lower.status().stats.is_running && upper.status().stats.is_running).await;
    upper.reset().await;
    until("the upper half anew", || high.iter().all(|name| seen.of(name) == [1, 2, 1, 2])).await;
    assert!(low.iter().all(|name| seen.of(name) == [1, 2]), "the lower half went on");
    for name in &names {
        write(&journal, name, 1).await;
    }
    until("what follows", || seen.count() == 80 + 2 * high.len() + 40).await;
    lower.stop().await;
    upper.stop().await;
    // Ranges merged and divided anew: no event comes again and none is left out.
    for ranges in [vec![0..=1023], vec![0..=255, 256..=767, 768..=1023]] {
        let before = seen.count();
        let running: Vec<_> = ranges.into_iter().map(start).collect();
        for name in &names {
            write(&journal, name, 1).await;
        }
        until("what follows", || seen.count() >= before + 40).await;
        for running in running {
            running.stop().await;
        }
    }
    assert!(low.iter().all(|name| seen.of(name) == [1, 2, 3, 4, 5]));
    assert!(high.iter().all(|name| seen.of(name) == [1, 2, 1, 2, 3, 4, 5]));
}
