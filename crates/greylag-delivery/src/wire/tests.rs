//! Scenario 60: every message survives encoding, unknown fields are ignored, truncated input is an error.

use super::*;
use proptest::prelude::*;

fn controller(instance: u64) -> ControllerRef {
    ControllerRef { node: "shop.example:9000#77".parse().unwrap(), path: "delivery/1".into(), instance }
}

fn upstream(message: Upstream) -> UpstreamMessage {
    let epoch = (message != Upstream::RegisterConsumer).then_some(Epoch(3));
    UpstreamMessage { from: controller(1), to: controller(2), epoch, message }
}

/// A list with each kind of message alone, and a list with two messages of two consumers to two links.
fn every_upstream() -> Vec<Vec<UpstreamMessage>> {
    let another = UpstreamMessage {
        from: ControllerRef { path: "delivery/2".into(), ..controller(5) },
        to: controller(6),
        ..upstream(Upstream::Ack { confirmed: 1, up_to: 2 })
    };
    let two = vec![upstream(Upstream::Ack { confirmed: 5, up_to: 6 }), another];
    let alone = [
        Upstream::Request { confirmed: 0, up_to: 20, support_resend: true, via_timeout: false },
        Upstream::Request { confirmed: 7, up_to: u64::MAX, support_resend: false, via_timeout: true },
        Upstream::Ack { confirmed: 5, up_to: 6 },
        Upstream::Resend { from: 0, to: 0 },
        Upstream::Resend { from: 3, to: u64::MAX },
        Upstream::RegisterConsumer,
        Upstream::Fenced { stream_id: StreamId(u128::MAX - 1), newer: Epoch(9) },
    ]
    .map(|message| vec![upstream(message)]);
    alone.into_iter().chain([two]).collect()
}

fn batch(bytes: &[&'static [u8]]) -> SequencedBatch<Piece> {
    let header = BatchHeader {
        producer_id: ProducerId::new("orders (north)").unwrap(),
        stream_id: StreamId(1 << 100),
        epoch: Epoch(3),
        controller: controller(4),
        ordered: true,
        lowest: 11,
    };
    let flags = [(true, true), (true, false), (false, false), (false, true)];
    let frames = bytes.iter().zip(flags.into_iter().cycle()).enumerate().map(|(index, (bytes, flags))| {
        let encoded = Encoded { codec: CodecId::JSON, manifest: "purchase".into(), payload: Bytes::from_static(bytes) };
        let payload = match flags {
            (true, true) if index == 0 => Piece { encoded, total_len: None, crc32c: None },
            // The first of several chunks, one in between, the last, or the only chunk of a message.
            (first, last) => {
                Piece { encoded, total_len: first.then_some(u64::MAX), crc32c: last.then_some(0xffff_ffff) }
            }
        };
        let frame = Frame {
            seq_nr: 11 + index as u64,
            total: SeqNr(100 + index as u64),
            ack: index % 2 == 0,
            first_chunk: flags.0,
            last_chunk: flags.1,
            payload,
        };
        SequencedMessage { frame, first: index == 0 }
    });
    SequencedBatch { header, frames: frames.collect() }
}

fn write(batch: &SequencedBatch<Piece>) -> Bytes {
    let mut buffer = BytesMut::new();
    put_batch(&batch.header, &batch.frames, Piece::clone, &mut buffer);
    buffer.freeze()
}

#[test]
fn every_message_reads_back() {
    for said in every_upstream() {
        assert_eq!(read_upstream(write_upstream(&said)), Ok(said));
    }
    let contents: [&[&'static [u8]]; 3] = [&[], &[b""], &[b"whole", b"first", b"", b"last", b"whole"]];
    for content in contents {
        assert_eq!(read_batch(write(&batch(content))), Ok(batch(content)));
    }
    let mut without_repeats = batch(&[b"whole"]);
    (without_repeats.header.ordered, without_repeats.header.lowest) = (false, 0);
    assert_eq!(read_batch(write(&without_repeats)), Ok(without_repeats));
    let stopped = ProducerStopped { controller: controller(4), epoch: Epoch(3) };
    let mut buffer = BytesMut::new();
    put_stopped(&stopped, &mut buffer);
    assert_eq!(read_stopped(buffer.freeze()), Ok(stopped));
    let encoded = Encoded { codec: CodecId::PROST, manifest: "totals".into(), payload: Bytes::from_static(b"q") };
    let mut buffer = BytesMut::new();
    put_bypass(encoded.clone(), &mut buffer);
    assert_eq!(read_bypass(buffer.freeze()), Ok(encoded));
}

/// Every message, with a check that its bytes decode to an equal one.
fn every_message() -> Vec<(Bytes, Box<dyn Fn(Bytes) -> bool>)> {
    let stopped = ProducerStopped { controller: controller(4), epoch: Epoch(3) };
    let bypass = Encoded { codec: CodecId::PROST, manifest: "totals".into(), payload: Bytes::from_static(b"q") };
    let (mut of_stopped, mut of_bypass) = (BytesMut::new(), BytesMut::new());
    put_stopped(&stopped, &mut of_stopped);
    put_bypass(bypass.clone(), &mut of_bypass);
    let mut all: Vec<(Bytes, Box<dyn Fn(Bytes) -> bool>)> = vec![
        (of_stopped.freeze(), Box::new(move |bytes| read_stopped(bytes).as_ref() == Ok(&stopped))),
        (of_bypass.freeze(), Box::new(move |bytes| read_bypass(bytes).as_ref() == Ok(&bypass))),
    ];
    for content in [&[b"".as_slice()][..], &[b"whole", b"first", b"", b"last", b"only"]] {
        let batch = batch(content);
        all.push((write(&batch), Box::new(move |bytes| read_batch(bytes).as_ref() == Ok(&batch))));
    }
    for said in every_upstream() {
        all.push((write_upstream(&said), Box::new(move |bytes| read_upstream(bytes).as_ref() == Ok(&said))));
    }
    all
}

#[test]
fn unknown_fields_are_ignored() {
    for (bytes, reads_back) in every_message() {
        let later = [&bytes[..], &[0xfa, 0x01, 0x02, b'h', b'i']].concat(); // field 31, two bytes
        assert!(reads_back(later.into()), "{bytes:02x?}");
    }
}

/// Truncated input is an error, or, if cut between two fields, a message with fewer fields; never the same message, and
/// never a panic.
#[test]
fn cut_input_is_an_error_or_less_but_never_a_panic() {
    for (bytes, reads_back) in every_message() {
        for end in 0..bytes.len() {
            assert!(!reads_back(bytes.slice(..end)), "{bytes:02x?} cut at {end}");
        }
    }
    let whole = write(&batch(&[b"whole", b"first", b"last"]));
    assert!(read_batch(whole.slice(..whole.len() - 1)).is_err());
    assert!(read_batch(Bytes::new()).is_err() && read_upstream(Bytes::new()).is_err());
    assert!(read_stopped(Bytes::new()).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        let _ = read_batch(bytes.clone());
        let _ = read_upstream(bytes.clone());
        let _ = read_stopped(bytes.clone());
        let _ = read_bypass(bytes);
    }
}

/// The messages shown in docs/formats/delivery.md.
fn records_of_the_page() -> Vec<Bytes> {
    let mut stopped = BytesMut::new();
    put_stopped(&ProducerStopped { controller: controller(4), epoch: Epoch(3) }, &mut stopped);
    let batches: [&[&'static [u8]]; 2] = [&[b"{}"], &[b"{}", b"12", b"", b"34"]];
    let batches = batches.map(|contents| write(&batch(contents)));
    let upstream = every_upstream();
    batches.into_iter().chain([stopped.freeze()]).chain(upstream.iter().map(|said| write_upstream(said))).collect()
}

/// The bytes match docs/formats/delivery.md.
#[test]
fn the_bytes_of_messages_are_those_of_the_page() {
    let page = include_str!("../../../../docs/formats/delivery.md");
    for bytes in records_of_the_page() {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(page.contains(&format!("`{hex}`")), "{hex} is not in the page");
    }
}
