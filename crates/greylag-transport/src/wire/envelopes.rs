//! The content of a batch: envelopes, written and read without copies.

use super::*;

// Field numbers of `Envelope`.
const PATH: u32 = 1;
const SUB_PATH: u32 = 2;
const INSTANCE: u32 = 3;
const TARGET_UID: u32 = 4;
const CODEC_ID: u32 = 5;
const MANIFEST: u32 = 6;
const PAYLOAD: u32 = 7;
const ASK_ID: u32 = 8;
const ASK_BUDGET_MS: u32 = 9;
const FAILURE: u32 = 10;

/// Appends an envelope to the content of a batch. On an error nothing is appended. `scratch` is a
/// buffer to be used again.
pub(crate) fn write_envelope(
    envelope: &Envelope,
    scratch: &mut BytesMut,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    scratch.clear();
    let payload: &[u8] = match &envelope.payload {
        Payload::Bytes(bytes) => bytes,
        Payload::Value(value) => {
            value.encode(scratch)?;
            scratch
        }
    };
    let recipient = &envelope.recipient;
    Fields {
        path: &recipient.path,
        sub_path: &recipient.sub_path,
        instance: recipient.instance,
        target_uid: envelope.target_uid.map_or(0, Uid::get),
        codec_id: envelope.codec.as_u32(),
        manifest: &envelope.manifest,
        payload,
        ask_id: envelope.ask.map_or(0, |ask| ask.id),
        ask_budget_ms: envelope.ask.map_or(0, |ask| u64::try_from(ask.budget.as_millis()).unwrap_or(u64::MAX)),
        failure: None,
    }
    .write(out);
    Ok(())
}

/// Appends an answer to the content of a batch.
pub(crate) fn write_reply(target: Uid, ask_id: u64, reply: &Reply, out: &mut BytesMut) {
    let mut fields = Fields { path: REPLY_PATH, target_uid: target.get(), ask_id, ..Fields::default() };
    let kind = match reply {
        Reply::Value { codec, manifest, payload } => {
            (fields.codec_id, fields.manifest, fields.payload) = (codec.as_u32(), manifest, payload);
            None
        }
        Reply::Entity(error) => Some(pb::failure::Kind::Entity(codes::write_entity_error(error))),
        Reply::Dropped(reason) => Some(pb::failure::Kind::Dropped(codes::write_drop_reason(*reason))),
    };
    fields.failure = kind.map(|kind| pb::Failure { kind: Some(kind) });
    fields.write(out);
}

/// An envelope as the schema sees it; the defaults of protobuf are not written.
#[derive(Default)]
struct Fields<'a> {
    path: &'a str,
    sub_path: &'a str,
    instance: u64,
    target_uid: u64,
    codec_id: u32,
    manifest: &'a str,
    payload: &'a [u8],
    ask_id: u64,
    ask_budget_ms: u64,
    failure: Option<pb::Failure>,
}

impl Fields<'_> {
    fn write(&self, out: &mut BytesMut) {
        let failure = self.failure.as_ref().map_or(0, Message::encoded_len);
        let len = bytes_len(self.path.len())
            + bytes_len(self.sub_path.len())
            + varint_len(self.instance)
            + if self.target_uid == 0 { 0 } else { 9 }
            + varint_len(self.codec_id.into())
            + bytes_len(self.manifest.len())
            + bytes_len(self.payload.len())
            + varint_len(self.ask_id)
            + varint_len(self.ask_budget_ms)
            + if self.failure.is_some() { 1 + encoded_len_varint(failure as u64) + failure } else { 0 };
        out.reserve(len + 11);
        encode_key(1, WireType::LengthDelimited, out);
        encode_varint(len as u64, out);
        put_bytes(PATH, self.path.as_bytes(), out);
        put_bytes(SUB_PATH, self.sub_path.as_bytes(), out);
        put_varint(INSTANCE, self.instance, out);
        if self.target_uid != 0 {
            encode_key(TARGET_UID, WireType::SixtyFourBit, out);
            out.put_u64_le(self.target_uid);
        }
        put_varint(CODEC_ID, self.codec_id.into(), out);
        put_bytes(MANIFEST, self.manifest.as_bytes(), out);
        put_bytes(PAYLOAD, self.payload, out);
        put_varint(ASK_ID, self.ask_id, out);
        put_varint(ASK_BUDGET_MS, self.ask_budget_ms, out);
        if let Some(failure_message) = &self.failure {
            encode_key(FAILURE, WireType::LengthDelimited, out);
            encode_varint(failure as u64, out);
            failure_message.encode_raw(out);
        }
    }
}

// All fields above have one-byte keys.
fn bytes_len(len: usize) -> usize {
    if len == 0 { 0 } else { 1 + encoded_len_varint(len as u64) + len }
}

fn varint_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + encoded_len_varint(value) }
}

fn put_bytes(field: u32, bytes: &[u8], out: &mut BytesMut) {
    if !bytes.is_empty() {
        encode_key(field, WireType::LengthDelimited, out);
        encode_varint(bytes.len() as u64, out);
        out.put_slice(bytes);
    }
}

fn put_varint(field: u32, value: u64, out: &mut BytesMut) {
    if value != 0 {
        encode_key(field, WireType::Varint, out);
        encode_varint(value, out);
    }
}

/// An envelope as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) target_uid: Option<Uid>,
    pub(crate) content: ArrivedContent,
}

/// What an envelope brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArrivedContent {
    Message { recipient: Recipient, codec: CodecId, manifest: Manifest, payload: Bytes, ask: Option<AskHeader> },
    Reply { ask_id: u64, reply: Reply },
}

/// Paths that arrived before on the same stream, shared instead of allocated again.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(super) known: HashMap<Box<str>, Arc<str>>,
    /// The one that came last: most messages name the same recipient as the one before.
    last: Option<Arc<str>>,
    empty: Arc<str>,
}

impl Names {
    /// More than this many names at once are not remembered, whatever a peer sends.
    pub(super) const MAX: usize = 4096;

    pub(super) fn share(&mut self, name: &str) -> Arc<str> {
        if name.is_empty() {
            return self.empty.clone();
        }
        if let Some(last) = self.last.as_ref().filter(|last| ***last == *name) {
            return last.clone();
        }
        let shared = self.look_up(name);
        self.last = Some(shared.clone());
        shared
    }

    fn look_up(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        if self.known.len() >= Self::MAX {
            self.known.clear();
        }
        let shared: Arc<str> = name.into();
        self.known.insert(name.into(), shared.clone());
        shared
    }
}

/// Reads the envelopes of a batch, one by one; ends after the first error.
pub(crate) struct BatchReader<'a> {
    rest: Bytes,
    names: &'a mut Names,
}

impl<'a> BatchReader<'a> {
    pub(crate) fn new(batch: Bytes, names: &'a mut Names) -> Self {
        Self { rest: batch, names }
    }

    fn read_next(&mut self) -> Result<Option<Arrived>, Malformed> {
        while self.rest.has_remaining() {
            let (field, wire) = read_key(&mut self.rest)?;
            if field == 1 && wire == WireType::LengthDelimited {
                let envelope = read_bytes(&mut self.rest)?;
                return read_envelope(envelope, self.names).map(Some);
            }
            skip(wire, field, &mut self.rest)?;
        }
        Ok(None)
    }
}

impl Iterator for BatchReader<'_> {
    type Item = Result<Arrived, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.read_next();
        if result.is_err() {
            self.rest.clear();
        }
        result.transpose()
    }
}

fn read_envelope(mut rest: Bytes, names: &mut Names) -> Result<Arrived, Malformed> {
    let (mut path, mut sub_path, mut manifest, mut payload) = (Bytes::new(), Bytes::new(), Bytes::new(), Bytes::new());
    let (mut instance, mut target_uid, mut codec_id, mut ask_id, mut ask_budget_ms) = (0, 0, 0, 0, 0);
    let mut failure = None;
    while rest.has_remaining() {
        let (field, wire) = read_key(&mut rest)?;
        match (field, wire) {
            (PATH, WireType::LengthDelimited) => path = read_bytes(&mut rest)?,
            (SUB_PATH, WireType::LengthDelimited) => sub_path = read_bytes(&mut rest)?,
            (INSTANCE, WireType::Varint) => instance = prost::encoding::decode_varint(&mut rest)?,
            (TARGET_UID, WireType::SixtyFourBit) => {
                target_uid = rest.try_get_u64_le().map_err(|error| Malformed(error.to_string()))?;
            }
            (CODEC_ID, WireType::Varint) => codec_id = prost::encoding::decode_varint(&mut rest)?,
            (MANIFEST, WireType::LengthDelimited) => manifest = read_bytes(&mut rest)?,
            (PAYLOAD, WireType::LengthDelimited) => payload = read_bytes(&mut rest)?,
            (ASK_ID, WireType::Varint) => ask_id = prost::encoding::decode_varint(&mut rest)?,
            (ASK_BUDGET_MS, WireType::Varint) => ask_budget_ms = prost::encoding::decode_varint(&mut rest)?,
            (FAILURE, WireType::LengthDelimited) => failure = Some(pb::Failure::decode(read_bytes(&mut rest)?)?),
            _ => skip(wire, field, &mut rest)?,
        }
    }
    let codec = CodecId::from_u32(u32::try_from(codec_id).unwrap_or(u32::MAX));
    let manifest = Manifest::Owned(text(&manifest)?.to_owned());
    let path = text(&path)?;
    let content = if path == REPLY_PATH {
        ArrivedContent::Reply { ask_id, reply: read_reply(codec, manifest, payload, failure) }
    } else {
        let recipient = Recipient { path: names.share(path), sub_path: names.share(text(&sub_path)?), instance };
        let ask = (ask_id != 0).then_some(AskHeader { id: ask_id, budget: Duration::from_millis(ask_budget_ms) });
        ArrivedContent::Message { recipient, codec, manifest, payload, ask }
    };
    Ok(Arrived { target_uid: Uid::new(target_uid), content })
}

fn read_reply(codec: CodecId, manifest: Manifest, payload: Bytes, failure: Option<pb::Failure>) -> Reply {
    match failure {
        None => Reply::Value { codec, manifest, payload },
        Some(pb::Failure { kind: Some(pb::failure::Kind::Entity(error)) }) => Reply::Entity(codes::entity_error(error)),
        Some(pb::Failure { kind: Some(pb::failure::Kind::Dropped(number)) }) => {
            Reply::Dropped(codes::drop_reason(number))
        }
        Some(pb::Failure { kind: None }) => Reply::Dropped(codes::drop_reason(0)),
    }
}

fn text(bytes: &Bytes) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|error| Malformed(error.to_string()))
}

fn read_key(rest: &mut Bytes) -> Result<(u32, WireType), Malformed> {
    prost::encoding::decode_key(rest).map_err(Malformed::from)
}

fn read_bytes(rest: &mut Bytes) -> Result<Bytes, Malformed> {
    let len = usize::try_from(prost::encoding::decode_varint(rest)?).unwrap_or(usize::MAX);
    if len > rest.len() {
        return Err(Malformed(format!("a field of {len} bytes in {} bytes", rest.len())));
    }
    Ok(rest.split_to(len))
}

fn skip(wire: WireType, field: u32, rest: &mut Bytes) -> Result<(), Malformed> {
    let context = prost::encoding::DecodeContext::default();
    prost::encoding::skip_field(wire, field, rest, context).map_err(Malformed::from)
}
