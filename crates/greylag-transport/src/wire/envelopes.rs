//! The content of a batch: envelopes, written and read without copies.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use greylag_core::{CodecId, EncodeError, Manifest, Uid, UniqueAddress};
use prost::Message;
use prost::encoding::{WireType, decode_varint, encoded_len_varint};

use super::codes;
use super::malformed::{Malformed, skip};
use super::names::{NameWriter, Names, Role, Spelling, check_name};
use crate::endpoints::endpoint::{Reply, shortened};
use crate::generated as pb;
use crate::messages::envelope::{AskHeader, EncodedMessage, Envelope, Inbound, Payload, Recipient, encode};
use crate::settings::MAX_BATCH_MESSAGES;

/// The path to which answers are addressed; their lane key ends in the number of the question.
pub(crate) const REPLY_PATH: &str = "asks";

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

/// Appends an envelope to the content of a batch, and returns the size of its payload. On an error nothing is appended.
/// `scratch` is a buffer for reuse.
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
    // Number no names without a target uid: such an envelope is the join protocol's, which uses no tables (cluster
    // T37).
    let may_number = envelope.target_uid.is_some();
    let (path, path_id) = spell(names, may_number, Role::Path, &recipient.path);
    let (manifest, manifest_id) = spell(names, may_number, Role::Manifest, &envelope.manifest);
    Fields {
        path,
        path_id,
        sub_path: recipient.below(),
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
        Reply::Unwritten { type_name, cause } => {
            let failure = pb::UnwrittenAnswer { type_name: type_name.clone(), cause: cause.clone() };
            Some(pb::failure::Kind::Unwritten(failure))
        }
    };
    fields.failure = kind.map(|kind| pb::Failure { kind: Some(kind) });
    fields.write(out);
    fields.payload.len()
}

/// An envelope's fields by the schema; protobuf's default values are not written.
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
        let mut small = Small::new();
        small.key(1, WireType::LengthDelimited);
        small.varint(len as u64);
        small.bytes_field(PATH, self.path.as_bytes(), out);
        small.bytes_field(SUB_PATH, self.sub_path.as_bytes(), out);
        small.varint_field(INSTANCE, self.instance);
        if self.target_uid != 0 {
            small.key(TARGET_UID, WireType::SixtyFourBit);
            small.fixed64(self.target_uid);
        }
        small.varint_field(CODEC_ID, self.codec_id.into());
        small.bytes_field(MANIFEST, self.manifest.as_bytes(), out);
        small.bytes_field(PAYLOAD, self.payload, out);
        small.varint_field(ASK_ID, self.ask_id);
        small.varint_field(ASK_BUDGET_MS, self.ask_budget_ms);
        if let Some(failure_message) = &self.failure {
            small.key(FAILURE, WireType::LengthDelimited);
            small.varint(failure as u64);
            small.flush(out);
            failure_message.encode_raw(out);
        }
        small.varint_field(PATH_ID, self.path_id.into());
        small.varint_field(MANIFEST_ID, self.manifest_id.into());
        small.flush(out);
    }
}

/// Collects the short fields between long ones, so that the batch grows in few and larger pieces.
struct Small {
    bytes: [u8; Self::ROOM],
    len: usize,
}

impl Small {
    /// More than the short fields take together.
    const ROOM: usize = 128;

    fn new() -> Self {
        Self { bytes: [0; Self::ROOM], len: 0 }
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    #[inline]
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    // All fields have one-byte keys.
    #[inline]
    fn key(&mut self, field: u32, wire: WireType) {
        self.varint(u64::from(field << 3 | wire as u32));
    }

    fn fixed64(&mut self, value: u64) {
        self.bytes[self.len..self.len + 8].copy_from_slice(&value.to_le_bytes());
        self.len += 8;
    }

    #[inline]
    fn varint_field(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.key(field, WireType::Varint);
            self.varint(value);
        }
    }

    #[inline]
    fn bytes_field(&mut self, field: u32, bytes: &[u8], out: &mut BytesMut) {
        if !bytes.is_empty() {
            self.key(field, WireType::LengthDelimited);
            self.varint(bytes.len() as u64);
            self.flush(out);
            out.put_slice(bytes);
        }
    }

    fn flush(&mut self, out: &mut BytesMut) {
        out.put_slice(&self.bytes[..self.len]);
        self.len = 0;
    }
}

// All fields have one-byte keys.
fn bytes_len(len: usize) -> usize {
    if len == 0 { 0 } else { 1 + encoded_len_varint(len as u64) + len }
}

fn varint_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + encoded_len_varint(value) }
}

/// An envelope as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) target_uid: Option<Uid>,
    pub(crate) content: ArrivedContent,
}

impl Arrived {
    /// A numbered message of `from`.
    pub(crate) fn of(from: UniqueAddress, message: EncodedMessage) -> Self {
        let EncodedMessage { recipient, target_uid, codec, manifest, payload, ask } = message;
        let message = Inbound { from, recipient, codec, manifest, payload, ask };
        Self { target_uid, content: ArrivedContent::Message(message) }
    }
}

/// The content of an envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArrivedContent {
    Message(Inbound),
    Reply { ask_id: u64, reply: Reply },
}

/// Reads the envelopes of a batch, one by one; ends after the first error.
pub(crate) struct BatchReader<'a> {
    from: &'a UniqueAddress,
    batch: Bytes,
    position: BatchPosition,
    names: &'a mut Names,
}

/// How far a batch was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BatchPosition {
    /// Bytes read so far.
    at: usize,
    /// Envelopes read so far.
    pub(crate) count: usize,
}

impl<'a> BatchReader<'a> {
    /// Reads the envelopes that `from` sent, from the start of the batch.
    pub(crate) fn new(from: &'a UniqueAddress, batch: Bytes, names: &'a mut Names) -> Self {
        Self::going_on(from, batch, names, BatchPosition::default())
    }

    /// Reads the envelopes from where another reader of the batch has stopped.
    pub(crate) fn going_on(
        from: &'a UniqueAddress,
        batch: Bytes,
        names: &'a mut Names,
        position: BatchPosition,
    ) -> Self {
        Self { from, batch, position, names }
    }

    pub(crate) fn position(&self) -> BatchPosition {
        self.position
    }

    /// Returns `take` of the next envelope; `None` at the end. Every message passes here, so it is moved only once.
    /// After an error there is no more to read.
    pub(crate) fn read_next<T>(&mut self, take: impl FnOnce(Arrived) -> T) -> Result<Option<T>, Malformed> {
        let read = self.try_next(take);
        if read.is_err() {
            self.position.at = self.batch.len();
        }
        read
    }

    fn try_next<T>(&mut self, take: impl FnOnce(Arrived) -> T) -> Result<Option<T>, Malformed> {
        let mut rest = &self.batch[self.position.at..];
        while !rest.is_empty() {
            let (field, wire) = read_key(&mut rest)?;
            if field == 1 && wire == WireType::LengthDelimited {
                let envelope = read_bytes(&mut rest)?;
                self.position.at = self.batch.len() - rest.len();
                self.position.count += 1;
                if self.position.count > MAX_BATCH_MESSAGES {
                    return Err(Malformed(format!("more than {MAX_BATCH_MESSAGES} envelopes in a frame")));
                }
                return read_envelope(self.from, &self.batch, envelope, self.names, take).map(Some);
            }
            skip(wire, field, &mut rest)?;
        }
        self.position.at = self.batch.len();
        Ok(None)
    }
}

impl Iterator for BatchReader<'_> {
    type Item = Result<Arrived, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read_next(|arrived| arrived).transpose()
    }
}

/// Reads the envelope at `rest` in the batch; its payload shares the batch's bytes.
fn read_envelope<T>(
    from: &UniqueAddress,
    batch: &Bytes,
    mut rest: &[u8],
    names: &mut Names,
    take: impl FnOnce(Arrived) -> T,
) -> Result<T, Malformed> {
    let [mut path, mut sub_path, mut manifest, mut payload] = [&[][..]; 4];
    let (mut instance, mut target_uid, mut codec_id, mut ask_id, mut ask_budget_ms) = (0, 0, 0, 0, 0);
    let (mut path_id, mut manifest_id) = (0, 0);
    let mut failure = None;
    while !rest.is_empty() {
        let (field, wire) = read_key(&mut rest)?;
        match (field, wire) {
            (PATH, WireType::LengthDelimited) => path = read_bytes(&mut rest)?,
            (SUB_PATH, WireType::LengthDelimited) => sub_path = read_bytes(&mut rest)?,
            (INSTANCE, WireType::Varint) => instance = decode_varint(&mut rest)?,
            (TARGET_UID, WireType::SixtyFourBit) => {
                target_uid = rest.try_get_u64_le().map_err(|error| Malformed(error.to_string()))?;
            }
            (CODEC_ID, WireType::Varint) => codec_id = decode_varint(&mut rest)?,
            (MANIFEST, WireType::LengthDelimited) => manifest = read_bytes(&mut rest)?,
            (PAYLOAD, WireType::LengthDelimited) => payload = read_bytes(&mut rest)?,
            (ASK_ID, WireType::Varint) => ask_id = decode_varint(&mut rest)?,
            (ASK_BUDGET_MS, WireType::Varint) => ask_budget_ms = decode_varint(&mut rest)?,
            (PATH_ID, WireType::Varint) => path_id = read_number(&mut rest)?,
            (MANIFEST_ID, WireType::Varint) => manifest_id = read_number(&mut rest)?,
            (FAILURE, WireType::LengthDelimited) => failure = Some(pb::Failure::decode(read_bytes(&mut rest)?)?),
            _ => skip(wire, field, &mut rest)?,
        }
    }
    let codec = CodecId::from_u32(u32::try_from(codec_id).unwrap_or(u32::MAX));
    // Read path before manifest, the order in which the writer numbers them.
    let path = names.read(text(path)?, path_id)?;
    let manifest = Manifest::from(names.read(text(manifest)?, manifest_id)?);
    let payload = batch.slice_ref(payload);
    let target_uid = Uid::new(target_uid);
    Ok(if *path == *REPLY_PATH {
        let content = ArrivedContent::Reply { ask_id, reply: read_reply(codec, manifest, payload, failure) };
        take(Arrived { target_uid, content })
    } else {
        if path.is_empty() {
            return Err(Malformed("an envelope without a recipient".to_owned()));
        }
        let sub_path = check_name(text(sub_path)?)?;
        let sub_path = (!sub_path.is_empty()).then(|| names.share(sub_path));
        let recipient = Recipient { path, sub_path, instance };
        let ask = (ask_id != 0).then_some(AskHeader { id: ask_id, budget: Duration::from_millis(ask_budget_ms) });
        let message = Inbound { from: from.clone(), recipient, codec, manifest, payload, ask };
        take(Arrived { target_uid, content: ArrivedContent::Message(message) })
    })
}

fn read_reply(codec: CodecId, manifest: Manifest, payload: Bytes, failure: Option<pb::Failure>) -> Reply {
    match failure {
        None => Reply::Value { codec, manifest, payload },
        Some(pb::Failure { kind: Some(pb::failure::Kind::Entity(error)) }) => Reply::Entity(codes::entity_error(error)),
        Some(pb::Failure { kind: Some(pb::failure::Kind::Dropped(number)) }) => {
            Reply::Dropped(codes::drop_reason(number))
        }
        Some(pb::Failure { kind: Some(pb::failure::Kind::Unwritten(failure)) }) => {
            Reply::Unwritten { type_name: shortened(failure.type_name), cause: shortened(failure.cause) }
        }
        Some(pb::Failure { kind: None }) => Reply::Dropped(codes::drop_reason(0)),
    }
}

#[inline]
fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    if bytes.is_empty() {
        return Ok("");
    }
    std::str::from_utf8(bytes).map_err(|error| Malformed(error.to_string()))
}

#[inline]
fn read_number(rest: &mut &[u8]) -> Result<u32, Malformed> {
    let number = decode_varint(rest)?;
    u32::try_from(number).map_err(|_| Malformed(format!("the number {number} stands for no name")))
}

#[inline(always)]
fn read_key(rest: &mut &[u8]) -> Result<(u32, WireType), Malformed> {
    // Fast path: all known fields have one-byte keys.
    let wire = match rest.first() {
        Some(key @ 8..=0x7f) => match key & 7 {
            0 => WireType::Varint,
            1 => WireType::SixtyFourBit,
            2 => WireType::LengthDelimited,
            _ => return read_any_key(rest),
        },
        _ => return read_any_key(rest),
    };
    let field = u32::from(rest[0] >> 3);
    *rest = &rest[1..];
    Ok((field, wire))
}

#[cold]
fn read_any_key(rest: &mut &[u8]) -> Result<(u32, WireType), Malformed> {
    prost::encoding::decode_key(rest).map_err(Malformed::from)
}

#[inline]
fn read_bytes<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let len = usize::try_from(decode_varint(rest)?).unwrap_or(usize::MAX);
    rest.split_off(..len).ok_or_else(|| Malformed(format!("a field of {len} bytes in {} bytes", rest.len())))
}
