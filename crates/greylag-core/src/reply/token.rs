//! Reply tokens in messages without serde: as bytes, with a codec for the answer.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::{Buf, BufMut};

use super::format::{AnswerReader, AnswerWriter};
use super::port::ReplyAddress;
use super::reply_to::{ReplyTo, UnboundReply};
use crate::address::{NodeAddress, Uid, UniqueAddress};
use crate::encoding::Codec;

/// Writes tokens into bytes and reads them; the answers use the codec given to [`ReplyTo::with`].
pub struct TokenCodec<R> {
    reader: AnswerReader,
    writer: AnswerWriter,
    reply: PhantomData<fn(R)>,
}

impl<R: Send + 'static> ReplyTo<R> {
    /// Makes a codec of tokens for messages without serde, such as those of prost: the token travels in a field of
    /// bytes, the answer is encoded by `codec`.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use greylag_core::{Codec, ReplyAddress, ReplyOutcome, ReplyPort, ReplyScope, ReplyTo, TokenCodec};
    /// # struct Port;
    /// # impl ReplyPort for Port {
    /// #     fn reply(&self, to: &ReplyAddress, _: ReplyOutcome) { assert_eq!(to.ask_id, 7); }
    /// # }
    /// # fn cents() -> impl Codec<i64> + Clone { Cents }
    /// # #[derive(Clone)] struct Cents;
    /// # impl Codec<i64> for Cents {
    /// #     fn id(&self) -> greylag_core::CodecId { greylag_core::CodecId::FIRST_USER }
    /// #     fn manifest(&self, _: &i64) -> greylag_core::Manifest { "cents".into() }
    /// #     fn manifests(&self) -> Vec<greylag_core::Manifest> { vec!["cents".into()] }
    /// #     fn encode(&self, cents: &i64, buffer: &mut bytes::BytesMut) -> Result<(), greylag_core::EncodeError> {
    /// #         buffer.extend_from_slice(&cents.to_be_bytes());
    /// #         Ok(())
    /// #     }
    /// #     fn decode(&self, manifest: &str, bytes: bytes::Bytes) -> Result<i64, greylag_core::DecodeError> {
    /// #         let bytes = bytes[..].try_into().map_err(|_| greylag_core::DecodeError::malformed(manifest, "8 bytes"))?;
    /// #         Ok(i64::from_be_bytes(bytes))
    /// #     }
    /// # }
    /// # let port = Arc::new(Port);
    /// # let _scope = ReplyScope::enter(port.clone());
    /// # let address = ReplyAddress { node: "a:1#1".parse().unwrap(), ask_id: 7 };
    /// # let reply_to: ReplyTo<i64> = ReplyTo::new(address, port);
    /// let tokens = ReplyTo::<i64>::with(cents());
    /// let field: Vec<u8> = tokens.write(&reply_to); // in the codec's `encode`
    /// let reply_to = tokens.read(&field)?; // in its `decode`
    /// reply_to.reply(1250);
    /// # Ok::<(), greylag_core::ReadTokenError>(())
    /// ```
    pub fn with(codec: impl Codec<R>) -> TokenCodec<R> {
        let codec = Arc::new(codec);
        let writer = AnswerWriter::of_codec::<R>(codec.clone());
        TokenCodec { reader: AnswerReader::of_codec::<R>(codec), writer, reply: PhantomData }
    }
}

impl<R: Send + 'static> TokenCodec<R> {
    /// The bytes of a token. The right to answer moves with them.
    pub fn write(&self, token: &ReplyTo<R>) -> Vec<u8> {
        let address = token.write(Some(self.reader.clone()));
        let node = address.node.address().to_string();
        let mut bytes = Vec::with_capacity(16 + node.len());
        bytes.put_u64(address.node.uid().get());
        bytes.put_u64(address.ask_id);
        bytes.extend_from_slice(node.as_bytes());
        bytes
    }

    /// Reads a token, and binds it to the node that decodes the message.
    ///
    /// # Errors
    /// [`ReadTokenError`].
    pub fn read(&self, mut bytes: &[u8]) -> Result<ReplyTo<R>, ReadTokenError> {
        if bytes.len() < 16 {
            return Err(ReadTokenError::Malformed("it is shorter than 16 bytes"));
        }
        let uid = Uid::new(bytes.get_u64()).ok_or(ReadTokenError::Malformed("its uid is 0"))?;
        let ask_id = bytes.get_u64();
        let node = std::str::from_utf8(bytes).ok().and_then(|node| node.parse::<NodeAddress>().ok());
        let node = node.ok_or(ReadTokenError::Malformed("it ends with no address"))?;
        let address = ReplyAddress { node: UniqueAddress::new(node, uid), ask_id };
        Ok(ReplyTo::bind(address)?.written_by(self.writer.clone()))
    }
}

impl<R> fmt::Debug for TokenCodec<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenCodec({})", self.reader.type_name())
    }
}

/// Why bytes were not read as a reply token. Refuse the message with it: no answer could reach the asker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadTokenError {
    /// The bytes are no token.
    #[error("malformed reply token: {0}")]
    Malformed(&'static str),
    /// The bytes were read outside of a node.
    #[error(transparent)]
    Unbound(#[from] UnboundReply),
}
