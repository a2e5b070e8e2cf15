//! The gap rules one by one.

use crate::contract::offset::OffsetKind;
use crate::contract::records::event::StoredEvent;
use crate::reading::projection::control_rows::confirmed;
use crate::reading::projection::progress::*;

const TIMES: Times = Times { remember: Duration::from_secs(300), lookback: Duration::from_secs(130) };

fn id(name: &str) -> PersistenceId {
    PersistenceId::of("Cart", name).unwrap()
}

fn seconds(at: u64) -> Position {
    Position::Timestamp(Timestamp::from_micros(at * 1_000_000))
}

fn record(id: &PersistenceId, seq_nr: u32) -> StoredEvent {
    StoredEvent {
        id: id.clone(),
        seq_nr: SeqNr::from(seq_nr),
        timestamp: Timestamp::default(),
        writer_uuid: crate::WriterUuid::NONE,
        writer_epoch: crate::WriterEpoch::NONE,
        codec_id: greylag_core::CodecId::JSON,
        manifest: "test".into(),
        schema_version: 1,
        kind: crate::EventKind::Event,
        payload: bytes::Bytes::new(),
        metadata: crate::Metadata::new(),
        tags: crate::Tags::new(),
        crc32c: 0,
    }
}

fn live(name: &str, seq_nr: u32, at: u64) -> Envelope {
    Envelope::of_record(record(&id(name), seq_nr), seconds(at), EventSource::Live)
}

fn back(name: &str, seq_nr: u32, at: u64) -> Envelope {
    let mut envelope = live(name, seq_nr, at);
    (envelope.record, envelope.source) = (None, EventSource::Backtracking);
    envelope
}

fn heard(name: &str, seq_nr: u32, at: u64) -> Envelope {
    Envelope::of_record(record(&id(name), seq_nr), seconds(at), EventSource::PubSub)
}

fn saved(id: PersistenceId, seq_nr: u32, at: u64) -> Processed {
    Processed { id, seq_nr: SeqNr::from(seq_nr), position: seconds(at) }
}

fn fetch(from: u32, to: u32) -> GapDecision {
    GapDecision::Fetch { from: SeqNr::from(from), to: SeqNr::from(to) }
}

/// Rule persistence §5 (gap handling at the consumer), clause by clause.
#[test]
fn an_envelope_is_judged_by_its_number_and_how_it_came() {
    let (mut progress, _) = Progress::resume(Shows::Every, 0..=1023, TIMES, Vec::new());
    progress.track(&id("known"), SeqNr::from(5), seconds(1000));
    for (what, envelope, judgement) in [
        ("the next", live("known", 6, 1001), GapDecision::Accept),
        ("the last again", live("known", 5, 1000), GapDecision::Duplicate),
        ("an old one, found going back", back("known", 3, 990), GapDecision::Duplicate),
        ("one too far, read on", live("known", 8, 1002), GapDecision::Leave),
        ("one too far, heard of", heard("known", 8, 1002), GapDecision::Leave),
        ("one too far, found going back", back("known", 8, 1002), fetch(6, 8)),
        ("the next, found going back without its record", back("known", 6, 1001), fetch(6, 6)),
        ("the first of an id", live("new", 1, 1001), GapDecision::Accept),
        ("the first of an id, found going back", back("new", 1, 1001), fetch(1, 1)),
        ("a later one of a new id", live("new", 4, 1001), GapDecision::Look { at: SeqNr::from(3) }),
        ("a later one of a new id, found going back", back("new", 4, 1001), GapDecision::Look { at: SeqNr::from(3) }),
    ] {
        assert_eq!(progress.judge(&envelope), judgement, "{what}");
    }
}

#[test]
fn events_before_the_kept_span_count_as_processed() {
    let all = marker(&(0..=1023), 0);
    let (mut progress, offset) = Progress::resume(Shows::Every, 0..=1023, TIMES, vec![saved(all, 1, 1000)]);
    assert_eq!(offset, Offset::Timestamp { timestamp: Timestamp::from_micros(1_000_000_000), seen: Vec::new() });
    assert_eq!(progress.judge(&live("forgotten", 1, 699)), GapDecision::Duplicate);
    assert_eq!(progress.judge(&live("late", 1, 701)), GapDecision::Accept);
    // The event before is older than the span that is kept, so its successor is next.
    let at = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
    assert!(progress.is_before_retention(&id("quiet"), at(699)));
    assert!(!progress.is_before_retention(&id("quiet"), at(701)));
    // An id whose events were not reread is kept, however far reading on has come.
    progress.reach(seconds(2000));
    progress.track(&id("met again"), SeqNr::from(1), seconds(1001));
    assert_eq!((progress.forget(), progress.remembered()), (Some(seconds(0)), 1));
    assert!(!progress.is_before_retention(&id("quiet"), at(1699)));
    progress.reread(at(2000));
    assert!(progress.is_before_retention(&id("quiet"), at(1699)));
    // An id whose events are before the span is forgotten, here and in the store.
    progress.track(&id("old"), SeqNr::from(1), seconds(1600));
    progress.track(&id("young"), SeqNr::from(1), seconds(1800));
    assert_eq!((progress.forget(), progress.remembered()), (Some(seconds(1700)), 1));
}

#[test]
fn the_mark_never_passes_what_was_left() {
    let (mut progress, _) = Progress::resume(Shows::Every, 0..=1023, TIMES, Vec::new());
    let place = |progress: &Progress| progress.mark(None).map(|mark| mark.position);
    assert_eq!(place(&progress), None);
    progress.track(&id("a"), SeqNr::from(1), seconds(10));
    progress.leave(&live("a", 3, 20));
    progress.reach(seconds(30));
    assert_eq!(place(&progress), Some(Position::Timestamp(Timestamp::from_micros(19_999_999))));
    progress.track(&id("a"), SeqNr::from(3), seconds(20));
    progress.reach(seconds(31));
    assert_eq!((place(&progress), progress.waiting()), (Some(seconds(31)), 0));
}

#[test]
fn ranges_are_cut_anew_without_loss() {
    let mark = |slices: RangeInclusive<u16>, at| saved(marker(&slices, 0), 1, at);
    let halves = vec![mark(0..=511, 100), mark(512..=1023, 50)];
    let start = |slices, rows: &[Processed]| Progress::resume(Shows::Every, slices, TIMES, rows.to_vec()).1;
    let at = |seconds: u64| Offset::Timestamp { timestamp: Timestamp::from_micros(seconds * 1_000_000), seen: vec![] };
    assert_eq!(start(0..=511, &halves), at(100));
    assert_eq!(start(0..=1023, &halves), at(50), "two instances become one: the slower says where");
    assert_eq!(start(256..=767, &halves), at(50));
    assert_eq!(start(128..=255, &halves), at(100), "one becomes several");
    assert_eq!(start(0..=1023, &halves[..1]), Offset::None, "nothing is known of the upper half");
    // The row of an id gives no position for other slices.
    let row = saved(id("1"), 7, 90);
    assert_eq!(start(0..=1023, std::slice::from_ref(&row)), Offset::None);
    // The half that is further on is not processed again.
    let (progress, _) = Progress::resume(
        Shows::Every,
        0..=1023,
        Times { remember: Duration::from_secs(10), ..TIMES },
        [halves, vec![row]].concat(),
    );
    assert_eq!(progress.judge(&live("1", 7, 90)), GapDecision::Duplicate);
    let half = |upper: bool| (0..).map(|n: u32| n.to_string()).find(|n| (id(n).slice() >= 512) == upper).unwrap();
    assert_eq!(progress.judge(&live(&half(false), 1, 60)), GapDecision::Duplicate, "its half was past that");
    assert_eq!(progress.judge(&live(&half(true), 1, 60)), GapDecision::Accept);
}

#[test]
fn ordinals_need_no_memory() {
    let slices = 0..=1023;
    let mark = Processed { id: marker(&slices, 0), seq_nr: SeqNr::from(8), position: Position::Ordinal(7) };
    let (mut progress, offset) = Progress::resume(Shows::Every, slices, TIMES, vec![mark.clone()]);
    assert_eq!(offset, Offset::Ordinal(7));
    let at = |ordinal| Envelope::of_record(record(&id("a"), 9), Position::Ordinal(ordinal), EventSource::Live);
    assert_eq!(progress.judge(&at(7)), GapDecision::Duplicate);
    assert_eq!(progress.judge(&at(8)), GapDecision::Accept, "gap-free up to what is durable");
    assert_eq!(progress.mark(None), Some(mark));
    progress.track(&id("a"), SeqNr::from(9), Position::Ordinal(8));
    progress.reach(Position::Ordinal(8));
    assert_eq!((progress.remembered(), progress.forget()), (0, None));
}

/// A projection that resumes reads on at the mark, and the mark stays before events that were left or not reread.
#[test]
fn id_rows_never_advance_the_resume_offset_past_the_mark() {
    let slices = id("a").slice()..=id("a").slice();
    let (mut progress, _) = Progress::resume(Shows::Every, slices.clone(), TIMES, Vec::new());
    progress.reread(Timestamp::from_micros(100_000_000));
    progress.track(&id("a"), SeqNr::FIRST, seconds(1000));
    progress.reach(seconds(1000));
    let mark = progress.mark(None).unwrap();
    assert_eq!(mark.position, seconds(230));
    let (progress, offset) = Progress::resume(Shows::Every, slices, TIMES, vec![mark, saved(id("a"), 1, 1000)]);
    assert_eq!(offset, Offset::Timestamp { timestamp: Timestamp::from_micros(230_000_000), seen: Vec::new() });
    assert_eq!(progress.judge(&live("a", 1, 1000)), GapDecision::Duplicate);
    let late = (0_u32..).map(|n| n.to_string()).find(|n| id(n).slice() == id("a").slice()).unwrap();
    assert_eq!(progress.judge(&live(&late, 1, 240)), GapDecision::Accept, "it was never handled");
}

/// Marks that are kept under other slices survive a reset; only marks of instances that knew of the reset count.
#[test]
fn a_reset_overrules_the_marks_of_wider_ranges() {
    let mark = |slices: RangeInclusive<u16>, start, at| saved(marker(&slices, start), 1, at);
    let upper = confirmed(&(512..=1023), 1, OffsetKind::Timestamp);
    let start = |slices, rows: &[Processed]| Progress::resume(Shows::Every, slices, TIMES, rows.to_vec()).1;
    let at = |seconds: u64| Offset::Timestamp { timestamp: Timestamp::from_micros(seconds * 1_000_000), seen: vec![] };
    let mut rows = vec![mark(0..=1023, 0, 50), upper.clone()];
    assert_eq!(start(0..=511, &rows), at(50));
    assert_eq!(start(512..=1023, &rows), Offset::None);
    assert_eq!(start(0..=1023, &rows), Offset::None);
    // A fenced instance of the whole range may still write its mark.
    rows[0] = mark(0..=1023, 0, 70);
    rows.push(mark(512..=1023, 1, 5));
    assert_eq!(start(512..=1023, &rows), at(5));
    // Ranges merged: the whole range has a new mark, and the known progress of the lower half stays.
    let (progress, offset) = Progress::resume(Shows::Every, 0..=1023, TIMES, rows.clone());
    assert_eq!((offset, progress.mark(Some(seconds(6))).unwrap().id), (at(5), marker(&(0..=1023), 1)));
    rows.push(mark(0..=1023, 1, 6));
    assert_eq!((start(0..=511, &rows), start(512..=1023, &rows)), (at(70), at(6)));
}
