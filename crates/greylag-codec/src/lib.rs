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

use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Manifest};

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
        serde_json::to_writer(buffer.writer(), message).map_err(|error| unrepresentable(self.manifest, error))
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<M, DecodeError> {
        known(self.id(), self.manifest, manifest)?;
        serde_json::from_slice(&bytes).map_err(|error| DecodeError::malformed(manifest, without_values(&error)))
    }
}

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
        let message = ciborium::from_reader(&mut rest).map_err(malformed)?;
        // The library stops after one value; bytes after it were not written by this codec.
        if rest.is_empty() {
            Ok(message)
        } else {
            Err(DecodeError::malformed(manifest, format!("{} bytes follow the value", rest.len())))
        }
    }
}

fn unrepresentable(manifest: &str, error: impl std::fmt::Display) -> EncodeError {
    EncodeError::Unrepresentable { manifest: manifest.to_owned(), reason: error.to_string() }
}

fn known(codec: CodecId, own: &str, found: &str) -> Result<(), DecodeError> {
    if own == found { Ok(()) } else { Err(DecodeError::UnknownManifest { codec, manifest: found.to_owned() }) }
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

    #[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
    struct Nest {
        below: Option<Box<Nest>>,
    }

    #[derive(Clone, PartialEq, ::prost::Message)]
    struct Tree {
        #[prost(message, optional, boxed, tag = "1")]
        below: Option<Box<Tree>>,
    }

    /// Cluster T36: bytes that nest deeper than any message does are refused before the stack ends.
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

    /// Cluster T36: a length that no payload has is refused before anything of that size is allocated.
    #[test]
    fn claimed_lengths_are_not_believed() {
        const HUGE: [u8; 8] = (1_u64 << 60).to_be_bytes();
        let claim = |kind: u8| Bytes::from([&[kind][..], &HUGE, b"grey"].concat());
        assert!(matches!(cbor::<String>("m").decode("m", claim(0x7b)), Err(DecodeError::Malformed { .. })));
        assert!(matches!(cbor::<Vec<u32>>("m").decode("m", claim(0x9b)), Err(DecodeError::Malformed { .. })));
    }
}
