//! Every value survives the wire.

use greylag_persistence::{AdvanceError, AppendError, ClaimError, DeleteError, ReadError, RejectReason};

use super::*;

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
fn appends_and_pages_come_back() {
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
fn heads_and_claims_come_back() {
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
fn failures_come_back() {
    let seq_nr = SeqNr::from(3);
    let failure = || StoreFailure::new("journal", "cause");
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
        AppendError::Unknown(failure()),
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
        ClaimError::Corrupt(corrupt.clone()),
    ] {
        assert_eq!(claim_error(from_claim_error(error.clone()), "journal"), error);
    }
    for error in [ReadError::Corrupt(corrupt.clone()), ReadError::Unavailable(failure())] {
        assert_eq!(read_error(from_read_error(error.clone()), "journal"), error);
    }
    for error in [
        AdvanceError::Fenced { current: sample_head() },
        AdvanceError::NotEmpty { highest: seq_nr },
        AdvanceError::Unavailable(failure()),
    ] {
        assert_eq!(advance_error(from_advance_error(error.clone()), "journal"), error);
    }
    for error in [DeleteError::Fenced { current: sample_head() }, DeleteError::Unavailable(failure())] {
        assert_eq!(delete_error(from_delete_error(error.clone()), "journal"), error);
    }
    for error in [
        SnapshotError::Corrupt(corrupt),
        SnapshotError::TooLarge { bytes: 2, max: 1 },
        SnapshotError::Unavailable(failure()),
    ] {
        assert_eq!(snapshot_error(from_snapshot_error(error.clone()), "journal"), error);
    }
}

#[test]
fn what_a_call_cannot_understand_is_an_unknown_outcome() {
    let nonsense = proto::Failure { failure: None };
    assert!(matches!(append_error(nonsense.clone(), "journal"), AppendError::Unknown(_)));
    assert!(matches!(claim_error(nonsense, "journal"), ClaimError::Unavailable(_)));
}

#[test]
fn snapshots_and_health_come_back() {
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
