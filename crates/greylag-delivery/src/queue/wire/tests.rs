//! Encoded values decode to equal ones; damaged or truncated bytes are refused.

use std::collections::BTreeMap;

use greylag_core::{CodecId, Encoded};

use super::super::stored::Started;
use super::*;
use crate::ids::{ControllerRef, Epoch, StreamId};

fn controller() -> ControllerRef {
    ControllerRef {
        node: "orders.example:17355#77".parse().unwrap(),
        path: "delivery/orders (north)".into(),
        instance: 9,
    }
}

fn started() -> Started {
    Started { stream_id: StreamId(0x0123_4567_89ab_cdef), epoch: Epoch(3), controller: controller() }
}

fn sent(seq_nr: u64, payload: &'static [u8]) -> MessageSent<Encoded> {
    let message = Encoded { codec: CodecId::JSON, manifest: "job".into(), payload: Bytes::from_static(payload) };
    MessageSent { seq_nr: SeqNr(seq_nr), message, ack: seq_nr == 2, qualifier: "日本|1".into(), timestamp_ms: 77 }
}

fn confirmations() -> Vec<Confirmation> {
    let up_to = |qualifier: &str, seq_nr, timestamp_ms| Confirmation::UpTo {
        qualifier: qualifier.into(),
        seq_nr: SeqNr(seq_nr),
        timestamp_ms,
    };
    let exact = Confirmation::Exact { seq_nrs: vec![SeqNr(1), SeqNr(3)], timestamp_ms: 5 };
    vec![up_to("", 4, 1), up_to("b", 2, u64::MAX), exact]
}

fn events() -> Vec<QueueEvent> {
    vec![
        QueueEvent::Started(started()),
        QueueEvent::Sent(sent(1, b"{}")),
        QueueEvent::Sent(sent(2, b"")),
        QueueEvent::Confirmed(confirmations()),
        QueueEvent::Confirmed(vec![]),
        QueueEvent::Cleanup(vec!["".into(), "entity-1".into()]),
    ]
}

fn bytes_of<T>(codec: &impl Codec<T>, value: &T) -> Bytes {
    let mut buffer = BytesMut::new();
    codec.encode(value, &mut buffer).unwrap();
    buffer.freeze()
}

/// A field of a later version: field 500, length-delimited.
const LATER_FIELD: &[u8] = &[0xa2, 0x1f, 0x01, 0x00];

/// Scenario delivery 60, for queues: every event survives encoding, fields of a later version are ignored, and
/// truncated input is an error or another event, never a panic.
#[test]
fn scenario_60_every_event_comes_back() {
    for event in events() {
        let manifest = EventCodec.manifest(&event);
        let bytes = bytes_of(&EventCodec, &event);
        assert_eq!(EventCodec.decode(&manifest, bytes.clone()).as_ref(), Ok(&event));
        let later = Bytes::from([&bytes[..], LATER_FIELD].concat());
        assert_eq!(EventCodec.decode(&manifest, later).as_ref(), Ok(&event));
        for end in 0..bytes.len() {
            assert_ne!(EventCodec.decode(&manifest, bytes.slice(..end)), Ok(event.clone()), "cut at {end}");
        }
    }
    let unknown = EventCodec.decode("gl.delivery.queue.later", Bytes::new());
    assert!(matches!(unknown, Err(DecodeError::UnknownManifest { .. })));
}

fn queue(encoded_of: impl Fn(u64, &'static [u8]) -> Option<Encoded>) -> PersistentQueue {
    let message = |seq_nr: u64, payload| {
        let sent = sent(seq_nr, payload);
        let message =
            UnconfirmedMessage { event: EventNr::saturating(seq_nr + 1), encoded: encoded_of(seq_nr, payload) };
        MessageSent { message, seq_nr: sent.seq_nr, ack: sent.ack, qualifier: sent.qualifier, timestamp_ms: 77 }
    };
    let confirmed = BTreeMap::from([("".into(), (SeqNr(3), 5)), ("b".into(), (SeqNr(1), 6))]);
    let unconfirmed = [message(2, &b"{}"[..]), message(4, &[b'x'; 3000][..])];
    StoredQueue::restored(Some(started()), SeqNr(7), SeqNr(5), confirmed, unconfirmed)
}

/// Scenario delivery 60: empty states, and states of several qualifiers, survive encoding.
#[test]
fn scenario_60_every_snapshot_comes_back() {
    let codec = SnapshotCodec { max_bytes: 1 << 20 };
    for queue in [PersistentQueue::default(), queue(|seq_nr, payload| Some(sent(seq_nr, payload).message))] {
        let bytes = bytes_of(&codec, &queue);
        assert_eq!(codec.decode(SNAPSHOT, bytes.clone()).as_ref(), Ok(&queue));
        for end in 0..bytes.len() {
            assert_ne!(codec.decode(SNAPSHOT, bytes.slice(..end)), Ok(queue.clone()), "cut at {end}");
        }
    }
}

/// Of delivery §4.2: a snapshot above `snapshot_max_bytes` leaves out the messages, and only them.
#[test]
fn a_snapshot_that_would_be_too_large_has_numbers_in_place_of_messages() {
    let whole = queue(|seq_nr, payload| Some(sent(seq_nr, payload).message));
    let codec = SnapshotCodec { max_bytes: 3000 };
    let bytes = bytes_of(&codec, &whole);
    assert!(bytes.len() < 1000, "{} bytes", bytes.len());
    assert_eq!(codec.decode(SNAPSHOT, bytes), Ok(queue(|_, _| None)));
}

/// A snapshot that fits by the estimate also fits by its bytes.
#[test]
fn the_size_of_a_snapshot_is_never_underestimated() {
    for queue in [PersistentQueue::default(), queue(|seq_nr, payload| Some(sent(seq_nr, payload).message))] {
        let bytes = bytes_of(&SnapshotCodec { max_bytes: usize::MAX }, &queue).len();
        assert!(!fits(&queue, bytes.saturating_sub(1)), "an estimate below {bytes} bytes");
    }
}

#[test]
fn records_that_make_no_sense_are_refused() {
    let damaged = |change: fn(&mut generated::Started)| {
        let mut record = write_started(&started());
        change(&mut record);
        read_started(STARTED, record).unwrap_err().to_string()
    };
    assert!(damaged(|record| record.stream_id = Bytes::from_static(b"short")).contains("16 bytes"));
    assert!(damaged(|record| record.controller = None).contains("controller"));
    assert!(damaged(|record| record.controller.as_mut().unwrap().port = 70_000).contains("port"));
    assert!(damaged(|record| record.controller.as_mut().unwrap().uid = 0).contains("uid"));
    assert!(damaged(|record| record.controller.as_mut().unwrap().host = String::new()).contains("host"));
    assert!(read_sent(write_sent(&sent(1, b""), None, 0)).unwrap_err().to_string().contains("message is missing"));
    for number in [0, u64::MAX] {
        let sent = sent(number, b"{}");
        assert!(
            read_sent(write_sent(&sent, Some(&sent.message), 0)).unwrap_err().to_string().contains("a number that")
        );
    }
    let long = Encoded { manifest: "m".repeat(256).into(), ..sent(1, b"").message };
    assert!(read_sent(write_sent(&sent(1, b""), Some(&long), 0)).unwrap_err().to_string().contains("too long"));
    let nowhere = encoded(&generated::Snapshot::default());
    assert!(
        SnapshotCodec { max_bytes: 0 }.decode(SNAPSHOT, nowhere).unwrap_err().to_string().contains("beyond the end")
    );
    let beyond = generated::Snapshot {
        current_seq_nr: 4,
        unconfirmed: vec![write_sent(&sent(4, b""), None, 1)],
        ..generated::Snapshot::default()
    };
    let mut bytes = BytesMut::new();
    put(&beyond, &mut bytes);
    let codec = SnapshotCodec { max_bytes: 0 };
    assert!(codec.decode(SNAPSHOT, bytes.freeze()).unwrap_err().to_string().contains("beyond the end"));
}

/// The bytes match docs/formats/delivery-queue.md.
#[test]
fn the_bytes_of_events_are_those_of_the_page() {
    let page = include_str!("../../../../../docs/formats/delivery-queue.md");
    let is_empty = |event: &QueueEvent| *event == QueueEvent::Confirmed(vec![]);
    for event in events().into_iter().filter(|event| !is_empty(event)) {
        let bytes: String = bytes_of(&EventCodec, &event).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(page.contains(&format!("`{bytes}`")), "{event:?}: {bytes} is not in the page");
    }
}

/// A queue whose end lies before one of its messages, or whose message has no number, is refused.
#[test]
fn a_queue_with_a_message_beyond_its_end_is_refused() {
    let queue_of = |current, seq_nrs: &[u64]| {
        let unconfirmed =
            seq_nrs.iter().map(|seq_nr| write_sent(&sent(*seq_nr, b"{}"), Some(&sent(1, b"{}").message), 0));
        let unconfirmed = unconfirmed.collect();
        queue_from_bytes(encoded(&generated::Snapshot { current_seq_nr: current, unconfirmed, ..Default::default() }))
    };
    assert_eq!(queue_of(3, &[1, 2]).unwrap().unconfirmed().count(), 2);
    for (current, seq_nrs) in [(0, &[][..]), (2, &[1, 2]), (2, &[1, 7]), (2, &[0, 1])] {
        assert!(queue_of(current, seq_nrs).is_err(), "{current} {seq_nrs:?}");
    }
}
