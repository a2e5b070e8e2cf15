//! The content of a batch: envelopes, written and read without copies.

use super::names::{NameWriter, Names, Role, Spelling, check_name};
use super::*;
use crate::envelope::encode;
use crate::settings::MAX_BATCH_MESSAGES;

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
const PATH_ID: u32 = 12;
const MANIFEST_ID: u32 = 14;

/// Appends an envelope to the content of a batch, and returns the size of its payload. On an error
/// nothing is appended. `scratch` is a buffer to be used again.
pub(crate) fn write_envelope(
    envelope: &Envelope,
    names: &mut NameWriter,
    scratch: &mut BytesMut,
    out: &mut BytesMut,
) -> Result<usize, EncodeError> {
    scratch.clear();
    let payload: &[u8] = match &envelope.payload {
        Payload::Bytes(bytes) => bytes,
        Payload::Value(value) => {
            encode(&**value, &envelope.manifest, scratch)?;
            scratch
        }
    };
    let recipient = &envelope.recipient;
    // What is for whoever runs there is the join protocol, which knows no tables (cluster T37).
    let may_number = envelope.target_uid.is_some();
    let (path, path_id) = spell(names, may_number, Role::Path, &recipient.path);
    let (manifest, manifest_id) = spell(names, may_number, Role::Manifest, &envelope.manifest);
    Fields {
        path,
        path_id,
        sub_path: &recipient.sub_path,
        instance: recipient.instance,
        target_uid: envelope.target_uid.map_or(0, Uid::get),
        codec_id: envelope.codec.as_u32(),
        manifest,
        manifest_id,
        payload,
        ask_id: envelope.ask.map_or(0, |ask| ask.id),
        ask_budget_ms: envelope.ask.map_or(0, |ask| u64::try_from(ask.budget.as_millis()).unwrap_or(u64::MAX)),
        failure: None,
    }
    .write(out);
    Ok(payload.len())
}

fn spell<'a>(names: &mut NameWriter, may_number: bool, role: Role, name: &'a str) -> (&'a str, u32) {
    match if may_number { names.spell(role, name) } else { Spelling::Text } {
        Spelling::Text => (name, 0),
        Spelling::First(number) => (name, number),
        Spelling::Number(number) => ("", number),
    }
}

/// Appends an answer to the content of a batch, and returns the size of its payload.
pub(crate) fn write_reply(
    target: Uid,
    ask_id: u64,
    reply: &Reply,
    names: &mut NameWriter,
    out: &mut BytesMut,
) -> usize {
    let (path, path_id) = spell(names, true, Role::Path, REPLY_PATH);
    let mut fields = Fields { path, path_id, target_uid: target.get(), ask_id, ..Fields::default() };
    let kind = match reply {
        Reply::Value { codec, manifest, payload } => {
            (fields.manifest, fields.manifest_id) = spell(names, true, Role::Manifest, manifest);
            (fields.codec_id, fields.payload) = (codec.as_u32(), payload);
            None
        }
        Reply::Entity(error) => Some(pb::failure::Kind::Entity(codes::write_entity_error(error))),
        Reply::Dropped(reason) => Some(pb::failure::Kind::Dropped(codes::write_drop_reason(*reason))),
    };
    fields.failure = kind.map(|kind| pb::Failure { kind: Some(kind) });
    fields.write(out);
    fields.payload.len()
}

/// An envelope as the schema sees it; the defaults of protobuf are not written.
#[derive(Default)]
struct Fields<'a> {
    path: &'a str,
    path_id: u32,
    sub_path: &'a str,
    instance: u64,
    target_uid: u64,
    codec_id: u32,
    manifest: &'a str,
    manifest_id: u32,
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
            + if self.failure.is_some() { 1 + encoded_len_varint(failure as u64) + failure } else { 0 }
            + varint_len(self.path_id.into())
            + varint_len(self.manifest_id.into());
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
        put_varint(PATH_ID, self.path_id.into(), out);
        put_varint(MANIFEST_ID, self.manifest_id.into(), out);
    }
}

// All fields have one-byte keys.
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

/// Reads the envelopes of a batch, one by one; ends after the first error.
pub(crate) struct BatchReader<'a> {
    rest: Bytes,
    names: &'a mut Names,
    count: usize,
}

impl<'a> BatchReader<'a> {
    pub(crate) fn new(batch: Bytes, names: &'a mut Names) -> Self {
        Self { rest: batch, names, count: 0 }
    }

    fn read_next(&mut self) -> Result<Option<Arrived>, Malformed> {
        while self.rest.has_remaining() {
            let (field, wire) = read_key(&mut self.rest)?;
            if field == 1 && wire == WireType::LengthDelimited {
                let envelope = read_bytes(&mut self.rest)?;
                self.count += 1;
                if self.count > MAX_BATCH_MESSAGES {
                    return Err(Malformed(format!("more than {MAX_BATCH_MESSAGES} envelopes in a frame")));
                }
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
    let (mut path_id, mut manifest_id) = (0, 0);
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
            (PATH_ID, WireType::Varint) => path_id = read_number(&mut rest)?,
            (MANIFEST_ID, WireType::Varint) => manifest_id = read_number(&mut rest)?,
            (FAILURE, WireType::LengthDelimited) => failure = Some(pb::Failure::decode(read_bytes(&mut rest)?)?),
            _ => skip(wire, field, &mut rest)?,
        }
    }
    let codec = CodecId::from_u32(u32::try_from(codec_id).unwrap_or(u32::MAX));
    // In the order in which the writer numbers them.
    let path = names.read(text(&path)?, path_id)?;
    let manifest = match manifest_id {
        0 => Manifest::Owned(check_name(text(&manifest)?)?.to_owned()),
        number => Manifest::Owned(names.read(text(&manifest)?, number)?.to_string()),
    };
    let content = if *path == *REPLY_PATH {
        ArrivedContent::Reply { ask_id, reply: read_reply(codec, manifest, payload, failure) }
    } else {
        let recipient = Recipient { path, sub_path: names.share(check_name(text(&sub_path)?)?), instance };
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

fn read_number(rest: &mut Bytes) -> Result<u32, Malformed> {
    let number = prost::encoding::decode_varint(rest)?;
    u32::try_from(number).map_err(|_| Malformed(format!("the number {number} stands for no name")))
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
