use greylag_codec::json;

use super::*;

fn codec() -> Arc<dyn Codec<String>> {
    Arc::new(json::<String>("text"))
}

/// A text whose JSON encoding has `len` bytes, two of them quotes.
fn text(len: usize) -> String {
    (b'a'..=b'z').cycle().take(len - 2).map(char::from).collect()
}

fn chunks(len: usize, chunk_bytes: usize) -> Vec<Payload<String>> {
    match Payload::encode(text(len), &*codec()).unwrap().frames(chunk_bytes) {
        Frames::Chunks(chunks) => chunks,
        Frames::Whole(_) => panic!("the message was not cut"),
    }
}

/// The chunks after transmission to another node.
fn arrived(len: usize, chunk_bytes: usize) -> Vec<Payload<String>> {
    chunks(len, chunk_bytes).iter().map(|chunk| Payload::arrived(chunk.piece(), true, &codec())).collect()
}

fn join(chunks: Vec<Payload<String>>) -> Result<Arc<String>, Unreadable> {
    Payload::join(&Frames::Chunks(chunks), 1 << 20)
}

fn error(chunks: Vec<Payload<String>>) -> UnreadableError {
    join(chunks).unwrap_err().error
}

/// delivery 9.
#[test]
fn a_message_is_cut_into_equal_slices_and_a_rest() {
    let encoded = Payload::encode(text(10_000), &*codec()).unwrap();
    let whole = encoded.encoded().unwrap().payload.clone();
    let Frames::Chunks(chunks) = encoded.frames(1024) else { panic!("the message was not cut") };
    let sizes: Vec<usize> = chunks.iter().map(Payload::size).collect();
    assert_eq!(sizes, [1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 784]);
    let joined: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.bytes_here().to_vec()).collect();
    assert_eq!(joined, whole);
    let bounds = whole.as_ptr_range();
    assert!(chunks.iter().all(|chunk| bounds.contains(&chunk.bytes_here().as_ptr())), "a chunk is no copy");
    let said: Vec<_> = chunks.iter().map(Payload::piece).map(|piece| (piece.total_len, piece.crc32c)).collect();
    assert_eq!((said[0], said[9]), ((Some(10_000), None), (None, Some(crc32c::crc32c(&whole)))));
    assert!(said[1..9].iter().all(|said| *said == (None, None)));
    assert_eq!(*join(arrived(10_000, 1024)).unwrap(), text(10_000));
}

#[test]
fn messages_that_fit_are_not_cut() {
    let whole = |len, chunk_bytes| {
        let payload = Payload::encode(text(len), &*codec()).unwrap();
        matches!(payload.frames(chunk_bytes), Frames::Whole(_))
    };
    assert!(whole(1024, 1024) && whole(1024, 0));
    assert!(!whole(1025, 1024));
    assert_eq!(chunks(2048, 1024).len(), 2, "no empty chunk at the end");
}

/// Encodes to no bytes; panics on the one input that it cannot decode.
struct Nothing;

impl Codec<()> for Nothing {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, (): &()) -> Manifest {
        Manifest::from_static("nothing")
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![Manifest::from_static("nothing")]
    }

    fn encode(&self, (): &(), _: &mut BytesMut) -> Result<(), EncodeError> {
        Ok(())
    }

    fn decode(&self, _: &str, bytes: Bytes) -> Result<(), DecodeError> {
        if bytes.is_empty() { Ok(()) } else { panic!("on purpose") }
    }
}

/// delivery 28.
#[test]
fn a_message_of_no_bytes_is_one_frame() {
    let codec: Arc<dyn Codec<()>> = Arc::new(Nothing);
    let frames = Payload::encode((), &*codec).unwrap().frames(1024);
    let Frames::Whole(payload) = &frames else { panic!("nothing was cut into something") };
    let frames = Frames::Whole(Payload::arrived(payload.piece(), false, &codec));
    assert_eq!(Payload::join(&frames, 1 << 20), Ok(Arc::new(())));
}

#[test]
fn a_codec_that_panics_refuses_the_bytes() {
    let codec: Arc<dyn Codec<()>> = Arc::new(Nothing);
    let encoded = Encoded { codec: CodecId::JSON, manifest: "nothing".into(), payload: Bytes::from_static(b"x") };
    let piece = Piece { encoded, total_len: None, crc32c: None };
    let read = Payload::join(&Frames::Whole(Payload::arrived(piece, false, &codec)), 1 << 20);
    assert!(matches!(read.unwrap_err().error, UnreadableError::Codec(_)));
}

/// On its sender's node a message is not decoded, so its bytes are not checked.
#[test]
fn the_value_itself_stays_on_its_node() {
    let mut local = chunks(10_000, 1024);
    local[3] = local[3].clone().with_encoded(NO_CODEC, "", Bytes::new());
    assert_eq!(*join(local).unwrap(), text(10_000));
    let unsent = Payload::encode(text(10_000), &*codec()).unwrap().frames(1024);
    assert_eq!(unsent.into_value(), Some(text(10_000)));
}

#[test]
fn a_damaged_message_is_an_error_with_its_bytes() {
    let with = |index: usize, change: &dyn Fn(&mut Piece)| {
        let mut pieces: Vec<Piece> = chunks(10_000, 1024).iter().map(Payload::piece).collect();
        change(&mut pieces[index]);
        error(pieces.into_iter().map(|piece| Payload::arrived(piece, true, &codec())).collect())
    };
    let wrong = |error| matches!(error, UnreadableError::WrongChecksum { .. });
    assert!(wrong(with(4, &|piece| piece.encoded.payload = Bytes::from(vec![b'x'; 1024]))), "other bytes");
    assert!(wrong(with(9, &|piece| piece.crc32c = Some(0))), "no checksum");
    for declared in [0, 1, 9_999, 10_001] {
        let length = with(0, &|piece| piece.total_len = Some(declared));
        assert_eq!(length, UnreadableError::WrongLength { expected: declared });
    }
    let large = with(0, &|piece| piece.total_len = Some(u64::MAX));
    assert_eq!(large, UnreadableError::TooLarge { size: u64::MAX, max: 1 << 20 });
    let codec_id = with(0, &|piece| piece.encoded.codec = CodecId::PROST);
    assert!(matches!(codec_id, UnreadableError::Codec(cause) if matches!(*cause, DecodeError::UnknownCodec { .. })));
    assert_eq!(error(arrived(10_000, 1024).split_off(1)), UnreadableError::Incomplete);
    assert_eq!(error(Vec::new()), UnreadableError::Incomplete);

    let mut torn = arrived(10_000, 1024);
    torn.truncate(9);
    let unreadable = join(torn).unwrap_err();
    assert_eq!(unreadable.error, UnreadableError::WrongLength { expected: 10_000 });
    assert_eq!((unreadable.encoded.payload.len(), &*unreadable.encoded.manifest), (9 * 1024, "text"));
}

/// A message whose only chunk is both first and last is checked like any other.
#[test]
fn the_only_chunk_of_a_message_is_checked() {
    let encoded = Payload::encode(text(100), &*codec()).unwrap().encoded().unwrap().clone();
    let only = |crc32c| {
        let piece = Piece { encoded: encoded.clone(), total_len: Some(100), crc32c: Some(crc32c) };
        Payload::join(&Frames::Whole(Payload::arrived(piece, false, &codec())), 1 << 20)
    };
    assert_eq!(*only(crc32c::crc32c(&encoded.payload)).unwrap(), text(100));
    assert!(only(0).is_err());
}
