use greylag_core::CodecId;

use super::*;

fn controller(instance: u64) -> ControllerRef {
    ControllerRef { node: "localhost:17355#1".parse().unwrap(), path: "delivery/orders".into(), instance }
}

fn pay(cents: u32) -> (Qualifier, Encoded) {
    let payload = cents.to_string().into();
    ("card".into(), Encoded { codec: CodecId::JSON, manifest: "pay".into(), payload })
}

fn apply(outbox: &mut DeliveryOutbox, events: &[OutboxEvent]) {
    events.iter().for_each(|event| outbox.apply(event));
}

fn numbers(outbox: &DeliveryOutbox) -> Vec<u64> {
    outbox.unconfirmed().map(|sent| sent.seq_nr.get()).collect()
}

fn up_to(seq_nr: u64) -> Confirmation {
    Confirmation::UpTo { qualifier: "card".into(), seq_nr: SeqNr(seq_nr), timestamp_ms: 5 }
}

/// Of delivery §7: numbers continue after the applied messages; messages that were not persisted use no numbers.
#[test]
fn outbox_numbers_continue_after_the_applied_messages() {
    let mut outbox = DeliveryOutbox::default();
    let lost = outbox.send([pay(1), pay(2)], 1).unwrap();
    assert_eq!(lost.iter().map(|event| event.sent().unwrap().seq_nr).collect::<Vec<_>>(), [SeqNr(1), SeqNr(2)]);
    assert_eq!(outbox.current(), SeqNr(1), "the append of these failed");
    let kept = outbox.send([pay(3)], 1).unwrap();
    apply(&mut outbox, &kept);
    assert_eq!((numbers(&outbox), outbox.current()), (vec![1], SeqNr(2)));
    assert_eq!(outbox.loaded(), None, "nobody sends it yet");

    let start = outbox.start(controller(1), StreamId(7)).unwrap();
    apply(&mut outbox, &[start]);
    let start = outbox.start(controller(2), StreamId(8)).unwrap();
    apply(&mut outbox, &[start]);
    let state = outbox.loaded().unwrap();
    assert_eq!((state.stream_id, state.epoch, state.current_seq_nr), (StreamId(7), Epoch(2), SeqNr(2)));
    assert_eq!(state.unconfirmed, outbox.unconfirmed().cloned().collect::<Vec<_>>());
}

/// Of delivery §7: confirmations become events, each once; unused targets are forgotten.
#[test]
fn confirmations_are_events() {
    let mut outbox = DeliveryOutbox::default();
    let sent = outbox.send([pay(1), pay(2), pay(3)], 1).unwrap();
    apply(&mut outbox, &sent);
    assert_eq!(outbox.confirm(vec![up_to(4)]), Err(QueueError::OutOfOrder { expected: SeqNr(4) }));
    let confirmed = outbox.confirm(vec![up_to(1), up_to(2)]).unwrap().unwrap();
    apply(&mut outbox, &[confirmed]);
    assert_eq!((numbers(&outbox), outbox.is_empty()), (vec![3], false));
    assert_eq!(outbox.confirm(vec![up_to(2)]), Ok(None));
    assert_eq!(outbox.clean_up(1_000_000, Duration::from_secs(1)), None, "a message waits");
    let confirmed = outbox.confirm(vec![up_to(3)]).unwrap().unwrap();
    apply(&mut outbox, &[confirmed]);
    let forgotten = outbox.clean_up(1_000_000, Duration::from_secs(1)).unwrap();
    apply(&mut outbox, &[forgotten]);
    assert_eq!(outbox.clean_up(1_000_000, Duration::from_secs(1)), None);
    assert_eq!((outbox.is_empty(), outbox.current()), (true, SeqNr(4)), "numbers go on");
}

#[test]
fn numbers_that_are_used_up_are_refused() {
    let mut outbox = DeliveryOutbox::default();
    let mut last = outbox.send([pay(1)], 1).unwrap()[0].sent().unwrap().clone();
    last.seq_nr = SeqNr(u64::MAX - 2);
    outbox.apply(&OutboxEvent(QueueEvent::Sent(last)));
    assert_eq!(outbox.send([pay(1)], 1).unwrap().len(), 1);
    assert!(matches!(outbox.send([pay(1), pay(2)], 1), Err(QueueError::Rejected(_))));
}

/// Scenario delivery 60, of outboxes: state and events survive encoding; truncated bytes are refused or decode to less,
/// without a panic.
#[test]
fn scenario_60_an_outbox_comes_back() {
    let mut outbox = DeliveryOutbox::default();
    let mut events = outbox.send([pay(1), pay(2), pay(3)], 1).unwrap();
    apply(&mut outbox, &events);
    events.push(outbox.start(controller(1), StreamId(7)).unwrap());
    events.push(outbox.confirm(vec![up_to(1)]).unwrap().unwrap());
    apply(&mut outbox, &events[3..]);
    events.push(OutboxEvent(QueueEvent::Cleanup(vec!["card".into()])));
    for event in &events {
        assert_eq!(OutboxEvent::from_bytes(event.to_bytes()).as_ref(), Ok(event));
    }
    assert_eq!(DeliveryOutbox::from_bytes(outbox.to_bytes()), Ok(outbox.clone()));
    assert!(OutboxEvent::from_bytes(Bytes::new()).is_err() && DeliveryOutbox::from_bytes(Bytes::new()).is_err());
    let bytes = outbox.to_bytes();
    for end in 0..bytes.len() {
        assert_ne!(DeliveryOutbox::from_bytes(bytes.slice(..end)), Ok(outbox.clone()), "cut at {end}");
    }
}

/// The bytes match docs/formats/delivery-queue.md.
#[test]
fn the_bytes_of_an_outbox_are_those_of_the_page() {
    let page = include_str!("../../../../../docs/formats/delivery-queue.md");
    let mut outbox = DeliveryOutbox::default();
    let sent = outbox.send([pay(990)], 1).unwrap();
    apply(&mut outbox, &sent);
    for bytes in [sent[0].to_bytes(), outbox.to_bytes()] {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(page.contains(&format!("`{hex}`")), "{hex} is not in the page");
    }
}

/// An outbox is text in a human-readable format; other text is refused.
#[cfg(feature = "serde")]
#[test]
fn an_outbox_is_text_where_people_read() {
    use bytes::BytesMut;
    use greylag_core::Codec;

    let codec = greylag_codec::json::<DeliveryOutbox>("outbox");
    let mut outbox = DeliveryOutbox::default();
    let sent = outbox.send([pay(990)], 1).unwrap();
    apply(&mut outbox, &sent);
    let mut bytes = BytesMut::new();
    codec.encode(&outbox, &mut bytes).unwrap();
    assert!(bytes.starts_with(b"\"1002"), "{bytes:?}");
    assert_eq!(codec.decode("outbox", bytes.freeze()), Ok(outbox));
    for text in ["\"1\"", "\"zz\"", "\"0\u{e4}\"", "7", "\"\""] {
        assert!(codec.decode("outbox", text.into()).is_err(), "{text}");
    }
}
