//! Byte-exact vectors of the format, and damage that decoding must survive.

use super::*;
use greylag_persistence::NewEvent;

fn head() -> StoredHead {
    StoredHead {
        pid: PidNo(3),
        head: Head {
            epoch: WriterEpoch::from_u64(2),
            writer_uuid: WriterUuid::from_u128(9),
            generation: Some(Generation::new(1, 2).unwrap()),
            highest: SeqNr::from(7),
            deleted_to: SeqNr::from(5),
        },
        timestamp: Timestamp::from_micros(1000),
        slice: 944,
    }
}

fn append(payload: Bytes) -> Append {
    let event = NewEvent {
        codec_id: CodecId::JSON,
        manifest: "incremented".into(),
        schema_version: 1,
        kind: EventKind::Event,
        payload,
        metadata: [("note".to_owned(), Bytes::from_static(b"x"))].into(),
        tags: ["red".to_owned()].into(),
    };
    Append {
        id: "Counter|1".parse().unwrap(),
        epoch: WriterEpoch::from_u64(2),
        writer_uuid: WriterUuid::from_u128(9),
        first: SeqNr::from(7),
        events: vec![event],
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_bytes_of_a_head_are_fixed() {
    let bytes = head().encode("Counter");
    assert_eq!(
        hex(&bytes),
        concat!(
            "0100000000000000030000000000000002000000000000000000000000000000090100000000100000020000000000000007",
            "000000000000000500000000000003e803b007436f756e746572"
        )
    );
    assert_eq!(StoredHead::decode(bytes.into()), Some(head()));
}

#[test]
fn the_bytes_of_an_event_are_fixed() {
    let event = EncodedEvent::all(&append(Bytes::from_static(b"{}"))).remove(0);
    let (row, chunks) = event.into_rows(Timestamp::from_micros(1000), 42);
    assert_eq!(
        hex(&row),
        concat!(
            "0100000000000003e8000000000000002a5d378dd60000000000000000000000000000000009",
            "0202010b696e6372656d656e746564010372656401046e6f746501787b7d"
        )
    );
    assert!(chunks.is_empty());
}

#[test]
fn events_come_back_whatever_their_size() {
    for size in [0, 1, MAX_VALUE_BYTES - 200, MAX_VALUE_BYTES, MAX_VALUE_BYTES + 1, 1 << 20] {
        let append = append(vec![7; size].into());
        let stored = append.records(Timestamp::from_micros(5)).remove(0);
        let (row, chunks) = EncodedEvent::all(&append).remove(0).into_rows(Timestamp::from_micros(5), 1);
        assert!(row.len() <= MAX_VALUE_BYTES && chunks.iter().all(|chunk| chunk.len() <= MAX_VALUE_BYTES));
        let row: Bytes = row.into();
        assert_eq!(EventRow::crc32c(&row), Some(stored.crc32c));
        let chunk = |at: u16| Ok::<_, ()>(chunks.get(usize::from(at)).map(|chunk| chunk.clone().into()));
        let body = Row::decode(row.clone()).unwrap().join(chunk).unwrap().unwrap();
        assert_eq!(EventRow::decode(&append.id, SeqNr::from(7), body).unwrap(), EventRow { event: stored, ordinal: 1 });
        if !chunks.is_empty() {
            assert_eq!(Row::decode(row).unwrap().join(|_| Ok::<_, ()>(None)), Ok(None), "a chunk is missing");
        }
    }
}

#[test]
fn cut_and_flipped_bytes_never_panic() {
    let (event, _) = EncodedEvent::all(&append(Bytes::new())).remove(0).into_rows(Timestamp::default(), 0);
    for whole in [event, head().encode("Counter")] {
        for at in 0..whole.len() {
            for flip in [1_u8, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= flip;
                for bytes in [Bytes::from(damaged), Bytes::copy_from_slice(&whole[..at])] {
                    let _ = StoredHead::decode(bytes.clone());
                    let _ = EventRow::crc32c(&bytes);
                    let id = "a".parse().unwrap();
                    if let Some(body) = Row::decode(bytes).and_then(|row| row.join(|_| Ok::<_, ()>(None)).unwrap()) {
                        let _ = EventRow::decode(&id, SeqNr::FIRST, body.clone());
                        let _ = decode_snapshot(&id, SeqNr::FIRST, body);
                    }
                }
            }
        }
    }
}

#[test]
fn another_kind_of_store_is_refused() {
    assert_eq!(check_format(encode_format(1).into()), Ok(()));
    let mut newer = encode_format(1);
    newer[FORMAT_MAGIC.len() + 2] = 2;
    assert!(check_format(newer.into()).unwrap_err().contains("version 2"));
    assert!(check_format(Bytes::from_static(b"\x03abc")).unwrap_err().contains("another kind"));
}
