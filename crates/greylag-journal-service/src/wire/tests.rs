//! Every value survives the wire.

use std::time::Duration;

use greylag_persistence::{
    AdvanceError, AppendError, ChangesOf, ClaimError, Cursor, DeleteError, EncodedValue, EventPage, EventsOf,
    FoundEvent, Offset, OffsetCaps, OffsetError, OffsetKind, OwnedSlices, OwnerEpoch, PageQuery, Position, Processed,
    QueryCaps, QueryError, ReadError, RejectReason, Revision, Shows, StateCaps, StateChange, StateHead,
    StateRejectReason, StateWrite, StateWriteError, StoreFailure, StoredState, Visible,
};

use greylag_core::{CodecId, Generation};
use greylag_persistence::{
    Append, Corrupt, CorruptKind, EventKind, Head, Health, NewEvent, NewSnapshot, Page, PersistenceId, Scope, SeqNr,
    SnapshotCriteria, SnapshotError, Timestamp, Under, WriterEpoch, WriterUuid,
};

use super::*;
use crate::generated as proto;

fn new_event() -> NewEvent {
    NewEvent {
        codec_id: CodecId::JSON,
        manifest: "incremented".into(),
        schema_version: 3,
        kind: EventKind::Event,
        payload: "{}".into(),
        metadata: [("note".to_owned(), "x".into())].into(),
        tags: ["red".to_owned(), "blue".to_owned()].into(),
    }
}

fn sample_head() -> Head {
    Head {
        epoch: WriterEpoch::from_u64(4),
        writer_uuid: WriterUuid::from_u128(u128::MAX - 1),
        generation: Some(Generation::new(1, 2).unwrap()),
        highest: SeqNr::from(9),
        deleted_to: SeqNr::from(2),
    }
}

#[test]
fn appends_and_pages_round_trip() {
    let filtered = NewEvent { kind: EventKind::Filtered, payload: bytes::Bytes::new(), ..new_event() };
    let sample = Append {
        id: "Counter|1".parse().unwrap(),
        epoch: WriterEpoch::from_u64(4),
        writer_uuid: WriterUuid::from_u128(7),
        first: SeqNr::from(3),
        events: vec![new_event(), filtered],
    };
    let records = sample.records(Timestamp::from_micros(55));
    assert_eq!(append(from_append(sample.clone())), Ok(sample.clone()));
    for next in [None, Some(SeqNr::from(5))] {
        let whole = Page { records: records.clone(), next };
        assert_eq!(page(&sample.id, from_page(whole.clone())), Ok(whole));
    }
    let mut damaged = from_page(Page { records, next: None });
    damaged.records[0].crc32c ^= 1;
    assert!(page(&sample.id, damaged).is_err());
}

#[test]
fn heads_and_claims_round_trip() {
    for sample in [sample_head(), Head::default()] {
        assert_eq!(head(from_head(sample)), Ok(sample));
    }
    for right in [Under::Generation(Generation::new(0, 0).unwrap()), Under::Seen(WriterEpoch::NONE)] {
        assert_eq!(under(Some(from_under(right))), Ok(right));
    }
    assert!(under(None).is_err());
    assert!(writer_uuid(&[0; 15]).is_err());
    assert!(seq_nr(u64::MAX).is_err());
}

#[test]
fn failures_round_trip() {
    let seq_nr = SeqNr::from(3);
    let failure = || StoreFailure::new("journal", "cause");
    let refusal = || StoreFailure::refusal("journal", "cause");
    let reasons = [
        RejectReason::Empty,
        RejectReason::TooManyEvents { count: 5, max: 4 },
        RejectReason::EventTooLarge { seq_nr, bytes: 9, max: 8 },
        RejectReason::InvalidManifest { seq_nr },
        RejectReason::InvalidTags { seq_nr },
        RejectReason::FilteredPayload { seq_nr },
        RejectReason::SeqNrOverflow,
        RejectReason::StorageLow("1 byte free".into()),
        RejectReason::Other("because".into()),
    ];
    let mut appends: Vec<_> = reasons.into_iter().map(AppendError::Rejected).collect();
    appends.extend([
        AppendError::NotStored(failure()),
        AppendError::NotStored(refusal()),
        AppendError::Unknown(failure()),
        AppendError::Unknown(refusal()),
        AppendError::Fenced { current: sample_head() },
        AppendError::Conflict { highest: seq_nr },
    ]);
    for error in appends {
        assert_eq!(append_error(from_append_error(error.clone()), "journal"), error);
    }
    let corrupt = Corrupt { id: "a".parse().unwrap(), seq_nr, kind: CorruptKind::Missing };
    for error in [
        ClaimError::Fenced { current: sample_head() },
        ClaimError::Unavailable(failure()),
        ClaimError::Unavailable(refusal()),
        ClaimError::Corrupt(corrupt.clone()),
    ] {
        assert_eq!(claim_error(from_claim_error(error.clone()), "journal"), error);
    }
    for error in
        [ReadError::Corrupt(corrupt.clone()), ReadError::Unavailable(failure()), ReadError::Unavailable(refusal())]
    {
        assert_eq!(read_error(from_read_error(error.clone()), "journal"), error);
    }
    for error in [
        AdvanceError::Fenced { current: sample_head() },
        AdvanceError::NotEmpty { highest: seq_nr },
        AdvanceError::Unavailable(failure()),
        AdvanceError::Unavailable(refusal()),
    ] {
        assert_eq!(advance_error(from_advance_error(error.clone()), "journal"), error);
    }
    for error in [
        DeleteError::Fenced { current: sample_head() },
        DeleteError::Unavailable(failure()),
        DeleteError::Unavailable(refusal()),
    ] {
        assert_eq!(delete_error(from_delete_error(error.clone()), "journal"), error);
    }
    for error in [
        SnapshotError::Corrupt(corrupt),
        SnapshotError::TooLarge { bytes: 2, max: 1 },
        SnapshotError::Unavailable(failure()),
        SnapshotError::Unavailable(refusal()),
    ] {
        assert_eq!(snapshot_error(from_snapshot_error(error.clone()), "journal"), error);
    }
}

#[test]
fn an_answer_of_another_kind_is_an_unknown_outcome() {
    let nonsense = proto::Failure::default();
    assert!(matches!(append_error(nonsense.clone(), "journal"), AppendError::Unknown(_)));
    assert!(matches!(claim_error(nonsense, "journal"), ClaimError::Unavailable(_)));
}

#[test]
fn snapshots_and_health_round_trip() {
    let sample = NewSnapshot {
        id: "Counter|1".parse().unwrap(),
        seq_nr: SeqNr::from(9),
        codec_id: CodecId::PROST,
        manifest: "state".into(),
        schema_version: 1,
        payload: "state".into(),
        metadata: [("gl.delivery".to_owned(), "marks".into())].into(),
    };
    assert_eq!(new_snapshot(from_new_snapshot(sample.clone())), Ok(sample.clone()));
    let stored = sample.stored(Timestamp::from_micros(4));
    assert_eq!(snapshot(from_snapshot(stored.clone())), Ok(stored));
    for sample in [Health::Up, Health::Degraded(vec!["low".into()]), Health::Down("gone".into())] {
        assert_eq!(health(from_health(sample.clone())), sample);
    }
    assert_eq!(criteria(from_criteria(SnapshotCriteria::LATEST)), Ok(SnapshotCriteria::LATEST));
}

fn sample_write() -> (StateWrite, EncodedValue) {
    let write = StateWrite {
        id: "Counter|1".parse().unwrap(),
        revision: Revision::from(3),
        generation: Some(Generation::new(1, 2).unwrap()),
        writer_uuid: WriterUuid::from_u128(7),
    };
    let (manifest, payload) = ("state".to_owned(), "{}".into());
    (write, EncodedValue { codec_id: CodecId::JSON, manifest, schema_version: 2, payload })
}

#[test]
fn states_round_trip() {
    let (sample, value) = sample_write();
    let absent = StoredState::absent(sample.id.clone());
    for tag in [None, Some("red".to_owned())] {
        let content = Some((value.clone(), tag));
        assert_eq!(write(from_write(sample.clone(), content.clone())), Ok((sample.clone(), content.clone())));
        let row = sample.row(&absent, content, Timestamp::from_micros(5));
        assert_eq!(state(from_state(row.clone())), Ok(row.clone()));
        let offset = Offset::Ordinal(4);
        let sample = StateChange { offset, state: row };
        assert_eq!(change(from_change(sample.clone())), Ok(sample));
    }
    let nameless = StateWrite { generation: None, ..sample.clone() };
    assert_eq!(write(from_write(nameless.clone(), None)), Ok((nameless, None)));
    let whole = sample.row(&absent, Some((value, None)), Timestamp::from_micros(5));
    let tombstone = sample.row(&whole, None, Timestamp::from_micros(6));
    for row in [absent, tombstone] {
        assert_eq!(state(from_state(row.clone())), Ok(row));
    }
    let mut damaged = from_state(whole);
    damaged.revision += 1;
    assert!(state(damaged).is_err(), "what the disk protects, the wire must not lose");
    for of in
        [ChangesOf::Tag("red".to_owned()), ChangesOf::Slices { entity_type: "Counter".to_owned(), slices: 3..=1023 }]
    {
        assert_eq!(changes_of(Some(from_changes_of(&of))), Ok(of));
    }
    assert!(changes_of(None).is_err());
    for changes in [None, Some(OffsetKind::Ordinal), Some(OffsetKind::Timestamp)] {
        let caps = StateCaps { scope: Scope::Shared, max_state_bytes: 9, changes };
        assert_eq!(state_caps(from_state_caps(caps)), caps);
    }
}

#[test]
fn offsets_round_trip() {
    let id: PersistenceId = "Counter|1".parse().unwrap();
    for sample in [
        Offset::None,
        Offset::Ordinal(0),
        Offset::Timestamp { timestamp: Timestamp::from_micros(3), seen: vec![(id.clone(), 4)] },
    ] {
        assert_eq!(offset(from_offset(&sample)), Ok(sample));
    }
    for position in [Position::Ordinal(7), Position::Timestamp(Timestamp::from_micros(7))] {
        let sample = Processed { id: id.clone(), seq_nr: SeqNr::from(2), position };
        assert_eq!(processed(from_processed(&sample)), Ok(sample));
        let caps = OffsetCaps { scope: Scope::Shared, kind: position.kind() };
        assert_eq!(offset_caps(from_offset_caps(caps)), caps);
    }
    let epochs = [(0, OwnerEpoch::from_u64(1)), (1023, OwnerEpoch::from_u64(u64::MAX))].into();
    let sample = OwnedSlices { projection: "carts".to_owned(), epochs };
    assert_eq!(owned(from_owned(&sample)), Ok(sample.clone()));
    let torn = proto::OwnedSlices { epochs: vec![1], ..from_owned(&sample) };
    assert!(owned(torn).is_err(), "every slice has an epoch");
    assert!(slices(0, 1 << 16).is_err());
}

#[test]
fn queries_round_trip() {
    let id: PersistenceId = "Counter|1".parse().unwrap();
    let timestamp = Timestamp::from_micros(8);
    let cursors = [
        Cursor::Start,
        Cursor::Ordinal(3),
        Cursor::at(timestamp),
        Cursor::Row { timestamp, id: Some(id.clone()), seq_nr: SeqNr::from(4) },
    ];
    let visibles = [Visible::All, Visible::Settled, Visible::Older(Duration::from_millis(5)), Visible::All];
    let slices = EventsOf::Slices { entity_type: "Counter".to_owned(), slices: 0..=7 };
    for (after, visible) in cursors.into_iter().zip(visibles) {
        for (of, until) in [(slices.clone(), None), (EventsOf::Tag("red".to_owned()), Some(Position::Ordinal(9)))] {
            let sample = PageQuery { of, after: after.clone(), until, visible, limit: 9, load: until.is_some() };
            assert_eq!(page_query(from_page_query(&sample)), Ok(sample));
        }
        let found = FoundEvent { id: id.clone(), seq_nr: SeqNr::FIRST, position: Position::Ordinal(1), event: None };
        let sample = EventPage { events: vec![found], next: after, more: true };
        assert_eq!(event_page(from_event_page(sample.clone())), Ok(sample));
    }
    for (kind, shows) in [(OffsetKind::Ordinal, Shows::Every), (OffsetKind::Timestamp, Shows::Newest)] {
        let caps = QueryCaps { scope: Scope::Shared, kind, shows };
        assert_eq!(query_caps(from_query_caps(caps)), caps);
    }
}

#[test]
fn failures_of_states_offsets_and_queries_round_trip() {
    let failure = || StoreFailure::new("store", "cause");
    let refusal = || StoreFailure::refusal("store", "cause");
    let head = StateHead {
        revision: Revision::from(4),
        generation: Some(Generation::new(1, 2).unwrap()),
        writer_uuid: WriterUuid::from_u128(3),
        crc32c: Some(9),
    };
    let reasons = [
        StateRejectReason::RevisionZero,
        StateRejectReason::TooLarge { bytes: 2, max: 1 },
        StateRejectReason::InvalidManifest,
        StateRejectReason::InvalidTag,
        StateRejectReason::RevisionOverflow,
        StateRejectReason::StorageLow("1 byte free".into()),
        StateRejectReason::Other("because".into()),
    ];
    let writes = [
        StateWriteError::NotStored(failure()),
        StateWriteError::NotStored(refusal()),
        StateWriteError::Unknown(failure()),
        StateWriteError::Unknown(refusal()),
        StateWriteError::RevisionMismatch { current: head },
        StateWriteError::RevisionMismatch { current: StateHead::default() },
    ];
    for error in reasons.into_iter().map(StateWriteError::Rejected).chain(writes) {
        assert_eq!(write_error(from_write_error(error.clone()), "store"), error);
    }
    let (expected, found) = (OffsetKind::Ordinal, OffsetKind::Timestamp);
    let corrupt = Corrupt { id: "a".parse().unwrap(), seq_nr: SeqNr::FIRST, kind: CorruptKind::Checksum };
    for error in [
        QueryError::ForeignOffset { expected, found },
        QueryError::Unsupported("no".into()),
        QueryError::Read(ReadError::Corrupt(corrupt)),
        QueryError::Read(ReadError::Unavailable(failure())),
        QueryError::Read(ReadError::Unavailable(refusal())),
    ] {
        assert_eq!(query_error(from_query_error(error.clone()), "store"), error);
    }
    let projection = "carts".to_owned();
    let (own, current) = (OwnerEpoch::from_u64(1), OwnerEpoch::from_u64(2));
    for error in [
        OffsetError::StaleOwner { projection: projection.clone(), slice: 1023, own, current },
        OffsetError::NotOwned { projection: projection.clone(), slice: 0 },
        OffsetError::ForeignOffset { expected, found },
        OffsetError::InvalidName,
        OffsetError::Corrupt { projection, kind: CorruptKind::Unreadable },
        OffsetError::Unavailable(failure()),
        OffsetError::Unavailable(refusal()),
    ] {
        assert_eq!(offset_error(from_offset_error(error.clone()), "store"), error);
    }
    let nonsense = proto::Failure::default();
    assert!(matches!(write_error(nonsense.clone(), "store"), StateWriteError::Unknown(_)));
    assert!(matches!(offset_error(nonsense, "store"), OffsetError::Unavailable(_)));
}
