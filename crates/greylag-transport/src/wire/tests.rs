use super::*;
use crate::hello::tests::hello;
use greylag_core::DeadLetterReason;
use proptest::prelude::*;

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
        failure: None,
        metadata: Default::default(),
    }
}

fn read_all(batch: Bytes) -> Result<Vec<Arrived>, Malformed> {
    BatchReader::new(batch, &mut Names::default()).collect()
}

#[test]
fn a_batch_is_byte_for_byte_what_the_schema_says() {
    let (mut batch, mut scratch) = (BytesMut::new(), BytesMut::new());
    write_envelope(&envelope(), &mut scratch, &mut batch).unwrap();
    let plain = Envelope::new(Recipient::new("p"), CodecId::from_u32(0), "", Bytes::new());
    write_envelope(&plain, &mut scratch, &mut batch).unwrap();
    write_reply(Uid::new(4).unwrap(), 5, &Reply::Entity(EntityError::Failed("no".to_owned())), &mut batch);
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
    let ArrivedContent::Message { recipient, codec, manifest, payload, ask } = &arrived[0].content else { panic!() };
    assert_eq!((recipient, *codec, manifest, *ask), (&sent.recipient, sent.codec, &sent.manifest, sent.ask));
    assert_eq!(&payload[..], b"{}");
    let reply = Reply::Entity(EntityError::Failed("no".to_owned()));
    assert_eq!(arrived[2].content, ArrivedContent::Reply { ask_id: 5, reply });
}

/// Byte for byte as in `docs/formats/transport.md`: these bytes cross between versions.
#[test]
fn the_vectors_of_the_format_document() {
    let mut batch = BytesMut::new();
    write_envelope(&envelope(), &mut BytesMut::new(), &mut batch).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let document = include_str!("../../../../docs/formats/transport.md");
    for frame in [
        write_frame(&Frame::Batch(batch.freeze())),
        write_frame(&Frame::Hello(hello("a:1#1", "b:2"))),
        write_frame(&Frame::TerminatingAck),
    ] {
        assert!(document.contains(&format!("`{}`", hex(&frame))), "no vector `{}`", hex(&frame));
    }
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
        write_reply(Uid::new(1).unwrap(), 6, &reply, &mut batch);
        let content = ArrivedContent::Reply { ask_id: 6, reply };
        assert_eq!(read_all(batch.freeze()), Ok(vec![Arrived { target_uid: Uid::new(1), content }]));
    }
}

#[test]
fn every_other_frame_reads_back() {
    let rejected =
        |reason| Rejected { from: Some(node("b:1#2")), reason, ..Rejected::new(RejectCode::Quarantined, "d") };
    for frame in [
        Frame::Hello(hello("a:1#1", "b:2")),
        Frame::HelloReply(HelloReply::Accepted(Accepted {
            from: node("b:2#5"),
            version: 1,
            max_frame_bytes: 7,
            cluster_id: Some(3),
            host_id: Some("h".to_owned()),
        })),
        Frame::HelloReply(HelloReply::Rejected(rejected(None))),
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

#[test]
fn a_variant_of_a_newer_version_is_unknown_and_not_malformed() {
    let mut frame = BytesMut::new();
    encode_key(99, WireType::LengthDelimited, &mut frame);
    frame.put_slice(b"\x03abc");
    assert_eq!(read_frame(frame.freeze()), Ok(Frame::Unknown));
}

#[test]
fn names_are_shared_and_their_number_is_bounded() {
    let mut names = Names::default();
    assert!(Arc::ptr_eq(&names.share("a"), &names.share("a")));
    for n in 0..3 * Names::MAX {
        names.share(&n.to_string());
    }
    assert!(names.known.len() <= Names::MAX);
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
    fn damaged_batches_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut batch = pb::Batch { envelopes: vec![as_schema(), as_schema()] }.encode_to_vec();
        let index = at.index(batch.len());
        batch[index] = byte;
        batch.truncate(cut.index(batch.len() + 1));
        let _ = read_all(batch.into());
    }

    #[test]
    fn what_the_schema_writes_is_read(envelopes in prop::collection::vec(("[a-z]{1,9}", "[a-z]{0,3}", any::<u64>(), any::<u64>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..300)), 0..5)) {
        let written: Vec<_> = envelopes.iter().map(|(path, sub_path, instance, uid, codec, payload)| pb::Envelope {
            path: format!("x{path}"), sub_path: sub_path.clone(), instance: *instance, target_uid: *uid,
            codec_id: *codec, payload: payload.clone().into(), ..pb::Envelope::default()
        }).collect();
        let batch = pb::Batch { envelopes: written.clone() }.encode_to_vec();
        let arrived = read_all(batch.into()).unwrap();
        prop_assert_eq!(arrived.len(), written.len());
        for (arrived, written) in arrived.iter().zip(&written) {
            let ArrivedContent::Message { recipient, codec, payload, .. } = &arrived.content else { panic!() };
            prop_assert_eq!(&*recipient.path, &*written.path);
            prop_assert_eq!(&*recipient.sub_path, &*written.sub_path);
            prop_assert_eq!(recipient.instance, written.instance);
            prop_assert_eq!(arrived.target_uid.map_or(0, Uid::get), written.target_uid);
            prop_assert_eq!(codec.as_u32(), written.codec_id);
            prop_assert_eq!(payload, &written.payload);
        }
    }
}
