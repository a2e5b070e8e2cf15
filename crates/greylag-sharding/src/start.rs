//! Requests to start an entity, and their acks.
//!
//! A request travels as a message of the entity does: through the route table, buffers, forwarding and handoffs, and in
//! order with the entity's messages. On a lane the request is only the token by which it is answered. No handler sees
//! it: the shard acks it in the place where the handler would run.
//!
//! Source: sharding §4.7 (`StartEntity`).

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Manifest, ReadTokenError, ReplyTo, TokenCodec};
use prost::Message;

use crate::generated as proto;
use crate::ids::{EntityId, ShardId};

/// Manifest of a request on a data lane; its codec is the internal one.
pub(crate) const START_MANIFEST: &str = "greylag.sharding.start";
/// Manifest of an ack.
const ACK_MANIFEST: &str = "greylag.sharding.start.ack";

/// The ack: the entity runs, in this shard. Source: sharding §4.7.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartEntityAck {
    /// The entity.
    pub entity: EntityId,
    /// The shard in which it was started, or found running.
    pub shard: ShardId,
}

/// The codec of acks between nodes.
struct AckCodec;

impl Codec<StartEntityAck> for AckCodec {
    fn id(&self) -> CodecId {
        CodecId::INTERNAL
    }

    fn manifest(&self, _: &StartEntityAck) -> Manifest {
        ACK_MANIFEST.into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![ACK_MANIFEST.into()]
    }

    fn encode(&self, ack: &StartEntityAck, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        let ack = proto::StartEntityAck { entity: ack.entity.to_string(), shard: ack.shard.to_string() };
        ack.encode(buffer).expect("a growing buffer has room");
        Ok(())
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<StartEntityAck, DecodeError> {
        let malformed = |reason: &dyn std::fmt::Display| DecodeError::malformed(manifest, reason);
        let ack = proto::StartEntityAck::decode(bytes).map_err(|error| malformed(&error))?;
        let entity = EntityId::new(ack.entity).map_err(|reason| malformed(&reason))?;
        let shard = ShardId::new(ack.shard).map_err(|reason| malformed(&reason))?;
        Ok(StartEntityAck { entity, shard })
    }
}

static TOKENS: LazyLock<TokenCodec<StartEntityAck>> = LazyLock::new(|| ReplyTo::with(AckCodec));

/// Appends a request. The token to ack it moves with the bytes.
pub(crate) fn put_request(buffer: &mut BytesMut, reply_to: &ReplyTo<StartEntityAck>) {
    buffer.extend_from_slice(&TOKENS.write(reply_to));
}

/// Reads a request; the surrounding [`ReplyScope`](greylag_core::ReplyScope) provides the node through which it is
/// acked.
pub(crate) fn read_request(bytes: &[u8]) -> Result<ReplyTo<StartEntityAck>, ReadTokenError> {
    TOKENS.read(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acks_come_back_and_nonsense_is_refused() {
        let ack = StartEntityAck { entity: EntityId::new("job-7").unwrap(), shard: ShardId::from_index(3) };
        let mut buffer = BytesMut::new();
        AckCodec.encode(&ack, &mut buffer).unwrap();
        assert_eq!(AckCodec.decode(ACK_MANIFEST, buffer.freeze()), Ok(ack));
        for bytes in [&b""[..], b"\x0a\x01a", b"\xff\xff"] {
            assert!(AckCodec.decode(ACK_MANIFEST, Bytes::copy_from_slice(bytes)).is_err(), "{bytes:?}");
        }
    }
}
