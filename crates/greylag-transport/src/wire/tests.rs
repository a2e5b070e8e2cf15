use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use greylag_core::{CodecId, DeadLetterReason, EntityError, NotStoredReason, Uid, UniqueAddress};
use proptest::prelude::*;
use prost::Message;
use prost::encoding::WireType;

use super::*;
use crate::endpoints::endpoint::Reply;
use crate::generated as pb;
use crate::messages::envelope::{Envelope, Inbound, Recipient};
use crate::messages::hello::tests::hello;
use crate::messages::hello::{Accepted, Features, Hello, HelloReply, Rejected};
use crate::remoting::{QuarantineReason, RejectCode};

fn node(text: &str) -> UniqueAddress {
    text.parse().unwrap()
}

fn envelope() -> Envelope {
    Envelope::new(
        Recipient::new("sharding/Customer").with_sub_path("17").with_instance(3),
        CodecId::JSON,
        "customer.purchase",
        &b"{}"[..],
    )
    .to_uid(Uid::new(9).unwrap())
    .asking(77, Duration::from_millis(1500))
}

fn as_schema() -> pb::Envelope {
    pb::Envelope {
        path: "sharding/Customer".to_owned(),
        sub_path: "17".to_owned(),
        instance: 3,
        target_uid: 9,
        codec_id: 2,
        manifest: "customer.purchase".to_owned(),
        payload: b"{}"[..].into(),
        ask_id: 77,
        ask_budget_ms: 1500,
        ..pb::Envelope::default()
    }
}

fn accepted() -> HelloReply {
    HelloReply::Accepted(Accepted {
        from: node("b:2#5"),
        version: 1,
        features: Features::OURS,
        max_frame_bytes: 7,
        max_names: 1024,
        cluster_id: Some(3),
        host_id: Some("h".to_owned()),
    })
}

fn read_all(batch: Bytes) -> Result<Vec<Arrived>, Malformed> {
    BatchReader::new(&"a:1#1".parse().unwrap(), batch, &mut Names::new(16)).collect()
}

#[test]
fn a_batch_is_byte_for_byte_what_the_schema_says() {
    let (mut batch, mut scratch) = (BytesMut::new(), BytesMut::new());
    write_envelope(&envelope(), &mut NameWriter::default(), &mut scratch, &mut batch).unwrap();
    let plain = Envelope::new(Recipient::new("p"), CodecId::from_u32(0), "", Bytes::new());
    write_envelope(&plain, &mut NameWriter::default(), &mut scratch, &mut batch).unwrap();
    let no = Reply::Entity(EntityError::Failed("no".to_owned()));
    write_reply(Uid::new(4).unwrap(), 5, &no, &mut NameWriter::default(), &mut batch);
    let failed = pb::EntityFailure { kind: pb::EntityFailureKind::Failed.into(), text: "no".to_owned() };
    let schema = pb::Batch {
        envelopes: vec![
            as_schema(),
            pb::Envelope { path: "p".to_owned(), ..pb::Envelope::default() },
            pb::Envelope {
                path: REPLY_PATH.to_owned(),
                target_uid: 4,
                ask_id: 5,
                failure: Some(pb::Failure { kind: Some(pb::failure::Kind::Entity(failed)) }),
                ..pb::Envelope::default()
            },
        ],
    };
    assert_eq!(batch, schema.encode_to_vec());
    let frame = pb::Frame { content: Some(pb::frame::Content::Batch(schema)) }.encode_to_vec();
    let batch = batch.freeze();
    assert_eq!(write_frame(&Frame::Batch(batch.clone())), frame);
    assert_eq!(read_frame(frame.into()), Ok(Frame::Batch(batch.clone())));

    let arrived = read_all(batch).unwrap();
    let sent = envelope();
    assert_eq!(arrived[0].target_uid, sent.target_uid);
    let ArrivedContent::Message(Inbound { recipient, codec, manifest, payload, ask, .. }) = &arrived[0].content else {
        panic!()
    };
    assert_eq!((recipient, *codec, manifest, *ask), (&sent.recipient, sent.codec, &sent.manifest, sent.ask));
    assert_eq!(&payload[..], b"{}");
    let reply = Reply::Entity(EntityError::Failed("no".to_owned()));
    assert_eq!(arrived[2].content, ArrivedContent::Reply { ask_id: 5, reply });
}

/// Cluster T36: byte for byte as in `docs/formats/transport.md`: these bytes cross between versions.
#[test]
fn the_vectors_of_the_format_document() {
    let mut batch = BytesMut::new();
    write_envelope(&envelope(), &mut NameWriter::default(), &mut BytesMut::new(), &mut batch).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let document = include_str!("../../../../docs/formats/transport.md");
    let (mut numbered, mut names) = (BytesMut::new(), NameWriter::new(16));
    for _ in 0..2 {
        write_envelope(&envelope(), &mut names, &mut BytesMut::new(), &mut numbered).unwrap();
    }
    let vectors = [
        write_frame(&Frame::Batch(batch.freeze())),
        write_frame(&Frame::Batch(numbered.freeze())),
        write_frame(&Frame::Hello(hello("a:1#1", "b:2"))),
        write_frame(&Frame::Hello(Hello { features: Features::OURS, ..hello("a:1#1", "b:2") })),
        write_frame(&Frame::HelloReply(accepted())),
        write_frame(&Frame::HelloReply(HelloReply::Rejected(held()))),
        write_frame(&Frame::TerminatingAck),
    ];
    let vectors = vectors.map(|frame| format!("`{}`", hex(&frame)));
    let missing: Vec<_> = vectors.iter().filter(|vector| !document.contains(vector.as_str())).collect();
    assert!(missing.is_empty(), "not in the document: {missing:#?}");
}

/// Cluster T37: a writer may compress as it likes; a frame that was compressed once stays readable.
#[test]
fn the_compressed_vector_of_the_format_document_is_read() {
    let close = Frame::Close("no ".repeat(9));
    let document = include_str!("../../../../docs/formats/transport.md");
    let vector = document.lines().find(|line| line.starts_with("| `Compressed`")).unwrap().rsplit('`').nth(1).unwrap();
    let bytes: Vec<u8> =
        (0..vector.len()).step_by(2).map(|at| u8::from_str_radix(&vector[at..at + 2], 16).unwrap()).collect();
    assert_eq!(read_frame_within(bytes.into(), 31), Ok(close));
}

/// Cluster T37: an envelope for a known process gives its names numbers, the next one uses them; an envelope for any
/// process at an address, as the join protocol sends, does neither.
#[test]
fn names_are_written_once_a_stream() {
    let (mut names, mut scratch, mut batch) = (NameWriter::new(16), BytesMut::new(), BytesMut::new());
    let joining = Envelope { target_uid: None, ..envelope() };
    for envelope in [envelope(), envelope(), joining] {
        write_envelope(&envelope, &mut names, &mut scratch, &mut batch).unwrap();
    }
    write_reply(Uid::new(9).unwrap(), 5, &Reply::Entity(EntityError::NoReply), &mut names, &mut batch);
    let read = pb::Batch::decode(&batch[..]).unwrap().envelopes;
    assert_eq!(read[0], pb::Envelope { path_id: 1, manifest_id: 2, ..as_schema() });
    let numbers = pb::Envelope { path_id: 1, manifest_id: 2, ..pb::Envelope::default() };
    let (path, manifest) = (String::new(), String::new());
    let second = pb::Envelope { path, manifest, path_id: 1, manifest_id: 2, ..as_schema() };
    assert_eq!((&read[1], read[1].path_id), (&second, numbers.path_id));
    assert_eq!(read[2], pb::Envelope { target_uid: 0, ..as_schema() });
    assert_eq!((read[3].path.as_str(), read[3].path_id), (REPLY_PATH, 3));

    let arrived = read_all(batch.clone().freeze()).unwrap();
    assert_eq!(arrived[0], arrived[1]);
    assert_eq!(arrived[0].content, arrived[2].content);
    assert!(matches!(arrived[3].content, ArrivedContent::Reply { ask_id: 5, .. }));
    // Another stream has another table: the same bytes without their first envelope must be refused.
    let rest = pb::Batch { envelopes: read[1..].to_vec() }.encode_to_vec();
    assert!(read_all(rest.into()).unwrap_err().to_string().contains("no name has the number 1"));
}

/// Cluster T36: a reader's allocations for a frame are bounded, whatever its envelopes are.
#[test]
fn a_frame_of_countless_envelopes_is_refused() {
    let mut batch = BytesMut::new();
    for _ in 0..=crate::settings::MAX_BATCH_MESSAGES {
        batch.put_slice(&[1 << 3 | 2, 0]);
    }
    assert!(read_all(batch.freeze()).is_err());
}

/// Cluster T36: the texts of a Hello are kept and told to others, so their length is limited.
#[test]
fn a_hello_is_short() {
    let Some(pb::frame::Content::Hello(good)) =
        pb::Frame::decode(write_frame(&Frame::Hello(hello("a:1#1", "b:2")))).unwrap().content
    else {
        panic!("it is a Hello")
    };
    let read = |hello: pb::Hello| {
        let content = Some(pb::frame::Content::Hello(hello));
        read_frame(pb::Frame { content }.encode_to_vec().into())
    };
    let text = |len: usize| "x".repeat(len);
    for (len, is_read) in [(255, true), (256, false)] {
        let from = good.from.clone().map(|from| pb::Node { host: text(len), ..from });
        for hello in [
            pb::Hello { cluster_name: text(len), ..good.clone() },
            pb::Hello { host_id: text(len), ..good.clone() },
            pb::Hello { to_host: text(len), ..good.clone() },
            pb::Hello { from, ..good.clone() },
            pb::Hello { features: vec![text(len); 32], ..good.clone() },
        ] {
            assert_eq!(read(hello).is_ok(), is_read, "{len}");
        }
    }
    assert!(read(pb::Hello { features: vec![String::new(); 33], ..good }).is_err());
}

/// Cluster T28: the last number is refused, since another must be able to follow each number.
#[test]
fn the_last_number_is_refused() {
    assert!(read_frame(write_skip(u64::MAX)).is_err());
    assert!(read_frame(write_skip(u64::MAX - 1)).is_ok());
}

/// Cluster T36, T37: a compressed frame is read within its lane's limit, and holds no other.
#[test]
fn a_compressed_frame_reads_back_within_the_limit() {
    let reason = "PROTOCOL ".repeat(1000);
    let frame = write_frame(&Frame::Close(reason.clone()));
    let packed = compress(&frame).unwrap();
    assert!(packed.len() < 200);
    assert_eq!(read_frame_within(packed.clone(), frame.len()), Ok(Frame::Close(reason)));
    assert!(read_frame_within(packed.clone(), frame.len() - 1).is_err());
    assert!(read_frame_within(frame.clone(), frame.len() - 1).is_err());
    let Ok(Frame::Compressed(content)) = read_frame(packed.clone()) else { panic!() };
    assert_eq!(write_frame(&Frame::Compressed(content)), packed);
    let twice = zstd::bulk::compress(&packed, 1).unwrap();
    let twice = pb::Compressed { size: packed.len() as u64, zstd: twice.into() };
    assert!(read_frame_within(write_frame(&Frame::Compressed(twice)), 1 << 20).is_err());
}

/// Cluster T36: an enum value of a newer version makes its message unknown, not the stream broken.
#[test]
fn an_unknown_enum_value_makes_the_frame_unknown() {
    let quarantined = pb::Quarantined { reason: 77, ..pb::Quarantined::default() };
    let frame = pb::Frame { content: Some(pb::frame::Content::Quarantined(quarantined)) }.encode_to_vec();
    assert_eq!(read_frame(frame.into()), Ok(Frame::Unknown));
    let rejected = pb::Rejected { code: 99, ..pb::Rejected::default() };
    let reply = pb::HelloReply { answer: Some(pb::hello_reply::Answer::Rejected(rejected)) };
    let frame = pb::Frame { content: Some(pb::frame::Content::HelloReply(reply)) }.encode_to_vec();
    let Ok(Frame::HelloReply(HelloReply::Rejected(rejected))) = read_frame(frame.into()) else { panic!() };
    assert_eq!(rejected.code, RejectCode::Unknown);
}

#[test]
fn every_reply_reads_back() {
    let mut replies = vec![Reply::Value { codec: CodecId::PROST, manifest: "m".into(), payload: b"x"[..].into() }];
    let text = || "why".to_owned();
    replies.extend(
        [
            EntityError::NoReply,
            EntityError::Stopped,
            EntityError::StartFailed(text()),
            EntityError::Failed(text()),
            EntityError::StashFull,
            EntityError::ReadOnly,
            EntityError::NotStored(NotStoredReason::Rejected(text())),
            EntityError::NotStored(NotStoredReason::Unavailable(text())),
            EntityError::NotStored(NotStoredReason::Fenced),
            EntityError::OutcomeUnknown,
            EntityError::NotInOrder,
        ]
        .map(Reply::Entity),
    );
    replies.extend([DeadLetterReason::NoSuchRecipient, DeadLetterReason::StashFull].map(Reply::Dropped));
    for reply in replies {
        let mut batch = BytesMut::new();
        write_reply(Uid::new(1).unwrap(), 6, &reply, &mut NameWriter::default(), &mut batch);
        let content = ArrivedContent::Reply { ask_id: 6, reply };
        assert_eq!(read_all(batch.freeze()), Ok(vec![Arrived { target_uid: Uid::new(1), content }]));
    }
}

fn held() -> Rejected {
    let (holder, retry_after) = (Some(node("a:1#7")), Some(Duration::from_secs(1)));
    Rejected { holder, retry_after, ..Rejected::new(RejectCode::NotReady, "d") }
}

#[test]
fn every_other_frame_reads_back() {
    let rejected =
        |reason| Rejected { from: Some(node("b:1#2")), reason, ..Rejected::new(RejectCode::Quarantined, "d") };
    for frame in [
        Frame::Hello(hello("a:1#1", "b:2")),
        Frame::Hello(Hello { features: Features::OURS, ..hello("a:1#1", "b:2") }),
        Frame::HelloReply(accepted()),
        Frame::HelloReply(HelloReply::Rejected(rejected(None))),
        Frame::HelloReply(HelloReply::Rejected(held())),
        Frame::HelloReply(HelloReply::Rejected(rejected(Some(QuarantineReason::DeliveryGaveUp)))),
        Frame::Quarantined { from: node("a:1#1"), to: node("b:1#1"), reason: QuarantineReason::RemovedFromMembership },
        Frame::Terminating { from: node("a:1#1") },
        Frame::TerminatingAck,
        Frame::Flush(3),
        Frame::FlushAck(3),
        Frame::Close("PROTOCOL".to_owned()),
        Frame::Received(12),
    ] {
        assert_eq!(read_frame(write_frame(&frame)), Ok(frame));
    }
}

/// Cluster T8.
#[test]
fn a_variant_of_a_newer_version_is_unknown_and_not_malformed() {
    let mut frame = BytesMut::new();
    prost::encoding::encode_key(99, WireType::LengthDelimited, &mut frame);
    frame.put_slice(b"\x03abc");
    assert_eq!(read_frame(frame.freeze()), Ok(Frame::Unknown));
}

/// Cluster §7, T36: a damaged frame is refused, or is read and reads back the same after it is written again.
#[test]
fn damaged_frames_are_refused_or_read_and_nothing_else() {
    use crate::fuzzing;
    greylag_testkit::mutations::damaged(&fuzzing::frames(), 20_000, 5, fuzzing::frame);
    greylag_testkit::mutations::damaged(&fuzzing::hellos(), 20_000, 6, fuzzing::hello);
    greylag_testkit::mutations::damaged(&fuzzing::pairs_of_batches(), 20_000, 7, fuzzing::batches);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        if let Ok(Frame::Batch(batch)) = read_frame(bytes.clone()) {
            let _ = read_all(batch);
        }
        let _ = read_all(bytes);
    }

    #[test]
    fn batches_written_by_the_schema_are_read(envelopes in prop::collection::vec(("[a-z]{1,9}", "[a-z]{0,3}", any::<u64>(), any::<u64>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..300)), 0..5)) {
        let written: Vec<_> = envelopes.iter().map(|(path, sub_path, instance, uid, codec, payload)| pb::Envelope {
            path: format!("x{path}"), sub_path: sub_path.clone(), instance: *instance, target_uid: *uid,
            codec_id: *codec, payload: payload.clone().into(), ..pb::Envelope::default()
        }).collect();
        let batch = pb::Batch { envelopes: written.clone() }.encode_to_vec();
        let arrived = read_all(batch.into()).unwrap();
        prop_assert_eq!(arrived.len(), written.len());
        for (arrived, written) in arrived.iter().zip(&written) {
            let ArrivedContent::Message(Inbound { recipient, codec, payload, .. }) = &arrived.content else { panic!() };
            prop_assert_eq!(&*recipient.path, &*written.path);
            prop_assert_eq!(recipient.below(), &*written.sub_path);
            prop_assert_eq!(recipient.instance, written.instance);
            prop_assert_eq!(arrived.target_uid.map_or(0, Uid::get), written.target_uid);
            prop_assert_eq!(codec.as_u32(), written.codec_id);
            prop_assert_eq!(payload, &written.payload);
        }
    }
}
