//! How answers are encoded for whose type no codec was registered.
//!
//! The asker knows the answer's type where the token is written, the owner where the token is read. So the asker's port
//! keeps an [`AnswerReader`], and the owner's token an [`AnswerWriter`]. Both use the format of the codec that carries
//! the question, which that codec names by a [`FormatScope`].
//!
//! ```text
//! asker: codec.encode -- FormatScope --> ReplyTo::serialize   --> port.expect(address, AnswerReader)
//! owner: codec.decode -- FormatScope --> ReplyTo::deserialize --> token with its AnswerWriter
//!                                        reply(value)         --> port.reply(address, value + AnswerWriter)
//! ```
//! Source: sharding §4.11, "A reply finds its format".

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::encoding::{AnyMessage, Codec, CodecId, DecodeError, EncodeError, Encoded, Erased, ErasedCodec};

/// Writes one answer of an erased type. Cheap to clone.
#[derive(Clone)]
pub struct AnswerWriter(Writer);

#[derive(Clone)]
enum Writer {
    Codec(Arc<dyn ErasedCodec>),
    #[cfg(feature = "serde")]
    Format(&'static dyn serde_impls::ReplyFormat, serde_impls::Write),
}

impl AnswerWriter {
    /// Writes by a codec of the answer's own.
    pub fn of_codec<R: Send + 'static>(codec: impl Codec<R>) -> Self {
        Self(Writer::Codec(Arc::new(Erased::new(codec))))
    }

    /// Whether the writer was made for this very answer, and so takes precedence over the codec that the registry has
    /// for the type.
    pub fn is_own(&self) -> bool {
        matches!(self.0, Writer::Codec(_))
    }

    /// Writes `answer`, which must be of the type that the writer was made for.
    ///
    /// # Errors
    /// [`EncodeError`]: the error of the codec or the format.
    pub fn write(&self, answer: &dyn Any) -> Result<Encoded, EncodeError> {
        match &self.0 {
            Writer::Codec(codec) => codec.encode(answer),
            #[cfg(feature = "serde")]
            Writer::Format(format, write) => write(*format, answer),
        }
    }
}

impl fmt::Debug for AnswerWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Writer::Codec(_) => "AnswerWriter(codec)",
            #[cfg(feature = "serde")]
            Writer::Format(..) => "AnswerWriter(format)",
        })
    }
}

/// Reads one answer into a value of an erased type. Cheap to clone.
#[derive(Clone)]
pub struct AnswerReader {
    reader: Reader,
    type_name: &'static str,
}

#[derive(Clone)]
enum Reader {
    Codec(Arc<dyn ErasedCodec>),
    #[cfg(feature = "serde")]
    Format(&'static dyn serde_impls::ReplyFormat, serde_impls::Read),
}

impl AnswerReader {
    /// Reads by a codec of the answer's own.
    pub fn of_codec<R: Send + 'static>(codec: impl Codec<R>) -> Self {
        Self { reader: Reader::Codec(Arc::new(Erased::new(codec))), type_name: std::any::type_name::<R>() }
    }

    /// The Rust type of the answer, for error texts only.
    pub fn type_name(&self) -> &'static str {
        self.type_name
    }

    /// Whether an answer under this codec id and manifest is for this reader, and not for the registry.
    pub fn reads(&self, codec: CodecId, manifest: &str) -> bool {
        match &self.reader {
            Reader::Codec(own) => own.reads(codec, manifest),
            #[cfg(feature = "serde")]
            Reader::Format(format, _) => manifest.is_empty() && format.codec() == codec,
        }
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// [`DecodeError`]: the error of the codec or the format.
    pub fn read(&self, manifest: &str, bytes: Bytes) -> Result<AnyMessage, DecodeError> {
        match &self.reader {
            Reader::Codec(codec) => codec.decode(manifest, bytes),
            #[cfg(feature = "serde")]
            Reader::Format(format, read) => {
                read(*format, &bytes).map_err(|reason| DecodeError::malformed(manifest, reason))
            }
        }
    }
}

impl fmt::Debug for AnswerReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnswerReader({})", self.type_name)
    }
}

#[cfg(feature = "serde")]
pub(crate) mod serde_impls {
    use std::any::{Any, type_name};
    use std::cell::Cell;
    use std::marker::PhantomData;

    use bytes::BytesMut;
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::{AnswerReader, AnswerWriter, Reader, Writer};
    use crate::encoding::{AnyMessage, CodecId, EncodeError, Encoded};

    pub(super) type Write = fn(&'static dyn ReplyFormat, &dyn Any) -> Result<Encoded, EncodeError>;
    pub(super) type Read = fn(&'static dyn ReplyFormat, &[u8]) -> Result<AnyMessage, String>;

    /// A serde format that carries answers of any serde type, as the codecs that carry the questions do.
    ///
    /// A user's codec for serde messages has its format as a `static` and opens a [`FormatScope`] of it while it writes
    /// or reads a message.
    pub trait ReplyFormat: Send + Sync + 'static {
        /// The id of the codecs that use this format.
        fn codec(&self) -> CodecId;

        /// Appends the bytes of `answer`.
        ///
        /// # Errors
        /// The reason why the answer cannot be represented.
        fn write(&self, answer: &dyn erased_serde::Serialize, buffer: &mut BytesMut) -> Result<(), String>;

        /// Calls `read` to take one answer from `bytes`, which must hold nothing else.
        ///
        /// # Errors
        /// The fault of the bytes; the text must not quote them, for errors are logged.
        fn read(&self, bytes: &[u8], read: ReadAnswer) -> Result<Box<dyn Any + Send>, String>;
    }

    /// Reads one answer of a known type from a deserializer.
    pub type ReadAnswer =
        fn(&mut dyn erased_serde::Deserializer<'_>) -> Result<Box<dyn Any + Send>, erased_serde::Error>;

    impl AnswerWriter {
        /// Writes in a serde format.
        pub fn of_format<R: Serialize + 'static>(format: &'static dyn ReplyFormat) -> Self {
            Self(Writer::Format(format, write::<R>))
        }
    }

    impl AnswerReader {
        /// Reads in a serde format.
        pub fn of_format<R: DeserializeOwned + Send + 'static>(format: &'static dyn ReplyFormat) -> Self {
            Self { reader: Reader::Format(format, read::<R>), type_name: type_name::<R>() }
        }
    }

    fn write<R: Serialize + 'static>(
        format: &'static dyn ReplyFormat,
        answer: &dyn Any,
    ) -> Result<Encoded, EncodeError> {
        let answer = answer.downcast_ref::<R>().ok_or(EncodeError::NotRegistered { type_name: type_name::<R>() })?;
        // Open the scope: the answer may hold reply tokens itself.
        let _scope = FormatScope::enter(format);
        let mut buffer = BytesMut::new();
        format
            .write(answer, &mut buffer)
            .map_err(|reason| EncodeError::Unrepresentable { manifest: type_name::<R>().to_owned(), reason })?;
        Ok(Encoded { codec: format.codec(), manifest: "".into(), payload: buffer.freeze() })
    }

    fn read<R: DeserializeOwned + Send + 'static>(
        format: &'static dyn ReplyFormat,
        bytes: &[u8],
    ) -> Result<AnyMessage, String> {
        // Open the scope: the answer may hold reply tokens itself.
        let _scope = FormatScope::enter(format);
        format.read(bytes, |deserializer| Ok(Box::new(erased_serde::deserialize::<R>(deserializer)?)))
    }

    thread_local! {
        static FORMAT: Cell<Option<&'static dyn ReplyFormat>> = const { Cell::new(None) };
    }

    /// While a scope is open, answers to reply tokens that are written or read on this thread use its format. Scopes
    /// nest.
    #[must_use = "the scope ends when it is dropped"]
    pub struct FormatScope {
        outer: Option<&'static dyn ReplyFormat>,
        /// Makes the scope `!Send`: a scope must end on the thread that opened it.
        not_send: PhantomData<*const ()>,
    }

    impl FormatScope {
        /// Opens a scope on this thread.
        pub fn enter(format: &'static dyn ReplyFormat) -> Self {
            Self { outer: FORMAT.replace(Some(format)), not_send: PhantomData }
        }

        pub(crate) fn current() -> Option<&'static dyn ReplyFormat> {
            FORMAT.get()
        }
    }

    impl Drop for FormatScope {
        fn drop(&mut self) {
            FORMAT.set(self.outer);
        }
    }

    impl std::fmt::Debug for FormatScope {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("FormatScope").finish_non_exhaustive()
        }
    }
}
