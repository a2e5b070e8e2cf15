//! Codecs for prost and serde messages (JSON, CBOR), by the fixed ids that wire and disk share.
//!
//! ```
//! use greylag_codec::json;
//! use greylag_core::Registry;
//!
//! #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
//! struct Increment {
//!     by: i64,
//! }
//!
//! let registry = Registry::new();
//! registry.register::<Increment>(json("counter.increment"))?;
//! let encoded = registry.encode(&Increment { by: 2 })?;
//! assert_eq!(&encoded.payload[..], br#"{"by":2}"#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `greylag-core` stays without a serialization library, so the codecs live one step above it;
//! wire (cluster T34) and journal (persistence §1) read the same ids.

#[cfg(any(feature = "json", feature = "cbor"))]
mod size;

#[cfg(any(feature = "json", feature = "cbor"))]
use std::any::Any;
use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Manifest};
#[cfg(any(feature = "json", feature = "cbor"))]
use greylag_core::{FormatScope, ReadAnswer, ReplyFormat};

/// Protocol Buffers for `M`, under one manifest.
#[cfg(feature = "prost")]
pub fn prost<M: prost::Message + Default + 'static>(manifest: &'static str) -> Prost<M> {
    Prost { manifest, message: PhantomData }
}

/// JSON for `M`, under one manifest.
#[cfg(feature = "json")]
pub fn json<M: serde::Serialize + serde::de::DeserializeOwned + 'static>(manifest: &'static str) -> Json<M> {
    Json { manifest, message: PhantomData }
}

/// CBOR for `M`, under one manifest: as self-describing as JSON, smaller, and with byte strings.
#[cfg(feature = "cbor")]
pub fn cbor<M: serde::Serialize + serde::de::DeserializeOwned + 'static>(manifest: &'static str) -> Cbor<M> {
    Cbor { manifest, message: PhantomData }
}

/// See [`prost`](fn@prost).
#[cfg(feature = "prost")]
#[derive(Debug, Clone, Copy)]
pub struct Prost<M> {
    manifest: &'static str,
    message: PhantomData<fn() -> M>,
}

#[cfg(feature = "prost")]
impl<M: prost::Message + Default + 'static> Codec<M> for Prost<M> {
    fn id(&self) -> CodecId {
        CodecId::PROST
    }

    fn manifest(&self, _: &M) -> Manifest {
        self.manifest.into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![self.manifest.into()]
    }

    fn encode(&self, message: &M, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        message.encode(buffer).map_err(|error| unrepresentable(self.manifest, error))
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<M, DecodeError> {
        known(self.id(), self.manifest, manifest)?;
        M::decode(bytes).map_err(|error| DecodeError::malformed(manifest, error))
    }

    fn size_hint(&self, message: &M) -> usize {
        message.encoded_len()
    }
}

/// See [`json`].
#[cfg(feature = "json")]
#[derive(Debug, Clone, Copy)]
pub struct Json<M> {
    manifest: &'static str,
    message: PhantomData<fn() -> M>,
}

#[cfg(feature = "json")]
impl<M: serde::Serialize + serde::de::DeserializeOwned + 'static> Codec<M> for Json<M> {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &M) -> Manifest {
        self.manifest.into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![self.manifest.into()]
    }

    fn encode(&self, message: &M, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        use bytes::BufMut;
        let _answers = FormatScope::enter(&JsonFormat);
        serde_json::to_writer(buffer.writer(), message).map_err(|error| unrepresentable(self.manifest, error))
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<M, DecodeError> {
        known(self.id(), self.manifest, manifest)?;
        let _answers = FormatScope::enter(&JsonFormat);
        serde_json::from_slice(&bytes).map_err(|error| DecodeError::malformed(manifest, without_values(&error)))
    }

    fn size_hint(&self, message: &M) -> usize {
        size::of(message)
    }
}

/// JSON for the answers to questions that travel in JSON.
#[cfg(feature = "json")]
struct JsonFormat;

#[cfg(feature = "json")]
impl ReplyFormat for JsonFormat {
    fn codec(&self) -> CodecId {
        CodecId::JSON
    }

    fn write(&self, answer: &dyn erased_serde::Serialize, buffer: &mut BytesMut) -> Result<(), String> {
        use bytes::BufMut;
        let mut writer = serde_json::Serializer::new(buffer.writer());
        erased_serde::serialize(answer, &mut writer).map_err(|error| error.to_string())
    }

    fn read(&self, bytes: &[u8], read: ReadAnswer) -> Result<Box<dyn Any + Send>, String> {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let answer =
            read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut reader)).map_err(|_| UNFIT.to_owned())?;
        reader.end().map_err(|error| without_values(&error))?;
        Ok(answer)
    }
}

/// The error text for bytes that do not fit the type of an answer. The format's own text may quote the bytes.
#[cfg(any(feature = "json", feature = "cbor"))]
const UNFIT: &str = "the bytes are no value of this type";

/// The text of the error without words that quote the message: errors are logged, and messages are confidential.
#[cfg(feature = "json")]
fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if error.is_data() && !text.starts_with("missing field `") {
        let (line, column) = (error.line(), error.column());
        return format!("a value of another type, name or range than expected at line {line} column {column}");
    }
    text
}

/// See [`cbor`].
#[cfg(feature = "cbor")]
#[derive(Debug, Clone, Copy)]
pub struct Cbor<M> {
    manifest: &'static str,
    message: PhantomData<fn() -> M>,
}

#[cfg(feature = "cbor")]
impl<M: serde::Serialize + serde::de::DeserializeOwned + 'static> Codec<M> for Cbor<M> {
    fn id(&self) -> CodecId {
        CodecId::CBOR
    }

    fn manifest(&self, _: &M) -> Manifest {
        self.manifest.into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![self.manifest.into()]
    }

    fn encode(&self, message: &M, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        use bytes::BufMut;
        let _answers = FormatScope::enter(&CborFormat);
        ciborium::into_writer(message, buffer.writer()).map_err(|error| unrepresentable(self.manifest, error))
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<M, DecodeError> {
        known(self.id(), self.manifest, manifest)?;
        let mut rest = &bytes[..];
        let malformed = |error: ciborium::de::Error<std::io::Error>| match error {
            ciborium::de::Error::Semantic(at, text) if !text.starts_with("missing field `") => {
                let at = at.map_or_else(String::new, |at| format!(" at byte {at}"));
                DecodeError::malformed(manifest, format!("a value of another type, name or range than expected{at}"))
            }
            other => DecodeError::malformed(manifest, other),
        };
        let _answers = FormatScope::enter(&CborFormat);
        let message = ciborium::from_reader(&mut rest).map_err(malformed)?;
        // Refuse bytes after the value, where the library stops: this codec wrote none.
        if rest.is_empty() {
            Ok(message)
        } else {
            Err(DecodeError::malformed(manifest, format!("{} bytes follow the value", rest.len())))
        }
    }

    fn size_hint(&self, message: &M) -> usize {
        size::of(message)
    }
}

/// CBOR for the answers to questions that travel in CBOR.
#[cfg(feature = "cbor")]
struct CborFormat;

#[cfg(feature = "cbor")]
impl ReplyFormat for CborFormat {
    fn codec(&self) -> CodecId {
        CodecId::CBOR
    }

    fn write(&self, answer: &dyn erased_serde::Serialize, buffer: &mut BytesMut) -> Result<(), String> {
        use bytes::BufMut;
        ciborium::into_writer(&answer, buffer.writer()).map_err(|error| error.to_string())
    }

    fn read(&self, bytes: &[u8], read: ReadAnswer) -> Result<Box<dyn Any + Send>, String> {
        let mut rest = bytes;
        ANSWER_READER.set(Some(read));
        let ErasedAnswer(answer) = ciborium::from_reader(&mut rest).map_err(|_| UNFIT.to_owned())?;
        if rest.is_empty() { Ok(answer) } else { Err(format!("{} bytes follow the answer", rest.len())) }
    }
}

/// An answer of an erased type. The library passes its deserializer only to `Deserialize` impls, and the answer's type
/// is erased, so the function that reads the answer is passed in the thread-local `ANSWER_READER`.
#[cfg(feature = "cbor")]
struct ErasedAnswer(Box<dyn Any + Send>);

#[cfg(feature = "cbor")]
thread_local! {
    static ANSWER_READER: std::cell::Cell<Option<ReadAnswer>> = const { std::cell::Cell::new(None) };
}

#[cfg(feature = "cbor")]
impl<'de> serde::Deserialize<'de> for ErasedAnswer {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let read = ANSWER_READER.take().ok_or_else(|| D::Error::custom("read outside of an answer"))?;
        read(&mut <dyn erased_serde::Deserializer<'_>>::erase(deserializer)).map(Self).map_err(D::Error::custom)
    }
}

fn unrepresentable(manifest: &str, error: impl std::fmt::Display) -> EncodeError {
    EncodeError::Unrepresentable { manifest: manifest.to_owned(), reason: error.to_string() }
}

fn known(codec: CodecId, own: &str, found: &str) -> Result<(), DecodeError> {
    if own == found { Ok(()) } else { Err(DecodeError::UnknownManifest { codec, manifest: found.to_owned() }) }
}

#[cfg(test)]
mod answers {
    //! Sharding §4.11, "A reply finds its format": the answer travels in the format of its question.

    use std::sync::{Arc, Mutex};

    use greylag_core::{AnswerReader, ReplyAddress, ReplyOutcome, ReplyPort, ReplyScope, ReplyTo};

    use super::*;

    /// A node that keeps the reader that a token leaves there, and the bytes of the answer.
    #[derive(Default)]
    struct Port {
        reader: Mutex<Option<AnswerReader>>,
        answer: Mutex<Option<greylag_core::Encoded>>,
    }

    impl ReplyPort for Port {
        fn reply(&self, _: &ReplyAddress, outcome: ReplyOutcome) {
            let ReplyOutcome::Value { value, writer, .. } = outcome else { return };
            *self.answer.lock().unwrap() = Some(writer.expect("a format").write(&*value).unwrap());
        }

        fn expect(&self, _: &ReplyAddress, reader: AnswerReader) {
            *self.reader.lock().unwrap() = Some(reader);
        }
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Ask {
        reply_to: ReplyTo<Found>,
    }

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Found {
        name: String,
        numbers: Vec<Option<u32>>,
    }

    fn carry(codec: impl Codec<Ask>) -> (AnswerReader, greylag_core::Encoded) {
        let (asker, owner) = (Arc::new(Port::default()), Arc::new(Port::default()));
        let address = ReplyAddress { node: "a:1#1".parse().unwrap(), ask_id: 1 };
        let mut buffer = BytesMut::new();
        codec.encode(&Ask { reply_to: ReplyTo::new(address, asker.clone()) }, &mut buffer).unwrap();
        let scope = ReplyScope::enter(owner.clone());
        let ask = codec.decode("ask", buffer.freeze()).unwrap();
        drop(scope);
        ask.reply_to.reply(Found { name: "Ümit".to_owned(), numbers: vec![Some(7), None] });
        let reader = asker.reader.lock().unwrap().take().expect("the token left it");
        let answer = owner.answer.lock().unwrap().take().expect("answered");
        (reader, answer)
    }

    #[test]
    fn an_answer_travels_in_the_format_of_its_question_and_needs_no_codec_of_its_own() {
        let (of_json, in_json) = carry(json::<Ask>("ask"));
        assert_eq!(in_json.payload, r#"{"name":"Ümit","numbers":[7,null]}"#.as_bytes());
        let (of_cbor, in_cbor) = carry(cbor::<Ask>("ask"));
        for (reader, answer, other) in [(&of_json, &in_json, &in_cbor), (&of_cbor, &in_cbor, &in_json)] {
            assert!(answer.manifest.is_empty() && reader.reads(answer.codec, ""));
            assert!(!reader.reads(other.codec, "") && !reader.reads(answer.codec, "found"), "the registry reads these");
            let read = reader.read("", answer.payload.clone()).unwrap().downcast::<Found>().unwrap();
            assert_eq!(*read, Found { name: "Ümit".to_owned(), numbers: vec![Some(7), None] });
            let mut damaged = BytesMut::from(&answer.payload[..]);
            damaged.extend_from_slice(b"0");
            assert!(reader.read("", damaged.freeze()).is_err(), "bytes after the answer");
            let error = reader.read("", answer.payload.slice(..answer.payload.len() - 1)).unwrap_err().to_string();
            assert!(!error.contains("mit"), "an error quotes no message: {error}");
        }
    }

    #[test]
    fn a_scope_ends_with_the_message_that_opened_it() {
        carry(json::<Ask>("ask"));
        let port = Arc::new(Port::default());
        let address = ReplyAddress { node: "a:1#1".parse().unwrap(), ask_id: 1 };
        let token: ReplyTo<u64> = ReplyTo::new(address, port.clone());
        serde_json::to_string(&token).unwrap();
        assert!(port.reader.lock().unwrap().is_none(), "written by no codec, so read by none");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// persistence §10.16: payloads are never logged, and errors are.
    #[test]
    fn no_error_quotes_the_message() {
        #[derive(Debug, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Two {
            left: u32,
            right: u32,
        }
        let json = |text: &str| {
            json::<Two>("two").decode("two", Bytes::copy_from_slice(text.as_bytes())).unwrap_err().to_string()
        };
        for text in [r#"{"left": "secret"}"#, r#"{"secret": 1}"#, r#"{"left": 1, "right": -777}"#] {
            let told = json(text);
            assert!(!told.contains("secret") && !told.contains("777") && told.contains("line 1 column"), "{told}");
        }
        assert!(json(r#"{"left": 1}"#).contains("missing field `right`"), "a name of ours helps and tells nothing");
        assert!(json(r#"{"left" 1}"#).contains("expected `:`"));
        let mut buffer = BytesMut::new();
        cbor::<String>("text").encode(&"secret".to_owned(), &mut buffer).unwrap();
        let told = cbor::<u32>("text").decode("text", buffer.freeze()).unwrap_err().to_string();
        assert!(!told.contains("secret") && told.contains("another type"), "{told}");
    }

    #[test]
    fn every_codec_returns_what_it_was_given() {
        let mut buffer = BytesMut::new();
        let text = String::from("grey lag");
        json::<String>("text").encode(&text, &mut buffer).unwrap();
        assert_eq!(json::<String>("text").decode("text", buffer.split().freeze()), Ok(text.clone()));
        prost::<String>("text").encode(&text, &mut buffer).unwrap();
        assert_eq!(prost::<String>("text").decode("text", buffer.split().freeze()), Ok(text.clone()));
        cbor::<String>("text").encode(&text, &mut buffer).unwrap();
        assert_eq!(buffer.first(), Some(&0x68), "a text of eight bytes, as RFC 8949 writes it");
        assert_eq!(cbor::<String>("text").decode("text", buffer.split().freeze()), Ok(text));
    }

    #[test]
    fn foreign_manifests_and_broken_bytes_are_refused() {
        let codec = json::<u32>("count");
        assert!(matches!(codec.decode("other", Bytes::from_static(b"1")), Err(DecodeError::UnknownManifest { .. })));
        assert!(matches!(codec.decode("count", Bytes::from_static(b"{")), Err(DecodeError::Malformed { .. })));
        let codec = cbor::<u32>("count");
        assert!(matches!(codec.decode("other", Bytes::from_static(b"\x01")), Err(DecodeError::UnknownManifest { .. })));
        for (what, bytes) in [("nothing", &b""[..]), ("a cut number", b"\x1a\0"), ("two values", b"\x01\x02")] {
            assert!(
                matches!(codec.decode("count", Bytes::from_static(bytes)), Err(DecodeError::Malformed { .. })),
                "{what}"
            );
        }
        let codec = prost::<u32>("count");
        assert!(matches!(codec.decode("count", Bytes::from_static(b"\xff")), Err(DecodeError::Malformed { .. })));
    }

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    enum Order {
        Place { item: String, amounts: Vec<u32>, note: Option<String> },
        Cancel(u64, String),
        Forget,
    }

    /// A hint is at most about twice the encoded size, and at least half of it, for small values and large ones.
    #[test]
    fn size_hints_are_of_the_size_of_what_is_encoded() {
        let size = |bytes: Result<(), EncodeError>, buffer: BytesMut| {
            bytes.unwrap();
            buffer.len()
        };
        let place = |len| Order::Place { item: "x".repeat(len), amounts: vec![100_000; 20], note: None };
        let orders = [place(5), place(100_000), Order::Cancel(123_456, "late".repeat(1000)), Order::Forget];
        for order in &orders {
            let (json, cbor) = (json::<Order>("order"), cbor::<Order>("order"));
            let mut buffer = BytesMut::new();
            let in_json = size(json.encode(order, &mut buffer), buffer);
            let mut buffer = BytesMut::new();
            let in_cbor = size(cbor.encode(order, &mut buffer), buffer);
            for (encoded, hint) in [(in_json, json.size_hint(order)), (in_cbor, cbor.size_hint(order))] {
                assert!(
                    hint <= encoded * 2 + 8 && encoded <= hint * 2 + 8,
                    "{order:.40?}: {encoded} bytes, {hint} hinted"
                );
            }
        }
        assert_eq!(prost::<String>("text").size_hint(&"x".repeat(1000)), 1003, "prost knows the size");
    }

    /// Measuring a reply token does not count as sending it: dropped, the token tells its asker that there is no
    /// answer.
    #[test]
    fn a_measured_reply_token_is_not_taken_for_a_sent_one() {
        struct Port(std::sync::atomic::AtomicUsize);
        impl greylag_core::ReplyPort for Port {
            fn reply(&self, _: &greylag_core::ReplyAddress, _: greylag_core::ReplyOutcome) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let port = std::sync::Arc::new(Port(0.into()));
        let address = greylag_core::ReplyAddress { node: "a:1#1".parse().unwrap(), ask_id: 1 };
        let token = greylag_core::ReplyTo::<u32>::new(address, port.clone());
        json::<greylag_core::ReplyTo<u32>>("question").size_hint(&token);
        drop(token);
        assert_eq!(port.0.load(std::sync::atomic::Ordering::Relaxed), 1, "its asker hears that there is no answer");
    }

    #[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
    struct Nest {
        below: Option<Box<Nest>>,
    }

    #[derive(Clone, PartialEq, ::prost::Message)]
    struct Tree {
        #[prost(message, optional, boxed, tag = "1")]
        below: Option<Box<Tree>>,
    }

    /// Cluster T36: bytes that nest deeper than any message are refused before the stack overflows.
    #[test]
    fn deep_nesting_is_refused() {
        const DEPTH: usize = 5000;
        let text = format!("{}null{}", r#"{"below":"#.repeat(DEPTH), "}".repeat(DEPTH));
        let read = json::<Nest>("nest").decode("nest", text.into());
        assert!(matches!(read, Err(DecodeError::Malformed { .. })));
        let mut nested = b"\xa1\x65below".repeat(DEPTH);
        nested.push(0xf6);
        let read = cbor::<Nest>("nest").decode("nest", nested.into());
        assert!(matches!(read, Err(DecodeError::Malformed { .. })));
        let mut tree = Vec::new();
        for _ in 0..DEPTH {
            let mut around = Vec::with_capacity(tree.len() + 5);
            ::prost::encoding::encode_key(1, ::prost::encoding::WireType::LengthDelimited, &mut around);
            ::prost::encoding::encode_varint(tree.len() as u64, &mut around);
            around.append(&mut tree);
            tree = around;
        }
        let read = prost::<Tree>("tree").decode("tree", tree.into());
        assert!(matches!(read, Err(DecodeError::Malformed { .. })));
    }

    /// Cluster T36: a length that exceeds every payload is refused before anything of that size is allocated.
    #[test]
    fn claimed_lengths_are_not_believed() {
        const HUGE: [u8; 8] = (1_u64 << 60).to_be_bytes();
        let claim = |kind: u8| Bytes::from([&[kind][..], &HUGE, b"grey"].concat());
        assert!(matches!(cbor::<String>("m").decode("m", claim(0x7b)), Err(DecodeError::Malformed { .. })));
        assert!(matches!(cbor::<Vec<u32>>("m").decode("m", claim(0x9b)), Err(DecodeError::Malformed { .. })));
    }
}
