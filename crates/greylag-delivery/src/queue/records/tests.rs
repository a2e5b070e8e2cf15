use proptest::prelude::*;

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn head() -> QueueHead {
    QueueHead {
        stream_id: StreamId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        epoch: Epoch(3),
        controller: ControllerRef {
            node: "shop-1.example:17355#258".parse().unwrap(),
            path: "delivery/orders".into(),
            instance: 5,
        },
        current: SeqNr(9),
        highest_confirmed: SeqNr(7),
    }
}

fn sent() -> MessageSent<Encoded> {
    let message = Encoded { codec: CodecId::JSON, manifest: "order".into(), payload: "{}".into() };
    MessageSent { seq_nr: SeqNr(8), message, ack: true, qualifier: "ada".into(), timestamp_ms: 1_700_000_000_000 }
}

/// The bytes match docs/formats/delivery-queue.md.
#[test]
fn the_bytes_of_rows_are_fixed() {
    let confirmed = confirmed_to_bytes(&"ada".into(), SeqNr(7), 1_700_000_000_500);
    let page = include_str!("../../../../../docs/formats/delivery-queue.md");
    for bytes in [head().to_bytes(), sent().to_bytes(), confirmed] {
        assert!(page.contains(&format!("`{}`", hex(&bytes))), "{} is not in the page", hex(&bytes));
    }
}

/// Scenario delivery 60, of the rows of queues: each survives encoding, and truncated or changed bytes cause no panic.
#[test]
fn scenario_60_every_row_comes_back() {
    assert_eq!(QueueHead::from_bytes(head().to_bytes()), Ok(head()));
    assert_eq!(MessageSent::from_bytes(sent().to_bytes()), Ok(sent()));
    let confirmed = confirmed_to_bytes(&"".into(), SeqNr(0), u64::MAX);
    assert_eq!(confirmed_from_bytes(confirmed), Ok(("".into(), SeqNr(0), u64::MAX)));
    let bytes = head().to_bytes();
    for end in 0..bytes.len() {
        assert_ne!(QueueHead::from_bytes(bytes.slice(..end)), Ok(head()), "cut at {end}");
    }
    assert!(QueueHead::from_bytes(Bytes::new()).is_err(), "a head without a start");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        let _read_or_refused = QueueHead::from_bytes(bytes.clone());
        let _read_or_refused = MessageSent::from_bytes(bytes.clone());
        let _read_or_refused = confirmed_from_bytes(bytes);
    }

    #[test]
    fn any_message_comes_back(
        seq_nr in 1..u64::MAX,
        payload in prop::collection::vec(any::<u8>(), 0..100),
        qualifier in ".{0,20}",
        timestamp_ms: u64,
        ack: bool,
        codec: u32,
    ) {
        let message = Encoded { codec: CodecId::from_u32(codec), manifest: "m".into(), payload: payload.into() };
        let sent = MessageSent { seq_nr: SeqNr(seq_nr), message, ack, qualifier: qualifier.as_str().into(), timestamp_ms };
        prop_assert_eq!(MessageSent::from_bytes(sent.to_bytes()), Ok(sent));
    }
}
