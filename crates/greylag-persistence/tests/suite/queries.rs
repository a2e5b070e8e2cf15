//! Transcripts of a feed, and streams over a journal in memory.
//!
//! Pages are given by hand: each line of a page is a time in milliseconds (or an ordinal), an id and a
//! number. Time stands still but for `advance`.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::counted::Counted;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use greylag_core::CodecId;
use greylag_persistence::{
    Append, Cursor, Envelope, EventKind, EventPage, EventQueries, EventSource, EventsOf, Feed, FeedEffect, FeedInput,
    FoundEvent, InMemoryJournal, Journal, NewEvent, Offset, OffsetKind, PageQuery, PersistenceId, Position, QueryError,
    QuerySettings, ReadError, ReadJournal, SeqNr, StoreFailure, Timestamp, Under, Visible, WriterEpoch, WriterUuid,
};
use greylag_testkit::transcript::{self, Case};

#[test]
fn transcripts() {
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/query_protocol"), || {
        let mut world = World { now: Instant::now(), kind: OffsetKind::Timestamp, feed: None };
        move |case: &Case<'_>| world.run(case)
    });
}

struct World {
    now: Instant,
    kind: OffsetKind,
    feed: Option<Feed>,
}

fn millis(text: &str) -> Timestamp {
    Timestamp::from_micros(text.parse::<u64>().unwrap() * 1000)
}

impl World {
    fn run(&mut self, case: &Case<'_>) -> String {
        let input = match case.command {
            "start" => return self.start(case),
            "demand" => FeedInput::Demand,
            "hint" => FeedInput::Hint,
            "advance" => {
                self.now += transcript::duration(case.positional(0).unwrap()).unwrap();
                FeedInput::Tick
            }
            "page" => FeedInput::Page(Ok(self.page(case))),
            "fail" => {
                FeedInput::Page(Err(QueryError::Read(ReadError::Unavailable(StoreFailure::new("store", "away")))))
            }
            other => panic!("unknown command {other}"),
        };
        let mut out = Vec::new();
        let feed = self.feed.as_mut().unwrap();
        feed.handle(self.now, input, &mut out);
        let mut lines: Vec<String> = out.iter().flat_map(show).collect();
        if let Some(deadline) = feed.next_deadline().filter(|_| lines.is_empty()) {
            lines.push(format!("rest {:?}", deadline - self.now));
        }
        if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
    }

    fn start(&mut self, case: &Case<'_>) -> String {
        self.kind = if case.flag("ordinal") { OffsetKind::Ordinal } else { OffsetKind::Timestamp };
        let page = case.parse("page").unwrap_or(10);
        let settings = QuerySettings { page: NonZeroUsize::new(page).unwrap(), ..QuerySettings::default() };
        let offset = match (case.arg("at"), self.kind) {
            (None, _) => Offset::None,
            (Some(at), OffsetKind::Ordinal) => Offset::Ordinal(at.parse().unwrap()),
            (Some(at), OffsetKind::Timestamp) => Offset::Timestamp {
                timestamp: millis(at),
                seen: case.input.lines().map(place).map(|(id, number)| (id, number.as_u64())).collect(),
            },
        };
        let of = EventsOf::Tag("red".to_owned());
        let feed = match (case.flag("current"), case.arg("until")) {
            (false, _) => Feed::live(of, &offset, self.kind, settings, self.now),
            (true, until) => {
                let until = until.map(|until| self.position(until));
                Feed::current(of, &offset, self.kind, until, settings, self.now)
            }
        };
        match feed {
            Ok(feed) => {
                self.feed = Some(feed);
                String::new()
            }
            Err(error) => error.to_string(),
        }
    }

    fn position(&self, text: &str) -> Position {
        match self.kind {
            OffsetKind::Ordinal => Position::Ordinal(text.parse().unwrap()),
            OffsetKind::Timestamp => Position::Timestamp(millis(text)),
        }
    }

    fn page(&self, case: &Case<'_>) -> EventPage {
        let events: Vec<FoundEvent> = case
            .input
            .lines()
            .map(|line| {
                let (at, rest) = line.split_once(' ').unwrap();
                let (id, seq_nr) = place(rest);
                FoundEvent { id, seq_nr, position: self.position(at), event: None }
            })
            .collect();
        let next = events.last().map_or(Cursor::Start, |last| match last.position {
            Position::Ordinal(ordinal) => Cursor::Ordinal(ordinal),
            Position::Timestamp(timestamp) => Cursor::Row { timestamp, id: Some(last.id.clone()), seq_nr: last.seq_nr },
        });
        // An empty page does not move the cursor.
        let next = if events.is_empty() { self.feed.as_ref().unwrap().cursor().clone() } else { next };
        EventPage { events, next, more: case.flag("more") }
    }
}

fn place(text: &str) -> (PersistenceId, SeqNr) {
    let (id, number) = text.split_once(' ').unwrap();
    (id.parse().unwrap(), SeqNr::from(number.parse::<u32>().unwrap()))
}

fn show(effect: &FeedEffect) -> Vec<String> {
    match effect {
        FeedEffect::Query(PageQuery { after, until, visible, limit, load, .. }) => {
            let mut line = format!("query after {}", show_cursor(after));
            if let Some(Position::Timestamp(until)) = until {
                line += &format!(" until {}", until.as_micros() / 1000);
            }
            if let Some(Position::Ordinal(until)) = until {
                line += &format!(" until {until}");
            }
            line += &match visible {
                Visible::All => ", all".to_owned(),
                Visible::Settled => ", settled".to_owned(),
                Visible::Older(age) => format!(", older than {age:?}"),
            };
            line += if *load { "" } else { ", places only" };
            vec![format!("{line}, at most {limit}")]
        }
        FeedEffect::Deliver(envelopes) => envelopes.iter().map(show_envelope).collect(),
        FeedEffect::Failed(error) => vec![format!("failed: {error}")],
        FeedEffect::Ended => vec!["ended".to_owned()],
    }
}

fn show_cursor(cursor: &Cursor) -> String {
    match cursor {
        Cursor::Row { timestamp, id, seq_nr } => {
            let id = id.as_ref().map_or("-", PersistenceId::as_str);
            format!("{} {id} {seq_nr}", timestamp.as_micros() / 1000)
        }
        other => other.to_string(),
    }
}

fn show_envelope(envelope: &Envelope) -> String {
    let source = match envelope.source {
        EventSource::Live => "live",
        EventSource::Backtracking => "back",
        EventSource::PubSub => "heard",
    };
    let offset = match envelope.offset() {
        Offset::None => "none".to_owned(),
        Offset::Ordinal(ordinal) => ordinal.to_string(),
        Offset::Timestamp { timestamp, seen } => {
            let seen: Vec<String> = seen.iter().map(|(id, number)| format!("{id} {number}")).collect();
            format!("{} seen {}", timestamp.as_micros() / 1000, seen.join(", "))
        }
    };
    format!("{source} {} {}, resume at {offset}", envelope.id, envelope.seq_nr)
}

// ---- Streams -----------------------------------------------------------------------------------

fn id(id: &str) -> PersistenceId {
    id.parse().unwrap()
}

async fn write(journal: &InMemoryJournal, name: &str, first: u32, count: u32) {
    let writer_uuid = WriterUuid::from_u128(1);
    let claim = journal.claim(&id(name), writer_uuid, Under::Seen(WriterEpoch::NONE)).await.unwrap();
    let event = NewEvent {
        codec_id: CodecId::JSON,
        manifest: "test".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload: Bytes::from_static(b"{}"),
        metadata: [].into(),
        tags: ["red".to_owned()].into(),
    };
    let events = vec![event; count as usize];
    let append = Append { id: id(name), epoch: claim.epoch, writer_uuid, first: SeqNr::from(first), events };
    journal.append(append).await.unwrap();
}

fn read(journal: &InMemoryJournal) -> ReadJournal {
    let page = NonZeroUsize::new(2).unwrap();
    ReadJournal::new(Arc::new(journal.queries()), QuerySettings { page, ..QuerySettings::test() })
}

/// Scenario persistence 60: streams of a tag, slice or id that does not exist yet stay open, and deliver later events.
#[tokio::test(start_paused = true)]
async fn scenario_60_live_streams_of_what_does_not_exist_yet() {
    let journal = InMemoryJournal::default();
    let read = read(&journal);
    let mut by_slices = read.events_by_slices("Cart", 0..=1023, Offset::None);
    let mut by_tag = read.events_by_tag("red", Offset::None);
    let mut by_id = read.events_by_persistence_id(id("Cart|1"), SeqNr::FIRST..=SeqNr::MAX);
    let mut ids = read.persistence_ids(Some("Cart"));
    let nothing = tokio::time::timeout(Duration::from_secs(60), async {
        tokio::select! {
            event = by_slices.next() => format!("{event:?}"),
            event = by_tag.next() => format!("{event:?}"),
            event = by_id.next() => format!("{event:?}"),
            id = ids.next() => format!("{id:?}"),
        }
    });
    assert!(nothing.await.is_err(), "there is nothing, and that is no end");
    write(&journal, "Cart|1", 1, 1).await;
    let envelope = by_slices.next().await.unwrap().unwrap();
    assert!(envelope.timestamp().is_some() && envelope.record.is_some());
    assert_eq!(by_tag.next().await.unwrap().unwrap().id, id("Cart|1"));
    assert_eq!(by_id.next().await.unwrap().unwrap().seq_nr, SeqNr::FIRST);
    assert_eq!(ids.next().await.unwrap().unwrap(), id("Cart|1"));
    // A new id that sorts before those delivered is found too, and no id comes twice.
    write(&journal, "Cart|0", 1, 1).await;
    assert_eq!(ids.next().await.unwrap().unwrap(), id("Cart|0"));
}

#[tokio::test(start_paused = true)]
async fn current_streams_end() {
    let journal = InMemoryJournal::default();
    for name in ["Cart|1", "Cart|2", "Cart|3", "Other|1"] {
        write(&journal, name, 1, 3).await;
    }
    let read = read(&journal);
    let events: Vec<Envelope> =
        read.current_events_by_slices("Cart", 0..=1023, Offset::None).try_collect().await.unwrap();
    assert_eq!(events.len(), 9);
    let rest = read.current_events_by_slices("Cart", 0..=1023, events[4].offset());
    assert_eq!(rest.try_collect::<Vec<_>>().await.unwrap(), events[5..]);
    assert_eq!(read.current_events_by_tag("red", Offset::None).count().await, 12);
    let ids: Vec<PersistenceId> = read.current_persistence_ids(None).try_collect().await.unwrap();
    assert_eq!(ids, ["Cart|1", "Cart|2", "Cart|3", "Other|1"].map(id));
    let history = read.current_events_by_persistence_id(id("Cart|2"), SeqNr::from(2)..=SeqNr::MAX);
    let numbers: Vec<u64> = history.map_ok(|event| event.seq_nr.as_u64()).try_collect().await.unwrap();
    assert_eq!(numbers, [2, 3]);
    // A live stream with an upper bound ends there.
    let bounded = read.events_by_persistence_id(id("Cart|2"), SeqNr::FIRST..=SeqNr::from(2));
    assert_eq!(bounded.count().await, 2);
}

/// Rule persistence §5 (*current*): a current history leaves out events written during the reading, or a writer as fast
/// as the reader would keep the stream open for ever.
#[tokio::test(start_paused = true)]
async fn a_current_history_ends_at_what_was_there() {
    let journal = InMemoryJournal::default();
    write(&journal, "Cart|1", 1, 5).await;
    let searching = Arc::new(Counted::new(journal.queries()));
    let settings = QuerySettings { page: NonZeroUsize::new(2).unwrap(), ..QuerySettings::test() };
    let mut first = 6;
    for read in [read(&journal), ReadJournal::new(searching, settings)] {
        let mut history = read.current_events_by_persistence_id(id("Cart|1"), SeqNr::FIRST..=SeqNr::MAX);
        let (mut seen, there) = (0, first - 1);
        while let Some(event) = history.next().await {
            seen += 1;
            assert_eq!(event.unwrap().seq_nr, SeqNr::from(seen));
            write(&journal, "Cart|1", first, 1).await;
            first += 1;
            assert!(seen <= there, "the stream has no end");
        }
        assert_eq!(seen, there);
    }
}

/// The highest number is searched for where a store does not keep it, in few reads, damage or not.
#[tokio::test]
async fn the_highest_number_is_searched_for() {
    let journal = InMemoryJournal::default();
    let queries = Counted::new(journal.queries());
    assert_eq!(queries.highest(&id("Cart|1")).await, Ok(SeqNr::ZERO));
    let mut highest = 0;
    for more in [1, 1, 998, 23, 1, 1, 1, 999, 1000, 1000, 3] {
        write(&journal, "Cart|1", highest + 1, more).await;
        highest += more;
        let before = queries.reads();
        assert_eq!(queries.highest(&id("Cart|1")).await, Ok(SeqNr::from(highest)));
        let reads = queries.reads() - before;
        assert!(reads <= 30, "{reads} reads for {highest} events");
    }
    journal.corrupt(&id("Cart|1"), SeqNr::from(highest));
    assert_eq!(queries.highest(&id("Cart|1")).await, Ok(SeqNr::from(highest)));
}

#[tokio::test(start_paused = true)]
async fn an_error_is_not_the_end_of_a_live_stream() {
    let journal = InMemoryJournal::default();
    write(&journal, "Cart|1", 1, 3).await;
    journal.corrupt(&id("Cart|1"), SeqNr::from(2));
    let mut events = read(&journal).events_by_tag("red", Offset::None);
    assert_eq!(events.next().await.unwrap().unwrap().seq_nr, SeqNr::FIRST);
    for _ in 0..2 {
        assert!(matches!(events.next().await, Some(Err(QueryError::Read(ReadError::Corrupt(_))))));
    }
    journal.corrupt(&id("Cart|1"), SeqNr::from(2)); // flips the same bits back
    assert_eq!(events.next().await.unwrap().unwrap().seq_nr, SeqNr::from(2));
}
