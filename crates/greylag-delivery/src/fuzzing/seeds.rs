//! Valid inputs, with which fuzzing starts.

use bytes::{Bytes, BytesMut};
use greylag_codec::json;
use greylag_core::Codec as _;

use super::samples::{codec, controller, header};
use crate::delivery::payload::Payload;
use crate::delivery::with_delivery::{ProtocolMessage, WithDelivery};
use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};
use crate::message::{Frame, Frames, ProducerStopped, SequencedBatch, SequencedMessage, Upstream, UpstreamMessage};
use crate::wire;

/// The name of each target, and its inputs.
pub fn seeds() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let mut seeds = vec![
        ("delivery_downstream", downstream()),
        ("delivery_upstream", upstreams().iter().map(|said| wire::write_upstream(said).into()).collect()),
        (
            "delivery_chunks",
            vec![b"\x08\0\0\xffa message of more than one chunk".into(), b"\x01\x02\x80\xffabc".into()],
        ),
        (
            "delivery_registration",
            vec![b"thumbnails\nlocalhost:17355#1/delivery/1@1".into(), b"w\n[::1]:1#2/a@3".into()],
        ),
        ("delivery_consumer", consumer()),
        ("delivery_producer", producer()),
    ];
    #[cfg(feature = "persistence")]
    seeds.extend(queues());
    seeds
}

/// A batch of messages from number `first` on, the last one in chunks.
fn batch(first: u64, instance: u64) -> SequencedBatch<Payload<u64>> {
    let payload =
        |value: u64| Payload::encode(value, &json::<u64>("number")).map_err(|(_, error)| error).expect("JSON");
    let frame = |seq_nr, total, (first_chunk, last_chunk), payload| SequencedMessage {
        frame: Frame { seq_nr, total: SeqNr(total), ack: last_chunk, first_chunk, last_chunk, payload },
        first: seq_nr == first,
    };
    let mut frames: Vec<_> = (0..2).map(|n| frame(first + n, first + n, (true, true), payload(n))).collect();
    let Frames::Chunks(chunks) = payload(123_456_789).frames(4) else { panic!("nine digits are more than four") };
    let last = chunks.len() - 1;
    for (index, chunk) in chunks.into_iter().enumerate() {
        frames.push(frame(first + 2 + index as u64, first + 2, (index == 0, index == last), chunk));
    }
    SequencedBatch { header: header(instance), frames }
}

fn written(message: &WithDelivery<u64, String>) -> Bytes {
    let mut bytes = BytesMut::new();
    codec().encode(message, &mut bytes).expect("it is written");
    bytes.freeze()
}

fn written_batch(first: u64, instance: u64) -> Bytes {
    written(&WithDelivery::protocol(ProtocolMessage::Batch(batch(first, instance))))
}

fn written_end(instance: u64) -> Bytes {
    let stopped = ProducerStopped { controller: controller(instance), epoch: Epoch::FIRST };
    written(&WithDelivery::protocol(ProtocolMessage::Stopped(stopped)))
}

fn downstream() -> Vec<Vec<u8>> {
    let with_kind = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    vec![
        with_kind(0, &written_batch(1, 1)),
        with_kind(1, &written(&WithDelivery::Bypass("how many?".to_owned()))),
        with_kind(2, &written_end(1)),
    ]
}

/// A list with each kind of message alone, and a list with all of them.
fn upstreams() -> Vec<Vec<UpstreamMessage>> {
    let all = [
        Upstream::Request { confirmed: 0, up_to: 20, support_resend: true, via_timeout: false },
        Upstream::Request { confirmed: 1, up_to: 20, support_resend: false, via_timeout: true },
        Upstream::Ack { confirmed: 2, up_to: 20 },
        Upstream::Resend { from: 1, to: 2 },
        Upstream::Resend { from: 0, to: 0 },
        Upstream::RegisterConsumer,
        Upstream::Fenced { stream_id: StreamId(7), newer: Epoch(2) },
    ]
    .map(|message| {
        let epoch = (message != Upstream::RegisterConsumer).then_some(Epoch::FIRST);
        UpstreamMessage {
            from: ControllerRef { path: "delivery/consumer".into(), ..controller(100) },
            to: controller(1),
            epoch,
            message,
        }
    });
    all.iter().map(|message| vec![message.clone()]).chain([all.to_vec()]).collect()
}

/// Puts the length, in two bytes, in front of the bytes.
fn with_length(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("seeds are short");
    [&length.to_be_bytes(), bytes].concat()
}

fn consumer() -> Vec<Vec<u8>> {
    let batch = |first, instance| [vec![0], with_length(&written_batch(first, instance))].concat();
    let begun = |kind: u8| [vec![kind, 4], batch(1, 1), vec![5, 0, 5, 0, 5, 0, 8, 9, 20, 8]].concat();
    let replaced = [begun(0), batch(1, 2), vec![7, 0, 8, 10, 0, 1, 0, 11, 2, 8, 11, 0]].concat();
    let ended = [begun(1), vec![3], with_length(&written_end(1)), vec![10, 3, 0, 0, 8, 11, 1]].concat();
    vec![begun(0), begun(3), replaced, ended]
}

fn producer() -> Vec<Vec<u8>> {
    let heard: Vec<u8> =
        upstreams().iter().flat_map(|said| [vec![2], with_length(&wire::write_upstream(said))].concat()).collect();
    let rest = [3, 0, 0, 1, 20, 0, 1, 0, 9, 0, 2, 3, 4, 3, 0, 3, 20, 6, 6, 7, 200, 6, 9, 0];
    let begun = |kind: u8, around: u8| [vec![kind, 0, 1, 8, around, 0, 2], heard.clone(), rest.into()].concat();
    vec![begun(0, 0), begun(1, 0xf1), begun(2, 0)]
}

#[cfg(feature = "persistence")]
fn queues() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    use crate::queue::outbox::{DeliveryOutbox, OutboxEvent};
    use crate::queue::persistent::{self, PersistentQueue};
    use crate::queue::wire::{EventCodec, SnapshotCodec, event_to_bytes};
    use crate::queue::{QueueHead, confirmed_to_bytes};
    use greylag_persistence::SeqNr as EventNr;

    let (events, manifests) = (super::queue::events(), EventCodec.manifests());
    let mut queue = PersistentQueue::default();
    let (mut history, mut snapshots, mut outbox, mut of_outbox) =
        (Vec::new(), Vec::new(), DeliveryOutbox::default(), Vec::new());
    for (number, event) in (1..).zip(&events) {
        let manifest = EventCodec.manifest(event);
        let kind = manifests.iter().position(|known| *known == manifest).expect("every event has a manifest");
        let mut bytes = BytesMut::new();
        EventCodec.encode(event, &mut bytes).expect("it is written");
        history.extend([vec![u8::try_from(kind).expect("there are few")], with_length(&bytes)].concat());
        persistent::apply(&mut queue, event, EventNr::saturating(number), false);
        let mut bytes = BytesMut::new();
        SnapshotCodec { max_bytes: usize::MAX }.encode(&queue, &mut bytes).expect("it is written");
        snapshots.push(bytes.to_vec());
        let event = event_to_bytes(event);
        of_outbox.extend(with_length(&event));
        outbox.apply(&OutboxEvent::from_bytes(event).expect("what was written can be read"));
    }
    let head = QueueHead {
        stream_id: StreamId(7),
        epoch: Epoch(3),
        controller: controller(9),
        current: SeqNr(4),
        highest_confirmed: SeqNr(3),
    };
    let row = |kind: u8, bytes: Bytes| [&[kind], &bytes[..]].concat();
    let sent = events.iter().find_map(|event| match event {
        persistent::QueueEvent::Sent(sent) => Some(sent.to_bytes()),
        _ => None,
    });
    let rows = vec![
        row(0, head.to_bytes()),
        row(1, sent.expect("one is sent")),
        row(2, confirmed_to_bytes(&"a".into(), SeqNr(3), 5)),
    ];
    let outboxes =
        vec![[with_length(&[]), of_outbox.clone()].concat(), [with_length(&outbox.to_bytes()), of_outbox].concat()];
    vec![
        ("delivery_queue_event", vec![history]),
        ("delivery_queue_snapshot", snapshots),
        ("delivery_queue_rows", rows),
        ("delivery_outbox", outboxes),
    ]
}
