//! How answers become bytes whose type no codec was named for.
//!
//! The asker knows the answer's type where it writes the token, the owner where it reads it. So each keeps what it needs
//! there: the asker's port an [`AnswerReader`], the owner's token an [`AnswerWriter`]. Both use the format of the codec
//! that carries the question, which that codec names by a [`FormatScope`].
//!
//! ```text
//! asker: codec.encode -- FormatScope --> ReplyTo::serialize   --> port.expect(address, AnswerReader)
//! owner: codec.decode -- FormatScope --> ReplyTo::deserialize --> token with its AnswerWriter
//!                                        reply(value)         --> port.reply(address, value + AnswerWriter)
//! ```
//! Source: api.md, "How replies find their format".

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::codec::{Codec, CodecId, DecodeError, EncodeError};
use crate::registry::{AnyMessage, Encoded, Erased, ErasedCodec};

/// Writes one answer whose type is forgotten. Cheap to clone.
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

    /// Whether it was made for this very answer, and so goes before the codec that the registry has for the type.
    pub fn is_own(&self) -> bool {
        matches!(self.0, Writer::Codec(_))
    }

    /// Writes `answer`, which must be of the type that the writer was made for.
    ///
    /// # Errors
    /// [`EncodeError`]: what the codec or the format says.
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

/// Reads one answer into a value whose type is forgotten. Cheap to clone.
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
    /// [`DecodeError`]: what the codec or the format says.
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
    use crate::codec::{CodecId, EncodeError};
    use crate::registry::{AnyMessage, Encoded};

    pub(super) type Write = fn(&'static dyn ReplyFormat, &dyn Any) -> Result<Encoded, EncodeError>;
    pub(super) type Read = fn(&'static dyn ReplyFormat, &[u8]) -> Result<AnyMessage, String>;

    /// A serde format that carries answers of any serde type, as the codecs do that carry the questions.
    ///
    /// A codec for serde messages of one's own has one as a `static` and opens a [`FormatScope`] of it while it writes
    /// or reads a message.
    pub trait ReplyFormat: Send + Sync + 'static {
        /// The id of the codecs that use this format.
        fn codec(&self) -> CodecId;

        /// Appends the bytes of `answer`.
        ///
        /// # Errors
        /// Why it cannot be represented.
        fn write(&self, answer: &dyn erased_serde::Serialize, buffer: &mut BytesMut) -> Result<(), String>;

        /// Has `read` take one answer from `bytes`, which must hold nothing else.
        ///
        /// # Errors
        /// What is wrong with the bytes; it must not quote them, for errors are logged.
        fn read(&self, bytes: &[u8], read: ReadAnswer) -> Result<Box<dyn Any + Send>, String>;
    }

    /// Takes the answer that it was made for from a deserializer.
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
        // An answer may hold tokens of its own.
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
        // An answer may hold tokens of its own.
        let _scope = FormatScope::enter(format);
        format.read(bytes, |deserializer| Ok(Box::new(erased_serde::deserialize::<R>(deserializer)?)))
    }

    thread_local! {
        static FORMAT: Cell<Option<&'static dyn ReplyFormat>> = const { Cell::new(None) };
    }

    /// While it lives, reply tokens written or read on this thread have their answers travel in its format. Scopes nest.
    #[must_use = "the scope ends when it is dropped"]
    pub struct FormatScope {
        outer: Option<&'static dyn ReplyFormat>,
        /// Scopes end on the thread that opened them.
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
