//! The formats of producer queues: in journals, in rows, and in the states of entities.

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, Encoded};
use greylag_persistence::SeqNr as EventNr;

use super::input::Input;
use super::samples::controller;
use crate::ids::{SeqNr, StreamId};
use crate::queue::outbox::{DeliveryOutbox, OutboxEvent};
use crate::queue::persistent::{self, PersistentQueue, QueueEvent};
use crate::queue::wire::{EventCodec, SnapshotCodec};
use crate::queue::{Confirmation, MessageSent, QueueHead, StoredQueue, confirmed_from_bytes, confirmed_to_bytes};

/// An encoded message as a queue stores it.
fn encoded(payload: &[u8]) -> Encoded {
    Encoded { codec: CodecId::JSON, manifest: "number".into(), payload: Bytes::copy_from_slice(payload) }
}

fn bytes_of<T>(codec: &impl Codec<T>, value: &T) -> Bytes {
    let mut bytes = BytesMut::new();
    codec.encode(value, &mut bytes).expect("it is written");
    bytes.freeze()
}

/// A history of a queue: for each event the kind, its length in two bytes, and the event. A decoded event is equal
/// after another round of encoding and decoding; the queue folded from the history can be encoded, decoded and used.
pub fn queue_event(input: &[u8]) {
    let (mut input, mut queue, mut number) = (Input::new(input), PersistentQueue::default(), EventNr::saturating(0));
    let manifests = EventCodec.manifests();
    while let Some(kind) = input.next() {
        let manifest = &manifests[usize::from(kind) % manifests.len()];
        let Ok(event) = EventCodec.decode(manifest, Bytes::copy_from_slice(input.bytes())) else { continue };
        let again = EventCodec.decode(&EventCodec.manifest(&event), bytes_of(&EventCodec, &event));
        assert_eq!(again.as_ref(), Ok(&event));
        number = EventNr::saturating(number.as_u64() + 1);
        persistent::apply(&mut queue, &event, number, false);
        assert_usable(&queue);
    }
    let codec = SnapshotCodec { max_bytes: usize::MAX };
    assert_eq!(codec.decode(&codec.manifest(&queue), bytes_of(&codec, &queue)), Ok(queue));
}

/// A snapshot of a queue. A decoded queue can be encoded, decoded again and used, with its messages and without them.
pub fn queue_snapshot(input: &[u8]) {
    let codec = SnapshotCodec { max_bytes: usize::MAX };
    let manifest = &codec.manifests()[0];
    let Ok(queue) = codec.decode(manifest, Bytes::copy_from_slice(input)) else { return };
    assert_usable(&queue);
    assert_eq!(codec.decode(manifest, bytes_of(&codec, &queue)).as_ref(), Ok(&queue));
    let without = bytes_of(&SnapshotCodec { max_bytes: 0 }, &queue);
    let without = codec.decode(manifest, without).expect("what was written can be read");
    assert_eq!(without.unconfirmed().count(), queue.unconfirmed().count());
    assert!(without.unconfirmed().all(|sent| sent.message.encoded.is_none()));
}

/// Asserts that a queue can be used in any state: it accepts or refuses the next message, and confirms the messages of
/// one qualifier and no others.
fn assert_usable<M: Clone>(queue: &StoredQueue<M>) {
    let mut queue = queue.clone();
    let current = queue.current();
    assert!(current != SeqNr::NONE && queue.unconfirmed().all(|sent| sent.seq_nr < current), "{current:?}");
    let sent = MessageSent { seq_nr: current, message: (), ack: false, qualifier: "q".into(), timestamp_ms: 0 };
    if let Ok(batch) = queue.judge_batch(vec![sent], current) {
        assert_eq!(batch.len(), 1, "the next number is new");
    }
    let Some(oldest) = queue.unconfirmed().next().cloned() else { return };
    let (qualifier, timestamp_ms) = (oldest.qualifier.clone(), 1);
    let up_to = Confirmation::UpTo { qualifier: qualifier.clone(), seq_nr: oldest.seq_nr, timestamp_ms };
    let taken = queue.confirmed_by(&up_to);
    let is_its_own = |sent: &MessageSent<M>| sent.qualifier == qualifier && sent.seq_nr <= oldest.seq_nr;
    let expected: Vec<SeqNr> = queue.unconfirmed().filter(|sent| is_its_own(sent)).map(|sent| sent.seq_nr).collect();
    assert_eq!(taken, expected, "a confirmation takes the messages of its qualifier");
    queue.confirm(&up_to);
    assert!(!queue.unconfirmed().any(is_its_own));
    queue.unused_qualifiers(u64::MAX, std::time::Duration::ZERO);
}

/// A row of a queue in a store of keys and values: its head, a message, or a qualifier; the first byte chooses.
pub fn queue_rows(input: &[u8]) {
    let Some((kind, row)) = input.split_first() else { return };
    let row = Bytes::copy_from_slice(row);
    match kind % 3 {
        0 => {
            let Ok(head) = QueueHead::from_bytes(row) else { return };
            assert_eq!(QueueHead::from_bytes(head.to_bytes()), Ok(head));
        }
        1 => {
            let Ok(sent) = MessageSent::<Encoded>::from_bytes(row) else { return };
            assert_eq!(MessageSent::from_bytes(sent.to_bytes()), Ok(sent));
        }
        _ => {
            let Ok(confirmed) = confirmed_from_bytes(row) else { return };
            let (qualifier, seq_nr, timestamp_ms) = &confirmed;
            assert_eq!(confirmed_from_bytes(confirmed_to_bytes(qualifier, *seq_nr, *timestamp_ms)), Ok(confirmed));
        }
    }
}

/// An outbox within the state of an entity, and its events: the length of the outbox in two bytes, the outbox, and for
/// each event its length and the event. A decoded outbox can be encoded, decoded again and used.
pub fn outbox(input: &[u8]) {
    let mut input = Input::new(input);
    let mut outbox = match input.bytes() {
        [] => DeliveryOutbox::default(),
        bytes => match DeliveryOutbox::from_bytes(Bytes::copy_from_slice(bytes)) {
            Ok(outbox) => outbox,
            Err(_) => return,
        },
    };
    loop {
        let bytes = input.bytes();
        if bytes.is_empty() {
            break;
        }
        let Ok(event) = OutboxEvent::from_bytes(Bytes::copy_from_slice(bytes)) else { continue };
        assert_eq!(OutboxEvent::from_bytes(event.to_bytes()).as_ref(), Ok(&event));
        outbox.apply(&event);
    }
    assert_eq!(DeliveryOutbox::from_bytes(outbox.to_bytes()).as_ref(), Ok(&outbox));
    if let Ok(events) = outbox.send([("q".into(), encoded(b"1"))], 1) {
        let before = outbox.current();
        events.iter().for_each(|event| outbox.apply(event));
        assert!(outbox.current() > before);
    }
    if let Ok(started) = outbox.start(controller(1), StreamId(1)) {
        outbox.apply(&started);
        assert!(outbox.loaded().is_some());
    }
}

/// One event of every kind.
pub(super) fn events() -> Vec<QueueEvent> {
    let started = crate::queue::Started { stream_id: StreamId(7), epoch: crate::Epoch(3), controller: controller(9) };
    let sent = |seq_nr: u64, qualifier: &str| MessageSent {
        seq_nr: SeqNr(seq_nr),
        message: encoded(b"17"),
        ack: seq_nr == 2,
        qualifier: qualifier.into(),
        timestamp_ms: 77,
    };
    let up_to = |qualifier: &str, seq_nr| Confirmation::UpTo {
        qualifier: qualifier.into(),
        seq_nr: SeqNr(seq_nr),
        timestamp_ms: 5,
    };
    let exact = Confirmation::Exact { seq_nrs: vec![SeqNr(1), SeqNr(3)], timestamp_ms: 5 };
    vec![
        QueueEvent::Started(started),
        QueueEvent::Sent(sent(1, "a")),
        QueueEvent::Sent(sent(2, "b")),
        QueueEvent::Sent(sent(3, "a")),
        QueueEvent::Confirmed(vec![up_to("b", 2), exact]),
        QueueEvent::Cleanup(vec!["b".into(), "".into()]),
    ]
}
